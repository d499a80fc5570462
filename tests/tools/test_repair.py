"""`repair` keeps every sound batch with its offsets, says what is lost, and leaves a log that nothing is wrong with."""

from __future__ import annotations

import json
import shutil
import zlib
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Literal

import pytest

import kstore
from kstore import cli
from kstore.codec import header
from kstore.disk import fs
from kstore.errors import LogLockedError
from kstore.files import checkpoint, gap_files, load_files, names, topic_files
from kstore.log.segments.swap import clear_leftovers
from kstore.tools.check.apply_repair import carry_out
from kstore.tools.check.repair import plan_repair, repair
from tests.conftest import ManualClock
from tests.golden import goldensets
from tests.kafka.kafka_jvm import Kafka
from tests.support.faultfs import KEPT, LOST, FaultFS
from tests.support.verifying import batch_positions, errors, flip, logs, write
from tests.support.verifying import log_path as log_path
from tests.support.verifying import pristine as pristine

HEADER_BYTES = 61
OUTSIDE_CRC = range(17)


@pytest.fixture(autouse=True)
def without_syncs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fs, "_full_sync", lambda fd: None)


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
            continue  # a close's: past the batches it also lies after a truncation inside one (SEMANTICS 11.4)
        for other in (str(file._replace(offset=file.offset + 1)), name.lstrip("0").rjust(19, "0")):
            path = pristine()
            (path / name).rename(path / other)
            if file.kind == names.SNAPSHOT and file.offset == 48 and len(other) == len(name):
                # Legal: a close after a cut inside a batch leaves the same, and opening deletes it (SEMANTICS 11.4).
                continue
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
        clear_leftovers(str(partition), fs.listdir(partition))
        data = (partition / log.name).read_bytes()
        assert data in (old, new), (step, how)
        assert [each.read_bytes() for each in logs(partition) if each.name != log.name] == others
        if data == new:
            assert errors(partition) == []
        seen.add(data == new)
    assert seen == {True, False}


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


# What lies beside the partitions


def make_store(root: Path) -> Path:
    """A closed store: topics with settings and one without, a group's position, notes of bulk loads."""
    with kstore.Store.open(root) as store:
        store.create_topic("bare", 2)
        store.create_topic("kept", config={"retention.ms": "1000000"})
        store.create_topic("zone", config={"retention.bytes": "1000000"})
        for topic in ("bare", "kept", "zone"):
            store.append_many(topic, [b"v"] * 20)
        store.commit_offsets("group", {("bare", 0): 3})
    load_files.Done({"daily": 3}, ("one", "two")).write([str(root)])
    return root


