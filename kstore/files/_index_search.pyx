# cython: language_level=3, auto_pickle=False, autotestdict=False
"""Searches in index entries as they lie on disk: big-endian, 8 bytes (offset index) or 12 (time index), no header.

A search converts and copies nothing. It ends after at most 100 steps whatever the bytes are, and an entry that it finds
has a key at or below the target. `index_file` opens the files; a class here has a buffer, or calls its `_attach` to get
a buffer. Invariant: no search starts before the buffer has all entries in use (`_ready`).
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport INT32_MAX, INT64_MIN, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

from kstore.codec._wire cimport load32, load64
from kstore.disk._map cimport Map

cdef extern from *:
    """
    #define ks_prefetch(p) __builtin_prefetch(p)
    """
    void prefetch "ks_prefetch"(const void *p) noexcept nogil

cdef enum:
    NO_TIME = -1         # the timestamp of a lookup that finds no entry

OFFSET_ENTRY_BYTES = OFFSET_ENTRY  # type: int
TIME_ENTRY_BYTES = TIME_ENTRY  # type: int
OFFSET_ENTRY_FIELDS = [("offset", ">i4"), ("position", ">i4")]  # type: list[tuple[str, str]]
"""The NumPy dtype of an entry of an offset index; the offset is relative to the segment's base offset."""
TIME_ENTRY_FIELDS = [("timestamp", ">i8"), ("offset", ">i4")]  # type: list[tuple[str, str]]
"""The NumPy dtype of an entry of a time index; the offset is relative, too."""


def offset_entry(int32_t offset, int32_t position) -> bytes:
    """Return the bytes of an entry of an offset index; `offset` is relative to the segment's base offset."""
    cdef uint8_t entry[OFFSET_ENTRY]
    put_offset_entry(entry, offset, position)
    return (<char *> entry)[:OFFSET_ENTRY]


def time_entry(int64_t timestamp, int32_t offset) -> bytes:
    """Return the bytes of an entry of a time index; `offset` is relative to the segment's base offset."""
    cdef uint8_t entry[TIME_ENTRY]
    put_time_entry(entry, timestamp, offset)
    return (<char *> entry)[:TIME_ENTRY]


# ---- searches: the slot of the last key <= `key`, -1 if there is none ----------------------------------------------

cdef inline int64_t key_of(const uint8_t *p, bint wide) noexcept nogil:
    return load64(p) if wide else load32(p)


cdef enum:
    MANY = 4096          # entries among which keys are assumed to rise about evenly
    FEW = 64             # up to this many entries are only halved: eight cache lines of an offset index
    AROUND = 6           # cache lines on each side of a guess: keys that rise by chance are seldom further off

cdef inline int64_t floor_slot(const uint8_t *p, int64_t n, Py_ssize_t stride, bint wide, int64_t key) noexcept nogil:
    """Find the slot: halve first, since caches hold these few probes of most searches; then guess, step and halve.

    Even if the keys are not in order, the search ends just as soon, and finds a slot with a key at or below `key`.
    """
    cdef int64_t low = 0, high = n
    if n <= 0 or key_of(p, wide) > key:
        return -1
    if n > FEW:
        halve(p, &low, &high, MANY, stride, wide, key)
        guess(p, &low, &high, stride, wide, key)
    halve(p, &low, &high, 1, stride, wide, key)
    return low


cdef inline void halve(
    const uint8_t *p, int64_t *low, int64_t *high, int64_t most, Py_ssize_t stride, bint wide, int64_t key
) noexcept nogil:
    """Halve without branching down to `most` slots; both possible next probes are prefetched before a comparison."""
    cdef int64_t slot = low[0], n = high[0] - low[0], half
    while n > most:
        half = n >> 1
        n -= half
        prefetch(p + (slot + (n >> 1)) * stride)
        prefetch(p + (slot + half + (n >> 1)) * stride)
        slot += half & -<int64_t>(key_of(p + (slot + half) * stride, wide) <= key)
    low[0], high[0] = slot, slot + n


