"""CRC-32C: every implementation this machine has gives the same, on any length, from any address, in any pieces.

Each implementation is reached through a library that the fixture compiles from the header alone, with guard pages
behind the bytes. The oracle is the package `crc32c`.
"""

from __future__ import annotations

import ctypes
import mmap
import random
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

import crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kstore import _core

CHECK_VALUE = 0xE3069283
KNOWN = {
    b"": 0,
    b"123456789": CHECK_VALUE,
    b"Some String": 608512271,  # Crc32CTest.testValue
    bytes(32): 0x8A9136AA,  # these four: RFC 3720, B.4
    b"\xff" * 32: 0x62A8AB43,
    bytes(range(32)): 0x46DD794E,
    bytes(range(31, -1, -1)): 0x113FDB5C,
}
NAMES = ("table", "streams", "mixed", "fold")

# Lengths at which an implementation changes its ways, each with its neighbours: one chain or three streams (96), the
# longest streams (12288, twice), wide registers (384), their four at a time (256) and one at a time (64); both kinds
# beside one another (768), a step of them (224) and the most steps at once (19040).
BORDERS = sorted(
    {b * k + d for b in (8, 24, 64, 96, 224, 256, 384, 512, 768, 12288) for k in (1, 2, 3) for d in (-1, 0, 1)}
    | {19040 + more + d for more in (0, 224, 767, 768) for d in (-1, 0, 1)}
)

SOURCE = """
#include "crc32c.c"
uint32_t with(int k, uint32_t crc, const uint8_t *p, size_t n) { return ks_crc32c_with(k, crc, p, n); }
uint32_t best(uint32_t crc, const uint8_t *p, size_t n) { return ks_crc32c(crc, p, n); }
int present(int k) { return ks_crc32c_present(k); }
int is_best(int k) { return ks_crc32c_functions[k] == ks_crc32c_best; }
const char *name(int k) { return ks_crc32c_name(k); }
"""

Checksum = Callable[[int, int, int], int]  # crc, address, length

DATA = random.Random(20_260_101).randbytes(3 * 12288 + 64)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    compiler = shlex.split(sysconfig.get_config_var("CC") or "cc")
    if shutil.which(compiler[0]) is None:
        pytest.skip(f"no {compiler[0]} to compile the header with")
    folder = tmp_path_factory.mktemp("crc32c")
    (folder / "door.c").write_text(SOURCE)
    sources = Path(__file__).parents[2] / "kstore" / "c"  # a build has no .c files
    subprocess.run(
        [*compiler, "-O2", "-shared", "-fPIC", f"-I{sources}", "-o", folder / "door.so", folder / "door.c"], check=True
    )
    door = ctypes.CDLL(str(folder / "door.so"))
    door.with_ = door["with"]
    door.with_.argtypes = [ctypes.c_int, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_size_t]
    door.best.argtypes = [ctypes.c_uint32, ctypes.c_void_p, ctypes.c_size_t]
    door.with_.restype = door.best.restype = ctypes.c_uint32
    door.name.restype = ctypes.c_char_p
    return door


@pytest.fixture(params=range(len(NAMES)), ids=NAMES)
def checksum(library: ctypes.CDLL, request: pytest.FixtureRequest) -> Checksum:
    number: int = request.param
    assert library.name(number).decode() == NAMES[number]
    if not library.present(number):
        pytest.skip("not on this machine")
    return lambda crc, address, length: library.with_(number, crc, address, length)


