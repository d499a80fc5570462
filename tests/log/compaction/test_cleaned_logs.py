"""Every reader of a cleaned log gives what is there: batches without records, segments of 0 bytes, gaps.

The logs are built by hand (tests/support/compacted.py) and compared with the plain list of what is left. kstore's own
passes and Kafka's are held against the same readers elsewhere.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kstore
from kstore.columns._columns import Columns
from kstore.log.segments import time_search
from kstore.log.segments.segment import Segment
from kstore.tools.check.verify import verify
from tests.conftest import ManualClock, examples
from tests.support.compacted import NOW, HandMade, SegmentFiles, Stored, a_root, drawn, write
from tests.support.reference import Rec

pytestmark = pytest.mark.usefixtures("no_syncs")

SETTINGS: dict[str, Any] = {"segment_bytes": 4096, "index_interval_bytes": 200, "cleanup_policy": "compact"}
COMMITTED: Literal["read_committed"] = "read_committed"


def opened(path: Path, mode: Literal["a", "r"]) -> kstore.Log:
    if mode == "r":
        return kstore.Log.open(path, mode="r")
    return kstore.Log.open(path, clock=ManualClock(), **SETTINGS)


def plain(records: Any) -> list[Rec]:
    return [
        Rec(r.offset, r.timestamp, r.key, r.value, tuple((name.encode(), value) for name, value in r.headers))
        for r in records
    ]


def rows(columns: Columns) -> list[tuple[Any, ...]]:
    """Offset, timestamp, key and value of each row."""
    return list(zip(columns.offsets.tolist(), columns.timestamps.tolist(), columns.keys, columns.values, strict=True))


def as_rows(records: list[Rec]) -> list[tuple[Any, ...]]:
    return [tuple(r[:4]) for r in records]


def compare(log: kstore.Log, made: HandMade) -> None:
    """Hold every reader of the log against the list."""
    assert log.log_start_offset == made.start
    assert log.log_end_offset == made.end
    assert plain(log.read()) == made.records()
    assert plain(log.read(isolation=COMMITTED)) == made.records(committed=True)
    batches = [(b.base_offset, b.last_offset, b.count, b.max_timestamp) for b in log.read_batches()]
    reaching = [each for each in made.batches if each.last >= made.start]
    assert batches == [(each.base, each.last, len(each.records), each.max_timestamp) for each in reaching]
    table = log.batch_table()
    assert len(table) == len(reaching)
    assert rows(log.read_columns()) == as_rows(made.records())
    assert rows(log.read_columns(isolation=COMMITTED)) == as_rows(made.records(committed=True))
    for offset in range(made.start, made.end + 1):
        compare_at(log, made, offset)
    compare_times(log, made)


def compare_at(log: kstore.Log, made: HandMade, offset: int) -> None:
    expected = made.records(offset)
    assert plain(log.read(offset)) == expected
    assert plain(log.read(offset, end_offset=offset + 7)) == [r for r in expected if r.offset < offset + 7]
    assert rows(log.read_columns(offset)) == as_rows(expected)
    chunked = [row for chunk in log.iter_columns(offset, max_records=3) for row in rows(chunk)]
    assert chunked == as_rows(expected)
    first = next((each for each in made.batches if each.last >= offset), None)
    fetched = log.fetch(offset, 1)
    if first is None:
        assert bytes(fetched.records) == b""
    else:
        assert bytes(fetched.records) == first.encode()
        assert fetched.offset == first.base
    committed = log.fetch(offset, 1 << 20, isolation=COMMITTED)
    assert len(committed.records) == 0 or committed.offset < made.stable_end()
    assert [b.base_offset for b in log.read_batches(offset)] == [b.base for b in made.batches if b.last >= offset]


def compare_times(log: kstore.Log, made: HandMade) -> None:
    stamps = sorted({timestamp for timestamp, _ in made.times()} | {each.max_timestamp for each in made.batches})
    for timestamp in [0, *stamps, *(each + 1 for each in stamps)]:
        found = log.offset_for_timestamp(timestamp)
        assert (None if found is None else (found.timestamp, found.offset)) == made.offset_for_timestamp(timestamp)
    greatest = log.max_timestamp()
    assert (None if greatest is None else (greatest.timestamp, greatest.offset)) == made.max_timestamp()


a_log = given(st.integers(0, 2**32), st.integers(1, 14), st.integers(1, 3))


@given(st.integers(0, 2**32), st.integers(1, 14), st.integers(1, 3), st.sampled_from(("a", "r")))
def test_every_reader_gives_what_a_cleaner_has_left(
    seed: int, batches: int, passes: int, mode: Literal["a", "r"]
) -> None:
    rng, made = drawn(seed, batches, passes)
    with a_root() as root:
        # Without a snapshot of its producers a log that was closed knows of no open transaction.
        closed = made.stable_end() == made.end and rng.random() < 0.7
        write(made, root / "events-0", index_interval=rng.choice((0, 100, 400)), recovery_point=None if closed else 0)
        with opened(root / "events-0", mode) as log:
            assert mode == "r" or log.recovery.clean == closed
            assert log.recovery.cut_bytes == 0
            compare(log, made)


@examples(0.5)
@a_log
def test_a_cleaned_log_without_indexes_and_snapshots_is_recovered_whole(seed: int, batches: int, passes: int) -> None:
    rng, made = drawn(seed, batches, passes)
    with a_root() as root:
        path = root / "events-0"
        flushed = [made.segments[0].base, *(each.last + 1 for each in made.batches)]
        write(made, path, indexes=False, recovery_point=rng.choice(flushed), clean=rng.random() < 0.3)
        with opened(path, "a") as log:
            assert log.recovery.cut_bytes == 0
            assert not log.recovery.segments_dropped
            compare(log, made)
        with opened(path, "a") as log:
            assert log.recovery.clean
            compare(log, made)
        assert not [each for each in verify([root], deep=True).findings if each.severity != "note"]


@a_log
def test_a_check_finds_nothing_wrong_with_a_cleaned_log(seed: int, batches: int, passes: int) -> None:
    _, made = drawn(seed, batches, passes)
    with a_root() as root:
        write(made, root / "events-0", recovery_point=0)
        with opened(root / "events-0", "a"):
            pass
        assert not [each for each in verify([root], deep=True).findings if each.severity != "note"]


@examples(0.5)
@a_log
def test_records_are_deleted_up_to_an_offset_in_a_gap(seed: int, batches: int, passes: int) -> None:
    rng, made = drawn(seed, batches, passes)
    with a_root() as root:
        path = root / "events-0"
        write(made, path, recovery_point=0)
        made.start = rng.randint(0, made.end)
        settings = {**SETTINGS, "cleanup_policy": "compact,delete", "retention_ms": -1}
        with kstore.Log.open(path, clock=ManualClock(), **settings) as log:
            log.delete_records(made.start)
            compare(log, made)
            # The list knows an open transaction by its records, which go with their segment.
            if made.stable_end() == made.end and rng.random() < 0.5:
                log.apply_retention()
                made.segments = [s for s in made.segments if s.base in {info.base_offset for info in log.segments}]
                compare(log, made)
            left = plain(log.read())
        with opened(path, rng.choice(("a", "r"))) as log:
            assert plain(log.read()) == left
            assert log.log_end_offset == made.end
        assert not [each for each in verify([root], deep=True).findings if each.severity != "note"]


@examples(0.5)
@a_log
def test_a_truncation_into_a_gap_goes_on_there(seed: int, batches: int, passes: int) -> None:
    rng, made = drawn(seed, batches, passes)
    with a_root() as root:
        path = root / "events-0"
        write(made, path, recovery_point=0)
        offset = rng.randint(0, made.end)
        with opened(path, "a") as log:
            if log.truncate_to(offset):
                made = made.truncated(offset)
            compare(log, made)
            if rng.random() < 0.7:
                for _ in range(rng.choice((1, 3))):
                    value = b"after the cut" * rng.choice((1, 40))
                    appended = log.append(value, key=b"new", timestamp=NOW)
                    epoch = next(log.read_batches(appended)).partition_leader_epoch
                    made.segments[-1].batches.append(_batch(appended, value, epoch))
                    made.end = log.log_end_offset
                    if rng.random() < 0.4:
                        log.roll()
                        made.segments.append(SegmentFiles(made.end))
                compare(log, made)
            if rng.random() < 0.5:
                log.flush()
        made.end = max(made.data_end, made.start)
        with opened(path, rng.choice(("a", "r"))) as log:
            compare(log, made)
        assert not [each for each in verify([root], deep=True).findings if each.severity != "note"]


def _batch(offset: int, value: bytes, epoch: int) -> Stored:
    return Stored(offset, offset, (Rec(offset, NOW, b"new", value),), NOW, leader_epoch=epoch)


@pytest.mark.parametrize("mode", ["a", "r"])
def test_a_transaction_that_a_truncation_reopens_ends_a_committed_read_in_a_gap(
    partition: Path, mode: Literal["a", "r"]
) -> None:
    """The stable end is then in the gap that the transaction's cleaned records left behind a segment's last batch."""
    numbered: dict[str, Any] = {"producer_id": 7, "producer_epoch": 0, "transactional": True}
    with kstore.Log.open(partition, clock=ManualClock(), **SETTINGS) as log:
        log.append(bytes(3000), key=b"a")  # so that the segments are not made one
        log.append(b"superseded", key=b"b")
        log.append_many([(b"b", b"superseded")], base_sequence=0, **numbered)
        log.roll()
        log.append_many([(b"b", b"new")], base_sequence=1, **numbered)
        log.append(bytes(3000), key=b"c")
        log.roll()
        log.append_marker(7, 0, commit=True)
        log.append(b"stays", key=b"d")
        log.compact()
        log.truncate_to(5)
        assert (log.last_stable_offset, log.log_end_offset) == (2, 5)
        with opened(partition, "r") if mode == "r" else contextlib.nullcontext(log) as reader:
            assert [record.offset for record in reader.read(isolation=COMMITTED)] == [0]
            assert reader.read_columns(isolation=COMMITTED).offsets.tolist() == [0]
            assert [record.offset for record in reader.read()] == [0, 3, 4]


@a_log
def test_a_pass_that_was_killed_before_it_wrote_its_line_is_no_damage(seed: int, batches: int, passes: int) -> None:
    _, made = drawn(seed, batches, passes)
    with a_root() as root:
        write(made, root / "events-0", recovery_point=0)
        (root / "cleaner-offset-checkpoint").write_text("0\n1\nevents 0 0\n")
        with opened(root / "events-0", "a") as log:
            compare(log, made)
        assert not [each for each in verify([root], deep=True).findings if each.severity != "note"]


def test_the_first_pass_writes_a_line_before_it_swaps(partition: Path) -> None:
    """The row `first-dirty-line-before-a-pass`; SEMANTICS 7.7."""

    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with opened(partition, "a") as log:
        log.append_many([(b"k", b"%d" % number) for number in range(9)])
        log.roll()
        with pytest.raises(KeyboardInterrupt):
            log.compact(progress=stop)
        assert (partition.parent / "cleaner-offset-checkpoint").read_text() == "0\n1\nevents 0 0\n"
        assert len(list(log.read())) == 9


def test_a_truncation_to_the_end_of_an_indexed_batch_warns_of_nothing(
    partition: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with kstore.Log.open(partition, segment_bytes=4096, index_interval_bytes=1, clock=ManualClock()) as log:
        for _ in range(5):
            log.append_many([b"v" * 20] * 3)
        log.roll()
        for offset in (14, 11, 8, 5, 2):  # the last offset of a batch, which an entry names
            assert log.truncate_to(offset)
    assert not caplog.records


@pytest.mark.parametrize("later", [40, 50, 60])
def test_an_emptied_batch_with_the_greatest_timestamp_hides_no_record(tmp_path: Path, later: int) -> None:
    """`latest-of-an-emptied-batch`: the answer is the first record with the greatest timestamp, whichever segment it
    is in."""
    path = tmp_path / "t-0"
    with kstore.Log.open(path, clock=ManualClock(), **SETTINGS) as log:
        log.append_many([(b"k", b"v", 100, None)], atomic=True, producer_id=1, producer_epoch=0, base_sequence=0)
        log.append(b"w", key=b"k", timestamp=50)
        log.append(b"x", key=b"j", timestamp=20)
        log.compact(roll=True)
        log.append(b"y", key=b"i", timestamp=later)
        log.append(b"z", key=b"h", timestamp=30)
        expected = kstore.TimestampOffset(*((60, 3) if later == 60 else (50, 1)))
        assert next((b.count, b.max_timestamp) for b in log.read_batches()) == (0, 100)
        assert log.max_timestamp() == expected
        log.roll()
        assert log.max_timestamp() == expected
        log.flush()
        with kstore.Log.open(path, "r") as reader:
            assert reader.max_timestamp() == expected
    with kstore.Log.open(path, clock=ManualClock(), **SETTINGS) as log:
        assert log.max_timestamp() == expected


def test_max_timestamp_searches_the_first_segment_alone_among_equal_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    searched: list[int] = []
    search = time_search.latest_record

    def noted(segment: Segment, *arguments: Any) -> Any:
        searched.append(segment.base_offset)
        return search(segment, *arguments)

    monkeypatch.setattr(time_search, "latest_record", noted)
    with kstore.Log.open(tmp_path / "t-0", clock=ManualClock()) as log:
        for _ in range(5):
            log.append(b"v", timestamp=100)
            log.roll()
        assert log.max_timestamp() == kstore.TimestampOffset(100, 0)
    assert searched == [0]
