"""`ObjectReader`: reads files that are ranges of objects, with a cache in memory and requests ahead of the reader.

A request fetches a run: contiguous blocks of a range. A run is small after a jump and grows while a reader continues;
a `ReadPlan`, which knows what will be read, keeps several runs in flight. Invariant: at most `memory_bytes` of runs are
kept, and those that are being fetched or read; a run whose length or checksum is wrong is not returned.
"""

from __future__ import annotations

import errno
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from concurrent.futures import CancelledError
from functools import partial
from typing import NamedTuple, Protocol

from kstore._core import crc32c
from kstore.base.threads import Task, Workers
from kstore.errors import BackupError, StorageError
from kstore.objects.object_store import ObjectChangedError, ObjectMissingError, Objects
from kstore.objects.remote_bytes import decompressed
from kstore.objects.remote_state import UNKNOWN, ObjectRange

BLOCK_BYTES = 256 << 10
"""The size of the blocks of a range; a lookup fetches one."""
WHOLE_BYTES = 2 << 20
"""A range of at most this size is fetched by one request."""
RUN_BYTES = 8 << 20
"""The most bytes of a request."""
FIRST_RUN_BYTES = 1 << 20
AT_ONCE = 8
"""The most requests that a plan has in flight."""
THREADS = 16
MEMORY_BYTES = 48 << 20
"""The most bytes of runs that are kept after they were read."""
AHEAD_BYTES = 64 << 20
"""The most bytes of runs that were requested and not yet read, of all plans together."""
ABANDONED_S = 10.0
"""A run that was requested so long ago and was not read is forgotten if there is no room for others."""
ATTEMPTS = 4
FIRST_PAUSE_S = 0.05


class BlockStore(Protocol):
    """Keeps fetched bytes longer than the memory does: a cache on disk."""

    def get(self, name: str, length: int) -> bytes | None: ...
    def put(self, name: str, data: memoryview) -> None: ...


class Piece(NamedTuple):
    """Bytes of a range that will be read."""

    range: ObjectRange
    start: int
    end: int


class Cost(NamedTuple):
    """What reading some pieces takes."""

    requests: int
    bytes: int


