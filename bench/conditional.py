"""What does `expected_offset` cost? `python bench/conditional.py` (needs valgrind)

Prints the instructions of one append of 100 bytes to a log, as `callgrind.py` counts them. Instructions do not depend
on how busy the machine is. The clock stands still, so no housekeeping comes between. `refused` is an append whose
expectation is wrong: it raises, and stores nothing.

With `PYTHONPATH` set to another build of kstore it measures that one, also one from before there was `expected_offset`:
what an append without it cost then can so be compared with now.
"""

from __future__ import annotations

import inspect
import sys
from functools import partial
from pathlib import Path

import callgrind

import kstore

COUNT = 20_000
VALUE = bytes(100)


def plain(log: kstore.Log, count: int) -> None:
    append = log.append
    for _ in range(count):
        append(VALUE)


def expected(log: kstore.Log, count: int) -> None:
    append = log.append
    for offset in range(log.log_end_offset, log.log_end_offset + count):
        append(VALUE, expected_offset=offset)


def refused(log: kstore.Log, count: int) -> None:
    append = log.append
    for _ in range(count):
        try:
            append(VALUE, expected_offset=1 << 40)
        except kstore.UnexpectedOffsetError:
            continue
        raise AssertionError("it was stored")


def main() -> None:
    found, _ = callgrind.counted(Path(__file__))
    print(f"instructions of one append of {len(VALUE)} bytes, kstore in {Path(kstore.__file__).parent}")
    for way, each in found.items():
        print(f"{way:>10}  {each:8,.0f}")


def do_all() -> None:
    """In callgrind: each way to append, in a log of its own."""
    known = "expected_offset" in inspect.signature(kstore.Log.append).parameters
    pieces: dict[str, callgrind.Counted] = {}
    for way in (plain, expected, refused) if known else (plain,):
        log = kstore.Log.open(f"{way.__name__}-0", clock=lambda: 1_700_000_000_000)
        log.append(VALUE)
        pieces[way.__name__] = (COUNT, partial(way, log))
    callgrind.do_all(pieces)


if __name__ == "__main__":
    if sys.argv[1:] == ["do"]:
        do_all()
    else:
        main()
