"""No step grows faster than what it is done to: counted in function calls and in files read, and never by a clock.

docs/scale.md has the figures, and the few steps that are known to grow faster.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import kstore
from kstore import cli
from kstore.disk import fs
from kstore.files import checkpoint, names
from kstore.log.reading.view import SegmentList
from kstore.log.segments import recovery
from kstore.log.segments.producer_state import ProducerState
from kstore.store.catalog import Catalog, Entry
from kstore.tools.check.verify import verify

SETTLED_S = 1_700_000_000
MARKS = (checkpoint.RECOVERY_POINTS, checkpoint.LOG_STARTS, checkpoint.HIGH_WATERMARKS)


def calls_of(act: Callable[[], object]) -> int:
    """How many functions are called meanwhile, in threads that start meanwhile too."""
    calls = [0]

    def count(frame: FrameType, event: str, arg: object) -> None:
        calls[0] += event in ("call", "c_call")

    threading.setprofile(count)
    sys.setprofile(count)
    try:
        act()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
    return calls[0]


def disk_work_of(act: Callable[[], object]) -> int:
    """How many bytes are read meanwhile, and for each call that reaches the disk 100 more: what threads do alike."""
    work = Counter[str]()
    lock = threading.Lock()

    def counted(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **more: Any) -> Any:
            answer = real(*arguments, **more)
            with lock:
                work[name] += 100 + (len(answer) if name == "pread" else 0)
            return answer

        return call

    with pytest.MonkeyPatch.context() as patch:
        for name in (
            "open",
            "stat",
            "exists",
            "listdir",
            "scandir",
            "pread",
            "pwrite",
            "rename",
            "unlink",
            "ftruncate",
        ):
            if hasattr(fs, name):
                patch.setattr(fs, name, counted(name, getattr(fs, name)))
        act()
    return work.total()


def open_store(path: Path, now_ms: Callable[[], int] = lambda: 1_700_000_000_000) -> kstore.Store:
    return kstore.Store.open(path, clock=now_ms, background=False, num_recovery_threads_per_data_dir=1)


def filled(path: Path, partitions: int, now_ms: Callable[[], int] = lambda: 1_700_000_000_000) -> kstore.Store:
    store = open_store(path, now_ms)
    store.create_topic("t", partitions)
    for number in range(partitions):
        store.log("t", number).append(b"v")
    return store


def settle(root: Path, partitions: int) -> None:
    """Have files of marks that were written long ago."""
    for mark in MARKS:
        offset = 0 if mark == checkpoint.LOG_STARTS else 1
        checkpoint.write_offsets(root, mark, {("t", number): offset for number in range(partitions)})
        os.utime(root / mark, (SETTLED_S, SETTLED_S))
    os.utime(root, (SETTLED_S, SETTLED_S))


def creating(path: Path, partitions: int) -> int:
    with open_store(path) as store:
        return calls_of(lambda: store.create_topic("t", partitions))


def creating_topics(path: Path, topics: int) -> int:
    with open_store(path) as store:
        return calls_of(lambda: [store.create_topic(f"t-{number}", 1) for number in range(topics)])


def removing(path: Path, partitions: int) -> int:
    with kstore.Store.open(
        path, clock=lambda: 1_700_000_000_000, background=False, config={"log.segment.delete.delay.ms": "0"}
    ) as store:
        store.create_topic("t", partitions)
        return calls_of(lambda: (store.delete_topic("t"), store.run_housekeeping()))


def appending(path: Path, partitions: int) -> int:
    with filled(path, partitions) as store:
        return calls_of(lambda: [store.log("t", number).append(b"v") for number in range(partitions)])


def keeping_house(path: Path, partitions: int) -> int:
    now_ms = [1_700_000_000_000]
    with filled(path, partitions, lambda: now_ms[0]) as store:
        now_ms[0] += 3_600_000
        return calls_of(store.run_housekeeping)


def closing(path: Path, partitions: int) -> int:
    return calls_of(filled(path, partitions).close)


def opening_in_order(path: Path, partitions: int) -> int:
    filled(path, partitions).close()
    opened: list[kstore.Store] = []
    work = disk_work_of(lambda: opened.append(open_store(path)))
    opened[0].close()
    return work


def recovering(path: Path, partitions: int) -> int:
    filled(path, partitions).close()
    (path / checkpoint.CLEAN_MARKER).unlink()
    (path / checkpoint.RECOVERY_POINTS).unlink()
    opened: list[kstore.Store] = []
    work = disk_work_of(lambda: opened.append(open_store(path)))
    opened[0].close()
    return work


def long_closed(path: Path, partitions: int) -> None:
    filled(path, partitions).close()
    settle(path, partitions)
    for each in path.rglob("*"):
        os.utime(each, (SETTLED_S, SETTLED_S))


def verifying(path: Path, partitions: int) -> int:
    long_closed(path, partitions)
    return calls_of(lambda: verify([path], threads=1))


def describing(path: Path, partitions: int) -> int:
    long_closed(path, partitions)
    return calls_of(lambda: cli.main(["describe", str(path)]))


STEPS = [
    creating,
    creating_topics,
    removing,
    appending,
    keeping_house,
    closing,
    opening_in_order,
    recovering,
    verifying,
    describing,
]


def growth(path: Path, step: Callable[[Path, int], int]) -> float:
    """By which share more calls it takes to go from 24 to 48 than twice those from 12 to 24: none of what is linear."""
    step(path / "warm", 2)
    few, more, most = (step(path / str(size), size) for size in (12, 24, 48))
    return (most - more) / (2 * (more - few)) - 1


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.__name__)
def test_twice_as_many_partitions_are_twice_as_many_calls(tmp_path: Path, step: Callable[[Path, int], int]) -> None:
    # What else calls meanwhile (a collection, a thread that ends) adds its calls to one measurement, not to three.
    assert any(growth(tmp_path / str(number), step) < 0.03 for number in range(3))


class Watched(list[Any]):
    """A list that counts the members that are copied, walked or searched for; a look at one member is free."""

    def __init__(self, members: Iterable[Any] = ()) -> None:
        super().__init__(members)
        self.looked_at = 0

    def __getitem__(self, where: Any) -> Any:
        found = super().__getitem__(where)
        self.looked_at += len(found) if isinstance(where, slice) else 0
        return found

    def __iter__(self) -> Iterator[Any]:
        self.looked_at += len(self)
        return super().__iter__()

    def __contains__(self, member: object) -> bool:
        self.looked_at += len(self)
        return super().__contains__(member)

    def remove(self, member: Any) -> None:
        self.looked_at += len(self)
        super().remove(member)


def recovering_segments(path: Path, segments: int, *, lost_indexes: bool) -> int:
    """At how many members of its lists of all segments and snapshots a recovery looks, all checkpoints lost.

    An offset is missing between any two segments, so the producers' state has to be brought across each time.
    """
    directory = path / "t-0"
    with kstore.Log.open(directory):
        pass
    for file in (*path.glob("*checkpoint"), *directory.glob("0*")):
        file.unlink()
    for base in range(0, 2 * segments, 2):
        batch = kstore.encode_batch([(None, b"v", 1_700_000_000_000, None)], base_offset=base)
        (directory / names.log_name(base)).write_bytes(batch)
        if not lost_indexes:
            (directory / names.index_name(base)).touch()
            (directory / names.time_index_name(base)).touch()
    lists: list[Watched] = []

    def watched(members: Iterable[Any]) -> Watched:
        lists.append(Watched(members))
        return lists[-1]

    real_loader, real_state = recovery._Loader.__init__, ProducerState.__init__

    def make_loader(loader: recovery._Loader, *arguments: Any, **more: Any) -> None:
        more["recovery"].indexes_rebuilt = watched(())
        real_loader(loader, *arguments, **{**more, "segments": watched(more["segments"])})

    def make_state(state: ProducerState, *arguments: Any) -> None:
        real_state(state, *arguments)
        state.offsets = watched(state.offsets)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recovery._Loader, "__init__", make_loader)
        patch.setattr(ProducerState, "__init__", make_state)
        with kstore.Log.open(directory, clock=lambda: 1_700_000_000_000) as log:
            assert len(log.recovery.indexes_rebuilt) == segments
            assert log.log_end_offset == 2 * segments - 1
    return sum(watched.looked_at for watched in lists)


@pytest.mark.parametrize("lost_indexes", [False, True])
def test_a_recovery_looks_at_each_of_all_segments_a_few_times(tmp_path: Path, lost_indexes: bool) -> None:
    assert growth(tmp_path, partial(recovering_segments, lost_indexes=lost_indexes)) < 0.03


def test_a_log_that_is_opened_has_two_objects_for_each_segment(tmp_path: Path) -> None:
    """The garbage collector looks at them again and again, and very many segments need that much memory."""

    def objects(segments: int) -> int:
        path = tmp_path / f"{segments}" / "t-0"
        with kstore.Log.open(path, clock=lambda: 1_700_000_000_000) as log:
            for _ in range(segments - 1):
                log.append(b"v")
                log.roll()
        gc.collect()
        before = len(gc.get_objects())
        with kstore.Log.open(path, clock=lambda: 1_700_000_000_000) as log:
            gc.collect()
            return len(gc.get_objects()) - before

    few, more = objects(10), objects(60)
    assert more - few <= 2 * 50 + 10  # a Segment and its IndexFaults


def test_opening_a_log_makes_no_call_twice_for_a_file_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed = Counter[str]()
    real = names.parse_file_name
    monkeypatch.setattr(names, "parse_file_name", lambda name: parsed.update((name,)) or real(name))
    with kstore.Log.open(tmp_path / "t-0") as log:
        for _ in range(10):
            log.append(b"v")
            log.roll()
    parsed.clear()
    with kstore.Log.open(tmp_path / "t-0"):
        assert not [name for name in parsed if name.startswith("0")]


def test_a_reader_parses_the_names_of_log_files_alone_and_once_after_a_roll(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed = Counter[str]()
    real = names.parse_file_name
    with kstore.Log.open(tmp_path / "t-0") as log, kstore.Log.open(tmp_path / "t-0", "r") as reader:
        for _ in range(10):
            log.append(b"v")
            log.roll()
        monkeypatch.setattr(names, "parse_file_name", lambda name: parsed.update((name,)) or real(name))
        monkeypatch.setattr(names, "parse_offset", lambda name: parsed.update((name,)))
        assert reader.log_end_offset == 10
    assert parsed == {names.log_name(offset): 1 for offset in range(11)}


def test_one_call_more_for_each_partition_that_is_there_would_be_found(tmp_path: Path) -> None:
    def comparing(path: Path, size: int) -> int:
        """As `creating_topics` was, which compared each name with all others: 300 calls a topic, and these."""
        return calls_of(lambda: [len("") for number in range(size) for _ in range(300 + number)])

    assert growth(tmp_path, comparing) > 0.03


def test_a_reader_of_many_partitions_reads_their_marks_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(tmp_path, 12).close()
    settle(tmp_path, 12)
    reads = counted_reads(tmp_path, monkeypatch)
    with kstore.Store.open(tmp_path, "r") as store:
        assert sum(1 for number in range(12) for _ in store.log("t", number).read()) == 12
    assert set(reads) == set(MARKS)
    assert max(reads.values()) <= 3  # the store, too, looks whether a partition is missing


def counted_reads(root: Path, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts how often each file of marks of a root is read from now on."""
    reads: Counter[str] = Counter()
    real = checkpoint.read_offsets

    def counting(where: str, name: str) -> checkpoint.Offsets:
        if Path(where) == root and name in MARKS:
            reads[name] += 1
        return real(where, name)

    monkeypatch.setattr(checkpoint, "read_offsets", counting)
    return reads


