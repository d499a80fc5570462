/* Columns of records, as they lie in memory.

   `ks_gather` turns a stretch of any layout into pointers and sizes, for the encoder (columns_encode.h). So a layout is
   known in one place only. Offsets, views and dictionary indices come from strangers: each is loaded once, checked, and
   only what was checked is used, whatever another thread does to the memory meanwhile. What a buffer's size is, the Arrow
   C interface does not say; `low` and `high` are what it says of offsets. Loads go through memcpy: nobody promises
   alignment. Nothing here knows Python. */
#ifndef KSTORE_COLUMNS_IN_H
#define KSTORE_COLUMNS_IN_H

#include <stdint.h>
#include <string.h>

#include "record.h"

#define KS_SLACK 64 /* bytes that the encoder likes to copy whatever a row's size is */

typedef struct {
    const uint8_t *p;
    int64_t n; /* negative: null */
} ks_bytes;

enum ks_layout {
    KS_NULLS,     /* every row is null */
    KS_FIXED,     /* `width` bytes every `stride` bytes */
    KS_PADDED,    /* the same, less the NUL bytes at the end (NumPy's S) */
    KS_OFFSETS32, /* bytes between one offset and the next */
    KS_OFFSETS64,
    KS_VIEWS,     /* 16 bytes a row: size, then the bytes or where they are */
    KS_POINTERS,  /* ks_bytes */
    KS_DICTIONARY,
    KS_LIST32, /* names and items between one offset and the next: headers */
    KS_LIST64,
    KS_TIMES /* numbers of `width` bytes every `stride` bytes */
};

typedef struct ks_column ks_column;
struct ks_column {
    int layout;
    int is_unsigned;            /* indices and times */
    int64_t length;             /* rows */
    int64_t offset;             /* of row 0 within the buffers */
    const uint8_t *validity;    /* a bit a row from `offset` on; NULL: nothing is null */
    const uint8_t *data;        /* bytes, rows, views, ks_bytes, indices, numbers; never NULL */
    const uint8_t *offsets;
    int64_t width, stride;
    int64_t low, high;          /* every offset is within [low, high] */
    const uint8_t *buffers;     /* what views point into: an array of pointers, */
    const uint8_t *sizes;       /* and of their sizes */
    int64_t buffers_count;
    int64_t multiplier, divisor; /* of times: one of them is 1 */
    int has_nat;                /* times: INT64_MIN is null, too */
    const ks_column *items;     /* dictionary; values of headers */
    const ks_column *names;     /* of headers */
};

/* Why a row cannot be taken. */
enum ks_column_fault {
    KS_COLUMN_FINE = 0,
    KS_OFFSETS_FALL,      /* an offset below the one before, or outside [low, high] */
    KS_VIEW_SIZE,         /* a negative size */
    KS_VIEW_BUFFER,       /* no such buffer */
    KS_VIEW_BOUNDS,       /* outside of its buffer */
    KS_NO_SUCH_INDEX,     /* outside of the dictionary */
    KS_NULL_NAME,         /* a header without a name */
    KS_HEADERS_TOO_LARGE, /* more than a record can hold */
    KS_TOO_LARGE,         /* a field of more than 2 GiB */
    KS_TIME_RANGE         /* before the epoch, or beyond 64 bits of milliseconds */
};

static inline int32_t ks_i32(const uint8_t *p, int64_t i) { int32_t x; memcpy(&x, p + 4 * i, 4); return x; }
static inline int64_t ks_i64(const uint8_t *p, int64_t i) { int64_t x; memcpy(&x, p + 8 * i, 8); return x; }
static inline int ks_bit(const uint8_t *bits, int64_t i) { return bits[i >> 3] >> (i & 7) & 1; }

