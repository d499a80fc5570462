# cython: language_level=3, auto_pickle=False, autotestdict=False
"""Searches in index entries as they lie on disk: big-endian, 8 bytes (offset index) or 12 (time index), no header.

Nothing is converted or copied: a search loads the keys that it meets. It ends after at most 63 steps whatever the
bytes are, and what it finds always has a key at or below the target; that keys rise is the file's promise, which
`sound_entries` checks. Files, sizes and maps are `indexfile`'s: a class here only holds a buffer, or asks its own
`_attach` for one. The hardest rule: whenever a buffer is held, `entries` lies within it.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport INT32_MAX, INT64_MIN, int32_t, int64_t, uint8_t, uint64_t

from kstore._wire cimport load32, load64

cdef extern from *:
    """
    #define ks_prefetch(p) __builtin_prefetch(p)
    """
    void prefetch "ks_prefetch"(const void *p) noexcept nogil

# Layouts (FORMAT.md 7.1 and 8.1), each number derived from the one before.
cdef enum:
    OFFSET_AT = 0
    POSITION_AT = OFFSET_AT + 4
    OFFSET_ENTRY = POSITION_AT + 4

    TIMESTAMP_AT = 0
    TIME_OFFSET_AT = TIMESTAMP_AT + 8
    TIME_ENTRY = TIME_OFFSET_AT + 4

    LANES = 16            # searches that run side by side: while one waits for memory, others go on
    SLICE = 16384        # targets between two looks at the buffer, so that whoever wants to cut the file waits briefly

    NO_TIME = -1         # what a lookup says that finds no entry

OFFSET_ENTRY_BYTES = OFFSET_ENTRY
TIME_ENTRY_BYTES = TIME_ENTRY


# ---- searches: the slot of the last key <= `key`, -1 when there is none --------------------------------------------

cdef inline int64_t key_of(const uint8_t *p, bint wide) noexcept nogil:
    return load64(p) if wide else load32(p)


cdef inline int64_t floor_slot(const uint8_t *p, int64_t n, Py_ssize_t stride, bint wide, int64_t key) noexcept nogil:
    """Halve without branching: both of the next probes are fetched before the present one is compared."""
    cdef int64_t slot = 0, half
    if n <= 0 or key_of(p, wide) > key:
        return -1
    while n > 1:
        half = n >> 1
        n -= half
        prefetch(p + (slot + (n >> 1)) * stride)
        prefetch(p + (slot + half + (n >> 1)) * stride)
        slot += half & -<int64_t>(key_of(p + (slot + half) * stride, wide) <= key)
    return slot


cdef inline void floor_slots(const uint8_t *p, int64_t n, Py_ssize_t stride, bint wide, const int64_t *keys,
                             int64_t *slots) noexcept nogil:
    """`floor_slot` for LANES keys at once; all take the same number of steps."""
    cdef int64_t half
    cdef int i
    cdef const uint8_t *first = p
    for i in range(LANES):
        slots[i] = 0
    while n > 1:
        half = n >> 1
        n -= half
        for i in range(LANES):
            slots[i] += half & -<int64_t>(key_of(p + (slots[i] + half) * stride, wide) <= keys[i])
    for i in range(LANES):
        if key_of(first, wide) > keys[i]:
            slots[i] = -1


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


# ---- who holds the bytes --------------------------------------------------------------------------------------------

cdef class Entries:
    """Index entries in a buffer, or in one that `_attach` will bring when it is first needed.

    `base_offset` is what the entries' offsets count from. Lookups may run in any thread, also beside an append;
    changes of `entries` and of the buffer are for one thread at a time.
    """

    cdef readonly int64_t base_offset
    cdef object _owner                # exports the bytes of `view`, None when nothing is held
    cdef Py_buffer view
    cdef const uint8_t *data          # NULL when nothing is held
    cdef int64_t count                # entries in use, -1 before the file was looked at
    cdef int64_t room                 # entries that there is room for; all of them are in the buffer, if one is held
    cdef readonly Py_ssize_t entry_bytes
    cdef int64_t reserved             # slots that count as taken when it comes to fullness: 1 in a time index
    cdef bint _dirty
    cdef bint _touched                # the bytes were looked at

    def __cinit__(self, *_, **__):
        self.data = NULL
        self._owner = None
        self.count = self.room = -1

    def __init__(self, int64_t base_offset):
        self.base_offset = base_offset

    def __dealloc__(self):
        if self.data != NULL:
            PyBuffer_Release(&self.view)

    @property
    def entries(self):
        """The number of entries in use.

        May be set, by whoever writes entries through a descriptor of their own: first the bytes, then the number, at
        most `max_entries`. Bytes behind it are never looked at.
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
    def max_entries(self):
        """The number of entries that there is room for (SEMANTICS.md 3.2)."""
        if self.room < 0:
            self._attach()
        return self.room

    @property
    def size_bytes(self):
        """Bytes of the entries in use: the size of the file once it is trimmed."""
        return self.entries * self.entry_bytes

    def _attach(self):
        """Bring what is missing: `_set_size`, then `_hold` if there are entries. A class with a file overrides this."""
        raise ValueError("the index entries have no buffer")

    cdef int _ready(self) except -1:
        """Make `data` the entries in use; it may stay NULL only when there are none."""
        self._touched = self.data != NULL      # what was just brought has not been used again yet
        while self.data == NULL and self.count != 0:
            self._attach()
        return 0

    cpdef bint _is_ready(self):
        """Whether the numbers are known, and the buffer is held if there are entries."""
        return self.count == 0 or self.data != NULL

    cpdef bint _has_size(self):
        """Whether the numbers are known."""
        return self.room >= 0

    cpdef _set_size(self, int64_t entries, int64_t room):
        """There is room for `room` entries, and `entries` are in use; a buffer that has less room is let go first."""
        if entries < 0 or room < entries:
            raise ValueError(f"{entries} entries in an index that has room for {room}")
        if self.data != NULL and self.view.len // self.entry_bytes < room:
            raise ValueError(f"the buffer held has {self.view.len} bytes, no room for {room} entries")
        self.count = entries
        self.room = room

    cpdef _hold(self, object buffer):
        """Search in `buffer` from now on. It must have the room that was told to `_set_size`."""
        cdef Py_buffer view
        PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
        if view.len // self.entry_bytes < self.room:
            PyBuffer_Release(&view)
            raise ValueError(f"a buffer of {view.len} bytes has no room for {self.room} entries")
        self._drop()
        self.view = view
        self._owner = buffer
        self.data = <const uint8_t *>view.buf

    cpdef _drop(self):
        """Let go of the buffer and give it back; None when none was held. The numbers stay."""
        cdef object owner = self._owner
        if self.data != NULL:
            self.data = NULL
            self._owner = None
            PyBuffer_Release(&self.view)
        return owner

    cpdef Py_ssize_t _held_bytes(self):
        """The size of the buffer that is held, -1 for none."""
        return -1 if self.data == NULL else self.view.len

    cpdef bint _take_touched(self):
        """Whether the entries were looked at since this was last asked."""
        cdef bint touched = self._touched
        self._touched = False
        return touched

    cpdef _forget(self):
        """Forget the numbers and let go of the buffer, which is given back: the next use asks `_attach`."""
        self.count = self.room = -1
        return self._drop()

    cpdef bint _take_dirty(self):
        """Whether `entries` was changed since this was last asked."""
        cdef bint dirty = self._dirty
        self._dirty = False
        return dirty

    @property
    def is_full(self):
        """Whether no entry may be added; a time index keeps one slot for the closing entry of a roll (3.3)."""
        if self.room < 0:
            self._attach()
        return self.count >= self.room - self.reserved

    @property
    def last(self):
        """The last entry; that of a lookup which finds none when there is none."""
        self._ready()
        return self._at(self.count - 1)

    def entry(self, int64_t slot, /):
        """The entry in a slot; `IndexError` when it is not in use."""
        self._ready()
        if slot < 0 or slot >= self.count:
            raise IndexError(f"slot {slot} of an index with {self.count} entries")
        return self._at(slot)

    def entries_below(self, int64_t offset, /):
        """Count the entries below an offset: those that a truncation to it keeps (3.15)."""
        cdef int64_t key
        self._ready()
        if self.count == 0 or offset <= self.base_offset:
            return 0
        key = relative(offset - 1, self.base_offset)
        if self.reserved:
            return 1 + floor_slot(self.data + TIME_OFFSET_AT, self.count, TIME_ENTRY, False, key)
        return 1 + floor_slot(self.data + OFFSET_AT, self.count, OFFSET_ENTRY, False, key)

    cdef tuple _at(self, int64_t slot):
        """The entry in a slot that is in use, or what stands for none if it is negative."""
        raise NotImplementedError

    def lookup(self, int64_t target, /):
        """Find the entry with the greatest key at or below `target`."""
        raise NotImplementedError

    def sound_entries(self):
        """Count the entries before the first that cannot be one."""
        raise NotImplementedError

    cdef int _take(self, object buffer, int64_t base_offset, object entries) except -1:
        """Be the entries in a buffer that the caller has."""
        cdef int64_t room = memoryview(buffer).nbytes // self.entry_bytes
        self.base_offset = base_offset
        self._set_size(room if entries is None else entries, room)
        self._hold(buffer)
        return 0

    def lookup_many(self, targets, /):
        """Do `lookup` for an array of targets: two int64 arrays, what comes first in an entry and what comes second.

        Works without the GIL, on several targets at a time; each slice of them sees the entries there are then.
        Raises `ValueError` or `TypeError` for targets that are no row of integers which 64 bits hold.
        """
        import numpy

        cdef Py_buffer keys_view, first_view, second_view, held
        cdef int64_t count, done = 0, n
        cdef const uint8_t *data
        targets = numpy.asarray(targets)
        if targets.ndim != 1:
            raise ValueError(f"targets have {targets.ndim} dimensions; one is wanted")
        casting = "safe" if len(targets) else "unsafe"      # an empty list is an array of floats
        targets = numpy.ascontiguousarray(targets.astype(numpy.int64, casting=casting, copy=False))
        total = len(targets)
        first, second = numpy.empty(total, numpy.int64), numpy.empty(total, numpy.int64)
        PyObject_GetBuffer(targets, &keys_view, PyBUF_SIMPLE)
        PyObject_GetBuffer(first, &first_view, PyBUF_WRITABLE)
        PyObject_GetBuffer(second, &second_view, PyBUF_WRITABLE)
        try:
            while done < total:
                n = min(<int64_t>total - done, <int64_t>SLICE)
                self._ready()
                count, data = self.count, self.data
                # The buffer is held a second time: whoever closes it meanwhile is refused, and tries again.
                if data != NULL:
                    PyObject_GetBuffer(self._owner, &held, PyBUF_SIMPLE)
                with nogil:
                    search(data, count, self.reserved != 0, self.base_offset, <const int64_t *>keys_view.buf + done, n,
                           <int64_t *>first_view.buf + done, <int64_t *>second_view.buf + done)
                if data != NULL:
                    PyBuffer_Release(&held)
                done += n
        finally:
            PyBuffer_Release(&keys_view)
            PyBuffer_Release(&first_view)
            PyBuffer_Release(&second_view)
        return first, second


