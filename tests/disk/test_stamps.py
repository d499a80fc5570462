"""_stamps.pyx: which files and directories have changed."""

from __future__ import annotations

import os
import random
import threading
import time
from pathlib import Path

import pytest

from kstore.disk._stamps import Stamps

OLD = 1_700_000_000_000_000_000


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    """A directory and a file in it, both last changed long ago."""
    return make_pair(tmp_path / "p-0")


def make_pair(directory: Path) -> tuple[Path, Path]:
    directory.mkdir()
    file = directory / "0.log"
    file.write_bytes(b"a")
    for path in (file, directory):
        os.utime(path, ns=(OLD, OLD))
    return directory, file


def watching(pair: tuple[Path, Path]) -> Stamps[str]:
    stamps: Stamps[str] = Stamps()
    stamps.add("p", str(pair[0]), str(pair[1]))
    return stamps


def test_what_stands_still_is_not_told(pair: tuple[Path, Path]) -> None:
    stamps = watching(pair)
    assert [stamps.take_changed() for _ in range(3)] == [[], [], []]
    assert len(stamps) == 1


@pytest.mark.parametrize("change", ["grows", "time", "directory", "gone", "replaced"])
def test_a_change_is_told_once_and_then_watched_no_longer(pair: tuple[Path, Path], change: str) -> None:
    directory, file = pair
    stamps = watching(pair)
    if change == "grows":
        file.write_bytes(b"ab")
        os.utime(file, ns=(OLD, OLD))
    elif change == "time":
        os.utime(file, ns=(OLD, OLD + 1))
    elif change == "directory":
        os.utime(directory, ns=(OLD, OLD - 1))
    elif change == "gone":
        file.unlink()
        os.utime(directory, ns=(OLD, OLD))
    else:
        other = directory / "other"
        other.write_bytes(b"b")
        os.utime(other, ns=(OLD, OLD))
        other.rename(file)
        os.utime(directory, ns=(OLD, OLD))
    assert stamps.take_changed() == ["p"]
    assert stamps.take_changed() == []
    assert len(stamps) == 0


def test_what_changed_just_before_it_was_added_is_reported_as_changed(pair: tuple[Path, Path]) -> None:
    os.utime(pair[1], ns=(OLD, time.time_ns() + 10**9))
    stamps = watching(pair)
    assert stamps.take_changed() == ["p"]


def test_a_file_that_is_not_there_stands_still_until_it_comes(pair: tuple[Path, Path]) -> None:
    pair[1].unlink()
    os.utime(pair[0], ns=(OLD, OLD))
    stamps = watching(pair)
    assert stamps.take_changed() == []
    pair[1].write_bytes(b"")
    assert stamps.take_changed() == ["p"]


def test_a_key_that_is_added_again_has_the_new_paths_alone(pair: tuple[Path, Path], tmp_path: Path) -> None:
    stamps = watching(pair)
    other = make_pair(tmp_path / "p-1")
    stamps.add("p", str(other[0]), str(other[1]))
    pair[1].unlink()
    assert (stamps.take_changed(), len(stamps)) == ([], 1)
    other[1].unlink()
    assert stamps.take_changed() == ["p"]


def test_many_come_change_and_go_as_in_a_model(tmp_path: Path) -> None:
    rng = random.Random(7)
    pairs = [make_pair(tmp_path / f"p-{number}") for number in range(30)]
    stamps: Stamps[int] = Stamps()
    watched: set[int] = set()
    for _ in range(300):
        number = rng.randrange(30)
        what = rng.choice(("add", "remove", "change", "look"))
        if what == "add":
            stamps.add(number, str(pairs[number][0]), str(pairs[number][1]))
            watched.add(number)
        elif what == "remove":
            stamps.remove(number)
            watched.discard(number)
        elif what == "change" and number in watched:
            os.utime(pairs[number][1], ns=(OLD, pairs[number][1].stat().st_mtime_ns + 1))
            assert stamps.take_changed() == [number]
            watched.discard(number)
        else:
            assert stamps.take_changed() == []
        assert len(stamps) == len(watched)


def test_a_path_with_a_null_character_is_refused(tmp_path: Path) -> None:
    stamps: Stamps[str] = Stamps()
    with pytest.raises(ValueError, match="null character"):
        stamps.add("p", str(tmp_path), "a\0b")
    assert len(stamps) == 0


def test_threads_at_once_are_refused_or_served_and_nothing_breaks(tmp_path: Path) -> None:
    pairs = [make_pair(tmp_path / f"p-{number}") for number in range(50)]
    stamps: Stamps[int] = Stamps()

    def use() -> None:
        for turn in range(200):
            try:
                stamps.add(turn % 50, str(pairs[turn % 50][0]), str(pairs[turn % 50][1]))
                stamps.take_changed()
            except RuntimeError:
                pass

    threads = [threading.Thread(target=use) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(stamps) == 50
