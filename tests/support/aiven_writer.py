"""Writes segments as Aiven's plugin for tiered storage does, for tests of their reader.

No artifact of the plugin was found on Maven Central, so this follows the format that its sources and pages describe:
the names of objects, the JSON of the manifest (version 1), the binary form of the sizes of chunks, and the index files
one after another in one object. The segments themselves are those of golden sets, or are cut out of them.
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import cramjam

TOPIC_ID = "lZ6vvmajTWKDBUTV6SQAtQ"
KINDS = ("offset", "timestamp", "producerSnapshot", "leaderEpoch", "transaction")


class Batch(NamedTuple):
    """A batch of a log, and what its header says."""

    data: bytes
    base: int
    last: int
    epoch: int
    max_timestamp: int


class Segment(NamedTuple):
    """A segment as the broker hands it to the plugin."""

    base: int
    end: int
    log: bytes
    offset_index: bytes
    time_index: bytes
    txn_index: bytes | None
    snapshot: bytes
    lineage: tuple[tuple[int, int], ...]
    max_timestamp: int

    @property
    def epochs(self) -> dict[str, int]:
        """The epochs in the segment with their first offsets in it."""
        found = {}
        for at, (epoch, start) in enumerate(self.lineage):
            end = self.lineage[at + 1][1] if at + 1 < len(self.lineage) else self.end
            if end > self.base:
                found[str(epoch)] = max(start, self.base)
        return found


def batches_of(log: bytes) -> list[Batch]:
    """The batches of a log's bytes."""
    found, at = [], 0
    while at < len(log):
        base, length, epoch = struct.unpack_from(">qii", log, at)
        delta, stamp = struct.unpack_from(">i", log, at + 23)[0], struct.unpack_from(">q", log, at + 35)[0]
        found.append(Batch(log[at : at + length + 12], base, base + delta, epoch, stamp))
        at += length + 12
    return found


def of_epoch(batch: Batch, epoch: int) -> Batch:
    """The batch as a leader of another epoch would have written it."""
    return batch._replace(data=batch.data[:12] + struct.pack(">i", epoch) + batch.data[16:], epoch=epoch)


def lineage_of(batches: Iterable[Batch]) -> tuple[tuple[int, int], ...]:
    """The epochs of a log with these batches."""
    found: dict[int, int] = {}
    for batch in batches:
        found.setdefault(batch.epoch, batch.base)
    return tuple(found.items())


def segment_of(batches: Sequence[Batch], log: Sequence[Batch], interval: int = 300) -> Segment:
    """A segment of these batches of a log, with an index entry for each `interval` bytes, as a broker makes them."""
    index, times, position, since = b"", b"", 0, 0
    stamp, stamp_offset, written = -1, -1, -1
    base = batches[0].base
    for batch in batches:
        if batch.max_timestamp > stamp:
            stamp, stamp_offset = batch.max_timestamp, batch.last
        if since > interval:
            index += struct.pack(">ii", batch.last - base, position)
            if stamp > written:
                times += struct.pack(">qi", stamp, stamp_offset - base)
                written = stamp
            since = 0
        position += len(batch.data)
        since += len(batch.data)
    if stamp > written:
        times += struct.pack(">qi", stamp, stamp_offset - base)
    end = batches[-1].last + 1
    lineage = lineage_of(batch for batch in log if batch.base < end)
    data = b"".join(batch.data for batch in batches)
    return Segment(base, end, data, index, times, None, b"snapshot %d" % end, lineage, stamp)


def segment_from(directory: Path, base: int, end: int) -> Segment:
    """The segment of a directory that a broker wrote; `end` is the base offset of the next one."""

    def read(suffix: str, offset: int = base) -> bytes | None:
        path = directory / f"{offset:020d}{suffix}"
        return path.read_bytes() if path.exists() else None

    lines = (directory / "leader-epoch-checkpoint").read_text().splitlines()[2:]
    epochs = (tuple(map(int, line.split())) for line in lines)
    lineage = tuple((epoch, start) for epoch, start in epochs if start < end)
    log = read(".log") or b""
    stamp = max(batch.max_timestamp for batch in batches_of(log))
    index, times = read(".index") or b"", read(".timeindex") or b""
    return Segment(base, end, log, index, times, read(".txnindex"), read(".snapshot", end) or b"", lineage, stamp)


