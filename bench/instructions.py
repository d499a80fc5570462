"""Has a hot path become dearer? `make instructions` counts the instructions of each record or call, without a clock.

`callgrind.py` says how they are counted. Instructions do not depend on how busy the machine is, nor on its processor:
valgrind has one of its own, without AVX-512, whose choice of CRC-32C and decoders is so the same wherever the real one
knows AVX2. The clock of the logs stands still, so no housekeeping comes between, and all is done on one thread.

`instructions.json` has the last known counts and where they were counted. What was built by another compiler, or runs
in another Python, beside another libc or NumPy, has other counts for reasons that are none: there the comparison is
printed, and nothing fails. Where all of it is the same, a path that takes more than 3 % more fails. After a change that
explains it: `make instructions-keep`, and commit the file with the change.
"""

from __future__ import annotations

import json
import platform
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import callgrind
import numpy as np
from callgrind import Counted

import kstore
from kstore import _core
from kstore.files.index_file import OffsetIndex
from kstore.log.compaction._cleaned_transactions import CleanedTransactions
from kstore.log.compaction._newest_records import NewestRecords
from kstore.tools.check.verify import verify

KNOWN = Path(__file__).with_suffix(".json")
TOLERANCE = 0.03
START_MS = 1_700_000_000_000
KIB, MIB = 1 << 10, 1 << 20
RECORDS = 20_000

# --- the paths --------------------------------------------------------------------------------------------------------


def opened(name: str, **settings: Any) -> kstore.Log:
    return kstore.Log.open(f"{name}-0", clock=lambda: START_MS, **settings)


def calls(function: Callable[[], object]) -> Callable[[int], object]:
    def run(count: int) -> None:
        for _ in range(count):
            function()

    return run


def paths() -> dict[str, Counted]:
    """The paths by name, in the order in which they are counted."""
    return {**writing(), **reading(), **upkeep()}


