"""Appends records to a log: one record that the compiled `Log.append` cannot append itself, or many.

Records are packed before the log's gate (its mutex) is entered. Invariant: an append that raises leaves the log
unchanged, or its exception says which records it has stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from kstore.base import arguments
from kstore.codec._pack import encode_headers
from kstore.errors import RecordTooLargeError
from kstore.log import batch_packer
from kstore.log.appended import Stored, with_appended
from kstore.log.batch_packer import PACK_BYTES, AppendOptions
from kstore.log.writing.writer import Writer
from kstore.types import AppendInfo

if TYPE_CHECKING:
    from datetime import datetime

    from _typeshed import ReadableBuffer

    from kstore.types import Headers


def append_record(
    writer: Writer,
    value: ReadableBuffer | None,
    key: ReadableBuffer | None,
    timestamp: int | datetime | None,
    headers: Headers | None,
    leader_epoch: int | None,
    expected_offset: int | None,
) -> int:
    """Append one record that needs a roll, compression, housekeeping, or unusual headers; see `Log.append`."""
    writer.housekeeping.before_append()
    batch_packer.check_epoch(leader_epoch)
    expected_offset = batch_packer.checked_expectation(expected_offset)
    codec = batch_packer.codec_of(writer.config, None)
    if codec == 0:
        encoded = None if headers is None else encode_headers(headers)
        batch = writer.appender.encode(value, key, timestamp, headers=encoded)
        with writer.gate():
            batch_packer.refuse_unexpected_locked(writer, expected_offset)
            writer.assign_epoch_locked(leader_epoch)
            writer.append_locked(batch)
            offset = writer.log_end_offset - 1
    else:
        options = AppendOptions(codec, expected_offset=expected_offset, leader_epoch=leader_epoch, atomic=True)
        offset = append_records(writer, [(key, value, timestamp, headers)], options).last_offset
    return offset


def append_records(
    writer: Writer, records: Iterable[Any], options: AppendOptions, flush: Callable[[], None] | None = None
) -> AppendInfo:
    """Append an iterable of records in batches, then call `flush`; see `Log.append_many`."""
    producer = options.producer
    numbered = producer.producer_id >= 0
    now_ms = writer.now()
    packer = batch_packer.packer(
        writer, options.codec, options.batch_bytes, now_ms, single=options.atomic, producer=producer
    )
    iterator = arguments.iterator("records", records)
    stored = Stored()
    more = True
    try:
        while more:
            try:
                more = packer.pack(iterator, PACK_BYTES)
            except RecordTooLargeError as error:
                raise batch_packer.too_large(writer.config, error) from None
            finally:
                if packer.batches:
                    batch_packer.store(
                        writer,
                        packer,
                        stored,
                        leader_epoch=options.leader_epoch,
                        numbered=numbered,
                        expected_offset=options.expected_offset,
                    )
                    packer.clear()
        if flush is not None:
            flush()
    except BaseException as error:
        with_appended(error, stored.info(writer.config, now_ms), writer.directory)
        raise
    return stored.info(writer.config, now_ms)
