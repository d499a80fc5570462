"""Whatever becomes of the files, opening gives a prefix of what was there, or says what is wrong and cuts nothing.

Every byte of a last segment cut, every bit of a small log flipped, indexes damaged in each way, leftovers of
interrupted swaps and deletions, checkpoints gone, stale or malformed (SEMANTICS 7.26, SEMANTICS 8).
"""

from __future__ import annotations

import itertools
import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import kstore
from kstore import Record
from kstore.disk import fs
from kstore.errors import CorruptRecordError, StorageError
from kstore.files import checkpoint, names
from kstore.tools.check.verify import verify
from tests.conftest import ManualClock

SETTINGS = {"segment_bytes": 4096, "index_interval_bytes": 0, "segment_index_bytes": 240}
UNSEEN = frozenset([*range(8), *range(12, 16)])  # base offset and leader epoch: no CRC covers them (FORMAT 3)
POINTS, STARTS = "recovery-point-offset-checkpoint", "log-start-offset-checkpoint"


@pytest.fixture(autouse=True)
def without_syncs(no_syncs: None) -> None:
    """Syncs would take most of the time, and nothing here asks the disk."""


class Damaged:
    """A partition whose files the test may damage, and open again and again; `pristine` is what it is restored to."""

    def __init__(self, root: Path, clock: ManualClock, spare: Path) -> None:
        self.root, self.clock, self.pristine = root, clock, spare
        self.path = root / "events-0"

    def keep(self, records: list[Record]) -> None:
        self.records = records
        shutil.copytree(self.root, self.pristine)

    def restore(self) -> None:
        shutil.rmtree(self.root)
        shutil.copytree(self.pristine, self.root)

    def open(self, mode: str = "a") -> kstore.Log:
        return kstore.Log.open(self.path, mode, clock=self.clock, **SETTINGS)

    @property
    def logs(self) -> list[Path]:
        return sorted(self.path.glob("*.log"))

    @property
    def last(self) -> Path:
        return self.logs[-1]

    def file(self, base: int, kind: str = "log") -> Path:
        return self.path / f"{base:020d}.{kind}"

    def cut(self, file: Path, size: int) -> None:
        with open(file, "r+b") as out:
            out.truncate(size)

    def flip(self, file: Path, position: int, bit: int) -> None:
        with open(file, "r+b") as out:
            out.seek(position)
            byte = out.read(1)[0]
            out.seek(position)
            out.write(bytes([byte ^ 1 << bit]))

    def mark(self, name: str, offset: int | None) -> None:
        """Set the partition's line of a checkpoint file of the root, or take the file away."""
        if offset is None:
            (self.root / name).unlink(missing_ok=True)
        else:
            (self.root / name).write_text(f"0\n1\nevents 0 {offset}\n")

    def bytes_of_logs(self) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in self.logs}

    def contents(self) -> dict[str, bytes]:
        return {str(path.relative_to(self.root)): path.read_bytes() for path in self.root.rglob("*") if path.is_file()}


@pytest.fixture
def damaged(root: Path, clock: ManualClock, tmp_path: Path) -> Damaged:
    return Damaged(root, clock, tmp_path / "pristine")


@pytest.fixture
def crashed(damaged: Damaged) -> Damaged:
    """Three segments of a log left open: the first two flushed up to the recovery point, the last one above it."""
    with damaged.open() as log:
        for i in range(6):
            log.append(b"value %d" % i * 5, b"k", timestamp=1000 + i)
            if i == 2:
                log.roll()
            if i == 3:
                log.append_many([(None, b"abc", 1003, None)] * 3, atomic=True)
        log.roll()
        log.run_housekeeping()
        for i in range(2):
            log.append(b"last %d" % i, timestamp=2000 + i, headers=[("h", b"x")])
        log.append_many([(b"k", b"x" * 30, 2002, None), (b"k", None, 2001, None)], compression="gzip")
        damaged.keep(list(log.read()))
    damaged.restore()
    return damaged


def batches_of(file: Path) -> list[tuple[int, int, int]]:
    """(position, end, last offset) of each batch of a file."""
    found, position = [], 0
    for batch in kstore.decode_batches(file.read_bytes()):
        found.append((position, position + batch.size_bytes, batch.last_offset))
        position += batch.size_bytes
    return found


def check_prefix(damaged: Damaged, log: kstore.Log, end: int) -> None:
    assert list(log.read()) == [record for record in damaged.records if record.offset < end]
    assert log.log_end_offset == end


def check_again(damaged: Damaged, records: list[Record]) -> None:
    """Closed and opened again the log is clean, has the same records, and takes new ones."""
    with damaged.open() as log:
        assert log.recovery.clean
        assert log.recovery.cut_bytes == 0
        assert list(log.read()) == records
        end = log.log_end_offset
        assert log.append(b"new") == end
        assert [record.offset for record in log.read(end)] == [end]


def test_the_fixture_is_what_it_says(crashed: Damaged) -> None:
    bases = [int(path.stem) for path in crashed.logs]
    assert len(bases) == 3
    assert (crashed.root / POINTS).read_text() == f"0\n1\nevents 0 {bases[-1]}\n"
    with crashed.open() as log:
        assert not log.recovery.clean
        assert log.recovery.indexes_rebuilt == bases[-1:]
        assert list(log.read()) == crashed.records


