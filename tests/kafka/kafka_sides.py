"""Two logs that live the same history, Kafka's and kstore's, behind one interface.

A side owns a root directory with one partition in it. Its answers are plain tuples of what both can say; a refusal is
`Refused` with the name of kstore's exception. A new operation needs a method here on both sides, and nothing else.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import kstore
from kstore.log.compaction.dirtiness import Dirtiness, survey
from kstore.log.compaction.passes import CleanerLimits, compact
from tests.kafka.kafka_jvm import Kafka, KafkaError, KafkaLog, Row

PARTITION = "events-0"
TOPIC_LINE = ("events", "0")

# Kafka's exceptions whose names say another thing in kstore (SEMANTICS 14).
RENAMED = {
    "IllegalArgumentException": "ValueError",
    "KafkaException": "StorageError",
    "KafkaStorageException": "StorageError",
    "IOException": "StorageError",
}


class Appended(NamedTuple):
    """Both -1 when nothing was stored."""

    first_offset: int
    last_offset: int
    max_timestamp: int
    log_append_time: int


NOTHING = Appended(-1, -1, -1, -1)


class Refused(Exception):
    """A side refused: `name` is an exception of kstore or a built-in one, `appended` what it had stored before."""

    def __init__(self, name: str, original: BaseException, appended: Appended = NOTHING) -> None:
        super().__init__(f"{name} ({original})")
        self.name = name
        self.original = original
        self.appended = appended


@dataclass(frozen=True)
class Said:
    """What a side said: its answer, or the name of its refusal. Two are equal when both are; `why` is not compared."""

    refuses: str | None
    answer: Any = None
    appended: Appended = field(default=NOTHING, compare=False)  # what an append had stored when it was refused
    why: str = field(default="", compare=False)

    def __str__(self) -> str:
        return f"answers {shown(self.answer)}" if self.refuses is None else f"refuses with {self.refuses} ({self.why})"


class Fetched(NamedTuple):
    offset: int
    segment_base_offset: int
    position: int
    records: bytes


class Committed(NamedTuple):
    """A fetch with `read_committed`; -1 and no list where it gives no records."""

    records: bytes
    offset: int
    aborted_transactions: tuple[tuple[int, int], ...]


class Marks(NamedTuple):
    log_start_offset: int
    last_stable_offset: int
    high_watermark: int
    log_end_offset: int


class RecordSeen(NamedTuple):
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


class BatchSeen(NamedTuple):
    """What a batch says of itself; the names are the columns of a batch table."""

    base_offset: int
    last_offset: int
    count: int
    position: int
    size_bytes: int
    segment_base_offset: int
    max_timestamp: int
    partition_leader_epoch: int
    magic: int
    compression: int
    timestamp_type: int
    is_transactional: bool
    is_control: bool
    producer_id: int
    producer_epoch: int
    base_sequence: int
    delete_horizon_ms: int
    crc: int


class Cleanable(NamedTuple):
    """What a cleaner thread would clean next."""

    first_dirty_offset: int
    first_uncleanable_offset: int
    clean_bytes: int
    cleanable_bytes: int


class Compacted(NamedTuple):
    """One round of cleaning."""

    first_dirty_offset_before: int
    first_dirty_offset: int
    keys: int


class Checkpoints(NamedTuple):
    """The partition's lines beside it; None where there is no line."""

    recovery_point: int | None
    log_start: int | None
    first_dirty: int | None = None