/* A number of `width` bytes. An unsigned one above INT64_MAX comes out negative, which no caller takes. */
KS_INLINE int64_t ks_number(const uint8_t *p, int64_t width, int is_unsigned) {
    uint8_t a;
    uint16_t b;
    uint32_t c;
    switch (width) {
    case 1: a = *p; return is_unsigned ? (int64_t)a : (int8_t)a;
    case 2: memcpy(&b, p, 2); return is_unsigned ? (int64_t)b : (int16_t)b;
    case 4: memcpy(&c, p, 4); return is_unsigned ? (int64_t)c : (int32_t)c;
    default: return ks_i64(p, 0);
    }
}

/* ---- one row -------------------------------------------------------------------------------------------------- */

static inline int ks_between(const ks_column *c, int64_t from, int64_t to, ks_bytes *out) {
    if (from < c->low || to < from || to > c->high) return KS_OFFSETS_FALL;
    if (to - from > INT32_MAX) return KS_TOO_LARGE;
    out->p = c->data + from;
    out->n = to - from;
    return KS_COLUMN_FINE;
}

KS_INLINE int ks_view(const ks_column *c, int64_t at, ks_bytes *out) {
    const uint8_t *view = c->data + 16 * at, *buffer;
    int32_t size = ks_i32(view, 0), number, start;
    if (size < 0) return KS_VIEW_SIZE;
    out->n = size;
    if (size <= 12) { out->p = view + 4; return KS_COLUMN_FINE; }
    number = ks_i32(view, 2);
    start = ks_i32(view, 3);
    if (number < 0 || number >= c->buffers_count) return KS_VIEW_BUFFER;
    if (start < 0 || size > ks_i64(c->sizes, number) - start) return KS_VIEW_BOUNDS;
    memcpy(&buffer, c->buffers + sizeof buffer * (size_t)number, sizeof buffer);
    out->p = buffer + start;
    return KS_COLUMN_FINE;
}

/* Row `row`, for layouts of bytes other than KS_DICTIONARY. */
static inline int ks_row(const ks_column *c, int64_t row, ks_bytes *out) {
    int64_t at = c->offset + row;
    if (c->validity && !ks_bit(c->validity, at)) { out->p = c->data; out->n = -1; return KS_COLUMN_FINE; }
    switch (c->layout) {
    case KS_FIXED:
        out->p = c->data + at * c->stride;
        out->n = c->width;
        return KS_COLUMN_FINE;
    case KS_PADDED:
        out->p = c->data + at * c->stride;
        out->n = c->width;
        while (out->n > 0 && out->p[out->n - 1] == 0) out->n--;
        return KS_COLUMN_FINE;
    case KS_OFFSETS32: return ks_between(c, ks_i32(c->offsets, at), ks_i32(c->offsets, at + 1), out);
    case KS_OFFSETS64: return ks_between(c, ks_i64(c->offsets, at), ks_i64(c->offsets, at + 1), out);
    case KS_VIEWS: return ks_view(c, at, out);
    case KS_POINTERS:
        memcpy(out, c->data + at * (int64_t)sizeof *out, sizeof *out);
        return out->n > INT32_MAX ? KS_TOO_LARGE : KS_COLUMN_FINE;
    default: out->p = NULL; out->n = -1; return KS_COLUMN_FINE;
    }
}

static inline int ks_looked_up(const ks_column *c, int64_t row, ks_bytes *out) {
    int64_t at = c->offset + row, index;
    if (c->validity && !ks_bit(c->validity, at)) { out->p = c->items->data; out->n = -1; return KS_COLUMN_FINE; }
    index = ks_number(c->data + at * c->width, c->width, c->is_unsigned);
    if (index < 0 || index >= c->items->length) return KS_NO_SUCH_INDEX;
    return ks_row(c->items, index, out);
}

static inline int ks_any_row(const ks_column *c, int64_t row, ks_bytes *out) {
    return c->layout == KS_DICTIONARY ? ks_looked_up(c, row, out) : ks_row(c, row, out);
}

/* ---- a stretch of rows ---------------------------------------------------------------------------------------- */

