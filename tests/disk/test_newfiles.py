"""New files in parts: whole and locked, and what a killed process leaves is told from what a living one writes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kstore.disk import newfiles
from kstore.disk.handles import ExistingFileError

KILLED = """
import os, signal, sys
from kstore.disk import newfiles
def parts():
    yield b"begun"
    os.kill(os.getpid(), signal.SIGKILL)
with newfiles.written(sys.argv[1], parts()):
    pass
"""


def test_parts_become_a_file_that_was_not_there(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with newfiles.written(str(path), [b"one, ", memoryview(b"two")]):
        path.rename(tmp_path / "renamed")
    assert (tmp_path / "renamed").read_bytes() == b"one, two"
    with pytest.raises(ExistingFileError), newfiles.written(str(tmp_path / "renamed"), [b"other"]):
        pass
    assert (tmp_path / "renamed").read_bytes() == b"one, two"


def test_nothing_is_left_when_the_parts_fail(tmp_path: Path) -> None:
    def parts() -> Iterator[bytes]:
        yield b"one"
        raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"), newfiles.written(str(tmp_path / "file"), parts()):
        pass
    assert not list(tmp_path.iterdir())


def test_a_file_that_is_being_written_is_no_leftover(tmp_path: Path) -> None:
    path = tmp_path / "file"

    def parts() -> Iterator[bytes]:
        yield b"one"
        assert not newfiles.remove_leftover(str(path))

    with newfiles.written(str(path), parts()):
        assert not newfiles.remove_leftover(str(path))
    assert path.read_bytes() == b"one"


def test_what_a_killed_process_has_left_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "file"
    subprocess.run([sys.executable, "-c", KILLED, path], check=False)
    assert path.read_bytes() == b"begun"
    assert newfiles.remove_leftover(str(path))
    assert not newfiles.remove_leftover(str(path))
    assert not list(tmp_path.iterdir())