def encode_sizes(sizes: Sequence[int]) -> bytes:
    """The sizes of chunks in the plugin's binary form, before it is compressed."""
    if len(sizes) == 1:
        return struct.pack(">ii", 1, sizes[0])
    least = min(sizes[:-1])
    width = max(1, *((size - least).bit_length() + 7 >> 3 for size in sizes[:-1]))
    values = b"".join((size - least).to_bytes(width) for size in sizes[:-1])
    return struct.pack(">iib", len(sizes), least, width) + values + struct.pack(">i", sizes[-1])


def manifest_of(segment: Segment, key: str, sizes: Sequence[int] | None, chunk: int, written_ms: int) -> dict[str, Any]:
    """The manifest as JSON's values; `sizes` are those of compressed chunks, None if they are not compressed."""
    count = -(-len(segment.log) // chunk)
    index: dict[str, Any] = {"originalChunkSize": chunk, "originalFileSize": len(segment.log)}
    if sizes is None:
        last = len(segment.log) - (count - 1) * chunk
        index = {"type": "fixed", **index, "transformedChunkSize": chunk, "finalTransformedChunkSize": last}
    else:
        packed = bytes(cramjam.zstd.compress(encode_sizes(sizes)))
        index = {"type": "variable", **index, "transformedChunks": base64.b64encode(packed).decode()}
    places: dict[str, Any] = {}
    at = 0
    for kind, data in zip(KINDS, indexes_of(segment), strict=True):
        places[kind] = None if data is None else {"position": at, "size": len(data)}
        at += len(data or b"")
    topic, partition, name = key.rsplit("/", 2)
    ids = {"topicId": topic[-22:], "topicPartition": {"topic": topic[:-23].rpartition("/")[2]}}
    ids["topicPartition"]["partition"] = int(partition)  # type: ignore[index]
    metadata = {
        "remoteLogSegmentId": {"topicIdPartition": ids, "id": name[21:]},
        "startOffset": segment.base,
        "endOffset": segment.end - 1,
        "maxTimestampMs": segment.max_timestamp,
        "brokerId": 1,
        "eventTimestampMs": written_ms,
        "segmentLeaderEpochs": segment.epochs,
    }
    return {
        "version": "1",
        "chunkIndex": index,
        "segmentIndexes": places,
        "compression": sizes is not None,
        "remoteLogSegmentMetadata": metadata,
    }


def indexes_of(segment: Segment) -> tuple[bytes | None, ...]:
    """The index files in the order of the `.indexes` object."""
    lines = [0, len(segment.lineage), *(f"{epoch} {start}" for epoch, start in segment.lineage)]
    epochs = "".join(f"{line}\n" for line in lines).encode()
    return segment.offset_index, segment.time_index, segment.snapshot, epochs, segment.txn_index


def name_of(number: int) -> str:
    """A segment's id."""
    return base64.urlsafe_b64encode(number.to_bytes(16)).decode().rstrip("=")


def objects_of(
    segment: Segment,
    *,
    topic: str = "events",
    topic_id: str = TOPIC_ID,
    partition: int = 0,
    number: int = 1,
    chunk: int | None = None,
    prefix: str = "",
    written_ms: int = 1_700_000_000_000,
) -> dict[str, bytes]:
    """The three objects of a segment by their keys; with `chunk`, the log is compressed in chunks of so many bytes."""
    key = f"{prefix}{topic}-{topic_id}/{partition}/{segment.base:020d}-{name_of(number)}"
    if chunk is None:
        log, manifest = segment.log, manifest_of(segment, key, None, 4 << 20, written_ms)
    else:
        cut = [segment.log[at : at + chunk] for at in range(0, len(segment.log), chunk)]
        packed = [bytes(cramjam.zstd.compress(part)) for part in cut]
        log, manifest = b"".join(packed), manifest_of(segment, key, [len(part) for part in packed], chunk, written_ms)
    return {
        f"{key}.log": log,
        f"{key}.indexes": b"".join(data or b"" for data in indexes_of(segment)),
        f"{key}.rsm-manifest": json.dumps(manifest, separators=(",", ":")).encode(),
    }
