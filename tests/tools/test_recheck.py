"""`verify`, `describe` and `dump` of what is being written tell of no fault that a writer's next step takes away.

Held in three ways: every state of the files between two steps of a writer, as a kill leaves it; changes of the
directory between two steps of a look; a process that rolls, cuts and deletes as fast as it can, beside many looks.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

import kstore
from kstore import cli
from kstore.disk import fs
from kstore.files import checkpoint, names
from kstore.tools.check import recheck
from kstore.tools.check.verify import verify
from tests.conftest import ManualClock
from tests.support.faultfs import KEPT, FaultFS
from tests.support.verifying import batch_positions, errors, flip, logs, make_log, write

SMALL = {"segment_bytes": 600, "index_interval_bytes": 100, "segment_index_bytes": 1200, "file_delete_delay_ms": 0}


# Between two steps of a writer


def lone_log(root: Path, clock: ManualClock) -> None:
    with kstore.Log.open(root / "t-0", clock=clock, **SMALL) as log:
        for _ in range(6):
            log.append_many([b"v" * 80] * 3)
            clock.advance(1000)
        log.flush()
        log.run_housekeeping()
        log.append_many([b"w"] * 4, producer_id=1, producer_epoch=0, base_sequence=0)
        log.truncate_to(14)
        log.append_many([b"w" * 50] * 6)
        log.roll()
        log.append(b"x")
        log.truncate_to(log.log_end_offset - 3)
        log.roll()
        log.append(b"y")
        log.delete_records(5)
        log.update_config(retention_bytes=900)
        log.apply_retention()
        log.run_housekeeping()
        for _ in range(3):
            log.append(b"z" * 90)
        log.append_marker(1, 0, commit=False)
        log.truncate_to(log.log_start_offset + 1)
        log.append(b"q")
        log.update_config(retention_bytes=0)
        log.apply_retention()
        log.append_many([b"r"] * 4)
        log.truncate_to(log.log_end_offset - 1)
    with kstore.Log.open(root / "t-0", clock=clock, segment_bytes=600) as log:
        log.append(b"again")


def store(root: Path, clock: ManualClock) -> None:
    settings = {"background": False, "clock": clock, "segment_bytes": 600, "index_interval_bytes": 100,
                "segment_index_bytes": 1200}  # fmt: skip
    with kstore.Store.open(root, **settings) as store:
        store.create_topic("a", 2)
        store.append_many("a", [b"v" * 80] * 20)
        store.flush()
        for _ in range(2):
            store.run_housekeeping()
            clock.advance(600_000)
        store.commit_offsets("group", {("a", 0): 1})
        store.update_topic_config("a", {"retention.bytes": "0"})
        clock.advance(400_000)
        store.run_housekeeping()
        store.append_many("a", [b"k"] * 4, partition=0)
        store.log("a", 0).truncate_to(store.log("a", 0).log_end_offset - 1)
        store.add_partitions("a", 3)
        transaction = store.producer(transactional_id="id").transaction()
        transaction.append("a", b"t")
        transaction.abort()
        store.delete_topic("a")
        clock.advance(100_000)
        store.run_housekeeping()
        store.create_topic("a", 1)
        store.append_many("a", [b"new"] * 4)
        store.log("a", 0).truncate_to(2)
    with kstore.Store.open(root, **settings) as store:
        store.append("a", b"more")


@pytest.mark.parametrize("life", [lone_log, store])
def test_nothing_is_wrong_with_what_a_kill_leaves_after_any_step(
    life: Callable[[Path, ManualClock], None], tmp_path: Path, clock: ManualClock
) -> None:
    root = tmp_path / "root"
    root.mkdir()
    with FaultFS(root) as disk:
        life(root, clock)
    (tmp_path / "images").mkdir()
    images = 0
    for step, _, image in disk.crash_images(tmp_path / "images", KEPT):
        (image / fs.LOCK_FILE).touch()  # no step, since it holds nothing
        assert errors(image) == [], f"step {step}: {disk.trace[step - 1]}"
        images += 1
    assert images > 300
    assert errors(root) == []


# Between two steps of a look


def after(
    monkeypatch: pytest.MonkeyPatch, module: object, name: str, change: Callable[[], object], *, times: int
) -> None:
    """Have the directory changed whenever a function of the look has been called, so many times."""
    plain = getattr(module, name)
    left = [times]

    def changing(*given: object, **named: object) -> object:
        answer = plain(*given, **named)
        if left[0]:
            left[0] -= 1
            change()
        return answer

    monkeypatch.setattr(module, name, changing)


def grow(log: kstore.Log) -> None:
    log.append_many([b"v" * 80] * 3)


def roll(log: kstore.Log) -> None:
    grow(log)
    log.roll()


def cut(log: kstore.Log) -> None:
    log.truncate_to(max(log.log_end_offset - 4, log.log_start_offset))
    grow(log)


def drop(log: kstore.Log) -> None:
    """All but the last two segments."""
    log.delete_records(log.segments[-2].base_offset)
    log.apply_retention()
    log.run_housekeeping()


def empty(log: kstore.Log) -> None:
    log.truncate_fully_and_start_at(log.log_end_offset + 10)
    grow(log)


CHANGES = [grow, roll, cut, drop, empty]
STEPS = ["listdir", "read_file", "open"]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("command", ["verify", "describe", "dump"])
def test_a_change_between_two_steps_of_a_look_is_no_fault(
    command: str,
    name: str,
    change: Callable[[kstore.Log], None],
    tmp_path: Path,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(fs, "_full_sync", lambda fd: None)
    with kstore.Log.open(tmp_path / "root" / "t-0", clock=clock, **SMALL) as log:
        for _ in range(8):
            grow(log)
        busy = []

        def once() -> None:
            if not busy:  # the change itself reads and lists, too
                busy.append(True)
                change(log)
                busy.clear()

        with monkeypatch.context() as patch:
            after(patch, fs, name, once, times=6)
            code = cli.main([command, str(tmp_path / "root")])
        found = capfd.readouterr()
        assert code == 0, found.out[-2000:] + found.err


def test_a_partition_that_is_deleted_under_a_look_is_no_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(fs, "_full_sync", lambda fd: None)
    with kstore.Store.open(tmp_path / "root", background=False) as store:
        for command in ("verify", "describe", "dump"):
            for name in ("listdir", "scandir", "open"):
                store.create_topic("here")
                store.create_topic("gone")
                store.append("gone", b"v")
                with monkeypatch.context() as patch:
                    after(patch, fs, name, partial(delete, store), times=99)
                    assert cli.main([command, str(tmp_path / "root")]) == 0, (command, name, capsys.readouterr())
                delete(store)
                store.delete_topic("here")


def delete(store: kstore.Store) -> None:
    if "gone" in store.topics:
        store.delete_topic("gone")


# A fault that is there


def pauses(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Do this in each pause between two looks. Other threads' `time.sleep` stays as it is."""
    monkeypatch.setattr(recheck, "time", SimpleNamespace(sleep=lambda _: act()))