class Side(Protocol):
    """A log that lives through a history. Every method but those of files may raise `Refused`."""

    root: Path
    name: str

    @property
    def directory(self) -> Path: ...
    def open(self, *, clean: bool, checkpoints: Checkpoints | None = None) -> None: ...
    def close(self) -> None: ...
    def crash(self) -> None: ...
    def tick(self, now: int) -> None: ...
    def settle(self) -> Marks: ...
    def update_config(self, settings: Mapping[str, Any]) -> None: ...
    def append(self, row: Row, leader_epoch: int) -> int: ...
    def append_many(self, rows: Sequence[Row], compression: str, leader_epoch: int, *, atomic: bool) -> Appended: ...
    def append_columns(self, rows: Sequence[Row], compression: str, leader_epoch: int, form: str) -> Appended: ...
    def append_batch(self, data: bytes, origin: str, leader_epoch: int, *, version: int | None = None) -> Appended: ...
    def append_as_follower(self, data: bytes, leader_epoch: int) -> Appended: ...
    def batches(self, first_offset: int, last_offset: int) -> list[bytes]: ...
    def roll(self) -> None: ...
    def retain(self) -> int: ...
    def flush(self) -> None: ...
    def truncate_to(self, offset: int) -> bool: ...
    def truncate_fully(self, offset: int, log_start: int | None) -> None: ...
    def delete_records(self, offset: int) -> None: ...
    def select(self) -> Cleanable | None: ...
    def compact(self, map_keys: int, buffer_bytes: int, *, forced: bool) -> Compacted | None: ...
    def fetch(self, offset: int, max_bytes: int, min_one_message: bool) -> Fetched: ...
    def fetch_committed(self, offset: int, max_bytes: int, min_one_message: bool) -> Committed: ...
    def records(self, offset: int) -> list[RecordSeen]: ...
    def columns(self, offset: int, max_records: int) -> list[RecordSeen]: ...
    def batch_table(self, offset: int) -> list[BatchSeen]: ...
    def offset_for_timestamp(self, timestamp: int) -> tuple[int, int] | None: ...
    def max_timestamp(self) -> tuple[int, int] | None: ...
    def marks(self) -> Marks: ...
    def recovery_point(self) -> int: ...


def outcome(act: Callable[[], Any]) -> Said:
    """What a side says when it does something."""
    try:
        return Said(None, act())
    except Refused as refused:
        return Said(refused.name, None, refused.appended, str(refused.original))


def shown(value: Any, limit: int = 600) -> str:
    text = repr(value)
    return text if len(text) <= limit else f"{text[:limit]}... ({len(text)} characters)"