@cython.cdivision(True)               # both ends of the line may be the same double: then there is no guess
cdef inline void guess(
    const uint8_t *p, int64_t *low, int64_t *high, Py_ssize_t stride, bint wide, int64_t key
) noexcept nogil:
    """Interpolate between the first key and the last, then narrow the slots around that guess by growing steps."""
    cdef int64_t first = low[0], last = high[0] - 1, step = 8, slot, around
    cdef int64_t first_key = key_of(p + first * stride, wide), last_key = key_of(p + last * stride, wide)
    cdef double at
    if last_key <= key:
        low[0] = last
        return
    at = <double>first + (<double>key - <double>first_key) * <double>(last - first) / (<double>last_key - <double>first_key)
    # Invariant: the key at `first` is at or below `key`, and the key at `last` is above it.
    slot = first if not at > <double>first else last if at >= <double>last else <int64_t>at
    # Each step would wait for memory; prefetching the keys around the guess makes that a single wait.
    for around in range(1, AROUND + 1):
        prefetch(p + (slot + around * step) * stride)
        prefetch(p + (slot - around * step) * stride)
    if key_of(p + slot * stride, wide) <= key:
        first = slot
        while first + step < last and key_of(p + (first + step) * stride, wide) <= key:
            first += step
            step *= 4
        last = min(first + step, last)
    else:
        last = slot
        while last - step > first and key_of(p + (last - step) * stride, wide) > key:
            last -= step
            step *= 4
        first = max(last - step, first)
    low[0], high[0] = first, last


cdef inline int64_t relative(int64_t offset, int64_t base_offset) noexcept nogil:
    """Return the key of an offset: at most 2^31 - 1, and below all keys if the offset is below the base offset."""
    cdef uint64_t distance
    if offset < base_offset:
        return INT64_MIN
    distance = <uint64_t>offset - <uint64_t>base_offset
    return INT32_MAX if distance > INT32_MAX else <int64_t>distance


cdef inline int64_t absolute(int64_t base_offset, int32_t relative_offset) noexcept nogil:
    """Return the offset of an entry; it wraps around only in a damaged file."""
    return <int64_t>(<uint64_t>base_offset + <uint64_t><int64_t>relative_offset)


cdef inline uint32_t proof_of(const Neighbours *found) noexcept nogil:
    """Return a hash of the content of two entries, never 0."""
    cdef uint64_t h = <uint64_t> found.timestamp * 0x9e3779b97f4a7c15u
    h += <uint64_t> found.offset * 0xbf58476d1ce4e5b9u
    h += <uint64_t> found.after * 0x94d049bb133111ebu
    h += <uint64_t> found.next_offset * 0xd6e8feb86659fd93u
    h += <uint64_t> found.next_position * 0xff51afd7ed558ccdu
    h = (h ^ h >> 32) * 0xc4ceb9fe1a85ec53u
    return <uint32_t> (h >> 32) | 1


# ---- the classes of entries -----------------------------------------------------------------------------------------

