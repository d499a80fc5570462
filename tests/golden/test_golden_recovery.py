"""Opened and closed, what real brokers left comes out as Kafka leaves it: recovered, or untouched where it was clean.

Snapshots are compared entry by entry. Left out of the comparison: what a start of Kafka adds to
`leader-epoch-checkpoint`.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import kstore
from tests.conftest import ManualClock
from tests.golden import goldenlogs
from tests.golden.goldenlogs import PARTITIONS, Partition, RecordRow, with_sorted_snapshots
from tests.kafka.cases.kafka_cases import EMPTY_SNAPSHOT
from tests.test_docs import REPOSITORY, table_after

pytestmark = pytest.mark.usefixtures("no_syncs")

AFTER_A_KILL = [p for p in PARTITIONS if p.set in ("crash", "crash-damaged") and p.directory.startswith("before/")]
# Copied from a broker that ran: for kstore the same as after a kill.
RUNNING = [p for p in PARTITIONS if p.set == "retention" and p.directory.startswith("during/")]
# What recovery cuts, and from which offset; how many leftovers it removes; which segments it drops.
CUT = {
    "crash/before/crash-pre-0": (61346, 20),
    "crash-damaged/before/damaged-0": (58, 197),
    "crash-damaged/before/damaged-1": (3331, 89),
    "crash-damaged/before/damaged-2": (500, 206),
}
LEFTOVERS = {
    "crash-damaged/before/damaged-0": {
        "00000000000000000000.log.deleted", "00000000000000000053.index.cleaned", "00000000000000000053.log.cleaned",
        "00000000000000099999.index",
    },
    # The swapped segment's own files made room for it; its indexes were not there to be swapped.
    "crash-damaged/before/damaged-2": {
        "00000000000000000000.log", "00000000000000000000.index", "00000000000000000000.timeindex",
    },
}  # fmt: skip
DIFFERENCES = {"flushed-fault", "read-checks-crc"}  # rows of docs/compatibility.md
DROPPED = {"crash-damaged/before/damaged-1": [139, 189]}

# Sets that carry no checkpoint files: kstore must take them for unclean and rebuild every index.
UNKNOWN = [
    p for p in PARTITIONS if "recovery-point-offset-checkpoint" not in goldenlogs.lines_of(p, goldenlogs.unpacked(p))
]
CLEAN = [p for p in PARTITIONS if p not in (*UNKNOWN, *AFTER_A_KILL, *RUNNING) and "retention/before" not in str(p)]
# Indexes whose entries a restart in the middle of a segment has spaced otherwise than a rebuild does (SEMANTICS 3.12).
RESTARTED = {Partition("epochs", "dir/epochs-0")}


def open_log(partition: Partition, root: Path) -> kstore.Log:
    """At the time of its newest record: a day later its producers would have expired."""
    directory = root / partition.directory.rpartition("/")[2]
    rows = goldenlogs.expected_rows(partition)
    now = max((row.timestamp if isinstance(row, RecordRow) else row.maxTimestamp for row in rows), default=0)
    return kstore.Log.open(directory, config=goldenlogs.config(partition), clock=ManualClock(now))


def files_of(partition: Partition, root: Path) -> dict[str, bytes]:
    return goldenlogs.files(root / partition.directory.rpartition("/")[2])


def without_newest_epoch(files: dict[str, bytes]) -> dict[str, bytes]:
    """The same, but for the entry that Kafka's start has made at the log end."""
    name = "leader-epoch-checkpoint"
    if name not in files:
        return files
    entries = files[name].splitlines()[2:-1]
    return {**files, name: b"\n".join([b"0", b"%d" % len(entries), *entries, b""])}