static inline void ks_apply_nulls(const ks_column *c, int64_t row, int64_t n, ks_bytes *out) {
    if (!c->validity) return;
    for (int64_t i = 0; i < n; i++)
        if (!ks_bit(c->validity, c->offset + row + i)) out[i].n = -1;
}

/* Rows between offsets, from the `at`th offset on; whether all of them are sound. What tells is the sign of a sum of
   bits, and no difference can overflow unless the sign of one before it is set. */
#define KS_GATHER_OFFSETS(load)                                                              \
    do {                                                                                     \
        for (; i < n; i++) {                                                                 \
            int64_t from = load(c->offsets, at + i), to = load(c->offsets, at + i + 1);      \
            uint64_t size = (uint64_t)to - (uint64_t)from;                                   \
            wrong |= (uint64_t)from | ((uint64_t)from - (uint64_t)c->low) | size |           \
                     ((uint64_t)c->high - (uint64_t)to) | (INT32_MAX - size);                \
            out[i].p = (const uint8_t *)((uintptr_t)c->data + (uintptr_t)from);              \
            out[i].n = (int64_t)size;                                                        \
        }                                                                                    \
    } while (0)

static int ks_gather_offsets_plain(const ks_column *c, int64_t at, int64_t n, ks_bytes *out) {
    uint64_t wrong = 0;
    int64_t i = 0;
    if (c->layout == KS_OFFSETS32) KS_GATHER_OFFSETS(ks_i32);
    else KS_GATHER_OFFSETS(ks_i64);
    return !(wrong >> 63);
}

static int (*ks_gather_offsets)(const ks_column *, int64_t, int64_t, ks_bytes *) = ks_gather_offsets_plain;

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>

/* The same, four rows at a time. */
__attribute__((target("avx2"))) static int ks_gather_offsets_wide(const ks_column *c, int64_t at, int64_t n,
                                                                  ks_bytes *out) {
    const __m256i data = _mm256_set1_epi64x((int64_t)(uintptr_t)c->data), largest = _mm256_set1_epi64x(INT32_MAX);
    const __m256i low = _mm256_set1_epi64x(c->low), high = _mm256_set1_epi64x(c->high);
    __m256i signs = _mm256_setzero_si256();
    uint64_t wrong = 0;
    int64_t i = 0;
    for (; i + 4 <= n; i += 4) {
        __m256i from, to, size, start, even, odd;
        if (c->layout == KS_OFFSETS32) {
            _mm_prefetch((const char *)((uintptr_t)c->offsets + 4 * (uintptr_t)(at + i) + 2048), _MM_HINT_T0);
            from = _mm256_cvtepi32_epi64(_mm_loadu_si128((const __m128i *)(c->offsets + 4 * (at + i))));
            to = _mm256_cvtepi32_epi64(_mm_loadu_si128((const __m128i *)(c->offsets + 4 * (at + i) + 4)));
        } else {
            _mm_prefetch((const char *)((uintptr_t)c->offsets + 8 * (uintptr_t)(at + i) + 2048), _MM_HINT_T0);
            from = _mm256_loadu_si256((const __m256i *)(c->offsets + 8 * (at + i)));
            to = _mm256_loadu_si256((const __m256i *)(c->offsets + 8 * (at + i) + 8));
        }
        size = _mm256_sub_epi64(to, from);
        start = _mm256_add_epi64(data, from);
        signs = _mm256_or_si256(signs, _mm256_or_si256(from, _mm256_sub_epi64(from, low)));
        signs = _mm256_or_si256(signs, _mm256_or_si256(size, _mm256_sub_epi64(high, to)));
        signs = _mm256_or_si256(signs, _mm256_sub_epi64(largest, size));
        even = _mm256_unpacklo_epi64(start, size);
        odd = _mm256_unpackhi_epi64(start, size);
        _mm_storeu_si128((__m128i *)&out[i], _mm256_castsi256_si128(even));
        _mm_storeu_si128((__m128i *)&out[i + 1], _mm256_castsi256_si128(odd));
        _mm_storeu_si128((__m128i *)&out[i + 2], _mm256_extracti128_si256(even, 1));
        _mm_storeu_si128((__m128i *)&out[i + 3], _mm256_extracti128_si256(odd, 1));
    }
    if (c->layout == KS_OFFSETS32) KS_GATHER_OFFSETS(ks_i32);
    else KS_GATHER_OFFSETS(ks_i64);
    return !(wrong >> 63) && _mm256_movemask_pd(_mm256_castsi256_pd(signs)) == 0;
}

