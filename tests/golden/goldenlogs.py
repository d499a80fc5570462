"""The partition directories of the golden sets, and what plain Python makes of them: the oracle of the golden tests.

Nothing here asks kstore: batches are found by the size fields of their headers, records come from `records.jsonl`,
index files are cut into entries with `struct`. `PARTITIONS` names every directory that a test goes through.
"""

from __future__ import annotations

import fnmatch
import shutil
import struct
import tempfile
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from kstore import LogConfig
from tests.golden import goldensets

NO_LINES = "damaged-files"  # single files with a fault each; test_golden_damaged.py has a table of them
ROOT_FILES = ("recovery-point-offset-checkpoint", "log-start-offset-checkpoint", "cleaner-offset-checkpoint")
CLEAN_MARKER = ".kafka_cleanshutdown"

# What the topics' settings have in common (README of the sets) and every broker's limit.
_COMMON = {"segment.ms": "9223372036854775807", "retention.ms": "-1", "max.message.bytes": "4000000"}
_NOT_OURS = {
    "message.format.version",
    "retention.bytes",
    "file.delete.delay.ms",
    "segment.bytes",
    "delete.retention.ms",
}
# What `about.json` does not say of a set. Tried out: no other power of two gives the index files that are there.
_UNTOLD = {
    "compaction": {"index.interval.bytes": "1024"},
    "delete-records": {"index.interval.bytes": "1024"},
    "epochs": {"index.interval.bytes": "512"},
    "legacy": {"index.interval.bytes": "512"},
    "retention": {"index.interval.bytes": "1024"},
}
# What it says in words, or of the set that the same programs made, by topic.
_IN_WORDS = {
    "idem": {"internal.segment.bytes": "16384"},
    "tx": {"internal.segment.bytes": "8192", "index.interval.bytes": "512"},
    "recompress-uncompressed": {"compression.type": "uncompressed"},
    "recompress-zstd": {"compression.type": "zstd"},
    "__consumer_offsets": {"cleanup.policy": "compact"},
    "__transaction_state": {"cleanup.policy": "compact"},
}


class RecordRow(NamedTuple):
    """One record and what its batch says, under the names of `records.jsonl`."""

    offset: int
    timestamp: int
    timestampType: str
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    batchBaseOffset: int
    sequence: int
    producerId: int
    producerEpoch: int
    isTransactional: bool
    isControl: bool
    compression: str
    magic: int
    partitionLeaderEpoch: int


class EmptyRow(NamedTuple):
    """One batch without records, which a cleaner has left."""

    batchBaseOffset: int
    lastOffset: int
    baseSequence: int
    maxTimestamp: int
    producerId: int
    producerEpoch: int
    isTransactional: bool
    isControl: bool
    compression: str
    magic: int
    partitionLeaderEpoch: int


Row = RecordRow | EmptyRow


class Partition(NamedTuple):
    """One partition directory: its set, and its path inside the set."""

    set: str
    directory: str

    def __str__(self) -> str:
        return f"{self.set}/{self.directory}"

    @property
    def topic(self) -> str:
        return self.directory.rpartition("/")[2].rpartition("-")[0]

    @property
    def number(self) -> int:
        return int(self.directory.rpartition("-")[2])


@dataclass(frozen=True)
class Batch:
    """One batch in a file, by its header alone; `last_offset` of a wrapper of format 0 or 1 is its own offset."""

    segment: int
    position: int
    data: bytes
    base_offset: int
    last_offset: int
    max_timestamp: int
    leader_epoch: int
    magic: int
    attributes: int
    producer_id: int


@dataclass
class Oracle:
    """What is in a partition directory: whole batches by segment, the records, the marks."""

    bases: list[int]
    batches: list[Batch]
    rows: list[Row]
    log_start: int
    recovery_point: int
    log_end: int
    ends: dict[int, int] = field(default_factory=dict)

    @property
    def records(self) -> list[RecordRow]:
        return [row for row in self.rows if isinstance(row, RecordRow)]

    def of_segment(self, base: int) -> list[Batch]:
        return [batch for batch in self.batches if batch.segment == base]


