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
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from kafka_jvm import Kafka, KafkaError, KafkaLog, Row

import kstore

PARTITION = "events-0"
TOPIC_LINE = ("events", "0")

# Kafka's exceptions whose names say another thing in kstore (SEMANTICS.md 14).
RENAMED = {
    "IllegalArgumentException": "ValueError",
    "KafkaException": "StorageError",
    "KafkaStorageException": "StorageError",
    "IOException": "StorageError",
}


class Refused(Exception):
    """A side said no: `name` is an exception of kstore or a built-in one."""

    def __init__(self, name: str, original: BaseException) -> None:
        super().__init__(f"{name} ({original})")
        self.name = name
        self.original = original


class Appended(NamedTuple):
    """Both -1 when nothing was stored."""

    first_offset: int
    last_offset: int
    max_timestamp: int
    log_append_time: int


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


class Checkpoints(NamedTuple):
    """The partition's lines beside it; None where there is no line."""

    recovery_point: int | None
    log_start: int | None


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
    def housekeeping(self) -> None: ...
    def update_config(self, settings: Mapping[str, Any]) -> None: ...
    def append(self, row: Row, leader_epoch: int) -> int: ...
    def append_many(self, rows: Sequence[Row], compression: str, leader_epoch: int) -> Appended: ...
    def append_batch(self, data: bytes, origin: str, leader_epoch: int, *, version: int | None = None) -> Appended: ...
    def append_as_follower(self, data: bytes, leader_epoch: int) -> Appended: ...
    def batches(self, first_offset: int, last_offset: int) -> list[bytes]: ...
    def roll(self) -> None: ...
    def retain(self) -> int: ...
    def flush(self) -> None: ...
    def truncate_to(self, offset: int) -> bool: ...
    def truncate_fully(self, offset: int, log_start: int | None) -> None: ...
    def delete_records(self, offset: int) -> None: ...
    def fetch(self, offset: int, max_bytes: int, min_one_message: bool) -> Fetched: ...
    def fetch_committed(self, offset: int, max_bytes: int, min_one_message: bool) -> Committed: ...
    def records(self, offset: int) -> list[RecordSeen]: ...
    def offset_for_timestamp(self, timestamp: int) -> tuple[int, int] | None: ...
    def max_timestamp(self) -> tuple[int, int] | None: ...
    def marks(self) -> Marks: ...
    def recovery_point(self) -> int: ...


def outcome(act: Callable[[], Any]) -> tuple[str, Any]:
    """("answers", value) or ("refuses", name)."""
    try:
        return "answers", act()
    except Refused as refused:
        return "refuses", refused.name