class _Run:
    """The bytes `[start, end)` of a range, fetched or being fetched."""

    __slots__ = ("asked", "end", "is_used", "plan", "range", "start", "task")

    def __init__(self, of: ObjectRange, start: int, end: int, plan: ReadPlan | None) -> None:
        self.range, self.start, self.end, self.plan = of, start, end, plan
        self.asked = time.monotonic()
        self.is_used = False
        self.task: Task[memoryview]

    @property
    def length(self) -> int:
        return self.end - self.start

    @property
    def is_ahead(self) -> bool:
        """Whether a plan has requested the run, and it was not read."""
        return self.plan is not None and not self.is_used

    def blocks(self) -> range:
        return range(self.start // BLOCK_BYTES, -(-self.end // BLOCK_BYTES))


class ReadPlan:
    """Fetches pieces ahead of a reader: more the longer it reads, and never more than `AT_ONCE` requests."""

    def __init__(self, reader: ObjectReader, pieces: Iterable[Piece]) -> None:
        self._reader = reader
        self._runs = runs_of(pieces)
        self._most = 1
        self._unread = 0
        self._advancing = threading.Lock()
        self._advance()

    def used(self) -> None:
        """Called when a run of the plan is read for the first time."""
        self._unread -= 1
        self._most = min(2 * self._most, AT_ONCE)
        self._advance()

    def _advance(self) -> None:
        if not self._advancing.acquire(blocking=False):
            return
        try:
            while self._unread < self._most and self._reader.may_fetch_ahead():
                following = next(self._runs, None)
                if following is None:
                    return
                self._unread += self._reader.fetch_ahead(*following, self)
        finally:
            self._advancing.release()


class ObjectReader:
    """Reads ranges of the objects below one prefix. Thread-safe."""

    def __init__(self, objects: Objects, *, cache: BlockStore | None = None, memory_bytes: int = MEMORY_BYTES) -> None:
        self.objects = objects
        self._cache = cache
        self._memory_bytes = memory_bytes
        self._lock = threading.Lock()
        # By the whole range, as an object may have been replaced: its new content has another ETag or length.
        self._blocks: dict[tuple[ObjectRange, int], _Run] = {}
        self._runs: OrderedDict[_Run, None] = OrderedDict()  # the least recently used first
        self._bytes = 0
        self._ahead_bytes = 0
        self._etags: dict[str, str] = {}
        self._sums: dict[ObjectRange, tuple[int, int]] = {}  # by range: how much was read in order, and its CRC
        self._workers = Workers(THREADS, "kstore-objects")
        self._closed = False

    def close(self) -> None:
        self._closed = True
        with self._lock:
            self._blocks.clear()
            self._runs.clear()
        self._workers.shutdown(cancel=True)

    def forget_etags(self) -> None:
        """Accept other contents of objects from now on, as after the state was read again."""
        self._etags = {}

    def read_into(self, of: ObjectRange, position: int, target: memoryview) -> None:
        """Fill `target` with the bytes of a range from `position` on. Raises `BackupError` if that fails."""
        done = 0
        while done < len(target):
            at = position + done
            run = self._run_at(of, at, position + len(target))
            try:
                data = self._take(run)
            except (CancelledError, KeyboardInterrupt) as error:
                # Cancelled by `close`, or interrupted in the main thread, which was fetching the run for both.
                if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
                    raise
                continue
            piece = data[at - run.start : position + len(target) - run.start]
            target[done : done + len(piece)] = piece
            done += len(piece)

    def plan(self, pieces: Iterable[Piece]) -> ReadPlan:
        """Begin to fetch what will be read, in this order."""
        return ReadPlan(self, pieces)

    def may_fetch_ahead(self) -> bool:
        """Return whether there is room; runs of readers that have given up are forgotten if there is none."""
        if self._ahead_bytes >= AHEAD_BYTES:
            limit = time.monotonic() - ABANDONED_S
            with self._lock:
                for run in [each for each in self._runs if each.is_ahead and each.asked < limit and each.task.done]:
                    self._forget(run)
        return self._ahead_bytes < AHEAD_BYTES and not self._closed

    def fetch_ahead(self, of: ObjectRange, start: int, end: int, plan: ReadPlan) -> int:
        """Request a run; return 0 if all its blocks are known, else 1."""
        with self._lock:
            run = self._new_run(of, start, end, plan)
        if run is None:
            return 0
        self._workers.queue(run.task)
        return 1

    # Runs

    def _run_at(self, of: ObjectRange, at: int, wanted_end: int) -> _Run:
        block = at // BLOCK_BYTES
        with self._lock:
            run = self._blocks.get((of, block))
            if run is None:
                start, end = self._extent(of, block, wanted_end)
                run = self._new_run(of, start, end, None)
                assert run is not None
            else:
                self._runs.move_to_end(run)
            return run

    def _extent(self, of: ObjectRange, block: int, wanted_end: int) -> tuple[int, int]:
        if is_whole(of):
            return 0, of.length
        start = block * BLOCK_BYTES
        before = self._blocks.get((of, block - 1))
        size = BLOCK_BYTES if before is None else min(2 * before.length, RUN_BYTES)
        size = max(size, min(wanted_end - start, RUN_BYTES))
        return start, min(start + -(-size // BLOCK_BYTES) * BLOCK_BYTES, of.length)

    def _new_run(self, of: ObjectRange, start: int, end: int, plan: ReadPlan | None) -> _Run | None:
        """Make a run of the blocks before the first known one; None if the first is known. Called with the lock."""
        first, last = start // BLOCK_BYTES, -(-end // BLOCK_BYTES)
        while first < last and (of, first) in self._blocks and plan is not None:
            first += 1
        if first == last:
            return None
        stop = first + 1
        while stop < last and (of, stop) not in self._blocks:
            stop += 1
        run = _Run(of, max(start, first * BLOCK_BYTES), min(end, stop * BLOCK_BYTES), plan)
        run.task = Task(partial(self._fetch, of, run.start, run.end))
        for block in run.blocks():
            self._blocks[of, block] = run
        self._runs[run] = None
        self._bytes += run.length
        if plan is not None:
            self._ahead_bytes += run.length
        self._evict()
        return run

    def _evict(self) -> None:
        """Forget the runs that were not used for the longest time; those that a plan has requested are kept."""
        if self._bytes - self._ahead_bytes <= self._memory_bytes:
            return
        for run in [each for each in self._runs if each.task.done and not each.is_ahead]:
            self._forget(run)
            if self._bytes - self._ahead_bytes <= self._memory_bytes:
                return

    def _forget(self, run: _Run) -> None:
        if self._runs.pop(run, run) is None:
            for block in run.blocks():
                if self._blocks.get((run.range, block)) is run:
                    del self._blocks[run.range, block]
            self._bytes -= run.length
            if run.plan is not None and not run.is_used:
                self._ahead_bytes -= run.length

    def _take(self, run: _Run) -> memoryview:
        try:
            data = run.task.result()
        except BaseException:
            with self._lock:
                self._forget(run)
            raise
        if not run.is_used:
            with self._lock:
                is_first, run.is_used = not run.is_used, True
                if is_first and run.plan is not None and run in self._runs:
                    self._ahead_bytes -= run.length
            if is_first:
                if run.plan is not None:
                    run.plan.used()
                self._add_to_sum(run, data)
        return data

    def _add_to_sum(self, run: _Run, data: memoryview) -> None:
        """Check the whole range's CRC once its runs were read in order."""
        if run.range.crc == UNKNOWN or run.length == run.range.length:
            return
        position, crc = self._sums.get(run.range, (0, 0))
        if position != run.start:
            return
        crc = crc32c(data, crc)
        if run.end < run.range.length:
            self._sums[run.range] = run.end, crc
            return
        self._sums.pop(run.range, None)
        self._check_sum(run.range, crc)

    def _check_sum(self, of: ObjectRange, crc: int) -> None:
        if crc != of.crc:
            raise BackupError(
                f"{of.key} in {self.objects.url} has the CRC {crc:#010x} from byte {of.position} on; {of.crc:#010x} is "
                "expected: it was altered"
            )

    # Requests

    def _fetch(self, of: ObjectRange, start: int, end: int) -> memoryview:
        name = f"{self.objects.url}|{of.key}|{of.etag or of.crc}|{of.position}|{of.length}|{start}|{end}"
        cache = None if of.etag is None and of.crc == UNKNOWN else self._cache
        if cache is not None and (kept := cache.get(name, end - start)) is not None:
            return memoryview(kept)
        data = self._request(of, start, end)
        if cache is not None:
            cache.put(name, data)
        return data

    def _request(self, of: ObjectRange, start: int, end: int) -> memoryview:
        position, length = (of.position, of.stored_bytes) if of.is_zstd else (of.position + start, end - start)
        etag = of.etag or self._etags.get(of.key)
        for attempt in range(ATTEMPTS):
            if self._closed:
                raise BackupError(f"{self.objects.url}: it was closed while it was read")
            if attempt:
                time.sleep(FIRST_PAUSE_S * 2**attempt)
            try:
                found = self.objects.fetch(of.key, position, length, etag)
            except (ObjectMissingError, ObjectChangedError):
                raise
            except BackupError:
                if attempt + 1 == ATTEMPTS:
                    raise
                continue
            if len(found.data) == length:
                data = found.data
                if of.is_zstd:
                    data = memoryview(decompressed(bytes(data), of, self.objects.url))
                if of.crc != UNKNOWN and end - start == of.length:
                    self._check_sum(of, crc32c(data))
                self._note_etag(of, found.etag)
                return data
            if found.object_bytes < of.position + of.stored_bytes:
                break
        raise BackupError(
            f"{of.key} in {self.objects.url} has {found.object_bytes} bytes; {of.position + of.stored_bytes} are "
            f"expected, and {len(found.data)} of {length} bytes were sent from byte {position} on"
        )

    def _note_etag(self, of: ObjectRange, etag: str | None) -> None:
        """Keep the first ETag of an object, which later requests must find."""
        if etag is not None and of.etag is None and self._etags.setdefault(of.key, etag) != etag:
            raise ObjectChangedError(f"{of.key} in {self.objects.url} has been replaced since it was read")


def is_whole(of: ObjectRange) -> bool:
    """Return whether a range is fetched by one request."""
    return of.is_zstd or of.length <= WHOLE_BYTES


def runs_of(pieces: Iterable[Piece]) -> Iterator[tuple[ObjectRange, int, int]]:
    """Divide pieces into runs: (range, start, end). The first runs are shorter, so that the first bytes come soon."""
    size = FIRST_RUN_BYTES
    for of, start, end in pieces:
        if is_whole(of):
            yield of, 0, of.length
            continue
        start -= start % BLOCK_BYTES
        end = min(-(-end // BLOCK_BYTES) * BLOCK_BYTES, of.length)
        while start < end:
            stop = min(start + size, end)
            yield of, start, stop
            start, size = stop, min(2 * size, RUN_BYTES)


def cost_of(pieces: Iterable[Piece]) -> Cost:
    """Return what reading the pieces takes if nothing is cached."""
    requests = total = 0
    for of, start, end in runs_of(pieces):
        requests += 1
        total += of.stored_bytes if of.is_zstd else end - start
    return Cost(requests, total)


def as_storage_error(error: BackupError, path: str) -> StorageError:
    """Return the error of a read of a file: its objects could not be read."""
    return StorageError(errno.EREMOTEIO, str(error), path)
