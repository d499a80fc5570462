/* The loop that turns the records of a batch into rows.

   `ks_decode` appends one whole v2 batch or nothing: a batch whose offsets rise and are within the batch and whose fields
   are all sound. Any other batch is left to the row reader, which alone decides what is wrong. */
#ifndef KSTORE_DECODE_H
#define KSTORE_DECODE_H

#include "columns/rows.h"
#include "record.h"

/* One batch whose records are to be decoded. */
typedef struct {
    const uint8_t *p, *end;    /* the records, decompressed */
    const uint8_t *safe;       /* memory up to here can be read */
    int unread;                /* what lies behind the batch is not in a cache yet */
    int64_t count;
    int64_t base_offset;
    int64_t base_timestamp;    /* the greatest one where the log's own time counts */
    int32_t last_delta;
    int append_time;
    ks_block *block;           /* views: where p lies, and its number among their buffers */
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
    int64_t n;                      /* the first of them; then one past the last */
    int64_t key_used, value_used;   /* bytes of the columns' data before them; then after */
    int64_t key_valid, value_valid; /* how many values that are not null have been added */
    int32_t buffer;                 /* views: the number of the block that they point into */
    int in_pieces;                  /* the batch may go on behind `end`; then: */
    int64_t min_delta;              /* of the next record */
    const uint8_t *stopped;         /* where the first incomplete record begins */
} ks_place;

/* Appends one header; 0, or -1 without memory. */
int ks_append_header(ks_rows *out, const uint8_t *key, int32_t key_size, const uint8_t *value,
                     int32_t value_size);

/* Whether a log can have the offsets from base to last; if not, the row reader decides. */
static inline int ks_has_regular_offsets(const ks_batch *b) {
    return b->base_offset >= 0 && b->last_delta >= 0 && b->base_offset <= INT64_MAX - 1 - b->last_delta;
}

/* Decodes the batch into the rows at `at`, for which there is room. */
int ks_decode_at(const ks_batch *b, ks_rows *out, ks_place *at);

/* The number of the block of a batch among the buffers of views; 0 where there are no views, -1 without memory. */
int32_t ks_buffer_of(ks_batch *b, ks_rows *out);

/* Adds the rows of a batch, which were decoded behind the end of `out`, to `out`. */
void ks_keep_rows(ks_rows *out, const ks_place *at, int64_t rows, int64_t bytes);

/* Appends all records of a batch, or none: KS_DOUBTFUL when the row reader must decide. */
int ks_decode(ks_batch *b, ks_rows *out);

/* Appends the records of a batch at the `n` offsets `kept`, which rise and are all in it, or none: KS_DOUBTFUL when the
   row reader must look at it. */
int ks_decode_some(ks_batch *b, ks_rows *out, const int64_t *kept, int64_t n);

/* ---- one row ---------------------------------------------------------------------------------------------------- */

/* Appends one row of the row reader: of formats 0 and 1, and of doubtful batches. Its headers are appended already. */
int ks_append_row(ks_rows *out, const ks_batch *b, int64_t offset, int64_t timestamp, const uint8_t *key,
                  int32_t key_size, const uint8_t *value, int32_t value_size, ks_block *block, int64_t bytes);

#endif
