# cython: language_level=3
"""`c/entries.h` for Cython: the layout of an index entry and its writer.

Also declares the classes of entries, for the module that searches both indexes and the log.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t

from kstore.disk._map cimport Map


cdef extern from "entries.h" nogil:
    enum:
        OFFSET_AT "KS_ENTRY_OFFSET_AT"
        POSITION_AT "KS_ENTRY_POSITION_AT"
        OFFSET_ENTRY "KS_OFFSET_ENTRY_BYTES"
        TIMESTAMP_AT "KS_ENTRY_TIMESTAMP_AT"
        TIME_OFFSET_AT "KS_TIME_ENTRY_OFFSET_AT"
        TIME_ENTRY "KS_TIME_ENTRY_BYTES"
    void put_offset_entry "ks_put_offset_entry"(uint8_t *p, int32_t offset, int32_t position) noexcept
    void put_time_entry "ks_put_time_entry"(uint8_t *p, int64_t timestamp, int32_t offset) noexcept


cdef struct Neighbours:        # an entry of a time index, and the next one
    int64_t slot
    int64_t timestamp
    int64_t offset
    int64_t position           # of the batch that ends at `offset`, from the offset index
    int64_t after              # the offset of the entry before; base offset - 1 for the first entry
    int64_t next_offset        # of the next entry, if `has_next`
    int64_t next_position
    int64_t next_end           # where the batch of the entry after the next starts, 0 if there is none
    bint has_next              # whether the next entries of both indexes name the same batch


cdef struct Around:            # the entries of an offset index around an offset
    bint has_before            # whether an entry has a lower offset
    bint has_after             # whether an entry has this offset or a higher one
    int64_t before             # the greatest offset of an entry that is below this one
    int64_t before_position
    int64_t after              # the offset of the next entry
    int64_t after_position
    int64_t after_end          # the position of the entry after that, 0 if there is none


cdef class Entries:
    cdef readonly int64_t base_offset
    cdef object _owner                # exports the bytes of `view`, None if no buffer is held
    cdef Py_buffer view
    cdef const uint8_t *data          # the buffer's bytes, NULL if no buffer is held
    cdef int64_t count                # entries in use, -1 before the file's size is known
    cdef int64_t room                 # how many entries fit
    cdef int64_t filled               # entries in the buffer, if one is held
    cdef Map _map                     # the mapped file; None for a buffer in memory
    cdef readonly Py_ssize_t entry_bytes
    cdef int64_t reserved             # slots that `is_full` counts as taken: 1 in a time index
    cdef bint _dirty
    cdef bint _touched                # the bytes were read
    cdef public bint has_unsound
    """Whether an invalid entry follows the copied entries of a read-only file."""
    cdef uint32_t *_proofs            # one for each slot of a time index, see `prove`
    cdef int64_t _proofs_room

    cdef int _ready(self) except -1
    cdef int _look_at_file(self) except -1
    cpdef bint _is_ready(self)
    cpdef bint _has_size(self)
    cpdef _set_size(self, int64_t entries, int64_t room)
    cpdef _hold(self, object buffer, int64_t filled=*)
    cpdef int64_t _filled(self)
    cpdef _drop(self)
    cpdef int64_t _proof_bytes(self)
    cpdef Py_ssize_t _held_bytes(self)
    cpdef bint _is_mapped(self)
    cpdef bint _take_touched(self)
    cpdef _forget(self)
    cpdef bint _take_dirty(self)
    cdef void _release(self) noexcept
    cdef void _forget_proofs(self) noexcept
    cdef tuple _at(self, int64_t slot)
    cdef int _take(self, object buffer, int64_t base_offset, object entries) except -1


cdef class OffsetEntries(Entries):
    pass


cdef int look_around(OffsetEntries entries, int64_t offset, Around *around) except -1


cdef class TimeEntries(Entries):
    cdef bint lookup_batches(self, int64_t timestamp, OffsetEntries offsets, Neighbours *found) except? True
    cdef bint is_proved(self, const Neighbours *found) noexcept
    cdef void prove(self, const Neighbours *found) noexcept
