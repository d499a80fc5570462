/* Entries of the two index files (FORMAT 7.1 and 8.1): big-endian, without a header or padding.

   An offset index entry has the last offset of a batch and the batch's position in the log file. A time index entry has
   the greatest timestamp so far and the last offset of its batch. Offsets are relative to the segment's base offset. */
#ifndef KSTORE_ENTRIES_H
#define KSTORE_ENTRIES_H

#include "wire.h"

enum {
    KS_ENTRY_OFFSET_AT = 0,
    KS_ENTRY_POSITION_AT = KS_ENTRY_OFFSET_AT + 4,
    KS_OFFSET_ENTRY_BYTES = KS_ENTRY_POSITION_AT + 4,

    KS_ENTRY_TIMESTAMP_AT = 0,
    KS_TIME_ENTRY_OFFSET_AT = KS_ENTRY_TIMESTAMP_AT + 8,
    KS_TIME_ENTRY_BYTES = KS_TIME_ENTRY_OFFSET_AT + 4
};

static inline void ks_put_offset_entry(uint8_t *p, int32_t offset, int32_t position) {
    ks_store32(p + KS_ENTRY_OFFSET_AT, offset);
    ks_store32(p + KS_ENTRY_POSITION_AT, position);
}

static inline void ks_put_time_entry(uint8_t *p, int64_t timestamp, int32_t offset) {
    ks_store64(p + KS_ENTRY_TIMESTAMP_AT, timestamp);
    ks_store32(p + KS_TIME_ENTRY_OFFSET_AT, offset);
}

#endif
