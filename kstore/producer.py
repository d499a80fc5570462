"""Producer snapshots: the state of idempotent and transactional producers at an offset, as files.

This release keeps no producer state of its own. A log in which no producer ever numbered its batches has the empty
state, and its snapshots (10 bytes) are written where Kafka writes them: at rolls, closes and after recovery
(SEMANTICS.md 9.24). A log that a broker's producers wrote to gets no new snapshots from kstore, since they would be
lies; whoever opens it replays the log from the newest one there is, and a clean close leaves one (`anchor`).
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterable, Sequence

from kstore import fs, names
from kstore._core import crc32c

EMPTY_SNAPSHOT = bytes.fromhex("000148674bc700000000")  # FORMAT.md 10: version 1, CRC-32C, no entries
_HEADER_BYTES = 10


class ProducerState:
    """The snapshot files of one partition directory, and whether any producer numbered its batches.

    `end_offset` is how far the state reaches, `last_snapshot_offset` what 9.24 compares with, `numbered` whether some
    batch or snapshot carries a producer id. Not thread-safe: the log's mutex guards it.
    """

    def __init__(self, directory: str, snapshot_offsets: Iterable[int], log_start_offset: int) -> None:
        self._directory = directory
        self.offsets = sorted(snapshot_offsets)
        self.end_offset = log_start_offset
        self.last_snapshot_offset = 0
        self.numbered = False
        self._unsynced: set[int] = set()

    def path(self, offset: int) -> str:
        """Return where the snapshot at `offset` lies."""
        return f"{self._directory}/{names.snapshot_name(offset)}"

    def take_snapshot(self, *, sync: bool = False) -> None:
        """Write the snapshot at the end offset, if it is beyond the last one (9.24).

        Without `sync` the next call of `sync` covers it: whatever lies below the recovery point is whole.
        """
        if self.end_offset <= self.last_snapshot_offset or self.numbered:
            return
        fs.write_file(self.path(self.end_offset), EMPTY_SNAPSHOT, sync=sync)
        if not sync:
            self._unsynced.add(self.end_offset)
        self.last_snapshot_offset = self.end_offset
        if self.end_offset not in self.offsets:
            insort(self.offsets, self.end_offset)

    def anchor(self, base_offset: int) -> None:
        """Leave a snapshot from which the state can be replayed, in a log with numbered batches that has none (9.26).

        Without any, whoever opens the log after a clean close, Kafka or kstore, takes the state to be empty at its end:
        unfinished transactions would count as committed. At the first segment's base it may be: nothing is before it.
        """
        if self.numbered and not self.offsets:
            fs.write_file(self.path(base_offset), EMPTY_SNAPSHOT, sync=True)
            self.offsets.append(base_offset)

    def sync(self) -> None:
        """Sync the snapshots that were left to the next flush (2.12)."""
        for offset in sorted(self._unsynced):
            if offset in self.offsets:
                fd = fs.open(self.path(offset))
                try:
                    fs.fsync(fd)
                finally:
                    fs.close(fd)
            self._unsynced.discard(offset)

    def remove_stray(self, bases: Sequence[int]) -> None:
        """Delete the snapshots that name no segment, but for the newest if it is past all segments' bases (9.28)."""
        known = set(bases)
        others = [offset for offset in self.offsets if offset not in known]
        kept = others[-1] if others and bases and others[-1] >= bases[-1] else None
        for offset in others:
            if offset != kept:
                self._remove(offset)

    def rebuild(
        self,
        log_start_offset: int,
        end_offset: int,
        bases: Sequence[int],
        *,
        clean: bool,
        has_producers: Callable[[int, int], bool],
    ) -> None:
        """Bring the state to `end_offset` (9.26).

        `bases` are the last two segments' at least; `has_producers(start, end)` looks into the log's batches.
        """
        last_bases = [base for base in bases[-2:] if base <= end_offset]
        if not self.offsets and clean:
            self.last_snapshot_offset = 0  # a segment that was recovered on the way here has left its own
            for offset in [*last_bases, end_offset]:
                self.end_offset = offset
                self.take_snapshot()
            self.end_offset = end_offset
            return
        while self.offsets and self.offsets[-1] > end_offset:
            self._remove(self.offsets[-1])
        while self.offsets and self.offsets[0] <= log_start_offset:
            self._remove(self.offsets[0])
        if self.end_offset != end_offset:
            self._load_newest(log_start_offset)
        else:
            self.raise_start(log_start_offset)
        if end_offset > self.end_offset:
            self.numbered = self.numbered or has_producers(self.end_offset, end_offset)
            for base in last_bases:
                if base >= self.end_offset:
                    self.end_offset = base
                    self.take_snapshot()
        self.end_offset = end_offset
        self.take_snapshot()

    def reset(self, offset: int, log_start_offset: int) -> None:
        """Forget everything and start at `offset`, as a full truncation does (9.29), which then rebuilds (9.26)."""
        for known in list(self.offsets):
            self._remove(known)
        self.end_offset = offset
        self.last_snapshot_offset = log_start_offset
        self.numbered = False
        self.take_snapshot()

    def raise_start(self, log_start_offset: int) -> None:
        """Follow the log start (9.20)."""
        self.end_offset = max(self.end_offset, log_start_offset)
        self.last_snapshot_offset = self.offsets[-1] if self.offsets else log_start_offset

    def forget(self, offset: int) -> bool:
        """Drop the snapshot at a deleted segment's base from the list; whether there was one."""
        if offset not in self.offsets:
            return False
        self.offsets.remove(offset)
        return True

    def _load_newest(self, log_start_offset: int) -> None:
        self.end_offset = log_start_offset
        self.numbered = False
        self.last_snapshot_offset = log_start_offset
        while self.offsets:
            offset = self.offsets[-1]
            data = fs.read_file(self.path(offset))
            if _is_sound(data):
                self.end_offset = self.last_snapshot_offset = offset
                self.numbered = len(data) > _HEADER_BYTES
                return
            self._remove(offset)

    def _remove(self, offset: int) -> None:
        fs.unlink(self.path(offset))
        self.offsets.remove(offset)


def _is_sound(data: bytes) -> bool:
    return len(data) >= _HEADER_BYTES and data[:2] == b"\0\1" and int.from_bytes(data[2:6], "big") == crc32c(data[6:])