def test_a_last_segment_cut_anywhere_ends_at_its_last_whole_batch(crashed: Damaged) -> None:
    """SEMANTICS 8.17, 8.18."""
    size = crashed.last.stat().st_size
    base = int(crashed.last.stem)
    batches = batches_of(crashed.last)
    for cut in range(size + 1):
        crashed.restore()
        crashed.cut(crashed.last, cut)
        whole = max((end for _, end, _ in batches if end <= cut), default=0)
        sound = max((last + 1 for _, end, last in batches if end <= cut), default=base)
        with crashed.open("r") as reader:
            check_prefix(crashed, reader, sound)
        with crashed.open() as log:
            recovery = log.recovery
            check_prefix(crashed, log, sound)
        assert recovery.cut_bytes == cut - whole
        assert recovery.cut_from_offset == (sound if cut > whole else None)
        assert crashed.last.stat().st_size == whole
        check_again(crashed, [record for record in crashed.records if record.offset < sound])


def test_a_last_segment_cut_below_the_recovery_point_is_an_error_and_stays_as_it_is(crashed: Damaged) -> None:
    """What was flushed is never cut."""
    batches = batches_of(crashed.last)
    [*_, (_, flushed_bytes, last)] = batches[:2]
    for cut in range(crashed.last.stat().st_size + 1):
        crashed.restore()
        crashed.mark(POINTS, last + 1)
        crashed.cut(crashed.last, cut)
        before = crashed.bytes_of_logs()
        if cut >= flushed_bytes:
            with crashed.open() as log:
                assert log.log_end_offset > last
            continue
        for mode in ("r", "a"):
            with pytest.raises(kstore.CorruptRecordError, match="kstore repair") as caught:
                list(crashed.open(mode).read())
            assert caught.value.path == str(crashed.last)
        assert crashed.bytes_of_logs() == before


@pytest.mark.parametrize("tail", [b"\0", bytes(17), bytes(18), bytes(100_000), b"\xff" * 61, b"garbage" * 10], ids=len)
def test_whatever_follows_the_last_batch_is_cut_and_reported(
    crashed: Damaged, caplog: pytest.LogCaptureFixture, tail: bytes
) -> None:
    with open(crashed.last, "ab") as out:
        out.write(tail)
    with crashed.open("r") as reader:
        assert list(reader.read()) == crashed.records
    with crashed.open() as log:
        assert list(log.read()) == crashed.records
        assert (log.recovery.cut_bytes, log.recovery.cut_from_offset) == (len(tail), log.log_end_offset)
        assert log.recovery.cut_reason
    assert f"cut {len(tail)} bytes from offset {crashed.records[-1].offset + 1}" in caplog.text
    check_again(crashed, crashed.records)


def test_a_flipped_bit_above_the_recovery_point_ends_the_log_before_its_batch(crashed: Damaged) -> None:
    """All bits of the last segment; the few that no CRC covers may change offsets, but no record's content."""
    file = crashed.last
    contents = {(record.timestamp, record.key, record.value, record.headers) for record in crashed.records}
    batches, size = batches_of(file), file.stat().st_size
    for start, end, _ in batches:
        base = next((last + 1 for _, e, last in batches if e == start), int(file.stem))
        for position, bit in itertools.product(range(start, end), range(8)):
            crashed.restore()
            crashed.flip(file, position, bit)
            before = crashed.bytes_of_logs()
            try:
                log = crashed.open()
            except kstore.CorruptRecordError:  # an offset that the segment's indexes cannot hold
                assert position - start < 8
                assert crashed.bytes_of_logs() == before
                continue
            with log:
                found = list(log.read())
                if position - start not in UNSEEN:
                    check_prefix(crashed, log, base)
                    assert log.recovery.cut_bytes == size - start
                assert {(r.timestamp, r.key, r.value, r.headers) for r in found} <= contents
                assert found == sorted(found, key=lambda record: record.offset)


def test_a_flipped_bit_below_the_recovery_point_is_an_error_and_nothing_is_cut(crashed: Damaged) -> None:
    file = crashed.last
    batches = batches_of(file)
    end_offset = crashed.records[-1].offset + 1
    for position, bit in itertools.product(range(file.stat().st_size), range(8)):
        start = max(s for s, _, _ in batches if s <= position)
        if position - start in UNSEEN:
            continue
        crashed.restore()
        crashed.mark(POINTS, end_offset)
        crashed.flip(file, position, bit)
        before = crashed.bytes_of_logs()
        with pytest.raises(kstore.CorruptRecordError, match="kstore repair") as caught:
            crashed.open()
        assert (caught.value.path, caught.value.position) == (str(file), start)
        assert crashed.bytes_of_logs() == before


