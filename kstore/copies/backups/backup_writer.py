"""`BackupWriter`: writes the rounds of a backup. A round is valid once the manifest names it.

Invariant: the state changes only when the manifest is known to have been replaced. If the answer was lost, the manifest
is read before anything else is done.
"""

from __future__ import annotations

import itertools
import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from kstore._core import crc32c
from kstore.base.numbers import LONG_MAX
from kstore.base.stats import BackupLag
from kstore.copies.backups import orphans
from kstore.copies.backups.backup_source import Look, PartitionLook, Source
from kstore.copies.backups.orphans import Orphans
from kstore.copies.backups.round_changes import Memory, Planned, plan
from kstore.copies.backups.segment_uploads import Uploads
from kstore.copies.backups.source_partition import ChangedMeanwhileError
from kstore.disk import fs
from kstore.errors import BackupError, BackupFencedError, KStoreError
from kstore.files import checkpoint, names
from kstore.objects import backup_manifest, backup_reader, backup_rounds, object_keys
from kstore.objects.backup_contents import BackupState, Dropped, PartitionKey, TopicState
from kstore.objects.backup_manifest import BackupManifest, CatalogPlace, Span, numbers_in
from kstore.objects.backup_rounds import Change, Round
from kstore.objects.object_store import ObjectChangedError, Objects, Tag
from kstore.store.coordinator.group_lag import offsets_behind

WINDOW_SECONDS = 7 * 86_400.0
ROUND_BYTES = 32 << 20
"""The approximate maximum of tail bytes in a round, which are held in memory until it has been sent."""
ROUNDS_PER_CATALOG = 512
LEAST_ROUNDS_PER_CATALOG = 16
DELETION_PAUSE_MS = 600_000
"""The least time between two deletions of dropped objects, or a tenth of the restore window if that is less."""
SWEEP_PAUSE_MS = 86_400_000
"""The least time between two searches for objects that no manifest references."""
_ATTEMPTS = 1000


class _Commit(NamedTuple):
    """A manifest that may have been written, and the writer's state once the write is confirmed."""

    manifest: BackupManifest
    state: BackupState
    memories: dict[PartitionKey, Memory]
    header_bytes: int
    live: frozenset[int]