def expected_rows(partition: Partition) -> list[Row]:
    """`records.jsonl` as rows, which end before the first error."""
    rows: list[Row] = []
    for line in goldensets.read_lines(partition.set):
        if line["dir"] != partition.directory:
            continue
        if "error" in line:
            break
        if "emptyBatch" in line:
            rows.append(EmptyRow(**{name: line[name] for name in EmptyRow._fields}))
            continue
        told = {name: line[name] for name in RecordRow._fields}
        told["key"], told["value"] = goldensets.decode(line["key"]), goldensets.decode(line["value"])
        told["headers"] = tuple((name, goldensets.decode(value)) for name, value in line["headers"])
        rows.append(RecordRow(**told))
    return rows


def found_rows(batches: Iterable[Any]) -> list[Row]:
    """The same rows from kstore's batches."""
    rows: list[Row] = []
    for batch in batches:
        common = (
            batch.producer_id,
            batch.producer_epoch,
            batch.is_transactional,
            batch.is_control,
            batch.compression,
            batch.magic,
            batch.partition_leader_epoch,
        )
        records = list(batch)
        for record in records:
            sequence = -1 if batch.base_sequence < 0 else batch.base_sequence + record.offset - batch.base_offset
            offset, timestamp, key, value, headers = record
            fields = (offset, timestamp, batch.timestamp_type, key, value, headers)
            rows.append(RecordRow(*fields, batch.base_offset, sequence, *common))
        if not records:
            mine = (batch.base_offset, batch.last_offset, batch.base_sequence, batch.max_timestamp)
            rows.append(EmptyRow(*mine, *common))
    return rows


def split(log: bytes, segment: int) -> list[Batch]:
    """The batches of a `.log` file up to the first that is not whole or declares a size that none has."""
    batches = []
    position = 0
    while len(log) - position > 17:
        base_offset, size, _, magic = struct.unpack_from(">qiib", log, position)
        if size < 14 or 12 + size > len(log) - position:
            break
        data = log[position : position + 12 + size]
        if magic >= 2 and len(data) < 61:
            break
        if magic < 2:
            timestamp = struct.unpack_from(">q", data, 18)[0] if magic == 1 else -1
            batch = Batch(segment, position, data, base_offset, base_offset, timestamp, -1, magic, data[17], -1)
        else:
            epoch, _, _, attributes, delta, _, most, producer_id = struct.unpack_from(">ibIhiqqq", data, 12)
            last = base_offset + delta
            batch = Batch(segment, position, data, base_offset, last, most, epoch, magic, attributes, producer_id)
        batches.append(batch)
        position += len(data)
    return batches


def oracle(partition: Partition, root: Path) -> Oracle:
    """Read the directory of `partition` below `root` (its parent) with plain Python."""
    directory = root / partition.directory.rpartition("/")[2]
    bases = sorted(int(path.name[:20]) for path in directory.glob("*.log"))
    batches = [batch for base in bases for batch in split((directory / f"{base:020d}.log").read_bytes(), base)]
    rows = expected_rows(partition)
    known = defaultdict(int, lines_of(partition, root))
    log_end = batches[-1].last_offset + 1 if batches else 0
    found = Oracle(
        bases=bases,
        batches=batches,
        rows=rows,
        log_start=max(known[ROOT_FILES[1]], bases[0] if bases else 0),
        recovery_point=known[ROOT_FILES[0]],
        log_end=max(log_end, bases[-1] if bases else 0, known[ROOT_FILES[1]]),
    )
    for batch in batches:
        found.ends[batch.segment] = batch.position + len(batch.data)
    return found


def lines_of(partition: Partition, root: Path) -> dict[str, int]:
    """What the checkpoint files of the directory say of the partition."""
    known = {}
    for name in ROOT_FILES:
        path = root / name
        for line in path.read_text().splitlines()[2:] if path.exists() else ():
            topic, number, offset = line.split()
            if (topic, int(number)) == (partition.topic, partition.number):
                known[name] = int(offset)
    return known