def test_a_flipped_bit_in_a_sealed_segment_is_found_by_each_reader(crashed: Damaged, rng: random.Random) -> None:
    """Recovery does not look below the recovery point's segment; readers check every CRC."""
    file = crashed.logs[1]
    batches = batches_of(file)
    for position in range(file.stat().st_size):
        start = max(s for s, _, _ in batches if s <= position)
        if position - start in UNSEEN:
            continue
        crashed.restore()
        crashed.flip(file, position, rng.randrange(8))
        before = file.read_bytes()
        with crashed.open() as log, crashed.open("r") as reader:
            for each in (log, reader):
                found = []
                with pytest.raises(kstore.CorruptRecordError) as caught:
                    found.extend(each.read())
                assert found == crashed.records[: len(found)]
                assert caught.value.path == str(file)
        assert file.read_bytes() == before


# Indexes.


def damage_missing(file: Path) -> None:
    file.unlink()


def damage_empty(file: Path) -> None:
    file.write_bytes(b"")


def damage_zeros(file: Path) -> None:
    file.write_bytes(bytes(file.stat().st_size))


def damage_garbage(file: Path) -> None:
    file.write_bytes(bytes(random.Random(7).randrange(256) for _ in range(max(file.stat().st_size, 24))))


def damage_short(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2 - 1])


def damage_odd(file: Path) -> None:
    file.write_bytes(file.read_bytes() + b"\1\2\3")


def damage_shifted(file: Path) -> None:
    """Entries that are in order, and point between batches."""
    size = 12 if file.suffix == ".timeindex" else 8
    data = bytearray(file.read_bytes())
    for at in range(0, len(data), size):
        if any(data[at : at + size]):
            data[at + 7] = data[at + 7] + 1 & 0xFF
    file.write_bytes(bytes(data))


def damage_beyond(file: Path) -> None:
    """One entry that points far behind the end of the log."""
    entry = (1000).to_bytes(8, "big") + (0).to_bytes(4, "big") if file.suffix == ".timeindex" else b"\0\0\0\0\x7f\0\0\0"
    file.write_bytes(entry)


def damage_ahead(file: Path) -> None:
    """One entry of an offset and a time that are far ahead."""
    file.write_bytes(b"\x70" * 8 + (b"\x70" * 4 if file.suffix == ".timeindex" else b""))


DAMAGES = [damage_missing, damage_empty, damage_zeros, damage_garbage, damage_short, damage_odd, damage_shifted,
           damage_beyond, damage_ahead]  # fmt: skip


def check_answers(damaged: Damaged, log: kstore.Log) -> None:
    records = damaged.records
    assert list(log.read()) == records
    for i, record in enumerate(records):
        assert list(log.read(record.offset)) == records[i:]
        found = log.fetch(record.offset, 1)
        [batch] = kstore.decode_batches(found.records)
        assert batch.base_offset <= record.offset <= batch.last_offset


def check_times(damaged: Damaged, log: kstore.Log) -> None:
    for timestamp in (1000, 1003, 1005, 2000, 2001):
        expected = next((r.timestamp, r.offset) for r in damaged.records if r.timestamp >= timestamp)
        assert log.offset_for_timestamp(timestamp) == expected


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__.removeprefix("damage_"))
@pytest.mark.parametrize("kind", ["index", "timeindex"])
@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_damaged_index_never_hides_a_record(
    crashed: Damaged, number: int, kind: str, damage: Callable[[Path], None]
) -> None:
    """SEMANTICS 8.8, 8.14: those at or above the recovery point are built anew; a missing offset index is, wherever it
    is.

    Those just below it too, when they show that the roll there never came to its sync (Kafka leaves them).
    """
    bases = [int(path.stem) for path in crashed.logs]
    shows = {damage_zeros, damage_garbage, damage_short, damage_odd}
    shows |= {damage_beyond, damage_ahead} if kind == "index" else set()
    anew = number == 2 or (number == 1 and damage in shows) or (kind == "index" and damage is damage_missing)
    damage(crashed.file(bases[number], kind))
    with crashed.open("r") as reader:
        check_answers(crashed, reader)
    with crashed.open() as log:
        check_answers(crashed, log)
        if anew or kind == "index":
            check_times(crashed, log)
        assert set(log.recovery.indexes_rebuilt) == {bases[2]} | ({bases[number]} if anew else set())
    sound = crashed.pristine / "events-0"
    if anew:
        for each in ("index", "timeindex"):
            name = crashed.file(bases[number], each).name
            entries = (crashed.path / name).read_bytes()
            assert (sound / name).read_bytes().startswith(entries[: -12 if each == "timeindex" else None])


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__.removeprefix("damage_"))
@pytest.mark.parametrize("kind", ["index", "timeindex"])
@pytest.mark.parametrize("marked", [False, True])
def test_a_damaged_index_of_a_closed_log_never_hides_a_record(
    crashed: Damaged, kind: str, damage: Callable[[Path], None], marked: bool
) -> None:
    crashed.open().close()
    if marked:
        (crashed.root / ".kafka_cleanshutdown").write_text("")
    damage(crashed.file(int(crashed.last.stem), kind))
    with crashed.open("r") as reader:
        check_answers(crashed, reader)
    with crashed.open() as log:
        check_answers(crashed, log)
        if not marked or damage in (damage_zeros, damage_garbage, damage_odd):
            check_times(crashed, log)
        end = crashed.records[-1].offset + 1
        for offset in (end, end + 1):
            assert log.append(b"after") == offset
            log.roll()
        assert [record.value for record in log.read(end)] == [b"after"] * 2


