"""Restores of damaged and hostile backups, and restores that are stopped: a clear error, or the whole store."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import kstore
from kstore._core import crc32c
from kstore.disk import fs
from kstore.errors import BackupError, KStoreError, StorageError
from kstore.objects import backup_rounds, object_keys
from tests.conftest import ManualClock
from tests.support.backedup import SETTINGS, Picture, World, picture, picture_of
from tests.support.handmade import HandmadeBackup

pytestmark = pytest.mark.usefixtures("no_syncs")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Picture]:
    """A backup of a store that had all kinds of changes, and the picture of that store."""
    path = tmp_path_factory.mktemp("made")
    clock = ManualClock()
    world = World(path / "data", random.Random(17), clock)
    backup = HandmadeBackup(path / "backup", catalog_every=3)
    for _ in range(80):
        world.step()
    for _ in range(5):
        world.step()
        backup.round(world.store, clock.now)
        was = picture(world.store)
    world.close()
    return backup.path, was


@pytest.fixture(scope="module")
def made_at(made: tuple[Path, Picture]) -> Path:
    """Where the backup is."""
    return made[0]


def tree(path: Path) -> dict[str, bytes | None]:
    return {str(at.relative_to(path)): at.read_bytes() if at.is_file() else None for at in path.rglob("*")}


# --- damage -----------------------------------------------------------------------------------------------------------


def damages(data: bytes, rng: random.Random) -> dict[str, bytes | None]:
    at = rng.randrange(len(data)) if data else 0
    flipped = data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :] if data else b"x"
    return {"missing": None, "a flipped bit": flipped, "cut short": data[:at], "empty": b"", "another": data[::-1]}


def failure_of(path: Path, into: Path) -> KStoreError | None:
    """Restore a backup, and look at what is there then; the error, None without one."""
    try:
        kstore.restore(str(path), into)
        kstore.Store.open(into, "r").close()
    except KStoreError as error:
        return error
    return None


def test_each_object_that_is_missing_or_altered_is_named_or_not_needed(
    made: tuple[Path, Picture], tmp_path: Path, rng: random.Random
) -> None:
    path = tmp_path / "backup"
    shutil.copytree(made[0], path)
    refused = 0
    objects = sorted(file for file in path.rglob("*") if file.is_file())
    for number, file in enumerate(objects):
        data = file.read_bytes()
        ways = damages(data, rng)
        for way in rng.sample(sorted(ways), 2):
            damaged = ways[way]
            if damaged == data:
                continue
            file.unlink() if damaged is None else file.write_bytes(damaged)
            into = tmp_path / f"restored-{number}-{way}"
            key = str(file.relative_to(path))
            error = failure_of(path, into)
            if error is None:
                assert picture_of(into).unlike(made[1]) == [], (key, way)
            else:
                assert isinstance(error, BackupError)
                assert key in str(error), way
                refused += 1
                if into.exists():
                    with pytest.raises(StorageError, match="not finished"):
                        kstore.Store.open(into)
            file.write_bytes(data)
            shutil.rmtree(into, ignore_errors=True)
    assert refused > len(objects) / 4


def test_what_was_stopped_by_an_altered_object_goes_on_once_it_is_back(
    made: tuple[Path, Picture], tmp_path: Path
) -> None:
    path, into = tmp_path / "backup", tmp_path / "restored"
    shutil.copytree(made[0], path)
    file = max(path.rglob("*.log"), key=lambda file: file.stat().st_size)
    data = file.read_bytes()
    file.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(BackupError, match=r"of CRC 0x\w+ from byte 0 on; the backup says 0x\w+: it was altered"):
        kstore.restore(str(path), into)
    file.write_bytes(data[:-1])
    with pytest.raises(BackupError, match=rf"has {len(data) - 1} bytes from byte 0 on; {len(data)} are needed"):
        kstore.restore(str(path), into)
    file.write_bytes(data)
    kstore.restore(str(path), into)
    assert picture_of(into).unlike(made[1]) == []


# --- hostile backups --------------------------------------------------------------------------------------------------

JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.sampled_from([2**31, 2**63 - 1, 2**63, 2**64, -(2**63), 10**40, 1.5]),
    st.sampled_from(
        ["", ".", "..", "../../etc", "/etc/passwd", "t/../..", "a\0b", "x" * 300, "\ud800", "__cluster_metadata"]
    ),
    st.lists(st.integers(0, 9), max_size=3),
    st.dictionaries(st.sampled_from(["topic", "..", "x"]), st.integers(0, 2), max_size=2),
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The place of each value inside of a value of JSON."""
    found = [path] if path else []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        found += places(item, (*path, key))
    return found


def with_changed(value: Any, data: st.DataObject) -> Any:
    """The value with something else in one place, or under another name."""
    path, junk = data.draw(st.sampled_from(places(value))), data.draw(JUNK)
    at = value
    for key in path[:-1]:
        at = at[key]
    if isinstance(at, dict) and data.draw(st.booleans()):
        at[str(junk)] = at.pop(path[-1])
    else:
        at[path[-1]] = junk
    return value


