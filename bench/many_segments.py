"""Writes the files of a log of very many segments: to roll so often would take an hour."""

from __future__ import annotations

import os
import struct
import time
from pathlib import Path

import kstore
from kstore._core import crc32c
from kstore.files import checkpoint
from kstore.objects import object_keys
from kstore.objects.backup_contents import (
    BackupState,
    EpochStart,
    PartitionState,
    SealedSegment,
    StoredFile,
    TopicState,
)
from kstore.objects.backup_manifest import BackupManifest, CatalogPlace
from kstore.objects.backup_rounds import encode_catalog


def write_segments(partition: Path, count: int, value: bytes, start_ms: int) -> None:
    """Replace the segments in a partition's directory by so many, with one record in each, one millisecond apart."""
    for name in partition.glob("0*"):
        name.unlink()
    for offset in range(count):
        data = kstore.encode_batch([(None, value, start_ms + offset, None)], base_offset=offset)
        (partition / f"{offset:020}.log").write_bytes(data)
        (partition / f"{offset:020}.index").touch()
        (partition / f"{offset:020}.timeindex").write_bytes(struct.pack(">qi", start_ms + offset, 0))


def write_backup(partition: Path, directory: Path) -> None:
    """Write a backup of one partition of sealed segments: a first backup of so many would make thousands of rounds.

    It is what a backup has after its newest catalog; the segments' files are links to those of the partition.
    """
    topic, _, number = partition.name.rpartition("-")
    topic_id = checkpoint.format_topic_id(checkpoint.read_partition_metadata(partition).topic_id)
    (directory / partition.name).mkdir(parents=True)
    with kstore.Log.open(partition, mode="r") as log:
        found = [each for each in log.segments if each.size_bytes]
    segments = []
    for each in found:
        files = []
        for kind in (".log", ".index", ".timeindex"):
            path = partition / f"{each.base_offset:020}{kind}"
            os.link(path, directory / partition.name / path.name)
            data = path.read_bytes()
            files.append(StoredFile(kind, len(data), crc32c(data)))
        stat = Path(each.path).stat()
        segments.append(
            SealedSegment(
                each.base_offset, each.next_offset, stat.st_ino, stat.st_mtime_ns, tuple(files), each.max_timestamp
            )
        )
    end = found[-1].next_offset
    state = PartitionState(
        topic, int(number), topic_id, end_offset=end, high_watermark=end, epochs=(EpochStart(0, 0),),
        segments=tuple(segments),
    )  # fmt: skip
    now = time.time_ns() // 1_000_000
    catalog = encode_catalog(
        BackupState(1, now, caught_up=True, topics={topic: TopicState(topic_id, 1)}, partitions={state.key: state})
    )
    (directory / object_keys.catalog_key(1)).write_bytes(catalog)
    place = CatalogPlace(1, now, len(catalog), crc32c(catalog))
    manifest = BackupManifest("0" * 32, 1, "0" * 32, 1, 1, now, window_ms=0, catalogs=(place,))
    (directory / object_keys.MANIFEST).write_bytes(manifest.encode())
