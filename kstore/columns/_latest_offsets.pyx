# cython: language_level=3, auto_pickle=False, autotestdict=False
"""The offset of each key's newest record, from columns of keys; c/columns/latest.c does the work, without the GIL.

A key is identified by 96 bits of a hash with a secret of this process; callers must compare the found record's key.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t

from kstore._core cimport Buffer
from kstore.columns._columns cimport BinaryColumn, Columns, Memory, new_memory
from kstore.columns._native cimport KS_OFFSETS32

import os

from kstore.base.optional import Late

np = Late("numpy")

cdef extern from "columns/latest.h" nogil:
    ctypedef struct ks_keymap:
        int64_t size
    int64_t ks_keymap_memory(const ks_keymap *m) noexcept
    ctypedef struct ks_latest:
        ks_keymap map
        int64_t first
        int64_t capacity
        int64_t live
    void ks_latest_start(ks_latest *l, const uint8_t *secret, int bits, int64_t first, int64_t end) noexcept
    void ks_latest_clear(ks_latest *l) noexcept
    int ks_latest_add(ks_latest *l, const int64_t *offsets, const int32_t *places, const uint8_t *bytes,
                      const uint8_t *valid, const uint8_t *tombstones, int64_t n) noexcept
    int64_t ks_latest_find(const ks_latest *l, const uint8_t *key, size_t n) noexcept
    void ks_latest_list(const ks_latest *l, int64_t *to) noexcept
    void ks_latest_hashes(const ks_latest *l, uint64_t *to) noexcept

COLUMNS = ("offset", "key", "is_tombstone")  # type: tuple[str, ...]
SECRET_BYTES = 16


def new_secret() -> bytes:
    """Return a random secret for `LatestOffsets`."""
    return os.urandom(SECRET_BYTES)


@cython.final
cdef class LatestOffsets:
    """Maps each key to the offset of its newest added record, unless that record is a tombstone.

    All offsets are in `[first_offset, end_offset)`; `add` raises `ValueError` for other offsets. `share_keys` compares
    only objects with the same secret. One thread at a time may add; after the last `add`, thread-safe.
    """

    cdef ks_latest _state
    cdef bint _is_adding
    cdef int64_t _first, _end

    def __cinit__(self, bytes secret not None, int64_t first_offset, int64_t end_offset, *, int _hash_bits=96):
        if len(secret) != SECRET_BYTES:
            raise ValueError(f"a secret of {len(secret)} bytes; {SECRET_BYTES} are wanted")
        self._first, self._end = first_offset, end_offset
        ks_latest_start(&self._state, <const uint8_t *> PyBytes_AS_STRING(secret), _hash_bits, first_offset,
                        end_offset)

    def __dealloc__(self):
        ks_latest_clear(&self._state)

    def __len__(self):
        return self._state.live

    @property
    def memory_bytes(self) -> int:
        """The bytes of memory of the map and the offsets."""
        return ks_keymap_memory(&self._state.map) + 8 * self._state.capacity

    def add(self, Columns columns not None) -> None:
        """Add records that come after those added before; needs COLUMNS, with keys in the layout "binary".

        Raises `MemoryError`, also for more than 2^32 - 2 keys; the object must not be used after that.
        """
        cdef BinaryColumn keys = columns.columns["key"]
        cdef Memory offsets = columns.memories["offset"], tombstones = columns.memories["is_tombstone"]
        cdef const uint8_t *valid = NULL
        cdef int failed
        if keys.layout_number != KS_OFFSETS32:
            raise ValueError("keys are taken in the layout 'binary' alone")
        if columns.n == 0:
            return
        if not self._first <= columns.offsets[0] <= columns.offsets[columns.n - 1] < self._end:
            raise ValueError(f"offsets {columns.offsets[0]} to {columns.offsets[columns.n - 1]}; "
                             f"{self._first} to {self._end - 1} are taken")
        if keys.valid is not None:
            valid = keys.valid.p
        if self._is_adding:
            raise ValueError("a second call at the same time")
        self._is_adding = True
        with nogil:
            failed = ks_latest_add(&self._state, <const int64_t *> offsets.p, <const int32_t *> keys.places.p,
                                   keys.bytes_.p, valid, tombstones.p, columns.n)
        self._is_adding = False
        if failed:
            raise MemoryError(f"the offsets of {self._state.map.size} keys")

    def find(self, key: ReadableBuffer) -> int:
        """Return the offset of a key's newest record, or -1; a collision of hashes (very rare) finds another key."""
        cdef Buffer buffer = Buffer(key)
        return ks_latest_find(&self._state, buffer.p, <size_t> buffer.size)

    def offsets(self) -> npt.NDArray[np.int64]:
        """Return the offsets of the newest records of all keys, in rising order."""
        cdef Memory memory = new_memory(8 * self._state.live)
        with nogil:
            ks_latest_list(&self._state, <int64_t *> memory.p)
        return np.sort(np.frombuffer(memory, np.int64))


def share_keys(tables: Iterable[LatestOffsets]) -> bool:
    """Return whether some key may have records in two of the tables; False is certain."""
    cdef LatestOffsets table
    cdef Memory memory
    hashes = []
    for table in tables:
        memory = new_memory(8 * table._state.live)
        with nogil:
            ks_latest_hashes(&table._state, <uint64_t *> memory.p)
        hashes.append(np.frombuffer(memory, np.uint64))
    if len(hashes) < 2:
        return False
    every = np.sort(np.concatenate(hashes))
    return bool((every[1:] == every[:len(every) - 1]).any())
