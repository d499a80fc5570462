"""The offset and time index files of a segment: their sizes, their bytes, and their maps (SEMANTICS 3).

A file has its full size while its segment is active, and is cut to its entries when the segment is sealed. Entries are
written with `pwrite`, so that a full disk is a `StorageError`, and read with `pread` into memory of our own; only a
large file of a sealed segment is mapped. Invariant: no file is cut while it is mapped: only `_resize` cuts, after
`_unmap`, and before each search it is seen whether another program has cut it.
"""

from __future__ import annotations

import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING

from kstore.base.numbers import INT_MAX
from kstore.disk import fs, moving, openfiles
from kstore.errors import CorruptIndexError, LogClosedError
from kstore.files._index_search import Entries, OffsetEntries, TimeEntries, offset_entry, time_entry

if TYPE_CHECKING:
    from collections.abc import Callable

    from _typeshed import ReadableBuffer, StrPath

COPY_BYTES = 64 << 10
"""Up to this size a trimmed index is copied: a map costs a descriptor, and more than so few bytes."""


class IndexFile(Entries):
    """The common part of both kinds of index file.

    Making the object touches no disk: the first use opens the file, and takes all of it for entries (SEMANTICS 3.4). A
    missing file is a `StorageError`, but not to `grow`, `create_empty` and `replace`, which make it.

    With `writable=False` the file is another process's. Nothing is mapped or written: its sound entries (FORMAT 7.5)
    are copied to private memory when they are first needed, `refresh` adds what came since, a missing file has none.

    A writer with a `pwrite` of its own takes `fd` and `max_entries`. It writes the entry at `entries * entry_bytes` and
    then sets `entries`. `fd` is good until `trim`, `truncate_to`, `replace`, `create_empty` or `close`; `flush` knows
    of such writes by the change of `entries`.

    Lookups may run in any thread, beside an append, a cut or a refresh; what changes the file is for one at a time.
    An `openfiles.Holder` of the bytes that are searched; the descriptor for writing is the log's to give up (`park`).
    """

    listed = False
    _searched: Callable[[bytes, int], OffsetEntries | TimeEntries]

    def __init__(self, path: StrPath, base_offset: int, max_bytes: int, *, writable: bool = True) -> None:
        Entries.__init__(self, base_offset)
        self.path = path
        self.max_bytes = max_bytes
        self.writable = writable
        self._handles: fs.Handles | None = None
        self._fd = -1
        self._closed = False
        self._unsynced = False
        self._copy = bytearray()  # the entries of a file that is only read, and room behind them
        self._remainder = 0  # bytes behind the last whole entry of the file as it was found
        self._lock = threading.RLock()  # held while the file is opened, mapped, cut or closed, never during a search

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.path)!r}, {self.base_offset})"

    # ---- the descriptor and the map ----

    @property
    def fd(self) -> int:
        """The descriptor for writing entries; opens the file, which must be there."""
        if not self._is_open():
            self._open(create=False)
        return self._fd

    def _open_path(self, **how: bool) -> int:
        return moving.at_its_path(lambda path: fs.open(path, **how), lambda: str(self.path), drop=fs.close)

    def _is_open(self) -> bool:
        return self._handles is not None and not self._handles.closed

    def _open(self, *, create: bool) -> None:
        """Have a descriptor for writing, and know the size."""
        with self._lock:
            self._check_open()
            if not self.writable:
                raise ValueError(f"{self.path}: this index is only read")
            if self._handles is None:
                handles = fs.Handles()
                self._fd = handles.add(self._open_path(write=True, create=create))
                self._handles = handles
                self._unmap()  # it may be a copy, which new entries would not reach
            elif self._handles.closed:
                raise LogClosedError(f"{self.path}: the index belongs to the process that this one was forked from")
            self._find_size(self._fd)

    def _find_size(self, fd: int) -> None:
        """Take the whole file for entries, unless their number is known (SEMANTICS 3.4)."""
        if not self._has_size():
            entries, self._remainder = divmod(fs.size(fd), self.entry_bytes)
            self._set_size(entries, entries)

    def _let_go(self) -> None:
        handles, self._handles, self._fd = self._handles, None, -1
        if handles is not None:
            handles.close()

    def _check_open(self) -> None:
        if self._closed:
            raise LogClosedError(f"{self.path}: the index is closed")

    def _attach(self) -> None:
        """Bring the bytes to search in: a copy of the entries in use, or a map of a large file that is full."""
        if not self.writable:
            self.refresh()
            return
        with self._lock:
            self._check_open()
            written = self._is_open()
            fd = self._fd if written else self._open_path()
            try:
                self._find_size(fd)
                if self._is_ready():
                    return
                is_new = not self._filled()
                size = self.max_entries * self.entry_bytes
                if fs.size(fd) < size:
                    raise CorruptIndexError(
                        f"another program cut it to {fs.size(fd)} bytes from {size}", path=self.path
                    )
                if not written and size <= COPY_BYTES:
                    self._hold(fs.pread(fd, size, 0))
                elif written or self.entries < self.max_entries:  # else nothing is written to it
                    self._copy_used(fd, self.entries)
                else:
                    self._hold(fs.map(fd, size), self.entries)
            finally:
                if not written:
                    fs.close(fd)
        if is_new:
            openfiles.opened(self, self.holds())

    def _copy_used(self, fd: int, entries: int) -> None:
        """Copy the entries in use that were not copied before; the file is long enough."""
        size, copied = self.entry_bytes, self._filled()
        if copied and self._held_bytes() < entries * size:
            old, self._copy = self._copy, bytearray(2 * entries * size)
            self._copy[: copied * size] = memoryview(old)[: copied * size]
        elif not copied:
            self._copy = bytearray(entries * size)
        data = fs.pread(fd, (entries - copied) * size, copied * size)
        if len(data) < (entries - copied) * size:
            raise CorruptIndexError(f"another program cut it while {entries * size} bytes were read", path=self.path)
        self._copy[copied * size : entries * size] = data
        self._hold(self._copy, entries)

    def _unmap(self) -> None:
        """Let go of the bytes, and of a map's file."""
        held = self._drop()
        if self.writable:
            self._copy = bytearray()
        if isinstance(held, fs.Map):
            held.close()

    def _resize(self, entries: int, room: int) -> None:
        """Make the file exactly `room` entries long, the first `entries` of them in use."""
        with self._lock:
            self._set_size(min(entries, self.entries), self.max_entries)
            self._unmap()
            size = room * self.entry_bytes
            try:
                fs.truncate(self._fd, size)
                self._set_size(entries, room)
            except BaseException:
                # An interrupt may have come before the truncation or after it: the file knows.
                entries_on_disk = fs.size(self._fd) // self.entry_bytes
                self._set_size(min(entries, entries_on_disk), entries_on_disk)
                raise
            self._remainder = 0
            self._unsynced = True

    # ---- letting go ----

    def park(self) -> None:
        """Give up the descriptor and the map until the next use; only while no thread writes through `fd`.

        What is to be flushed is not forgotten.
        """
        with self._lock:
            self._unmap()
            self._let_go()

    def holds(self) -> int:
        """1 for a map; a copy by its size, and so what is remembered of searches by time."""
        size = self._held_bytes()
        if size < 0:
            return 0
        copied = 0 if self._is_mapped() else size
        return 1 + (copied + self._proof_bytes()) // COPY_BYTES

    def was_used(self) -> bool:
        """Whether the entries were read since the last call."""
        return self._take_touched()

    def let_go(self) -> None:
        """Let go of the bytes that are searched: of a map as of one that is in the way of a cut, see `_unmap`."""
        with self._lock:
            self._unmap()
            if not self.writable and not self._closed:
                self._forget()  # else `refresh` would add new entries to the dropped copy
                self._copy = bytearray()

    # ---- sizes ----

    def grow(self, max_bytes: int | None = None) -> bool:
        """Give the file the full size of an active segment's, making it if it is missing; whether the size changed.

        `max_bytes` (`segment.index.bytes`) is remembered. The size is the largest multiple of an entry in it
        (SEMANTICS 3.1), and never less than the entries there are. Raises `ValueError` when not even one entry fits.
        """
        with self._lock:
            if max_bytes is not None:
                self.max_bytes = max_bytes
            room = self.max_bytes // self.entry_bytes
            if room < 1:
                raise ValueError(f"{self.path}: of {self.max_bytes} bytes an entry alone takes {self.entry_bytes}")
            self._open(create=True)
            room = max(room, self.entries)
            if room == self.max_entries and not self._remainder:
                return False
            self._resize(self.entries, room)
            return True

    def trim(self) -> bool:
        """Cut the file to the entries in use, and close the descriptor; whether the size changed
        (SEMANTICS 2.9, 3.5)."""
        with self._lock:
            self._open(create=False)
            changed = self.max_entries > self.entries or self._remainder > 0
            if changed:
                self._resize(self.entries, self.entries)
            self._let_go()
            return changed

    def truncate_to(self, offset: int) -> None:
        """Drop the entries at and above `offset`, then grow the file to full size (SEMANTICS 3.15).

        What is dropped is zeros on the disk too, so that another process does not take it for entries.
        """
        with self._lock:
            self._open(create=False)
            kept = self.entries_below(offset)
            self._resize(kept, kept)
            self.grow()

    def create_empty(self) -> None:
        """Make the file with no entries and a size of 0, as a trimmed index without entries is (SEMANTICS 8.8)."""
        self.replace(b"")
        self._let_go()

    def replace(self, data: ReadableBuffer, *, at_full_size: bool = False) -> bool:
        """Make `data` all of the file, making it if it is missing; whether a byte changed.

        For a rebuild (SEMANTICS 8.15): what is there already is not written again. An append of force, `grow` or `trim`
        may follow. With `at_full_size` the zeros stay that a file at full size has behind its entries. Raises
        `ValueError` when `data` is not whole entries.
        """
        data = memoryview(data).cast("B")
        entries, remainder = divmod(len(data), self.entry_bytes)
        if remainder:
            raise ValueError(f"{len(data)} bytes are not whole entries of {self.entry_bytes}")
        with self._lock:
            self._open(create=True)
            self._unmap()
            self._unsynced = True  # also as it is: the process that wrote it may have died before its sync
            size = fs.size(self._fd)
            room, self._remainder = divmod(size, self.entry_bytes)
            if at_full_size and not self._remainder and size >= len(data):
                page_end = fs.hole_behind(self._fd, len(data))
                if page_end is not None:
                    changed = self._overwrite(bytes(data).ljust(min(page_end, size), b"\0"))
                    self._set_size(entries, room)
                    return changed
            same = size >= len(data) and (not data or fs.pread(self._fd, len(data), 0) == data)
            if not same:
                self._resize(0, 0)
                fs.pwrite(self._fd, data, 0)
            if size != len(data) or not same:
                self._resize(0, entries)
            self._set_size(entries, entries)
            return not same or size != len(data)

    def _overwrite(self, data: bytes) -> bool:
        """Write the first bytes of the file, unless they are these; whether they were others."""
        if not data or fs.pread(self._fd, len(data), 0) == data:
            return False
        fs.pwrite(self._fd, data, 0)
        return True

    # ---- entries ----

    def _write(self, entry: bytes) -> None:
        """Write the next entry; one that the file has no room for makes it longer."""
        slot = self.entries
        if slot < self.max_entries:
            fs.pwrite(self.fd, entry, slot * self.entry_bytes)
            self.entries = slot + 1
            return
        with self._lock:
            self._unmap()
            fs.pwrite(self.fd, entry, slot * self.entry_bytes)
            self._set_size(slot + 1, slot + 1)
            self._unsynced = True

    def _relative(self, offset: int) -> int:
        """The offset as an entry holds it (SEMANTICS 3.9)."""
        if not 0 <= offset - self.base_offset <= INT_MAX:
            raise ValueError(f"offset {offset} is not within 0 to {INT_MAX} of the base offset {self.base_offset}")
        return offset - self.base_offset

    # ---- soundness ----

    def looks_trimmed(self, log_bytes: int) -> bool:
        """Whether the file is as a close leaves it, for a log of that many bytes: sound entries and nothing else.

        Reads every entry, unless the last two show the zeros of a file at full size. False for a missing file.
        """
        try:
            if self._ends_as_at_full_size():
                return False
            return self.sound_entries() == self.entries and not self._remainder and self._fits(log_bytes)
        except fs.MissingFileError:
            return False

    def _ends_as_at_full_size(self) -> bool:
        """Whether the file's last two entries are the same, as the zeros of one at full size are.

        They are read: mapping the end of such a file costs a millisecond, and an opening after a crash looks at many.
        """
        with fs.closing(self._open_path()) as fd:
            size = fs.size(fd) // self.entry_bytes * self.entry_bytes
            last = fs.pread(fd, 2 * self.entry_bytes, max(size - 2 * self.entry_bytes, 0))
        return (
            size >= 2 * self.entry_bytes and last[: self.entry_bytes] == last[self.entry_bytes : 2 * self.entry_bytes]
        )

    def _fits(self, log_bytes: int) -> bool:
        """Whether the last entry can be that of a log of so many bytes."""
        raise NotImplementedError

    # ---- another process's file ----

    def refresh(self) -> int:
        """Of a file that is only read, copy the sound entries that came since it was last read; how many there are.

        An index whose last known entry has changed was truncated, and is read anew from the start. A caller that knows
        of a truncation from elsewhere calls `reload`.
        """
        with self._lock:
            self._check_open()
            if self.writable:
                return self.entries
            try:
                fd = self._open_path()
            except fs.MissingFileError:
                self._forget()
                self._set_size(0, 0)
                return 0
            with fs.closing(fd):
                if not self._has_size():
                    self._set_size(0, 0)
                if not self._copy_from(fd, self.entries):
                    self._forget()
                    self._set_size(0, 0)
                    self._copy_from(fd, 0)
            entries: int = self.entries
        if not self.listed and (held := self.holds()):
            openfiles.opened(self, held)
        return entries

    def reload(self) -> int:
        """Drop the copy of a file that is only read, and read it anew; returns the number of sound entries."""
        with self._lock:
            if not self.writable:
                self._forget()
            return self.refresh()

    def _copy_from(self, fd: int, copied: int) -> bool:
        """Copy the entries behind the first `copied` ones; False if the file no longer has the last of those."""
        size = self.entry_bytes
        last = self._copy[(copied - 1) * size : copied * size] if copied else b""
        pieces: list[bytes] = []
        added = 0
        while True:
            # From the last sound entry on: it shows whether the file is the same, and what may follow it.
            piece = fs.pread(fd, COPY_BYTES // size * size, max(copied + added - 1, 0) * size)
            if not piece.startswith(last):
                return False
            sound = self._searched(piece, self.base_offset).sound_entries()
            pieces.append(piece[len(last) : sound * size])
            added += len(pieces[-1]) // size
            if sound * size < COPY_BYTES // size * size:
                self.has_unsound = any(piece[sound * size : (sound + 1) * size])
                break
            last = piece[(sound - 1) * size : sound * size]
        self._add_copied(copied, b"".join(pieces), added)
        return True

    def _add_copied(self, copied: int, data: bytes, entries: int) -> None:
        """Put entries behind the `copied` ones; memory that must grow gets twice the needed size."""
        size = self.entry_bytes
        if copied + entries > self.max_entries:
            room = 2 * (copied + entries) if copied else entries
            copy = bytearray(room * size)
            copy[: copied * size] = memoryview(self._copy)[: copied * size]
            self._drop()
            self._copy = copy
            self._set_size(copied, room)
            self._hold(copy, room)
        self._copy[copied * size : (copied + entries) * size] = data
        self.entries = copied + entries

    # ---- the disk, and the end ----

    def flush(self) -> None:
        """Return once all entries written before the call, and the file's size, are on the disk.

        Costs nothing when nothing was written. The directory is not synced. For one thread at a time.
        """
        with ExitStack() as uses:
            with self._lock:
                if not (self._take_dirty() or self._unsynced):
                    return
                self._unsynced = False
                was_open = self._handles is not None
                self._open(create=False)
                assert self._handles is not None
                uses.enter_context(self._handles.use())
                fd = self._fd
                if not was_open:
                    self._let_go()
            try:
                fs.fdatasync(fd)
            except BaseException:
                self._unsynced = True
                raise

    def close(self) -> None:
        """Let go of map and descriptor, without trim or sync; a later use raises `LogClosedError`. May be repeated."""
        with self._lock:
            self._closed = True
            self._unmap()
            self._forget()
            self._let_go()


class OffsetIndex(OffsetEntries, IndexFile):
    """A `.index` file: entries (last offset of a batch, position where it starts), 8 bytes each.

    `OffsetIndex(path, base_offset, max_bytes)`, where `max_bytes` is `segment.index.bytes`. See `IndexFile` for the
    life of the file and for threads, `OffsetEntries` for the search.
    """

    __init__ = IndexFile.__init__
    _searched = OffsetEntries

    def append(self, offset: int, position: int) -> None:
        """Add an entry (SEMANTICS 3.9).

        Raises `ValueError` when the index is full, `offset` is not above the last one or out of range, and
        `StorageError`; nothing was added then.
        """
        relative = self._relative(offset)
        if self.is_full:
            raise ValueError(f"{self.path} is full: {self.entries} entries of at most {self.max_entries}")
        if self.entries and offset <= self.last[0]:
            raise ValueError(f"{self.path}: offset {offset} does not follow the last entry's, {self.last[0]}")
        if not 0 <= position <= INT_MAX:
            raise ValueError(f"position {position} is not within 0 to {INT_MAX}")
        self._write(offset_entry(relative, position))

    def _fits(self, log_bytes: int) -> bool:
        return self.entries == 0 or self.last[1] < log_bytes


class TimeIndex(TimeEntries, IndexFile):
    """A `.timeindex` file: entries (greatest timestamp so far, last offset of its batch), 12 bytes each.

    `TimeIndex(path, base_offset, max_bytes)`, where `max_bytes` is `segment.index.bytes`. See `IndexFile` for the life
    of the file and for threads, `TimeEntries` for the search.
    """

    __init__ = IndexFile.__init__
    _searched = TimeEntries

    def closing_entry(self, entries: bytes, timestamp: int, offset: int) -> bytes:
        """The bytes of the entry that a roll adds behind these entries, none where they end with it (SEMANTICS 3.8)."""
        last_timestamp, _ = TimeEntries(entries, self.base_offset).last
        return time_entry(timestamp, self._relative(offset)) if timestamp > last_timestamp else b""

    def maybe_append(self, timestamp: int, offset: int, *, force: bool = False) -> bool:
        """Add an entry if `timestamp` is above the last one; whether it was added (SEMANTICS 3.8).

        The closing entry of a roll is added with `force`: it takes the reserved slot, and if even that is taken it
        makes the file longer. Raises `ValueError` when the index is full, when `timestamp` or `offset` is below the
        last entry's and when `offset` is out of range, and `StorageError`; nothing was added then.
        """
        if not force and self.is_full:
            raise ValueError(f"{self.path} is full: {self.entries} entries of at most {self.max_entries}, one reserved")
        last_timestamp, last_offset = self.last
        if self.entries:
            if offset < last_offset:
                raise ValueError(f"{self.path}: offset {offset} is below the last entry's, {last_offset}")
            if timestamp < last_timestamp:
                raise ValueError(f"{self.path}: timestamp {timestamp} is below the last entry's, {last_timestamp}")
        if timestamp <= last_timestamp:
            return False
        self._write(time_entry(timestamp, self._relative(offset)))
        return True

    def _fits(self, log_bytes: int) -> bool:
        return self.entries == 0 or log_bytes > 0
