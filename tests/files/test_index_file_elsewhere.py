"""Index files from elsewhere: followed while another process writes them, left by Kafka's own broker; and a long story.

Rule numbers are those of SEMANTICS 3.
"""

from __future__ import annotations

import shutil
import struct
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kstore.disk import fs
from kstore.files.index_file import OffsetIndex, TimeIndex
from tests.golden import goldensets
from tests.support.indexfiles import (
    BASE,
    FULL_BYTES,
    Pair,
    bytes_of,
    contents,
    fill,
    maps,
    open_descriptors,
    reopened,
)
from tests.support.indexfiles import offsets as offsets

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="asks /proc")


# ---- another process's file ----


def test_a_reader_sees_the_sound_entries_of_a_live_index_and_those_that_come(offsets: OffsetIndex) -> None:
    """FORMAT 7.5."""
    reader = reopened(offsets, writable=False)
    assert (reader.entries, reader.lookup(60)) == (0, (BASE, 0))
    for number in range(1, 31):
        offsets.append(BASE + number, number)
        assert reader.refresh() == number
        assert contents(reader) == contents(offsets)
        assert reader.lookup(99)[1] == number


def test_a_reader_of_a_missing_file_sees_no_entries_until_it_is_there(tmp_path: Path) -> None:
    reader = TimeIndex(tmp_path / "x", BASE, 120, writable=False)
    assert reader.last == (-1, BASE)
    assert reader.refresh() == 0
    writer = TimeIndex(tmp_path / "x", BASE, 120)
    writer.grow()
    fill(writer, 4)
    assert reader.last == (-1, BASE)
    assert reader.refresh() == 4
    assert reader.last == (40, 85)


@pytest.mark.parametrize("entries", [1, 2, 5460, 5461, 5462, 8191, 8192, 8193, 16383, 16384, 20000])
@pytest.mark.parametrize("tail", [0, 1, 30_000])
def test_a_reader_finds_the_end_of_any_number_of_entries(tmp_path: Path, entries: int, tail: int) -> None:
    """Files are read in pieces of 64 KiB; the border between two of them hides nothing."""
    columns = np.arange(1, entries + 1, dtype=np.int64)
    offset_data = np.stack([columns, columns], axis=1).astype(">i4").tobytes() + bytes(8 * tail)
    time_data = b"".join(struct.pack(">qi", n, n) for n in range(1, entries + 1)) + bytes(12 * tail)
    (tmp_path / "o").write_bytes(offset_data)
    (tmp_path / "t").write_bytes(time_data)
    for reader in (
        OffsetIndex(tmp_path / "o", 0, 0, writable=False),
        TimeIndex(tmp_path / "t", 0, 0, writable=False),
    ):
        assert reader.entries == entries
        assert reader.last == (entries, entries)
        assert reader.refresh() == entries


def test_a_reader_reads_only_what_is_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = OffsetIndex(tmp_path / "x", 0, FULL_BYTES)
    writer.grow()
    for number in range(1, 2001):
        writer.append(number, number)
    reader = reopened(writer, writable=False)
    assert reader.entries == 2000
    positions: list[int] = []

    def watched(fd: int, size: int, position: int, *, pread: Callable[..., bytes] = fs.pread) -> bytes:
        positions.append(position)
        return pread(fd, size, position)

    writer.append(2001, 2001)
    monkeypatch.setattr(fs, "pread", watched)
    assert reader.refresh() == 2001
    assert positions == [1999 * 8]


def test_a_reader_starts_anew_when_its_last_entry_has_gone(offsets: OffsetIndex) -> None:
    for number in range(1, 6):
        offsets.append(BASE + number, number)
    reader = reopened(offsets, writable=False)
    assert reader.entries == 5
    offsets.truncate_to(BASE + 3)
    assert reader.refresh() == 2
    offsets.append(BASE + 3, 7)
    offsets.append(BASE + 4, 8)
    offsets.append(BASE + 5, 9)
    assert reader.refresh() == 5
    assert contents(reader) == contents(offsets)
    offsets.truncate_to(BASE)
    assert reader.refresh() == 0
    offsets.append(BASE + 9, 9)
    assert reader.reload() == 1
    Path(offsets.path).unlink()
    assert reader.refresh() == 0
    assert reader.last == (BASE, 0)


def test_a_readers_trimmed_file_is_the_same_file(offsets: OffsetIndex) -> None:
    offsets.append(50, 10)
    reader = reopened(offsets, writable=False)
    assert reader.entries == 1
    offsets.trim()
    assert reader.refresh() == 1
    assert reader.last == (50, 10)