@cython.no_gc_clear                   # Cython's tp_clear would drop the buffer of `view` without releasing it
cdef class Entries:
    """Index entries in a buffer; `_attach` provides the buffer when it is first needed.

    The entries' offsets are relative to `base_offset`. Lookups may run in any thread, also during an append;
    one thread at a time may change `entries` and the buffer.
    """

    def __cinit__(self, *_, **__):
        self.data = NULL
        self._owner = None
        self.count = self.room = -1

    def __init__(self, int64_t base_offset):
        self.base_offset = base_offset

    def __dealloc__(self):
        free(self._proofs)
        if self.data != NULL:
            PyBuffer_Release(&self.view)

    @property
    def entries(self) -> int:
        """The number of entries in use.

        A writer with its own descriptor may set the number, to at most `max_entries`, after it has written the bytes.
        Bytes after the entries in use are never read.
        """
        if self.count < 0:
            self._attach()
        return self.count

    @entries.setter
    def entries(self, int64_t entries):
        if self.room < 0:
            self._attach()
        if entries == self.count:
            return
        if entries < 0 or entries > self.room:
            raise ValueError(f"{entries} entries in an index that has room for {self.room}")
        self.count = entries
        self._dirty = True

    @property
    def max_entries(self) -> int:
        """The number of entries that the file or buffer has space for (SEMANTICS 3.2)."""
        if self.room < 0:
            self._attach()
        return self.room

    @property
    def size_bytes(self) -> int:
        """The bytes of the entries in use: the size of the file once it is trimmed."""
        return self.entries * self.entry_bytes

    def _attach(self) -> None:
        """Provide the bytes: call `_set_size`, then `_hold` if there are entries. Classes with a file override this."""
        raise ValueError("the index entries have no buffer")

    cdef int _ready(self) except -1:
        """Make `data` point to the entries in use; it may stay NULL only if there are none."""
        self._touched = self.data != NULL      # bytes that `_attach` is about to provide do not count as used
        if self._map is not None:
            self._look_at_file()
        while (self.data == NULL or self.filled < self.count) and self.count != 0:
            self._attach()
        return 0

    cdef int _look_at_file(self) except -1:
        """If another program has cut the file, drop its map: reading the map raises SIGBUS. `_attach` then fails."""
        cdef Map mapped = self._map
        cdef bint is_cut
        try:
            is_cut = mapped.length() < self.count * self.entry_bytes
        except OSError:                        # the size is unknown: drop the map, and `_attach` raises the error
            is_cut = True
        if is_cut:
            self._drop()
        return 0

    cpdef bint _is_ready(self):
        """Return whether the counts are known and the buffer has all entries."""
        return self.count == 0 or (self.data != NULL and self.filled >= self.count)

    cpdef bint _has_size(self):
        """Return whether the counts are known."""
        return self.room >= 0

    cpdef _set_size(self, int64_t entries, int64_t room):  # type: None
        """Set how many entries are in use and how many fit; the caller first drops a buffer that lacks some of them."""
        if entries < 0 or room < entries:
            raise ValueError(f"{entries} entries in an index that has room for {room}")
        self.count = entries
        self.room = room

    cpdef _hold(self, object buffer: ReadableBuffer, int64_t filled=-1):  # type: None
        """Search in `buffer` from now on; it has the first `filled` entries, by default as many as fit (`room`).

        If `buffer` is a `Map`, each search first asks for the size of the file.
        """
        cdef Py_buffer view
        filled = self.room if filled < 0 else filled
        PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
        if view.len // self.entry_bytes < filled:
            PyBuffer_Release(&view)
            raise ValueError(f"a buffer of {view.len} bytes has no {filled} entries")
        self._release()
        self.view = view
        self._owner = buffer
        self._map = buffer if isinstance(buffer, Map) else None
        self.filled = filled
        self.data = <const uint8_t *>view.buf

    cpdef int64_t _filled(self):
        """Return the number of entries in the held buffer, 0 without a buffer."""
        return 0 if self.data == NULL else self.filled

    cpdef _drop(self):  # type: Any
        """Release the buffer and return it, None if there was none. The counts are kept."""
        cdef object owner = self._owner
        self._release()
        self._forget_proofs()
        return owner

    cdef void _release(self) noexcept:
        if self.data != NULL:
            self.data = NULL
            self._owner = self._map = None
            self.filled = 0
            PyBuffer_Release(&self.view)

    cdef void _forget_proofs(self) noexcept:
        free(self._proofs)
        self._proofs = NULL
        self._proofs_room = 0

    cpdef int64_t _proof_bytes(self):
        """Return the bytes of memory that the proofs of searches by time take."""
        return 4 * self._proofs_room

    cpdef Py_ssize_t _held_bytes(self):
        """Return the size of the held buffer, -1 without a buffer."""
        return -1 if self.data == NULL else self.view.len

    cpdef bint _is_mapped(self):
        return self._map is not None

    cpdef bint _take_touched(self):
        """Return whether the entries were read since the last call."""
        cdef bint touched = self._touched
        self._touched = False
        return touched

    cpdef _forget(self):  # type: Any
        """Forget the counts, release the buffer and return it; the next use calls `_attach`."""
        self.count = self.room = -1
        return self._drop()

    cpdef bint _take_dirty(self):
        """Return whether `entries` was set since the last call."""
        cdef bint dirty = self._dirty
        self._dirty = False
        return dirty

    @property
    def is_full(self) -> bool:
        """Whether no entry may be added; a time index reserves the slot of a roll's closing entry (SEMANTICS 3.3)."""
        if self.room < 0:
            self._attach()
        return self.count >= self.room - self.reserved

    @property
    def last(self) -> tuple[int, int]:
        """The last entry; if there is none, what `lookup` returns if it finds none."""
        self._ready()
        return self._at(self.count - 1)

    def entry(self, int64_t slot, /) -> tuple[int, int]:
        """Return the entry in a slot; raise `IndexError` if the slot is not in use."""
        self._ready()
        if slot < 0 or slot >= self.count:
            raise IndexError(f"slot {slot} of an index with {self.count} entries")
        return self._at(slot)

    def all_entries(self) -> list[tuple[int, int]]:
        """Return all entries in use, in order."""
        cdef int64_t slot
        self._ready()
        return [self._at(slot) for slot in range(self.count)]

    def entries_below(self, int64_t offset, /) -> int:
        """Count the entries below an offset: a truncation to the offset keeps these (SEMANTICS 3.15)."""
        cdef int64_t key
        self._ready()
        if self.count == 0 or offset <= self.base_offset:
            return 0
        key = relative(offset - 1, self.base_offset)
        if self.reserved:
            return 1 + floor_slot(self.data + TIME_OFFSET_AT, self.count, TIME_ENTRY, False, key)
        return 1 + floor_slot(self.data + OFFSET_AT, self.count, OFFSET_ENTRY, False, key)

    cdef tuple _at(self, int64_t slot):
        """Return the entry in a slot that is in use; for a negative slot return the values that mean no entry."""
        raise NotImplementedError

    def lookup(self, int64_t target, /) -> tuple[int, int]:
        """Find the entry with the greatest key at or below `target`."""
        raise NotImplementedError

    def sound_entries(self) -> int:
        """Count the entries before the first invalid one."""
        raise NotImplementedError

    cdef int _take(self, object buffer, int64_t base_offset, object entries) except -1:
        """Hold the entries in a buffer of the caller."""
        cdef int64_t room = memoryview(buffer).nbytes // self.entry_bytes
        self.base_offset = base_offset
        self._set_size(room if entries is None else entries, room)
        self._hold(buffer, room)
        return 0


