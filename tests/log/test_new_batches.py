"""The look of a reader that follows: what it takes in at once, and what it leaves to a refresh."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import kstore
from kstore.codec import header
from kstore.log.hosted_log import HostedLog
from kstore.log.reading import read_only_view
from kstore.log.reading._new_batches import NewBatches, new_batches
from kstore.log.reading.read_only_view import ReadOnlyView
from kstore.log.reading.view import ReadPiece

LONG_AGO_NS = 1_000_000_000 * 10**9


def batch(base_offset: int, count: int = 1, *, timestamp: int = 5, **fields: object) -> bytes:
    records = [(None, b"value", timestamp + number, ()) for number in range(count)]
    return kstore.encode_batch(records, base_offset=base_offset, **fields)  # type: ignore[arg-type]


@pytest.fixture
def log(tmp_path: Path) -> Iterator[kstore.Log]:
    """A log in mode "r" with two batches, whose directories have not changed for a long time."""
    path = tmp_path / "data" / "events-0"
    with kstore.Log.open(path) as writer:
        writer.append_many([b"a", b"b"])
        writer.append(b"c")
    settle(path)
    with kstore.Log.open(path, "r") as reader:
        reader.refresh()
        yield reader


def settle(path: Path) -> None:
    for each in (path, path.parent):
        os.utime(each, ns=(LONG_AGO_NS, LONG_AGO_NS))


def view_of(log: kstore.Log) -> ReadOnlyView:
    view = HostedLog(log).view
    assert isinstance(view, ReadOnlyView)
    return view


def look(log: kstore.Log) -> NewBatches | bool:
    view = view_of(log)
    segment = view.segments.items[-1]
    names = os.fsencode(view.root), os.fsencode(view.directory), os.fsencode(segment.path)
    state = view._state
    return new_batches(*names, segment.file.fd, LONG_AGO_NS, LONG_AGO_NS, state, segment.base_offset)


def file_of(log: kstore.Log) -> Path:
    return Path(view_of(log).segments.items[-1].path)


def add(log: kstore.Log, data: bytes) -> None:
    with file_of(log).open("ab") as file:
        file.write(data)


def test_nothing_new_is_true(log: kstore.Log) -> None:
    assert look(log) is True


def test_new_batches_come_with_the_batch_before_them(log: kstore.Log) -> None:
    size = file_of(log).stat().st_size
    added = batch(3, 2, timestamp=1 << 50) + batch(5)
    add(log, added)
    found = look(log)
    assert isinstance(found, NewBatches)
    assert found.data.endswith(added)
    assert found.position + len(found.data) == size + len(added)
    assert found.last_position == size + len(batch(3, 2, timestamp=1 << 50))
    assert (found.next_offset, found.maximum) == (6, ((1 << 50) + 1, 4))
    assert found.changed_ns == file_of(log).stat().st_mtime_ns


def damaged(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


@pytest.mark.parametrize(
    "data",
    [
        damaged(batch(3)),
        batch(2),
        batch(4),
        batch(3)[:-1],
        batch(3) + batch(4)[:20],
        batch(3) + damaged(batch(4)),
        batch(3)[: header.MAGIC.at] + b"\1" + batch(3)[header.MAGIC.end :],
        b"\0" * 100,
    ],
    ids=["crc", "offset-below", "gap", "torn", "torn-behind", "crc-behind", "magic", "zeros"],
)
def test_what_is_no_sound_batch_in_its_place_is_left_to_a_refresh(log: kstore.Log, data: bytes) -> None:
    add(log, data)
    assert look(log) is False


def replaced(log: kstore.Log) -> None:
    path = file_of(log)
    other = path.with_name("other")
    other.write_bytes(path.read_bytes() + batch(3))
    other.rename(path)
    settle(path.parent)


def cut(log: kstore.Log) -> None:
    os.truncate(file_of(log), 10)


def rewritten(log: kstore.Log) -> None:
    """Another batch is in the place of the last one, as after a truncation in place."""
    path = file_of(log)
    data = bytearray(path.read_bytes())
    at = len(data) - 1
    data[at] ^= 1
    data[view_of(log)._state.last_batch[0] + header.CRC.at] ^= 1  # type: ignore[index]
    path.write_bytes(bytes(data) + batch(3))


def listed_anew(log: kstore.Log) -> None:
    add(log, batch(3))
    os.utime(file_of(log).parent)


def marked_anew(log: kstore.Log) -> None:
    add(log, batch(3))
    os.utime(file_of(log).parent.parent)


@pytest.mark.parametrize("change", [replaced, cut, rewritten, listed_anew, marked_anew])
def test_any_other_change_is_left_to_a_refresh(log: kstore.Log, change: Callable[[kstore.Log], None]) -> None:
    change(log)
    assert look(log) is False


def test_a_follower_takes_the_bytes_of_its_own_look_once(log: kstore.Log) -> None:
    view = view_of(log)
    position, start = view._state.last_batch or (-1, b"")
    segment = view.segments.items[-1]
    add(log, batch(3))
    assert view.catch_up()
    assert view.has_fresh
    fresh = view.take_fresh(ReadPiece(segment, position, start, view.readable_bytes(segment), None))
    assert fresh is not None
    assert bytes(fresh.data) == batch(3)
    assert (fresh.next_offset, fresh.end) == (4, view.readable_bytes(segment))
    assert view.take_fresh(ReadPiece(segment, position, start, 0, None)) is None


def test_bytes_are_read_again_for_another_place_or_after_a_while(
    log: kstore.Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    view = view_of(log)
    segment = view.segments.items[-1]
    position, start = view._state.last_batch or (-1, b"")
    add(log, batch(3))
    assert view.catch_up()
    assert view.take_fresh(ReadPiece(segment, 0, start, 0, None)) is None
    position, start = view._state.last_batch or (-1, b"")
    add(log, batch(4))
    assert view.catch_up()
    monkeypatch.setattr(read_only_view, "FRESH_SECONDS", 0.0)
    assert view.take_fresh(ReadPiece(segment, position, start, 0, None)) is None


def test_a_consumer_goes_on_where_its_reader_has_ended_in_both_modes(tmp_path: Path) -> None:
    with kstore.Store.open(tmp_path, background=False) as writer:
        writer.create_topic("orders", config={"segment.bytes": "1000"})
        with kstore.Store.open(tmp_path, "r") as reader:
            consumers = [store.consumer("billing", "orders") for store in (writer, reader)]
            for number in range(60):
                writer.append("orders", b"%d" % number * 20)
                if number % 7 == 3:
                    writer.log("orders", 0).truncate_to(number + 1)
                for consumer in consumers:
                    assert [record.offset for record in consumer.poll()] == [number]


def test_a_cut_behind_the_place_where_a_reader_has_ended_is_noticed(tmp_path: Path) -> None:
    with kstore.Store.open(tmp_path, background=False) as writer:
        writer.create_topic("orders")
        with kstore.Store.open(tmp_path, "r") as reader:
            consumers = [store.consumer("billing", "orders") for store in (writer, reader)]
            writer.append_many("orders", [b"a", b"b", b"c"])
            assert [len(consumer.poll()) for consumer in consumers] == [3, 3]
            writer.log("orders", 0).truncate_to(1)
            writer.append_many("orders", [b"B", b"C", b"D"])
            for consumer in consumers:
                with pytest.raises(kstore.OffsetOutOfRangeError):
                    consumer.poll()