class KafkaSide:
    """Kafka's log. The high watermark follows the end, as in a kstore log (SEMANTICS 0.4)."""

    def __init__(self, kafka: Kafka, root: Path, config: Mapping[str, Any], now: int, name: str = "Kafka") -> None:
        self.kafka = kafka
        self.root = root
        self.name = name
        self.config = dict(config)
        self.now = now
        self.log: KafkaLog | None = None

    @property
    def directory(self) -> Path:
        return self.root / PARTITION

    def open(self, *, clean: bool, checkpoints: Checkpoints | None = None) -> None:
        """With the checkpoints of the other side, so that both know the same of what was flushed."""
        lines = checkpoints or read_checkpoints(self.root)
        with _kafka_refusals():
            self.log = self.kafka.open(
                self.directory,
                now=self.now,
                config=self.config,
                clean=clean,
                recovery_point=lines.recovery_point or 0,
                log_start=lines.log_start or 0,
            )

    def call(self, op: str, **request: Any) -> Any:
        """Any operation of the driver, its refusals in kstore's words."""
        assert self.log is not None
        with _kafka_refusals():
            return self.log.call(op, now=self.now, **request)

    def close(self) -> None:
        log, self.log = self.log, None
        if log is not None:
            with _kafka_refusals():
                log.close()

    def crash(self) -> None:
        log, self.log = self.log, None
        assert log is not None
        log.crash()

    def tick(self, now: int) -> None:
        self.now = now

    def settle(self) -> Marks:
        """Do what is due."""
        return _marks(self.call("settle"))

    def update_config(self, settings: Mapping[str, Any]) -> None:
        self.config.update(settings)
        self.call("update_config", config={name: _text(value) for name, value in self.config.items()})

    def append(self, row: Row, leader_epoch: int) -> int:
        timestamp, *rest = row
        row = (self.now if timestamp is None else timestamp, *rest)
        data = self.kafka.encode([row], compression=codec_of(self.config, "none"))
        return self.append_batch(data, "client", leader_epoch).first_offset

    def append_many(self, rows: Sequence[Row], compression: str, leader_epoch: int, *, atomic: bool) -> Appended:
        """In the batches that kstore would make; used where Kafka stands in for it."""
        infos: list[Appended] = []
        rows = list(rows)
        while rows:
            size = len(rows) if atomic else rows_of_a_batch(self.kafka, rows, self.config)
            data = self.kafka.encode(rows[:size], compression=codec_of(self.config, compression))
            try:
                infos.append(self.append_batch(data, "client", leader_epoch))
            except Refused as refused:
                refused.appended = together(infos)
                raise
            del rows[:size]
        return together(infos)

    def append_columns(self, rows: Sequence[Row], compression: str, leader_epoch: int, form: str) -> Appended:
        return self.append_many(rows, compression, leader_epoch, atomic=False)

    def append_batch(self, data: bytes, origin: str, leader_epoch: int, *, version: int | None = None) -> Appended:
        assert self.log is not None
        how = {} if version is None else {"transaction_version": version}
        with _kafka_refusals():
            answer = self.log.append_as_leader(data, origin=origin, leader_epoch=leader_epoch, now=self.now, **how)
        return _appended(answer)

    def append_as_follower(self, data: bytes, leader_epoch: int) -> Appended:
        assert self.log is not None
        with _kafka_refusals():
            return _appended(self.log.append_as_follower(data, leader_epoch=leader_epoch, now=self.now))

    def batches(self, first_offset: int, last_offset: int) -> list[bytes]:
        assert self.log is not None
        found: list[bytes] = []
        while first_offset <= last_offset:
            for data in split_batches(self.log.read(first_offset, isolation="log_end")["records"]):
                found.append(data)
                first_offset = last_offset_of(data) + 1
        return found

    def roll(self) -> None:
        self.call("roll")

    def retain(self) -> int:
        deleted: int = self.call("retain")
        return deleted

    def flush(self) -> None:
        self.call("flush")

    def truncate_to(self, offset: int) -> bool:
        cut: bool = self.call("truncate_to", offset=offset)
        self.call("checkpoint")  # as the log manager does (SEMANTICS 11.6)
        return cut

    def truncate_fully(self, offset: int, log_start: int | None) -> None:
        self.call("truncate_fully", offset=offset, log_start=log_start)
        self.call("checkpoint")

    def delete_records(self, offset: int) -> None:
        self.call("delete_records", offset=offset)

    def select(self) -> Cleanable | None:
        found = self.call("select")
        return None if found is None else Cleanable(*(found[field] for field in Cleanable._fields))

    def compact(self, map_keys: int, buffer_bytes: int, *, forced: bool) -> Compacted | None:
        done = self.call("clean", map_keys=map_keys, io_buffer_bytes=buffer_bytes, forced=forced)
        return None if done is None else Compacted(done["first_dirty_offset"], done["end_offset"], done["keys"])

    def fetch(self, offset: int, max_bytes: int, min_one_message: bool) -> Fetched:
        assert self.log is not None
        with _kafka_refusals():
            read = self.log.read(offset, max_bytes, min_one_message=min_one_message, now=self.now)
        return Fetched(read["offset"], read["segment_base_offset"], read["position"], read["records"])

    def fetch_committed(self, offset: int, max_bytes: int, min_one_message: bool) -> Committed:
        assert self.log is not None
        with _kafka_refusals():
            read = self.log.read(
                offset, max_bytes, min_one_message=min_one_message, now=self.now, isolation="read_committed"
            )
        records = read["records"]
        aborted = tuple(map(tuple, read["aborted_transactions"] or ())) if records else ()
        return Committed(records, read["offset"] if records else -1, aborted)

    def records(self, offset: int) -> list[RecordSeen]:
        marks = self.marks()
        if not marks.log_start_offset <= offset <= marks.log_end_offset:
            raise Refused("OffsetOutOfRangeError", ValueError(offset))
        found = []
        for line in self.kafka.records(self.directory):
            if "offset" in line and not line["isControl"] and offset <= line["offset"] < marks.log_end_offset:
                found.append(record_seen(line))
        return found

    def columns(self, offset: int, max_records: int) -> list[RecordSeen]:
        return self.records(offset)

    def batch_table(self, offset: int) -> list[BatchSeen]:
        marks = self.marks()
        if not marks.log_start_offset <= offset <= marks.log_end_offset:
            raise Refused("OffsetOutOfRangeError", ValueError(offset))
        lines = self.call("batches", offset=offset)
        return [BatchSeen(*(line[field] for field in BatchSeen._fields)) for line in lines]

    def offset_for_timestamp(self, timestamp: int) -> tuple[int, int] | None:
        answer = self.call("offset_for_timestamp", timestamp=timestamp)
        return None if answer is None else (answer["timestamp"], answer["offset"])

    def max_timestamp(self) -> tuple[int, int] | None:
        found = self.offset_for_timestamp(-3)
        return None if found is None or found[0] < 0 else found

    def marks(self) -> Marks:
        assert self.log is not None
        return _marks(self.log.marks())

    def recovery_point(self) -> int:
        assert self.log is not None
        return self.log.marks()["recovery_point"]


