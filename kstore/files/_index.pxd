# cython: language_level=3
"""`c/entries.h` for Cython: where the two numbers of an index entry lie, and how an entry is written."""

from libc.stdint cimport int32_t, int64_t, uint8_t


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