def test_a_follower_reads_the_leaders_marks_once_and_not_for_each_partition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader, partitions = tmp_path / "leader", 12
    filled(leader, partitions).close()
    settle(leader, partitions)
    reads = counted_reads(leader, monkeypatch)
    for _ in range(2):  # the first copy, and one that finds nothing new
        kstore.replicate(leader, tmp_path / "copy")
    assert set(reads) == set(MARKS)
    # Each time two threads copy and a third one looks, and all of them may find a file unread.
    assert max(reads.values()) <= 2 * 3 < partitions


def test_a_roll_looks_at_no_earlier_segment() -> None:
    class Segment:
        looks = 0

        def __init__(self, base_offset: int) -> None:
            self._base_offset = base_offset

        @property
        def base_offset(self) -> int:
            Segment.looks += 1
            return self._base_offset

    segments = SegmentList([Segment(number) for number in range(10)])  # type: ignore[misc]
    Segment.looks = 0
    longer = segments.ending_in(Segment(10))  # type: ignore[arg-type]
    replaced = longer.ending_in(Segment(11), replaces=True)  # type: ignore[arg-type]
    assert Segment.looks == 2
    assert longer.bases == tuple(range(11))
    assert replaced.bases == (*range(10), 11)
    assert replaced.items[:10] == segments.items


def test_of_two_topics_that_metrics_cannot_tell_apart_the_other_stays_in_the_way() -> None:
    catalog = Catalog([Entry("a.b", 0, "/r"), Entry("a_b", 0, "/r"), Entry("a_b", 1, "/r")])
    assert names.metric_name("a.b") == "a_b"
    assert catalog.colliding("a_b") == "a.b"
    catalog.drop([catalog.find("a.b", 0)])
    assert catalog.colliding("a.b") == "a_b"
    catalog.drop([catalog.find("a_b", 0)])
    assert catalog.colliding("a.b") == "a_b"
    catalog.remove("a_b")
    assert catalog.colliding("a.b") is None
    catalog.remove("a_b")
    catalog.add([Entry("a.b", 0, "/r")])
    assert catalog.colliding("a_b") == "a.b"
