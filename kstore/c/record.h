/* One v2 record (FORMAT 3): parsing without an allocation, measuring, writing.

   A parser gets the end of its input and compares lengths as `n > end - p`. On an error it returns NULL with a fault
   code, which the calling module turns into an exception with the position. */
#ifndef KSTORE_RECORD_H
#define KSTORE_RECORD_H

#include "wire.h"

enum ks_fault {
    KS_FINE = 0,
    KS_ENDS_EARLY,         /* the data ends before the declared number of records was read */
    KS_BAD_VARINT,         /* a varint is cut off or has more than 5 (varlong: 10) bytes */
    KS_NEGATIVE_LENGTH,    /* record length < 0 */
    KS_LENGTH_TOO_LARGE,   /* record length beyond the data */
    KS_FIELD_TOO_LARGE,    /* key, value or header longer than the rest of the record */
    KS_BAD_HEADER_COUNT,   /* negative, or more than the bytes left */
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

/* Reads the header whose key length is at `p`; returns the end of the header, or NULL with `*fault`. */
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

/* ---- a common record --------------------------------------------------------------------------------------------- */

/* Reads a varint of up to three bytes as an unsigned number; jumps to `longer` if it is longer. */
#define KS_READ_SHORT(z, p, longer)                     \
    uint64_t z = *p++;                                  \
    if (z >= 0x80) {                                    \
        uint64_t more = *p++;                           \
        z = (z & 0x7f) | more << 7;                     \
        if (more >= 0x80) {                             \
            more = *p++;                                \
            z = (z & 0x3fff) | more << 14;              \
            if (more >= 0x80) goto longer;              \
        }                                               \
    }

#define KS_HEAD 16 /* the most bytes before the value of a common record, without the key */

/* The fields of a record, in 64 bits so that loops need no conversions. */
typedef struct {
    int64_t timestamp, delta, key_size, value_size; /* times and offsets relative to the batch; size < 0: null */
    const uint8_t *key, *value, *headers;           /* headers: the first one */
    int32_t headers_count;
} ks_fields;

/* Reads the record at `p` and returns the start of the next one. Returns NULL if the record has headers or a long
   varint or is not sound, or if fewer than KS_HEAD bytes are left: ks_parse_uncommon then decides. */
KS_INLINE const uint8_t *ks_common_record(const uint8_t *p, const uint8_t *end, ks_fields *f) {
    if (end - p < KS_HEAD) return NULL;
    KS_READ_SHORT(size, p, uncommon)
    if ((int64_t)(size >> 1) > end - p) return NULL;
    const uint8_t *const next = p + (size >> 1);
    p++; /* attributes */
    KS_READ_SHORT(timestamp, p, uncommon)
    KS_READ_SHORT(delta, p, uncommon)
    KS_READ_SHORT(key, p, uncommon)
    f->timestamp = (int64_t)(timestamp >> 1) ^ -(int64_t)(timestamp & 1);
    f->delta = (int64_t)(delta >> 1);
    f->key = p;
    f->key_size = -1;
    if (!(key & 1)) {
        f->key_size = (int64_t)(key >> 1);
        if (f->key_size > end - p - 3) return NULL;
        p += f->key_size;
    }
    KS_READ_SHORT(value, p, uncommon)
    f->value = p;
    f->value_size = value & 1 ? -1 : (int64_t)(value >> 1);
    f->headers_count = 0;
    f->headers = next;
    /* The rest of the record must be the value and a headers count of 0. */
    if ((int64_t)(value & 1 ? 0 : value >> 1) + 1 == next - p && !(((size | delta) & 1) | next[-1])) return next;
uncommon:
    return NULL;
}

typedef struct {
    int64_t timestamp, offset_delta;
    int fault;
} ks_stamped;

/* ---- any record -------------------------------------------------------------------------------------------------- */

/* Does what ks_parse_record does, for records that are not common. */
static __attribute__((noinline)) const uint8_t *ks_parse_uncommon(const uint8_t *p, const uint8_t *end, ks_record *r) {
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

/* Reads the record at `p` (FORMAT 3.2, checks 3 to 11) and returns the start of the next one, or NULL with r->fault.
   Every field of `r` is then within [p, end), and its headers have been checked. */
KS_INLINE const uint8_t *ks_parse_record(const uint8_t *p, const uint8_t *end, ks_record *r) {
    ks_fields f;
    const uint8_t *next = ks_common_record(p, end, &f);
    if (!next) { /* through a copy, so that callers can keep the fields of `r` in registers */
        ks_record uncommon;
        next = ks_parse_uncommon(p, end, &uncommon);
        *r = uncommon;
        return next;
    }
    r->timestamp_delta = f.timestamp;
    r->offset_delta = (int32_t)f.delta;
    r->key = f.key;
    r->key_size = (int32_t)f.key_size;
    r->value = f.value;
    r->value_size = (int32_t)f.value_size;
    r->headers_count = 0;
    r->headers = r->end = next;
    r->fault = KS_FINE;
    return next;
}

/* Finds the first of `*left` records at `p` whose timestamp (`base` plus the masked delta) is in [least, most], and
   stores its timestamp and offset delta in `found`. Returns the start of the record after it, and sets `*left` to the
   number of records from that start on. Returns NULL if no record matches, or with found->fault if one is not sound. */
static inline const uint8_t *ks_find_timestamp(const uint8_t *p, const uint8_t *end, int32_t *left, int64_t base,
                                               uint64_t mask, int64_t least, int64_t most, ks_stamped *found) {
    int32_t n = *left;
    found->fault = KS_FINE;
    while (n > 0) {
        ks_fields f;
        const uint8_t *next = ks_common_record(p, end, &f);
        if (!next) {
            ks_record r;
            next = ks_parse_uncommon(p, end, &r);
            if (!next) { found->fault = r.fault; return NULL; }
            f.timestamp = r.timestamp_delta;
            f.delta = r.offset_delta;
        }
        n--;
        int64_t timestamp = (int64_t)((uint64_t)base + ((uint64_t)f.timestamp & mask));
        if (least <= timestamp && timestamp <= most) {
            found->timestamp = timestamp;
            found->offset_delta = f.delta;
            *left = n;
            return next;
        }
        p = next;
    }
    return NULL;
}

/* Whether a timestamp is outside [now - before_max, now + after_max]; the limits are 0 or more (SEMANTICS 1.17). */
static inline int ks_too_far(int64_t stamp, int64_t now, int64_t before_max, int64_t after_max) {
    if (stamp < now) return (uint64_t)now - (uint64_t)stamp > (uint64_t)before_max;
    return (uint64_t)stamp - (uint64_t)now > (uint64_t)after_max;
}

/* ---- writing a record ------------------------------------------------------------------------------------------- */

/* `ks_uvarint_size` for mostly small numbers: predictable branches cost less than counting bits. */
KS_INLINE int64_t ks_short_size(uint64_t z) {
    return z < 0x80 ? 1 : z < 0x4000 ? 2 : ks_uvarint_size(z);
}

/* The number of bytes of a field and of the size before it. */
KS_INLINE int64_t ks_sized(int64_t n) { return n < 0 ? 1 : n + ks_short_size((uint64_t)n << 1); }

KS_INLINE uint8_t *ks_put_short(uint8_t *p, uint64_t z) {
    if (z < 0x80) { *p = (uint8_t)z; return p + 1; }
    if (z < 0x4000) { p[0] = (uint8_t)(z | 0x80); p[1] = (uint8_t)(z >> 7); return p + 2; }
    return ks_put_uvarint(p, z);
}

enum { KS_COPY = 32 };

/* Copies n bytes; never reads past the source, which may end where a page does. */
KS_INLINE uint8_t *ks_copy_exact(uint8_t *p, const uint8_t *from, int64_t n) {
    if (n >= KS_COPY && n <= 1024) {
        uint8_t *end = p + n, *last = end - KS_COPY;
        const uint8_t *from_last = from + n - KS_COPY;
        for (; p < last; p += KS_COPY, from += KS_COPY) memcpy(p, from, KS_COPY);
        memcpy(last, from_last, KS_COPY);
        return end;
    }
    if (n >= 8 && n < KS_COPY) {
        uint8_t *end = p + n;
        if (n >= 16) {
            memcpy(p, from, 16);
            memcpy(end - 16, from + n - 16, 16);
        } else {
            memcpy(p, from, 8);
            memcpy(end - 8, from + n - 8, 8);
        }
        return end;
    }
    if (n < 4) {
        if (n > 0) { p[0] = from[0]; p[n >> 1] = from[n >> 1]; p[n - 1] = from[n - 1]; }
        return p + n;
    }
    if (n < 8) {
        memcpy(p, from, 4);
        memcpy(p + n - 4, from + n - 4, 4);
        return p + n;
    }
    memcpy(p, from, (size_t)n);
    return p + n;
}

/* Writes a field with its size before it; a negative size is null. */
KS_INLINE uint8_t *ks_put_field(uint8_t *p, const void *data, int64_t size) {
    if (size < 0) { *p++ = 1; return p; }
    return ks_copy_exact(ks_put_short(p, (uint64_t)size << 1), data, size);
}

/* The size of a record after its length field; `headers_size` includes the headers count. A negative size is null. */
KS_INLINE uint64_t ks_body_size(int64_t timestamp_delta, int64_t offset_delta, int64_t key_size, int64_t value_size,
                                int64_t headers_size) {
    return (uint64_t)(1 + ks_short_size(ks_zigzag(timestamp_delta)) + ks_short_size((uint64_t)offset_delta << 1) +
                      ks_sized(key_size) + ks_sized(value_size) + headers_size);
}

/* Writes a record of `body` = ks_body_size(...) bytes; the caller has reserved these and 5 more. `offset_delta` is 0 or
   more; `headers` starts with the headers count. */
KS_INLINE uint8_t *ks_put_record(uint8_t *p, uint64_t body, int64_t timestamp_delta, int64_t offset_delta,
                                 const void *key, int64_t key_size, const void *value, int64_t value_size,
                                 const void *headers, int64_t headers_size) {
    p = ks_put_short(p, body << 1);
    *p++ = 0;
    p = ks_put_short(p, ks_zigzag(timestamp_delta));
    p = ks_put_short(p, (uint64_t)offset_delta << 1);
    p = ks_put_field(p, key, key_size);
    p = ks_put_field(p, value, value_size);
    if (headers_size == 1) { *p++ = *(const uint8_t *)headers; return p; }
    memcpy(p, headers, (size_t)headers_size);
    return p + headers_size;
}

#endif
