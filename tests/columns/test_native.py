"""The C of columns: its headers go together, and what has state is compiled once."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest

import kstore
from kstore.codec.compression import LIBRARIES, NAMES

C = Path(__file__).parents[2] / "kstore" / "c"
HEADERS = sorted(path.relative_to(C) for path in C.rglob("*.h"))


def compiler() -> list[str]:
    command = shlex.split(os.environ.get("CC", "cc"))
    if shutil.which(command[0]) is None:
        pytest.skip(f"there is no {command[0]}")
    return [*command, "-std=gnu11", "-fsyntax-only", "-Wall", "-Werror", "-Wno-unused-function", f"-I{C}",
            f"-I{sysconfig.get_path('include')}", "-x", "c", "-"]  # fmt: skip


@pytest.mark.parametrize("order", [HEADERS, HEADERS[::-1]], ids=["in order", "backwards"])
def test_all_headers_can_be_included_in_one_file(order: list[Path]) -> None:
    source = "".join(f'#include "{header}"\n' for header in [Path("Python.h"), *order])
    found = subprocess.run(compiler(), input=source, text=True, capture_output=True, check=False)
    assert found.returncode == 0, found.stderr


@pytest.mark.parametrize("header", HEADERS, ids=str)
def test_each_header_includes_what_it_needs(header: Path) -> None:
    found = subprocess.run(compiler(), input=f'#include "{header}"\n', text=True, capture_output=True, check=False)
    assert found.returncode == 0, found.stderr


def test_stats_say_which_library_each_codec_has(tmp_path: Path) -> None:
    with kstore.Log.open(tmp_path / "alone" / "events-0") as log, kstore.Store.open(tmp_path / "store") as store:
        assert log.stats()["libraries"] == store.stats()["libraries"] == LIBRARIES
    assert set(LIBRARIES) == {*NAMES} - {"none"}
    assert all(version[0].isdigit() for _, version in map(str.split, LIBRARIES.values()))
