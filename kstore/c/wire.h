/* The wire format: where each field of a batch header is, big-endian numbers, varints. No other C file defines these.

   A function that reads a varint gets the end of the data; it returns NULL if the varint is cut off or too long. The
   code is correct on machines of either byte order. Only held.h, member.h, refill.h and tuples.h include Python.h. */
#ifndef KSTORE_WIRE_H
#define KSTORE_WIRE_H

#include <stdint.h>
#include <string.h>

#define KS_INLINE static inline __attribute__((always_inline)) /* gcc does not inline a function with six calls */

/* Record batch of format 2 (FORMAT 2.1); each offset is derived from the one before. */
enum {
    KS_BASE_OFFSET_AT = 0,
    KS_BATCH_LENGTH_AT = KS_BASE_OFFSET_AT + 8,
    KS_LOG_OVERHEAD = KS_BATCH_LENGTH_AT + 4, /* bytes that the batch length does not count */
    KS_LEADER_EPOCH_AT = KS_LOG_OVERHEAD,
    KS_MAGIC_AT = KS_LEADER_EPOCH_AT + 4,
    KS_HEADER_UP_TO_MAGIC = KS_MAGIC_AT + 1,
    KS_CRC_AT = KS_HEADER_UP_TO_MAGIC,
    KS_ATTRIBUTES_AT = KS_CRC_AT + 4, /* the CRC covers the bytes from here on */
    KS_LAST_OFFSET_DELTA_AT = KS_ATTRIBUTES_AT + 2,
    KS_BASE_TIMESTAMP_AT = KS_LAST_OFFSET_DELTA_AT + 4,
    KS_MAX_TIMESTAMP_AT = KS_BASE_TIMESTAMP_AT + 8,
    KS_PRODUCER_ID_AT = KS_MAX_TIMESTAMP_AT + 8,
    KS_PRODUCER_EPOCH_AT = KS_PRODUCER_ID_AT + 8,
    KS_BASE_SEQUENCE_AT = KS_PRODUCER_EPOCH_AT + 2,
    KS_RECORDS_COUNT_AT = KS_BASE_SEQUENCE_AT + 4,
    KS_RECORDS_AT = KS_RECORDS_COUNT_AT + 4 /* 61, the size of a batch without records */
};

/* Message of format 0 or 1 with the 12 bytes before it (FORMAT 5). */
enum {
    KS_LEGACY_CRC_AT = KS_LOG_OVERHEAD,
    KS_LEGACY_MAGIC_AT = KS_LEGACY_CRC_AT + 4, /* in the same place as in format 2; the CRC covers the rest from here */
    KS_LEGACY_ATTRIBUTES_AT = KS_LEGACY_MAGIC_AT + 1,
    KS_LEGACY_TIMESTAMP_AT = KS_LEGACY_ATTRIBUTES_AT + 1, /* format 1 only */
    KS_V0_KEY_AT = KS_LEGACY_TIMESTAMP_AT,
    KS_V1_KEY_AT = KS_LEGACY_TIMESTAMP_AT + 8,

    KS_MIN_V0_MESSAGE = 14, /* the lowest length of an entry of any format (FORMAT 2.7) */
    KS_MIN_V1_MESSAGE = 22
};

/* Attribute bits (FORMAT 2.2). */
enum {
    KS_CODEC_MASK = 0x07,
    KS_TIMESTAMP_TYPE_BIT = 0x08,
    KS_TRANSACTIONAL_BIT = 0x10,
    KS_CONTROL_BIT = 0x20,
    KS_DELETE_HORIZON_BIT = 0x40
};

/* ---- big-endian numbers ---------------------------------------------------------------------------------------- */

#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define KS_BE16(x) __builtin_bswap16(x)
#define KS_BE32(x) __builtin_bswap32(x)
#define KS_BE64(x) __builtin_bswap64(x)
#else
#define KS_BE16(x) (x)
#define KS_BE32(x) (x)
#define KS_BE64(x) (x)
#endif

static inline int16_t ks_load16(const uint8_t *p) { uint16_t x; memcpy(&x, p, 2); return (int16_t)KS_BE16(x); }
static inline int32_t ks_load32(const uint8_t *p) { uint32_t x; memcpy(&x, p, 4); return (int32_t)KS_BE32(x); }
static inline int64_t ks_load64(const uint8_t *p) { uint64_t x; memcpy(&x, p, 8); return (int64_t)KS_BE64(x); }
static inline void ks_store16(uint8_t *p, int16_t v) { uint16_t x = KS_BE16((uint16_t)v); memcpy(p, &x, 2); }
static inline void ks_store32(uint8_t *p, int32_t v) { uint32_t x = KS_BE32((uint32_t)v); memcpy(p, &x, 4); }
static inline void ks_store64(uint8_t *p, int64_t v) { uint64_t x = KS_BE64((uint64_t)v); memcpy(p, &x, 8); }

/* ---- headers --------------------------------------------------------------------------------------------------- */

KS_INLINE int64_t ks_wrapping_add(int64_t a, int64_t b) { return (int64_t)((uint64_t)a + (uint64_t)b); }

/* The size of the batch or message at `p`, including the 12 bytes that its length does not count. */
KS_INLINE int64_t ks_batch_size(const uint8_t *p) {
    return (int64_t)ks_load32(p + KS_BATCH_LENGTH_AT) + KS_LOG_OVERHEAD;
}

