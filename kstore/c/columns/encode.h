/* The encoder for columns: pointers and sizes from `ks_gather` become v2 records (FORMAT 3). */
#ifndef KSTORE_ENCODE_H
#define KSTORE_ENCODE_H

#include "columns/gather.h"

/* No field of some rows has more bytes; a header section has at least one. */
typedef struct {
    int64_t key, value, header;
    int nulls;  /* a key or a value is null */
    int differ; /* not all keys have one size, or not all values */
} ks_widths;

typedef struct {
    uint8_t *p;                /* where the next record goes */
    uint8_t *full;             /* the batch must not grow past this, */
    uint8_t *room;             /* nor the buffer */
    uint8_t *enough;           /* nothing is added past this, but one record may cross it */
    int64_t count;             /* records of the batch */
    int64_t base_timestamp;
    int64_t max_timestamp;
    int64_t earliest, latest;  /* timestamps within are taken; so is -1 */
    int key_required;
    int slack;                 /* KS_SLACK bytes can be read from the beginning of each key and value */
    ks_widths widths;          /* of the rows that are to come */
} ks_open_batch;

enum ks_encode_stop { KS_STOP_FULL, KS_STOP_ROOM, KS_STOP_ODD, KS_STOP_ENOUGH };

/* Why `ks_encode` stopped at this row; `total` gets the size of the row. */
int ks_why(const ks_open_batch *batch, const ks_bytes *key, const ks_bytes *value, const ks_bytes *headers,
           int64_t time, int64_t *total);

/* Of rows that are to come, for `widths` of their batch where it has slack. */
ks_widths ks_widths_of(const ks_bytes *keys, const ks_bytes *values, const ks_bytes *headers, int64_t n);

/* Appends rows to the batch until one does not fit, or needs a closer look; how many it appended. `keys` NULL: no row has a
   key; `headers` NULL: no row has headers. */
int64_t ks_encode(ks_open_batch *batch, const ks_bytes *keys, const ks_bytes *values, const ks_bytes *headers,
                  const int64_t *times, int64_t n);

#endif
