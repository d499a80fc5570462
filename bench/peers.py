"""The others: what each does with the same workload, in its fastest honest way.

Each function takes what it needs ready-made, so that only the peer's own work is timed. The stores do not sync (nor
does kstore in these questions): as with kstore's `append`, what they wrote survives the process and not the machine.
"""

from __future__ import annotations

import bisect
import itertools
import sqlite3
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import lmdb
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.memory_records import MemoryRecords
from common import GIB, START_MS


class Lmdb:
    """LMDB with integer keys, as a log would use it: each key one past the last, appended at the right-hand end.

    `writemap` lets it write into its own map: its fastest mode, in which a stray pointer of the process can damage the
    file and a full disk is a SIGBUS. Without it LMDB writes with `pwrite`, as it does unless told otherwise.
    """

    def __init__(self, path: Path, *, writemap: bool) -> None:
        self._env = lmdb.open(str(path), map_size=16 * GIB, max_dbs=1, sync=False, writemap=writemap)
        self._db = self._env.open_db(b"log", integerkey=True)
        self._next = 0

    def put_each(self, value: bytes, count: int) -> None:
        """One transaction a record: each is there for another process when its call returns."""
        for number in range(self._next, self._next + count):
            with self._env.begin(write=True, db=self._db) as transaction:
                transaction.put(struct.pack("=Q", number), value, append=True)
        self._next += count

    def put_many(self, value: bytes, count: int, in_transaction: int = 1000) -> None:
        """`putmulti`, `in_transaction` records a time."""
        for first in range(self._next, self._next + count, in_transaction):
            keys = map(struct.Struct("=Q").pack, range(first, min(first + in_transaction, self._next + count)))
            with self._env.begin(write=True, db=self._db) as transaction:
                transaction.cursor(self._db).putmulti(zip(keys, itertools.repeat(value), strict=False), append=True)
        self._next += count

    def read_all(self) -> int:
        """Walk all values; how many."""
        count = 0
        with self._env.begin(db=self._db) as transaction:
            for _ in transaction.cursor(self._db).iternext(keys=False, values=True):
                count += 1
        return count

    def close(self) -> None:
        self._env.close()


class Sqlite:
    """SQLite with a write-ahead log and no syncs."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None)
        self._connection.execute("pragma journal_mode=wal")
        self._connection.execute("pragma synchronous=off")
        self._connection.execute("create table log (offset integer primary key, value blob)")

    def insert_each(self, value: bytes, count: int) -> None:
        """One transaction a record."""
        for _ in range(count):
            self._connection.execute("insert into log (value) values (?)", (value,))

    def insert_many(self, value: bytes, count: int, in_transaction: int = 10_000) -> None:
        for done in range(0, count, in_transaction):
            self._connection.execute("begin")
            rows = itertools.repeat((value,), min(in_transaction, count - done))
            self._connection.executemany("insert into log (value) values (?)", rows)
            self._connection.execute("commit")

    def close(self) -> None:
        self._connection.close()


def aiokafka_build(key: bytes | None, value: bytes, count: int, batch_bytes: int) -> list[bytes]:
    """`count` records in batches of `batch_bytes` from aiokafka's compiled builder, CRC included; no file."""
    batches = []
    done = 0
    while done < count:
        builder = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, batch_bytes)
        append = builder.append
        number = 0
        while done < count and append(number, START_MS, key, value, []) is not None:
            number += 1
            done += 1
        batches.append(builder.build())
    return batches


def aiokafka_read(data: bytes) -> int:
    """Every record of `data` through aiokafka's compiled reader, CRC checked and `.value` read; how many."""
    count = 0
    records = MemoryRecords(data)
    while records.has_next():
        batch = records.next_batch()
        assert batch.validate_crc()
        for record in batch:
            record.value  # noqa: B018
            count += 1
    return count


def aiokafka_chunks(path: Path, chunk_bytes: int = 1 << 20) -> Iterator[bytes]:
    """Whole batches of a segment file, about `chunk_bytes` a time: how a client would hand them to its parser."""
    with path.open("rb") as file:
        rest = b""
        while data := file.read(chunk_bytes):
            data = rest + data
            end = 0
            while (
                len(data) - end >= 12
                and (size := 12 + int.from_bytes(data[end + 8 : end + 12], "big")) <= len(data) - end
            ):
                end += size
            yield data[:end]
            rest = data[end:]


def bisect_lookup(index: bytes | memoryview) -> Callable[[int], tuple[int, int]]:
    """Floor lookup on big-endian entries of 8 bytes in pure Python: relative offset to (relative offset, position)."""
    entry = struct.Struct(">ii").unpack_from
    numbers = range(len(index) // 8)

    def lookup(target: int) -> tuple[int, int]:
        slot = bisect.bisect_right(numbers, target, key=lambda number: entry(index, number * 8)[0]) - 1
        return entry(index, slot * 8) if slot >= 0 else (0, 0)  # type: ignore[return-value]

    return lookup
