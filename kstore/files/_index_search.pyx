# cython: language_level=3, auto_pickle=False, autotestdict=False
"""Searches in index entries as they lie on disk: big-endian, 8 bytes (offset index) or 12 (time index), no header.

Nothing is converted or copied: a search loads the keys that it meets. It ends after at most 100 steps whatever the
bytes are, and what it finds has a key at or below the target. `index_file` has the files; a class here only holds a
buffer, or asks its own `_attach` for one. Invariant: no search starts before the buffer has all entries in use
(`_ready`).
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
"""An entry of an offset index, as NumPy takes it for a dtype; the offset counts from the segment's base."""
TIME_ENTRY_FIELDS = [("timestamp", ">i8"), ("offset", ">i4")]  # type: list[tuple[str, str]]
"""An entry of a time index, likewise."""


def offset_entry(int32_t offset, int32_t position) -> bytes:
    """The bytes of an entry of an offset index; `offset` counts from the segment's base."""
    cdef uint8_t entry[OFFSET_ENTRY]
    put_offset_entry(entry, offset, position)
    return (<char *> entry)[:OFFSET_ENTRY]


def time_entry(int64_t timestamp, int32_t offset) -> bytes:
    """The bytes of an entry of a time index; `offset` counts from the segment's base."""
    cdef uint8_t entry[TIME_ENTRY]
    put_time_entry(entry, timestamp, offset)
    return (<char *> entry)[:TIME_ENTRY]


# ---- searches: the slot of the last key <= `key`, -1 when there is none --------------------------------------------

cdef inline int64_t key_of(const uint8_t *p, bint wide) noexcept nogil:
    return load64(p) if wide else load32(p)


cdef enum:
    MANY = 4096          # entries among which keys are taken to rise about evenly
    FEW = 64             # entries that are halved at once: eight cache lines of an offset index
    AROUND = 6           # cache lines on each side of a guess: keys that rise by chance are seldom further off

cdef inline int64_t floor_slot(const uint8_t *p, int64_t n, Py_ssize_t stride, bint wide, int64_t key) noexcept nogil:
    """Halve as long as the probes are the same few in most searches, which caches hold; then guess, step, and halve what
    is left. Keys in any order give an end as soon, and a slot whose key is at or below `key`."""
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
    """Without branching, until there are `most` slots: both of the next probes are fetched before a comparison."""
    cdef int64_t slot = low[0], n = high[0] - low[0], half
    while n > most:
        half = n >> 1
        n -= half
        prefetch(p + (slot + (n >> 1)) * stride)
        prefetch(p + (slot + half + (n >> 1)) * stride)
        slot += half & -<int64_t>(key_of(p + (slot + half) * stride, wide) <= key)
    low[0], high[0] = slot, slot + n


@cython.cdivision(True)               # the line may be so flat that its ends are one number: then there is no guess
cdef inline void guess(
    const uint8_t *p, int64_t *low, int64_t *high, Py_ssize_t stride, bint wide, int64_t key
) noexcept nogil:
    """Narrow the slots down around the one on the line from the first key to the last, by steps that grow."""
    cdef int64_t first = low[0], last = high[0] - 1, step = 8, slot, around
    cdef int64_t first_key = key_of(p + first * stride, wide), last_key = key_of(p + last * stride, wide)
    cdef double at
    if last_key <= key:
        low[0] = last
        return
    at = <double>first + (<double>key - <double>first_key) * <double>(last - first) / (<double>last_key - <double>first_key)
    # The key at `first` is at or below the one that is looked for, and the key at `last` above it.
    slot = first if not at > <double>first else last if at >= <double>last else <int64_t>at
    # Each step is a wait for memory, unless what it meets is on the way already: what lies around comes in one wait.
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
    """The key of an offset: below all keys for one below the base, at most the greatest that 32 bits hold."""
    cdef uint64_t distance
    if offset < base_offset:
        return INT64_MIN
    distance = <uint64_t>offset - <uint64_t>base_offset
    return INT32_MAX if distance > INT32_MAX else <int64_t>distance


cdef inline int64_t absolute(int64_t base_offset, int32_t relative_offset) noexcept nogil:
    """The offset of an entry; it wraps where only a file of nonsense can lead."""
    return <int64_t>(<uint64_t>base_offset + <uint64_t><int64_t>relative_offset)


cdef inline uint32_t proof_of(const Neighbours *found) noexcept nogil:
    """A number made of what two entries say, never 0."""
    cdef uint64_t h = <uint64_t> found.timestamp * 0x9e3779b97f4a7c15u
    h += <uint64_t> found.offset * 0xbf58476d1ce4e5b9u
    h += <uint64_t> found.after * 0x94d049bb133111ebu
    h += <uint64_t> found.next_offset * 0xd6e8feb86659fd93u
    h += <uint64_t> found.next_position * 0xff51afd7ed558ccdu
    h = (h ^ h >> 32) * 0xc4ceb9fe1a85ec53u
    return <uint32_t> (h >> 32) | 1


# ---- who holds the bytes --------------------------------------------------------------------------------------------