# Leftovers.


def test_deleted_files_are_removed_and_whatever_else_is_unknown_stays(crashed: Damaged) -> None:
    """SEMANTICS 8.4."""
    for name in ("00000000000000000077.log.deleted", "00000000000000000000.index.deleted", "notes.txt", "x.log"):
        (crashed.path / name).write_bytes(b"anything")
    with crashed.open("r") as reader:
        assert list(reader.read()) == crashed.records
    assert (crashed.path / "00000000000000000077.log.deleted").exists()
    with crashed.open() as log:
        assert list(log.read()) == crashed.records
        assert set(log.recovery.leftovers_removed) == {
            "00000000000000000077.log.deleted",
            "00000000000000000000.index.deleted",
        }
    assert (crashed.path / "notes.txt").exists()
    assert (crashed.path / "x.log").exists()


def test_indexes_without_their_log_are_removed(crashed: Damaged) -> None:
    """SEMANTICS 8.8."""
    names = {f"{77:020d}.{kind}" for kind in ("index", "timeindex", "txnindex")}
    for name in names:
        (crashed.path / name).write_bytes(b"")
    with crashed.open() as log:
        assert list(log.read()) == crashed.records
        assert set(log.recovery.leftovers_removed) == names


def merged(crashed: Damaged, state: str) -> list[str]:
    """Write what a cleaner would make of the first two segments, under the names that it has in this state."""
    base = int(crashed.logs[0].stem)
    data = b"".join(path.read_bytes() for path in crashed.logs[:2])
    names = []
    for kind, content in (("log", data), ("index", b""), ("timeindex", b"")):
        names.append(f"{base:020d}.{kind}{state}")
        (crashed.path / names[-1]).write_bytes(content)
    return names


def test_a_segment_that_was_being_cleaned_is_removed(crashed: Damaged) -> None:
    """SEMANTICS 7.26: the originals stand."""
    names = merged(crashed, ".cleaned")
    with crashed.open("r") as reader:
        assert list(reader.read()) == crashed.records
    with crashed.open() as log:
        assert list(log.read()) == crashed.records
        assert set(log.recovery.leftovers_removed) == set(names)
        assert len(log.segments) == 3


def test_a_swap_is_finished(crashed: Damaged) -> None:
    """SEMANTICS 8.5 to 8.7: what it replaces goes, all of its files take their names."""
    second = crashed.logs[1]
    merged(crashed, ".swap")
    with crashed.open("r") as reader:
        assert list(reader.read()) == crashed.records
    with crashed.open() as log:
        assert list(log.read()) == crashed.records
        assert [segment.base_offset for segment in log.segments] == [0, int(crashed.last.stem)]
    assert not second.exists()
    check_again(crashed, crashed.records)


def test_a_swap_that_had_renamed_its_indexes_only_is_finished(crashed: Damaged) -> None:
    names = merged(crashed, ".swap")
    for name in names[1:]:
        (crashed.path / name).rename(crashed.path / name.removesuffix(".swap"))
    with crashed.open("r") as reader:
        assert list(reader.read()) == crashed.records
    with crashed.open() as log:
        check_answers(crashed, log)
    check_again(crashed, crashed.records)


def test_a_swap_that_had_deleted_some_originals_is_finished(crashed: Damaged) -> None:
    merged(crashed, ".swap")
    second = crashed.logs[1]
    for kind in ("log", "index"):
        second.with_suffix(f".{kind}").rename(second.with_suffix(f".{kind}.deleted"))
    with crashed.open("r") as reader:
        assert list(reader.read()) == crashed.records
    with crashed.open() as log:
        assert list(log.read()) == crashed.records
    assert not list(crashed.path.glob("*.deleted"))
    assert not second.with_suffix(".timeindex").exists()


def test_a_swap_that_had_renamed_its_log_only_is_finished(crashed: Damaged) -> None:
    """The `.log` has its name, the indexes have not; the second original is still to go, `.deleted` already."""
    names = merged(crashed, ".swap")
    for path in (crashed.logs[1],):
        for kind in ("log", "index", "timeindex"):
            path.with_suffix(f".{kind}").rename(path.with_suffix(f".{kind}.deleted"))
    (crashed.path / names[0]).rename(crashed.path / names[0].removesuffix(".swap"))
    with crashed.open("r") as reader:
        assert list(reader.read()) == crashed.records
    with crashed.open() as log:
        check_answers(crashed, log)