cdef class OffsetEntries(Entries):
    """Entries (offset, position): the batch that ends at `offset` starts at `position` in the log file.

    `OffsetEntries(buffer, base_offset, entries=None)`; None means that all of the buffer is entries. Bytes after the
    entries in use may be written. Lookups may run in any thread, also during an append.
    """

    def __cinit__(self, *_, **__):
        self.entry_bytes = OFFSET_ENTRY
        self.reserved = 0

    def __init__(self, buffer: ReadableBuffer, int64_t base_offset, entries: int | None = None):
        self._take(buffer, base_offset, entries)

    cdef tuple _at(self, int64_t slot):
        cdef const uint8_t *p
        if slot < 0:
            return self.base_offset, 0
        p = self.data + slot * OFFSET_ENTRY
        return absolute(self.base_offset, load32(p + OFFSET_AT)), load32(p + POSITION_AT)

    def lookup(self, int64_t offset, /) -> tuple[int, int]:
        """Find the entry with the greatest offset at or below `offset`; (base offset, 0) if none (SEMANTICS 3.13)."""
        self._ready()
        return self._at(floor_slot(self.data, self.count, OFFSET_ENTRY, False, relative(offset, self.base_offset)))

    def offset_from(self, int64_t position, /) -> int | None:
        """Return the offset of the first entry at or above a position, None if there is none (SEMANTICS 3.14).

        As in Kafka, entry 0 is skipped if it is exactly at that position.
        """
        cdef int64_t slot
        self._ready()                      # after this no other thread can cut the index
        if self.count == 0:
            return None
        slot = floor_slot(self.data + POSITION_AT, self.count, OFFSET_ENTRY, False, max(position, 0) - 1) + 1
        if slot == 0 and load32(self.data + POSITION_AT) == position:
            slot = 1
        return self._at(slot)[0] if slot < self.count else None

    def sound_entries(self) -> int:
        """Count the entries before the first invalid one (FORMAT 7.5).

        Offsets and positions rise strictly, no offset is below the base offset, and no position is 0.
        """
        cdef int64_t slot = 0
        cdef int32_t offset = -1, position = 0
        cdef const uint8_t *p
        self._ready()
        p = self.data
        while slot < self.count and load32(p + OFFSET_AT) > offset and load32(p + POSITION_AT) > position:
            offset, position = load32(p + OFFSET_AT), load32(p + POSITION_AT)
            p += OFFSET_ENTRY
            slot += 1
        return slot


