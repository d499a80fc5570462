# cython: language_level=3
from libc.stdint cimport int64_t, uint8_t, uint64_t


cdef extern from "transactions.h" nogil:
    ctypedef struct ks_aborted_txn:
        int64_t version
        int64_t producer_id
        int64_t first
        int64_t last
        int64_t last_stable

    ctypedef struct ks_transactions:
        size_t retained_count
        ks_aborted_txn *retained
        size_t waiting_count
        uint64_t seed

    enum:
        KS_CONTROL_ABORT
        KS_CONTROL_COMMIT
        KS_CONTROL_OTHER
        KS_CONTROL_EMPTY
        KS_CONTROL_COMPRESSED
        KS_CONTROL_BAD

    # The type of the control batch of `size` bytes, 61 or more: one of the enum.
    int ks_control_type(const uint8_t *p, int64_t size) noexcept

cdef extern from "cleaned.h" nogil:
    # Why the walk of a pass stops.
    enum ks_step:
        KS_CLEANED
        KS_CLEAN_LEGACY
        KS_CLEAN_PACKED_CONTROL
        KS_CLEAN_PACKED
        KS_CLEAN_TO_PACK
        KS_CLEAN_BAD_SIZE
        KS_CLEAN_BAD_MAGIC
        KS_CLEAN_BAD_OFFSETS
        KS_CLEAN_BAD_ORDER
        KS_CLEAN_BAD_COUNT
        KS_CLEAN_BAD_MARKER
        KS_CLEAN_BAD_CRC
        KS_CLEAN_BAD_RECORD
        KS_CLEAN_BAD_PLACE
        KS_CLEAN_BAD_RECORD_ORDER
        KS_CLEAN_TOO_LARGE
        KS_CLEAN_NOT_SCANNED
        KS_CLEAN_OUT_OF_MEMORY


cdef class CleanedTransactions:
    cdef ks_transactions _state

    # Both take a whole batch whose framing has been checked: of any format for data, of format 2 for control. They
    # return 1 (yes), 0 (no) or -1 (out of memory). `on_data`: is the batch part of an aborted transaction?
    # `on_control`, with a type from `ks_control_type` or `compressed_control_type`: can the marker be discarded?
    cdef int on_data(self, const uint8_t *header) noexcept nogil
    cdef int on_control(self, const uint8_t *header, int control_type) noexcept nogil


# The type of a control batch for which `ks_control_type` returns KS_CONTROL_COMPRESSED.
cdef int compressed_control_type(const uint8_t *header, Py_ssize_t size, int64_t limit, object path,
                                 int64_t position) except? KS_CONTROL_BAD

# The error for the batch at `p` that ended a pass with a step KS_CLEAN_BAD_*; `next_base` is one past the last offset
# of the batch before it, `fault` says what is wrong with a record.
cdef object bad_batch(ks_step step, const uint8_t *p, int64_t next_base, int fault, object path, int64_t position)

# The same error, with the advice to run `kstore repair`.
cdef object advised(object error)
