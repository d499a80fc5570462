# cython: language_level=3, auto_pickle=False, autotestdict=False
"""The last stable offset: the earliest open transaction's first offset, else the log's end (SEMANTICS 0.2, 9.13).

A `ProducerTable` adds and removes the transactions; both views of a log read the offset here.
"""

cimport cython
from cpython.mem cimport PyMem_RawFree, PyMem_RawRealloc
from libc.stdint cimport int64_t
from libc.string cimport memmove


@cython.final
cdef class OpenTransactions:
    """The open transactions of one log.

    The log's mutex guards changes. `last_stable_offset` may be called from any thread.
    """

    def __dealloc__(self):
        PyMem_RawFree(self._open)

    @property
    def size_bytes(self) -> int:
        return self._room * sizeof(Open)

    def last_stable_offset(self, int64_t log_start, int64_t log_end) -> int:
        """Return the last stable offset of a log with this start and end: below it every transaction has ended."""
        return max(min(self._open[0].first, log_end), log_start) if self._count else log_end

    cdef int64_t stable_after(self, int64_t producer_id, int64_t last, object ended) except? -1:
        """Return the last stable offset if the producer's transaction ends at `last`, and those in `ended` before it.

        `ended` has the first offsets of transactions.
        """
        cdef Py_ssize_t i
        for i in range(self._count):
            if self._open[i].producer_id != producer_id and self._open[i].first not in ended:
                return self._open[i].first
        return last + 1

    cdef int reserve(self) except -1:
        """Make space for one more transaction, so that `begin_last` cannot fail."""
        cdef Py_ssize_t wanted
        cdef void *data
        if self._count == self._room:
            wanted = 2 * self._room + 4
            data = PyMem_RawRealloc(self._open, <size_t> wanted * sizeof(Open))
            if data == NULL:
                raise MemoryError
            self._open = <Open *> data
            self._room = wanted
        return 0

    cdef int begin(self, int64_t first, int64_t producer_id) except -1:
        cdef Py_ssize_t at
        self.reserve()
        at = self._count
        while at and self._open[at - 1].first > first:
            at -= 1
        if at and self._open[at - 1].first == first:
            self._open[at - 1].producer_id = producer_id
            return 0
        memmove(&self._open[at + 1], &self._open[at], <size_t> (self._count - at) * sizeof(Open))
        self._open[at] = Open(first, producer_id)
        self._count += 1
        return 0

    cdef void begin_last(self, int64_t first, int64_t producer_id) noexcept:
        """Add a transaction that begins after all others; `reserve` was called."""
        self._open[self._count] = Open(first, producer_id)
        self._count += 1

    cdef void end(self, int64_t first) noexcept:
        cdef Py_ssize_t low = 0, high = self._count, middle
        while low < high:
            middle = (low + high) // 2
            if self._open[middle].first < first:
                low = middle + 1
            else:
                high = middle
        if low < self._count and self._open[low].first == first:
            self._count -= 1
            memmove(&self._open[low], &self._open[low + 1], <size_t> (self._count - low) * sizeof(Open))

    cdef void clear(self) noexcept:
        self._count = 0