@pytest.mark.parametrize(
    "kinds", [("log",), ("log", "timeindex"), ("log", "txnindex"), ("log", "index", "timeindex", "txnindex")]
)
@pytest.mark.parametrize("marked_clean", [False, True])
def test_a_finished_swap_leaves_the_snapshots_of_later_segments(
    damaged: Damaged, kinds: tuple[str, ...], marked_clean: bool
) -> None:
    """SEMANTICS 8.5 to 8.7; of the transaction that is aborted in the swapped segment a part lies below it."""
    with damaged.open() as log:
        for number in range(6):
            log.append_many(
                [(b"%d" % number, b"value")] * 3,
                producer_id=5,
                producer_epoch=0,
                base_sequence=3 * number,
                transactional=True,
            )
            if number != 1:
                log.append_marker(5, 0, commit=number != 2)
            if number < 5:
                log.roll()
        log.flush()
        damaged.keep(list(log.read(isolation="read_committed")))
    damaged.restore()
    assert [record.key for record in damaged.records] == [b"%d" % number for number in (0, 3, 4, 5) for _ in range(3)]
    base = int(damaged.logs[2].stem)
    for kind in names.SEGMENT_KINDS:
        file = damaged.file(base, kind.removeprefix("."))
        if kind.removeprefix(".") in kinds:
            shutil.copy(file, f"{file}.swap")
    if marked_clean:
        (damaged.root / ".kafka_cleanshutdown").write_text("")
    snapshots = {path.name for path in damaged.path.glob("*.snapshot")}
    with damaged.open("r") as reader:
        assert list(reader.read(isolation="read_committed")) == damaged.records
    with damaged.open() as log:
        assert list(log.read(isolation="read_committed")) == damaged.records
        kept = {path.name for path in damaged.path.glob("*.snapshot")}
        assert snapshots - kept == {f"{base:020d}.snapshot"}
        if "index" not in kinds:
            assert base in log.recovery.indexes_rebuilt
    assert not verify([damaged.path]).findings


@pytest.mark.parametrize("cleaned", [0, 1])
def test_swaps_from_a_cleaned_file_on_are_removed(crashed: Damaged, cleaned: int) -> None:
    """SEMANTICS 8.4: a split into several segments that had not all become `.swap` is undone."""
    swap = f"{cleaned:020d}.log.swap"
    (crashed.path / swap).write_bytes(crashed.logs[0].read_bytes())
    (crashed.path / f"{cleaned:020d}.log.cleaned").write_bytes(b"half")
    with crashed.open("r") as reader:
        assert list(reader.read()) == crashed.records
    with crashed.open() as log:
        assert list(log.read()) == crashed.records
        assert set(log.recovery.leftovers_removed) == {swap, f"{cleaned:020d}.log.cleaned"}


def test_a_swap_below_every_cleaned_file_is_finished(crashed: Damaged) -> None:
    merged(crashed, ".swap")
    name = f"{int(crashed.last.stem):020d}.log.cleaned"
    (crashed.path / name).write_bytes(b"half")
    with crashed.open() as log:
        assert list(log.read()) == crashed.records
        assert len(log.segments) == 2
    assert not (crashed.path / name).exists()


# Marks.


def marks(crashed: Damaged) -> Iterator[int]:
    bases = [int(path.stem) for path in crashed.logs]
    yield from {0, 1, bases[1] - 1, bases[1], bases[1] + 1, bases[2]}


def test_without_a_recovery_point_everything_is_recovered(crashed: Damaged) -> None:
    """SEMANTICS 8.1: 0; and a stale one recovers more than it need."""
    bases = [int(path.stem) for path in crashed.logs]
    crashed.mark(POINTS, None)
    with crashed.open() as log:
        assert log.recovery.indexes_rebuilt == bases
        assert list(log.read()) == crashed.records
    for point in marks(crashed):
        crashed.restore()
        crashed.mark(POINTS, point)
        with crashed.open() as log:
            first = max(base for base in bases if base <= point)
            assert log.recovery.indexes_rebuilt == bases[bases.index(first) :]
            assert list(log.read()) == crashed.records
        check_again(crashed, crashed.records)


def test_a_segment_that_loses_bytes_takes_the_later_ones_with_it(crashed: Damaged) -> None:
    """SEMANTICS 8.9."""
    bases = [int(path.stem) for path in crashed.logs]
    crashed.mark(POINTS, None)
    second = crashed.logs[1]
    size = second.stat().st_size
    *_, (_, _, before), (start, _, _) = batches_of(second)
    crashed.cut(second, size - 1)
    first = before + 1
    with crashed.open() as log:
        assert log.recovery.segments_dropped == bases[2:]
        assert log.recovery.cut_bytes == size - 1 - start
        check_prefix(crashed, log, first)
        assert log.recovery.cut_from_offset == first
        records = list(log.read())
    assert [int(path.stem) for path in crashed.logs] == bases[:2]
    check_again(crashed, records)


@pytest.mark.parametrize("text", ["", "0\n", "0\n0\n"])
@pytest.mark.parametrize("name", [POINTS, STARTS])
def test_an_empty_checkpoint_is_one_without_lines(crashed: Damaged, name: str, text: str) -> None:
    (crashed.root / name).write_text(text)
    with crashed.open() as log:
        assert list(log.read()) == crashed.records


@pytest.mark.parametrize(
    "text", ["1\n0\n", "x", "0\n1\n", "0\n1\nevents 0\n", "0\n1\nevents 0 x\n", "0\n2\nevents 0 1\n"]
)
@pytest.mark.parametrize("name", [POINTS, STARTS])
def test_a_malformed_checkpoint_is_refused_by_name_and_nothing_changes(crashed: Damaged, name: str, text: str) -> None:
    """It may hold the only copy of other partitions' lines, and of what may not be cut here."""
    (crashed.root / name).write_text(text)
    before = crashed.contents()
    for mode in ("a", "r"):
        with pytest.raises(kstore.StorageError, match="malformed") as caught:
            crashed.open(mode)
        assert caught.value.filename == str(crashed.root / name)
    assert crashed.contents() == before