class KstoreSide:
    """kstore's log. A crash is a copy of the directory as it is, since a process cannot drop its own files."""

    def __init__(self, root: Path, config: Mapping[str, Any], now: int) -> None:
        self.root = root
        self.name = "kstore"
        self.config = dict(config)
        self.now = now
        self.log: kstore.Log | None = None
        self._crashes = 0

    @property
    def directory(self) -> Path:
        return self.root / PARTITION

    @property
    def _open_log(self) -> kstore.Log:
        assert self.log is not None
        return self.log

    def open(self, *, clean: bool, checkpoints: Checkpoints | None = None) -> None:
        """Whether the log is clean it has to find out by itself."""
        self.root.mkdir(exist_ok=True)
        with _our_refusals():
            config = kstore.LogConfig.from_kafka({name: _text(value) for name, value in self.config.items()})
            self.log = kstore.Log.open(self.directory, config=config, clock=lambda: self.now)

    def close(self) -> None:
        log, self.log = self.log, None
        if log is not None:
            with _our_refusals():
                log.close()

    def crash(self) -> None:
        log, self.log = self._open_log, None
        self._crashes += 1
        left = self.root
        self.root = left.with_name(f"{left.name.split('+')[0]}+{self._crashes}")
        copy_sparse(left, self.root)
        log.close()
        shutil.rmtree(left)

    def tick(self, now: int) -> None:
        self.now = now

    def settle(self) -> Marks:
        with _our_refusals():
            self._open_log.run_housekeeping()
        return self.marks()

    def update_config(self, settings: Mapping[str, Any]) -> None:
        self.config.update(settings)
        with _our_refusals():
            self._open_log.update_config(**{name.replace(".", "_"): value for name, value in settings.items()})

    def append(self, row: Row, leader_epoch: int) -> int:
        timestamp, key, value, headers = (*row, ())[:4]
        with _our_refusals():
            log = self._open_log
            return log.append(value, key, timestamp=timestamp, headers=headers, leader_epoch=leader_epoch)

    def append_many(self, rows: Sequence[Row], compression: str, leader_epoch: int, *, atomic: bool) -> Appended:
        records = [(row[1], row[2], row[0], row[3] if len(row) > 3 else None) for row in rows]
        with _our_refusals():
            info = self._open_log.append_many(
                records, compression=compression, leader_epoch=leader_epoch, atomic=atomic
            )
        return _our_appended(info)

    def append_columns(self, rows: Sequence[Row], compression: str, leader_epoch: int, form: str) -> Appended:
        """`form`: "lists", "arrow" (arrays), or "threads" (lists, compressed or written by two threads)."""
        timestamps, keys, values, headers = map(list, zip(*((*row, ())[:4] for row in rows), strict=True))
        given: list[Any] = [values, keys, timestamps]
        if form == "arrow":
            import pyarrow as pa

            given = [pa.array(values, pa.binary()), pa.array(keys, pa.binary()), pa.array(timestamps, pa.int64())]
        with _our_refusals():
            info = self._open_log.append_columns(
                given[0],
                keys=given[1],
                timestamps=given[2],
                headers=headers,
                compression=compression,
                leader_epoch=leader_epoch,
                threads=2 if form == "threads" else 1,
            )
        return _our_appended(info)

    def append_batch(self, data: bytes, origin: str, leader_epoch: int, *, version: int | None = None) -> Appended:
        with _our_refusals():
            info = self._open_log.append_batch(
                data,
                origin=origin,  # type: ignore[arg-type]
                leader_epoch=leader_epoch,
                transaction_version=version or 0,
            )
        return _our_appended(info)

    def append_as_follower(self, data: bytes, leader_epoch: int) -> Appended:
        with _our_refusals():
            return _our_appended(self._open_log.append_as_follower(data, leader_epoch=leader_epoch))

    def batches(self, first_offset: int, last_offset: int) -> list[bytes]:
        found = []
        for batch in self._open_log.read_batches(first_offset):
            if batch.base_offset > last_offset:
                break
            found.append(bytes(batch))
        return found

    def roll(self) -> None:
        with _our_refusals():
            self._open_log.roll()

    def retain(self) -> int:
        with _our_refusals():
            planned = [deletion.base_offset for deletion in self._open_log.plan_retention()]
            deleted = [segment.base_offset for segment in self._open_log.apply_retention()]
        assert deleted == planned
        return len(deleted)

    def flush(self) -> None:
        with _our_refusals():
            self._open_log.flush()

    def truncate_to(self, offset: int) -> bool:
        with _our_refusals():
            return self._open_log.truncate_to(offset)

    def truncate_fully(self, offset: int, log_start: int | None) -> None:
        with _our_refusals():
            self._open_log.truncate_fully_and_start_at(offset, log_start_offset=log_start)

    def delete_records(self, offset: int) -> None:
        with _our_refusals():
            self._open_log.delete_records(offset)

    def select(self) -> Cleanable | None:
        if not self._open_log.config.compacts:
            return None
        return self._eligible(self._survey(lag=True))

    def _survey(self, *, lag: bool) -> Dirtiness:
        writer = self._open_log._writable()
        housekeeper = writer.housekeeping.housekeeper
        with _our_refusals():
            found = survey(writer, writer.config, self.now, housekeeper.first_dirty(writer.partition), lag=lag)
            if found.reset:
                housekeeper.write_first_dirty(writer.partition, found.first_dirty_offset)
        return found

    def _eligible(self, found: Dirtiness) -> Cleanable | None:
        if not found.is_eligible(self._open_log.config.min_cleanable_dirty_ratio):
            return None
        return Cleanable(*(getattr(found, field) for field in Cleanable._fields))

    def compact(self, map_keys: int, buffer_bytes: int, *, forced: bool) -> Compacted | None:
        if not forced and self.select() is None:
            return None
        found = self._survey(lag=not forced)
        if found.cleanable_bytes == 0:
            return None
        with _our_refusals():
            stats = compact(self._open_log._writable(), found, CleanerLimits(map_keys, buffer_bytes, 1_048_588))
        return Compacted(stats.first_dirty_offset_before, stats.first_dirty_offset, stats.keys)

    def fetch(self, offset: int, max_bytes: int, min_one_message: bool) -> Fetched:
        with _our_refusals():
            got = self._open_log.fetch(offset, max_bytes, min_one_message=min_one_message)
        return Fetched(got.offset, got.segment_base_offset, got.position, bytes(got.records))

    def fetch_committed(self, offset: int, max_bytes: int, min_one_message: bool) -> Committed:
        with _our_refusals():
            got = self._open_log.fetch(offset, max_bytes, min_one_message=min_one_message, isolation="read_committed")
        records, aborted = bytes(got.records), got.aborted_transactions
        assert aborted is not None
        return Committed(records, got.offset if records else -1, aborted if records else ())

    def records(self, offset: int) -> list[RecordSeen]:
        with _our_refusals():
            return [RecordSeen(*record) for record in self._open_log.read(offset)]

    def columns(self, offset: int, max_records: int) -> list[RecordSeen]:
        """All from an offset on, in chunks of at most so many records."""
        names = ("offset", "timestamp", "key", "value", "headers")
        found: list[RecordSeen] = []
        with _our_refusals():
            for chunk in self._open_log.iter_columns(offset, max_records=max_records, columns=names):
                columns = [chunk.offsets.tolist(), chunk.timestamps.tolist(), chunk.keys, chunk.values, chunk.headers]
                found += [RecordSeen(*row) for row in zip(*columns, strict=True)]
        return found

    def batch_table(self, offset: int) -> list[BatchSeen]:
        with _our_refusals():
            table = self._open_log.batch_table(offset)
        return [BatchSeen(*row) for row in zip(*(table[name].tolist() for name in BatchSeen._fields), strict=True)]

    def offset_for_timestamp(self, timestamp: int) -> tuple[int, int] | None:
        with _our_refusals():
            found = self._open_log.offset_for_timestamp(timestamp)
        return None if found is None else (found.timestamp, found.offset)

    def max_timestamp(self) -> tuple[int, int] | None:
        with _our_refusals():
            found = self._open_log.max_timestamp()
        return None if found is None else (found.timestamp, found.offset)

    def marks(self) -> Marks:
        return Marks(*(getattr(self._open_log, field) for field in Marks._fields))

    def recovery_point(self) -> int:
        return read_checkpoints(self.root).recovery_point or 0