@LINUX
def test_a_reader_maps_nothing_and_keeps_nothing_open(tmp_path: Path) -> None:
    data = b"".join(struct.pack(">ii", n, n) for n in range(1, 100_000))
    (tmp_path / "x").write_bytes(data)
    before = (tmp_path / "x").stat()
    reader = OffsetIndex(tmp_path / "x", 0, FULL_BYTES, writable=False)
    assert reader.lookup(50_000) == (50_000, 50_000)
    assert not maps(tmp_path / "x")
    assert open_descriptors(tmp_path / "x") == 0
    for write in (reader.grow, reader.trim, lambda: reader.truncate_to(1), lambda: reader.append(1, 1)):
        with pytest.raises(ValueError, match=r"only read|full"):
            write()
    after = (tmp_path / "x").stat()
    assert (tmp_path / "x").read_bytes() == data
    assert before.st_mtime_ns == after.st_mtime_ns


def test_a_reader_grows_under_a_search_in_another_thread(tmp_path: Path) -> None:
    writer = OffsetIndex(tmp_path / "x", 0, FULL_BYTES)
    writer.grow()
    reader = reopened(writer, writable=False)
    over = threading.Event()
    wanted = range(3000)
    wrong: list[object] = []

    def search() -> None:
        while not over.is_set():
            wrong.extend(found for target in wanted if (found := reader.lookup(target))[0] != found[1])

    thread = threading.Thread(target=search)
    thread.start()
    try:
        for number in range(1, 2000):
            writer.append(number, number)
            reader.refresh()
    finally:
        over.set()
        thread.join()
    assert wrong == []
    assert reader.entries == 1999


# ---- files that Kafka wrote ----

RUN_AT_ONCE = ("canary-16k", "canary-vectors", "canary-index-full")


def batches(log: Path) -> Iterator[tuple[int, int, int, int]]:
    """Each v2 batch of a log file: (position, size, last offset, greatest timestamp)."""
    data, position = log.read_bytes(), 0
    while position < len(data):
        base, length = struct.unpack_from(">qi", data, position)
        last_delta, _, greatest = struct.unpack_from(">iqq", data, position + 23)
        yield position, 12 + length, base + last_delta, greatest
        position += 12 + length


def interval_of(set_name: str, log: Path) -> int:
    topics = goldensets.about(set_name).get("topicConfig", {})
    settings = topics.get(log.parent.name.rpartition("-")[0], topics)
    return int(settings.get("index.interval.bytes", 4096))


@pytest.mark.parametrize("set_name", RUN_AT_ONCE)
def test_the_rule_of_live_appends_gives_the_index_files_that_kafka_wrote(
    set_name: str, golden: Callable[[str], Path], tmp_path: Path
) -> None:
    """SEMANTICS 3.6, 3.11, 3.16, 3.17 and 8.16: the same bytes, trimmed; rebuilding over Kafka's own files writes
    nothing."""
    made = 0
    for log in sorted(golden(set_name).rglob("*.log")):
        base, interval = int(log.stem), interval_of(set_name, log)
        offsets = OffsetIndex(tmp_path / "mine.index", base, FULL_BYTES)
        times = TimeIndex(tmp_path / "mine.timeindex", base, FULL_BYTES)
        offsets.replace(b"")
        times.replace(b"")
        offsets.grow()
        times.grow()
        since, greatest = 0, (-1, base)
        for position, size, last_offset, timestamp in batches(log):
            if timestamp > greatest[0]:
                greatest = (timestamp, last_offset)
            if since > interval:
                offsets.append(last_offset, position)
                times.maybe_append(*greatest)
                since = 0
            since += size
        times.maybe_append(*greatest, force=True)
        offsets.trim()
        times.trim()
        theirs = log.with_suffix(".index"), log.with_suffix(".timeindex")
        assert bytes_of(offsets) == theirs[0].read_bytes()
        assert bytes_of(times) == theirs[1].read_bytes()
        assert not OffsetIndex(theirs[0], base, FULL_BYTES).replace(bytes_of(offsets))
        assert not TimeIndex(theirs[1], base, FULL_BYTES).replace(bytes_of(times))
        made += offsets.entries
    assert made >= 8


def sound_sets() -> list[str]:
    return [name for name in goldensets.SETS if not name.startswith(("crash", "damaged", "retention"))]


