/* Columns under construction: the rows built so far, in growing memory.

   A caller can mark the end of the rows and drop rows added later; `ks_rows_take` copies some of a batch's rows. */
#ifndef KSTORE_ROWS_H
#define KSTORE_ROWS_H

#include "columns/blocks.h"
#include "columns/layout.h"

/* Columns of one number per row; those after the second are constant in a batch, except sequence and tombstone. */
enum ks_fixed {
    KS_OFFSET, KS_TIMESTAMP, KS_LEADER_EPOCH, KS_PRODUCER_ID, KS_PRODUCER_EPOCH, KS_BASE_SEQUENCE, KS_SEQUENCE,
    KS_BASE_OFFSET, KS_TIMESTAMP_TYPE, KS_COMPRESSION, KS_TRANSACTIONAL, KS_TOMBSTONE, KS_FIXED_COLUMNS
};

static const uint8_t ks_fixed_width[KS_FIXED_COLUMNS] = {8, 8, 4, 8, 2, 4, 4, 8, 1, 1, 1, 1};

/* Arrow's view of a value: up to 12 bytes inline, or the first four and the place of all bytes. */
typedef struct {
    int32_t size;
    uint8_t prefix[4];
    int32_t buffer;
    int32_t offset;
} ks_view;

/* A column of byte strings. */
typedef struct {
    int layout;
    int64_t used;   /* bytes of `data` */
    int64_t nulls;
    ks_vec places;  /* KS_OFFSETS32: rows + 1 of int32_t; KS_OFFSETS64: of int64_t; KS_VIEWS: rows of ks_view */
    ks_vec data;    /* not for views */
    ks_vec valid;   /* a bit per row */
} ks_var;

typedef struct {
    int64_t n;
    int64_t bytes;             /* of the encoded records, before compression */
    uint32_t wanted;           /* bits of ks_fixed */
    ks_vec fixed[KS_FIXED_COLUMNS];
    ks_var key, value;
    int headers;               /* whether they are wanted */
    int64_t headers_n;
    ks_vec header_places;      /* n + 1 of int32_t */
    ks_var header_key, header_value;
    int measured;              /* whether `sizes` is kept */
    ks_vec sizes;              /* of each record, encoded: int32_t */
    ks_block **buffers;        /* the blocks that views refer to; `rows` holds them */
    int64_t *extents;          /* used bytes of each buffer */
    int buffers_n, buffers_capacity;
} ks_rows;

static inline uint64_t ks_little(uint64_t word) {
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    word = __builtin_bswap64(word);
#endif
    return word;
}

/* Makes `rows` have the columns of `of`; with `measured` also offsets and sizes. */
void ks_rows_like(ks_rows *rows, const ks_rows *of, int measured);

/* Reserves `rows` more rows and `bytes` more bytes in a column of `n` rows; returns 0, or -1 without memory. */
int ks_var_reserve(ks_var *v, int64_t n, int64_t rows, int64_t bytes);

/* Reserves `rows` more rows whose fields have `bytes` in all; returns 0, or -1 without memory. */
int ks_rows_reserve(ks_rows *out, int64_t rows, int64_t bytes);

/* Whether `rows` more rows fit without moving any memory. */
int ks_has_room(const ks_rows *out, int64_t rows, int64_t key_bytes, int64_t value_bytes);

/* Clears the bits of `rows` rows from `n` on; other threads may at the same time set bits of earlier rows. */
void ks_clear_bits(ks_var *v, int64_t n, int64_t rows);

/* Reserves space for `times` as many rows and bytes as now, and `more` bytes. If that fails, columns grow as needed. */
void ks_rows_expect(ks_rows *out, double times, int64_t more);

/* Removes the rows; `keep_memory` keeps their memory for the next ones. */
void ks_rows_clear(ks_rows *rows, int keep_memory);

/* The size of the columns at some time, so that rows added later can be removed. */
typedef struct {
    int64_t n, bytes, headers_n;
    struct { int64_t used, nulls; } vars[4];
} ks_mark;

ks_mark ks_rows_mark(const ks_rows *rows);

/* Removes the rows that were added after `mark`. */
void ks_rows_back(ks_rows *rows, const ks_mark *mark);

/* Prepares the memory for a result; only `ks_rows_clear` may follow. */
void ks_rows_finish(ks_rows *rows);

/* Adds `block` to the buffers of views if it is not among them; returns its number, or -1 without memory. */
int32_t ks_rows_buffer(ks_rows *rows, ks_block *block);

/* Appends rows [first, first + count) of `from`, which have `bytes`; returns 0, or -1 without memory. */
int ks_rows_take(ks_rows *to, const ks_rows *from, int64_t first, int64_t count, int64_t bytes);

#endif