@given(data=st.data())
@settings(suppress_health_check=list(HealthCheck))
def test_whatever_a_backup_says_nothing_outside_of_the_directory_is_written(
    made_at: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    outer = tmp_path_factory.mktemp("hostile")
    path = outer / "backup"
    shutil.copytree(made_at, path, copy_function=os.link)
    which = data.draw(
        st.sampled_from(
            [object_keys.MANIFEST, object_keys.catalog_key(3), object_keys.round_key(4), object_keys.round_key(5)]
        )
    )
    file = path / which
    whole = file.read_bytes()
    file.unlink()
    if which == object_keys.MANIFEST:
        fields = json.loads(whole)
        changed = with_changed(fields, data)
        file.write_bytes(json.dumps(changed).encode())
    else:
        file.write_bytes(altered(which, whole, data))
    into = outer / "in" / "restored"
    before = tree(outer)
    assert isinstance(failure_of(path, into), BackupError | StorageError | None)
    inside = f"{into.relative_to(outer)}"
    after = {name: found for name, found in tree(outer).items() if name != "in" and not name.startswith(inside)}
    assert after == before
    shutil.rmtree(outer)


def altered(which: str, whole: bytes, data: st.DataObject) -> bytes:
    """A round or catalog with one value of its header changed, and sound checksums."""
    magic, length, _ = backup_rounds.PREFIX.unpack_from(whole)
    packed = whole[backup_rounds.PREFIX.size : backup_rounds.PREFIX.size + length]
    if which.endswith(object_keys.CATALOG):
        from kstore.codec import compression

        packed = bytes(compression.decompress(4, packed, limit=1 << 30))
    fields = json.loads(packed)
    changed = with_changed(fields, data)
    encoded = json.dumps(changed).encode()
    if which.endswith(object_keys.CATALOG):
        encoded = compression.compress(4, encoded)
    return (
        backup_rounds.PREFIX.pack(magic, len(encoded), crc32c(encoded))
        + encoded
        + whole[backup_rounds.PREFIX.size + length :]
    )


def test_links_inside_of_the_directory_are_not_followed(made: tuple[Path, Picture], tmp_path: Path) -> None:
    def stop(done: int, total: int) -> None:
        raise InterruptedError

    into, elsewhere = tmp_path / "restored", tmp_path / "elsewhere"
    elsewhere.mkdir()
    for place in ("plain-0", "plain-0/leader-epoch-checkpoint.tmp", "notes", "kstore-topics.json.tmp", "log"):
        shutil.rmtree(into, ignore_errors=True)
        with pytest.raises(InterruptedError):
            kstore.restore(str(made[0]), into, progress=stop)
        if place == "plain-0":
            shutil.rmtree(into / place)
        elif place == "log":
            place = f"plain-0/{next((into / 'plain-0').glob('*.log'), Path(f'{0:020d}.log')).name}"
            (into / place).unlink(missing_ok=True)
            (elsewhere / "file").write_bytes(b"mine")
        (into / place).symlink_to(elsewhere / "file" if place.endswith(".log") else elsewhere)
        before = tree(elsewhere)
        if place.endswith("checkpoint.tmp"):
            kstore.restore(str(made[0]), into)  # a file of this name is removed and never written to
        else:
            with pytest.raises((BackupError, StorageError)):
                kstore.restore(str(made[0]), into)
        assert tree(elsewhere) == before


# --- stopped ----------------------------------------------------------------------------------------------------------

CALLS = (
    "pwrite",
    "fsync",
    "rename",
    "unlink",
    "truncate",
    "make_directory",
    "set_modified",
    "write_file",
    "sync_directory",
)


def dies_at(number: int, restore: Callable[[], object]) -> int | None:
    """Restore in a process that ends before its change of that number; how many there were if it did not."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            left = number

            def counted(call: Callable[..., Any]) -> Callable[..., Any]:
                def do(*arguments: Any, **options: Any) -> Any:
                    nonlocal left
                    if left == 0:
                        os._exit(9)
                    left -= 1
                    return call(*arguments, **options)

                return do

            for name in CALLS:
                setattr(fs, name, counted(getattr(fs, name)))
            restore()
            os.write(writing, b"%d" % (number - left))
            status = 0
        finally:
            os._exit(status)
    os.close(writing)
    with os.fdopen(reading, "rb") as told:
        said = told.read()
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) in (0, 9)
    return int(said) if said else None


def test_a_restore_that_is_killed_at_any_step_is_refused_by_stores_and_goes_on(
    made: tuple[Path, Picture], tmp_path: Path, rng: random.Random
) -> None:
    def restore(into: Path) -> kstore.Restored:
        return kstore.restore(str(made[0]), into, threads=1)

    total = dies_at(10**9, lambda: restore(tmp_path / "whole"))
    assert total is not None
    assert total > 100
    whole = picture_of(tmp_path / "whole")
    assert whole.unlike(made[1]) == []
    for number in sorted({*range(8), *range(total - 4, total), *rng.sample(range(total), 10)}):
        into = tmp_path / f"killed-{number}"
        assert dies_at(number, lambda into=into: restore(into)) is None
        if into.exists() and not (into / "kstore-restore.json").exists():
            # Not begun, or done but for the last sync.
            left = {path.name for path in into.iterdir()} - {".lock", "kstore-restore.json.tmp"}
            if left:
                assert picture_of(into).unlike(made[1]) == []
                continue
        elif into.exists():
            with pytest.raises(StorageError, match="not finished"):
                kstore.Store.open(into, background=False, **SETTINGS)
            again = rng.randrange(total)  # and once more on the way
            dies_at(again, lambda into=into: restore(into))
        if (into / "kstore-restore.json").exists() or not (into / "plain-0").exists():
            restore(into)
        assert picture_of(into).unlike(made[1]) == []
        shutil.rmtree(into)
