"""The parsers of records in C compare lengths, not pointers: no pointer leaves the input, whatever its bytes say.

C does not define how a pointer beyond the input compares, and no sanitizer reports one that is not read. Here the
parsers are compiled as C++, with a pointer that checks each of its moves.
"""

from __future__ import annotations

import random
import re
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from tests.support.reference import record

C = Path(__file__).parents[2] / "kstore" / "c"
SUPPORT = Path(__file__).parents[1] / "support"
COMPILER = shutil.which("g++") or shutil.which("clang++")

MAIN = """
int main() {
    uint32_t size;
    long sound = 0, refused = 0;
    while (std::fread(&size, 4, 1, stdin) == 1) {
        std::vector<uint8_t> data(size);
        if (size && std::fread(data.data(), size, 1, stdin) != 1) return 5;
        const uint8_t *low = data.data();
        const Checked begin(low, low, low + size), end(low + size, low, low + size);
        ks_record r;
        (ks_parse_record(begin, end, &r) ? sound : refused)++;
        int32_t left = 100;
        ks_stamped found;
        ks_find_timestamp(begin, end, &left, 0, ~0ull, INT64_MAX, INT64_MAX, &found);
        uint64_t timestamp;
        int64_t delta;
        Checked p = begin, next;
        while ((next = ks_plain_record(p, end, &timestamp, &delta))) p = next;
    }
    std::printf("%ld %ld", sound, refused);
}
"""


def between(text: str, start: str, end: str) -> str:
    return text[text.index(start) : text.index(end)]


def checked(text: str) -> str:
    for jump in ("goto longer", "goto uncommon"):  # which C++ does not take: it crosses initializations
        text = text.replace(jump, "return NULL")
    text = re.sub(r"const uint8_t \*[^;()]*;", lambda found: found[0].replace(", *", ", "), text)
    return text.replace("const uint8_t *const ", "const Checked ").replace("const uint8_t *", "Checked ")


@pytest.fixture(scope="module")
def parsers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if COMPILER is None:
        pytest.skip("there is no C++ compiler")
    wire_h, record_h, cleaned_c = ((C / name).read_text() for name in ("wire.h", "record.h", "cleaned.c"))
    source = tmp_path_factory.mktemp("parsers") / "parsers.cpp"
    source.write_text(
        '#include "checked_pointers.hpp"\n#define KS_INLINE static inline\n'
        + checked(wire_h[wire_h.index("static inline uint64_t ks_zigzag") : wire_h.rindex("#endif")])
        + checked(between(record_h, "enum ks_fault", "KS_INLINE int64_t ks_short_size"))
        + checked(between(cleaned_c, "#define KS_READ_SHORTEST", "typedef struct {\n    const uint8_t *p, *run"))
        + MAIN
    )
    program = source.with_suffix("")
    flags = ["-std=c++17", "-O1", "-fpermissive", "-w", f"-I{SUPPORT}"]
    subprocess.run([COMPILER, *flags, str(source), "-o", str(program)], check=True)
    return program


def hostile(rng: random.Random) -> bytes:
    """A few records, most with a number in them that is another one."""
    out = b""
    for number in range(rng.randrange(1, 4)):
        key = rng.choice([None, b"", b"key", b"k" * 200])
        value = rng.choice([None, b"", b"v" * 9, b"v" * 70, b"v" * 20_000])
        headers = [(b"h", b"x")] * rng.choice([0, 0, 0, 2])
        out += record(1000 * number, number, key, value, headers)
    data = bytearray(out[: rng.choice([len(out), len(out), rng.randrange(len(out) + 1)])])
    for _ in range(rng.randrange(4)):
        if data:
            at = rng.randrange(min(len(data), 24))
            data[at : at + 3] = rng.choice(
                [b"\xff\xff\x7f", b"\xfe\xff\x7f", b"\x80\x80\x01", rng.randbytes(3), b"\x01"]
            )
    return bytes(data)


def test_no_pointer_of_a_record_parser_leaves_its_input(rng: random.Random, parsers: Path) -> None:
    inputs = [hostile(rng) for _ in range(3000)]
    packed = b"".join(struct.pack("=I", len(data)) + data for data in inputs)
    done = subprocess.run([parsers], input=packed, capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")
    sound, refused = map(int, done.stdout.split())
    assert sound + refused == len(inputs)
    assert 0 not in (sound, refused)