cdef void search(const uint8_t *data, int64_t count, bint wide, int64_t base_offset, const int64_t *targets, int64_t n,
                 int64_t *first, int64_t *second) noexcept nogil:
    """Look n targets up: timestamps and offsets of time entries if `wide`, else offsets and positions."""
    cdef int64_t[LANES] keys
    cdef int64_t[LANES] slots
    cdef int64_t at = 0
    cdef const uint8_t *p
    cdef int i, lanes
    while at < n:
        lanes = <int>min(n - at, <int64_t>LANES)
        for i in range(LANES):
            keys[i] = targets[at + (i if i < lanes else 0)]
            if not wide:
                keys[i] = relative(keys[i], base_offset)
            slots[i] = -1
        if count > 0:
            if wide:
                floor_slots(data, count, TIME_ENTRY, True, keys, slots)
            else:
                floor_slots(data, count, OFFSET_ENTRY, False, keys, slots)
        for i in range(lanes):
            if slots[i] < 0:
                first[at + i] = NO_TIME if wide else base_offset
                second[at + i] = base_offset if wide else 0
            elif wide:
                p = data + slots[i] * TIME_ENTRY
                first[at + i] = load64(p + TIMESTAMP_AT)
                second[at + i] = absolute(base_offset, load32(p + TIME_OFFSET_AT))
            else:
                p = data + slots[i] * OFFSET_ENTRY
                first[at + i] = absolute(base_offset, load32(p + OFFSET_AT))
                second[at + i] = load32(p + POSITION_AT)
        at += lanes


