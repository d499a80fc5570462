/* Columns of records in memory of other libraries.

   `ks_gather` converts rows of any layout into pointers and sizes for the encoder (encode.h): only this file knows the
   layouts of incoming columns. Offsets, views and dictionary indices are not trusted: each is loaded once and checked,
   and the loaded value is used, even if another thread changes the memory. The Arrow C interface does not provide the
   sizes of buffers; offsets must lie within `low` and `high`. Loads use memcpy: memory need not be aligned. */
#ifndef KSTORE_GATHER_H
#define KSTORE_GATHER_H

#include <stdint.h>
#include <string.h>

#include "bytes.h"
#include "columns/layout.h"
#include "record.h"

typedef struct ks_column ks_column;
struct ks_column {
    int layout;
    int is_unsigned;            /* indices and times */
    int64_t length;             /* rows */
    int64_t offset;             /* of row 0 within the buffers */
    const uint8_t *validity;    /* a bit per row from `offset` on; NULL: nothing is null */
    const uint8_t *data;        /* bytes, rows, views, ks_bytes, indices, numbers; never NULL */
    const uint8_t *offsets;
    int64_t width, stride;
    int64_t low, high;          /* every offset is within [low, high] */
    const uint8_t *buffers;     /* an array of pointers to the buffers of views */
    const uint8_t *sizes;       /* an array of the sizes of these buffers */
    int64_t buffers_count;
    int64_t multiplier, divisor; /* of times: one of them is 1 */
    int has_nat;                /* times: INT64_MIN is null, too */
    const ks_column *items;     /* dictionary; values of headers */
    const ks_column *names;     /* of headers */
};

/* Why a row is refused. */
enum ks_column_fault {
    KS_COLUMN_FINE = 0,
    KS_OFFSETS_FALL,      /* an offset below the one before, or outside [low, high] */
    KS_VIEW_SIZE,         /* a negative size */
    KS_VIEW_BUFFER,       /* no such buffer */
    KS_VIEW_BOUNDS,       /* outside its buffer */
    KS_NO_SUCH_INDEX,     /* outside the dictionary */
    KS_NULL_NAME,         /* a header without a name */
    KS_HEADERS_TOO_LARGE, /* more than a record can hold */
    KS_TOO_LARGE,         /* a field of more than 2 GiB */
    KS_TIME_RANGE         /* before the epoch, or beyond 64 bits of milliseconds */
};

static inline int32_t ks_i32(const uint8_t *p, int64_t i) { int32_t x; memcpy(&x, p + 4 * i, 4); return x; }
static inline int64_t ks_i64(const uint8_t *p, int64_t i) { int64_t x; memcpy(&x, p + 8 * i, 8); return x; }
static inline int ks_bit(const uint8_t *bits, int64_t i) { return bits[i >> 3] >> (i & 7) & 1; }

/* A number of `width` bytes. An unsigned one above INT64_MAX becomes negative, which every caller refuses. */
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

KS_INLINE int ks_view_row(const ks_column *c, int64_t at, ks_bytes *out) {
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

/* Reads row `row`, for layouts of bytes other than KS_DICTIONARY. */
static inline int ks_row(const ks_column *c, int64_t row, ks_bytes *out) {
    int64_t at = c->offset + row;
    if (c->validity && !ks_bit(c->validity, at)) { out->p = c->data; out->n = -1; return KS_COLUMN_FINE; }
    switch (c->layout) {
    case KS_STRIDED:
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
    case KS_VIEWS: return ks_view_row(c, at, out);
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

/* Stores pointers and sizes of rows [row, row + n); returns how many of them are sound, and in `fault` why the next one
   is not. Sets `slack` if KS_SLACK bytes are readable from the start of each row; for this it may return fewer rows. */
int64_t ks_gather(const ks_column *c, int64_t row, int64_t n, ks_bytes *out, int *slack, int *fault);

/* Stores rows [row, row + n) as milliseconds, `now` for nulls; returns how many are sound. The only accepted time
   before the epoch is -1 ms, which means no time; in finer units the time must be exactly -1 ms. */
int64_t ks_gather_times(const ks_column *c, int64_t row, int64_t n, int64_t now, int64_t *out, int *fault);

/* ---- headers -------------------------------------------------------------------------------------------------- */

/* Stores the first and one past the last header of `row`, both 0 if there is none. */
static inline int ks_list_row(const ks_column *c, int64_t row, int64_t *from, int64_t *to) {
    int64_t at = c->offset + row;
    *from = *to = 0;
    if (c->layout == KS_ABSENT || (c->validity && !ks_bit(c->validity, at))) return KS_COLUMN_FINE;
    *from = c->layout == KS_LIST32 ? ks_i32(c->offsets, at) : ks_i64(c->offsets, at);
    *to = c->layout == KS_LIST32 ? ks_i32(c->offsets, at + 1) : ks_i64(c->offsets, at + 1);
    if (*from < c->low || *to < *from || *to > c->high) return KS_OFFSETS_FALL;
    return KS_COLUMN_FINE;
}

/* Stores `none` for the rows from `row` on that have no headers, at most `n`; returns their number. */
int64_t ks_gather_no_headers(const ks_column *c, int64_t row, int64_t n, ks_bytes none, ks_bytes *out);

/* The size of the header section of headers [from, to), including the count; negative: a fault. */
int64_t ks_headers_size(const ks_column *c, int64_t from, int64_t to);

/* Writes this section, of at most `room` bytes; returns its size, or 0 if the headers changed after ks_headers_size. */
int64_t ks_put_headers(const ks_column *c, int64_t from, int64_t to, uint8_t *out, int64_t room);

#endif
