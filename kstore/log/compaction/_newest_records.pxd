# cython: language_level=3
"""The result of compaction's first pass, for the second one: bits by ordinal, and the offset map."""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t


cdef extern from "keymap.h" nogil:
    enum:
        KS_AT_ONCE
        KS_NEW_KEY
        KS_MAP_NO_MEMORY
    const int64_t KS_MOST_ORDINALS
    ctypedef struct ks_key:
        uint64_t hash
        uint32_t more
    ctypedef struct ks_keymap:
        int64_t size
    void ks_keymap_start(ks_keymap *m, const uint8_t *secret, int bits) noexcept
    void ks_keymap_clear(ks_keymap *m) noexcept
    int64_t ks_keymap_memory(const ks_keymap *m) noexcept
    ks_key ks_keymap_hash(const ks_keymap *m, const uint8_t *key, int32_t size) noexcept
    void ks_keymap_hash_all(const ks_keymap *m, const uint8_t *const *keys, const int32_t *sizes, int n,
                            ks_key *hashes) noexcept
    int64_t ks_keymap_get(const ks_keymap *m, ks_key k) noexcept
    int64_t ks_keymap_put(ks_keymap *m, ks_key k, uint32_t ordinal) noexcept
    int ks_keymap_put_all(ks_keymap *m, const ks_key *keys, const uint32_t *ordinals, int n, int64_t capacity,
                          int64_t *previous) noexcept

cdef extern from "bits.h" nogil:
    ctypedef struct ks_bits:
        pass
    # Whether the bit is set; how many of [first, first + n) are set, without those set in `without`, which may be NULL.
    bint ks_bits_has(const ks_bits *b, int64_t i) noexcept
    int64_t ks_bits_count(const ks_bits *b, const ks_bits *without, int64_t first, int64_t n) noexcept

cdef extern from "newest.h" nogil:
    ctypedef struct ks_newest:
        ks_keymap map
        ks_bits superseded         # by ordinal
        ks_bits tombstones         # by ordinal: the value is null, superseded or not
        int64_t capacity
        int64_t records
        int64_t keyless            # superseded records without a key, of the dirty part
        int64_t first_dirty
        int64_t latest
        int full
    # Whether a key has a record in the scanned part at or above the first dirty offset.
    bint ks_newest_has(const ks_newest *s, const uint8_t *key, size_t n) noexcept


cdef class NewestRecords:
    cdef ks_newest state
    cdef uint8_t *_room            # for decompressed batches
    cdef size_t _room_bytes
    cdef int64_t _next_base
    cdef readonly int64_t batches, special_batches
    cdef bint _busy, _failed

    # Reserve the object for use without the GIL, and release it; a second use at the same time is a ValueError.
    cdef int enter(self) except -1
    cdef void leave(self) noexcept
    cdef int _begin(self) except -1