__attribute__((constructor)) static void ks_gather_choose(void) {
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2")) ks_gather_offsets = ks_gather_offsets_wide;
}
#endif

/* Up to where whatever lies behind a row can be read; NULL where that is not known. Nulls begin before it, too. */
static const uint8_t *ks_readable(const ks_column *c) {
    switch (c->layout) {
    case KS_FIXED:
    case KS_PADDED: return c->stride > 0 ? c->data + (c->offset + c->length - 1) * c->stride + c->width : NULL;
    case KS_OFFSETS32:
    case KS_OFFSETS64: return c->high > c->low ? c->data + c->high : NULL;
    case KS_DICTIONARY: return c->items->length > 0 ? ks_readable(c->items) : NULL;
    default: return NULL;
    }
}

/* Of the rows [0, n) those at the beginning that have KS_SLACK readable bytes each; all with `slack` 0 if there are none.
   Each row is looked at: that offsets do not fall cannot be relied on while another thread may change them. */
static int64_t ks_roomy(const ks_column *c, const ks_bytes *rows, int64_t n, int *slack) {
    uintptr_t last = (uintptr_t)ks_readable(c), left = 0;
    int64_t roomy = 0;
    *slack = 0;
    if (last < KS_SLACK) return n;
    last -= KS_SLACK;
    for (int64_t i = 0; i < n; i++) left |= last - (uintptr_t)rows[i].p; /* a sign where a row begins behind it */
    if ((intptr_t)left >= 0) roomy = n;
    else while (roomy < n && (uintptr_t)rows[roomy].p <= last) roomy++;
    if (roomy == 0) return n;
    *slack = 1;
    return roomy;
}

/* Rows [row, row + n) as pointers and sizes; how many of them are sound, and why the next one is not. With `slack`
   KS_SLACK bytes can be read from where each of them begins; it may be the cause of a smaller number. */
static int64_t ks_gather(const ks_column *c, int64_t row, int64_t n, ks_bytes *out, int *slack, int *fault) {
    int64_t at = c->offset + row, i;
    *fault = KS_COLUMN_FINE;
    switch (c->layout) {
    case KS_FIXED:
        for (i = 0; i < n; i++) { out[i].p = c->data + (at + i) * c->stride; out[i].n = c->width; }
        ks_apply_nulls(c, row, n, out);
        return ks_roomy(c, out, n, slack);
    case KS_OFFSETS32:
    case KS_OFFSETS64:
        if (!ks_gather_offsets(c, at, n, out)) break;
        ks_apply_nulls(c, row, n, out);
        return ks_roomy(c, out, n, slack);
    }
    for (i = 0; i < n; i++)
        if ((*fault = ks_any_row(c, row + i, &out[i]))) break;
    return ks_roomy(c, out, i, slack);
}

/* Rows [row, row + n) as milliseconds, `now` where they are null; how many are sound. -1, no time, is the only one
   before the epoch that there is, and in finer units only if it is exactly that. */
