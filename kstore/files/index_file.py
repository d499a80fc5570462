"""The offset and time index files of a segment: resizing, reading, writing and mapping them (SEMANTICS 3).

A file has its full size while its segment is active, and is cut to its entries when the segment is sealed. Entries are
written with `pwrite`, so that a full disk is a `StorageError`, and read with `pread`; only a large file of a sealed
segment is mapped. Invariant: no file is cut while it is mapped. Only `_resize` cuts, after `_unmap`, and each search
first checks whether another program has cut the file.
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
"""Up to this size a trimmed index is copied: a map costs a descriptor, and more time than copying so few bytes."""


class IndexFile(Entries):
    """The base class of both kinds of index file.

    The constructor does no I/O. The first use opens the file and treats all of it as entries (SEMANTICS 3.4). A missing
    file is a `StorageError`, except for `grow`, `create_empty` and `replace`, which create it.

    With `writable=False` the file belongs to another process. Nothing is mapped or written. The valid entries (FORMAT
    7.5) are copied to memory when they are first needed, and `refresh` adds new ones; a missing file has no entries.

    A writer that calls `pwrite` itself uses `fd` and `max_entries`. It writes the entry at `entries * entry_bytes` and
    then sets `entries`, so that `flush` knows of the write. `fd` is valid until `trim`, `truncate_to`, `replace`,
    `create_empty` or `close`.

    As an `openfiles.Holder` it holds the bytes that are searched; the log closes the descriptor for writing (`park`).
    Lookups may run in any thread, also during an append, a cut or a refresh; one thread at a time may change the file.
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
        self._copy = bytearray()  # a copy of the file's entries, with space after them
        self._remainder = 0  # the bytes after the last whole entry when the file was opened
        self._lock = threading.RLock()  # held while the file is opened, mapped, cut or closed, never during a search

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.path)!r}, {self.base_offset})"

    # ---- the descriptor and the map ----

    @property
    def fd(self) -> int:
        """The descriptor for writing entries; opens the file, which must exist."""
        if not self._is_open():
            self._open(create=False)
        return self._fd

    def _open_path(self, **how: bool) -> int:
        return moving.at_its_path(lambda path: fs.open(path, **how), lambda: str(self.path), drop=fs.close)

    def _is_open(self) -> bool:
        return self._handles is not None and not self._handles.closed

    def _open(self, *, create: bool) -> None:
        """Open a descriptor for writing unless one is open, and read the file's size."""
        with self._lock:
            self._check_open()
            if not self.writable:
                raise ValueError(f"{self.path}: this index is only read")
            if self._handles is None:
                handles = fs.Handles()
                self._fd = handles.add(self._open_path(write=True, create=create))
                self._handles = handles
                self._unmap()  # the held bytes may be a copy, which would not get new entries
            elif self._handles.closed:
                raise LogClosedError(f"{self.path}: the index belongs to the process that this one was forked from")
            self._find_size(self._fd)

    def _find_size(self, fd: int) -> None:
        """Treat the whole file as entries, unless their number is known (SEMANTICS 3.4)."""
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
        """Provide the bytes to search: a copy of the entries in use, or a map of a large file that is full."""
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
                elif written or self.entries < self.max_entries:  # otherwise no entry can be added
                    self._copy_used(fd, self.entries)
                else:
                    self._hold(fs.map(fd, size), self.entries)
            finally:
                if not written:
                    fs.close(fd)
        if is_new:
            openfiles.opened(self, self.holds())

    def _copy_used(self, fd: int, entries: int) -> None:
        """Copy the entries in use that are not yet copied; the file is long enough."""
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
        """Release the bytes, and close a map."""
        held = self._drop()
        if self.writable:
            self._copy = bytearray()
        if isinstance(held, fs.Map):
            held.close()

    def _resize(self, entries: int, room: int) -> None:
        """Set the file's length to `room` entries; the first `entries` of them are in use."""
        with self._lock:
            self._set_size(min(entries, self.entries), self.max_entries)
            self._unmap()
            size = room * self.entry_bytes
            try:
                fs.truncate(self._fd, size)
                self._set_size(entries, room)
            except BaseException:
                # An interrupt may have come before or after the truncation: read the size from the file.
                entries_on_disk = fs.size(self._fd) // self.entry_bytes
                self._set_size(min(entries, entries_on_disk), entries_on_disk)
                raise
            self._remainder = 0
            self._unsynced = True

    # ---- releasing files ----

    def park(self) -> None:
        """Close the descriptor and the map until the next use; call this only while no thread writes through `fd`.

        The next `flush` still syncs earlier writes.
        """
        with self._lock:
            self._unmap()
            self._let_go()

    def holds(self) -> int:
        """Return 0 if nothing is held, otherwise 1 plus one for each `COPY_BYTES` of the copy and the proofs."""
        size = self._held_bytes()
        if size < 0:
            return 0
        copied = 0 if self._is_mapped() else size
        return 1 + (copied + self._proof_bytes()) // COPY_BYTES

    def was_used(self) -> bool:
        """Return whether the entries were read since the last call."""
        return self._take_touched()

    def let_go(self) -> None:
        """Release the bytes that are searched, as `_unmap` does."""
        with self._lock:
            self._unmap()
            if not self.writable and not self._closed:
                self._forget()  # otherwise `refresh` would add new entries to the dropped copy
                self._copy = bytearray()

    # ---- sizes ----

    def grow(self, max_bytes: int | None = None) -> bool:
        """Resize the file to the full size of an active segment's index; return whether the size changed.

        Creates a missing file, and remembers `max_bytes` (`segment.index.bytes`). The size is the largest multiple of
        an entry up to `max_bytes` (SEMANTICS 3.1), but entries are never cut. Raises `ValueError` if no entry fits.
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
        """Cut the file to the entries in use and close it; return whether the size changed (SEMANTICS 2.9, 3.5)."""
        with self._lock:
            self._open(create=False)
            changed = self.max_entries > self.entries or self._remainder > 0
            if changed:
                self._resize(self.entries, self.entries)
            self._let_go()
            return changed

    def truncate_to(self, offset: int) -> None:
        """Drop the entries at and above `offset`, then grow the file to full size (SEMANTICS 3.15).

        The dropped entries become zeros on the disk too, so that another process does not read them as entries.
        """
        with self._lock:
            self._open(create=False)
            kept = self.entries_below(offset)
            self._resize(kept, kept)
            self.grow()

    def create_empty(self) -> None:
        """Make the file empty, as a trimmed index without entries is; create it if it is missing (SEMANTICS 8.8)."""
        self.replace(b"")
        self._let_go()

    def replace(self, data: ReadableBuffer, *, at_full_size: bool = False) -> bool:
        """Replace the content of the file with `data`; return whether a byte changed. Creates a missing file.

        Used for a rebuild (SEMANTICS 8.15): equal bytes are not written again. A `maybe_append` with `force`, `grow` or
        `trim` may follow. With `at_full_size` a file at full size keeps the zeros after its entries. Raises
        `ValueError` if `data` is not whole entries.
        """
        data = memoryview(data).cast("B")
        entries, remainder = divmod(len(data), self.entry_bytes)
        if remainder:
            raise ValueError(f"{len(data)} bytes are not whole entries of {self.entry_bytes}")
        with self._lock:
            self._open(create=True)
            self._unmap()
            self._unsynced = True  # even if nothing changes: the process that wrote it may have died before its sync
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
        """Write `data` at the start of the file unless it is there already; return whether it was written."""
        if not data or fs.pread(self._fd, len(data), 0) == data:
            return False
        fs.pwrite(self._fd, data, 0)
        return True

    # ---- entries ----

    def _write(self, entry: bytes) -> None:
        """Write the next entry; if the file has no space for it, the file grows."""
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
        """Return the relative offset that an entry holds (SEMANTICS 3.9)."""
        if not 0 <= offset - self.base_offset <= INT_MAX:
            raise ValueError(f"offset {offset} is not within 0 to {INT_MAX} of the base offset {self.base_offset}")
        return offset - self.base_offset

    # ---- soundness ----

    def looks_trimmed(self, log_bytes: int) -> bool:
        """Return whether the file has only valid entries for a log of `log_bytes`, as after a clean close.

        Reads every entry, unless the last two are the zeros of a file at full size. Returns False for a missing file.
        """
        try:
            if self._ends_as_at_full_size():
                return False
            return self.sound_entries() == self.entries and not self._remainder and self._fits(log_bytes)
        except fs.MissingFileError:
            return False

    def _ends_as_at_full_size(self) -> bool:
        """Return whether the file's last two entries are equal, as the zeros of a file at full size are.

        Uses `pread`: mapping the end of such a file takes a millisecond, and opening after a crash checks many files.
        """
        with fs.closing(self._open_path()) as fd:
            size = fs.size(fd) // self.entry_bytes * self.entry_bytes
            last = fs.pread(fd, 2 * self.entry_bytes, max(size - 2 * self.entry_bytes, 0))
        return (
            size >= 2 * self.entry_bytes and last[: self.entry_bytes] == last[self.entry_bytes : 2 * self.entry_bytes]
        )

    def _fits(self, log_bytes: int) -> bool:
        """Return whether the last entry is possible in a log of `log_bytes`."""
        raise NotImplementedError

    # ---- another process's file ----

    def refresh(self) -> int:
        """Copy the valid entries added since the last read of a read-only file; return the number of entries.

        If the last known entry has changed, the index was truncated, and all of it is read again. A caller that knows
        of a truncation calls `reload`.
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
        """Drop the copy of a read-only file and read all of it again; return the number of entries."""
        with self._lock:
            if not self.writable:
                self._forget()
            return self.refresh()

    def _copy_from(self, fd: int, copied: int) -> bool:
        """Copy the entries after the first `copied` ones; return False if the last of these has changed."""
        size = self.entry_bytes
        last = self._copy[(copied - 1) * size : copied * size] if copied else b""
        pieces: list[bytes] = []
        added = 0
        while True:
            # Start at the last valid entry: it shows whether the file was truncated, and which entries may follow.
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
        """Put entries after the `copied` ones; a copy that must grow gets twice the needed size."""
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
        """Sync all entries written before the call, and the file's size.

        Does no I/O if nothing was written. Does not sync the directory. Only one thread at a time may call this.
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
        """Close map and descriptor without trim or sync; a later use raises `LogClosedError`. May be called again."""
        with self._lock:
            self._closed = True
            self._unmap()
            self._forget()
            self._let_go()


class OffsetIndex(OffsetEntries, IndexFile):
    """A `.index` file: entries (last offset of a batch, position where it starts), 8 bytes each.

    In `OffsetIndex(path, base_offset, max_bytes)`, `max_bytes` is `segment.index.bytes`. `OffsetEntries` implements the
    search; `IndexFile` handles the file and documents the rules for threads.
    """

    __init__ = IndexFile.__init__
    _searched = OffsetEntries

    def append(self, offset: int, position: int) -> None:
        """Add an entry (SEMANTICS 3.9).

        Raises `ValueError` if the index is full, or if `offset` is out of range or not above the last entry's, and
        `StorageError`. After an error nothing was added.
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

    In `TimeIndex(path, base_offset, max_bytes)`, `max_bytes` is `segment.index.bytes`. `TimeEntries` implements the
    search; `IndexFile` handles the file and documents the rules for threads.
    """

    __init__ = IndexFile.__init__
    _searched = TimeEntries

    def closing_entry(self, entries: bytes, timestamp: int, offset: int) -> bytes:
        """Return the bytes of a roll's closing entry, none if `entries` already reach the timestamp (SEMANTICS 3.8)."""
        last_timestamp, _ = TimeEntries(entries, self.base_offset).last
        return time_entry(timestamp, self._relative(offset)) if timestamp > last_timestamp else b""

    def maybe_append(self, timestamp: int, offset: int, *, force: bool = False) -> bool:
        """Add an entry if `timestamp` is above the last one; return whether it was added (SEMANTICS 3.8).

        The closing entry of a roll is added with `force`: it uses the reserved slot, and if that is in use, the file
        grows. Raises `ValueError` if the index is full, if `timestamp` or `offset` is below the last entry's, or if
        `offset` is out of range, and `StorageError`. After an error nothing was added.
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
