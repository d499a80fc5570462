"""Files of brokers with one fault each (`damaged-files`): the sound batches before the fault are there, and no more.

Each case is a directory with the file or files of one segment, as the first of a partition of its own. There is no
checkpoint, so nothing is known to have been flushed.
"""

from __future__ import annotations

import random
import zlib
from pathlib import Path

import crc32c
import pytest

import kstore
from tests.conftest import ManualClock
from tests.golden import goldenlogs
from tests.golden.goldenlogs import Batch, Partition, RecordRow
from tests.test_docs import REPOSITORY, table_after

pytestmark = pytest.mark.usefixtures("no_syncs")

WHOLE = goldenlogs.unpacked(Partition(goldenlogs.NO_LINES, "dir/index-good"))
CASES = sorted(path.name for path in WHOLE.iterdir())
LOGS = [name for name in CASES if list((WHOLE / name).glob("*.log"))]
INDEXES = [name for name in LOGS if "index" in name]  # the log is whole, its indexes are not
REST = [name for name in CASES if name not in LOGS]
# The sets that the files come from. A case whose offsets do not follow one another is cut there (`offsets-go-back`).
CODECS = {"count-low": "dir/codec-none-0", "flip-in-compressed": "dir/codec-gzip-0"}
DIFFERENCE = "offsets-go-back"


def source(name: str) -> Partition:
    return Partition("codecs", CODECS[name]) if name in CODECS else Partition("canary-16k", "dir/canary-0")


def make_partition(name: str, root: Path) -> Path:
    directory = root / f"{name}-0"
    directory.mkdir()
    for path in (WHOLE / name).iterdir():
        if path.name != ".keep":
            (directory / path.name).write_bytes(path.read_bytes())
    return directory


def sound(batch: Batch) -> bool:
    if batch.magic == 2:
        return len(batch.data) >= 61 and crc32c.crc32c(batch.data[21:]) == int.from_bytes(batch.data[17:21], "big")
    return batch.magic in (0, 1) and zlib.crc32(batch.data[16:]) == int.from_bytes(batch.data[12:16], "big")


def sound_batches(directory: Path) -> list[Batch]:
    """The batches of the one segment before the first that is not whole, not sound or goes back.

    Nor is one sound that lies behind a gap and that the next one begins below: of these two, one has a wrong offset.
    """
    [path] = directory.glob("*.log")
    found: list[Batch] = []
    least, has_gap = int(path.stem), False
    for batch in goldenlogs.split(path.read_bytes(), int(path.stem)):
        if not sound(batch):
            break
        if batch.base_offset < least:
            if has_gap:
                del found[-1]
            break
        found.append(batch)
        least, has_gap = batch.last_offset + 1, batch.base_offset > least
    return found


def rows_of(name: str, batches: list[Batch]) -> list[RecordRow]:
    original = goldenlogs.oracle(source(name), goldenlogs.unpacked(source(name)))
    rows = []
    for batch in batches:
        [same] = [b for b in original.batches if b.base_offset == batch.base_offset]
        assert batch.data == same.data
        rows += [row for row in original.records if row.batchBaseOffset == batch.base_offset]
    return rows


@pytest.mark.parametrize("name", LOGS)
def test_reading_gives_the_sound_batches_before_the_fault(name: str, root: Path) -> None:
    directory = make_partition(name, root)
    before = goldenlogs.files(root)
    batches = sound_batches(directory)
    base = int(next(directory.glob("*.log")).stem)
    with kstore.Log.open(directory, "r") as log:
        assert goldenlogs.found_rows(log.read_batches()) == rows_of(name, batches)
        assert log.log_start_offset == base
        assert log.log_end_offset == (batches[-1].last_offset + 1 if batches else base)
        assert log.segments[0].size_bytes == sum(len(batch.data) for batch in batches)
    assert goldenlogs.files(root) == before


@pytest.mark.parametrize("name", LOGS)
def test_recovery_cuts_at_the_fault_and_rebuilds_both_indexes(name: str, root: Path) -> None:
    directory = make_partition(name, root)
    batches = sound_batches(directory)
    [path] = directory.glob("*.log")
    whole = path.read_bytes()
    sound_bytes = sum(len(batch.data) for batch in batches)
    with kstore.Log.open(directory, clock=ManualClock()) as log:
        assert log.recovery.cut_bytes == len(whole) - sound_bytes
        assert log.recovery.cut_from_offset == (log.log_end_offset if sound_bytes < len(whole) else None)
        assert goldenlogs.found_rows(log.read_batches()) == rows_of(name, batches)
    assert path.read_bytes() == whole[:sound_bytes]
    made = kstore.Log.open(root / "again-0", clock=ManualClock())
    made.truncate_fully_and_start_at(int(path.stem))
    for batch in batches:
        made.append_as_follower(batch.data)
    made.close()
    for suffix in (".index", ".timeindex"):
        assert path.with_suffix(suffix).read_bytes() == (root / "again-0" / path.with_suffix(suffix).name).read_bytes()


@pytest.mark.parametrize("name", INDEXES)
def test_a_wrong_index_leads_no_reader_astray(name: str, root: Path, rng: random.Random) -> None:
    """Read-only nothing is rebuilt: what an entry says is believed only as far as the log bears it out."""
    directory = make_partition(name, root)
    rows = rows_of(name, sound_batches(directory))
    with kstore.Log.open(directory, "r") as log:
        for row in rng.sample(rows, min(len(rows), 40)):
            assert next(iter(log.read(row.offset))).offset == row.offset
            assert log.fetch(row.offset, 1).offset == row.offset
            first = next(other for other in rows if other.timestamp >= row.timestamp)
            assert log.offset_for_timestamp(row.timestamp) == (first.timestamp, first.offset)
        most = max(rows, key=lambda row: row.timestamp, default=None)
        assert log.max_timestamp() == (None if most is None else (most.timestamp, most.offset))
        assert log.segments[0].max_timestamp == (-1 if most is None else most.timestamp)


@pytest.mark.parametrize("name", [name for name in INDEXES if name != "empty-files"])
def test_the_rebuilt_indexes_are_the_brokers_own(name: str, root: Path) -> None:
    directory = make_partition(name, root)
    kstore.Log.open(directory, clock=ManualClock()).close()
    own = goldenlogs.unpacked(source(name)) / "canary-0"
    for suffix in (".log", ".index", ".timeindex"):
        file = f"00000000000000000107{suffix}"
        assert (directory / file).read_bytes() == (own / file).read_bytes()


@pytest.mark.parametrize("name", REST)
def test_files_without_a_log_make_an_empty_log(name: str, root: Path) -> None:
    directory = make_partition(name, root)
    with kstore.Log.open(directory, "r") as log:
        assert list(log.read()) == list(log.read_batches()) == []
        assert (log.log_start_offset, log.log_end_offset, log.segments) == (0, 0, ())
        assert log.offset_for_timestamp(0) is log.max_timestamp() is None
        assert len(log.fetch(0, 1000).records) == 0
    with kstore.Log.open(directory, clock=ManualClock()) as log:
        assert log.append(b"first") == 0
    left = {path.name for path in directory.iterdir() if path.name.startswith("00000000000000000107")}
    assert left == set()


def test_the_difference_is_told_in_the_document() -> None:
    told = {row[0].strip("`") for row in table_after(REPOSITORY / "docs" / "compatibility.md", "golden files")}
    assert DIFFERENCE in told
