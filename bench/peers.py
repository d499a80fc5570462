"""The others: what each does with the same workload, in its fastest honest way.

Each function takes what it needs ready-made, so that only the peer's own work is timed. Unless they are told to sync,
what they wrote survives the process and not the machine, as with kstore's `append`.
"""

from __future__ import annotations

import bisect
import itertools
import sqlite3
import struct
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import lmdb
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.memory_records import MemoryRecords
from common import GIB, START_MS
from rocksdict import Options, Rdict, WriteOptions

DELETED_AT_ONCE = 200  # records that retention deletes in one transaction: an append waits for one, not for all


class Lmdb:
    """LMDB with integer keys, as a log would use it: each key one past the last, appended at the right-hand end.

    `writemap` lets it write into its own map: its fastest mode, in which a stray pointer of the process can damage the
    file and a full disk is a SIGBUS. Without it LMDB writes with `pwrite`, as it does unless told otherwise. With
    `sync` each transaction is on the disk when it returns.
    """

    def __init__(self, path: Path, *, writemap: bool = False, sync: bool = False) -> None:
        self._env = lmdb.open(str(path), map_size=16 * GIB, max_dbs=1, sync=sync, writemap=writemap)
        self._db = self._env.open_db(b"log", integerkey=True)
        self._next = 0
        self._numbers = itertools.count()

    def put_one(self, value: bytes) -> None:
        """One transaction, from any thread."""
        with self._env.begin(write=True, db=self._db) as transaction:
            transaction.put(struct.pack("=Q", next(self._numbers)), value)

    def last(self) -> int:
        """How many records another process sees."""
        with self._env.begin(db=self._db) as transaction:
            return int(transaction.stat(self._db)["entries"])

    def after(self, count: int) -> list[bytes]:
        """The values from number `count` on."""
        with self._env.begin(db=self._db) as transaction:
            cursor = transaction.cursor(self._db)
            if not cursor.set_range(struct.pack("=Q", count)):
                return []
            return list(cursor.iternext(keys=False, values=True))

    def keep_up(self, keep: int) -> None:
        """Sync all records to the disk, and delete the oldest but `keep`, some in each transaction."""
        self._env.sync(True)
        while (old := self.last() - keep) > 0:
            with self._env.begin(write=True, db=self._db) as transaction:
                cursor = transaction.cursor(self._db)
                cursor.first()
                for _ in range(min(old, DELETED_AT_ONCE)):
                    cursor.delete()  # which leaves it at the next one

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

    def get_each(self, numbers: Iterable[int]) -> None:
        """One value at a time, all in one transaction."""
        with self._env.begin(db=self._db) as transaction:
            for number in numbers:
                transaction.get(struct.pack("=Q", number))

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
    """SQLite with a write-ahead log, without syncs or with those of `synchronous`; each thread has a connection."""

    def __init__(self, path: Path, *, synchronous: str = "off", exists: bool = False) -> None:
        self._path = path
        self._synchronous = synchronous
        self._own = threading.local()
        if not exists:
            self._connection.execute("create table log (offset integer primary key, value blob)")

    @property
    def _connection(self) -> sqlite3.Connection:
        found: sqlite3.Connection | None = getattr(self._own, "connection", None)
        if found is None:
            found = self._own.connection = sqlite3.connect(self._path, isolation_level=None, timeout=60)
            found.execute("pragma journal_mode=wal")
            found.execute(f"pragma synchronous={self._synchronous}")
        return found

    def put_one(self, value: bytes) -> None:
        """One transaction, from any thread."""
        self._connection.execute("insert into log (value) values (?)", (value,))

    def after(self, count: int) -> list[bytes]:
        """The values from number `count` on."""
        rows = self._connection.execute("select value from log where offset > ? order by offset", (count,))
        return [value for (value,) in rows]

    def keep_up(self, keep: int) -> None:
        """Sync all records to the disk and into the table's file, and delete the oldest but `keep`, some at a time."""
        self._connection.execute("pragma wal_checkpoint(passive)")
        first, last = self._connection.execute("select min(offset), max(offset) from log").fetchone()
        for offset in range(first or 0, (last or 0) - keep, DELETED_AT_ONCE):
            until = min(offset + DELETED_AT_ONCE - 1, last - keep)
            self._connection.execute("delete from log where offset <= ?", (until,))

    def insert_each(self, value: bytes, count: int) -> None:
        """One transaction a record."""
        for _ in range(count):
            self._connection.execute("insert into log (value) values (?)", (value,))

    def select_each(self, numbers: Iterable[int]) -> None:
        """One value at a time, all in one transaction."""
        self._connection.execute("begin")
        for number in numbers:
            self._connection.execute("select value from log where offset = ?", (number + 1,)).fetchone()
        self._connection.execute("commit")

    def insert_many(self, value: bytes, count: int, in_transaction: int = 10_000) -> None:
        for done in range(0, count, in_transaction):
            self._connection.execute("begin")
            rows = itertools.repeat((value,), min(in_transaction, count - done))
            self._connection.executemany("insert into log (value) values (?)", rows)
            self._connection.execute("commit")

    def close(self) -> None:
        self._connection.close()


class Rocks:
    """RocksDB with its write-ahead log, synced with each write or not; its Python door keeps the GIL all the while."""

    def __init__(self, path: Path, *, sync: bool = False) -> None:
        options = Options(raw_mode=True)
        options.create_if_missing(True)
        self._db = Rdict(str(path), options)
        self._write = WriteOptions()
        self._write.sync = sync
        self._numbers = itertools.count()
        self._first = 0

    def put_one(self, value: bytes) -> None:
        """One write, from any thread."""
        self._db.put(struct.pack(">Q", next(self._numbers)), value, self._write)

    def keep_up(self, keep: int) -> None:
        """Sync all records to the disk, and delete the oldest but `keep`."""
        self._db.flush_wal(True)
        last = next(self._numbers)
        if last - keep > self._first:
            self._db.delete_range(struct.pack(">Q", self._first), struct.pack(">Q", last - keep))
            self._first = last - keep

    def close(self) -> None:
        self._db.close()


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


def aiokafka_rows(rows: Iterable[tuple[bytes | None, bytes | None, int, Any]], batch_bytes: int) -> list[bytes]:
    """Rows of key, value, timestamp and headers in batches of `batch_bytes` from the same builder."""
    batches = []
    builder, number = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, batch_bytes), 0
    for key, value, timestamp, headers in rows:
        if builder.append(number, timestamp, key, value, headers or []) is None:
            batches.append(builder.build())
            builder, number = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, batch_bytes), 0
            builder.append(number, timestamp, key, value, headers or [])
        number += 1
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