cdef int look_around(OffsetEntries entries, int64_t offset, Around *around) except -1:
    """Find the last entry below `offset` and the next one, which a batch with that offset ends at or lies between."""
    cdef int64_t slot
    cdef const uint8_t *p
    entries._ready()
    slot = -1
    if offset > entries.base_offset:
        slot = floor_slot(entries.data, entries.count, OFFSET_ENTRY, False, relative(offset - 1, entries.base_offset))
    around.has_before = slot >= 0
    if around.has_before:
        p = entries.data + slot * OFFSET_ENTRY
        around.before = absolute(entries.base_offset, load32(p + OFFSET_AT))
        around.before_position = load32(p + POSITION_AT)
    around.has_after = slot + 1 < entries.count
    around.after_end = 0
    if around.has_after:
        p = entries.data + (slot + 1) * OFFSET_ENTRY
        around.after = absolute(entries.base_offset, load32(p + OFFSET_AT))
        around.after_position = load32(p + POSITION_AT)
        if slot + 2 < entries.count:
            around.after_end = load32(p + OFFSET_ENTRY + POSITION_AT)
    return 0


cdef class TimeEntries(Entries):
    """Entries (timestamp, offset): every record with a greater timestamp has a greater offset (SEMANTICS 3.10).

    `TimeEntries(buffer, base_offset, entries=None)`; None means that all of the buffer is entries. Bytes after the
    entries in use may be written. Lookups may run in any thread, also during an append.
    """

    def __cinit__(self, *_, **__):
        self.entry_bytes = TIME_ENTRY
        self.reserved = 1

    def __init__(self, buffer: ReadableBuffer, int64_t base_offset, entries: int | None = None):
        self._take(buffer, base_offset, entries)

    cdef tuple _at(self, int64_t slot):
        cdef const uint8_t *p
        if slot < 0:
            return NO_TIME, self.base_offset
        p = self.data + slot * TIME_ENTRY
        return load64(p + TIMESTAMP_AT), absolute(self.base_offset, load32(p + TIME_OFFSET_AT))

    def lookup(self, int64_t timestamp, /) -> tuple[int, int]:
        """Find the entry with the greatest timestamp up to this one; (-1, base offset) if none (SEMANTICS 3.13)."""
        self._ready()
        return self._at(floor_slot(self.data, self.count, TIME_ENTRY, True, timestamp))

    cdef bint lookup_batches(self, int64_t timestamp, OffsetEntries offsets, Neighbours *found) except? True:
        """Find the entry as `lookup` does, and in `offsets` the positions of its batch and of the next entry's batch.

        Return False if one of the two indexes has no such entry, or if both cannot be held open at the same time.
        """
        cdef int64_t slot, other
        cdef int32_t offset
        cdef const uint8_t *p
        cdef const uint8_t *q
        self._ready()
        offsets._ready()
        if not self._is_ready():
            return False                   # this file was closed to open the other one
        slot = floor_slot(self.data, self.count, TIME_ENTRY, True, timestamp)
        if slot < 0:
            return False
        if slot < self._proofs_room:
            prefetch(self._proofs + slot)
        p = self.data + slot * TIME_ENTRY
        offset = load32(p + TIME_OFFSET_AT)
        other = slot                       # if timestamps rise from batch to batch, both slots are the same
        if other >= offsets.count or load32(offsets.data + other * OFFSET_ENTRY + OFFSET_AT) != offset:
            other = floor_slot(offsets.data, offsets.count, OFFSET_ENTRY, False, offset)
            if other < 0 or load32(offsets.data + other * OFFSET_ENTRY + OFFSET_AT) != offset:
                return False
        q = offsets.data + other * OFFSET_ENTRY
        found.slot = slot
        found.timestamp = load64(p + TIMESTAMP_AT)
        found.offset = absolute(self.base_offset, offset)
        found.position = load32(q + POSITION_AT)
        found.after = absolute(self.base_offset, load32(p - TIME_ENTRY + TIME_OFFSET_AT) if slot else -1)
        found.has_next = (slot + 1 < self.count and other + 1 < offsets.count
                          and load32(p + TIME_ENTRY + TIME_OFFSET_AT) == load32(q + OFFSET_ENTRY + OFFSET_AT))
        if found.has_next:
            found.next_offset = absolute(self.base_offset, load32(p + TIME_ENTRY + TIME_OFFSET_AT))
            found.next_position = load32(q + OFFSET_ENTRY + POSITION_AT)
            found.next_end = load32(q + 2 * OFFSET_ENTRY + POSITION_AT) if other + 2 < offsets.count else 0
        return True

    cdef bint is_proved(self, const Neighbours *found) noexcept:
        """Return whether `prove` was called with the same entries."""
        return found.slot < self._proofs_room and self._proofs[found.slot] == proof_of(found)

    cdef void prove(self, const Neighbours *found) noexcept:
        """Remember that the log confirms the found entry, and that the next entry names the next batch.

        Stores a four-byte hash of both entries; it almost certainly differs if one of them is changed later.
        """
        cdef int64_t room = self._proofs_room
        cdef uint32_t *proofs
        if found.slot >= self.count:
            return                         # the index was cut since the lookup
        if found.slot >= room:
            room = max(2 * room, self.count)
            proofs = <uint32_t *> calloc(room, sizeof(uint32_t))     # pages take no memory until they are written
            if proofs == NULL:
                return
            if self._proofs_room:
                memcpy(proofs, self._proofs, self._proofs_room * sizeof(uint32_t))
            free(self._proofs)
            self._proofs, self._proofs_room = proofs, room
        self._proofs[found.slot] = proof_of(found)

    def sound_entries(self) -> int:
        """Count the entries before the first invalid one (FORMAT 8.3).

        Timestamps rise strictly from 0 on; offsets never fall and are never below the base offset. An entry of zeros
        is invalid: a file that was created at full size ends in such entries.
        """
        cdef int64_t slot = 0, timestamp = NO_TIME
        cdef int32_t offset = 0
        cdef const uint8_t *p
        self._ready()
        p = self.data
        while slot < self.count and load64(p + TIMESTAMP_AT) > timestamp and load32(p + TIME_OFFSET_AT) >= offset:
            timestamp, offset = load64(p + TIMESTAMP_AT), load32(p + TIME_OFFSET_AT)
            if timestamp == 0 and offset == 0:
                break
            p += TIME_ENTRY
            slot += 1
        return slot