static int64_t ks_gather_times(const ks_column *c, int64_t row, int64_t n, int64_t now, int64_t *out, int *fault) {
    int64_t at = c->offset + row, i, time, divisor = c->divisor;
    *fault = KS_COLUMN_FINE;
    if (c->layout != KS_TIMES) { /* KS_NULLS */
        for (i = 0; i < n; i++) out[i] = now;
        return n;
    }
    for (i = 0; i < n; i++) {
        if (c->validity && !ks_bit(c->validity, at + i)) { out[i] = now; continue; }
        time = ks_number(c->data + (at + i) * c->stride, c->width, c->is_unsigned);
        if (time == INT64_MIN && c->has_nat) { out[i] = now; continue; }
        if (divisor == 1000) time = time >= 0 ? time / 1000 : time == -1000 ? -1 : -2;
        else if (divisor == 1000000) time = time >= 0 ? time / 1000000 : time == -1000000 ? -1 : -2;
        else if (divisor != 1) time = time >= 0 ? time / divisor : time == -divisor ? -1 : -2;
        else if (c->multiplier != 1)
            time = time < 0 || time > INT64_MAX / c->multiplier ? -2 : time * c->multiplier;
        if (time < -1) { *fault = KS_TIME_RANGE; return i; }
        out[i] = time;
    }
    return n;
}

/* ---- headers -------------------------------------------------------------------------------------------------- */

/* `ks_varsize`, for numbers that are mostly small: branches that are foreseen cost less than counting bits. */
KS_INLINE int64_t ks_short_size(uint64_t z) {
    return z < 0x80 ? 1 : z < 0x4000 ? 2 : ks_varsize(z);
}

/* Bytes of a field with its size before it. */
KS_INLINE int64_t ks_sized(int64_t n) { return n < 0 ? 1 : n + ks_short_size((uint64_t)n << 1); }

/* The first and one past the last header of `row`; both 0 for none. */
static inline int ks_list_row(const ks_column *c, int64_t row, int64_t *from, int64_t *to) {
    int64_t at = c->offset + row;
    *from = *to = 0;
    if (c->layout == KS_NULLS || (c->validity && !ks_bit(c->validity, at))) return KS_COLUMN_FINE;
    *from = c->layout == KS_LIST32 ? ks_i32(c->offsets, at) : ks_i64(c->offsets, at);
    *to = c->layout == KS_LIST32 ? ks_i32(c->offsets, at + 1) : ks_i64(c->offsets, at + 1);
    if (*from < c->low || *to < *from || *to > c->high) return KS_OFFSETS_FALL;
    return KS_COLUMN_FINE;
}

/* Bytes that the header section of headers [from, to) takes, their count included; negative: a fault. */
static int64_t ks_headers_size(const ks_column *c, int64_t from, int64_t to) {
    int64_t size = ks_varsize((uint64_t)(to - from) << 1);
    ks_bytes name, value;
    int fault;
    for (int64_t i = from; i < to; i++) {
        if ((fault = ks_any_row(c->names, i, &name)) || (fault = ks_any_row(c->items, i, &value))) return -fault;
        if (name.n < 0) return -KS_NULL_NAME;
        size += ks_sized(name.n) + ks_sized(value.n);
        if (size > INT32_MAX) return -KS_HEADERS_TOO_LARGE;
    }
    return size;
}

/* Writes that section, of at most `room` bytes; its size, or 0 if what it is made of has changed meanwhile. */
static int64_t ks_put_headers(const ks_column *c, int64_t from, int64_t to, uint8_t *out, int64_t room) {
    uint8_t *p = out, *end = out + room;
    ks_bytes name, value;
    if (room < 10) return 0;
    p = ks_put(p, (uint64_t)(to - from) << 1);
    for (int64_t i = from; i < to; i++) {
        if (ks_any_row(c->names, i, &name) || ks_any_row(c->items, i, &value) || name.n < 0) return 0;
        if (name.n > end - p || value.n > end - p || ks_sized(name.n) + ks_sized(value.n) > end - p) return 0;
        p = ks_put_field(p, name.p, name.n);
        p = ks_put_field(p, value.p, value.n);
    }
    return p - out;
}

#endif