def test_lines_of_other_partitions_are_kept(crashed: Damaged) -> None:
    (crashed.root / POINTS).write_text("0\n2\nevents 0 3\nother 7 12\n")
    crashed.open().close()
    assert (crashed.root / POINTS).read_text() == f"0\n2\nevents 0 {crashed.records[-1].offset + 1}\nother 7 12\n"


def test_the_clean_marker_is_believed_once(crashed: Damaged) -> None:
    """SEMANTICS 8.1: removed at once, so that a crash from then on counts."""
    marker = crashed.root / ".kafka_cleanshutdown"
    marker.write_text("")
    with crashed.open("r") as reader:
        assert list(reader.read()) == crashed.records
    assert marker.exists()
    log = crashed.open()
    assert log.recovery.clean
    assert not marker.exists()
    assert list(log.read()) == crashed.records
    kept = crashed.contents()
    log.close()
    shutil.rmtree(crashed.root)
    for name, data in kept.items():
        path = crashed.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    with crashed.open() as log:
        assert not log.recovery.clean
        assert list(log.read()) == crashed.records


def test_a_log_that_ends_below_its_recovery_point_is_refused(crashed: Damaged) -> None:
    """Between the log start and the recovery point nothing may be missing."""
    end = crashed.records[-1].offset + 1
    for point, fine in ((end, True), (end + 1, False), (2**62, False)):
        crashed.restore()
        crashed.mark(POINTS, point)
        before = crashed.bytes_of_logs()
        if fine:
            crashed.open().close()
            continue
        with pytest.raises(kstore.CorruptRecordError, match=f"recovery point {point}"):
            crashed.open()
        with pytest.raises(kstore.CorruptRecordError, match=f"recovery point {point}"):
            list(crashed.open("r").read())
        assert crashed.bytes_of_logs() == before


def test_an_unflushed_log_that_ends_below_its_start_begins_anew_there(crashed: Damaged) -> None:
    """SEMANTICS 8.11."""
    end = crashed.records[-1].offset + 1
    crashed.mark(STARTS, end)
    with crashed.open() as log:
        assert (log.log_start_offset, log.log_end_offset) == (end, end)
        assert len(log.segments) == 3
    crashed.restore()
    crashed.mark(STARTS, end + 1)
    crashed.mark(POINTS, 0)
    with crashed.open("r") as reader:
        assert (reader.log_start_offset, reader.log_end_offset) == (end + 1, end + 1)
        assert list(reader.read()) == []
    with crashed.open() as log:
        assert (log.log_start_offset, log.log_end_offset) == (end + 1, end + 1)
        assert [segment.base_offset for segment in log.segments] == [end + 1]
        assert len(log.recovery.segments_dropped) == 3
        assert log.append(b"x") == end + 1
    with crashed.open() as log:
        assert [record.offset for record in log.read()] == [end + 1]


@pytest.mark.parametrize("point", [1, "unchanged", "end", "start"])
@pytest.mark.parametrize("marker", [False, True])
def test_a_log_start_above_records_that_were_flushed_drops_none_of_them(
    crashed: Damaged, point: int | str, marker: bool
) -> None:
    """Kafka empties such a log (SEMANTICS 8.11); `log-start-above-the-end` in docs/compatibility.md."""
    end = crashed.records[-1].offset + 1
    crashed.mark(STARTS, end + 1)
    if point != "unchanged":
        crashed.mark(POINTS, {"end": end, "start": end + 1}.get(str(point), 1))
    if marker:
        (crashed.root / ".kafka_cleanshutdown").write_text("")
    before = crashed.bytes_of_logs()
    for mode in ("r", "a", "a"):
        with pytest.raises(kstore.CorruptRecordError, match=r"kstore repair"):
            list(crashed.open(mode).read())
    assert crashed.bytes_of_logs() == before
    assert any(each.severity == "error" and each.rule == "SEMANTICS 8.11" for each in verify([crashed.path]).findings)


def test_a_start_inside_the_log_hides_what_is_below(crashed: Damaged) -> None:
    for start in range(crashed.records[-1].offset + 2):
        crashed.restore()
        crashed.mark(STARTS, start)
        with crashed.open("r") as reader, crashed.open() as log:
            for each in (reader, log):
                assert each.log_start_offset == start
                assert list(each.read()) == [record for record in crashed.records if record.offset >= start]


def test_an_empty_directory_is_an_empty_log(damaged: Damaged) -> None:
    damaged.path.mkdir()
    with damaged.open("r") as reader:
        assert (reader.log_start_offset, reader.log_end_offset, list(reader.read())) == (0, 0, [])
    damaged.mark(STARTS, 7)
    with damaged.open() as log:
        assert (log.log_start_offset, log.log_end_offset) == (7, 7)