class BackupWriter:
    """The writer of one backup; it has fenced all earlier ones. For one thread."""

    def __init__(
        self,
        source: Source,
        objects: Objects,
        *,
        window_ms: int = int(WINDOW_SECONDS * 1000),
        clock: Callable[[], int] | None = None,
        may_be_new: bool = True,
    ) -> None:
        """Take over the backup, or create it if `may_be_new`. Raises `BackupError` if it has only other topics."""
        self._source = source
        self._objects = objects
        self._clock = clock
        self._memories: dict[PartitionKey, Memory] = {}
        self._pending: _Commit | None = None
        self._orphans: list[int] = []  # numbers of rounds that may have been written but are not valid
        self._found = Orphans()  # objects that no manifest references, until a round drops them
        self._small: dict[PartitionKey, object] = {}
        self._header_bytes = 0
        self._deleted_until_ms = -1
        self._delete_next_ms = 0
        self._swept_ms = 0
        self.rounds = 0
        self.caught_up = False
        self.lag: dict[str, BackupLag] = {}
        self.unknown: dict[str, str] = {}
        self.writer = uuid.uuid4().hex
        self._take_over(window_ms, may_be_new=may_be_new)
        self._uploads = Uploads(objects, self.manifest.generation, self._is_taken, self.manifest.intents)

    def _take_over(self, window_ms: int, *, may_be_new: bool) -> None:
        for _ in range(_ATTEMPTS):
            found = backup_manifest.read_manifest(self._objects)
            tag: Tag | None = None
            if found is None:
                if not may_be_new:
                    raise BackupError(f"there is no backup at {self._objects.url}")
                self.state = BackupState()
                taken = BackupManifest(uuid.uuid4().hex, 1, self.writer, 1, 0, 0, window_ms)
            else:
                before, tag = found
                self.state = backup_reader.read_newest(self._objects, before)
                self._refuse_other_topics()
                generation, revision = before.generation + 1, before.revision + 1
                taken = replace(
                    before, generation=generation, writer=self.writer, revision=revision, window_ms=window_ms
                )
            try:
                self._tag = self._objects.replace(object_keys.MANIFEST, taken.encode(), tag)
            except ObjectChangedError:  # another writer came first, or the answer of an attempt was lost
                continue
            self.manifest = taken
            self._whole_ms = self.state.time_ms if self.state.caught_up else -1
            break
        else:
            raise BackupError(f"{self._objects.url}: other writers take the backup over all the time")
        gone = {number for each in self.state.dropped for number in numbers_in(each.rounds)}
        self._live = frozenset({*taken.all_rounds, *_rounds_of(self.state)} - gone)
        # An earlier writer may still be deleting these objects, so their names stay unused for one more window.
        due = self._now() - self.manifest.window_ms
        self._deleting = [each for each in self.state.dropped if each.time_ms <= due]
        self._set_dropped()

    def _refuse_other_topics(self) -> None:
        """Refuse a backup of another store: the next round would drop its contents."""
        look = self._source.look()
        here = {each.key: self._source.topic_id(each) for each in look.partitions}
        there = {key: partition.topic_id for key, partition in self.state.partitions.items()}
        if there and not any(here.get(key) == topic_id for key, topic_id in there.items()) and not look.unknown:
            shown = ", ".join(sorted({topic for topic, _ in there})[:5])
            raise BackupError(
                f"the backup at {self._objects.url} has other topics ({shown}), and none of this store's: restore "
                f"it, or back up to another prefix"
            )

    def round(self) -> bool:
        """Back up new data; return whether everything is backed up. After a `BackupError` the next call continues."""
        self._settle()
        self._uploads.begin_look()
        look = self._source.look()
        while self._round_of(look):
            continue
        self._uploads.end_look()
        if self._uploads.is_waiting:
            self._commit(self._manifest(self.manifest.number), self.state, self._memories, self._live)
        if self.caught_up and not self._uploads.in_flight:
            self._sweep()
        self._delete_due()
        self._uploads.announced(self.manifest.intents)
        if errors := self._uploads.errors:
            error = errors.pop()
            errors.clear()
            self._small.clear()
            raise error
        return self.caught_up and not self._uploads.is_beside

    def wait(self, timeout: float | None) -> bool:
        """Wait for progress of an upload, if one is in flight; return whether there was any."""
        return self._uploads.wait(timeout)

    def close(self) -> None:
        self._uploads.close()

    def _round_of(self, look: Look) -> bool:
        """Write one round; return whether it is full, so that another round must follow immediately."""
        changes: list[Change] = []
        data: list[bytes] = []
        size = 0
        memories = dict(self._memories)
        caught_up, is_full = True, False
        self.unknown = {f"{topic}-{number}": why for (topic, number), why in look.unknown.items()}
        for each in look.partitions:
            planned = self._plan(each, size, ROUND_BYTES - size)
            if planned is None:
                caught_up = False
                memories.pop(each.key, None)
                continue
            memories[each.key] = planned.after
            caught_up = caught_up and planned.after.look is not None
            if planned.change is not None:
                changes.append(planned.change)
                data += planned.data
                size += sum(map(len, planned.data))
                is_full = is_full or size >= ROUND_BYTES
            self._note_lag(each, planned)
        there = {each.key for each in look.partitions} | look.unknown.keys()
        for key in self.state.partitions if look.is_whole else ():
            if key not in there:
                changes.append(Change(*key, deleted=True))
                self.lag.pop(f"{key[0]}-{key[1]}", None)
                memories.pop(key, None)
        caught_up = caught_up and not look.unknown
        topics = self._topic_changes(look)
        loads = None if look.loads == self.state.loads else look.loads
        is_better = (caught_up, look.together) > (self.state.caught_up, self.state.together)
        if changes or topics or loads is not None or (caught_up and is_better):
            self._write(tuple(changes), topics, loads, data, memories, caught_up=caught_up, together=look.together)
        else:
            self._memories = memories
        self.caught_up = caught_up
        return is_full

    def _plan(self, look: PartitionLook, at: int, budget: int) -> Planned | None:
        known = self.state.partitions.get(look.key)
        memory = self._memories.get(look.key) or Memory()
        try:
            planned = plan(look, known, memory, self._source, self._uploads.finished, at=at, budget=budget)
            if planned.change is not None:
                self._put_small_files(look, planned.change)
        except (ChangedMeanwhileError, fs.MissingFileError):
            return None
        except BackupError:
            raise
        except (KStoreError, OSError) as error:
            self.unknown[f"{look.topic}-{look.partition}"] = str(error)
            return None
        return planned

    def _topic_changes(self, look: Look) -> dict[str, TopicState | None]:
        before = self.state.topics
        changed: dict[str, TopicState | None] = {n: t for n, t in look.topics.items() if before.get(n) != t}
        if look.is_whole:
            changed |= {name: None for name in before if name not in look.topics}
        return changed

    def _write(
        self,
        changes: tuple[Change, ...],
        topics: dict[str, TopicState | None],
        loads: str | None,
        data: list[bytes],
        memories: dict[PartitionKey, Memory],
        *,
        caught_up: bool,
        together: bool,
    ) -> None:
        """Write the round's object, and commit a manifest that names it."""
        time_ms = max(self._now(), self.state.time_ms + 1)
        first, marks = self.manifest.number + 1, (time_ms, self.manifest.generation, caught_up, changes, topics)
        # Compared with the old state to find the objects that the new state no longer references.
        after = backup_rounds.apply(self.state, Round(first, *marks), "the round", 0)
        for number in itertools.count(first):
            dropped = self._dropped(changes, after, time_ms)
            round_ = Round(number, *marks, dropped, self._deleted_until_ms, loads, together)
            header = backup_rounds.encode_round(round_)
            self._orphans.append(number)
            key, parts = object_keys.round_key(number), [header, *data]
            if self._objects.parts_are_new:
                is_put = self._objects.put_new_parts(key, parts)  # avoids the copy that `join` makes
            else:
                is_put = self._objects.put_new(key, b"".join(parts))
            if is_put:
                break
            if number >= first + _ATTEMPTS:
                raise BackupError(f"{key} in {self._objects.url} is there already, as are those before it")
        state = backup_rounds.apply(self.state, round_, object_keys.round_key(number), len(header))
        live = (self._live | frozenset(self._orphans)) - frozenset(numbers_in(round_.dropped.rounds))
        self._header_bytes += len(header)
        catalog = self._catalog(state)
        self._commit(self._manifest(number, time_ms, catalog), state, memories, live)
        self.rounds += 1

    def _catalog(self, state: BackupState) -> CatalogPlace | None:
        """Write a catalog if reading the rounds since the last one would take long."""
        before = self.manifest.catalogs[-1] if self.manifest.catalogs else None
        spans = backup_manifest.add_round(self.manifest.rounds, state.number)
        since = sum(span.last - span.first + 1 for span in spans)
        size = before.length if before is not None else 0
        is_large = since >= LEAST_ROUNDS_PER_CATALOG and self._header_bytes > max(4 * size, 1 << 20)
        if since < ROUNDS_PER_CATALOG and not is_large:
            return None
        data, key = backup_rounds.encode_catalog(state), object_keys.catalog_key(state.number)
        if not self._objects.put_new(key, data):
            found = self._objects.read(key)
            if found is None or found.data != data:
                return None  # left by a fenced writer; the next round has another name
        return CatalogPlace(state.number, state.time_ms, len(data), crc32c(data), spans)

    def _manifest(self, number: int, time_ms: int | None = None, catalog: CatalogPlace | None = None) -> BackupManifest:
        before = self.manifest
        spans = before.rounds if number == before.number else backup_manifest.add_round(before.rounds, number)
        catalogs = before.catalogs if catalog is None else (*before.catalogs, catalog)
        oldest_ms = min(self._now() - before.window_ms, self._whole_ms)
        while len(catalogs) > 1 and catalogs[1].time_ms <= oldest_ms:
            catalogs = (catalogs[1]._replace(rounds=()), *catalogs[2:])  # its rounds build on the removed catalog
        return replace(
            before,
            revision=before.revision + 1,
            number=number,
            time_ms=before.time_ms if time_ms is None else time_ms,
            catalogs=catalogs,
            rounds=spans if catalog is None else (),
            intents=tuple(self._uploads.intents()[: backup_manifest.MOST_INTENTS]),
            swept_ms=max(before.swept_ms, self._swept_ms),
        )

    def _dropped(self, changes: tuple[Change, ...], after: BackupState, time_ms: int) -> Dropped:
        """Return the objects that become unused with this round: files, rounds before the newest catalog, orphans."""
        gone: list[str] = []
        for change in changes:
            before = self.state.partitions.get(change.key)
            if before is not None:
                now = after.partitions.get(change.key)
                left = set() if now is None else set(now.objects())
                gone += [key for key in before.objects() if key not in left]
                directory = names.partition_name(*change.key)
                if now is None:
                    gone += [f"{directory}/{names.PARTITION_METADATA}", f"{directory}/{names.LEADER_EPOCH_CHECKPOINT}"]
        again = [key for each in self._deleting for key in each.keys]
        again_rounds = [number for each in self._deleting for number in numbers_in(each.rounds)]
        catalogs = self.manifest.catalogs
        newest = catalogs[-1].number if catalogs else 0
        unused = {number for number in self._live if number <= newest} - _rounds_of(after)
        spans: tuple[Span, ...] = ()
        for number in sorted({*unused, *again_rounds, *self._found.rounds}):
            spans = backup_manifest.add_round(spans, number)
        old = [each.number for each in catalogs[:-1] if each.number not in self._superseded]
        superseded = map(object_keys.catalog_key, old)
        return Dropped(time_ms, tuple(dict.fromkeys([*gone, *again, *superseded, *self._found.keys])), spans)

    def _commit(
        self, new: BackupManifest, state: BackupState, memories: dict[PartitionKey, Memory], live: frozenset[int]
    ) -> None:
        self._pending = _Commit(new, state, memories, self._header_bytes, live)
        self._settle()

    def _settle(self) -> None:
        """Write the pending manifest unless an earlier attempt did, and adopt its state."""
        pending = self._pending
        if pending is None:
            return
        try:
            self._tag = self._objects.replace(object_keys.MANIFEST, pending.manifest.encode(), self._tag)
        except ObjectChangedError:
            found = backup_manifest.read_manifest(self._objects)
            if found is None:
                raise BackupError(f"{object_keys.MANIFEST} in {self._objects.url} has gone") from None
            there, tag = found
            if there != pending.manifest:
                self._pending = None
                raise BackupFencedError(
                    f"the backup at {self._objects.url} is written by another writer: it has generation "
                    f"{there.generation}, and this one {self.manifest.generation}; this writer has stopped"
                ) from None
            self._tag = tag
        self._pending = None
        before = self.manifest
        self.manifest, self.state, self._memories = pending.manifest, pending.state, pending.memories
        self._live = pending.live
        if self.state.caught_up:
            self._whole_ms = self.state.time_ms
        if self.manifest.catalogs != before.catalogs:
            self._header_bytes = 0
        if self.manifest.number != before.number:
            self._deleting = []
            self._found = Orphans()
            self._orphans.clear()  # invalid rounds are in `_live`, and dropped after the next catalog
        self._set_dropped()
        for intent in self.manifest.intents:
            if self._is_referenced(intent.key):
                self._uploads.recorded(intent.key)

    def _set_dropped(self) -> None:
        self._dropped_keys = {key for each in self.state.dropped for key in each.keys}
        numbered = map(object_keys.parse_numbered, self._dropped_keys)
        self._superseded = {found[0] for found in numbered if found and found[1] == object_keys.CATALOG}

    def _sweep(self) -> None:
        """Once a day, drop the objects that no manifest references. Called only while no upload is in flight."""
        now = self._now()
        if now - self.manifest.swept_ms < SWEEP_PAUSE_MS:
            return
        self._objects.remove_unfinished()
        self._found = orphans.find(self._objects, self.manifest, self.state, self._uploads.names())
        self._swept_ms = now
        if self._found != Orphans():
            self._write((), {}, None, [], self._memories, caught_up=True, together=self.state.together)
        else:
            self._commit(self._manifest(self.manifest.number), self.state, self._memories, self._live)

    def _delete_due(self) -> None:
        """Delete objects that were dropped before the restore window, but no object of the last caught-up state."""
        now = self._now()
        due = min(now - self.manifest.window_ms, self._whole_ms)
        waiting = {id(each) for each in self._deleting}
        dropped = [each for each in self.state.dropped if id(each) not in waiting]
        late = [each for each in dropped if self._deleted_until_ms < each.time_ms <= due]
        if not late or now < self._delete_next_ms:
            return
        # Commit before deleting: the manifest must no longer name deleted catalogs, must say which states may lack
        # objects, and shows that this writer is not fenced.
        told = replace(self._manifest(self.manifest.number), kept_from_ms=max(each.time_ms for each in late))
        self._commit(told, self.state, self._memories, self._live)
        again = {key for each in self.state.dropped if each.time_ms > due for key in each.objects()}
        for each in late:
            self._objects.delete(key for key in each.objects() if key not in again and not self._is_referenced(key))
            self._deleted_until_ms = each.time_ms
        self._delete_next_ms = now + min(DELETION_PAUSE_MS, self.manifest.window_ms // 10)

    def _is_taken(self, key: str) -> bool:
        return key in self._dropped_keys or key in self._found.keys or self._is_referenced(key)

    def _is_referenced(self, key: str) -> bool:
        place = object_keys.place_of(key)
        partition = None if place is None else self.state.partitions.get(place)
        return partition is not None and (object_keys.is_small_file(key) or key in partition.objects())

    def _put_small_files(self, look: PartitionLook, change: Change) -> None:
        """Send `partition.metadata` and the leader epochs, under Kafka's names."""
        content = change.topic_id, look.epochs
        if self._small.get(look.key) == content or (not change.anew and change.epochs is None):
            self._small.setdefault(look.key, content)
            return
        directory = names.partition_name(look.topic, look.partition)
        if change.topic_id:
            text = f"version: 0\ntopic_id: {change.topic_id}".encode()
            self._uploads.put_beside(f"{directory}/{names.PARTITION_METADATA}", text)
        if look.epochs:
            text = checkpoint.format_checkpoint(look.epochs)
            self._uploads.put_beside(f"{directory}/{names.LEADER_EPOCH_CHECKPOINT}", text)
        self._small[look.key] = content

    def _note_lag(self, look: PartitionLook, planned: Planned) -> None:
        known = self.state.partitions.get(look.key)
        # Without anything in the backup, the records from the log start on are missing.
        end = planned.change.end_offset if planned.change else known.end_offset if known else look.log_start_offset
        behind = max(offsets_behind(look.log_end_offset, end, look.log_start_offset), 0)
        self.lag[f"{look.topic}-{look.partition}"] = {
            "end_offset": end,
            "log_end_offset": look.log_end_offset,
            "lag_records": behind,
            "unflushed_records": min(look.log_end_offset - look.end_offset, behind),
        }

    def _now(self) -> int:
        now = time.time_ns() // 1_000_000 if self._clock is None else self._clock()
        return min(max(now, 0), LONG_MAX)


def _rounds_of(state: BackupState) -> set[int]:
    """Return the numbers of the rounds whose objects contain chunks of a state."""
    return {chunk.round for partition in state.partitions.values() for chunk in partition.tail if not chunk.suffix}