def half(data: bytes) -> bytes:
    return data[: len(data) // 2]


def flipped(data: bytes) -> bytes:
    return bytes([*data[: len(data) // 3], data[len(data) // 3] ^ 4, *data[len(data) // 3 + 1 :]]) if data else b"x"


@pytest.mark.parametrize("damage", [half, flipped, lambda _: b"", lambda _: b"\xff\0junk\n" * 3])
def test_whatever_keeps_a_store_from_opening_is_found_and_repair_has_it_open_again(
    tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    source = make_store(tmp_path / "source")
    root, refused = tmp_path / "root", 0
    for file in [path for path in (*source.iterdir(), *(source / "kept-0").iterdir()) if path.is_file()]:
        shutil.copytree(source, root)
        damaged = root / file.relative_to(source)
        damaged.write_bytes(damage(damaged.read_bytes()))
        try:
            shutil.copytree(root, tmp_path / "tried")
            read_all(tmp_path / "tried", "a")
        except kstore.KStoreError:
            refused += 1
            assert errors(root), damaged
            assert cli.main(["repair", str(root)]) == 1
        shutil.rmtree(tmp_path / "tried")
        backup = str(tmp_path / "backup")
        assert cli.main(["repair", "--yes", "--backup", backup, str(root)]) == 0
        assert errors(root) == [], damaged
        read_all(root, "a")
        shutil.rmtree(root)
        shutil.rmtree(tmp_path / "backup", ignore_errors=True)
    assert refused >= 3


def read_all(root: Path, mode: Literal["a", "r"]) -> int:
    with kstore.Store.open(root, mode, background=False) as store:
        return sum(1 for topic in store.topics for _ in store.read(topic))


def test_the_topics_that_the_whole_lines_of_a_cut_file_name_keep_their_settings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those that it may have named get settings by which retention deletes nothing."""
    root = make_store(tmp_path / "root")
    file = root / topic_files.TOPICS_FILE
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(lines[:-2]) + lines[-2][:20])
    with pytest.raises(kstore.StorageError, match="kstore repair"):
        kstore.Store.open(root)
    assert cli.main(["repair", str(root)]) == 1
    said = capsys.readouterr().out
    assert "write it anew; as it was: __consumer_offsets, kept" in said
    assert "bare, zone: the settings are lost, or may be" in said
    assert cli.main(["repair", "--yes", str(root)]) == 0
    with kstore.Store.open(root, config={"log.retention.ms": "5000"}) as store:
        assert store.committed_offsets("group") == {("bare", 0): 3}
        kept = {topic: store.topic_config(topic) for topic in ("bare", "kept", "zone")}
    assert {topic: (config.retention_ms, config.retention_bytes) for topic, config in kept.items()} == {
        "bare": (-1, -1), "kept": (1_000_000, -1), "zone": (-1, -1)
    }  # fmt: skip


def test_retention_deletes_nothing_by_a_file_of_topics_with_a_wrong_checksum(
    tmp_path: Path,
) -> None:
    root = make_store(tmp_path / "root")
    file = root / topic_files.TOPICS_FILE
    file.write_bytes(file.read_bytes().replace(b'"retention.ms": "1000000"', b'"retention.ms": "1000004"'))
    assert cli.main(["repair", "--yes", str(root)]) == 0
    with kstore.Store.open(root) as store:
        assert store.committed_offsets("group") == {("bare", 0): 3}
        for topic in ("bare", "kept", "zone"):
            assert store.topic_config(topic).retention_ms == store.topic_config(topic).retention_bytes == -1


def test_a_damaged_file_of_topics_is_taken_from_the_stores_other_directory(tmp_path: Path) -> None:
    roots = [tmp_path / "one", tmp_path / "two"]
    with kstore.Store.open(roots) as store:
        store.create_topic("kept", 2, config={"retention.ms": "1000000"})
    (roots[0] / topic_files.TOPICS_FILE).write_bytes(b"{")
    assert cli.main(["repair", *map(str, roots)]) == 1
    assert cli.main(["repair", "--yes", *map(str, roots)]) == 0
    assert errors(*roots) == []
    with kstore.Store.open(roots[0], "r") as store:
        assert store.topic_config("kept").retention_ms == 1_000_000


def test_what_of_a_root_only_its_owner_can_decide_is_said_and_the_exit_code_is_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = make_store(tmp_path / "root")
    (root / load_files.COMMIT_FILE).write_bytes(b"{")
    assert errors(root)
    assert cli.main(["repair", "--yes", str(root)]) == 1
    assert "move it away to give the load up" in capsys.readouterr().out
    assert (root / load_files.COMMIT_FILE).read_bytes() == b"{"
    assert cli.main(["repair", "--yes", "--json", str(root)]) == 1
    found = json.loads(capsys.readouterr().out.splitlines()[0])
    assert (found["errors"], found["errors_left"], found["steps"]) == (1, 1, [])
    assert len(found["by_hand"]) == 1


def test_a_file_of_a_later_release_is_left_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = make_store(tmp_path / "root")
    for name in (topic_files.TOPICS_FILE, load_files.LOADS_FILE):
        content = json.loads((root / name).read_bytes()) | {"version": 99}
        content.pop("crc32", None)
        crc = zlib.crc32(json.dumps(content, sort_keys=True).encode())
        data = json.dumps(content | {"crc32": crc}, indent=1, sort_keys=True).encode()
        (root / name).write_bytes(data)
        assert errors(root)
        assert cli.main(["repair", "--yes", str(root)]) == 1
        assert "version 99" in capsys.readouterr().out
        assert (root / name).read_bytes() == data
        shutil.rmtree(root)
        make_store(root)


def test_offsets_that_only_the_high_watermark_or_a_snapshot_knows_are_lost(tmp_path: Path) -> None:
    """No close has set the recovery point: the process was killed, or its line is gone."""
    for told in (checkpoint.HIGH_WATERMARKS, names.SNAPSHOT):
        root = tmp_path / told
        path = root / "t-0"
        path.parent.mkdir()
        write(path)
        last = logs(path)[-1]
        last.write_bytes(last.read_bytes()[: batch_positions(last.read_bytes())[2]])
        end = int(last.stem) + 5
        checkpoint.update_offsets(root, checkpoint.RECOVERY_POINTS, {("t", 0): None})
        if told == checkpoint.HIGH_WATERMARKS:
            (path / names.snapshot_name(48)).unlink()
            checkpoint.update_offsets(root, told, {("t", 0): 48})
        flip(logs(path)[0], 90, 0)
        plan = plan_repair(str(path))
        assert plan.lost == [(0, 3), (end, 48)]
        assert f"offsets 0 to 2, {end} to 47, at most {51 - end} records" in plan.lines()[-1]
        assert repair(plan, str(root / "backup")) == []
        assert gap_files.read_gaps(path) == [(0, 3)], "offsets at the end are given out again"
        opens_cleanly(path)


def test_offsets_of_a_cut_inside_a_batch_before_a_close_are_not_lost_at_a_repair(tmp_path: Path) -> None:
    """SEMANTICS 11.4. The close's snapshot lies beyond the batches, and the recovery point at their end."""
    path = tmp_path / "root" / "t-0"
    path.parent.mkdir()
    with kstore.Log.open(path) as log:
        log.append(b"v" * 100)
        log.append_many([b"cut"] * 4)
        log.truncate_to(3)
    flip(logs(path)[0], 3, 7)
    assert plan_repair(str(path)).lost == []


# Batches behind damage


def write_small(path: Path, batches: int) -> None:
    """A closed log of one segment, with as many batches of one record."""
    path.parent.mkdir(exist_ok=True)
    with kstore.Log.open(path) as log:
        for number in range(batches):
            log.append(b"value %d" % number)


@pytest.mark.parametrize("lifted", [0, 3, 8, 9])
def test_batches_behind_a_bad_one_stay_where_a_flip_lifts_an_offset_before_it(tmp_path: Path, lifted: int) -> None:
    path = tmp_path / "root" / "t-0"
    write_small(path, 200)
    whole, (log,) = records(path), logs(path)
    pristine, starts = log.read_bytes(), batch_positions(log.read_bytes())
    for bit in (5, 8, 31, 62):
        log.write_bytes(pristine)
        flip(log, starts[lifted] + 7 - bit // 8, bit % 8)
        flip(log, starts[10] + 65, 0)
        said = [found.what for found in errors(path)]
        assert any(f"sound batches go on at position {starts[11]}" in what for what in said), bit
        plan = plan_repair(str(path))
        assert plan.lost == [(10, 11)], bit
    assert mend(path) == [(10, 11)]
    assert records(path) == [each for each in whole if each[0] != 10]


BLOCK = 1024


@pytest.mark.parametrize("source", [0, 7, 60])
@pytest.mark.parametrize("value_bytes", [10, 300])
def test_a_block_that_holds_what_belongs_elsewhere_costs_its_own_batches_alone(
    tmp_path: Path, source: int, value_bytes: int
) -> None:
    path = tmp_path / "root" / "t-0"
    path.parent.mkdir()
    with kstore.Log.open(path) as log:
        for number in range(80 * BLOCK // (80 + value_bytes)):
            log.append(b"%d " % number + b"v" * value_bytes)
    whole, (file,) = records(path), logs(path)
    pristine, starts = file.read_bytes(), [*batch_positions(file.read_bytes()), file.stat().st_size]
    for target in (0, 1, 29, 59):
        if target == source:
            continue
        data = bytearray(pristine)
        low, high = target * BLOCK, (target + 1) * BLOCK
        data[low:high] = pristine[source * BLOCK : (source + 1) * BLOCK]
        file.write_bytes(data)
        hit = {number for number in range(len(whole)) if starts[number] < high and starts[number + 1] > low}
        plan = plan_repair(str(path))
        assert plan.lost == [(min(hit), max(hit) + 1)], target
        assert repair(plan, str(tmp_path / "backup")) == []
        assert records(path) == [each for each in whole if each[0] not in hit]


# Segments that overlap


def test_an_empty_file_amid_a_segments_offsets_goes_and_no_batch_is_cut(tmp_path: Path) -> None:
    path = tmp_path / "root" / "t-0"
    path.parent.mkdir()
    with kstore.Log.open(path) as log:
        for number in range(20):
            log.append(b"%d" % number)
    whole = records(path)
    for base in (1, 2, 10, 18, 19):
        stray = [path / names.file_name(base, kind) for kind in (names.LOG, names.OFFSET_INDEX, names.TIME_INDEX)]
        for file in stray:
            file.touch()
        assert mend(path) == [], base
        assert records(path) == whole
        assert not any(file.exists() for file in stray)
        assert all((tmp_path / "backup" / "t-0" / file.name).exists() for file in stray)
        shutil.rmtree(tmp_path / "backup")
    opens_cleanly(path)


def test_an_empty_active_segment_stays_where_a_flip_lifts_the_offset_before_it(tmp_path: Path) -> None:
    path = tmp_path / "root" / "t-0"
    path.parent.mkdir()
    with kstore.Log.open(path) as log:
        for number in range(20):
            log.append(b"%d" % number)
        log.roll()
    whole, (first, active) = records(path), logs(path)
    flip(first, batch_positions(first.read_bytes())[-1] + 6, 3)
    assert mend(path) == []
    assert records(path) == whole
    assert active.exists()


def test_segments_left_beside_their_merged_one_are_repaired_in_one_run(tmp_path: Path, clock: ManualClock) -> None:
    root, copy = tmp_path / "root", tmp_path / "copy"
    with kstore.Store.open(root, background=False, clock=clock) as store:
        store.create_topic("t", config={"segment.bytes": "2000", "cleanup.policy": "compact"})
        for start, stop in ((0, 200), (200, 300)):
            for number in range(start, stop):
                key = b"k%d" % (number % 3) if number % 10 else b"only%d" % number
                store.append("t", b"value %d" % number, key=key)
            store.compact("t")
            clock.advance(10**9)
            store.run_housekeeping()
            shutil.copytree(root, copy, dirs_exist_ok=True)
    merged, before = records(root / "t-0"), copied_batches(copy / "t-0")
    assert len(logs(copy / "t-0")) > len(logs(root / "t-0"))
    assert mend(copy / "t-0") == []
    assert set(merged) <= set(records(copy / "t-0"))
    assert copied_batches(copy / "t-0") == before, "one copy of each batch stays"


def copied_batches(path: Path) -> set[bytes]:
    found = set()
    for log in logs(path):
        data = log.read_bytes()
        starts = [*batch_positions(data), len(data)]
        found.update(data[start:end] for start, end in pairwise(starts))
    return found


def test_of_batches_that_two_segments_hold_one_copy_stays_with_its_offset(pristine: Callable[[], Path]) -> None:
    path = pristine()
    whole = records(path)
    data = logs(path)[1].read_bytes()
    for end in [*batch_positions(data)[1:], len(data)]:
        path = pristine()
        first, second, *_ = logs(path)
        first.write_bytes(first.read_bytes() + data[:end])
        assert mend(path) == []
        assert records(path) == whole
        assert second.exists() == (end < len(data)), "a segment that is whole in the one before it goes"
        shutil.rmtree(path.parent.parent / "backup")


def test_segments_with_other_sound_batches_at_the_same_offsets_are_left_alone(pristine: Callable[[], Path]) -> None:
    path = pristine()
    first, second, *_ = logs(path)
    data = bytearray(second.read_bytes())
    starts = batch_positions(data)
    others = b""
    for start, end in ((starts[0], starts[1]), (starts[1], starts[2])):
        batch = data[start:end]
        header.LEADER_EPOCH.put(batch, 3)
        batch[-20] ^= 1
        header.CRC.put(batch, header.computed_crc(batch))
        others += batch
    first.write_bytes(first.read_bytes() + others)
    before = first.read_bytes(), second.read_bytes()
    plan = plan_repair(str(path))
    assert plan.lost_bytes == 0
    assert repair(plan, str(path.parent.parent / "backup")) != []
    assert (first.read_bytes(), second.read_bytes()) == before


def write_segments(path: Path, segments: int, batches: int) -> None:
    """A closed log of segments of as many batches, each of five records that tell their offsets."""
    path.parent.mkdir(exist_ok=True)
    with kstore.Log.open(path) as log:
        for number in range(segments):
            if number:
                log.roll()
            for _ in range(batches):
                end = log.log_end_offset
                log.append_many([(None, b"%d" % offset, 1, None) for offset in range(end, end + 5)])


@pytest.mark.parametrize("batches", [1, 2, 3])
def test_segments_that_exchanged_names_get_their_names_back_and_no_byte_changes(tmp_path: Path, batches: int) -> None:
    path = tmp_path / "root" / "t-0"
    write_segments(path, 6, batches)
    whole, contents = records(path), [log.read_bytes() for log in logs(path)]
    for one in range(6):
        for other in range(one):
            first, second = logs(path)[other], logs(path)[one]
            kept = first.rename(tmp_path / "kept")
            second.rename(first)
            kept.rename(second)
            plan = plan_repair(str(path))
            assert f"rename {first.name} to {second.name}" in plan.lines()
            assert mend(path) == []
            assert [log.read_bytes() for log in logs(path)] == contents
            shutil.rmtree(tmp_path / "backup")
    assert records(path) == whole
    opens_cleanly(path)


@pytest.mark.parametrize("batches", [1, 2, 3])
@pytest.mark.parametrize("away", [-3, -1, 1, 3])
def test_a_copy_of_a_segment_under_another_name_goes_and_no_batch_is_cut(
    tmp_path: Path, batches: int, away: int
) -> None:
    path = tmp_path / "root" / "t-0"
    write_segments(path, 5, batches)
    contents = [log.read_bytes() for log in logs(path)]
    for log in logs(path)[1:]:
        copy = path / names.log_name(int(log.stem) + away)
        shutil.copy(log, copy)
        assert mend(path) == []
        assert [each.read_bytes() for each in logs(path)] == contents
        assert (tmp_path / "backup" / "t-0" / copy.name).exists()
        shutil.rmtree(tmp_path / "backup")
    opens_cleanly(path)


def test_a_damaged_segment_goes_where_a_sound_copy_of_it_can_have_its_name(tmp_path: Path) -> None:
    path = tmp_path / "root" / "t-0"
    write_segments(path, 4, 3)
    whole, second = records(path), logs(path)[1]
    copy = path / names.log_name(int(second.stem) + 4)
    shutil.copy(second, copy)
    flip(second, batch_positions(second.read_bytes())[1] + 90, 0)
    assert mend(path) == []
    assert records(path) == whole
    opens_cleanly(path)


def test_a_crash_while_segments_get_their_names_back_leaves_all_names_or_none(tmp_path: Path) -> None:
    path = tmp_path / "root" / "t-0"
    write_segments(path, 5, 2)
    whole = [log.read_bytes() for log in logs(path)]
    first, second = logs(path)[1], logs(path)[3]
    kept = first.rename(tmp_path / "kept")
    second.rename(first)
    kept.rename(second)
    old = [log.read_bytes() for log in logs(path)]
    plan = plan_repair(str(path))
    with FaultFS(tmp_path) as disk:
        begun = disk.step
        carry_out(plan, str(tmp_path / "backup"))
    into = tmp_path.parent / f"{tmp_path.name}-images"
    into.mkdir()
    seen = set()
    for step, how, image in disk.crash_images(into, LOST, KEPT, since=begun):
        partition = image / "root" / "t-0"
        clear_leftovers(str(partition), fs.listdir(partition))
        data = [log.read_bytes() for log in logs(partition)]
        assert data in (old, whole), (step, how)
        seen.add(data == whole)
    assert seen == {True, False}


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


@pytest.mark.parametrize("where", ["copy", "data", "data/backup", "data/kept-0/backup", "data/round-2"])
def test_a_backup_goes_to_a_new_directory_outside_of_the_data(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], where: str
) -> None:
    root = make_store(tmp_path / "data")
    shutil.copytree(root, tmp_path / "copy")
    partition = root / "kept-0"
    flip(partition / names.log_name(0), 70, 0)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for mended in (root, partition) if where != "data/backup" else (root,):
        assert cli.main(["repair", "--yes", "--backup", str(tmp_path / where), str(mended)]) == 1
        assert "the backup would" in capsys.readouterr().err
        assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    assert cli.main(["repair", "--yes", "--backup", str(tmp_path / "new"), str(partition)]) == 0
    assert errors(root) == []