def writing() -> dict[str, Counted]:
    rng = random.Random(5)
    value = rng.randbytes(100)
    pairs = [(rng.randbytes(16), value) for _ in range(RECORDS)]
    values = np.frombuffer(rng.randbytes(100 * RECORDS), np.uint8).reshape(RECORDS, 100)
    varied = [None if rng.random() < 0.1 else rng.randbytes(rng.randrange(60, 140)) for _ in range(RECORDS)]
    rising = START_MS + np.cumsum(np.random.default_rng(5).integers(0, 4, RECORDS))
    batch = kstore.encode_batch([(None, value, START_MS, None)] * (16 * KIB // 114))
    one, many, columns, rows, ready = (opened(f"to-{name}") for name in ("one", "many", "columns", "rows", "ready"))
    store = kstore.Store.open("store", background=False, clock=lambda: START_MS)
    store.create_topic("topic", 16)
    return {
        "append, a call": (5_000, calls(lambda: one.append(value))),
        "append_many of pairs, a record": (RECORDS, lambda count: many.append_many(pairs[:count])),
        "Store.append_many of pairs over 16 partitions, a record": (
            RECORDS,
            lambda count: store.append_many("topic", pairs[:count]),
        ),
        "append_columns, one time, one length, a record": (
            RECORDS,
            lambda count: columns.append_columns(values[:count], timestamps=START_MS, threads=1),
        ),
        "append_columns, rising times, many lengths, nulls, a record": (
            RECORDS,
            lambda count: rows.append_columns(varied[:count], timestamps=rising[:count], threads=1),
        ),
        "append_batch of 16 KiB, a call": (300, calls(lambda: ready.append_batch(batch))),
    }


def reading() -> dict[str, Counted]:
    value = random.Random(6).randbytes(100)
    log = opened("from")
    log.append_many(((None, value, START_MS + number, None) for number in range(RECORDS)), batch_bytes=16 * KIB)
    log.flush()
    times = [START_MS + number * 7_919 % RECORDS for number in range(1_000)]

    def rows(count: int) -> None:
        for record in log.read(0, end_offset=count):
            record.value  # noqa: B018

    def by_time(count: int) -> None:
        for timestamp in times[:count]:
            log.offset_for_timestamp(timestamp)

    index = b"".join(b"%b%b" % ((n * 42).to_bytes(4, "big"), (n * 1600).to_bytes(4, "big")) for n in range(1, 100_001))
    Path("00000000000000000000.index").write_bytes(index)
    lookup = OffsetIndex(Path("00000000000000000000.index"), 0, len(index)).lookup
    targets = random.Random(7).choices(range(100_000 * 42), k=20_000)

    def by_offset(count: int) -> None:
        for target in targets[:count]:
            lookup(target)

    return {
        "read, .value taken, a record": (RECORDS, rows),
        "read_columns, a record": (RECORDS, lambda count: log.read_columns(0, end_offset=count, threads=1)),
        "offset_for_timestamp, a call": (len(times), by_time),
        "offset index lookup, a call": (len(targets), by_offset),
        "fetch of 64 KiB, a call": (500, calls(lambda: log.fetch(2_000, 64 * KIB))),
    }


def upkeep() -> dict[str, Counted]:
    rng = random.Random(8)
    keys = [rng.randbytes(16) for _ in range(RECORDS // 2)]
    with opened("kept") as log:
        log.append_many(((key, bytes(100)) for key in keys + keys), batch_bytes=16 * KIB)
    data = memoryview(Path("kept-0/00000000000000000000.log").read_bytes())
    sixteen = bytes(data[: 16 * KIB])

    def check(count: int) -> None:
        for _ in range(count // RECORDS):
            assert not verify([Path("kept-0")], threads=1).findings

    def first_pass(count: int) -> None:
        for _ in range(count // RECORDS):
            newest = NewestRecords(1 << 24, 0)
            assert newest.add(data, CleanedTransactions(), path="kept", position=0) == len(data)

    return {
        "verify, a record": (RECORDS, check),
        # The map draws its hash anew each time: several times, so that chance counts little.
        "compaction's first pass, a record": (4 * RECORDS, first_pass),
        "crc32c of 16 KiB, a call": (1_000, calls(lambda: _core.crc32c(sixteen))),
    }


# --- the environment --------------------------------------------------------------------------------------------------


def line_of(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[0].strip()


def environment(features: list[str]) -> dict[str, str]:
    """All that the counts depend on, but for our own code."""
    packages = ("Cython", "numpy", "cramjam")
    return {
        "machine": f"{platform.machine()}, {platform.system()} {platform.release()}",
        "python": sys.version.replace("\n", " "),
        "compiler": line_of("gcc", "-dumpfullversion"),
        "libc": " ".join(platform.libc_ver()),
        "valgrind": line_of("valgrind", "--version"),
        "processor in valgrind": " ".join(features),
        "packages": " ".join(f"{name} {version(name)}" for name in packages),
    }


# --- comparing --------------------------------------------------------------------------------------------------------


def compared(known: dict[str, float], now: dict[str, float]) -> tuple[list[str], list[str]]:
    """A line for each path; and a sentence for each that takes more than it may."""
    lines, grown = [], []
    for name in {**known, **now}:
        before, after = known.get(name), now.get(name)
        if before is None or after is None:
            lines.append(f"{name:62}{before or '-':>12}{after or '-':>12}  only in one of them")
            continue
        change = after / before - 1
        lines.append(f"{name:62}{before:>12,.1f}{after:>12,.1f}{change:>+9.2%}")
        if change > TOLERANCE:
            grown.append(
                f"{name}: {before:,.1f} -> {after:,.1f} instructions, {change:+.1%}, allowed is {TOLERANCE:.0%}"
            )
    return lines, grown


def main(*, keep: bool) -> int:
    if shutil.which("valgrind") is None:
        print("make instructions needs valgrind; on Debian: apt-get install valgrind")
        return 1
    now, features = callgrind.counted(Path(__file__))
    here = environment(features)
    known = json.loads(KNOWN.read_text()) if KNOWN.exists() else {"environment": here, "instructions": {}}
    lines, grown = compared(known["instructions"], now)
    print(f"{'instructions of':62}{'known':>12}{'now':>12}{'change':>9}", *lines, sep="\n")
    if keep:
        KNOWN.write_text(json.dumps({"environment": here, "instructions": now}, indent=2) + "\n")
        print(f"written to {KNOWN}")
        return 0
    different = [name for name in here if known["environment"].get(name) != here[name]]
    for name in different:
        print(f"another {name}: {here[name]}, the known counts are of {known['environment'].get(name)}")
    if different:
        print("The known counts are of another environment: nothing is compared in earnest.")
        return 0
    for sentence in grown:
        print(f"MORE: {sentence}")
    if grown:
        print("If the change explains it: make instructions-keep, and commit bench/instructions.json with the reason.")
    return 1 if grown else 0


if __name__ == "__main__":
    if sys.argv[1:] == ["do"]:
        callgrind.do_all(paths())
    else:
        sys.exit(main(keep=sys.argv[1:] == ["keep"]))
