"""Appending whole columns: the third form of append, without a Python object for each record.

`columns.column_input` brings the columns into step, `columns._column_encoder` encodes them without the GIL, the pipeline compresses
and stores them. The hardest rule: batches are stored in the order of their rows, and when a row is refused those before
its batch are in the log, as the error's `appended` says.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from kstore.base import arguments
from kstore.columns import _column_encoder
from kstore.columns.column_input import ColumnInput
from kstore.errors import RecordTooLargeError
from kstore.log import batch_packer
from kstore.log.append import Appends
from kstore.log.appended import Stored, with_appended
from kstore.log.batch_packer import LOAD_BYTES, PACK_BYTES, checked_expectation, codec_of, producer_fields, too_large
from kstore.log.batch_pipeline import OrderedWork, Pipeline
from kstore.types import AppendInfo

MAX_THREADS = 256


class ColumnAppends(Appends):
    """What a `Log` can append, columns included; see there about threads."""

    def append_columns(
        self,
        values: Any,
        *,
        keys: Any = None,
        timestamps: Any = None,
        headers: Any = None,
        compression: str | None = None,
        sync: bool = False,
        batch_bytes: int | None = None,
        threads: int = 1,
        expected_offset: int | None = None,
        leader_epoch: int | None = None,
        producer_id: int = -1,
        producer_epoch: int = -1,
        base_sequence: int = -1,
        transactional: bool = False,
    ) -> AppendInfo:
        """Append a record for each row of `values`, with the same row of the other columns; nulls are nulls.

        A column is whatever speaks the Arrow PyCapsule interface (an array, a chunked array, a stream), a NumPy array,
        or a list. Bytes may be binary or utf8 in any of Arrow's layouts, dictionary-encoded or not; NumPy's `S` (the
        NUL bytes at a row's end are padding, as in NumPy), `V` or rows of uint8. `values` may be a record batch, a
        table, a stream of them or a structured array with columns value, key, timestamp and headers. `timestamps` are
        milliseconds, Arrow timestamps, dates, or datetime64, one int for all, or None for now, which null is, too;
        times between two milliseconds belong to the earlier one. `headers` are an Arrow map or list of structs, or a
        list of what `append_many` takes for each record.

        Batches are those of `append_many` for the same records. With `threads` above 1 batches are compressed on so
        many threads, in order; without a codec one batch is written while the next is encoded. A producer's numbers are
        as in `append_many`. With an `expected_offset` the rows are stored as one batch that begins there, or not at
        all; more rows than a batch has room for are a `RecordTooLargeError`. Raises what `append_many` raises,
        `InvalidColumnError` for columns of different lengths and unsound Arrow data, and `TypeError` for a type that is
        not taken; errors name the row. Every exception says what is stored, as in `append_many`.
        """
        writer = self._leading()
        codec = codec_of(self.config, compression)
        self._check_epoch(leader_epoch)
        expected_offset = checked_expectation(expected_offset)
        work = OrderedWork(arguments.integer("threads", threads, 1, MAX_THREADS))
        columns = ColumnInput(values, keys, timestamps, headers, now_ms := writer.now())
        producer = producer_fields(producer_id, producer_epoch, base_sequence, transactional)
        stored = Stored()
        pipeline = Pipeline(
            writer,
            work,
            lambda packer: batch_packer.store(
                writer,
                packer,
                stored,
                leader_epoch=leader_epoch,
                numbered=producer.producer_id >= 0,
                expected_offset=expected_offset,
            ),
            partial(batch_packer.warn_of_seconds, writer, stored),
            codec=codec,
            batch_bytes=batch_bytes,
            now_ms=now_ms,
            producer=producer,
            single=expected_offset is not None,
        )
        work.send_rest = pipeline.send
        limit_bytes = LOAD_BYTES if codec == 0 and work.threads == 1 else PACK_BYTES
        try:
            with work:
                for rows in columns:
                    while _column_encoder.pack(pipeline.packer, rows, limit_bytes):
                        pipeline.send()
                _column_encoder.close(pipeline.packer)
            if sync:
                self.flush()
        except RecordTooLargeError as error:
            raise with_appended(too_large(self.config, error), stored.info(self.config, now_ms), self.path) from None
        except BaseException as error:
            with_appended(error, stored.info(self.config, now_ms), self.path)
            raise
        return stored.info(self.config, now_ms)
