"""A record that nobody holds is filled anew, and one that anybody holds, or a part of it, stays as it is."""

from __future__ import annotations

import queue
import random
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from kstore import Log
from kstore._core import Record, RecordIterator
from tests.support import reference
from tests.support.reference import Rec

T = 1_700_000_000_000
LIMIT = 4096  # bytes of key and value that an iterator holds for the next record
Fields = list[tuple[bytes | None, bytes | None]]


def records(fields: Fields, headers: int = 0) -> RecordIterator:
    """The records with these keys and values; each so many has headers, none with 0."""
    rows = [
        Rec(at, T + at, *pair, ((b"h", b"%d" % at),) if headers and at % headers == 0 else ())
        for at, pair in enumerate(fields)
    ]
    return RecordIterator(((reference.encode(rows), None, 0),))


def of_size(number: int, size: int) -> bytes | None:
    return None if size < 0 else (b"%d." % number * (size // 2 + 1))[:size]


# Each size behind each other: none, the bytes that all share, below and above a half, one more than there is room for.
SIZES = (-1, 0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 100)


def every_pair() -> Fields:
    rng = random.Random(5)
    order = [size for first in SIZES for second in SIZES for size in (first, second, second, first)]
    return [(of_size(at, rng.choice(SIZES)), of_size(at, size)) for at, size in enumerate(order)]


@pytest.mark.parametrize("headers", [0, 1, 3])
def test_a_loop_that_keeps_nothing_gets_each_record_as_it_is(headers: int) -> None:
    fields = every_pair()
    seen = 0
    for at, record in enumerate(records(fields, headers)):
        assert (record.offset, record.timestamp, record.key, record.value) == (at, T + at, *fields[at])
        assert record.headers == ((("h", b"%d" % at),) if headers and at % headers == 0 else ())
        for part, wanted in zip((record.key, record.value), fields[at], strict=True):
            assert hash(part) == hash(wanted)  # the hash of what was there before is forgotten
            assert part is None or (len(part) == len(wanted or b"") and part[len(part) :] == b"")
        seen += 1
    assert seen == len(fields)


def test_a_loop_that_keeps_nothing_gets_two_records_in_turn() -> None:
    assert len({id(record) for record in records([(b"key", b"value")] * 50)}) == 2


@pytest.mark.parametrize("every", [1, 2, 3, 5])
def test_what_a_loop_keeps_of_a_record_stays_as_it_was(every: int) -> None:
    fields = every_pair()
    kept: list[tuple[int, Record]] = []
    keys: list[bytes | None] = []
    views: list[tuple[int, memoryview]] = []
    for at, record in enumerate(records(fields)):
        keys.append(record.key)
        if record.value is not None and at % every:
            views.append((at, memoryview(record.value)))
        if at % every == 0:
            kept.append((at, record))
    assert keys == [key for key, _ in fields]
    assert [bytes(view) for _, view in views] == [fields[at][1] for at, _ in views]
    assert [record for _, record in kept] == [Record(at, T + at, *fields[at]) for at, _ in kept]


def test_records_kept_by_steps_of_their_own_stay_as_they_were() -> None:
    fields: Fields = [(None, b"value %d" % at) for at in range(40)]
    walk = records(fields)
    first, second = next(walk), next(walk)
    third = next(walk)
    values = second.value, third.value
    del second
    rest: Iterator[Record] = walk
    assert [record.value for record in rest] == [value for _, value in fields[3:]]
    assert (first.value, *values) == tuple(value for _, value in fields[:3])


def test_of_a_large_record_an_iterator_holds_nothing() -> None:
    for size, held in ((LIMIT - 4, 1), (LIMIT - 3, 1), (LIMIT - 2, 0)):
        record = next(walk := records([(b"key", bytes(size))] * 2))
        ours = object()  # from Python 3.14 on, an argument is no reference of its own
        assert sys.getrefcount(record) == sys.getrefcount(ours) + held
        assert walk.next_offset == 1


@pytest.mark.parametrize("part", ["key", "value"])
def test_a_record_cannot_be_given_smaller_bytes_and_filled_over_their_end(part: str) -> None:
    fields: Fields = [(bytes([at]) * 3000, None) if part == "key" else (None, bytes([at]) * 3000) for at in range(6)]
    walk = records(fields)
    first = next(walk)
    with pytest.raises(TypeError, match="cannot be initialized again"):
        first.__init__(0, 0, **{part: bytearray(b"ab")})  # type: ignore[misc]
    assert (first.key, first.value) == fields[0]
    del first
    assert [(record.key, record.value) for record in walk] == fields[1:]


def test_a_record_that_another_thread_has_is_not_filled_anew(tmp_path: Path) -> None:
    with Log.open(tmp_path / "t-0") as log:
        log.append_many([b"%06d" % at for at in range(30_000)])
        given: queue.SimpleQueue[Record | None] = queue.SimpleQueue()
        wrong: list[Record] = []

        def look() -> None:
            while (record := given.get()) is not None:
                if record.value != b"%06d" % record.offset:
                    wrong.append(record)

        other = threading.Thread(target=look)
        other.start()
        for record in log.read():
            given.put(record)
        given.put(None)
        other.join()
        assert wrong == []
