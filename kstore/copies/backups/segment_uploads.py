"""`Uploads`: uploads sealed segments to the object store, in background threads.

A small file is read once. So is a large file if the store can create a new object from parts; otherwise it is read
twice, first for the checksum. Invariant: before the upload of a file that is read twice, the manifest announces its
name, length and checksum, so that no later writer uses the name for other bytes while a request may be under way.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from kstore._core import crc32c
from kstore.base.threads import Bell, Task, Workers
from kstore.copies.backups import round_changes, source_partition
from kstore.copies.backups.round_changes import Sent, Wanted
from kstore.copies.backups.source_partition import ChangedMeanwhileError
from kstore.disk import fs
from kstore.errors import BackupError, CorruptRecordError, KStoreError
from kstore.files import names
from kstore.objects import object_keys
from kstore.objects.backup_contents import Chunk, SealedSegment, StoredFile
from kstore.objects.backup_manifest import Intent
from kstore.objects.object_store import PART_BYTES, Objects

THREADS = 4

_UNKNOWN = -1
"""A checksum that is not known yet."""

NO_FILE = StoredFile("", 0, 0)
"""Returned for a snapshot that does not exist."""


class _Large(NamedTuple):
    """A file that is uploaded in parts, under the name that its `Intent` announces."""

    path: str
    file: StoredFile
    intent: Intent


@dataclass(slots=True, eq=False)
class _Job:
    """The upload of a segment, a snapshot or a stretch. While `is_running`, only the job's own thread may change it."""

    wanted: Wanted
    earlier: list[StoredFile] = field(default_factory=list)  # files that a failed attempt has sent
    files: list[StoredFile] = field(default_factory=list)
    large: list[_Large] = field(default_factory=list)
    max_timestamp: int | None = None
    stretch: Sent = field(default_factory=lambda: Sent([]))
    is_hashed: bool = False  # waits for its intents to be announced
    is_sent: bool = False
    error: KStoreError | None = None
    is_running: bool = False