@cython.no_gc_clear                   # Cython's would forget the buffer of `view` without releasing it
cdef class Entries:
    """Index entries in a buffer, or in one that `_attach` will bring when it is first needed.

    `base_offset` is what the entries' offsets count from. Lookups may run in any thread, also beside an append;
    changes of `entries` and of the buffer are for one thread at a time.
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

        A writer with a descriptor of its own may set it: first the bytes, then the number, at most `max_entries`.
        Bytes behind it are never looked at.
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
        """The number of entries that there is room for (SEMANTICS 3.2)."""
        if self.room < 0:
            self._attach()
        return self.room

    @property
    def size_bytes(self) -> int:
        """Bytes of the entries in use: the size of the file once it is trimmed."""
        return self.entries * self.entry_bytes

    def _attach(self) -> None:
        """Bring the bytes in: `_set_size`, then `_hold` if there are entries. A class with a file overrides this."""
        raise ValueError("the index entries have no buffer")

    cdef int _ready(self) except -1:
        """Make `data` the entries in use; it may stay NULL only when there are none."""
        self._touched = self.data != NULL      # bytes that were just brought in have not been used again yet
        if self._map is not None:
            self._look_at_file()
        while (self.data == NULL or self.filled < self.count) and self.count != 0:
            self._attach()
        return 0

    cdef int _look_at_file(self) except -1:
        """Let go of a map of a file that another program has cut: a touch would be a SIGBUS. `_attach` raises then."""
        cdef Map mapped = self._map
        cdef bint is_cut
        try:
            is_cut = mapped.length() < self.count * self.entry_bytes
        except OSError:                        # what cannot be looked at is not used: `_attach` says what is there
            is_cut = True
        if is_cut:
            self._drop()
        return 0

    cpdef bint _is_ready(self):
        """Whether the numbers are known, and the buffer has the entries if there are any."""
        return self.count == 0 or (self.data != NULL and self.filled >= self.count)

    cpdef bint _has_size(self):
        """Whether the numbers are known."""
        return self.room >= 0

    cpdef _set_size(self, int64_t entries, int64_t room):  # type: None
        """There is room for `room` entries, and `entries` are in use; a buffer that lacks some is let go first."""
        if entries < 0 or room < entries:
            raise ValueError(f"{entries} entries in an index that has room for {room}")
        self.count = entries
        self.room = room

    cpdef _hold(self, object buffer: ReadableBuffer, int64_t filled=-1):  # type: None
        """Search in `buffer` from now on, of which the first `filled` entries are there, by default as many as have room.

        Of a `Map` each search looks first how many bytes the file has.
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
        """How many entries the buffer that is held has, 0 for no buffer."""
        return 0 if self.data == NULL else self.filled

    cpdef _drop(self):  # type: Any
        """Let go of the buffer and give it back; None when none was held. The numbers stay."""
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
        """What is remembered of searches by time."""
        return 4 * self._proofs_room

    cpdef Py_ssize_t _held_bytes(self):
        """The size of the buffer that is held, -1 for none."""
        return -1 if self.data == NULL else self.view.len

    cpdef bint _is_mapped(self):
        """Whether a file is mapped."""
        return self._map is not None

    cpdef bint _take_touched(self):
        """Whether the entries were read since the last call."""
        cdef bint touched = self._touched
        self._touched = False
        return touched

    cpdef _forget(self):  # type: Any
        """Forget the numbers and let go of the buffer, which is given back: the next use asks `_attach`."""
        self.count = self.room = -1
        return self._drop()

    cpdef bint _take_dirty(self):
        """Whether `entries` was changed since the last call."""
        cdef bint dirty = self._dirty
        self._dirty = False
        return dirty

    @property
    def is_full(self) -> bool:
        """Whether no entry may be added; a time index keeps one slot for the closing entry of a roll
        (SEMANTICS 3.3)."""
        if self.room < 0:
            self._attach()
        return self.count >= self.room - self.reserved

    @property
    def last(self) -> tuple[int, int]:
        """The last entry; that of a lookup which finds none when there is none."""
        self._ready()
        return self._at(self.count - 1)

    def entry(self, int64_t slot, /) -> tuple[int, int]:
        """The entry in a slot; `IndexError` when it is not in use."""
        self._ready()
        if slot < 0 or slot >= self.count:
            raise IndexError(f"slot {slot} of an index with {self.count} entries")
        return self._at(slot)

    def all_entries(self) -> list[tuple[int, int]]:
        """All entries in use, in their order."""
        cdef int64_t slot
        self._ready()
        return [self._at(slot) for slot in range(self.count)]

    def entries_below(self, int64_t offset, /) -> int:
        """Count the entries below an offset: those that a truncation to it keeps (SEMANTICS 3.15)."""
        cdef int64_t key
        self._ready()
        if self.count == 0 or offset <= self.base_offset:
            return 0
        key = relative(offset - 1, self.base_offset)
        if self.reserved:
            return 1 + floor_slot(self.data + TIME_OFFSET_AT, self.count, TIME_ENTRY, False, key)
        return 1 + floor_slot(self.data + OFFSET_AT, self.count, OFFSET_ENTRY, False, key)

    cdef tuple _at(self, int64_t slot):
        """The entry in a slot that is in use; for a negative slot the values that stand for no entry."""
        raise NotImplementedError

    def lookup(self, int64_t target, /) -> tuple[int, int]:
        """Find the entry with the greatest key at or below `target`."""
        raise NotImplementedError

    def sound_entries(self) -> int:
        """Count the entries before the first that cannot be one."""
        raise NotImplementedError

    cdef int _take(self, object buffer, int64_t base_offset, object entries) except -1:
        """Be the entries in a buffer that the caller has."""
        cdef int64_t room = memoryview(buffer).nbytes // self.entry_bytes
        self.base_offset = base_offset
        self._set_size(room if entries is None else entries, room)
        self._hold(buffer, room)
        return 0