class KafkaSide:
    """Kafka's log. The high watermark follows the end, as in a kstore log (SEMANTICS.md 0.4)."""

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

    def housekeeping(self) -> None:
        self.call("run_tasks")

    def update_config(self, settings: Mapping[str, Any]) -> None:
        self.config.update(settings)
        self.call("update_config", config={name: _text(value) for name, value in self.config.items()})

    def append(self, row: Row, leader_epoch: int) -> int:
        timestamp, *rest = row
        data = self.kafka.encode([(self.now if timestamp is None else timestamp, *rest)])
        return self.append_batch(data, "client", leader_epoch).first_offset

    def append_many(self, rows: Sequence[Row], compression: str, leader_epoch: int) -> Appended:
        """In batches of three; used where Kafka stands in for kstore."""
        infos = [
            self.append_batch(self.kafka.encode(rows[i : i + 3], compression=compression), "client", leader_epoch)
            for i in range(0, len(rows), 3)
        ]
        return Appended(infos[0][0], infos[-1][1], max(info[2] for info in infos), infos[-1][3])

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
                first_offset = int.from_bytes(data[:8]) + int.from_bytes(data[23:27]) + 1
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
        self.call("checkpoint")  # as the log manager does (SEMANTICS.md 11.6)
        return cut

    def truncate_fully(self, offset: int, log_start: int | None) -> None:
        self.call("truncate_fully", offset=offset, log_start=log_start)
        self.call("checkpoint")

    def delete_records(self, offset: int) -> None:
        self.call("delete_records", offset=offset)

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
                found.append(_record_seen(line))
        return found

    def offset_for_timestamp(self, timestamp: int) -> tuple[int, int] | None:
        answer = self.call("offset_for_timestamp", timestamp=timestamp)
        return None if answer is None else (answer["timestamp"], answer["offset"])

    def max_timestamp(self) -> tuple[int, int] | None:
        found = self.offset_for_timestamp(-3)
        return None if found is None or found[0] < 0 else found

    def marks(self) -> Marks:
        assert self.log is not None
        marks = self.log.marks()
        return Marks(*(marks[field] for field in Marks._fields))

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

    def housekeeping(self) -> None:
        with _our_refusals():
            self._open_log.run_housekeeping()

    def update_config(self, settings: Mapping[str, Any]) -> None:
        self.config.update(settings)
        with _our_refusals():
            self._open_log.update_config(**{name.replace(".", "_"): value for name, value in settings.items()})

    def append(self, row: Row, leader_epoch: int) -> int:
        timestamp, key, value, headers = (*row, ())[:4]
        with _our_refusals():
            log = self._open_log
            return log.append(value, key, timestamp=timestamp, headers=headers, leader_epoch=leader_epoch)

    def append_many(self, rows: Sequence[Row], compression: str, leader_epoch: int) -> Appended:
        records = [(row[1], row[2], row[0], row[3] if len(row) > 3 else None) for row in rows]
        with _our_refusals():
            info = self._open_log.append_many(records, compression=compression, leader_epoch=leader_epoch)
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

    def fetch(self, offset: int, max_bytes: int, min_one_message: bool) -> Fetched:
        with _our_refusals():
            got = self._open_log.fetch(offset, max_bytes, min_one_message=min_one_message)
        return Fetched(got.offset, got.segment_base_offset, got.position, bytes(got.records))

    def fetch_committed(self, offset: int, max_bytes: int, min_one_message: bool) -> Committed:
        with _our_refusals():
            got = self._open_log.fetch(
                offset, max_bytes, min_one_message=min_one_message, isolation="read_committed"
            )
        records, aborted = bytes(got.records), got.aborted_transactions
        assert aborted is not None
        return Committed(records, got.offset if records else -1, aborted if records else ())

    def records(self, offset: int) -> list[RecordSeen]:
        with _our_refusals():
            return [RecordSeen(*record) for record in self._open_log.read(offset)]

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
    """The partition's lines of the recovery-point and log-start checkpoints in `root`."""

    def line(name: str) -> int | None:
        path = root / name
        for text in path.read_text().splitlines()[2:] if path.exists() else ():
            topic, partition, offset = text.split()
            if (topic, partition) == TOPIC_LINE:
                return int(offset)
        return None

    return Checkpoints(line("recovery-point-offset-checkpoint"), line("log-start-offset-checkpoint"))


def contents(directory: Path) -> dict[str, tuple[int, bytes]]:
    """Every file by name: its size, and its bytes without the zeros at the end (unused slots and preallocated room)."""
    found = {}
    for entry in sorted(directory.iterdir()):
        with entry.open("rb") as file:
            found[entry.name] = (os.fstat(file.fileno()).st_size, file.read(_data_end(file.fileno())).rstrip(b"\0"))
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
            new.write(old.read(_data_end(old.fileno())))
            new.truncate(os.fstat(old.fileno()).st_size)
        shutil.copystat(path, copy)


def _data_end(fd: int) -> int:
    """Where the hole at the end of a file begins; its size if there is none, or if the system cannot tell."""
    size = os.fstat(fd).st_size
    if size < 1 << 20 or not hasattr(os, "SEEK_HOLE"):
        return size
    end = 0
    try:
        while end < size:
            end = os.lseek(fd, os.lseek(fd, end, os.SEEK_DATA), os.SEEK_HOLE)
    except OSError as error:
        if error.errno != errno.ENXIO:  # no data behind `end`
            raise
    os.lseek(fd, 0, os.SEEK_SET)
    return end


def split_batches(data: bytes) -> list[bytes]:
    """Whole batches, by their length fields; a partial one at the end is dropped."""
    found = []
    while len(data) >= 17 and int.from_bytes(data[8:12], signed=True) >= 14:
        size = 12 + int.from_bytes(data[8:12])
        if size > len(data):
            break
        found.append(data[:size])
        data = data[size:]
    return found


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
        raise Refused(type(error).__name__, error) from error


def _appended(answer: Mapping[str, int]) -> Appended:
    if answer["last_offset"] < 0:
        return Appended(-1, -1, -1, -1)
    return Appended(*(answer[field] for field in Appended._fields))


def _our_appended(info: kstore.AppendInfo) -> Appended:
    return Appended(*(getattr(info, field) for field in Appended._fields))


def _record_seen(line: Mapping[str, Any]) -> RecordSeen:
    def decode(text: str | None) -> bytes | None:
        return None if text is None else base64.b64decode(text)

    headers = tuple((name, decode(data)) for name, data in line["headers"])
    return RecordSeen(line["offset"], line["timestamp"], decode(line["key"]), decode(line["value"]), headers)


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
