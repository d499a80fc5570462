/* Producer snapshots (FORMAT 10): a head with the version, a CRC and a count, then one entry for each producer. */
#ifndef KSTORE_SNAPSHOT_H
#define KSTORE_SNAPSHOT_H

#include <stddef.h>

#include "crc32c.h"
#include "wire.h"

enum {
    KS_SNAPSHOT_VERSION_AT = 0,
    KS_SNAPSHOT_CRC_AT = KS_SNAPSHOT_VERSION_AT + 2,
    KS_SNAPSHOT_COUNT_AT = KS_SNAPSHOT_CRC_AT + 4, /* the CRC covers the bytes from here on */
    KS_SNAPSHOT_HEAD = KS_SNAPSHOT_COUNT_AT + 4,

    /* In an entry. */
    KS_SNAPSHOT_PRODUCER_ID_AT = 0,
    KS_SNAPSHOT_PRODUCER_EPOCH_AT = KS_SNAPSHOT_PRODUCER_ID_AT + 8,
    KS_SNAPSHOT_LAST_SEQUENCE_AT = KS_SNAPSHOT_PRODUCER_EPOCH_AT + 2,
    KS_SNAPSHOT_LAST_OFFSET_AT = KS_SNAPSHOT_LAST_SEQUENCE_AT + 4,
    KS_SNAPSHOT_OFFSET_DELTA_AT = KS_SNAPSHOT_LAST_OFFSET_AT + 8,
    KS_SNAPSHOT_TIMESTAMP_AT = KS_SNAPSHOT_OFFSET_DELTA_AT + 4,
    KS_SNAPSHOT_COORDINATOR_EPOCH_AT = KS_SNAPSHOT_TIMESTAMP_AT + 8,
    KS_SNAPSHOT_TXN_FIRST_AT = KS_SNAPSHOT_COORDINATOR_EPOCH_AT + 4,
    KS_SNAPSHOT_ENTRY = KS_SNAPSHOT_TXN_FIRST_AT + 8,

    KS_SNAPSHOT_VERSION = 1
};

typedef struct {
    int64_t producer_id;
    int64_t last_offset;     /* negative: no known batch */
    int64_t timestamp;
    int64_t txn_first;       /* the first offset of the open transaction; negative: none */
    int32_t last_sequence;
    int32_t offset_delta;
    int32_t coordinator_epoch;
    int16_t producer_epoch;
} ks_producer;

enum ks_snapshot_fault { KS_SNAPSHOT_SOUND, KS_SNAPSHOT_OTHER_VERSION, KS_SNAPSHOT_CUT, KS_SNAPSHOT_BAD_CRC };

static inline uint32_t ks_snapshot_crc(const uint8_t *p, ptrdiff_t size) {
    return ks_crc32c(0, p + KS_SNAPSHOT_COUNT_AT, (size_t)(size - KS_SNAPSHOT_COUNT_AT));
}

/* The first fault of a file with these bytes, in the order of Kafka's checks. */
static inline enum ks_snapshot_fault ks_snapshot_check(const uint8_t *p, ptrdiff_t size) {
    if (size >= 2 && ks_load16(p + KS_SNAPSHOT_VERSION_AT) != KS_SNAPSHOT_VERSION) return KS_SNAPSHOT_OTHER_VERSION;
    if (size < KS_SNAPSHOT_HEAD) return KS_SNAPSHOT_CUT;
    int32_t count = ks_load32(p + KS_SNAPSHOT_COUNT_AT);
    if (count < 0 || count > (size - KS_SNAPSHOT_HEAD) / KS_SNAPSHOT_ENTRY) return KS_SNAPSHOT_CUT;
    return (uint32_t)ks_load32(p + KS_SNAPSHOT_CRC_AT) == ks_snapshot_crc(p, size) ? KS_SNAPSHOT_SOUND
                                                                                   : KS_SNAPSHOT_BAD_CRC;
}

/* The entry in a slot of a sound file. */
static inline void ks_snapshot_get(const uint8_t *p, int64_t slot, ks_producer *e) {
    p += KS_SNAPSHOT_HEAD + slot * KS_SNAPSHOT_ENTRY;
    e->producer_id = ks_load64(p + KS_SNAPSHOT_PRODUCER_ID_AT);
    e->producer_epoch = ks_load16(p + KS_SNAPSHOT_PRODUCER_EPOCH_AT);
    e->last_sequence = ks_load32(p + KS_SNAPSHOT_LAST_SEQUENCE_AT);
    e->last_offset = ks_load64(p + KS_SNAPSHOT_LAST_OFFSET_AT);
    e->offset_delta = ks_load32(p + KS_SNAPSHOT_OFFSET_DELTA_AT);
    e->timestamp = ks_load64(p + KS_SNAPSHOT_TIMESTAMP_AT);
    e->coordinator_epoch = ks_load32(p + KS_SNAPSHOT_COORDINATOR_EPOCH_AT);
    e->txn_first = ks_load64(p + KS_SNAPSHOT_TXN_FIRST_AT);
}

static inline void ks_snapshot_put(uint8_t *p, int64_t slot, const ks_producer *e) {
    p += KS_SNAPSHOT_HEAD + slot * KS_SNAPSHOT_ENTRY;
    ks_store64(p + KS_SNAPSHOT_PRODUCER_ID_AT, e->producer_id);
    ks_store16(p + KS_SNAPSHOT_PRODUCER_EPOCH_AT, e->producer_epoch);
    ks_store32(p + KS_SNAPSHOT_LAST_SEQUENCE_AT, e->last_sequence);
    ks_store64(p + KS_SNAPSHOT_LAST_OFFSET_AT, e->last_offset);
    ks_store32(p + KS_SNAPSHOT_OFFSET_DELTA_AT, e->offset_delta);
    ks_store64(p + KS_SNAPSHOT_TIMESTAMP_AT, e->timestamp);
    ks_store32(p + KS_SNAPSHOT_COORDINATOR_EPOCH_AT, e->coordinator_epoch);
    ks_store64(p + KS_SNAPSHOT_TXN_FIRST_AT, e->txn_first);
}

/* Writes the head of a file whose `count` entries have been written. */
static inline void ks_snapshot_finish(uint8_t *p, int32_t count) {
    ks_store16(p + KS_SNAPSHOT_VERSION_AT, KS_SNAPSHOT_VERSION);
    ks_store32(p + KS_SNAPSHOT_COUNT_AT, count);
    ks_store32(p + KS_SNAPSHOT_CRC_AT,
               (int32_t)ks_snapshot_crc(p, KS_SNAPSHOT_HEAD + (ptrdiff_t)count * KS_SNAPSHOT_ENTRY));
}

#endif