cdef class OffsetEntries(Entries):
    """Entries (offset, position): the batch that ends at `offset` starts at `position` in the log file.

    `OffsetEntries(buffer, base_offset, entries=None)`, where None takes all there is room for. The buffer may be
    written to behind the entries in use. Lookups may run in any thread, also beside an append.
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
        """Find the entry with the greatest offset at or below `offset`; (base offset, 0) when there is none
        (SEMANTICS 3.13)."""
        self._ready()
        return self._at(floor_slot(self.data, self.count, OFFSET_ENTRY, False, relative(offset, self.base_offset)))

    def offset_from(self, int64_t position, /) -> int | None:
        """The offset of the first entry at or behind a position, None without one (SEMANTICS 3.14).

        As in Kafka, an entry 0 at exactly that position is passed over.
        """
        cdef int64_t slot
        self._ready()                      # from here on no other thread cuts the index
        if self.count == 0:
            return None
        slot = floor_slot(self.data + POSITION_AT, self.count, OFFSET_ENTRY, False, max(position, 0) - 1) + 1
        if slot == 0 and load32(self.data + POSITION_AT) == position:
            slot = 1
        return self._at(slot)[0] if slot < self.count else None

    def sound_entries(self) -> int:
        """Count the entries before the first that cannot be one (FORMAT 7.5).

        Offsets and positions rise strictly, no offset is below the base, and no position is 0.
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


cdef class TimeEntries(Entries):
    """Entries (timestamp, offset): every record with a greater timestamp has a greater offset (SEMANTICS 3.10).

    `TimeEntries(buffer, base_offset, entries=None)`, where None takes all there is room for. The buffer may be written
    to behind the entries in use. Lookups may run in any thread, also beside an append.
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
        """Find the entry with the greatest timestamp at or below it; (-1, base offset) when there is none
        (SEMANTICS 3.13)."""
        self._ready()
        return self._at(floor_slot(self.data, self.count, TIME_ENTRY, True, timestamp))

    cdef bint lookup_batches(self, int64_t timestamp, OffsetEntries offsets, Neighbours *found) except? True:
        """Find the entry as `lookup` does, and in `offsets` where its batch and that of the next entry start.

        False where one of the two indexes has no such entry, or not both can be held open.
        """
        cdef int64_t slot, other
        cdef int32_t offset
        cdef const uint8_t *p
        cdef const uint8_t *q
        self._ready()
        offsets._ready()
        if not self._is_ready():
            return False                   # to open the other file, this one was let go
        slot = floor_slot(self.data, self.count, TIME_ENTRY, True, timestamp)
        if slot < 0:
            return False
        if slot < self._proofs_room:
            prefetch(self._proofs + slot)
        p = self.data + slot * TIME_ENTRY
        offset = load32(p + TIME_OFFSET_AT)
        other = slot                       # where each batch has a later time than the one before, both have the same slot
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
        """Whether `prove` was called with the same entries."""
        return found.slot < self._proofs_room and self._proofs[found.slot] == proof_of(found)

    cdef void prove(self, const Neighbours *found) noexcept:
        """Remember that the log bears out the entry that was found, and that the next one names the batch behind it.

        Four bytes an entry are made of both: of one that is changed afterwards they are almost surely others.
        """
        cdef int64_t room = self._proofs_room
        cdef uint32_t *proofs
        if found.slot >= self.count:
            return                         # it was cut meanwhile
        if found.slot >= room:
            room = max(2 * room, self.count)
            proofs = <uint32_t *> calloc(room, sizeof(uint32_t))     # takes no memory until it is used
            if proofs == NULL:
                return
            if self._proofs_room:
                memcpy(proofs, self._proofs, self._proofs_room * sizeof(uint32_t))
            free(self._proofs)
            self._proofs, self._proofs_room = proofs, room
        self._proofs[found.slot] = proof_of(found)

    def sound_entries(self) -> int:
        """Count the entries before the first that cannot be one (FORMAT 8.3).

        Timestamps rise strictly from 0 on, offsets never fall nor lie below the base. An entry of zeros counts as none:
        it is what a file that was made at full size ends in.
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
