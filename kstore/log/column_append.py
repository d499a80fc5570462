"""Appends whole columns to a log, without a Python object for each record.

`columns.column_input` yields runs of rows, `columns._column_encoder` encodes them without the GIL, and the pipeline
compresses and stores the batches. Invariant: batches are stored in the order of their rows. If a row is refused, the
batches before its batch are in the log, and the error's attribute `appended` has their offsets.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from kstore.columns import _column_encoder
from kstore.columns.column_input import ColumnInput
from kstore.errors import RecordTooLargeError
from kstore.log import batch_packer
from kstore.log.appended import Stored, with_appended
from kstore.log.batch_packer import LOAD_BYTES, PACK_BYTES, AppendOptions, too_large
from kstore.log.batch_pipeline import OrderedWork, Pipeline
from kstore.log.writing.writer import Writer
from kstore.types import AppendInfo

MAX_THREADS = 256


def append_columns(
    writer: Writer,
    columns: ColumnInput,
    now_ms: int,
    options: AppendOptions,
    threads: int,
    flush: Callable[[], None] | None,
) -> AppendInfo:
    """Append a record for each row, then call `flush`; see `Log.append_columns`."""
    work = OrderedWork(threads)
    stored = Stored()
    pipeline = Pipeline(
        writer,
        work,
        lambda packer: batch_packer.store(
            writer,
            packer,
            stored,
            leader_epoch=options.leader_epoch,
            numbered=options.producer.producer_id >= 0,
            expected_offset=options.expected_offset,
        ),
        partial(batch_packer.warn_of_seconds, writer, stored),
        codec=options.codec,
        batch_bytes=options.batch_bytes,
        now_ms=now_ms,
        producer=options.producer,
        single=options.expected_offset is not None,
    )
    work.send_rest = pipeline.send
    limit_bytes = LOAD_BYTES if options.codec == 0 and work.threads == 1 else PACK_BYTES
    try:
        with work:
            for rows in columns:
                while _column_encoder.pack(pipeline.packer, rows, limit_bytes):
                    pipeline.send()
            _column_encoder.close(pipeline.packer)
        if flush is not None:
            flush()
    except RecordTooLargeError as error:
        raise with_appended(
            too_large(writer.config, error), stored.info(writer.config, now_ms), writer.directory
        ) from None
    except BaseException as error:
        with_appended(error, stored.info(writer.config, now_ms), writer.directory)
        raise
    return stored.info(writer.config, now_ms)
