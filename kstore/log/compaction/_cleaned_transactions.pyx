# cython: language_level=3, auto_pickle=False, autotestdict=False
"""Finds the aborted data, and the markers that are not needed any more, during a cleaning.

Invariant: a marker of an aborted transaction is kept, with its entry of the transaction index, as long as data of the
transaction may be in a file.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE

from kstore._core cimport Buffer, fault_text, record_section
from kstore.codec._wire cimport (
    ATTRIBUTES_AT, CONTROL_BIT, HEADER_UP_TO_MAGIC, LAST_OFFSET_DELTA_AT, MAGIC_AT, RECORDS_AT, RECORDS_COUNT_AT,
    batch_size, load16, load32, load64,
)

import os

from kstore.codec import compression
from kstore.errors import CorruptRecordError
from kstore.files.txnindex import AbortedTxn

cdef extern from "transactions.h" nogil:
    int ks_transactions_add(ks_transactions *t, const ks_aborted_txn *txn) noexcept
    int ks_transactions_on_data(ks_transactions *t, const uint8_t *p) noexcept
    int ks_transactions_on_control(ks_transactions *t, const uint8_t *p, int type) noexcept
    void ks_transactions_free(ks_transactions *t) noexcept
    int ks_control_type_of(const uint8_t *p, const uint8_t *end) noexcept


@cython.final
cdef class CleanedTransactions:
    """The aborted and committed transactions of one pass over a log (SEMANTICS 7.15, 7.16).

    It gets each segment's aborted transactions before the segment's batches, and then each batch, in offset order. Open
    transactions carry over segments and groups. Not thread-safe.
    """

    def __cinit__(self):
        self._state.seed = <uint64_t> int.from_bytes(os.urandom(8), "little")

    def __dealloc__(self):
        ks_transactions_free(&self._state)

    def add_aborted(self, transactions: Iterable[AbortedTxn]) -> None:
        """Add aborted transactions of the next segment. Adding one twice is harmless."""
        cdef ks_aborted_txn txn
        for version, producer_id, first_offset, last_offset, last_stable_offset in transactions:
            txn = ks_aborted_txn(version, producer_id, first_offset, last_offset, last_stable_offset)
            if ks_transactions_add(&self._state, &txn):
                raise MemoryError

    def take_retained(self) -> list[AbortedTxn]:
        """Return the aborted transactions whose markers were kept since the last call, for the new segment's index."""
        cdef size_t i
        cdef ks_aborted_txn *txn
        cdef list entries = []
        for i in range(self._state.retained_count):
            txn = self._state.retained + i
            entries.append(AbortedTxn(txn.version, txn.producer_id, txn.first, txn.last, txn.last_stable))
        self._state.retained_count = 0
        return entries

    def visit(self, batch not None: ReadableBuffer, *, path: str | None = None, int64_t position=0,
              max_decompressed_bytes: int | None = None) -> bool:
        """Process the next batch. Return whether it is data of an aborted transaction, or a marker that nothing needs.

        `batch` is whole. Raises `CorruptRecordError` for a control batch whose first record is not a control record.
        """
        cdef Buffer view = Buffer(batch)
        cdef int64_t limit
        cdef int control_type, answer
        if (view.size < HEADER_UP_TO_MAGIC or batch_size(view.p) != view.size
                or (view.p[MAGIC_AT] >= 2 and view.size < RECORDS_AT)):
            raise CorruptRecordError(f"{view.size} bytes that are no whole batch", path=path, position=position)
        if view.p[MAGIC_AT] != 2 or not load16(view.p + ATTRIBUTES_AT) & CONTROL_BIT:
            answer = self.on_data(view.p)
        else:
            control_type = ks_control_type(view.p, view.size)
            if control_type == KS_CONTROL_COMPRESSED:
                limit = compression.MAX_DECOMPRESSED_BYTES if max_decompressed_bytes is None else max_decompressed_bytes
                control_type = compressed_control_type(view.p, view.size, limit, path, position)
            if control_type == KS_CONTROL_BAD:
                raise bad_batch(KS_CLEAN_BAD_MARKER, view.p, 0, 0, path, position)
            answer = self.on_control(view.p, control_type)
        if answer < 0:
            raise MemoryError
        return answer == 1

    cdef int on_data(self, const uint8_t *header) noexcept nogil:
        return ks_transactions_on_data(&self._state, header)

    cdef int on_control(self, const uint8_t *header, int control_type) noexcept nogil:
        return ks_transactions_on_control(&self._state, header, control_type)


cdef int compressed_control_type(const uint8_t *header, Py_ssize_t size, int64_t limit, object path,
                                 int64_t position) except? KS_CONTROL_BAD:
    cdef bytes section = record_section(header, size, limit, path, position)
    cdef const uint8_t *p = <const uint8_t *> PyBytes_AS_STRING(section)
    return ks_control_type_of(p, p + PyBytes_GET_SIZE(section))


cdef object bad_batch(ks_step step, const uint8_t *p, int64_t next_base, int fault, object path, int64_t position):
    if step == KS_CLEAN_BAD_SIZE:
        reason = f"batch of {batch_size(p)} bytes, which is less than its header has"
    elif step == KS_CLEAN_BAD_MAGIC:
        reason = f"magic {p[MAGIC_AT]}: 0, 1 and 2 are known"
    elif step == KS_CLEAN_BAD_CRC:
        reason = f"the CRC of a batch of {batch_size(p)} bytes does not match"
    elif step == KS_CLEAN_BAD_OFFSETS:
        reason = f"batch with a last offset delta of {load32(p + LAST_OFFSET_DELTA_AT)} from offset {load64(p)}"
    elif step == KS_CLEAN_BAD_ORDER:
        reason = f"batch with an offset below {next_base}, where the batch before it ended, or above its own last one"
    elif step == KS_CLEAN_BAD_COUNT:
        reason = (f"batch that declares {load32(p + RECORDS_COUNT_AT)} records and a last offset delta of "
                  f"{load32(p + LAST_OFFSET_DELTA_AT)}")
    elif step == KS_CLEAN_BAD_MARKER:
        reason = "a control batch whose first record cannot be read, or has no type of a marker"
    elif step == KS_CLEAN_BAD_PLACE:
        reason = "a record with an offset outside of its batch"
    elif step == KS_CLEAN_BAD_RECORD_ORDER:
        reason = "a record whose offset is not above that of the record before it"
    else:
        reason = fault_text(fault)
    return CorruptRecordError(reason, path=path, position=position)


cdef object advised(object error):
    return CorruptRecordError(f"{error.reason}; kstore repair PATH says what can be done", path=error.path,
                              position=error.position)