@pytest.mark.parametrize("partition", AFTER_A_KILL, ids=str)
def test_recovery_leaves_what_kafkas_recovery_left(partition: Partition, tmp_path: Path) -> None:
    """SEMANTICS 8; the damage of `crash-damaged` is listed in its `about.json`."""
    after = Partition(partition.set, partition.directory.replace("before/", "after/"))
    root = goldenlogs.copy_root(partition, tmp_path)
    before = goldenlogs.oracle(partition, root)
    log = open_log(partition, root)
    found = log.recovery
    assert not found.clean
    assert (found.cut_bytes, found.cut_from_offset) == CUT.get(str(partition), (0, None))
    assert set(found.leftovers_removed) == LEFTOVERS.get(str(partition), set())
    assert found.segments_dropped == DROPPED.get(str(partition), [])
    rebuilt = [base for base in before.bases if base not in found.segments_dropped]
    first = max((base for base in rebuilt if base <= before.recovery_point), default=0)
    assert sorted(found.indexes_rebuilt) == [base for base in rebuilt if base >= first]
    log.close()
    expected = without_newest_epoch(goldenlogs.files(goldenlogs.unpacked(after) / after.directory.rpartition("/")[2]))
    files = files_of(partition, root)
    files.pop("leader-epoch-checkpoint.tmp", None)  # becomes the file when an epoch is entered, in Kafka at each start
    assert with_sorted_snapshots(files) == with_sorted_snapshots(expected)
    assert goldenlogs.lines_of(partition, root) == goldenlogs.lines_of(after, goldenlogs.unpacked(after))
    with open_log(partition, root) as log:
        assert log.recovery.clean


@pytest.mark.parametrize("partition", RUNNING, ids=str)
def test_a_copy_of_a_running_brokers_files_comes_out_as_its_shutdown_left_them(
    partition: Partition, tmp_path: Path
) -> None:
    after = Partition(partition.set, partition.directory.replace("during/", "after-restart/"))
    root = goldenlogs.copy_root(partition, tmp_path)
    with open_log(partition, root) as log:
        assert not log.recovery.clean
        assert all(name.endswith(".deleted") for name in log.recovery.leftovers_removed)
    expected = without_newest_epoch(goldenlogs.files(goldenlogs.unpacked(after) / after.directory.rpartition("/")[2]))
    assert with_sorted_snapshots(files_of(partition, root)) == with_sorted_snapshots(expected)


@pytest.mark.parametrize("partition", CLEAN, ids=str)
def test_a_clean_log_opened_and_closed_keeps_every_byte(partition: Partition, tmp_path: Path) -> None:
    """SEMANTICS 8.22. What goes: files to be deleted, stray and early snapshots (SEMANTICS 9.28, 9.26), an epoch at the
    end (SEMANTICS 8.13)."""
    root = goldenlogs.copy_root(partition, tmp_path)
    oracle = goldenlogs.oracle(partition, root)
    before = files_of(partition, root)
    with open_log(partition, root) as log:
        assert log.recovery.clean
        assert log.recovery.indexes_rebuilt == []
    expected = {name: data for name, data in before.items() if not name.endswith(".deleted")}
    for name in [name for name in expected if name.endswith(".snapshot")]:
        if int(name[:20]) not in (*oracle.bases, oracle.log_end) or int(name[:20]) <= oracle.log_start:
            del expected[name]
    if not any(name.endswith(".snapshot") for name in before):
        # Opening writes them, at the log start too (SEMANTICS 9.26), as Kafka's own log does in the kept history of a
        # close after all was deleted.
        for offset in (*oracle.bases[-2:], oracle.log_end):
            if offset > 0:
                expected[f"{offset:020d}.snapshot"] = EMPTY_SNAPSHOT
    epochs = expected.setdefault("leader-epoch-checkpoint", b"").splitlines()[2:]  # 0 bytes where there was none
    if epochs and int(epochs[-1].split()[1]) == oracle.log_end:
        expected = without_newest_epoch(expected)
    assert files_of(partition, root) == expected
    lines = goldenlogs.lines_of(partition, goldenlogs.unpacked(partition))
    assert goldenlogs.lines_of(partition, root) == lines


@pytest.mark.parametrize("lost", [(), (".snapshot",), (".snapshot", ".txnindex")], ids="".join)
@pytest.mark.parametrize("partition", UNKNOWN, ids=str)
def test_rebuilt_indexes_are_those_that_the_broker_wrote(
    partition: Partition, lost: tuple[str, ...], tmp_path: Path
) -> None:
    """SEMANTICS 3.12: without restarts live appends and recovery agree; so do snapshots and transaction indexes
    (SEMANTICS 8.14, 8.16)."""
    root = goldenlogs.copy_root(partition, tmp_path)
    before = files_of(partition, root)
    for name in before:
        if name.endswith(lost):
            (root / partition.directory.rpartition("/")[2] / name).unlink()
    with open_log(partition, root) as log:
        assert not log.recovery.clean
        assert log.recovery.cut_bytes == 0
        assert log.recovery.indexes_rebuilt == [segment.base_offset for segment in log.segments]
    found, expected = (with_sorted_snapshots(files) for files in (files_of(partition, root), before))
    if partition in RESTARTED:
        found, expected = (
            {name: data for name, data in files.items() if not name.endswith("index")} for files in (found, expected)
        )
        # Deleted, as SEMANTICS 8.14 says.
        found["00000000000000000090.snapshot"] = expected["00000000000000000090.snapshot"]
    assert found == expected


