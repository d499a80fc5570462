"""Bytes of others are checked and written anew in bulk, before any lock is taken: beside a slow twin, and timed."""

from __future__ import annotations

import random
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kstore
from kstore._core import decode_batches
from kstore.codec import _legacy_messages, refusals, validation
from kstore.codec.legacy import Message, messages
from kstore.config.log_config import LogConfig
from kstore.errors import (
    CorruptRecordError,
    InvalidRecordError,
    InvalidTimestampError,
    KStoreError,
    RecordTooLargeError,
)
from kstore.log.hosted_log import HostedLog
from tests.conftest import ManualClock
from tests.support.batches import APPEND_TIME, CODECS, NOW, legacy, record, v2, varint, wrapper
from tests.support.validating import header, lead

MESSAGES = 250_000

# ---- The slow twin: a message at a time, as SEMANTICS 1.14 to 1.18 say it.


def slow_lead(data: bytes, **settings: Any) -> bytes:
    config = LogConfig(**settings)
    analysis = validation.analyze(data, max_message_bytes=config.max_message_bytes)
    target = config.compression_type
    if target == "producer":
        target = CODECS[analysis.source_compression]
    elif target == "uncompressed":
        target = "none"
    first = analysis.batches[0]
    if analysis.batches_count > 1 and analysis.source_compression:
        raise InvalidRecordError(
            f"{analysis.batches_count} batches in one append: exactly one, unless they are uncompressed and of "
            f"format v0 or v1"
        )
    entries = [bytes(analysis.data[at : at + size]) for at, size in entries_of(analysis.data)]
    if first.compression or target != "none":
        for entry in entries:
            slow_check(entry, first, config)
    records: list[Any] = []
    for entry in entries:
        if not first.compression and target == "none":
            slow_check(entry, first, config)
        for message in messages(memoryview(entry)):
            key, value = message.fields()
            if message.timestamp < -1:
                reason = f"timestamp {message.timestamp}: 0 or more, or -1 for none"
                index = len(records)
                raise InvalidTimestampError(f"record {index}: {reason}", record_errors=((index, reason),))
            records.append((key, value, message.timestamp, None))
    return kstore.encode_batch(records, compression=target)


def entries_of(data: memoryview) -> Iterator[tuple[int, int]]:
    at = 0
    while at < len(data):
        size = 12 + struct.unpack_from(">i", data, at + 8)[0]
        yield at, size
        at += size


def slow_check(entry: bytes, first: validation.Batch, config: LogConfig) -> None:
    if entry[16] != first.magic:
        raise InvalidRecordError(f"batch of magic {entry[16]} after one of magic {first.magic}: one format an append")
    errors = []
    for index, message in enumerate(messages(memoryview(entry))):
        if message.magic != first.magic:
            errors.append((index, f"magic {message.magic} inside a wrapper of magic {first.magic}", False))
        elif entry[17] & 7 and not message.crc_holds:
            raise CorruptRecordError(f"CRC of message {index} of the wrapper", position=0)
        elif config.compacts and not has_key(message):
            errors.append((index, refusals.NO_KEY, False))
        elif (fault := timestamp_fault(message.timestamp, entry, config)) is not None:
            errors.append((index, fault, True))
    if errors:
        kind = InvalidTimestampError if any(of_time for _, _, of_time in errors) else InvalidRecordError
        index, reason, _ = errors[0]
        raise kind(
            f"{len(errors)} records refused; the first is record {index}: {reason}",
            record_errors=tuple((index, reason) for index, reason, _ in errors),
        )


def has_key(message: Message) -> bool:
    at = 14 if message.magic else 6
    if at + 4 > len(message.data):
        raise InvalidRecordError(f"message of {len(message.data)} bytes ends before a field's length at {at}")
    size: int = struct.unpack_from(">i", message.data, at)[0]
    return size >= 0


def timestamp_fault(timestamp: int, entry: bytes, config: LogConfig) -> str | None:
    before, after = config.message_timestamp_before_max_ms, config.message_timestamp_after_max_ms
    if config.message_timestamp_type == "CreateTime" and timestamp != -1:
        if NOW - timestamp > before or timestamp - NOW > after:
            return refusals.too_far(timestamp, NOW, before, after)
    elif entry[16] and entry[17] & APPEND_TIME:
        return refusals.CLAIMS_APPEND_TIME
    return None


# ---- Beside it.