# --- files ------------------------------------------------------------------------------------------------------------


def read_checkpoints(root: Path) -> Checkpoints:
    """The partition's lines of the checkpoints in `root`."""

    def line(name: str) -> int | None:
        path = root / name
        for text in path.read_text().splitlines()[2:] if path.exists() else ():
            topic, partition, offset = text.split()
            if (topic, partition) == TOPIC_LINE:
                return int(offset)
        return None

    names = ("recovery-point-offset-checkpoint", "log-start-offset-checkpoint", "cleaner-offset-checkpoint")
    return Checkpoints(*map(line, names))


def contents(directory: Path) -> dict[str, tuple[int, bytes]]:
    """Every file by name: its size, and its bytes without the zeros at the end (unused slots and preallocated room)."""
    found = {}
    for name in sorted(os.listdir(directory)):  # noqa: PTH208 (twice as fast, thousands of times)
        fd = os.open(f"{directory}/{name}", os.O_RDONLY)
        try:
            size = os.fstat(fd).st_size
            found[name] = (size, os.pread(fd, _data_end(fd, size), 0).rstrip(b"\0"))
        finally:
            os.close(fd)
    return found


def copy_sparse(source: Path, target: Path) -> None:
    """Copy a tree; the hole at the end of a preallocated file stays a hole."""
    for path in sorted(source.rglob("*")):
        copy = target / path.relative_to(source)
        if path.is_dir():
            copy.mkdir(parents=True, exist_ok=True)
            continue
        copy.parent.mkdir(parents=True, exist_ok=True)
        with path.open("rb") as old, copy.open("wb") as new:
            size = os.fstat(old.fileno()).st_size
            new.write(os.pread(old.fileno(), _data_end(old.fileno(), size), 0))
            new.truncate(size)
        shutil.copystat(path, copy)


