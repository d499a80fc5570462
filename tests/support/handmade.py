"""A backup made by hand: every round is all of a store, so that what a restore must give is plain to see."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import kstore
from kstore import Log
from kstore._core import crc32c
from kstore.codec import header
from kstore.files import checkpoint, gap_files, names
from kstore.files.load_files import LOADS_FILE
from kstore.log.hosted_log import HostedLog
from kstore.objects import backup_manifest, backup_rounds, object_keys
from kstore.objects.backup_contents import (
    BackupState,
    Chunk,
    EpochStart,
    SealedSegment,
    StoredFile,
    TopicState,
)
from kstore.objects.backup_manifest import BackupManifest, CatalogPlace
from kstore.objects.backup_rounds import Change, Round
from kstore.objects.object_store import Objects
from kstore.objects.open_objects import open_objects


class HandmadeBackup:
    """A backup in a directory. `round` adds a round with all that a store has; `catalog_every` rounds get a catalog."""

    def __init__(self, path: Path, *, catalog_every: int = 3, chunk_bytes: int = 700) -> None:
        self.path = path
        self.objects: Objects = open_objects(str(path), create=True)
        self.catalog_every = catalog_every
        self.chunk_bytes = chunk_bytes
        self.manifest = BackupManifest("a" * 32, 1, "b" * 32, 1, 0, 0, 86_400_000)
        self.state = BackupState()
        self._taken: dict[str, tuple[int, int]] = {}

    def round(self, store: kstore.Store, time_ms: int, **changes: Any) -> int:
        """Back up a store whole, as a new round; its number."""
        store.flush()
        number = self.manifest.number + 1
        tails: list[bytes] = []
        found = [
            self._partition(store, topic, partition, number, tails)
            for topic in store.topics
            for partition in store.partitions(topic)
        ]
        kept = {change.key for change in found}
        found += [Change(*key, deleted=True) for key in self.state.partitions if key not in kept]
        topics: dict[str, TopicState | None] = dict.fromkeys(self.state.topics)
        for topic in store.topics:
            record = store._metadata.table.topics.get(topic)
            if record is not None:
                topic_id = checkpoint.format_topic_id(record.topic_id)
                topics[topic] = TopicState(topic_id, record.partitions, dict(record.config))
        done = Path(store.paths[0]) / LOADS_FILE
        loads = done.read_text() if done.exists() else None
        made = Round(number, time_ms, 1, changes.pop("caught_up", True), tuple(found), topics, loads=loads)
        encoded = backup_rounds.encode_round(made)
        assert self.objects.put_new(object_keys.round_key(number), encoded + b"".join(tails))
        self.state = backup_rounds.apply(self.state, made, "here", len(encoded))
        spans = backup_manifest.add_round(self.manifest.rounds, number)
        catalogs = self.manifest.catalogs
        if number % self.catalog_every == 0:
            data = backup_rounds.encode_catalog(self.state)
            assert self.objects.put_new(object_keys.catalog_key(number), data)
            catalogs, spans = (*catalogs, CatalogPlace(number, time_ms, len(data), crc32c(data), spans)), ()
        self.write(number=number, time_ms=time_ms, catalogs=catalogs, rounds=spans)
        return number

    def write(self, **fields: Any) -> None:
        """Write the manifest with other fields."""
        from dataclasses import replace

        self.manifest = replace(self.manifest, **fields, revision=self.manifest.revision + 1)
        (self.path / object_keys.MANIFEST).write_bytes(self.manifest.encode())

    def _partition(self, store: kstore.Store, topic: str, partition: int, number: int, tails: list[bytes]) -> Change:
        log = store.log(topic, partition)
        writer = HostedLog(log).writer
        topic_id = store.topic_id(topic)
        sealed = [self._sealed(log, segment, number) for segment in log.segments[:-1]]
        active = log.segments[-1]
        data = Path(active.path).read_bytes()[: active.size_bytes]
        chunks = []
        whole: list[tuple[int, int, int]] = []
        position = 0
        while position < len(data):
            end = position + header.size_of(data, position)
            whole.append((position, end, header.last_offset_of(data, position) + 1))
            position = end
        start = 0
        for at, (_, end, next_offset) in enumerate(whole):
            if end - start >= self.chunk_bytes or at == len(whole) - 1:
                piece = data[start:end]
                place = sum(map(len, tails))
                chunks.append(Chunk(active.base_offset, start, len(piece), crc32c(piece), next_offset, 0, place))
                tails.append(piece)
                start = end
        assert start == len(data)
        end_offset = log.log_end_offset
        return Change(
            topic,
            partition,
            anew=True,
            topic_id="" if topic_id is None else checkpoint.format_topic_id(topic_id),
            log_start_offset=log.log_start_offset,
            end_offset=end_offset,
            high_watermark=end_offset,
            cleaned_offset=-1,
            gaps=tuple(gap_files.read_gaps(log.path)),
            epochs=tuple(EpochStart(*entry) for entry in writer.epochs.entries),
            sealed=tuple(sealed),
            chunks=tuple(chunks),
        )

    def _sealed(self, log: Log, segment: kstore.SegmentInfo, number: int) -> SealedSegment:
        files = []
        for kind in object_keys.KINDS:
            path = Path(log.path) / names.file_name(segment.base_offset, kind)
            if path.exists():
                data = path.read_bytes()
                file = StoredFile(kind, len(data), crc32c(data))
                key = object_keys.FileKey(log.topic, log.partition, segment.base_offset, kind)
                if self._taken.setdefault(str(key), (file.length, file.crc)) != (file.length, file.crc):
                    key = key._replace(suffix=object_keys.suffix_of(1, number))
                files.append(file._replace(suffix=key.suffix))
                self.objects.put_new(str(key), data)
        bases = [each.base_offset for each in log.segments]
        following = bases[bases.index(segment.base_offset) + 1]
        modified_ns = Path(segment.path).stat().st_mtime_ns
        return SealedSegment(segment.base_offset, following, 0, modified_ns, tuple(files))