def drawn(rng: random.Random) -> bytes:
    """Messages of one format as a rule, in a wrapper or not, now and then with something wrong."""
    magic = rng.choice((0, 1))

    def one(offset: int) -> bytes:
        odd = rng.random() < 0.08
        value = rng.choice((None, b"", b"v" * rng.randrange(200)))
        data = legacy(
            1 - magic if odd and rng.random() < 0.3 else magic,
            value,
            key=rng.choice((None, None, b"", b"key")),
            timestamp=rng.choice((NOW, NOW, NOW - 5000, -1, -7, 2**63 - 1, -(2**63))) if odd else NOW + offset,
            attributes=rng.choice((0, APPEND_TIME, 1)) if odd and rng.random() < 0.3 else 0,
            offset=offset,
        )
        if odd and rng.random() < 0.3:
            at = rng.randrange(12, len(data))
            data = data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]
        if odd and rng.random() < 0.2:
            data = data[:8] + struct.pack(">i", rng.choice((13, 14, 21, 22, len(data) - 13, 2**31 - 1, -1))) + data[12:]
        return data

    inner = [one(offset) for offset in range(rng.choice((1, 2, 5, 40)))]
    if rng.random() < 0.1:
        inner[-1] = inner[-1][: rng.randrange(1, len(inner[-1]))]
    if rng.random() < 0.4:
        return b"".join(inner)
    return wrapper(
        magic,
        b"".join(inner),
        codec=rng.choice(CODECS[1:4]),
        offset=rng.choice((0, len(inner) - 1, len(inner) + 7, 1)),
        timestamp=NOW,
        attributes=rng.choice((0, 0, APPEND_TIME)),
    )


def outcome(make: Any) -> Any:
    try:
        return make()
    except KStoreError as error:
        return type(error), str(error), getattr(error, "record_errors", None)


def test_old_messages_are_refused_or_written_as_one_at_a_time_would_be(rng: random.Random) -> None:
    """SEMANTICS 1.12, 1.14 to 1.20"""
    stored = refused = 0
    for _ in range(3000):
        data = drawn(rng)
        settings: dict[str, Any] = {
            "cleanup_policy": rng.choice(("delete", "delete", "compact")),
            "compression_type": rng.choice(("producer", "producer", "uncompressed", "lz4")),
            "message_timestamp_before_max_ms": rng.choice((2**63 - 1, 1000)),
            "message_timestamp_after_max_ms": rng.choice((2**63 - 1, 1000)),
        }

        def slow(data: bytes = data, settings: dict[str, Any] = settings) -> bytes:
            return slow_lead(data, **settings)

        def fast(data: bytes = data, settings: dict[str, Any] = settings) -> bytes:
            out = lead(data, **settings)
            assert out.rebuilt
            assert out.max_timestamp == header(out.data).max_timestamp
            return bytes(out.data[:12]) + b"\xff" * 4 + bytes(out.data[16:])  # before it had an epoch

        expected = outcome(slow)
        assert outcome(fast) == expected, (data.hex(), settings)
        stored += isinstance(expected, bytes)
        refused += not isinstance(expected, bytes)
    assert min(stored, refused) > 200