cdef class OffsetEntries(Entries):
    """Entries (offset, position): the batch that ends at `offset` starts at `position` in the log file.

    `OffsetEntries(buffer, base_offset, entries=None)`, where None takes all there is room for. The buffer may be
    written to behind the entries in use. Lookups may run in any thread, also beside an append.
    """

    def __cinit__(self, *_, **__):
        self.entry_bytes = OFFSET_ENTRY
        self.reserved = 0

    def __init__(self, buffer, int64_t base_offset, entries=None):
        self._take(buffer, base_offset, entries)

    cdef tuple _at(self, int64_t slot):
        cdef const uint8_t *p
        if slot < 0:
            return self.base_offset, 0
        p = self.data + slot * OFFSET_ENTRY
        return absolute(self.base_offset, load32(p + OFFSET_AT)), load32(p + POSITION_AT)

    def lookup(self, int64_t offset, /):
        """Find the entry with the greatest offset at or below `offset`; (base offset, 0) when there is none (3.13)."""
        self._ready()
        return self._at(floor_slot(self.data, self.count, OFFSET_ENTRY, False, relative(offset, self.base_offset)))

    def upper_bound(self, int64_t position, /):
        """Give the offset of the first entry at or behind `position`, None when there is none (3.14)."""
        cdef int64_t slot = 0
        self._ready()
        if self.count == 0:
            return None
        if position > load32(self.data + POSITION_AT):
            slot = 1 + floor_slot(self.data + POSITION_AT, self.count, OFFSET_ENTRY, False, position - 1)
        return None if slot >= self.count else self._at(slot)[0]

    def sound_entries(self):
        """Count the entries before the first that cannot be one (FORMAT.md 7.5).

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
    """Entries (timestamp, offset): every record with a greater timestamp has a greater offset (SEMANTICS.md 3.10).

    `TimeEntries(buffer, base_offset, entries=None)`, where None takes all there is room for. The buffer may be written
    to behind the entries in use. Lookups may run in any thread, also beside an append.
    """

    def __cinit__(self, *_, **__):
        self.entry_bytes = TIME_ENTRY
        self.reserved = 1

    def __init__(self, buffer, int64_t base_offset, entries=None):
        self._take(buffer, base_offset, entries)

    cdef tuple _at(self, int64_t slot):
        cdef const uint8_t *p
        if slot < 0:
            return NO_TIME, self.base_offset
        p = self.data + slot * TIME_ENTRY
        return load64(p + TIMESTAMP_AT), absolute(self.base_offset, load32(p + TIME_OFFSET_AT))

    def lookup(self, int64_t timestamp, /):
        """Find the entry with the greatest timestamp at or below it; (-1, base offset) when there is none (3.13)."""
        self._ready()
        return self._at(floor_slot(self.data, self.count, TIME_ENTRY, True, timestamp))

    def sound_entries(self):
        """Count the entries before the first that cannot be one (FORMAT.md 8.3).

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