@pytest.mark.parametrize("set_name", sound_sets())
def test_every_entry_of_a_closed_broker_is_sound_and_found(set_name: str, golden: Callable[[str], Path]) -> None:
    """SEMANTICS 3.10, 3.13, FORMAT 7.5 and 8.3; also in files of older brokers and of the log cleaner."""
    for path in sorted(golden(set_name).rglob("*.index")):
        base, log_bytes = int(path.stem), path.with_suffix(".log").stat().st_size
        offsets = OffsetIndex(path, base, FULL_BYTES)
        times = TimeIndex(path.with_suffix(".timeindex"), base, FULL_BYTES)
        for index in (offsets, times):
            assert index.sound_entries() == index.entries == len(bytes_of(index)) // index.entry_bytes
            assert index.looks_trimmed(log_bytes)
            for slot, entry in enumerate(contents(index)):
                assert index.lookup(entry[0]) == entry
                assert index.lookup(entry[0] - 1) == (index.entry(slot - 1) if slot else index.lookup(-1))
            reader = reopened(index, writable=False)
            assert contents(reader) == contents(index)


@pytest.mark.parametrize("set_name", ["canary-16k", "canary-vectors", "codecs", "idempotent", "log-append-time"])
def test_entries_point_where_their_batches_start(set_name: str, golden: Callable[[str], Path]) -> None:
    """SEMANTICS 3.7: the batch at the position ends with the entry's offset, and no later offset lies before it."""
    for path in sorted(golden(set_name).rglob("*.index")):
        starts = {last: position for position, _, last, _ in batches(path.with_suffix(".log"))}
        for offset, position in contents(OffsetIndex(path, int(path.stem), FULL_BYTES)):
            assert starts[offset] == position


