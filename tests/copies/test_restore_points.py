"""Restores of backups that `kstore.backup` makes: every round is a point to which a store can be restored."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import pytest

import kstore
from kstore.copies.backups import backup_writer, finish_restore
from kstore.copies.backups.backup import Backup
from kstore.copies.backups.backup_source import StoreSource
from kstore.errors import BackupError
from tests.conftest import ManualClock
from tests.support.backedup import PASSING, World, picture, picture_of
from tests.support.verifying import unsound

pytestmark = pytest.mark.usefixtures("no_syncs")

STEPS = 100
WINDOW_SECONDS = 3600


def backup_of(world: World, path: Path, *, window: float = WINDOW_SECONDS) -> Backup:
    source = StoreSource(world.store)
    return Backup(source, str(path), every=1, window=window, options=None, clock=world.clock, background=False)


def test_a_log_that_ends_in_the_gap_of_a_truncation_is_sound_when_restored(tmp_path: Path, clock: ManualClock) -> None:
    """SEMANTICS 11.4. The restored log goes on where the source would; between two segments the gap is written down."""
    world = World(tmp_path / "data", random.Random(1), clock)
    log = world.store.log(PASSING, 0)
    with backup_of(world, tmp_path / "backup") as backup:
        for first in (0, 100):
            log.truncate_fully_and_start_at(first)
            log.append(b"x")
            for end in (first + 5, first + 8):
                log.append_many([b"a"] * 10)
                log.truncate_to(end)
                backup.flush()
                into = tmp_path / f"restored-{end}"
                kstore.restore(backup.url, into)
                assert unsound(into) == []
                assert picture_of(into).partitions[PASSING, 0].end == end
                with kstore.Store.open(into, background=False) as store:
                    assert store.append(PASSING, b"more", partition=0).offset == end
                assert unsound(into) == []
            log.roll()
    world.close()


def test_each_round_is_restored_as_the_store_was(tmp_path: Path, rng: random.Random, clock: ManualClock) -> None:
    world = World(tmp_path / "data", rng, clock)
    pictures = {}
    with backup_of(world, tmp_path / "backup", window=86400) as backup:
        for _ in range(STEPS):
            world.step()
            if rng.random() < 0.3 or not pictures:
                backup.flush()
                pictures[backup._writer.manifest.time_ms] = picture(world.store)
            clock.advance(10)
    world.close()
    for time_ms in rng.sample(sorted(pictures), min(5, len(pictures))):
        into = tmp_path / f"restored-{time_ms}"
        assert kstore.restore(backup.url, into, until=time_ms).time_ms == time_ms
        assert picture_of(into).unlike(pictures[time_ms]) == []


def test_rounds_before_the_window_are_refused_and_those_in_it_restored(
    tmp_path: Path, rng: random.Random, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backup_writer, "ROUNDS_PER_CATALOG", 3)
    world = World(tmp_path / "data", rng, clock)
    ends: dict[int, int] = {}
    log = world.store.log("plain", 0)
    with backup_of(world, tmp_path / "backup") as backup:
        for turn in range(40):
            log.append(b"%d" % turn * 30)
            backup.flush()
            ends[backup._writer.manifest.time_ms] = log.log_end_offset
            clock.advance(WINDOW_SECONDS * 100)  # ten turns are a window
        oldest_ms = backup._writer.manifest.catalogs[0].time_ms
    world.close()
    assert sorted(ends)[0] < oldest_ms <= clock.now - WINDOW_SECONDS * 1000
    for number, (time_ms, end) in enumerate(ends.items()):
        if time_ms < oldest_ms:
            with pytest.raises(BackupError, match=r"cannot be restored to .*every time is kept from"):
                kstore.restore(backup.url, tmp_path / "none", until=time_ms)
        else:
            done = kstore.restore(backup.url, tmp_path / f"restored-{number}", until=time_ms)
            assert done.partitions["plain", 0].log_end_offset == end
    assert not (tmp_path / "none").exists()


def test_each_time_is_restored_or_refused_with_the_earliest_from_which_all_are(
    tmp_path: Path, rng: random.Random, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backup_writer, "ROUNDS_PER_CATALOG", 7)
    world = World(tmp_path / "data", rng, clock)
    pictures = {}
    with backup_of(world, tmp_path / "backup") as backup:
        for _ in range(60):
            for _ in range(4):
                world.step()
            world.store.compact("table", roll=True)
            backup.flush()
            pictures[backup._writer.manifest.time_ms] = picture(world.store)
            clock.advance(rng.randrange(WINDOW_SECONDS * 200))
    kept_from_ms = backup._writer.manifest.kept_from_ms
    now = clock.now
    world.close()
    promised = next(time_ms for time_ms in pictures if time_ms >= now - WINDOW_SECONDS * 1000)
    assert min(pictures) < kept_from_ms <= now - WINDOW_SECONDS * 1000
    named = {time_ms: refusal(backup.url, tmp_path, time_ms) for time_ms in pictures}
    [earliest] = {time_ms for time_ms in named.values() if time_ms is not None}
    assert kept_from_ms <= earliest <= promised
    assert all(time_ms < earliest for time_ms, found in named.items() if found is not None)
    restored = [time_ms for time_ms, found in named.items() if found is None]
    for time_ms in rng.sample(restored, min(len(restored), 10)):
        assert picture_of(tmp_path / f"restored-{time_ms}").unlike(pictures[time_ms]) == []


def refusal(url: str, path: Path, time_ms: int) -> int | None:
    """The earliest time from which on all are kept, if a time is refused; None if it is restored to."""
    into = path / f"restored-{time_ms}"
    try:
        assert kstore.restore(url, into, until=time_ms).time_ms == time_ms
    except BackupError as error:
        with pytest.raises(BackupError, match=re.escape(str(error))):
            kstore.restore(url, into, until=time_ms, dry_run=True)
        assert not into.exists()
        [earliest] = re.findall(r"every time is kept from 2023-.*Z on \((\d+) ms\)", str(error))
        return int(earliest)
    return None


def test_a_restore_whose_window_passes_while_it_runs_says_so(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path / "data", random.Random(0), clock)
    with backup_of(world, tmp_path / "backup") as backup:
        for _ in range(10):
            world.update_table()
        backup.flush()
        time_ms = backup._writer.manifest.time_ms
        make_directories = finish_restore.make_directories

        def the_window_passes(*arguments: Any) -> None:
            make_directories(*arguments)
            for _ in range(3):
                clock.advance(WINDOW_SECONDS * 2000)
                world.update_table()
                world.store.compact("table", roll=True)
                backup.flush()

        monkeypatch.setattr(finish_restore, "make_directories", the_window_passes)
        with pytest.raises(
            BackupError, match=r"round \d+ of .* is no longer kept: the restore window of 2023-11-14T22"
        ):
            kstore.restore(backup.url, tmp_path / "restored", until=time_ms)
    world.close()


def test_a_position_in_a_gap_at_the_end_comes_down_with_the_log(tmp_path: Path, clock: ManualClock) -> None:
    world = World(tmp_path / "data", random.Random(0), clock)
    log = world.store.log("passing", 0)
    log.append_many([b"1"])
    log.truncate_fully_and_start_at(1)
    log.append(b"2")
    with backup_of(world, tmp_path / "backup") as backup:
        log.append_many([b"3", b"4"])
        log.truncate_to(3)  # inside of the batch: the log ends behind a gap
        backup.flush()
        log.truncate_to(2)
        backup.flush()
    world.close()
    done = kstore.restore(backup.url, tmp_path / "restored")
    assert done.partitions["passing", 0][:2] == (1, 2)