def cut(whole: Oracle, offset: int) -> Oracle:
    """The same log without what is at and above `offset`, which is the base of a batch."""
    batches = [batch for batch in whole.batches if batch.last_offset < offset]
    return Oracle(
        bases=[base for base in whole.bases if base <= offset],
        batches=batches,
        rows=[row for row in whole.rows if row.batchBaseOffset < offset],
        log_start=whole.log_start,
        recovery_point=whole.recovery_point,
        log_end=offset,
        ends={batch.segment: batch.position + len(batch.data) for batch in batches},
    )


def config(partition: Partition) -> LogConfig:
    """The settings that the broker used for the topic, as far as they decide what is written."""
    told = goldensets.about(partition.set).get("topicConfig", {})
    merged: dict[str, Any] = {}
    for name, value in told.items() if isinstance(told, dict) else ():
        if not isinstance(value, dict):
            merged[name] = value
        elif name == "both" or fnmatch.fnmatch(partition.topic, name):
            merged.update(value)
        elif partition.topic in value:
            merged[name] = value[partition.topic]
    if partition.topic.startswith("__"):
        merged = {}  # the settings are those of the set's own topic
    own = {name: str(value) for name, value in merged.items() if name not in _NOT_OURS and "*" not in name}
    untold = {} if partition.topic.startswith("__") else _UNTOLD.get(partition.set, {})
    return LogConfig.from_kafka({**_COMMON, **own, **untold, **_IN_WORDS.get(partition.topic, {})})


@cache
def _unpacked(name: str) -> Path:
    """One copy of the set for the whole run; no test changes it."""
    keep = tempfile.TemporaryDirectory(prefix="golden-", ignore_cleanup_errors=True)
    _keep.append(keep)
    return goldensets.copy_set(name, Path(keep.name))


_keep: list[tempfile.TemporaryDirectory[str]] = []


def unpacked(partition: Partition) -> Path:
    """The directory that holds the partition's, in the copy that no test changes."""
    return (_unpacked(partition.set) / partition.directory).parent


def copy_root(partition: Partition, into: Path) -> Path:
    """Copy the partition directory and the files beside it (checkpoints, marker) to a new root below `into`."""
    source = unpacked(partition)
    root = into / "root"
    root.mkdir()
    for path in source.iterdir():
        if path.is_file():
            shutil.copy2(path, root / path.name)
    shutil.copytree(source / partition.directory.rpartition("/")[2], root / partition.directory.rpartition("/")[2])
    return root


def files(directory: Path) -> dict[str, bytes]:
    """Every file below the directory, by its path inside it."""
    return {
        str(path.relative_to(directory)): path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file()
    }


def index_entries(data: bytes, base: int) -> list[tuple[int, int]]:
    """The (offset, position) entries of an offset index, without the zeros that follow them."""
    return [(base + offset, position) for offset, position in struct.iter_unpack(">ii", _without_zeros(data, 8))]


def time_entries(data: bytes, base: int) -> list[tuple[int, int]]:
    """The (timestamp, offset) entries of a time index, without the zeros that follow them."""
    return [(time, base + offset) for time, offset in struct.iter_unpack(">qi", _without_zeros(data, 12))]


def _without_zeros(data: bytes, entry_bytes: int) -> bytes:
    data = data[: len(data) // entry_bytes * entry_bytes]
    return data[: -(-len(data.rstrip(b"\0")) // entry_bytes) * entry_bytes]


def _list_partitions() -> tuple[Partition, ...]:
    return tuple(
        Partition(name, directory)
        for name in goldensets.SETS
        if name != NO_LINES
        for directory in goldensets.log_directories(name)
    )


PARTITIONS = _list_partitions()


def with_sorted_snapshots(files: dict[str, bytes]) -> dict[str, bytes]:
    """The same, with the entries of snapshots, which Kafka writes in the order of a hash map, in order and unsealed."""
    found = dict(files)
    for name, data in files.items():
        if ".snapshot" in name and len(data) > 10:
            entries = sorted(data[at : at + 46] for at in range(10, len(data), 46))
            found[name] = b"".join([data[:2], data[6:10], *entries])
    return found