def test_the_preallocated_files_of_a_killed_broker_show_a_reader_their_entries(golden: Callable[[str], Path]) -> None:
    """SEMANTICS 3.4 against FORMAT 7.5: a writer takes the zeros for entries until it rebuilds, a reader does not."""
    seen = 0
    for path in sorted((golden("crash") / "before").rglob("*.index")):
        mine, theirs = OffsetIndex(path, int(path.stem), 2048), OffsetIndex(path, int(path.stem), 2048, writable=False)
        data = path.read_bytes()
        real = len(data.rstrip(b"\0")) / 8
        assert mine.entries == len(data) // 8
        assert theirs.entries == -(-len(data.rstrip(b"\0")) // 8), real
        if len(data) == 2048:
            assert not mine.looks_trimmed(1 << 30)
            seen += 1
    assert seen >= 2


@pytest.mark.parametrize(
    ("case", "offset_sound", "time_sound"),
    [
        ("index-good", True, True),
        ("index-zero-tail", False, False),
        ("index-all-zeros", False, False),
        ("index-negative", False, False),
        ("index-odd-length", False, False),
        ("index-position-beyond", False, True),
        ("index-position-end", False, True),
        ("timeindex-out-of-order", True, False),
        ("timeindex-first-late", True, False),
    ],
)
def test_damage_to_index_files_shows(
    golden: Callable[[str], Path], case: str, offset_sound: bool, time_sound: bool
) -> None:
    folder = golden("damaged-files") / "dir" / case
    (path,) = folder.glob("*.index")
    log_bytes = next((golden("damaged-files") / "dir" / "index-good").glob("*.log")).stat().st_size
    offsets = OffsetIndex(path, int(path.stem), FULL_BYTES)
    times = TimeIndex(path.with_suffix(".timeindex"), int(path.stem), FULL_BYTES)
    assert offsets.looks_trimmed(log_bytes) == offset_sound
    assert times.looks_trimmed(log_bytes) == time_sound


# ---- a long story ----


class IndexStory(RuleBasedStateMachine):
    """Both kinds of index file against lists of entries, through every change of size, and reopening."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.max_bytes = 300
        self.offsets: list[Pair] = []
        self.times: list[Pair] = []
        self.active = True
        self.truncated = False
        self._open()
        self.offset_index.grow()
        self.time_index.grow()
        self.offset_reader, self.time_reader = (
            reopened(self.offset_index, writable=False),
            reopened(self.time_index, writable=False),
        )

    def _open(self) -> None:
        self.offset_index = OffsetIndex(self.folder / "x.index", BASE, self.max_bytes)
        self.time_index = TimeIndex(self.folder / "x.timeindex", BASE, self.max_bytes)

    @precondition(lambda self: self.active)
    @rule(step=st.integers(1, 5), gap=st.integers(1, 100), tick=st.integers(0, 3), own=st.booleans())
    def append(self, step: int, gap: int, tick: int, own: bool) -> None:
        """Add an entry to both, the offset entry perhaps through the descriptor."""
        offset, position = self.offsets[-1] if self.offsets else (BASE, 0)
        timestamp = self.times[-1][0] if self.times else -1
        entry = (offset + step, position + gap)
        if self.offset_index.is_full or self.time_index.is_full:
            return
        if own:
            fs.pwrite(
                self.offset_index.fd, struct.pack(">ii", entry[0] - BASE, entry[1]), 8 * self.offset_index.entries
            )
            self.offset_index.entries += 1
        else:
            self.offset_index.append(*entry)
        self.offsets.append(entry)
        assert self.time_index.maybe_append(timestamp + tick, entry[0]) == (tick > 0)
        if tick:
            self.times.append((timestamp + tick, entry[0]))

    @precondition(lambda self: self.active)
    @rule(tick=st.integers(1, 3))
    def seal(self, tick: int) -> None:
        """SEMANTICS 2.9: the closing time entry, then both are trimmed."""
        if self.offsets:
            closing = ((self.times[-1][0] if self.times else -1) + tick, self.offsets[-1][0])
            assert self.time_index.maybe_append(*closing, force=True)
            self.times.append(closing)
        self.offset_index.trim()
        self.time_index.trim()
        self.active = False

    @precondition(lambda self: not self.active)
    @rule(max_bytes=st.integers(12, 400))
    def activate(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.offset_index.grow(max_bytes)
        self.time_index.grow(max_bytes)
        self.active = True

    @precondition(lambda self: not self.active)
    @rule()
    def reopen(self) -> None:
        self.offset_index.close()
        self.time_index.close()
        self._open()

    @rule(offset=st.integers(BASE - 2, BASE + 120))
    def truncate(self, offset: int) -> None:
        """SEMANTICS 3.15."""
        self.offset_index.truncate_to(offset)
        self.time_index.truncate_to(offset)
        self.offsets = [entry for entry in self.offsets if entry[0] < offset]
        self.times = [entry for entry in self.times if entry[1] < offset]
        self.active = self.truncated = True

    @rule(keep=st.integers(0, 30))
    def rebuild(self, keep: int) -> None:
        """SEMANTICS 8.15, with fewer entries than before."""
        self.offsets = self.offsets[:keep]
        self.times = [entry for entry in self.times if self.offsets and entry[1] <= self.offsets[-1][0]]
        self.offset_index.replace(b"".join(struct.pack(">ii", offset - BASE, p) for offset, p in self.offsets))
        self.time_index.replace(b"".join(struct.pack(">qi", t, offset - BASE) for t, offset in self.times))
        self.active, self.truncated = False, True

    @rule()
    def flush(self) -> None:
        self.offset_index.flush()
        self.time_index.flush()

    @rule()
    def follow(self) -> None:
        """A reader that is told of truncations sees the same (FORMAT 7.5)."""
        for index, reader in ((self.offset_index, self.offset_reader), (self.time_index, self.time_reader)):
            found = reader.reload() if self.truncated else reader.refresh()
            assert found == index.entries
            assert contents(reader) == contents(index)
        self.truncated = False

    @rule(wanted=st.integers(-5, BASE + 150))
    def look_up(self, wanted: int) -> None:
        below = [entry for entry in self.offsets if entry[0] <= wanted]
        assert self.offset_index.lookup(wanted) == (below[-1] if below else (BASE, 0))
        below = [entry for entry in self.times if entry[0] <= wanted]
        assert self.time_index.lookup(wanted) == (below[-1] if below else (-1, BASE))
        behind = [entry[0] for at, entry in enumerate(self.offsets) if entry[1] > wanted or (at and entry[1] == wanted)]
        assert self.offset_index.offset_from(wanted) == (behind[0] if behind else None)

    @invariant()
    def the_files_hold_the_entries_and_zeros(self) -> None:
        for index, entries, form in ((self.offset_index, self.offsets, ">ii"), (self.time_index, self.times, ">qi")):
            data = Path(index.path).read_bytes()
            wide = form == ">qi"
            used = b"".join(struct.pack(form, a - BASE * (not wide), b - BASE * wide) for a, b in entries)
            assert data == used + bytes(len(data) - len(used))
            full = max(self.max_bytes // index.entry_bytes * index.entry_bytes, len(used))
            assert len(data) == (full if self.active else len(used))
            assert index.entries == len(entries)
            assert index.is_full == (len(entries) >= len(data) // index.entry_bytes - wide)
            assert index.last == (entries[-1] if entries else index.lookup(-(2**63)))

    def teardown(self) -> None:
        self.offset_index.close()
        self.time_index.close()
        shutil.rmtree(self.folder)


TestIndexStory = IndexStory.TestCase
