"""A read meets a change of the log at any line: it gives what was there before or after, and never takes it for damage.

The change is made by another thread of the writing process as soon as the read has come to the line, or waits for it
where it has to. The reader is the writer's own log, or one that another process might have open.
"""

from __future__ import annotations

import random
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import kstore
from kstore.files.index_file import OffsetIndex
from kstore.log import column_source
from tests.conftest import ManualClock
from tests.support.meeting import Line
from tests.support.parking import writer_of

SETTINGS: dict[str, Any] = {
    "segment_bytes": 700,
    "index_interval_bytes": 100,
    "segment_index_bytes": 1200,
    "file_delete_delay_ms": 0,
    "cleanup_policy": "compact,delete",
    "retention_bytes": 1500,
}
FOLDERS = ("base", "columns", "disk", "files", "log")
KEYS = 7
LONGEST_WAIT = 0.05  # for a change that has to wait for the read
Found = list[tuple[int, bytes | None]]


def pairs(text: bytes, count: int) -> list[tuple[bytes, bytes]]:
    return [(b"key %d" % (number % KEYS), b"%s %032d" % (text, number)) for number in range(count)]


def write_again(log: kstore.Log) -> None:
    log.truncate_to(21)
    log.append_many(pairs(b"again", 20))


def start_anew(log: kstore.Log) -> None:
    log.truncate_fully_and_start_at(5)
    log.append_many(pairs(b"anew", 20))


def compact_twice(log: kstore.Log) -> None:
    for _ in range(2):
        log.compact(roll=True)
        log.append_many(pairs(b"more", 20))


CHANGES: dict[str, Callable[[kstore.Log], object]] = {
    "append": lambda log: log.append(b"one more", b"key 1"),
    "append many": lambda log: log.append_many(pairs(b"more", 15)),
    "roll": lambda log: log.roll(),
    "truncate": lambda log: log.truncate_to(21),
    "truncate all": lambda log: log.truncate_to(0),
    "truncate and write": write_again,
    "start anew": start_anew,
    "compact": lambda log: log.compact(),
    "roll and compact": lambda log: log.compact(roll=True),
    "compact twice": compact_twice,
    "delete records": lambda log: log.delete_records(16),
    "retention": lambda log: log.apply_retention(),
}
CUTS = ("truncate", "truncate all", "truncate and write", "start anew", "delete records", "retention")


def in_columns(chunks: Iterable[kstore.Columns]) -> Found:
    return [row for chunk in chunks for row in zip(chunk["offset"].tolist(), chunk["value"].to_pylist(), strict=True)]


def by_calls(log: kstore.Log) -> Iterator[kstore.Columns]:
    offset = log.log_start_offset
    while len(chunk := log.read_columns(offset, max_records=4)):
        yield chunk
        offset = chunk.next_offset


def fetched(log: kstore.Log, isolation: Any = "read_uncommitted") -> Found:
    offset, found = log.log_start_offset, []
    while len(data := log.fetch(offset, 300, isolation=isolation).records):
        for batch in kstore.decode_batches(data):
            found += [(record.offset, record.value) for record in batch if record.offset >= offset]
        offset = batch.next_offset
    return found


def rows(records: Iterable[kstore.Record]) -> Found:
    return [(record.offset, record.value) for record in records]


def by_gets(log: kstore.Log, isolation: Any = "read_uncommitted") -> Found:
    found = [log.get(offset, isolation=isolation) for offset in range(log.log_start_offset, log.log_end_offset)]
    return rows(record for record in found if record is not None)


def by_reads_from_each(log: kstore.Log) -> Found:
    offsets = range(log.log_start_offset, log.log_end_offset)
    return rows(next(iter(records)) for offset in offsets if (records := list(log.read(offset, end_offset=offset + 1))))