def test_entries_are_surveyed_in_bulk_as_one_at_a_time_would_be(
    rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SEMANTICS 1.4 to 1.8"""
    quick = 0
    for _ in range(3000):
        data = drawn(rng)
        most = rng.choice((2**31 - 1, 100))
        found = outcome(lambda data=data, most=most: validation.analyze(data, max_message_bytes=most))
        quick += _legacy_messages.survey(data, most) is not None
        with monkeypatch.context() as patch:
            patch.setattr(_legacy_messages, "survey", lambda *_: None)
            assert outcome(lambda data=data, most=most: validation.analyze(data, max_message_bytes=most)) == found
    assert quick > 200


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("target", ["gzip", "uncompressed"])
def test_a_v2_batch_is_written_anew_as_an_encoder_would_write_it(codec: str, target: str) -> None:
    """SEMANTICS 1.12, 1.20: keys, values, headers, null or empty; varints that were longer than they need be are not
    any more."""
    headers = [(b"h", b"1"), (b"", None), (b"h", b"")]
    odd = varint(0)[:0] + b"\x0e\x00\x00\x06\x01\x01" + b"\x80\x00" + b""  # offset delta 3, nulls, a count of two bytes
    sections = [
        record(1, 5, b"k", b"v", headers),
        record(0, -3, None, None),
        record(2, 0, b"", b"", [(b"x" * 200, b"y" * 300)]),
        varint(len(odd) - 1) + odd[1:],
    ]
    data = v2(sections, codec=codec, last_offset_delta=3)
    out = lead(data, compression_type=target)
    if codec == "none" and target == "uncompressed":
        assert not out.rebuilt
        return
    assert out.rebuilt
    (batch,) = decode_batches(data)
    rows = [(each.key, each.value, each.timestamp, each.headers) for each in batch]
    assert len(rows) == 4
    expected = kstore.encode_batch(rows, compression="none" if target == "uncompressed" else target)
    assert out.data[16:] == expected[16:]


# A name as it stands in a batch, and as Java's decoder and encoder leave it: an encoded surrogate is one sign.
NAMES: dict[bytes, str] = {
    b"plain": "plain",
    "\u00fc\u20ac\U0001f600\ufffd".encode(): "\u00fc\u20ac\U0001f600\ufffd",
    b"\xff": "\ufffd",
    b"a\xffb\xc3": "a\ufffdb\ufffd",
    b"\xe2\x82": "\ufffd",
    b"\xe2\x28": "\ufffd(",
    b"\xc0\x80": "\ufffd\ufffd",
    b"\xed\xa0\x80": "\ufffd",
    b"\xf0\x9f\x98": "\ufffd",
    b"\xf5\x80\x80\x80": "\ufffd\ufffd\ufffd\ufffd",
    b"\xff" * 21: "\ufffd" * 21,
    b"\xff" * 22: "\ufffd" * 22,
    b"x" * 40 + b"\x80": "x" * 40 + "\ufffd",
}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("target", ["gzip", "uncompressed"])
def test_a_header_name_that_is_no_text_is_replaced_when_its_batch_is_written_anew(name: bytes, target: str) -> None:
    """SEMANTICS 1.20: a name is text to Kafka (FORMAT 3.2), and what is no UTF-8 comes out as U+FFFD; elsewhere it
    stays."""
    headers = [(b"h", b"1"), (name, b"\xff"), (b"h", None)]
    sections = [record(0, 0, b"\xff", b"\xff", headers), record(1, 0, b"k")]
    out = lead(v2(sections, codec="zstd"), compression_type=target)
    rows = [
        (b"\xff", b"\xff", NOW, [("h", b"1"), (NAMES[name], b"\xff"), ("h", None)]),
        (b"k", b"v", NOW, []),
    ]
    expected = kstore.encode_batch(rows, compression="none" if target == "uncompressed" else target)
    assert out.data[16:] == expected[16:]
    kept = lead(v2(sections, codec="zstd"))
    assert not kept.rebuilt
    assert next(iter(header(kept.data))).headers[1][0].encode("utf-8", "surrogateescape") == name


def test_names_that_are_no_text_may_make_a_batch_three_times_as_large() -> None:
    names = [b"\xff" * 20_000, b"\x80" * 63, b"\xff" * 100]
    sections = [record(i, 0, None, b"", [(name, b"")] * 3) for i, name in enumerate(names)]
    size = len(v2([record(i, 0, None, b"", [(b"\xef\xbf\xbd" * len(n), b"")] * 3) for i, n in enumerate(names)]))
    out = lead(v2(sections, codec="gzip"), compression_type="uncompressed", max_message_bytes=size)
    assert len(out.data) == size
    (batch,) = decode_batches(out.data)
    assert [[len(found) for found, _ in each.headers] for each in batch] == [[len(name)] * 3 for name in names]
    with pytest.raises(RecordTooLargeError, match=f"{size} bytes"):
        lead(v2(sections, codec="gzip"), compression_type="uncompressed", max_message_bytes=size - 1)


def test_a_negative_timestamp_in_a_batch_that_is_written_anew_is_refused() -> None:
    data = v2([record(0, 0), record(1, -NOW - 7)])
    with pytest.raises(InvalidTimestampError, match="record 1: timestamp -7") as caught:
        lead(data, compression_type="gzip")
    assert caught.value.record_errors == ((1, "timestamp -7: 0 or more, or -1 for none"),)


# ---- No lock, no long wait.


def wrapped_messages(magic: int = 0) -> bytes:
    """A quarter of a million messages in a few kilobytes."""
    return wrapper(magic, legacy(magic, b"") * MESSAGES, codec="gzip", offset=0)


def test_bytes_of_others_are_converted_while_other_threads_append(
    partition: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    with kstore.Log.open(partition, clock=clock, compression_type="zstd") as log:
        prepare = validation.prepare_leader
        done: list[int] = []

        def beside(*arguments: Any, **named: Any) -> validation.Prepared:
            found = prepare(*arguments, **named)
            thread = threading.Thread(target=lambda: done.append(log.append_many([b"beside"]).last_offset))
            thread.start()
            thread.join(60)
            return found

        monkeypatch.setattr(validation, "prepare_leader", beside)
        for number, data in enumerate((legacy(1), wrapper(1, [legacy(1)]), v2(), v2(codec="lz4"))):
            assert log.append_batch(data).first_offset == 2 * number + 1
            assert done == [2 * each for each in range(number + 1)]
        assert [each.offset for each in log.read()] == list(range(8))


def test_a_wrapper_of_250000_messages_costs_little_more_than_a_batch_of_format_2(
    partition: Path, clock: ManualClock
) -> None:
    """The batch of format 2 is decompressed, checked and compressed, too, as the topic has another codec."""
    data = wrapped_messages()
    assert len(data) < 40_000
    records = b"".join(record(MESSAGES - 1 - i, 0, None, b"") for i in range(MESSAGES))
    beside = v2(records, codec="gzip", count=MESSAGES, last_offset_delta=MESSAGES - 1)

    def seconds(batch: bytes) -> float:
        taken = []
        for _ in range(3):
            begin = time.process_time()
            assert log.append_batch(batch).last_offset % MESSAGES == MESSAGES - 1
            taken.append(time.process_time() - begin)
        return min(taken)

    with kstore.Log.open(partition, clock=clock, max_message_bytes=1 << 30, compression_type="lz4") as log:
        assert seconds(data) < 6 * seconds(beside)


def test_a_log_that_refuses_writes_says_so_before_it_looks_at_a_batch(partition: Path) -> None:
    log = kstore.Log.open(partition)
    HostedLog(log).fail(kstore.StorageError(5, "Input/output error", "here"))
    with pytest.raises(kstore.StorageError, match="refuses writes"):
        log.append_batch(b"no batch")
    log.close()
