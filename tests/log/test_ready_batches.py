"""The short way of `Log.append_batch`, for a batch that only lacks its offset: it takes nothing that the long way would
refuse or change, and answers and stores the same.

The long way is the oracle: the same log without `Appender.append_ready`.
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import crc32c as second_opinion
import numpy as np
import pytest

import kstore
from kstore import AppendInfo, Log
from kstore.errors import InvalidRecordError, KStoreError
from kstore.log.writing import _appender
from tests.conftest import ManualClock
from tests.support.batches import APPEND_TIME, CONTROL, DELETE_HORIZON, NOW, TRANSACTIONAL, messages_of, record, v2

MIXED = v2(
    [
        record(0, 0, key=b"k", value=b"value"),
        record(1, -5, key=b"", value=None, headers=[(b"name", b"v"), (b"other", None)]),
        record(2, 70, key=b"key", value=b""),
    ],
    max_timestamp=NOW + 70,
)
SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "compacted": {"cleanup_policy": "compact"},
    "times within a second": {"message_timestamp_before_max_ms": 1000, "message_timestamp_after_max_ms": 1000},
    "time of the append": {"message_timestamp_type": "LogAppendTime"},
    "compressed": {"compression_type": "lz4"},
    "small messages": {"max_message_bytes": len(MIXED)},
}

Short = Callable[[Log], list[AppendInfo | None]]


@pytest.fixture
def opened(root: Path, clock: ManualClock) -> Iterator[Callable[..., Log]]:
    logs: list[Log] = []

    def open_log(name: str, **settings: Any) -> Log:
        logs.append(Log.open(root / f"{name}-0", clock=clock, **settings))
        return logs[-1]

    yield open_log
    for log in logs:
        log.close()


@pytest.fixture
def went_short(monkeypatch: pytest.MonkeyPatch) -> Short:
    """`answers = went_short(log)`: what the short way answers from now on, None for the long way."""

    def watch(log: Log) -> list[AppendInfo | None]:
        answers: list[AppendInfo | None] = []
        append_ready = log._append_ready

        def noted(*arguments: Any) -> AppendInfo | None:
            answers.append(append_ready(*arguments))
            return answers[-1]

        monkeypatch.setattr(log, "_append_ready", noted)
        return answers

    return watch


def only_long(log: Log) -> Log:
    log._append_ready = lambda *_: None
    return log


def outcome(log: Log, batch: Any, **arguments: Any) -> object:
    """What the call answers, or the error with all that it says."""
    try:
        return log.append_batch(batch, **arguments)
    except (KStoreError, TypeError, ValueError) as error:
        return type(error), str(error), getattr(error, "record_errors", None)


def bytes_of(log: Log) -> bytes:
    return b"".join(Path(segment.path).read_bytes() for segment in log.segments)


def sealed(batch: bytes) -> bytes:
    """The batch with the CRC of its bytes as they are now."""
    return batch[:17] + struct.pack(">I", second_opinion.crc32c(batch[21:])) + batch[21:]


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_batch_with_any_byte_changed_ends_as_on_the_long_way(opened: Callable[..., Log], setting: str) -> None:
    short, long = opened("short", **SETTINGS[setting]), only_long(opened("long", **SETTINGS[setting]))
    for at in range(len(MIXED)):
        for change in (0x01, 0x02, 0x40, 0x80, 0xFF):
            changed = bytearray(MIXED)
            changed[at] ^= change
            for batch in (bytes(changed), sealed(bytes(changed))):
                assert outcome(short, batch) == outcome(long, batch), (at, change)
    assert bytes_of(short) == bytes_of(long)


SHAPES = {
    "one record": v2(),
    "mixed": MIXED,
    "as many records as fit": v2(messages_of([b"v" * 90] * 160)),
    "more than the GIL is held for": v2(messages_of([b"v" * 90] * 400)),
    "no records": v2([]),
    "a gap in the numbers": v2([record(0), record(2)], last_offset_delta=2),
    "numbers that fall": v2([record(1), record(0)]),
    "a number outside": v2([record(0), record(5)]),
    "a count that is too large": v2([record(0)], count=2, last_offset_delta=1),
    "a count that is too small": v2([record(0), record(1)], count=1, last_offset_delta=0),
    "more offsets than records": v2([record(0)], last_offset_delta=1),
    "a greatest time that no record has": v2(max_timestamp=NOW + 1),
    "no time": v2(base_timestamp=-1),
    "a time before 1970": v2(base_timestamp=-2),
    "an old time": v2(base_timestamp=NOW - 2000),
    "a time to come": v2(base_timestamp=NOW + 2000),
    "times that wrap": v2([record(timestamp_delta=2**63 - 1)], base_timestamp=NOW),
    "a base offset": v2(base_offset=7),
    "claims the time of the append": v2(attributes=APPEND_TIME),
    "transactional": v2(attributes=TRANSACTIONAL),
    "a control batch": v2(attributes=CONTROL),
    "a delete horizon": v2(attributes=DELETE_HORIZON),
    "an unknown bit": v2(attributes=0x100),
    "compressed": v2(codec="lz4"),
    "a producer": v2(producer_id=1, producer_epoch=0, base_sequence=0),
    "a sequence without a producer": v2(producer_epoch=3, base_sequence=4),
    "half a batch behind": MIXED + MIXED[:30],
    "two": MIXED + MIXED,
    "cut off": MIXED[:-1],
    "nothing": b"",
    "no buffer": 7,
    "text": "text",
    "writable": bytearray(MIXED),
    "every second byte": memoryview(bytes(byte for byte in MIXED for _ in range(2)))[::2],
    "every second byte of an array": np.repeat(np.frombuffer(MIXED, np.uint8), 2)[::2],
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_batch_of_any_shape_ends_as_on_the_long_way(opened: Callable[..., Log], setting: str) -> None:
    short, long = opened("short", **SETTINGS[setting]), only_long(opened("long", **SETTINGS[setting]))
    for name, batch in SHAPES.items():
        assert outcome(short, batch) == outcome(long, batch), name
    assert bytes_of(short) == bytes_of(long)
    assert list(short.read()) == list(long.read())


@pytest.mark.parametrize("shape", ["one record", "mixed", "as many records as fit", "no time", "writable"])
def test_an_ordinary_batch_goes_the_short_way(opened: Callable[..., Log], went_short: Short, shape: str) -> None:
    log = opened("short")
    log.append(b"first")  # the first append of a log enters its leader epoch
    answers = went_short(log)
    assert log.append_batch(SHAPES[shape]) is answers[0]
    assert answers[0] is not None


@pytest.mark.parametrize(
    "arguments", [{"origin": "client "}, {"origin": "coordinator"}, {"transaction_version": 3},
                  {"transaction_version": False}, {"transaction_version": 0.0}, {"leader_epoch": -1},
                  {"leader_epoch": 9}, {"origin": None}]
)  # fmt: skip
def test_arguments_are_checked_before_the_batch(opened: Callable[..., Log], arguments: dict[str, Any]) -> None:
    short, long = opened("short"), only_long(opened("long"))
    for log in (short, long):
        log.append(b"first")
    for batch in (MIXED, b""):
        assert outcome(short, batch, **arguments) == outcome(long, batch, **arguments)
    assert bytes_of(short) == bytes_of(long)


def test_a_segment_that_is_full_or_old_is_left_on_the_short_way_too(
    opened: Callable[..., Log], clock: ManualClock
) -> None:
    settings = {"segment_bytes": 4 * len(MIXED), "segment_ms": 1000}
    short, long = opened("short", **settings), only_long(opened("long", **settings))
    for number in range(30):
        clock.advance(90 if number < 20 else 400)
        batch = v2(messages_of([b"value"] * 3), base_timestamp=clock())
        assert outcome(short, batch) == outcome(long, batch)
    assert [segment.base_offset for segment in short.segments] == [segment.base_offset for segment in long.segments]
    assert len(short.segments) > 5


def test_the_last_offset_of_all_is_refused_in_the_same_words(opened: Callable[..., Log], went_short: Short) -> None:
    last = 2**63 - 1
    log = opened("short")
    log.append_as_follower(v2(base_offset=last - 3, leader_epoch=0))
    answers = went_short(log)
    assert log.append_batch(v2()).last_offset == last - 2
    for batch in (MIXED, v2([record(0), record(1)])):
        with pytest.raises(InvalidRecordError, match=f"the largest is {last - 1}"):
            log.append_batch(batch)
    assert log.append_batch(v2()).last_offset == last - 1
    with pytest.raises(InvalidRecordError, match=f"the largest is {last - 1}"):
        log.append_batch(v2())
    assert [answer is None for answer in answers] == [True, True, True, False, True]  # the first enters its epoch


def test_a_due_flush_is_made_on_the_short_way_too(opened: Callable[..., Log], went_short: Short) -> None:
    log = opened("short", flush_messages=2)
    log.append(b"first")
    answers = went_short(log)
    log.append_batch(v2())
    assert len(list(log.read(durable=True))) == 2
    assert None not in answers


def test_a_log_that_is_closed_or_read_only_or_a_followers_takes_no_batch(
    opened: Callable[..., Log], tmp_path: Path
) -> None:
    log = opened("short")
    log.append(b"first")
    log.close()
    with pytest.raises(kstore.LogClosedError):
        log.append_batch(MIXED)
    with Log.open(log.path, mode="r") as reader, pytest.raises(kstore.ReadOnlyError):
        reader.append_batch(MIXED)
    with kstore.Store.open(tmp_path / "source", background=False) as source:
        source.create_topic("t", 1)
        source.append("t", b"first")
        kstore.replicate(tmp_path / "source", tmp_path / "copy")
        with kstore.Store.open(tmp_path / "copy", background=False) as copy:
            with pytest.raises(kstore.NotLeaderError):
                copy.log("t", 0).append_batch(MIXED)
            assert copy.log("t", 0).log_end_offset == 1


def test_a_write_that_fails_leaves_the_log_as_it_was_on_the_short_way_too(
    opened: Callable[..., Log], went_short: Short
) -> None:
    log = opened("short")
    log.append(b"first")
    before, answers = bytes_of(log), went_short(log)

    def refuse(fd: int, data: bytes, position: int) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    _appender.set_pwrite_hook(refuse)
    try:
        with pytest.raises(kstore.StorageError) as caught:
            log.append_batch(MIXED)
    finally:
        _appender.set_pwrite_hook(None)
    assert caught.value.errno == errno.ENOSPC
    assert answers == []  # the short way raised, and so the long one did not write it once more
    assert (log.log_end_offset, bytes_of(log)) == (1, before)
    assert log.append_batch(MIXED) is answers[0]
    assert [record.offset for record in log.read()] == [0, 1, 2, 3]