class Uploads:
    """The uploads of one writer. The writer's thread calls the methods; other threads do the uploads."""

    def __init__(
        self, objects: Objects, generation: int, is_taken: Callable[[str], bool], announced: tuple[Intent, ...]
    ) -> None:
        """`is_taken` says whether a key is in use; `announced` are uploads that an earlier writer did not finish."""
        self._objects = objects
        self._generation = generation
        self._is_taken = is_taken
        self._numbers = itertools.count(1)
        self._jobs: dict[Hashable, _Job] = {}
        self._failed: dict[Hashable, _Job] = {}  # retried in this round
        self._wanted: set[Hashable] = set()
        self._pool = Workers(THREADS, "kstore-backup")
        self._closed = False
        self._beside: dict[str, bytes] = {}  # small files that are being sent
        self._open_ended = {intent.key: intent for intent in announced}  # a request may still be under way
        self._progress = object()  # replaced when an upload makes progress
        self._looked_at = self._progress  # at the start of the last round
        self._bell = Bell()
        self.errors: list[KStoreError] = []

    def finished(self, wanted: Wanted) -> SealedSegment | StoredFile | Sent | None:
        """Return the result of an upload; None until it is done. Starts the upload if it has not been started."""
        place = _place(wanted)
        job = self._jobs.get(place)
        if job is not None and _key(job.wanted) != _key(wanted):  # the log was truncated or cleaned
            if job.is_running:
                return None  # both jobs may use the same object names
            job = None
        self._wanted.add(place)
        if job is None:
            job = self._jobs[place] = _Job(wanted)
            failed = self._failed.pop(place, None)
            if failed is not None and _key(failed.wanted) == _key(wanted):
                job.earlier = [*failed.earlier, *failed.files]
            self._run(job, self._hash if wanted.stretch is None else self._send_stretch)
            return None
        if job.is_running or not job.is_sent:
            return None
        if wanted.stretch is not None:
            return job.stretch
        if wanted.target is None:
            return job.files[0] if job.files else NO_FILE
        return SealedSegment(*wanted.target[:4], tuple(job.files), job.max_timestamp)

    @property
    def in_flight(self) -> bool:
        return bool(self._beside) or any(job.is_running for job in self._jobs.values())

    def wait(self, timeout: float | None) -> bool:
        """While an upload is in flight, wait for progress since the last round began; return whether there was any."""
        seen = self._looked_at  # a round that another thread begins must not hide progress from this one

        def has_changed() -> bool:
            return self._progress is not seen

        return has_changed() or (self.in_flight and self._bell.wait(has_changed, timeout))

    def _changed(self) -> None:
        self._progress = object()
        self._bell.ring()

    def intents(self) -> list[Intent]:
        """Return the uploads that the next manifest must announce: new uploads, and uploads that may be under way."""
        found = dict(self._open_ended)
        for job in list(self._jobs.values()):
            new = [large.intent for large in job.large if job.is_hashed and self._is_free(large.intent)]
            found |= {intent.key: intent for intent in new}
        return list(found.values())

    @property
    def is_waiting(self) -> bool:
        """Whether an upload waits to be announced."""
        return any(job.is_hashed and not job.is_running and job.error is None for job in self._jobs.values())

    def announced(self, intents: tuple[Intent, ...]) -> None:
        """Start the uploads that waited for these announcements."""
        known = set(intents)
        for job in self._jobs.values():
            if job.is_hashed and not job.is_running and known.issuperset(large.intent for large in job.large):
                job.is_hashed = False
                self._open_ended |= {large.intent.key: large.intent for large in job.large}
                self._run(job, self._send)

    def recorded(self, key: str) -> None:
        """Forget the announcement of a file that the backup now has."""
        self._open_ended.pop(key, None)

    def names(self) -> set[str]:
        """Return the names of sent objects that a round may still reference. Called only while nothing is in flight."""
        found = set()
        for job in self._jobs.values():
            look, stretch = job.wanted.look, job.wanted.stretch
            base = _base_of(job.wanted)
            suffixed = [(base, file.kind, file.suffix) for file in (*job.files, *job.earlier)]
            if stretch is not None:
                suffixed += [(stretch.base_offset, names.LOG, chunk.suffix) for chunk in job.stretch.chunks]
            found |= {str(object_keys.FileKey(look.topic, look.partition, *each)) for each in suffixed}
        return found

    def put_beside(self, key: str, text: bytes) -> None:
        """Send a small file that no round references. A later call for the same file replaces its text."""
        is_known = key in self._beside
        task = Task(partial(self._send_beside, key))
        try:
            self._beside[key] = text
            if not is_known:
                self._pool.queue(task)
        except BaseException:  # an interrupt, as in `_run`
            if not is_known and task.cancel():
                self._beside.pop(key, None)
            raise

    @property
    def is_beside(self) -> bool:
        """Whether files of `put_beside` are being sent."""
        return bool(self._beside)

    def _send_beside(self, key: str) -> None:
        try:
            while not self._closed:
                text = self._beside[key]
                if not self._objects.put_new(key, text):
                    self._objects.put_parts(key, [text])
                if self._beside[key] is text:
                    break
        except KStoreError as error:
            self.errors.append(error)
        finally:
            self._beside.pop(key, None)
            self._changed()

    def begin_look(self) -> None:
        """Begin a round: failed uploads are retried when asked for, without the files that were already sent."""
        self._looked_at = self._progress
        self._wanted.clear()
        self._failed.clear()
        for key, job in list(self._jobs.items()):
            if job.is_running:
                continue
            if job.error is not None:
                if not isinstance(job.error, (ChangedMeanwhileError, fs.MissingFileError)):
                    self.errors.append(job.error)
                    self._failed[key] = job
                del self._jobs[key]
            elif job.is_hashed and not all(self._is_free(large.intent) for large in job.large):
                del self._jobs[key]  # a name that it waits for was used for other bytes
            elif not job.is_sent and not job.is_hashed:
                del self._jobs[key]  # interrupted before a thread took it

    def end_look(self) -> None:
        """Forget the uploads that no round has asked for since `begin_look`. Not called if the round failed."""
        for key, job in list(self._jobs.items()):
            if not job.is_running and key not in self._wanted:
                del self._jobs[key]

    def close(self) -> None:
        """Wait for running uploads; waiting uploads are not started."""
        self._closed = True
        self._pool.shutdown(cancel=True)

    def _run(self, job: _Job, work: Callable[[_Job], None]) -> None:
        def run() -> None:
            try:
                if not self._closed:
                    work(job)
            except KStoreError as error:
                job.error = error
            except OSError as error:
                job.error = BackupError(str(error))
            finally:
                job.is_running = False
                self._changed()

        task = Task(run)
        job.is_running = True
        try:
            self._pool.queue(task)
        except BaseException:  # an interrupt: a job that no thread will run must not count as running
            if task.cancel():
                job.is_running = False
            raise

    def _hash(self, job: _Job) -> None:
        """Read the files and send the small ones; large ones are sent if they need no announcement."""
        look, target = job.wanted.look, job.wanted.target
        base = _base_of(job.wanted)
        if target is not None:
            job.max_timestamp = source_partition.greatest_timestamp(look.path, target)
        kinds = object_keys.KINDS if target is not None else (names.SNAPSHOT,)
        for kind in kinds:
            path = os.path.join(look.path, names.file_name(base, kind))
            try:
                size = fs.stat(path, follow=False).st_size
            except fs.MissingFileError:
                if kind == names.LOG:
                    raise
                continue
            plain = object_keys.FileKey(look.topic, look.partition, base, kind)
            if size <= PART_BYTES:
                job.files.append(self._put_small(plain, source_partition.read_whole(path, size), job))
            elif self._objects.parts_are_new and not any(file.length == size for file in _known(job, kind)):
                job.files.append(self._put_large_once(plain, path, size))
            else:
                file = StoredFile(kind, size, source_partition.checksum(path, size))
                same = _same(job, file)
                if same is not None:
                    job.files.append(same)
                    continue
                intent = self._intent(plain, file)
                found = object_keys.parse_file(intent.key)
                assert found is not None
                job.large.append(_Large(path, file._replace(suffix=found.suffix), intent))
        if target is not None and not source_partition.is_same_file(source_partition.log_path(look.path, base), target):
            raise ChangedMeanwhileError(f"{look.path}: segment {base} is another file by now")
        if target is None and source_partition.find_snapshot(look.path, base) not in (job.wanted.snapshot, None):
            raise ChangedMeanwhileError(f"{look.path}: snapshot {base} is another file by now")
        job.is_hashed, job.is_sent = bool(job.large), not job.large

    def _send(self, job: _Job) -> None:
        for path, file, intent in job.large:
            crc = 0

            def parts(path: str = path, length: int = file.length) -> Iterator[bytes]:
                nonlocal crc
                for part in source_partition.read_parts(path, length):
                    crc = crc32c(part, crc)
                    yield part

            self._objects.put_parts(intent.key, parts())
            if crc != file.crc:
                raise ChangedMeanwhileError(f"{path} has changed while it was sent")
            job.files.append(file)
        target = job.wanted.target
        if target is not None:
            path = source_partition.log_path(job.wanted.look.path, target.base_offset)
            if not source_partition.is_same_file(path, target):
                raise ChangedMeanwhileError(f"{path} is another file by now")
        job.files.sort(key=lambda file: object_keys.KINDS.index(file.kind))
        job.is_sent = True

    def _send_stretch(self, job: _Job) -> None:
        """Send the batches of a stretch as one object, under a name that no other writer uses."""
        look, stretch = job.wanted.look, job.wanted.stretch
        assert stretch is not None
        with source_partition.Tail(look.path, *stretch[:2], stretch.end_offset, stretch.after) as tail:
            if tail.left_bytes >= round_changes.BESIDE_BYTES:
                chunks: list[Chunk] = []
                suffix = self._suffix()
                key = object_keys.FileKey(look.topic, look.partition, stretch.base_offset, names.LOG, suffix)
                parts = _checked_parts(tail, chunks, suffix)
                if not self._objects.parts_are_new:
                    self._objects.put_parts(str(key), itertools.chain.from_iterable(part.read() for part in parts))
                elif not self._objects.put_new_parts(str(key), parts):
                    raise BackupError(f"{key} in {self._objects.url} is there already")
                tail.refuse_another_file()
                job.stretch = Sent(chunks, tail.place)
        job.is_sent = True

    def _put_large_once(self, key: object_keys.FileKey, path: str, size: int) -> StoredFile:
        """Send a file as one object, reading it once. Needs a store with `parts_are_new`."""
        suffix = "" if self._is_free(Intent(str(key), size, _UNKNOWN)) else self._suffix()
        with fs.closing(fs.open(path)) as fd:
            part = source_partition.Part(fd, path, 0, size)
            while not self._objects.put_new_parts(name := str(key._replace(suffix=suffix)), [part]):
                if self._objects.size(name) == size:
                    there = 0
                    for piece in self._objects.stream(name, 0, size):
                        there = crc32c(piece, there)
                    if there == part.crc:  # sent by an earlier attempt whose answer was lost
                        break
                suffix = self._suffix()
            return StoredFile(key.kind, size, part.crc, suffix)

    def _intent(self, key: object_keys.FileKey, file: StoredFile) -> Intent:
        """Return the announcement of a large file: its plain name, a name announced for these bytes, or a new name."""
        plain = Intent(str(key), file.length, file.crc)
        if self._is_free(plain):
            return plain
        for intent in list(self._open_ended.values()):
            found = object_keys.parse_file(intent.key) if intent[1:] == plain[1:] else None
            if found is not None and found._replace(suffix="") == key and self._is_free(intent):
                return intent
        return plain._replace(key=str(key._replace(suffix=self._suffix())))

    def _put_small(self, key: object_keys.FileKey, data: bytes, job: _Job) -> StoredFile:
        file = StoredFile(key.kind, len(data), crc32c(data))
        same = _same(job, file)
        if same is not None:
            return same
        if self._is_free(Intent(str(key), file.length, file.crc)):
            if self._objects.put_new(str(key), data):
                return file
            if self._objects.size(str(key)) == len(data):
                found = self._objects.read(str(key), most_bytes=PART_BYTES)
                if found is not None and found.data == data:  # sent by an earlier attempt whose answer was lost
                    return file
        while True:
            suffix = self._suffix()
            if self._objects.put_new(str(key._replace(suffix=suffix)), data):
                return file._replace(suffix=suffix)

    def _is_free(self, intent: Intent) -> bool:
        """Whether these bytes may use this name: it is not in use, and no request with other bytes may be under way."""
        return not self._is_taken(intent.key) and self._open_ended.get(intent.key, intent) == intent

    def _suffix(self) -> str:
        return object_keys.suffix_of(self._generation, next(self._numbers))


