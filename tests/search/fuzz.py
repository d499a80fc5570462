"""Coverage-guided fuzzing of every parser: `make fuzz`.

    python tests/search/fuzz.py run TARGET DIRECTORY [-libfuzzer_option=...]   fuzz one target; DIRECTORY has inputs
    python tests/search/fuzz.py keep TARGET DIRECTORY                          make these the kept corpus

libFuzzer sees which branches of the compiled modules an input reaches (they are built with clang for that), and which
lines of kstore's Python. What fails is written to a file beside DIRECTORY, and is to become a line of the corpus and a
test that says what was wrong.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import kstore
from tests.search import fuzzing

PACKAGE = str(Path(kstore.__file__).parent)
LINES = 65_536


def traced(lines: Any) -> Any:
    """A trace function that counts lines of kstore in the fuzzer's table."""
    offsets: dict[CodeType, int] = {}

    def count(frame: FrameType, event: str, _: object) -> Any:
        if event == "line":
            at = (offsets[frame.f_code] + frame.f_lineno) % LINES
            lines[at] = min(lines[at] + 1, 255)
        return count

    def enter(frame: FrameType, event: str, _: object) -> Any:
        code = frame.f_code
        if code not in offsets:
            if not code.co_filename.startswith(PACKAGE):
                return None
            offsets[code] = hash(code.co_filename) % LINES
        return count

    return enter


def run(target: str, arguments: list[str]) -> int:
    driver = ctypes.CDLL(os.environ["KSTORE_FUZZER"], ctypes.RTLD_GLOBAL)
    take = fuzzing.TARGETS[target]

    def call(data: Any, size: int) -> int:
        try:
            take(ctypes.string_at(data, size))
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
            os.abort()  # libFuzzer writes down the input
        return 0

    received = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t)(call)
    given = [b"fuzz", *(argument.encode() for argument in arguments)]
    argv = (ctypes.c_char_p * (len(given) + 1))(*given, None)
    sys.settrace(traced((ctypes.c_uint8 * LINES).in_dll(driver, "ks_lines")))
    try:
        return int(driver.ks_fuzz(len(given), argv, received))
    finally:
        sys.settrace(None)


def seeds(target: str, directory: Path) -> None:
    """Put the kept corpus where the fuzzer looks for inputs."""
    directory.mkdir(parents=True, exist_ok=True)
    for number, data in enumerate(fuzzing.corpus(target)):
        (directory / f"kept-{number}").write_bytes(data)


def keep(target: str, directory: Path) -> None:
    """Make the inputs in a directory the kept corpus: by size, each that reaches something new, while there is room."""
    found = sorted({path.read_bytes(): path for path in directory.iterdir()}.items(), key=lambda each: len(each[0]))
    with tempfile.TemporaryDirectory() as scratch:
        control = Path(scratch) / "control"
        names = [str(path) for _, path in found]
        control.write_text("\n".join([str(len(names)), "0", *names]) + "\n")
        inner = [sys.executable, "-P", __file__, "run", target, str(directory), "-merge_inner=1"]
        subprocess.run([*inner, f"-merge_control_file={control}"], check=False)
        told = [line.split() for line in control.read_text().splitlines()[len(names) + 2 :]]
    features = {int(line[1]): set(line[2:]) for line in told if line and line[0] == "FT"}
    reached: set[str] = set()
    kept, room = [], fuzzing.KEPT_BYTES
    for number, (data, _) in enumerate(found):
        if data and len(data) <= room and not features.get(number, set()) <= reached:
            reached |= features[number]
            room -= len(data)
            kept.append(data.hex())
    (fuzzing.CORPUS / f"{target}.hex").write_text("\n".join(kept) + "\n")
    everything = set().union(*features.values())
    print(f"{target}: {len(kept)} of {len(found)} inputs kept; they reach {len(reached)} of {len(everything)} features")


def main(what: str, target: str, directory: str, *options: str) -> int:
    if what == "keep":
        keep(target, Path(directory))
        return 0
    seeds(target, Path(directory))
    return run(target, [directory, *options])


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
