# cython: language_level=3
"""`c/snapshot.h` for Cython: the format of producer snapshots."""

from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t


cdef extern from "snapshot.h" nogil:
    enum:
        SNAPSHOT_VERSION_AT "KS_SNAPSHOT_VERSION_AT"
        SNAPSHOT_CRC_AT "KS_SNAPSHOT_CRC_AT"
        SNAPSHOT_COUNT_AT "KS_SNAPSHOT_COUNT_AT"
        SNAPSHOT_HEAD "KS_SNAPSHOT_HEAD"
        SNAPSHOT_ENTRY "KS_SNAPSHOT_ENTRY"
        SNAPSHOT_SOUND "KS_SNAPSHOT_SOUND"
        SNAPSHOT_OTHER_VERSION "KS_SNAPSHOT_OTHER_VERSION"
        SNAPSHOT_CUT "KS_SNAPSHOT_CUT"
        SNAPSHOT_BAD_CRC "KS_SNAPSHOT_BAD_CRC"
    ctypedef struct Producer "ks_producer":
        int64_t producer_id
        int64_t last_offset
        int64_t timestamp
        int64_t txn_first
        int32_t last_sequence
        int32_t offset_delta
        int32_t coordinator_epoch
        int16_t producer_epoch
    uint32_t snapshot_crc "ks_snapshot_crc"(const uint8_t *p, Py_ssize_t size) noexcept
    int snapshot_check "ks_snapshot_check"(const uint8_t *p, Py_ssize_t size) noexcept
    void snapshot_get "ks_snapshot_get"(const uint8_t *p, int64_t slot, Producer *e) noexcept
    void snapshot_put "ks_snapshot_put"(uint8_t *p, int64_t slot, const Producer *e) noexcept
    void snapshot_finish "ks_snapshot_finish"(uint8_t *p, int32_t count) noexcept