def test_a_first_segment_that_is_missing_raises_the_start(crashed: Damaged) -> None:
    crashed.logs[0].unlink()
    base = int(crashed.logs[0].stem)
    with crashed.open("r") as reader, crashed.open() as log:
        for each in (reader, log):
            assert each.log_start_offset == base
            assert list(each.read()) == [record for record in crashed.records if record.offset >= base]


def test_any_bytes_for_a_last_segment_give_a_log_or_an_error(crashed: Damaged, rng: random.Random,
                                                            budget: Callable[[float], float]) -> None:  # fmt: skip
    """Splices of sound batches, zeros and noise: never another batch's data, never a crash of the process."""
    whole = crashed.last.read_bytes()
    contents = {(record.timestamp, record.key, record.value, record.headers) for record in crashed.records}
    for _ in range(int(budget(200))):
        crashed.restore()
        pieces = []
        for _ in range(rng.randrange(1, 5)):
            a, b = sorted(rng.randrange(len(whole) + 1) for _ in range(2))
            pieces.append(rng.choice([whole[a:b], bytes(b - a), rng.randbytes(b - a), whole]))
        crashed.last.write_bytes(b"".join(pieces))
        with crashed.open("r") as reader:
            seen = list(reader.read())
        with crashed.open() as log:
            found = list(log.read())
        assert found == seen, (b"".join(pieces).hex(), log.recovery)
        assert {(r.timestamp, r.key, r.value, r.headers) for r in found} <= contents
        assert [r.offset for r in found] == sorted({r.offset for r in found})


# The snapshot at the end of a recovered log.


def left_open(root: Path, clock: ManualClock, **settings: object) -> Path:
    """A log of one record that was never closed; a copy of its files as the death of the process leaves them."""
    log = kstore.Log.open(root / "live" / "events-0", clock=clock, **settings)
    log.append(b"first", timestamp=1)
    path = shutil.copytree(root / "live", root / "crashed") / "events-0"
    log.close()
    return path


def snapshots(path: Path) -> list[str]:
    return sorted(file.name for file in path.glob("*.snapshot"))


def test_a_snapshot_without_producers_waits_for_the_first_append_after_a_recovery(
    tmp_path: Path, clock: ManualClock
) -> None:
    """`snapshot-of-a-recovery`: the file is what an opening after a crash would spend most of its time on."""
    path = left_open(tmp_path, clock)
    with kstore.Log.open(path, clock=clock) as log:
        assert not log.recovery.clean
        log.flush()
        assert log.producer_states() == []
        assert snapshots(path) == []
        assert [record.value for record in log.read()] == [b"first"]
        log.append(b"second", timestamp=2)
        assert snapshots(path) == ["00000000000000000001.snapshot"]
        log.append(b"third", timestamp=3)
    assert snapshots(path) == ["00000000000000000001.snapshot", "00000000000000000003.snapshot"]


@pytest.mark.parametrize("then", ["close", "roll", "truncate"])
def test_a_snapshot_that_waited_is_there_after_whatever_comes_next(
    tmp_path: Path, clock: ManualClock, then: str
) -> None:
    path = left_open(tmp_path, clock)
    with kstore.Log.open(path, clock=clock) as log:
        if then == "roll":
            log.roll()
        elif then == "truncate":
            log.truncate_to(1)
        if then != "close":
            assert snapshots(path) == ["00000000000000000001.snapshot"]
    assert snapshots(path) == ["00000000000000000001.snapshot"]


def test_a_death_before_the_first_append_leaves_what_the_next_recovery_finds(
    tmp_path: Path, clock: ManualClock
) -> None:
    path = left_open(tmp_path, clock)
    with kstore.Log.open(path, clock=clock):
        again = shutil.copytree(path.parent, tmp_path / "again") / path.name
    with kstore.Log.open(again, clock=clock) as log:
        assert not log.recovery.clean
        assert [record.value for record in log.read()] == [b"first"]
    contents = [{file.name: file.read_bytes() for file in each.iterdir()} for each in (path, again)]
    assert contents[0] == contents[1]


def test_an_opening_that_fails_behind_a_lost_index_takes_no_producer_from_the_next(
    partition: Path, clock: ManualClock
) -> None:
    """That a snapshot waits may leave no directory without any: an opening would then look for no producers."""
    numbers: dict[str, Any] = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0, "transactional": True}
    with kstore.Log.open(partition, clock=clock) as log:
        log.append_many([b"plain"] * 3)
        log.roll()
        log.append_many([b"open"], **numbers)
        log.append(b"after")
    (partition / names.index_name(0)).unlink()
    last = partition / names.log_name(3)
    sound = last.read_bytes()
    last.write_bytes(sound[:-1] + bytes([sound[-1] ^ 1]))
    with pytest.raises(CorruptRecordError):
        kstore.Log.open(partition, clock=clock)
    assert snapshots(partition) == [names.snapshot_name(3)]
    last.write_bytes(sound)
    with kstore.Log.open(partition, clock=clock) as log:
        assert log.last_stable_offset == 3
        assert [record.value for record in log.read(isolation="read_committed")] == [b"plain"] * 3
        assert log.append_many([b"open"], **numbers).first_offset == 3
        assert log.log_end_offset == 5


