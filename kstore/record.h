/* One v2 record (FORMAT.md 3): parsed without an allocation, measured, written.

   A parser gets the end with the pointer, compares lengths as `n > end - p`, and answers NULL with a fault code;
   the module that called turns the code into an exception that knows the position. Nothing here knows Python. */
#ifndef KSTORE_RECORD_H
#define KSTORE_RECORD_H

#include <stdint.h>
#include <string.h>

#define KS_INLINE static inline __attribute__((always_inline)) /* gcc thinks six calls are too many to inline */

enum ks_fault {
    KS_FINE = 0,
    KS_ENDS_EARLY,         /* the data ends before the declared number of records was read */
    KS_BAD_VARINT,         /* a varint is cut off or has more than 5 (varlong: 10) bytes */
    KS_NEGATIVE_LENGTH,    /* record length < 0 */
    KS_LENGTH_TOO_LARGE,   /* record length beyond the data */
    KS_FIELD_TOO_LARGE,    /* key, value or header longer than what is left of the record */
    KS_BAD_HEADER_COUNT,   /* negative, or more than bytes left */
    KS_NULL_HEADER_KEY,    /* header key length < 0 */
    KS_LENGTH_MISMATCH,    /* fields end before the declared length does */
    KS_TRAILING_BYTES      /* bytes left after the last record */
};

typedef struct {
    int64_t timestamp_delta;
    int32_t offset_delta;
    int32_t key_size;             /* negative: null */
    int32_t value_size;           /* negative: null */
    int32_t headers_count;
    const uint8_t *key;
    const uint8_t *value;
    const uint8_t *headers;       /* first header, checked up to `end` */
    const uint8_t *end;
    int fault;
} ks_record;

static inline int32_t ks_unzigzag32(uint32_t z) { return (int32_t)(z >> 1) ^ -(int32_t)(z & 1); }

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
        if (b < 0x80) { *out = (int64_t)(z >> 1) ^ -(int64_t)(z & 1); return p; }
    }
    return NULL;
}

/* One, two and three bytes in line (predictable branches beat branchless decoding here), the rest out of line. */
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

/* Reads one header; `p` at its key length. NULL with `*fault`. */
static inline const uint8_t *ks_parse_header(const uint8_t *p, const uint8_t *end, const uint8_t **key,
                                             int32_t *key_size, const uint8_t **value, int32_t *value_size,
                                             int *fault) {
    if (!(p = ks_varint(p, end, key_size))) { *fault = KS_BAD_VARINT; return NULL; }
    if (*key_size < 0) { *fault = KS_NULL_HEADER_KEY; return NULL; }
    if (*key_size > end - p) { *fault = KS_FIELD_TOO_LARGE; return NULL; }
    *key = p;
    p += *key_size;
    if (!(p = ks_varint(p, end, value_size))) { *fault = KS_BAD_VARINT; return NULL; }
    *value = p;
    if (*value_size > 0) {
        if (*value_size > end - p) { *fault = KS_FIELD_TOO_LARGE; return NULL; }
        p += *value_size;
    }
    return p;
}

static const uint8_t *ks_skip_headers(const uint8_t *p, const uint8_t *end, int32_t count, int *fault) {
    const uint8_t *key, *value;
    int32_t key_size, value_size;
    for (; count > 0; count--)
        if (!(p = ks_parse_header(p, end, &key, &key_size, &value, &value_size, fault))) return NULL;
    return p;
}

/* Reads the record at `p` (FORMAT.md 3.2, checks 3 to 11) and returns where the next one starts, or NULL with
   r->fault. Every field of `r` is within [p, end) afterwards, its headers walked once and found sound. */
