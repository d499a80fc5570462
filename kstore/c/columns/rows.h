/* Columns under construction: the rows built so far, in memory that grows.

   A caller marks where the rows end and can go back there; `ks_rows_take` copies a range of rows from one to another, for
   batches of which only some rows are taken. */
#ifndef KSTORE_ROWS_H
#define KSTORE_ROWS_H

#include "columns/blocks.h"
#include "columns/layout.h"

/* Columns of one number a row; those after the second are the same for a whole batch but for the sequence and the last. */
enum ks_fixed {
    KS_OFFSET, KS_TIMESTAMP, KS_LEADER_EPOCH, KS_PRODUCER_ID, KS_PRODUCER_EPOCH, KS_BASE_SEQUENCE, KS_SEQUENCE,
    KS_BASE_OFFSET, KS_TIMESTAMP_TYPE, KS_COMPRESSION, KS_TRANSACTIONAL, KS_TOMBSTONE, KS_FIXED_COLUMNS
};

static const uint8_t ks_fixed_width[KS_FIXED_COLUMNS] = {8, 8, 4, 8, 2, 4, 4, 8, 1, 1, 1, 1};

/* Arrow's view of a value: up to 12 bytes in place, or the first four and the place of all. */
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
    ks_vec valid;   /* a bit a row */
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
    ks_block **buffers;        /* views refer to them; `rows` holds them */
    int64_t *extents;          /* how much of each is in use */
    int buffers_n, buffers_capacity;
} ks_rows;

static inline uint64_t ks_little(uint64_t word) {
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    word = __builtin_bswap64(word);
#endif
    return word;
}

/* Gives `rows` the columns of `of`; with `measured` offsets and sizes, too. */
void ks_rows_like(ks_rows *rows, const ks_rows *of, int measured);

/* Makes room in a column of `n` rows for so many more rows and bytes; 0, or -1 without memory. */
int ks_var_reserve(ks_var *v, int64_t n, int64_t rows, int64_t bytes);

/* Makes room for so many rows whose fields have so many bytes together; 0, or -1 without memory. */
int ks_rows_reserve(ks_rows *out, int64_t rows, int64_t bytes);

/* Whether so many more rows fit without any memory being moved. */
int ks_has_room(const ks_rows *out, int64_t rows, int64_t key_bytes, int64_t value_bytes);

/* Clears the bits of `rows` rows from `n` on, while other threads may set those of the rows before. */
void ks_clear_bits(ks_var *v, int64_t n, int64_t rows);

/* Makes room for `times` the present rows, and for `more` bytes; without memory for that, columns grow step by step. */
void ks_rows_expect(ks_rows *out, double times, int64_t more);

/* Removes the rows; `keep_memory` keeps their memory for the next ones. */
void ks_rows_clear(ks_rows *rows, int keep_memory);

/* How many rows there were, so that those added later can be removed. */
typedef struct {
    int64_t n, bytes, headers_n;
    struct { int64_t used, nulls; } vars[4];
} ks_mark;

ks_mark ks_rows_mark(const ks_rows *rows);

/* Removes the rows that were added after `mark`. */
void ks_rows_back(ks_rows *rows, const ks_mark *mark);

/* Prepares the memory for a result; only `ks_rows_clear` may follow. */
void ks_rows_finish(ks_rows *rows);

/* Makes `block` one of the buffers of views, if it is not; its number among them, or -1 without memory. */
int32_t ks_rows_buffer(ks_rows *rows, ks_block *block);

/* Appends the rows [first, first + count) of `from`, whose encoded records have `bytes`; 0, or -1 without memory. */
int ks_rows_take(ks_rows *to, const ks_rows *from, int64_t first, int64_t count, int64_t bytes);

#endif
