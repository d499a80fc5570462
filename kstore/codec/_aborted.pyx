# cython: language_level=3, auto_pickle=False, autotestdict=False
"""Finds the batches of aborted transactions, which a reader of committed records leaves out."""

cimport cython
from cpython.mem cimport PyMem_RawFree, PyMem_RawMalloc
from libc.stdint cimport int64_t

from kstore._core cimport Buffer
from kstore.codec._wire cimport HEADER_UP_TO_MAGIC, LOG_OVERHEAD, MIN_V0_MESSAGE, RECORDS_AT, batch_size


@cython.final
cdef class AbortedFilter:
    """Aborted transactions, each given as (producer id, first offset, last offset).

    A transactional batch is aborted if an aborted transaction has its producer id and the batch lies between the
    transaction's first batch and its marker. Immutable; thread-safe.
    """

    def __init__(self, transactions: Iterable[tuple[int, int, int]]):
        cdef Py_ssize_t i = 0
        ordered = sorted(transactions)
        self._spans = <ks_span *> PyMem_RawMalloc(<size_t> max(len(ordered), 1) * sizeof(ks_span))
        if self._spans == NULL:
            raise MemoryError
        for producer_id, first, last in ordered:
            self._spans[i] = ks_span(producer_id, first, last)
            i += 1
            self._count = i

    def __dealloc__(self):
        PyMem_RawFree(self._spans)

    def __len__(self):
        return self._count

    def kept(self, data: ReadableBuffer) -> list[tuple[int, int]]:
        """Return the ranges `(start, end)` of `data` that hold no aborted batches."""
        cdef Buffer held = Buffer(data)
        cdef Py_ssize_t at = 0, start = 0
        cdef int64_t size
        ranges = []
        while held.size - at > HEADER_UP_TO_MAGIC:
            size = batch_size(held.p + at)
            if size < LOG_OVERHEAD + MIN_V0_MESSAGE or size > held.size - at:
                break
            if size >= RECORDS_AT and ks_is_aborted(self._spans, self._count, held.p + at):
                if start < at:
                    ranges.append((start, at))
                start = at + <Py_ssize_t> size
            at += <Py_ssize_t> size
        if start < held.size:
            ranges.append((start, held.size))
        return ranges
