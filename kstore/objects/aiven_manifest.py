"""Parses the manifest of a segment in the tier of Aiven's plugin, as untrusted input.

A manifest is JSON. It says how the `.log` object is divided into chunks, where the index files are in the `.indexes`
object, and what the broker knew of the segment. Invariant: the size of what is returned is bounded by the size of the
manifest, whatever numbers it has.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kstore.base.numbers import INT_MAX, LONG_MAX
from kstore.codec import compression
from kstore.errors import BackupError, CorruptRecordError
from kstore.files import names
from kstore.files.epochs import EpochEntry
from kstore.files.json_file import Fields
from kstore.objects import backup_manifest
from kstore.objects.remote_state import ObjectRange

VERSION = "1"
MOST_MANIFEST_BYTES = 1 << 20
MOST_CHUNKS = 1 << 16
MOST_CHUNK_BYTES = compression.MAX_DECOMPRESSED_BYTES
"""The largest compressed chunk, which has to be decompressed as a whole."""

LEADER_EPOCHS = "leader epochs"
_INDEXES = {
    "offset": names.OFFSET_INDEX,
    "timestamp": names.TIME_INDEX,
    "producerSnapshot": names.SNAPSHOT,
    "leaderEpoch": LEADER_EPOCHS,
    "transaction": names.TXN_INDEX,
}
_NUMBER = re.compile(r"0|[1-9][0-9]{0,9}")


class AivenId(NamedTuple):
    """What the key of a segment's objects says of it."""

    topic: str
    topic_id: str
    partition: int
    base_offset: int
    segment_id: str


class Place(NamedTuple):
    """Where an index file is in the `.indexes` object."""

    position: int
    size: int


@dataclass(frozen=True, slots=True)
class AivenManifest:
    """The content of a manifest. Immutable; thread-safe."""

    log_bytes: int
    """The size of the log."""
    chunk_bytes: int
    """The size of each chunk of the log, except the last one."""
    stored_sizes: Sequence[int] | None
    """The sizes of the compressed chunks; None if the log is not compressed."""
    indexes: dict[str, Place]
    """The index files by kind, the producer snapshot and `LEADER_EPOCHS`."""
    end_offset: int
    max_timestamp: int
    written_ms: int
    epochs: tuple[EpochEntry, ...]

    @property
    def stored_bytes(self) -> int:
        """The size that the `.log` object must have."""
        return self.log_bytes if self.stored_sizes is None else sum(self.stored_sizes)

    @property
    def indexes_bytes(self) -> int:
        """The size that the `.indexes` object must have at least."""
        return max(place.position + place.size for place in self.indexes.values())

    def log_ranges(self, key: str, etag: str | None) -> Iterator[ObjectRange]:
        """Yield the ranges of the `.log` object that make up the log."""
        if self.stored_sizes is None:
            if self.log_bytes:
                yield ObjectRange(key, 0, self.log_bytes, self.log_bytes, etag=etag)
            return
        position, left = 0, self.log_bytes
        for stored in self.stored_sizes:
            length = min(self.chunk_bytes, left)
            yield ObjectRange(key, position, stored, length, is_zstd=True, etag=etag)
            position += stored
            left -= length


def parse(data: bytes, where: str, key: AivenId) -> AivenManifest:
    """Parse the manifest of the segment with this key.

    Raises `BackupError`, which names the manifest (`where`), if it is malformed, of another segment or of an unknown
    version, or if the segment is encrypted.
    """
    fields = backup_manifest.parse(data, where)
    with backup_manifest.malformed_fields(where):
        version = fields.take("version")
        if version != VERSION:
            shown = ascii(version)[:60]
            raise BackupError(f"{where} has version {shown}; this release of kstore knows version {VERSION!r}")
        if fields.has("encryption") and fields.take("encryption") is not None:
            raise BackupError(
                f"{where} says that the segment is encrypted; only a broker that has the plugin's private key can "
                "read it"
            )
        is_compressed = fields.flag("compression")
        log_bytes, chunk_bytes, sizes = _chunks(Fields(fields.take("chunkIndex"), where, "chunkIndex."), is_compressed)
        indexes = dict(_indexes(Fields(fields.take("segmentIndexes"), where, "segmentIndexes.")))
        metadata = Fields(fields.take("remoteLogSegmentMetadata"), where, "remoteLogSegmentMetadata.")
        fields.end()
        _check_id(metadata, key)
        end = metadata.integer("endOffset", key.base_offset, min(LONG_MAX - 1, key.base_offset + INT_MAX)) + 1
        return AivenManifest(
            log_bytes=log_bytes,
            chunk_bytes=chunk_bytes,
            stored_sizes=sizes,
            indexes=indexes,
            end_offset=end,
            max_timestamp=metadata.integer("maxTimestampMs", -1, LONG_MAX),
            written_ms=metadata.integer("eventTimestampMs", -1, LONG_MAX),
            epochs=_epochs(metadata, key.base_offset, end),
        )