KS_INLINE const uint8_t *ks_parse_record(const uint8_t *p, const uint8_t *end, ks_record *r) {
    int32_t size;
    if (p >= end) { r->fault = KS_ENDS_EARLY; return NULL; }
    if (!(p = ks_varint(p, end, &size))) { r->fault = KS_BAD_VARINT; return NULL; }
    if (size < 0) { r->fault = KS_NEGATIVE_LENGTH; return NULL; }
    if (size > end - p) { r->fault = KS_LENGTH_TOO_LARGE; return NULL; }
    end = p + size;
    r->end = end;
    r->fault = KS_BAD_VARINT;
    if (p == end) return NULL;
    p++; /* attributes: unused, ignored */
    if (!(p = ks_varlong(p, end, &r->timestamp_delta))) return NULL;
    if (!(p = ks_varint(p, end, &r->offset_delta))) return NULL;
    if (!(p = ks_varint(p, end, &r->key_size))) return NULL;
    r->key = p;
    if (r->key_size > 0) {
        if (r->key_size > end - p) { r->fault = KS_FIELD_TOO_LARGE; return NULL; }
        p += r->key_size;
    }
    if (!(p = ks_varint(p, end, &r->value_size))) return NULL;
    r->value = p;
    if (r->value_size > 0) {
        if (r->value_size > end - p) { r->fault = KS_FIELD_TOO_LARGE; return NULL; }
        p += r->value_size;
    }
    if (!(p = ks_varint(p, end, &r->headers_count))) return NULL;
    r->headers = p;
    if (r->headers_count != 0) {
        if (r->headers_count < 0 || r->headers_count > end - p) { r->fault = KS_BAD_HEADER_COUNT; return NULL; }
        if (!(p = ks_skip_headers(p, end, r->headers_count, &r->fault))) return NULL;
    }
    if (p != end) { r->fault = KS_LENGTH_MISMATCH; return NULL; }
    r->fault = KS_FINE;
    return p;
}

static inline int ks_varsize(uint64_t z) {
    return z < 0x80 ? 1 : (70 - __builtin_clzll(z)) / 7; /* ceil(bits / 7) */
}
static inline uint64_t ks_zig(int64_t n) { return ((uint64_t)n << 1) ^ (uint64_t)(n >> 63); }

static inline uint8_t *ks_put(uint8_t *p, uint64_t z) {
    while (z >= 0x80) { *p++ = (uint8_t)(z | 0x80); z >>= 7; }
    *p++ = (uint8_t)z;
    return p;
}

static inline uint8_t *ks_put_field(uint8_t *p, const void *data, int64_t size) {
    if (size < 0) { *p++ = 1; return p; }
    p = ks_put(p, (uint64_t)size << 1);
    memcpy(p, data, (size_t)size);
    return p + size;
}

/* Bytes of the record after its length field; `headers_size` includes the headers count. Sizes: negative is null. */
static inline uint64_t ks_body_size(int64_t timestamp_delta, int64_t offset_delta, int64_t key_size,
                                    int64_t value_size, int64_t headers_size) {
    uint64_t n = 1 + (uint64_t)ks_varsize(ks_zig(timestamp_delta)) + (uint64_t)ks_varsize((uint64_t)offset_delta << 1);
    n += key_size < 0 ? 1 : (uint64_t)key_size + (uint64_t)ks_varsize((uint64_t)key_size << 1);
    n += value_size < 0 ? 1 : (uint64_t)value_size + (uint64_t)ks_varsize((uint64_t)value_size << 1);
    return n + (uint64_t)headers_size;
}

/* Writes a record of `body` = ks_body_size(...) bytes; the caller has made room for them and 5 more. `offset_delta`
   is 0 or more; `headers` begins with their count. */
static inline uint8_t *ks_put_record(uint8_t *p, uint64_t body, int64_t timestamp_delta, int64_t offset_delta,
                                     const void *key, int64_t key_size, const void *value, int64_t value_size,
                                     const void *headers, int64_t headers_size) {
    p = ks_put(p, body << 1);
    *p++ = 0;
    p = ks_put(p, ks_zig(timestamp_delta));
    p = ks_put(p, (uint64_t)offset_delta << 1);
    p = ks_put_field(p, key, key_size);
    p = ks_put_field(p, value, value_size);
    if (headers_size == 1) { *p++ = *(const uint8_t *)headers; return p; }
    memcpy(p, headers, (size_t)headers_size);
    return p + headers_size;
}

#endif
