"""How fast is CRC-32C from Python, call included? One byte string of 150 bytes, 1 KiB, 16 KiB and 1 MiB.

And how fast is each implementation in it, whichever this machine uses? Called through ctypes, which costs about
a microsecond: one byte string of 16 KiB and of 1 MiB.
"""

from __future__ import annotations

import ctypes
import random
import shlex
import subprocess
import sysconfig
from collections import deque
from collections.abc import Callable
from itertools import repeat
from pathlib import Path

import crc32c
import google_crc32c
import pytest
from common import KIB, MIB, Question, measure
from pytest_benchmark.fixture import BenchmarkFixture

import kstore
from kstore import _core

SIZES = {"150 bytes": 150, "1 KiB": KIB, "16 KiB": 16 * KIB, "1 MiB": MIB}
CONTESTANTS: dict[str, Callable[[bytes], int]] = {
    "kstore": _core.crc32c,
    "crc32c": crc32c.crc32c,
    "google-crc32c": google_crc32c.value,
}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("contestant", CONTESTANTS)
def test_crc32c(benchmark: BenchmarkFixture, contestant: str, size: str) -> None:
    least = {150: 3.0, MIB: 1.0}.get(SIZES[size])
    against = tuple((peer, least) for peer in ("crc32c", "google-crc32c")) if least else ()
    question = Question(f"CRC-32C of {size}", "bytes", None, against)
    data = random.Random(1).randbytes(SIZES[size])
    calls = max(200, 20_000_000 // (SIZES[size] + 500))

    def run() -> None:  # map and deque call at C speed: a loop in Python would cost as much as the checksum
        deque(map(CONTESTANTS[contestant], repeat(data, calls)), maxlen=0)

    measure(benchmark, question, contestant, run, operations=calls, size_bytes=calls * len(data), rounds=9)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The file in C, compiled as setup.py compiles it."""
    folder = tmp_path_factory.mktemp("crc32c")
    (folder / "door.c").write_text(
        '#include "crc32c.h"\n'
        "int present(int k) { return ks_crc32c_present(k); }\n"
        "uint32_t run(int k, uint32_t crc, const uint8_t *p, size_t n) { return ks_crc32c_with(k, crc, p, n); }\n"
    )
    compiler = shlex.split(sysconfig.get_config_var("CC") or "cc")
    ours = Path(kstore.__file__).parent / "c"
    command = [*compiler, "-O3", "-shared", "-fPIC", f"-I{ours}", "-o", folder / "door.so"]
    subprocess.run([*command, folder / "door.c", ours / "crc32c.c"], check=True)
    door = ctypes.CDLL(str(folder / "door.so"))
    door.run.argtypes = [ctypes.c_int, ctypes.c_uint32, ctypes.c_char_p, ctypes.c_size_t]
    door.run.restype = ctypes.c_uint32
    return door


@pytest.mark.parametrize("size", ["16 KiB", "1 MiB"])
@pytest.mark.parametrize(("number", "name"), list(enumerate(("table", "streams", "mixed", "fold"))))
def test_implementation(benchmark: BenchmarkFixture, library: ctypes.CDLL, number: int, name: str, size: str) -> None:
    if not library.present(number):
        pytest.skip("not on this machine")
    data = random.Random(1).randbytes(SIZES[size])
    calls = max(20, (2_000_000 if name == "table" else 100_000_000) // SIZES[size])
    assert library.run(number, 0, data, len(data)) == _core.crc32c(data)

    def run() -> None:
        for _ in range(calls):
            library.run(number, 0, data, len(data))

    question = Question(f"CRC-32C of {size}, by implementation", "bytes")
    measure(benchmark, question, name, run, operations=calls, size_bytes=calls * len(data), rounds=9)
