/* The loop that decodes the records of a batch into rows.

   `ks_decode` appends one whole v2 batch or nothing. It accepts a batch if its offsets rise and lie within the batch
   and all its fields are sound. Any other batch is left to the row reader, which alone decides what is wrong. */
#ifndef KSTORE_DECODE_H
#define KSTORE_DECODE_H

#include "columns/rows.h"
#include "record.h"

/* One batch to decode. */
typedef struct {
    const uint8_t *p, *end;    /* the records, decompressed */
    const uint8_t *safe;       /* memory is readable up to here */
    int unread;                /* the memory after the batch is not in a cache yet */
    int64_t count;
    int64_t base_offset;
    int64_t base_timestamp;    /* the max timestamp if the batch has append time */
    int32_t last_delta;
    int append_time;
    ks_block *block;           /* for views: the block that `p` is in, and its number among the buffers */
    int32_t buffer;
    int32_t leader_epoch;
    int64_t producer_id;
    int16_t producer_epoch;
    int32_t base_sequence;
    int8_t timestamp_type, compression, transactional;
} ks_batch;

enum ks_decoded { KS_DECODED, KS_DOUBTFUL, KS_NO_MEMORY };

/* The place of a batch's rows in the columns. */
typedef struct {
    int64_t n;                      /* the first row; after decoding, one past the last row */
    int64_t key_used, value_used;   /* bytes of the columns' data before the rows; after decoding, including the rows */
    int64_t key_valid, value_valid; /* non-null values that have been added */
    int32_t buffer;                 /* views: the number of the block that they point into */
    int in_pieces;                  /* the batch may continue after `end`; the next two are then set */
    int64_t min_delta;              /* of the next record */
    const uint8_t *stopped;         /* the start of the first incomplete record */
} ks_place;

/* Appends one header; returns 0, or -1 without memory. */
int ks_append_header(ks_rows *out, const uint8_t *key, int32_t key_size, const uint8_t *value,
                     int32_t value_size);

/* Whether a log can have the batch's base and last offset; if not, the row reader decides. */
static inline int ks_has_regular_offsets(const ks_batch *b) {
    return b->base_offset >= 0 && b->last_delta >= 0 && b->base_offset <= INT64_MAX - 1 - b->last_delta;
}

/* Decodes the batch into the rows at `at`, for which space is reserved. */
int ks_decode_at(const ks_batch *b, ks_rows *out, ks_place *at);

/* The number of a batch's block among the buffers of views; 0 if there are no views, -1 without memory. */
int32_t ks_buffer_of(ks_batch *b, ks_rows *out);

/* Adds the rows of a batch to `out`; they have already been decoded into the memory after its last row. */
void ks_keep_rows(ks_rows *out, const ks_place *at, int64_t rows, int64_t bytes);

/* Appends all records of a batch, or none: KS_DOUBTFUL if the row reader must decide. */
int ks_decode(ks_batch *b, ks_rows *out);

/* As ks_decode, for the records at the `n` offsets `kept`, which rise and are all in the batch. */
int ks_decode_some(ks_batch *b, ks_rows *out, const int64_t *kept, int64_t n);

/* ---- one row ---------------------------------------------------------------------------------------------------- */

/* Appends one row for the row reader (formats 0 and 1, doubtful batches). Its headers are already appended. */
int ks_append_row(ks_rows *out, const ks_batch *b, int64_t offset, int64_t timestamp, const uint8_t *key,
                  int32_t key_size, const uint8_t *value, int32_t value_size, ks_block *block, int64_t bytes);

#endif
