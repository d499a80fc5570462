# cython: language_level=3, auto_pickle=False, autotestdict=False
"""Splits the rows of columns over the partitions of a topic: hashes, sorts and packs them in C, without objects.

A block of rows is sorted by partition, then the rows of each partition are packed together. Invariant: each partition
gets the same batches as from `_partitioner.Splitter`, which packs records one by one. So two kinds of rows keep their
order: rows without a key, whose partition depends on the rows before them, and rows that may be refused.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.mem cimport PyMem_RawFree, PyMem_RawMalloc
from cpython.object cimport PyObject
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libc.string cimport memset

from kstore.columns._arrow cimport ks_bytes
from kstore.columns._column_encoder cimport (
    BLOCK, ENOUGH, EXHAUSTED, FAULTY, MORE_ROOM, NO_MEMORY, ODD_ROW, Rows, put_odd, put_rows,
)
from kstore.codec._pack cimport Packer
from kstore.store.topics._partitioner cimport BaseSplitter, Router
from kstore.codec._wire cimport TIMESTAMP_TYPE_BIT

cdef extern from "murmur2.h" nogil:
    uint64_t ks_inverse(int32_t partitions) noexcept
    void ks_partitions_by(const ks_bytes *keys, int64_t n, int32_t partitions, uint64_t inverse, int32_t *out) noexcept

cdef enum:
    MAX_FIELDS = 64                   # bytes of a record that are not key, value or headers
    KEYLESS = -1

# Requests of `_run` to `_serve`, in addition to the codes of `put_rows`.
cdef enum:
    DRAW = 100                         # draw a partition for rows without a key
    NEW_PACKER
    CLOSE_ALL

cdef int64_t LONG_MAX = 0x7fffffffffffffff


@cython.final
cdef class ColumnSplitter(BaseSplitter):
    """Packs rows for all partitions of a topic; its packers have no codec."""

    cdef PyObject **_borrowed          # the packers as borrowed references; NULL for a partition without a row
    cdef int32_t _sticky               # the router's, during a call
    cdef int64_t _added

    # The rows [rows._taken, _to) of the block are being packed; the first `_placed` of them are packed already. If
    # `_sorted`, the arrays after `_order` have these rows in the order of partitions.
    cdef int32_t[BLOCK] _partition
    cdef int32_t[BLOCK] _order
    cdef ks_bytes[BLOCK] _value
    cdef ks_bytes[BLOCK] _key
    cdef ks_bytes[BLOCK] _header
    cdef int64_t[BLOCK] _stamp
    cdef int32_t *_ends                # by partition: the end of its rows in the block
    cdef int64_t _to, _placed
    cdef bint _sorted
    cdef int32_t _current              # the partition whose packer needs `_serve`
    cdef int64_t _total

    def __cinit__(self, Router router not None, *args, **kwargs):
        cdef size_t count = <size_t> router.partitions
        self._borrowed = <PyObject **> PyMem_RawMalloc(count * sizeof(PyObject *))
        self._ends = <int32_t *> PyMem_RawMalloc(count * sizeof(int32_t))
        if self._borrowed == NULL or self._ends == NULL:
            raise MemoryError
        memset(self._borrowed, 0, count * sizeof(PyObject *))
        memset(self._ends, 0, count * sizeof(int32_t))

    def __dealloc__(self):
        PyMem_RawFree(self._borrowed)
        PyMem_RawFree(self._ends)

    def pack(self, Rows rows not None) -> bool:
        """Pack rows until enough batches are `ready`; return False when all rows are packed.

        The caller must have taken the batches that were ready. The last batches stay open for more rows until `close`.
        Raises the errors of `_column_encoder.pack`; then all open batches are dropped, and finished ones stay `ready`.
        """
        cdef int code
        self._enter()
        try:
            self._count()
            self._sticky, self._added = self._router._sticky, self._router._added
            while True:
                with nogil:
                    code = self._run(rows)
                if code == EXHAUSTED:
                    return False
                if code == ENOUGH:
                    return True
                if code == CLOSE_ALL:
                    self._close_all()
                    return True
                self._serve(rows, code)
        except BaseException:
            self._drop_all()
            raise
        finally:
            self._to = self._placed = 0
            self._router._sticky, self._router._added = self._sticky, self._added
            self._busy = False

    # ---- With the GIL.

    cdef int _serve(self, Rows rows, int code) except -1:
        cdef Packer packer
        cdef Py_ssize_t used, finished
        cdef int64_t i
        if code == DRAW:
            self._router._sticky, self._router._added = -1, 0
            self._sticky = self._router.sticky()
            self._added = 0
        elif code == NEW_PACKER:
            packer = self._make(self._current)
            if packer._codec:
                raise ValueError("a packer for columns has no codec: batches are compressed when they are finished")
            self._keep(self._current, packer)
            self._borrowed[self._current] = <PyObject *> packer
        elif code == MORE_ROOM:
            packer = self._packers[self._current]
            packer._reserve(<Py_ssize_t> self._total)
        elif code == ODD_ROW:
            packer = self._packers[self._current]
            packer.enter()
            used, finished = packer._used, packer.finished
            try:
                i = self._order[self._placed] if self._sorted else rows._taken + self._placed
                put_odd(packer, rows, i)
            finally:
                packer.leave()
                self._finished += packer.finished - finished
                self._held += packer._used - used
            if self._partition[i] == KEYLESS:
                # The first record of a batch counts with the batch's header.
                self._add(packer._used - packer.finished - (0 if packer._count == 1 else used - finished))
            self._placed += 1
        else:
            rows.fail(Packer(1, 1, now_ms=0), code)
        return 0

    # ---- Without the GIL.

    cdef void _add(self, int64_t size) noexcept nogil:
        self._added += size
        if self._added >= self._sticky_bytes:
            self._sticky = -1
            self._added = 0

    cdef int _run(self, Rows rows) noexcept nogil:
        cdef int code
        while True:
            while rows._taken + self._placed < self._to:
                code = self._put_sorted(rows) if self._sorted else self._put_in_order(rows)
                if code:
                    return code
            if self._placed:
                rows.step(self._placed)
                self._placed = 0
            if rows._taken == rows._block:
                # A caller may take ready batches only between two blocks.
                if self._finished >= self._limit_bytes:
                    return ENOUGH
                if self._held >= self._max_bytes:
                    return CLOSE_ALL
                if rows.at == rows.count:
                    return EXHAUSTED
                code = rows.gather()
                if code:
                    return code
                self._to = 0
                self._route(rows)
            code = self._begin(rows)
            if code:
                return code

    cdef void _route(self, Rows rows) noexcept nogil:
        cdef int64_t i
        if rows._keys is None or self._only >= 0:
            for i in range(rows._block):
                self._partition[i] = self._only     # -1 is KEYLESS
            return
        ks_partitions_by(rows._key, rows._block, self._partitions, self._inverse, self._partition)

    cdef int _begin(self, Rows rows) noexcept nogil:
        """Find how many of the next rows can be packed together; if they have keys, sort them."""
        cdef int64_t i = rows._taken
        cdef int32_t partition = self._partition[i]
        cdef bint keyless = partition == KEYLESS
        if keyless and self._sticky < 0:
            return DRAW
        while i < rows._block:
            partition = self._partition[i]
            if (partition == KEYLESS) != keyless:
                break
            if keyless:
                partition = self._sticky
            if self._borrowed[partition] == NULL:
                self._current = partition
                return NEW_PACKER
            if not self._is_plain(<Packer> self._borrowed[partition], rows, i):
                break
            i += 1
        self._sorted = not keyless and i > rows._taken
        self._to = max(i, rows._taken + 1)           # a row that is not plain is packed alone
        if self._sorted:
            self._sort(rows)
        return 0

    cdef bint _is_plain(self, Packer packer, Rows rows, int64_t i) noexcept nogil:
        """Return whether the packer will accept a row unless its batch is full."""
        cdef int64_t size = MAX_FIELDS + max(rows._value[i].n, 0)
        cdef int64_t time = rows._stamp[i]
        if rows._keys is not None:
            size += max(rows._key[i].n, 0)
        if rows._headers is not None:
            size += rows._header[i].n
        if size > packer._batch_bytes or (packer._require_key and self._partition[i] == KEYLESS):
            return False
        if time == -1 or packer._attributes & TIMESTAMP_TYPE_BIT:
            return True
        return (time >= packer.now_ms or packer.now_ms - time <= packer._before_max_ms) and (
            time <= packer.now_ms or time - packer.now_ms <= packer._after_max_ms)

    cdef void _sort(self, Rows rows) noexcept nogil:
        """Sort the rows up to `_to` by partition; the sort is stable."""
        cdef int64_t i
        cdef int32_t at = 0, place, size, partition
        for i in range(rows._taken, self._to):
            self._ends[self._partition[i]] += 1
        for i in range(rows._taken, self._to):
            partition = self._partition[i]
            size = self._ends[partition]
            if size > 0:                            # the partition's first row: from now on its next place p, as -p - 1
                self._ends[partition] = -at - 1
                at += size
            place = -self._ends[partition] - 1
            self._ends[partition] -= 1
            self._order[place] = <int32_t> i
            self._value[place] = rows._value[i]
            self._key[place] = rows._key[i]
            self._stamp[place] = rows._stamp[i]
            if rows._headers is not None:
                self._header[place] = rows._header[i]
        for i in range(rows._taken, self._to):
            self._ends[self._partition[i]] = 0

    cdef int _put_sorted(self, Rows rows) noexcept nogil:
        cdef int64_t count = self._to - rows._taken, end
        cdef int32_t partition
        cdef int64_t added
        cdef int code
        while self._placed < count:
            partition = self._partition[self._order[self._placed]]
            end = self._placed + 1
            while end < count and self._partition[self._order[end]] == partition:
                end += 1
            added = 0
            code = self._put(partition, self._placed, end, self._key, self._value,
                             self._header if rows._headers is not None else NULL, self._stamp, rows._slack, &added,
                             LONG_MAX)
            if code:
                return code
        return 0

    cdef int _put_in_order(self, Rows rows) noexcept nogil:
        """Pack rows without a key, or leave one row that may be refused to `put_odd`."""
        cdef int64_t i = rows._taken + self._placed
        cdef int64_t added = self._added
        cdef int32_t partition = self._partition[i]
        cdef int code
        if partition != KEYLESS:
            self._current = partition
            return ODD_ROW
        if self._sticky < 0:
            return DRAW
        partition = self._sticky
        self._current = partition
        if self._borrowed[partition] == NULL:
            return NEW_PACKER
        code = self._put(partition, i, self._to, NULL, rows._value, rows._header if rows._headers is not None else NULL,
                         rows._stamp, rows._slack, &added, self._sticky_bytes)
        self._added = 0
        self._add(added)
        return 0 if code == ENOUGH else code

    cdef int _put(self, int32_t partition, int64_t start, int64_t end, const ks_bytes *keys, const ks_bytes *values,
                  const ks_bytes *headers, const int64_t *stamps, int slack, int64_t *added,
                  int64_t enough) noexcept nogil:
        """Pack the rows [start, end) of some arrays into a partition's packer, and count them as placed."""
        cdef PyObject *packer = self._borrowed[partition]
        cdef Py_ssize_t used = (<Packer> packer)._used, finished = (<Packer> packer).finished
        cdef int code = EXHAUSTED
        self._current = partition
        self._placed += put_rows(<Packer> packer, keys + start if keys != NULL else NULL, values + start,
                                 headers + start if headers != NULL else NULL, stamps + start, slack, end - start,
                                 <Py_ssize_t> LONG_MAX, added, enough, &code, &self._total)
        self._finished += (<Packer> packer).finished - finished
        self._held += (<Packer> packer)._used - used
        return 0 if code == EXHAUSTED else code


def partitions_of(Rows rows not None, int32_t partitions) -> bytes:
    """Return the partition of each row by Kafka's default partitioner, as native int32; -1 for a row without a key.

    This consumes the rows: they cannot be packed afterwards. Raises the errors of `_column_encoder.pack` for bad keys.
    """
    cdef int64_t i, at = 0
    cdef int32_t *partition_of
    cdef int code = 0
    cdef uint64_t inverse
    if partitions < 1:
        raise ValueError(f"a topic has 1 partition or more, not {partitions}")
    inverse = ks_inverse(partitions)
    result = PyBytes_FromStringAndSize(NULL, <Py_ssize_t> (rows.count * <int64_t> sizeof(int32_t)))
    partition_of = <int32_t *> PyBytes_AS_STRING(result)
    with nogil:
        while rows.at < rows.count:
            code = rows.gather()
            if code:
                break
            if rows._keys is not None:
                ks_partitions_by(rows._key, rows._block, partitions, inverse, partition_of + at)
            else:
                for i in range(rows._block):
                    partition_of[at + i] = KEYLESS
            at += rows._block
            rows.step(rows._block)
    if code:
        rows.fail(Packer(1, 1, now_ms=0), code)
    return result