def _checked_parts(tail: source_partition.Tail, chunks: list[Chunk], suffix: str) -> Iterator[source_partition.Part]:
    """Yield whole batches up to a damaged one and append their chunks. Each part must be read before the next."""
    at = 0
    try:
        while (stretch := tail.check()) is not None:
            part = tail.part(stretch)
            yield part
            chunks.append(stretch._replace(crc=part.crc, at=at, suffix=suffix))
            at += stretch.length
    except CorruptRecordError:
        return


def _base_of(wanted: Wanted) -> int:
    part = wanted.target or wanted.snapshot or wanted.stretch
    assert part is not None
    return part.base_offset


def _place(wanted: Wanted) -> Hashable:
    """Return the key of an upload in `_jobs`: at most one job at a time has it."""
    kind = "segment" if wanted.target is not None else "snapshot" if wanted.snapshot is not None else "stretch"
    return wanted.look.key, kind, _base_of(wanted)


def _key(wanted: Wanted) -> Hashable:
    part = None if wanted.stretch is None else wanted.stretch[:2]  # the end of a stretch rises from round to round
    return wanted.look.key, wanted.topic_id, wanted.target, wanted.snapshot, part


def _known(job: _Job, kind: str) -> list[StoredFile]:
    """Return the files of this kind that the backup has or that earlier attempts have sent."""
    like = None if job.wanted.like is None else job.wanted.like.file(kind)
    return [file for file in (like, *job.earlier) if file is not None and file.kind == kind]


def _same(job: _Job, file: StoredFile) -> StoredFile | None:
    return next((known for known in _known(job, file.kind) if known[:3] == file[:3]), None)