def _data_end(fd: int, size: int) -> int:
    """Where the hole at the end of a file begins; its size if there is none, or if the system cannot tell."""
    if size < 1 << 20 or not hasattr(os, "SEEK_HOLE"):
        return size
    end = 0
    try:
        while end < size:
            end = os.lseek(fd, os.lseek(fd, end, os.SEEK_DATA), os.SEEK_HOLE)
    except OSError as error:
        if error.errno != errno.ENXIO:  # no data behind `end`
            raise
    return end


def data_of(path: Path) -> bytes:
    """The bytes of a file, without the hole at its end: a preallocated one may be of 1 GiB."""
    with path.open("rb") as file:
        return os.pread(file.fileno(), _data_end(file.fileno(), os.fstat(file.fileno()).st_size), 0)


def split_batches(data: bytes) -> list[bytes]:
    """Whole batches, by their length fields; a partial one at the end is dropped."""
    found = []
    at = 0
    while len(data) - at >= 17 and int.from_bytes(data[at + 8 : at + 12], signed=True) >= 14:
        end = at + 12 + int.from_bytes(data[at + 8 : at + 12])
        if end > len(data):
            break
        found.append(data[at:end])
        at = end
    return found


def last_offset_of(batch: bytes) -> int:
    """The last offset of a batch; one of format 0 or 1 has it in front."""
    return int.from_bytes(batch[:8]) + (int.from_bytes(batch[23:27]) if batch[16] == 2 else 0)