/* The last offset of the batch at `p`, or the offset of a message of format 0 or 1. */
KS_INLINE int64_t ks_last_offset(const uint8_t *p) {
    int64_t offset = ks_load64(p);
    return p[KS_MAGIC_AT] == 2 ? ks_wrapping_add(offset, ks_load32(p + KS_LAST_OFFSET_DELTA_AT)) : offset;
}

/* The greatest timestamp of the batch at `p`, or the timestamp of a message of format 1, or -1 for format 0. */
KS_INLINE int64_t ks_max_timestamp(const uint8_t *p) {
    if (p[KS_MAGIC_AT] == 2) return ks_load64(p + KS_MAX_TIMESTAMP_AT);
    return p[KS_MAGIC_AT] == 1 ? ks_load64(p + KS_LEGACY_TIMESTAMP_AT) : -1;
}

/* The fields that a writer sets in a v2 batch. A log later sets base offset and leader epoch, which no CRC covers. */
typedef struct {
    int64_t base_timestamp, max_timestamp, producer_id;
    int32_t count, base_sequence;
    int16_t attributes, producer_epoch;
} ks_batch_head;

/* Writes the header of a batch of `size` bytes, except its CRC. */
KS_INLINE void ks_put_header(uint8_t *p, int64_t size, const ks_batch_head *h) {
    ks_store64(p + KS_BASE_OFFSET_AT, 0);
    ks_store32(p + KS_BATCH_LENGTH_AT, (int32_t)(size - KS_LOG_OVERHEAD));
    ks_store32(p + KS_LEADER_EPOCH_AT, -1);
    p[KS_MAGIC_AT] = 2;
    ks_store16(p + KS_ATTRIBUTES_AT, h->attributes);
    ks_store32(p + KS_LAST_OFFSET_DELTA_AT, h->count - 1);
    ks_store64(p + KS_BASE_TIMESTAMP_AT, h->base_timestamp);
    ks_store64(p + KS_MAX_TIMESTAMP_AT, h->max_timestamp);
    ks_store64(p + KS_PRODUCER_ID_AT, h->producer_id);
    ks_store16(p + KS_PRODUCER_EPOCH_AT, h->producer_epoch);
    ks_store32(p + KS_BASE_SEQUENCE_AT, h->base_sequence);
    ks_store32(p + KS_RECORDS_COUNT_AT, h->count);
}

/* ---- varints --------------------------------------------------------------------------------------------------- */

static inline uint64_t ks_zigzag(int64_t n) { return ((uint64_t)n << 1) ^ (uint64_t)(n >> 63); }
static inline int32_t ks_unzigzag32(uint32_t z) { return (int32_t)(z >> 1) ^ -(int32_t)(z & 1); }
static inline int64_t ks_unzigzag64(uint64_t z) { return (int64_t)(z >> 1) ^ -(int64_t)(z & 1); }

static inline int ks_uvarint_size(uint64_t z) {
    return z < 0x80 ? 1 : (70 - __builtin_clzll(z)) / 7; /* ceil(bits / 7) */
}

static inline uint8_t *ks_put_uvarint(uint8_t *p, uint64_t z) {
    while (z >= 0x80) { *p++ = (uint8_t)(z | 0x80); z >>= 7; }
    *p++ = (uint8_t)z;
    return p;
}

static const uint8_t *ks_varint_slow(const uint8_t *p, const uint8_t *end, int32_t *out) {
    uint32_t z = 0;
    for (int shift = 0; shift < 35; shift += 7) {
        if (p >= end) return NULL;
        uint8_t b = *p++;
        z |= (uint32_t)(b & 0x7f) << shift;
        if (b < 0x80) { *out = ks_unzigzag32(z); return p; }
    }
    return NULL;
}

static const uint8_t *ks_varlong_slow(const uint8_t *p, const uint8_t *end, int64_t *out) {
    uint64_t z = 0;
    for (int shift = 0; shift < 70; shift += 7) {
        if (p >= end) return NULL;
        uint8_t b = *p++;
        z |= (uint64_t)(b & 0x7f) << shift;
        if (b < 0x80) { *out = ks_unzigzag64(z); return p; }
    }
    return NULL;
}

/* Decodes one to three bytes inline (predictable branches beat branchless decoding here), longer ones out of line. */
KS_INLINE const uint8_t *ks_varint(const uint8_t *p, const uint8_t *end, int32_t *out) {
    if (end - p >= 3) {
        uint32_t z = p[0];
        if (z < 0x80) { *out = ks_unzigzag32(z); return p + 1; }
        if (p[1] < 0x80) { *out = ks_unzigzag32((z & 0x7f) | (uint32_t)p[1] << 7); return p + 2; }
        if (p[2] < 0x80) {
            *out = ks_unzigzag32((z & 0x7f) | (uint32_t)(p[1] & 0x7f) << 7 | (uint32_t)p[2] << 14);
            return p + 3;
        }
    }
    return ks_varint_slow(p, end, out);
}

KS_INLINE const uint8_t *ks_varlong(const uint8_t *p, const uint8_t *end, int64_t *out) {
    if (end - p >= 3) {
        uint32_t z = p[0];
        if (z < 0x80) { *out = ks_unzigzag32(z); return p + 1; }
        if (p[1] < 0x80) { *out = ks_unzigzag32((z & 0x7f) | (uint32_t)p[1] << 7); return p + 2; }
        if (p[2] < 0x80) {
            *out = ks_unzigzag32((z & 0x7f) | (uint32_t)(p[1] & 0x7f) << 7 | (uint32_t)p[2] << 14);
            return p + 3;
        }
    }
    return ks_varlong_slow(p, end, out);
}

#endif