def _chunks(fields: Fields, is_compressed: bool) -> tuple[int, int, Sequence[int] | None]:
    """Return the size of the log, the size of a chunk, and the sizes of the compressed chunks if there are any."""
    kind = fields.take("type")
    chunk_bytes = fields.integer("originalChunkSize", 1, INT_MAX)
    log_bytes = fields.integer("originalFileSize", 1, INT_MAX)
    count = -(-log_bytes // chunk_bytes)
    if is_compressed and count > MOST_CHUNKS:
        raise fields.refusal("originalChunkSize", chunk_bytes, f"at most {MOST_CHUNKS} chunks, not {count},")
    if is_compressed and min(chunk_bytes, log_bytes) > MOST_CHUNK_BYTES:
        raise fields.refusal("originalChunkSize", chunk_bytes, f"at most {MOST_CHUNK_BYTES}")
    sizes: Sequence[int] | None
    if kind == "fixed":
        each = fields.integer("transformedChunkSize", 1, INT_MAX)
        last = fields.integer("finalTransformedChunkSize", 1, INT_MAX)
        sizes = [each] * (count - 1) + [last] if is_compressed else None
        is_plain = last == log_bytes - (count - 1) * chunk_bytes and (count == 1 or each == chunk_bytes)
        if not is_compressed and not is_plain:
            raise fields.refusal("transformedChunkSize", each, "the size of the chunks, since they are not compressed,")
    elif kind == "variable":
        sizes = _stored_sizes(fields, count)
        if not is_compressed:
            if sum(sizes) != log_bytes or any(size != chunk_bytes for size in sizes[:-1]):
                raise fields.refusal("transformedChunks", sum(sizes), f"the log's {log_bytes} bytes")
            sizes = None
    else:
        raise fields.refusal("type", kind, "'fixed' or 'variable'")
    fields.end()
    return log_bytes, chunk_bytes, sizes


def _stored_sizes(fields: Fields, count: int) -> list[int]:
    """Decode the sizes of chunks: base64 of a zstd frame of the count, the least size, and what is added to it."""
    text = fields.take("transformedChunks")
    if not isinstance(text, str):
        raise fields.refusal("transformedChunks", text, "text")
    if count > MOST_CHUNKS:
        raise fields.refusal("originalChunkSize", count, f"at most {MOST_CHUNKS} chunks")
    try:
        packed = base64.b64decode(text, validate=True)
        data = compression.decompress(compression.ZSTD, packed, limit=4 * count + 16)
        found = list(_decoded_sizes(data, count))
    except (binascii.Error, CorruptRecordError, ValueError) as error:
        reason = f"the sizes of {count} chunks ({str(error)[:100]})"
        raise fields.refusal("transformedChunks", text, reason) from None
    if any(not 0 < size <= INT_MAX for size in found):
        raise fields.refusal("transformedChunks", text, f"sizes from 1 to {INT_MAX}")
    return found


def _decoded_sizes(data: bytes, count: int) -> Iterator[int]:
    """Yield the sizes of so many chunks; raises `ValueError` if the data has another number of them."""
    if len(data) < 8 or int.from_bytes(data[:4]) != count:
        raise ValueError(f"{int.from_bytes(data[:4])} sizes in {len(data)} bytes")
    if count > 1:
        # All sizes but the last one are stored as a difference from the least of them, in a fixed number of bytes.
        width = data[8] if len(data) > 8 else 0
        if not 1 <= width <= 4 or len(data) != 9 + (count - 1) * width + 4:
            raise ValueError(f"{len(data)} bytes with {width} bytes for a size")
        base = int.from_bytes(data[4:8])
        for at in range(9, len(data) - 4, width):
            yield base + int.from_bytes(data[at : at + width])
    elif len(data) != 8:
        raise ValueError(f"{len(data)} bytes")
    yield int.from_bytes(data[-4:])


def _indexes(fields: Fields) -> Iterator[tuple[str, Place]]:
    for name, kind in _INDEXES.items():
        value = fields.take(name)
        if value is None and kind == names.TXN_INDEX:
            continue
        inner = Fields(value, fields.path, f"{fields.where}{name}.")
        yield kind, Place(inner.integer("position", 0, INT_MAX), inner.integer("size", 0, INT_MAX))
        inner.end()
    fields.end()


def _check_id(metadata: Fields, key: AivenId) -> None:
    """Raise `StorageError` unless the metadata are those of the segment with this key. Other fields are ignored."""
    where = metadata.path
    segment = Fields(metadata.take("remoteLogSegmentId"), where, f"{metadata.where}remoteLogSegmentId.")
    of_topic = Fields(segment.take("topicIdPartition"), where, f"{segment.where}topicIdPartition.")
    partition = Fields(of_topic.take("topicPartition"), where, f"{of_topic.where}topicPartition.")
    for fields, name, wanted in (
        (partition, "topic", key.topic),
        (partition, "partition", key.partition),
        (of_topic, "topicId", key.topic_id),
        (segment, "id", key.segment_id),
        (metadata, "startOffset", key.base_offset),
    ):
        value = fields.take(name)
        if type(value) is not type(wanted) or value != wanted:
            hint = ""
            if name == "topic" and isinstance(value, str) and key.topic.endswith(value):
                hint = " (the plugin's key.prefix must end with a slash)"
            raise fields.refusal(name, value, f"{wanted!r} as in its key{hint}")


def _epochs(metadata: Fields, base: int, end: int) -> tuple[EpochEntry, ...]:
    found: list[EpochEntry] = []
    epochs = metadata.mapping("segmentLeaderEpochs")
    for text, offset in sorted(epochs.items(), key=lambda item: (len(item[0]), item[0])):
        last = found[-1] if found else EpochEntry(-1, -1)
        place = f"segmentLeaderEpochs[{text[:20]!a}]"
        if not _NUMBER.fullmatch(text) or not last.epoch < int(text) <= INT_MAX:
            raise metadata.refusal(place, text, f"an epoch above {last.epoch}")
        if type(offset) is not int or not max(base, last.offset + 1) <= offset < end:
            raise metadata.refusal(place, offset, f"an offset above {last.offset} in {base} to {end - 1}")
        found.append(EpochEntry(int(text), offset))
    if not found:
        raise metadata.refusal("segmentLeaderEpochs", epochs, "at least one epoch")
    return tuple(found)