@pytest.mark.parametrize("which", [0, -1])
def test_damage_in_a_log_that_is_being_written_is_told(
    which: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a sealed segment and in the active one, while the log grows between all looks."""
    path = make_log(tmp_path)
    with kstore.Log.open(path, segment_bytes=2000, index_interval_bytes=300) as log:
        log.append_many([b"v" * 100] * 3)
        log.append(b"behind it")
        damaged = logs(path)[which]
        flip(damaged, batch_positions(damaged.read_bytes())[0] + 90, 3)
        pauses(monkeypatch, lambda: log.append(b"grown"))
        assert [Path(found.path).name for found in errors(path)] == [damaged.name]
        assert cli.main(["dump", str(path)]) == 1
        assert damaged.name in capsys.readouterr().err


def test_damage_where_nobody_writes_is_told_after_one_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make_log(tmp_path)
    flip(logs(path)[0], 90, 3)
    pauses(monkeypatch, lambda: pytest.fail("waited"))
    assert errors(path)


def test_a_fault_that_comes_and_goes_is_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "root" / "t-0"
    path.parent.mkdir()
    write(path)
    with kstore.Log.open(path):
        stray = path / names.index_name(7)
        stray.touch()
        pauses(monkeypatch, lambda: stray.unlink() if stray.exists() else stray.touch())
        notes = [found for found in verify([path]).findings if found.path == str(stray)]
    assert {found.severity for found in notes} <= {"note"}


# A process that writes

WRITER = r"""
import os, random, sys
import kstore
rng = random.Random(int(sys.argv[2]))
quick = {"file.delete.delay.ms": "0", "segment.bytes": "3000", "index.interval.bytes": "200", "retention.bytes": "9000"}
with kstore.Store.open(sys.argv[1], background=False) as store:
    for topic in ("cut", "gone"):
        store.create_topic(topic, 1, config=quick)
    print("up", flush=True)
    n = 0
    while n < 50 or not os.path.exists(sys.argv[3]):
        n += 1
        log, gone = store.log("cut", 0), store.log("gone", 0)
        log.append_many([(b"k", b"v" * rng.randrange(1, 90))] * rng.randrange(1, 8))
        gone.append(b"x" * 300)
        if n % 5 == 0:
            store.flush()
        if n % 7 == 0:
            log.truncate_to(max(log.log_end_offset - rng.randrange(1, 30), log.log_start_offset))
        if n % 9 == 0:
            log.apply_retention(), gone.apply_retention(), store.run_housekeeping()
        if n % 13 == 0:
            gone.delete_records(gone.log_end_offset - 5)
        if n % 50 == 0 and "new" in store.topics:
            store.delete_topic("new")
        elif n % 50 == 0:
            store.create_topic("new", 2), store.append("new", b"v")
        if n % 211 == 0:
            log.truncate_fully_and_start_at(log.log_end_offset + 100)
print(n, flush=True)
"""


def test_looks_beside_a_process_that_rolls_cuts_and_deletes_find_nothing_wrong(
    tmp_path: Path, budget: Callable[[float], float], capfd: pytest.CaptureFixture[str]
) -> None:
    root, stop = tmp_path / "root", tmp_path / "stop"
    looks = (["verify", "--records"], ["describe", "--json", "--codecs"], ["dump", "--print-data-log"])
    command = [sys.executable, "-W", "ignore", "-c", WRITER, str(root), "7", str(stop)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "up\n"
        ends, rounds = time.monotonic() + budget(8), 0
        try:
            while time.monotonic() < ends or rounds < 3:
                rounds += 1
                for look in looks:
                    code = cli.main([*look, str(root)])
                    out, err = capfd.readouterr()
                    assert code == 0, f"{look}: {out[-3000:] if look[0] != 'dump' else ''}{err}"
        finally:
            stop.touch()
        print(f"{writer.stdout.readline().strip()} steps of the writer, {rounds} rounds")
    assert writer.returncode == 0
    assert errors(root) == []
    shutil.rmtree(root)


def test_describe_names_a_log_that_ends_below_its_recovery_point(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = make_log(tmp_path)
    checkpoint.update_offsets(path.parent, checkpoint.RECOVERY_POINTS, {("t", 0): 99})
    assert cli.main(["describe", "--json", str(path)]) == 1
    (facts,) = json.loads(capsys.readouterr().out)["partitions"]
    assert "below its recovery point 99" in facts["error"] or "recovery point 99" in facts["error"]