READS: dict[str, Callable[[kstore.Log], Found]] = {
    "records": lambda log: rows(log.read()),
    "committed records": lambda log: rows(log.read(isolation="read_committed")),
    "batches": lambda log: rows(record for batch in log.read_batches() for record in batch),
    "columns": lambda log: in_columns([log.read_columns()]),
    "committed columns": lambda log: in_columns([log.read_columns(isolation="read_committed")]),
    "columns in chunks": lambda log: in_columns(log.iter_columns(max_records=5)),
    "columns by calls": lambda log: in_columns(by_calls(log)),
    "fetches": fetched,
    "committed fetches": lambda log: fetched(log, "read_committed"),
    "gets": by_gets,
    "committed gets": lambda log: by_gets(log, "read_committed"),
    "reads of one": by_reads_from_each,
    "newest": lambda log: rows(log.latest()),
}
LOOKS: dict[str, Callable[[kstore.Log], object]] = {
    "segments": lambda log: log.segments,
    "stats": lambda log: log.stats(),
    "batch table": lambda log: log.batch_table(),
    "search by time": lambda log: log.offset_for_timestamp(1_700_000_000_085),
    "outlook": lambda log: log.compaction_outlook(),
}


class Meetings:
    """Logs that are all made alike, and what a read of one gives when a change comes in between."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._lines: dict[tuple[str, str], int] = {}

    def made(self, compression: str) -> tuple[Path, kstore.Log]:
        shutil.rmtree(self.directory, ignore_errors=True)
        clock = ManualClock()
        log = kstore.Log.open(self.directory / "events-0", clock=clock, **SETTINGS)
        for batch in range(12):
            clock.now += 10
            log.append_many(pairs(b"%d" % batch, 36)[3 * batch : 3 * batch + 3], compression=compression, atomic=True)
            if batch == 5:
                log.flush()
        return Path(log.path), log

    def meet(self, name: str, change: str, mode: str, compression: str, rng: random.Random) -> None:
        read: Callable[[kstore.Log], Any] = READS.get(name) or LOOKS[name]
        path, log = self.made(compression)
        if (name, mode) not in self._lines:
            with kstore.Log.open(path, mode="r") as reader:
                alone = Line(-1, lambda: None, FOLDERS)
                alone.run(lambda: read(reader if mode == "r" else log))
            self._lines[name, mode] = alone.passed
        number = rng.randint(1, self._lines[name, mode])
        before = dict(rows(log.read()))
        other = threading.Thread(target=lambda: CHANGES[change](log), daemon=True)

        def between() -> None:
            other.start()
            other.join(LONGEST_WAIT)

        line = Line(number, between, FOLDERS)
        try:
            with kstore.Log.open(path, mode="r") as another:
                found = None
                with suppress(*(kstore.OffsetOutOfRangeError,) if change in CUTS else ()):
                    found = line.run(lambda: read(another if mode == "r" else log))
                if line.place:
                    other.join(60)
                    assert not other.is_alive(), "they wait for one another"
                if name in READS and found is not None:
                    self._check(name, found, before, dict(rows(log.read())), change)
        except BaseException as error:
            error.add_note(f"{change!r} in {name!r} with mode {mode!r}, {compression}, at line {number}, {line.place}")
            raise
        log.close()

    @staticmethod
    def _check(
        name: str, found: Found, before: dict[int, bytes | None], after: dict[int, bytes | None], change: str
    ) -> None:
        offsets = [offset for offset, _ in found]
        assert offsets == sorted(set(offsets))
        if change == "compact twice":  # what came after the read began has gone, with what it superseded
            return
        assert all(value in (before.get(offset), after.get(offset)) for offset, value in found)
        if name != "newest":
            assert set(found) >= before.items() & after.items()
        elif change not in CUTS:
            assert len(found) == KEYS


@pytest.fixture
def meetings(tmp_path: Path, no_syncs: None) -> Meetings:
    return Meetings(tmp_path / "meetings")


def test_a_read_that_meets_a_change_at_any_line_gives_the_state_before_or_after(
    meetings: Meetings, rng: random.Random, budget: Callable[[float], float]
) -> None:
    until = time.monotonic() + budget(12)
    met = 0
    while time.monotonic() < until or met < 100:
        read, change = rng.choice([*READS, *LOOKS]), rng.choice(list(CHANGES))
        meetings.meet(read, change, rng.choice("ar"), rng.choice(["none", "lz4"]), rng)
        met += 1


def test_a_committed_read_waits_until_a_truncation_knows_the_open_transactions(
    meetings: Meetings, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, log = meetings.made("none")
    entered, go_on = threading.Event(), threading.Event()
    found: list[Any] = []

    def rebuild(*arguments: Any, **options: Any) -> None:
        entered.set()
        assert go_on.wait(60)
        real(*arguments, **options)

    real = writer_of(log).producers.rebuild
    monkeypatch.setattr(writer_of(log).producers, "rebuild", rebuild)
    truncating = threading.Thread(target=lambda: log.truncate_to(21))
    truncating.start()
    assert entered.wait(60)
    reads = [
        lambda: rows(log.read(isolation="read_committed")),
        lambda: fetched(log, "read_committed"),
        lambda: in_columns([log.read_columns(isolation="read_committed")]),
        lambda: log.last_stable_offset,
    ]
    readers = [threading.Thread(target=lambda read=read: found.append(read())) for read in reads]
    for reader in readers:
        reader.start()
        reader.join(LONGEST_WAIT)  # in vain
    go_on.set()
    for thread in (truncating, *readers):
        thread.join(60)
        assert not thread.is_alive()
    assert sorted(each if isinstance(each, int) else len(each) for each in found) == [21] * 4
    log.close()


def test_a_followed_read_of_committed_records_ends_in_time_amid_a_truncation(
    meetings: Meetings, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, log = meetings.made("none")
    entered, go_on = threading.Event(), threading.Event()

    def rebuild(*arguments: Any, **options: Any) -> None:
        entered.set()
        assert go_on.wait(60)
        real(*arguments, **options)

    real = writer_of(log).producers.rebuild
    monkeypatch.setattr(writer_of(log).producers, "rebuild", rebuild)
    begun = log.read(isolation="read_committed", follow=True, timeout=LONGEST_WAIT)
    assert next(begun).offset == 0
    truncating = threading.Thread(target=lambda: log.truncate_to(30), daemon=True)
    truncating.start()
    assert entered.wait(60)
    late = log.read(21, isolation="read_committed", follow=True, timeout=LONGEST_WAIT)
    for read in (begun, late):
        found: list[list[kstore.Record]] = []
        reader = threading.Thread(target=lambda read=read, found=found: found.append(list(read)), daemon=True)
        reader.start()
        reader.join(10)
        assert found == [[]]
    go_on.set()
    truncating.join(60)
    assert not truncating.is_alive()
    log.close()


def test_a_table_of_batches_beside_a_cut_of_its_index_gives_those_left(
    meetings: Meetings, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, log = meetings.made("none")

    def entry(index: OffsetIndex, slot: int) -> tuple[int, int]:
        if log.log_end_offset > 3:
            log.truncate_to(3)
        return real(index, slot)

    real = OffsetIndex.entry
    monkeypatch.setattr(column_source, "TABLE_PART_BYTES", 1)
    monkeypatch.setattr(OffsetIndex, "entry", entry)
    assert log.batch_table()["base_offset"].tolist() == [0]
    assert log.log_end_offset == 3
    log.close()


@pytest.mark.parametrize("look", LOOKS)
def test_another_process_takes_no_compaction_and_no_truncation_for_damage(
    meetings: Meetings, rng: random.Random, look: str
) -> None:
    for _ in range(20):
        for change in ("compact", "start anew"):
            meetings.meet(look, change, "r", "none", rng)
