"""Segments of several leaders overlap in a tier: their log has each offset once, from the leaders that it is of."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kstore.errors import BackupError
from kstore.files._index_search import OffsetEntries, TimeEntries
from kstore.files.epochs import EpochEntry
from kstore.files.txnindex import AbortedTxn, format_txn_index, parse_txn_index
from kstore.objects.aiven_tier import read_aiven
from kstore.objects.remote_state import RemoteState
from kstore.objects.tier_segments import parse_lineage
from tests.support.aiven_writer import Batch, batches_of, objects_of, of_epoch, segment_of
from tests.support.tiers import bytes_of, log_of, put

Golden = Callable[[str], Path]
Span = tuple[int, int]


@pytest.fixture
def log(golden: Golden) -> list[Batch]:
    """A log of the epochs 0, 2, 8 and 12, from the offsets 0, 27, 63 and 90 on."""
    directory = golden("epochs") / "dir" / "epochs-0"
    return batches_of(b"".join(path.read_bytes() for path in sorted(directory.glob("*.log"))))


def between(log: Sequence[Batch], start: int, end: int) -> list[Batch]:
    return [batch for batch in log if start <= batch.base < end]


def stamped(batches: Sequence[Batch], epoch: int) -> list[Batch]:
    return [of_epoch(batch, epoch) for batch in batches]


class Prefix:
    """A tier that leaders copy segments to, one after another."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.number = 0

    def copy(
        self, log: Sequence[Batch], start: int, end: int, *, chunk: int | None = None, txn: bytes | None = None
    ) -> None:
        """Copy the batches of `[start, end)` of a leader's log as one segment."""
        self.number += 1
        segment = segment_of(between(log, start, end), log)._replace(txn_index=txn)
        self.objects = put(self.root, objects_of(segment, number=self.number, chunk=chunk, written_ms=self.number))

    def read(self) -> RemoteState:
        return read_aiven(self.objects, list(self.objects.list()))

    def log(self) -> bytes:
        return log_of(self.objects, self.read().partitions["events", 0])


@pytest.fixture
def prefix(tmp_path: Path) -> Prefix:
    return Prefix(tmp_path / "tier")


def bytes_in(log: Sequence[Batch], start: int, end: int) -> bytes:
    return b"".join(batch.data for batch in between(log, start, end))


@pytest.mark.parametrize("chunk", [None, 500, 1 << 20])
def test_a_segment_ends_where_the_next_leaders_begins(prefix: Prefix, log: list[Batch], chunk: int | None) -> None:
    prefix.copy(log, 0, 63, chunk=chunk)
    prefix.copy(log, 48, 118, chunk=chunk)
    state = prefix.read()
    found = state.partitions["events", 0]
    assert prefix.log() == bytes_in(log, 0, 118)
    first = found.segments[0]
    kept = between(log, 0, 48)
    assert first.end_offset == 48
    assert first.max_timestamp == max(batch.max_timestamp for batch in kept)
    assert first.max_timestamp_offset == next(
        batch.last for batch in kept if batch.max_timestamp == first.max_timestamp
    )
    index = bytes_of(prefix.objects, found.files["00000000000000000000.index"])
    assert index
    assert all(offset < 48 for offset, _ in OffsetEntries(index, 0).all_entries())
    times = TimeEntries(bytes_of(prefix.objects, found.files["00000000000000000000.timeindex"]), 0)
    assert times.sound_entries() == times.entries
    assert times.last == (first.max_timestamp, first.max_timestamp_offset)


def test_aborted_transactions_beyond_the_end_are_left_out(prefix: Prefix, log: list[Batch]) -> None:
    kept, gone = AbortedTxn(0, 7, 3, 40, 41), AbortedTxn(0, 8, 41, 50, 51)
    prefix.copy(log, 0, 63, txn=format_txn_index([kept, gone]))
    prefix.copy(log, 48, 118)
    found = prefix.read().partitions["events", 0]
    assert parse_txn_index(bytes_of(prefix.objects, found.files["00000000000000000000.txnindex"])) == [kept]


def test_the_end_of_a_leader_out_of_sync_is_left_out(prefix: Prefix, log: list[Batch]) -> None:
    old = [*between(log, 0, 63), *stamped(between(log, 63, 90), 2)]
    prefix.copy(old, 0, 90)
    prefix.copy(log, 63, 118)
    assert prefix.log() == bytes_in(log, 0, 118)
    assert any("other leader epochs" in note for note in prefix.read().notes)


def test_segments_of_a_leader_out_of_sync_are_left_out(prefix: Prefix, log: list[Batch]) -> None:
    old = [*between(log, 0, 63), *stamped(between(log, 63, 118), 2)]
    prefix.copy(old, 0, 72)
    prefix.copy(old, 72, 118)
    prefix.copy(log, 63, 90)
    assert prefix.log() == bytes_in(log, 0, 90)