@pytest.mark.parametrize("marked", [True, False])
def test_without_a_snapshot_producers_are_replayed_unless_the_shutdown_was_clean(
    partition: Path, clock: ManualClock, marked: bool
) -> None:
    """SEMANTICS 9.26. The directory looks closed either way: a recovery that died before its snapshot left it so."""
    numbers: dict[str, Any] = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0, "transactional": True}
    with kstore.Log.open(partition, clock=clock) as log:
        log.append_many([b"plain"] * 3)
        log.append_many([b"open"], **numbers)
    for name in snapshots(partition):
        (partition / name).unlink()
    if marked:
        (partition.parent / checkpoint.CLEAN_MARKER).write_text('{"version":0,"brokerEpoch":-1}')
    with kstore.Log.open(partition, clock=clock) as log:
        assert log.recovery.clean
        assert log.last_stable_offset == (4 if marked else 3)
        assert len(log.producer_states()) == (0 if marked else 1)


def test_a_snapshot_that_the_first_append_could_not_write_is_written_at_the_close(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = left_open(tmp_path, clock)
    log = kstore.Log.open(path, clock=clock)
    with monkeypatch.context() as patched:
        patched.setattr(fs, "write_file", too_many_open_files)
        with pytest.raises(StorageError):
            log.append(b"second", timestamp=2)
    log.close()
    assert snapshots(path) == ["00000000000000000001.snapshot"]


def too_many_open_files(*arguments: object, **options: object) -> None:
    raise StorageError("too many open files")


def test_the_name_of_a_snapshot_that_waited_is_on_the_disk_with_the_next_flush(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = left_open(tmp_path, clock)
    synced: list[Path] = []
    with kstore.Log.open(path, clock=clock) as log:
        log.flush()
        log.append(b"second", timestamp=2)
        monkeypatch.setattr(fs, "sync_directory", lambda directory: synced.append(Path(directory)))
        log.flush()
    assert path in synced


def test_a_snapshot_with_producers_is_written_by_the_recovery(tmp_path: Path, clock: ManualClock) -> None:
    log = kstore.Log.open(tmp_path / "live" / "events-0", clock=clock)
    log.append_many([b"first"], producer_id=7, producer_epoch=0, base_sequence=0)
    path = shutil.copytree(tmp_path / "live", tmp_path / "crashed") / "events-0"
    log.close()
    with kstore.Log.open(path, clock=clock) as log:
        assert snapshots(path) == ["00000000000000000001.snapshot"]
        assert [producer.producer_id for producer in log.producer_states()] == [7]


def with_holes(path: Path) -> None:
    """Give the indexes the holes that files at full size have; a copy has zeros there."""
    for file in path.glob("*index"):
        data, size = file.read_bytes(), file.stat().st_size
        file.write_bytes(data.rstrip(b"\0"))
        os.truncate(file, size)


def test_indexes_that_are_as_recovery_would_make_them_are_not_cut_and_grown_again(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those of a log that was recovered or closed before, whose time index has a closing entry then."""
    path = left_open(tmp_path, clock)
    cuts: list[int] = []
    for number in range(4):
        with_holes(path)
        before = {file.name: file.read_bytes() for file in path.glob("*.index")}
        with monkeypatch.context() as patched:
            patched.setattr(fs, "truncate", lambda fd, size: cuts.append(size))
            log = kstore.Log.open(path, clock=clock)
        assert {file.name: file.read_bytes() for file in path.glob("*.index")} == before
        if number == 1:
            log.close()
            log = kstore.Log.open(path, clock=clock)
        log.append(b"more", timestamp=number + 2)
        path = shutil.copytree(path.parent, tmp_path / f"crash {number}") / path.name
        log.close()
    assert cuts == []


def test_recovery_makes_the_same_indexes_of_files_with_holes_and_with_zeros(tmp_path: Path, clock: ManualClock) -> None:
    """The first is written over in place, the other is cut and grown."""
    path = left_open(tmp_path, clock)
    with kstore.Log.open(path, clock=clock) as log:
        log.append(b"more", timestamp=2)
        zeros = shutil.copytree(path.parent, tmp_path / "zeros") / path.name
        holes = shutil.copytree(path.parent, tmp_path / "holes") / path.name
    for file in zeros.glob("*index"):
        file.write_bytes(file.read_bytes())
    with_holes(holes)
    with kstore.Log.open(zeros, clock=clock), kstore.Log.open(holes, clock=clock):
        contents = [{file.name: file.read_bytes() for file in each.glob("*index")} for each in (zeros, holes)]
    assert contents[0] == contents[1]


def test_entries_behind_those_of_the_records_are_cut_from_an_index_at_full_size(
    tmp_path: Path, clock: ManualClock
) -> None:
    """What a crash leaves there, a later opening would take for entries."""
    path = left_open(tmp_path, clock, segment_index_bytes=40)
    index = path / f"{0:020}.index"
    index.write_bytes(bytes(32) + b"\1" * 8)
    with kstore.Log.open(path, clock=clock, segment_index_bytes=40):
        assert index.read_bytes() == bytes(40)