@pytest.mark.parametrize(("number", "recovery_point", "sound_end"), [(0, 199, 197), (0, 198, 197), (1, 90, 89)])
def test_a_fault_below_the_recovery_point_is_an_error_and_nothing_is_cut(
    number: int, recovery_point: int, sound_end: int, tmp_path: Path
) -> None:
    """`flushed-fault` in docs/compatibility.md: Kafka cuts these logs as it cuts any other."""
    partition = Partition("crash-damaged", f"before/damaged-{number}")
    root = goldenlogs.copy_root(partition, tmp_path)
    (root / "recovery-point-offset-checkpoint").write_text(f"0\n1\ndamaged {number} {recovery_point}\n")
    logs = {name: data for name, data in files_of(partition, root).items() if name.endswith(".log")}
    with pytest.raises(kstore.CorruptRecordError, match=rf"up to offset {sound_end}.*kstore repair"):
        open_log(partition, root)
    assert {name: data for name, data in files_of(partition, root).items() if name.endswith(".log")} == logs


@pytest.mark.parametrize(("number", "recovery_point"), [(0, 197), (1, 89)])
def test_a_fault_at_the_recovery_point_is_cut(number: int, recovery_point: int, tmp_path: Path) -> None:
    partition = Partition("crash-damaged", f"before/damaged-{number}")
    root = goldenlogs.copy_root(partition, tmp_path)
    (root / "recovery-point-offset-checkpoint").write_text(f"0\n1\ndamaged {number} {recovery_point}\n")
    with open_log(partition, root) as log:
        assert log.recovery.cut_from_offset == log.log_end_offset == recovery_point


def test_a_fault_in_a_log_that_looks_closed_is_met_when_it_is_read(tmp_path: Path) -> None:
    """A clean log is not scanned; what is unsound inside it is an error for its readers, and stays."""
    partition = Partition("crash-damaged", "before/damaged-1")
    root = goldenlogs.copy_root(partition, tmp_path)
    (root / "recovery-point-offset-checkpoint").write_text("0\n1\ndamaged 1 208\n")
    with open_log(partition, root) as log:
        assert log.recovery.clean
        with pytest.raises(kstore.CorruptRecordError, match=r"00000000000000000077\.log at position 1627: CRC"):
            list(log.read())
        assert next(iter(log.read(139))).offset == 139


def test_zeros_above_the_recovery_point_are_cut_however_much_was_flushed(tmp_path: Path) -> None:
    partition = Partition("crash-damaged", "before/damaged-2")
    root = goldenlogs.copy_root(partition, tmp_path)
    (root / "recovery-point-offset-checkpoint").write_text("0\n1\ndamaged 2 206\n")
    with open_log(partition, root) as log:
        assert (log.recovery.cut_bytes, log.log_end_offset) == (500, 206)


def test_partitions_of_one_directory_recover_side_by_side(tmp_path: Path) -> None:
    """Each has its line in the checkpoints when all are closed, and those of others stay."""
    for name in ("crash", "crash-damaged"):
        partitions = [p for p in AFTER_A_KILL if p.set == name]
        root = tmp_path / name
        shutil.copytree(goldenlogs.unpacked(partitions[0]), root)
        logs = [open_log(partition, root) for partition in partitions]
        for log in logs:
            log.close()
        after = goldenlogs.unpacked(partitions[0]).parent / "after" / "recovery-point-offset-checkpoint"
        expected = dict(line.rsplit(" ", 1) for line in after.read_text().splitlines()[2:])
        found = (root / "recovery-point-offset-checkpoint").read_text().splitlines()[2:]
        told = dict(line.rsplit(" ", 1) for line in found)
        del expected["__transaction_state 0"], told["__transaction_state 0"]  # its directory is not in the sets
        assert told == expected


def test_each_difference_is_told_in_the_document() -> None:
    told = {row[0].strip("`") for row in table_after(REPOSITORY / "docs" / "compatibility.md", "golden files")}
    assert told >= DIFFERENCES