def test_an_epoch_that_the_newest_leader_never_saw_is_left_out(prefix: Prefix, log: list[Batch]) -> None:
    stray = [*between(log, 0, 48), *stamped(between(log, 48, 63), 5)]
    prefix.copy(log, 0, 63)
    prefix.copy(stray, 27, 63)
    prefix.copy(log, 63, 118)
    assert prefix.log() == bytes_in(log, 0, 118)


def test_a_segment_that_was_copied_twice_is_read_once(prefix: Prefix, log: list[Batch]) -> None:
    for start, end in ((0, 48), (0, 48), (0, 27), (9, 27), (48, 118), (63, 90)):
        prefix.copy(log, start, end)
    state = prefix.read()
    assert list(state.partitions["events", 0].segments) == [0, 48]
    assert any("offsets that other segments have" in note and "and 1 others" in note for note in state.notes)


def test_segments_before_the_log_start_are_left_out(prefix: Prefix, log: list[Batch]) -> None:
    prefix.copy(log, 0, 27)
    prefix.copy(log, 27, 63)
    moved = [*stamped(between(log, 48, 63), 2), *between(log, 63, 118)]
    prefix.copy(moved, 63, 118)  # its leader's log starts at 48
    found = prefix.read().partitions["events", 0]
    assert list(found.segments) == [27, 63]
    assert found.log_start_offset == 48


def test_a_cut_takes_few_requests(prefix: Prefix, log: list[Batch]) -> None:
    prefix.copy(log, 0, 63)
    prefix.copy(log, 48, 118)
    listing = list(prefix.objects.list())
    prefix.objects.requests.clear()
    read_aiven(prefix.objects, listing)
    assert prefix.objects.requests["get"] <= 2 + 1 + 4


@given(data=st.data())
def test_random_leaders_leave_a_log_without_overlaps(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    log = history(data)
    prefix = Prefix(tmp_path_factory.mktemp("tier"))
    final, end = log[-1], 0
    for leader in log:
        # Each leader goes on where the tier has the records of its own log, with segments of its own.
        bounds = sorted(
            data.draw(st.sets(st.integers(0, len(leader) - 1), max_size=5), label="bounds") | {0, len(leader)}
        )
        while True:
            start, stop = bounds[0], bounds[1]
            if stop > end or data.draw(st.booleans(), label="again"):
                prefix.copy(leader, start, stop, chunk=data.draw(st.sampled_from([None, 200]), label="chunk"))
            bounds.pop(0)
            if len(bounds) < 2:
                break
        end = len(leader) if leader is final else min(end, len(leader))
    assert prefix.log() == b"".join(batch.data for batch in final)


def history(data: st.DataObject) -> list[list[Batch]]:
    """The logs of leaders: each begins with some of the log before it and goes on in a higher epoch."""
    logs: list[list[Batch]] = []
    for epoch in range(data.draw(st.integers(1, 4), label="leaders")):
        log = list(logs[-1][: data.draw(st.integers(0, len(logs[-1])), label="kept")]) if logs else []
        for _ in range(data.draw(st.integers(1, 8), label="appended")):
            log.append(batch_at(len(log), epoch, data.draw(st.integers(0, 100), label="time")))
        logs.append(log)
    return logs


def batch_at(offset: int, epoch: int, timestamp: int) -> Batch:
    """A batch of one record whose checksum nobody reads."""
    body = (
        struct.pack(">ibIhiqqqhii", epoch, 2, 0, 0, 0, timestamp, timestamp, -1, -1, -1, 1) + b"\x10\0\0\0\x01\x04ab\0"
    )
    data = struct.pack(">qi", offset, len(body)) + body
    return Batch(data, offset, offset, epoch, timestamp)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"0\n0\n",
        b"1\n1\n0 0\n",
        b"0\n2\n0 0\n0 5\n",
        b"0\n2\n0 5\n1 5\n",
        b"0\n1\n-1 0\n",
        b"0\n1\nx 0\n",
        b"\xff",
    ],
)
def test_malformed_epochs_are_an_error(text: bytes) -> None:
    with pytest.raises(BackupError, match="the epochs"):
        parse_lineage(text, "the epochs")


def test_epochs_are_parsed_as_kafka_writes_them() -> None:
    assert parse_lineage(b"0\n2\n0 0\n3 27\n", "here") == (EpochEntry(0, 0), EpochEntry(3, 27))


@pytest.mark.parametrize("damage", ["log", "index", "zeros"])
def test_a_damaged_segment_cannot_be_cut(prefix: Prefix, log: list[Batch], damage: str) -> None:
    prefix.copy(log, 0, 63)
    prefix.copy(log, 48, 118)
    key = next(info.key for info in prefix.objects.list() if info.key.endswith(".log") and "00000-" in info.key)
    path = prefix.root / key
    if damage == "index":
        path = path.with_suffix(".indexes")
        path.write_bytes(struct.pack(">ii", 1, 2**31 - 1) + path.read_bytes()[8:])
    else:
        path.write_bytes((b"\xff" if damage == "log" else b"\0") * path.stat().st_size)
    with pytest.raises(BackupError, match=r"00000000000000000000-.*cannot be searched"):
        prefix.read()
