"""How little it takes to plan a query over a log of very many segments: files opened and bytes read, and no clock."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import kstore
from kstore.disk import fs

T = 1_700_000_000_000
SEGMENTS = 500  # of each partition, with one record in each; bench/bench_datasets.py plans over 10,000
MIDDLE = SEGMENTS // 2
FILES = 3  # of a segment
FEW = 80  # looks at files of two partitions, however many segments they have
OFFSET, TIME, PARTITION = pc.field("offset"), pc.field("timestamp"), pc.field("partition")


class Work(NamedTuple):
    """What is done with files."""

    opened: int
    looked_at: int  # by `stat`
    bytes_read: int


def work_of(act: Callable[[], object]) -> Work:
    """Count what is done meanwhile; the bytes are those that this process has read in any way but by maps."""
    counts = {"open": 0, "stat": 0}

    def counted(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **more: Any) -> Any:
            counts[name] += 1
            return real(*arguments, **more)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for name in counts:
            patch.setattr(fs, name, counted(name, getattr(fs, name)))
        before = bytes_read()
        act()
        return Work(counts["open"], counts["stat"], bytes_read() - before)


def bytes_read() -> int:
    return int(Path("/proc/self/io").read_text().split()[1])


def time(record: float) -> Any:
    """The time of the record with this offset."""
    return pa.scalar(int(T + 1000 * record), pa.timestamp("ms", "UTC"))


def plan(dataset: Any, condition: Any) -> list[tuple[int, tuple[int, int]]]:
    """The partitions and ranges of offsets that a query reads."""
    parts = dataset.scanner(filter=condition)._scan.parts()
    return [(part.number, tuple(span)) for part in parts for span in part.spans]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A topic of two partitions, each with a segment for each record, a second apart."""
    root = tmp_path_factory.mktemp("planning")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("fsync", "fdatasync"):
            patch.setattr(fs, name, lambda fd: None)
        patch.setattr(fs, "sync_directory", lambda path, *, missing_ok=False: None)
        with kstore.Store.open(root, background=False) as store:
            store.create_topic("t", partitions=2, config={"segment.bytes": 130})
            for number in range(2):
                records = [(b"k", b"x" * 50, T + 1000 * i, ()) for i in range(SEGMENTS)]
                store.append_many("t", records, partition=number, batch_bytes=130)
    for path in (root / "t-0", root / "t-1", root):  # changed long ago: what is known of them need not be read again
        os.utime(path, (T // 1000, T // 1000))
    [(_, whole), _] = plan(kstore.dataset(root, "t"), time(0) <= TIME)  # what is loaded at the first use is loaded now
    assert whole == (0, SEGMENTS)
    return root


@pytest.fixture
def dataset(root: Path) -> Iterator[Any]:
    dataset = kstore.dataset(root, "t")
    yield dataset
    dataset._table.source._store.close()


def test_a_plan_by_offset_opens_no_sealed_segment(dataset: Any) -> None:
    found: list[Any] = []
    condition = (OFFSET >= MIDDLE) & (OFFSET < MIDDLE + 3)
    first = work_of(lambda: found.extend(plan(dataset, condition)))
    assert found == [(0, (MIDDLE, MIDDLE + 3)), (1, (MIDDLE, MIDDLE + 3))]
    assert first.opened <= FEW
    assert first.looked_at <= 2 * FEW
    assert first.bytes_read <= 64 << 10
    again = work_of(lambda: plan(dataset, condition))
    assert again.opened <= 2 * FILES
    assert again.bytes_read <= 4 << 10


def test_a_query_by_offset_reads_only_the_segments_in_its_range(dataset: Any) -> None:
    plan(dataset, OFFSET == 0)
    condition = (PARTITION == 0) & (OFFSET >= MIDDLE) & (OFFSET < MIDDLE + 3)
    work = work_of(lambda: dataset.to_table(filter=condition))
    assert 3 <= work.opened <= 5 * FILES
    assert work.bytes_read <= 16 << 10


def test_a_plan_by_partition_opens_no_log_of_the_others(root: Path, dataset: Any) -> None:
    opened: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        real = fs.open
        patch.setattr(fs, "open", lambda path, *a, **k: opened.append(str(path)) or real(path, *a, **k))
        assert plan(dataset, (PARTITION == 1) & (OFFSET < 4)) == [(1, (0, 4))]
    assert {Path(path).parent.name for path in opened if path.endswith((".log", "index"))} == {"t-1"}


def test_a_first_plan_by_time_opens_each_earlier_segment_once(dataset: Any) -> None:
    condition = (PARTITION == 0) & (time(MIDDLE) <= TIME)
    work = work_of(lambda: plan(dataset, condition))
    assert MIDDLE <= work.opened <= MIDDLE * FILES + FEW
    assert work.bytes_read <= MIDDLE * 512


def test_with_a_promise_a_first_plan_by_time_opens_few_segments(root: Path) -> None:
    dataset = kstore.dataset(root, "t", max_lateness=0)
    condition = (PARTITION == 0) & (time(MIDDLE) <= TIME) & (time(MIDDLE + 3) > TIME)
    found: list[Any] = []
    work = work_of(lambda: found.extend(plan(dataset, condition)))
    assert found == [(0, (MIDDLE, MIDDLE + 3))]
    assert work.opened <= 4 * FEW
    dataset._table.source._store.close()


@pytest.mark.parametrize("record", [MIDDLE, MIDDLE // 2, 1])
def test_the_next_plan_by_time_opens_few_files_whatever_its_time(dataset: Any, record: int) -> None:
    plan(dataset, time(MIDDLE) <= TIME)
    found: list[Any] = []
    condition = time(record) <= TIME
    work = work_of(lambda: found.extend(plan(dataset, condition)))
    assert found == [(0, (record, SEGMENTS)), (1, (record, SEGMENTS))]
    assert work.opened <= 2 * FILES
    assert work.looked_at <= FEW
    assert work.bytes_read <= 8 << 10


def test_a_plan_of_a_later_time_opens_the_segments_after_the_known_ones(dataset: Any) -> None:
    plan(dataset, (PARTITION == 0) & (time(MIDDLE) <= TIME))
    work = work_of(lambda: plan(dataset, (PARTITION == 0) & (time(MIDDLE + 10) <= TIME)))
    assert 0 < work.opened <= 12 * FILES


def test_both_ends_of_an_hour_are_planned_with_few_files_the_next_time(root: Path) -> None:
    dataset = kstore.dataset(root, "t", max_lateness=0)
    hour = (time(MIDDLE) <= TIME) & (time(MIDDLE + 60) > TIME)
    plan(dataset, hour)
    found: list[Any] = []
    work = work_of(lambda: found.extend(plan(dataset, hour)))
    assert found == [(0, (MIDDLE, MIDDLE + 60)), (1, (MIDDLE, MIDDLE + 60))]
    assert work.opened <= 2 * FILES
    assert work.bytes_read <= 16 << 10


def test_a_plan_after_rolls_opens_the_new_segments_only(tmp_path: Path, no_syncs: None) -> None:
    with kstore.Log.open(tmp_path / "t-0", segment_bytes=130) as log:
        records = [(b"k", b"x" * 50, T + 1000 * i, ()) for i in range(220)]
        log.append_many(records[:200], batch_bytes=130)
        dataset = kstore.dataset(tmp_path / "t-0")
        assert plan(dataset, time(199) <= TIME) == [(0, (199, 200))]
        log.append_many(records[200:], batch_bytes=130)
        work = work_of(lambda: plan(dataset, time(219) <= TIME))
        assert plan(dataset, time(219) <= TIME) == [(0, (219, 220))]
        assert work.opened <= 22 * FILES + FEW