# --- one shape --------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _kafka_refusals() -> Iterator[None]:
    try:
        yield
    except KafkaError as error:
        name = error.invalid or error.name
        raise Refused(RENAMED.get(name, name.removesuffix("Exception") + "Error"), error) from error


@contextlib.contextmanager
def _our_refusals() -> Iterator[None]:
    try:
        yield
    except (kstore.KStoreError, ValueError, TypeError) as error:
        stored = getattr(error, "appended", None)
        appended = NOTHING if stored is None else _our_appended(stored)
        raise Refused(type(error).__name__, error, appended) from error


def together(infos: Sequence[Appended]) -> Appended:
    """One answer for several appends in a row."""
    if not infos:
        return NOTHING
    return Appended(infos[0][0], infos[-1][1], max(info[2] for info in infos), infos[-1][3])


def codec_of(config: Mapping[str, Any], asked: str) -> str:
    """The codec that kstore packs batches with: the topic's, or the one asked for."""
    topic: str = config.get("compression.type", "producer")
    return asked if topic == "producer" else "none" if topic == "uncompressed" else topic


def rows_of_a_batch(kafka: Kafka, rows: Sequence[Row], config: Mapping[str, Any]) -> int:
    """How many of the rows kstore packs into one batch: as many as fit uncompressed into what a log takes, or one."""
    limits = (config.get("max.message.bytes", 1_048_588), config.get("internal.segment.bytes", 1 << 30), 1 << 20)
    size = len(rows)
    while size > 1 and len(kafka.encode(rows[:size])) > min(limits):
        size -= 1
    return size


def _marks(answer: Mapping[str, int]) -> Marks:
    return Marks(*(answer[field] for field in Marks._fields))


def _appended(answer: Mapping[str, int]) -> Appended:
    if answer["last_offset"] < 0:
        return NOTHING
    return Appended(*(answer[field] for field in Appended._fields))


def _our_appended(info: kstore.AppendInfo) -> Appended:
    return Appended(*(getattr(info, field) for field in Appended._fields))


def record_seen(line: Mapping[str, Any]) -> RecordSeen:
    def decode(text: str | None) -> bytes | None:
        return None if text is None else base64.b64decode(text)

    headers = tuple((name, decode(data)) for name, data in line["headers"])
    return RecordSeen(line["offset"], line["timestamp"], decode(line["key"]), decode(line["value"]), headers)


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
