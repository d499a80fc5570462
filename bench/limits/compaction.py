"""What no cleaner of a thread can leave out (`compaction.c`): the bytes that it reads and writes, one look a key.

The files are read once for the first pass and in part or as a whole for the second, and what stays is written. For each
record there is a look and a store at a random place in memory of the size of an offset map, which has that size from
the beginning. With `checks` there are also a checksum of what is read first and of each batch that is written anew, and
a hash of each key, by kstore's own code. No record is parsed, nothing compared, no batch built. Needs a C compiler.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from limits import compiled

SLOT_SHARE = 0.86  # of the slots of an offset map, those that have a key


def _map_of(keys: int) -> tuple[ctypes.CDLL, ctypes.c_void_p, int]:
    """The code, the memory of an offset map that will have so many keys, and its entries."""
    code = compiled("compaction.c", "crc32c.c", "keyhash.c", optimised=("-O3",))
    code.table.restype = ctypes.c_void_p
    entries = int(keys / SLOT_SHARE)
    table = ctypes.c_void_p(code.table(ctypes.c_long(entries)))
    assert table.value
    return code, table, entries


def puts(keys: bytes, times: int) -> Callable[[], None]:
    """Hashes keys of 16 bytes each, so many times, with a look and a store in memory of the map's size for each."""
    count = len(keys) // 16
    code, table, entries = _map_of(count)

    def run() -> None:
        for _ in range(times):
            code.puts_of(table, ctypes.c_long(entries), keys, ctypes.c_long(count))

    return run


def least(
    paths: Sequence[Path],
    made: Path,
    *,
    records: int,
    keys: int,
    read_again: float,
    written: float,
    rebuilt: bool,
    checks: bool,
) -> Callable[[], float]:
    """A function that does it and says how many seconds that took; it writes in the directory `made`.

    `rebuilt` says that what is written are new batches, `checks` that checksums and hashes are made.
    """
    out = made / "out"
    count = len(paths)
    sizes = [path.stat().st_size for path in paths]
    longs = ctypes.c_long * count
    code, table, entries = _map_of(keys)

    def run() -> float:
        fds = [os.open(path, os.O_RDONLY) for path in [*paths]]
        to = os.open(out, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)
        began = time.perf_counter()
        failed = code.round_of(
            (ctypes.c_int * count)(*fds),
            longs(*sizes),
            longs(*(int(size * read_again) for size in sizes)),
            count,
            to,
            ctypes.c_long(int(sum(sizes) * written)),
            rebuilt,
            table,
            ctypes.c_long(entries),
            ctypes.c_long(sum(sizes) // records),
            checks,
        )
        seconds = time.perf_counter() - began
        for fd in (*fds, to):
            os.close(fd)
        out.unlink()
        assert not failed
        return seconds

    return run