class Guarded:
    """Bytes that end where memory ends: reading one byte more is a fault."""

    def __init__(self, size: int) -> None:
        page = mmap.PAGESIZE
        self.pages = -(-size // page) * page
        self.map = mmap.mmap(-1, self.pages + page)
        self.start = ctypes.addressof(ctypes.c_char.from_buffer(self.map))
        libc = ctypes.CDLL(None, use_errno=True)
        assert libc.mprotect(ctypes.c_void_p(self.start + self.pages), page, 0) == 0

    def put(self, data: bytes) -> int:
        """The address of a copy of `data` that ends at the guard."""
        self.map[self.pages - len(data) : self.pages] = data
        return self.start + self.pages - len(data)


@pytest.fixture(scope="module")
def guarded() -> Guarded:
    return Guarded(len(DATA))


@pytest.mark.parametrize(("data", "expected"), KNOWN.items(), ids=range(len(KNOWN)))
def test_known_values(checksum: Checksum, guarded: Guarded, data: bytes, expected: int) -> None:
    """Crc32CTest.testValue."""
    assert checksum(0, guarded.put(data), len(data)) == expected
    assert _core.crc32c(data) == expected


def test_every_length_up_to_two_thousand_agrees_and_reads_no_byte_behind_its_end(
    checksum: Checksum, guarded: Guarded
) -> None:
    for length in range(2000):
        data = DATA[:length]
        assert checksum(0, guarded.put(data), length) == crc32c.crc32c(data), length


@pytest.mark.parametrize("length", [n for n in BORDERS if n > 0])
def test_lengths_where_the_work_is_cut_otherwise_agree_from_any_address(
    checksum: Checksum, guarded: Guarded, length: int
) -> None:
    address = guarded.put(DATA)
    for shift in (0, 1, 7, 8, 63):
        assert checksum(length, address + shift, length) == crc32c.crc32c(DATA[shift : shift + length], length)


@pytest.mark.parametrize("length", [1, 95, 96, 97, 383, 384, 700, 13_000])
def test_a_checksum_goes_on_from_any_split(checksum: Checksum, guarded: Guarded, length: int) -> None:
    address = guarded.put(DATA[:length])
    whole = crc32c.crc32c(DATA[:length])
    for split in {0, 1, length // 3, length - 1, length, *range(0, length, 61)}:
        first = checksum(0, address, split)
        assert checksum(first, address + split, length - split) == whole


def test_a_checksum_byte_by_byte_is_that_of_the_whole(checksum: Checksum, guarded: Guarded) -> None:
    """Crc32CTest.testUpdate."""
    data = b"Any String you want"
    address, crc = guarded.put(data), 0
    for at in range(len(data)):
        crc = checksum(crc, address + at, 1)
    assert crc == crc32c.crc32c(data)


def test_the_last_implementation_present_is_the_one_in_use(library: ctypes.CDLL) -> None:
    present = [number for number in range(len(NAMES)) if library.present(number)]
    assert 0 in present
    assert [number for number in range(len(NAMES)) if library.is_best(number)] == present[-1:]


@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc/cpuinfo")
def test_what_the_processor_offers_is_used(library: ctypes.CDLL) -> None:
    words = set(Path("/proc/cpuinfo").read_text().split())
    if "GenuineIntel" in words or "AuthenticAMD" in words:
        assert bool(library.present(1)) == ({"sse4_2", "pclmulqdq"} <= words)
        assert bool(library.present(2)) == ({"sse4_2", "pclmulqdq", "avx2", "vpclmulqdq"} <= words)
        assert bool(library.present(3)) == ({"sse4_2", "pclmulqdq", "avx512f", "vpclmulqdq"} <= words)
    elif "crc32" in words:
        assert library.present(1)


@given(data=st.binary(max_size=1500), value=st.integers(0, 2**32 - 1))
def test_the_door_agrees_with_the_oracle(data: bytes, value: int) -> None:
    assert _core.crc32c(data) == crc32c.crc32c(data)
    assert _core.crc32c(data, value) == crc32c.crc32c(data, value)


@pytest.mark.parametrize("kind", [bytearray, memoryview, lambda data: memoryview(data)[1:-1]])
@pytest.mark.parametrize("length", [3, 200, 70_000])
def test_the_door_takes_any_contiguous_buffer(kind: Callable[[bytes], bytes], length: int) -> None:
    data = kind(random.Random(length).randbytes(length))
    assert _core.crc32c(data) == crc32c.crc32c(bytes(data))


@pytest.mark.parametrize("wrong", ["text", 7, None, memoryview(b"abcdef")[::2]])
def test_the_door_refuses_what_is_no_contiguous_buffer(wrong: object) -> None:
    with pytest.raises((TypeError, BufferError)):
        _core.crc32c(wrong)  # type: ignore[arg-type]
