"""`repair` keeps every sound batch with its offsets, says what is lost, and leaves a log that nothing is wrong with."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import goldensets
import pytest
from faultfs import KEPT, LOST, FaultFS
from kafka_jvm import Kafka
from verifying import batch_positions, errors, flip, logs, make_log, make_pristine

import kstore
from kstore import checkpoint, cli, fs, names, recovery
from kstore.errors import LogLockedError
from kstore.repair import carry_out, plan_repair, repair

HEADER_BYTES = 61
OUTSIDE_CRC = range(17)


@pytest.fixture(autouse=True)
def without_syncs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fs, "_full_sync", lambda fd: None)


@pytest.fixture
def log_path(tmp_path: Path) -> Path:
    return make_log(tmp_path)


@pytest.fixture
def pristine(log_path: Path) -> Callable[[], Path]:
    return make_pristine(log_path)


def records(path: Path) -> list[tuple[int, bytes | None]]:
    with kstore.Log.open(path, mode="r") as log:
        return [(record.offset, record.value) for record in log.read()]


def mend(path: Path) -> list[tuple[int, int]]:
    """Repair a partition; the offsets that were lost."""
    plan = plan_repair(str(path))
    assert plan.findings
    lost = list(plan.lost)
    assert repair(plan, str(path.parent.parent / "backup")) == []
    assert errors(path) == []
    return lost


def opens_cleanly(path: Path) -> None:
    """Whether a writer takes the log as it is."""
    before = records(path)
    with kstore.Log.open(path) as log:
        assert log.recovery.cut_bytes == 0
        assert log.recovery.segments_dropped == []
        offset = log.append(b"after")
    assert records(path) == [*before, (offset, b"after")]
    assert errors(path) == []


def test_a_bad_batch_goes_and_those_behind_it_stay_with_their_offsets(pristine: Callable[[], Path]) -> None:
    whole = records(pristine())
    for number in range(len(logs(pristine()))):
        for batch in (0, 1, -1):
            path = pristine()
            log = logs(path)[number]
            flip(log, batch_positions(log.read_bytes())[batch] + 90, 3)
            lost = mend(path)
            ((low, high),) = lost
            assert records(path) == [each for each in whole if not low <= each[0] < high]
            assert 1 <= high - low <= 3
            opens_cleanly(path)


@pytest.mark.parametrize("position", OUTSIDE_CRC)
def test_a_header_field_that_no_crc_covers_is_restored(pristine: Callable[[], Path], position: int) -> None:
    path = pristine()
    whole = records(path)
    for number, batch in ((1, 0), (1, 2), (0, -1)):
        for bit in (0, 3, 6, 7):
            path = pristine()
            log = logs(path)[number]
            start = batch_positions(log.read_bytes())[batch]
            flip(log, start + position, bit)
            assert mend(path) == [], (number, batch, bit)
            assert records(path) == whole


def test_nothing_changes_without_yes_and_the_command_says_what_would(
    log_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    flip(logs(log_path)[0], 90, 0)
    before = content(log_path.parent)
    assert cli.main(["repair", str(log_path)]) == 1
    said = capsys.readouterr().out
    assert "cut 388 bytes at position 0: the CRC does not hold" in said
    assert "lost: 388 bytes, offsets 0 to 2" in said
    assert {name: data for name, data in content(log_path.parent).items() if name != ".lock"} == {
        name: data for name, data in before.items() if name != ".lock"
    }


def content(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_whatever_is_removed_is_in_the_backup_beside_the_root(
    log_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    log = logs(log_path)[0]
    flip(log, 90, 0)
    before = log.read_bytes()
    assert cli.main(["repair", "--yes", "--json", str(log_path)]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["lost"], said["errors_left"]) == (
        {"bytes": 388, "offsets": [[0, 2]], "records_at_most": 3},
        0,
    )
    backup = Path(said["backup"])
    assert backup.parent == log_path.parent.parent
    assert (backup / "t-0" / log.name).read_bytes() == before


def test_a_log_in_use_is_left_alone(log_path: Path) -> None:
    flip(logs(log_path)[0], 90, 0)
    plan = plan_repair(str(log_path))
    with fs.lock_partition(log_path), pytest.raises(LogLockedError):
        carry_out(plan, str(log_path.parent.parent / "backup"))
    with fs.lock_root(log_path.parent, shared=False):
        assert cli.main(["repair", "--yes", str(log_path)]) == 1


def test_a_missing_segment_is_written_down_as_lost(pristine: Callable[[], Path]) -> None:
    path = pristine()
    whole = records(path)
    for number in range(len(logs(path))):
        path = pristine()
        bases = [names.parse_offset(log.name) or 0 for log in logs(path)]
        for file in path.glob(f"{logs(path)[number].stem}.*"):
            file.unlink()
        mend(path)
        ends = [*bases[1:], 48]
        assert records(path) == [each for each in whole if not bases[number] <= each[0] < ends[number]]
        opens_cleanly(path)


def test_a_log_whose_segments_are_all_gone_has_lost_what_was_flushed(pristine: Callable[[], Path]) -> None:
    path = pristine()
    for file in path.glob("0*"):
        file.unlink()
    assert [found.rule for found in errors(path)][:1] == ["SEMANTICS 8.13"]
    assert mend(path) == [(0, 48)]
    assert errors(path) == []


def test_a_log_that_was_cut_below_its_recovery_point_ends_there(pristine: Callable[[], Path]) -> None:
    path = pristine()
    whole = records(path)
    last = logs(path)[-1]
    last.write_bytes(last.read_bytes()[:-5])
    mend(path)
    kept = records(path)
    assert kept == whole[: len(kept)] != whole
    assert checkpoint.read_offsets(path.parent, checkpoint.RECOVERY_POINTS)["t", 0] == len(kept)
    opens_cleanly(path)


def test_names_are_mended(pristine: Callable[[], Path]) -> None:
    path = pristine()
    whole = records(path)
    for name in sorted(each.name for each in path.iterdir()):
        file = names.parse_file_name(name)
        if file is None or (file.kind == names.TIME_INDEX and file.offset == 0):
            continue
        if file.kind == names.SNAPSHOT and file.offset > int(max(path.glob("*.log")).stem):
            continue  # a close's: past the batches it also lies after a truncation inside one (11.4)
        for other in (str(file._replace(offset=file.offset + 1)), name.lstrip("0").rjust(19, "0")):
            path = pristine()
            (path / name).rename(path / other)
            if file.kind == names.SNAPSHOT and file.offset == 48 and len(other) == len(name):
                continue  # legal: a close after a cut inside a batch leaves the same, and opening deletes it (11.4)
            mend(path)
            assert records(path) == whole, (name, other)


def test_indexes_are_built_anew(pristine: Callable[[], Path]) -> None:
    path = pristine()
    whole = records(path)
    for index in [*sorted(path.glob("*index"))]:
        path = pristine()
        data = bytearray(index.read_bytes())
        data[-1] ^= 1
        index.write_bytes(data)
        assert mend(path) == []
        assert records(path) == whole
    opens_cleanly(path)


@pytest.mark.parametrize("directory", ["before/damaged-0", "before/damaged-1", "before/damaged-2"])
def test_what_somebody_did_to_kafkas_files_is_mended(tmp_path: Path, directory: str) -> None:
    path = goldensets.copy_set("crash-damaged", tmp_path) / directory
    if errors(path):
        mend(path)
    else:  # what recovery does at an opening is no repair
        kstore.Log.open(path).close()
    assert errors(path) == []


def test_a_crash_at_each_write_of_a_repair_leaves_the_old_log_or_the_mended_one(
    log_path: Path,
    tmp_path: Path,
) -> None:
    log = logs(log_path)[1]
    flip(log, batch_positions(log.read_bytes())[1] + 90, 0)
    old = log.read_bytes()
    plan = plan_repair(str(log_path))
    others = [each.read_bytes() for each in logs(log_path) if each.name != log.name]
    seen = set()
    with FaultFS(tmp_path) as disk:
        begun = disk.step
        carry_out(plan, str(tmp_path / "backup"))
    new = log.read_bytes()
    into = tmp_path.parent / f"{tmp_path.name}-images"
    into.mkdir()
    for step, how, image in disk.crash_images(into, LOST, KEPT, since=begun):
        partition = image / "root" / "t-0"
        clear_leftovers(partition)
        data = (partition / log.name).read_bytes()
        assert data in (old, new), (step, how)
        assert [each.read_bytes() for each in logs(partition) if each.name != log.name] == others
        if data == new:
            assert errors(partition) == []
        seen.add(data == new)
    assert seen == {True, False}


def clear_leftovers(partition: Path) -> None:
    """Do to leftovers what opening does."""
    found = recovery.leftovers(
        fs.listdir(partition),
        lambda name: recovery.next_offset_of_file(str(partition / name), names.parse_offset(name) or 0),
    )
    for name in found.remove:
        (partition / name).unlink()
    for source, target in found.rename:
        (partition / source).rename(partition / target)


def test_a_transaction_index_is_written_anew_from_the_markers(tmp_path: Path) -> None:
    path = goldensets.copy_set("transactions", tmp_path) / "dir" / "tx-0"
    for index in sorted(path.glob("*.txnindex")):
        data = index.read_bytes()
        index.write_bytes(b"\1" + data[1:-1])
        mend(path)
        assert index.read_bytes() == data
    shutil.rmtree(tmp_path / "backup", ignore_errors=True)


@pytest.mark.parametrize("name", checkpoint.OFFSET_CHECKPOINTS)
def test_whole_lines_of_a_damaged_checkpoint_are_kept(log_path: Path, name: str) -> None:
    root = log_path.parent
    (root / name).write_bytes(b"0\n3\nt 0 48\nu 1 7\n\0\0\0\0 v\n")
    assert cli.main(["repair", str(root)]) == 1
    assert cli.main(["repair", "--yes", str(root)]) == 0
    assert checkpoint.read_offsets(root, name) == {("t", 0): 48, ("u", 1): 7}
    assert errors(root) == []


@pytest.mark.kafka
def test_kafka_opens_what_was_repaired_and_changes_nothing(kafka: Kafka, log_path: Path) -> None:
    first, second, *_, last = logs(log_path)
    flip(first, batch_positions(first.read_bytes())[1] + 90, 3)
    flip(second, batch_positions(second.read_bytes())[1] + 4, 3)
    last.write_bytes(last.read_bytes()[:-5])
    mend(log_path)
    kept = records(log_path)
    files = {path.name: path.read_bytes() for path in logs(log_path)}
    lines = kafka.records(log_path)
    assert all(line.get("valid") for line in lines)
    assert [line["offset"] for line in lines] == [offset for offset, _ in kept]
    log = kafka.open(log_path)
    log.close(marker=True)
    assert {path.name: path.read_bytes() for path in logs(log_path)} == files
    assert errors(log_path.parent) == []
    assert records(log_path) == kept
