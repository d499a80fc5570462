/* The encoder for columns: writes v2 records (FORMAT 3) from the pointers and sizes of `ks_gather`. */
#ifndef KSTORE_ENCODE_H
#define KSTORE_ENCODE_H

#include "columns/gather.h"

/* The largest sizes of the fields of some rows; a header section has at least one byte. */
typedef struct {
    int64_t key, value, header;
    int nulls;  /* a key or a value is null */
    int differ; /* the keys or the values differ in size */
} ks_widths;

typedef struct {
    uint8_t *p;                /* the place of the next record */
    uint8_t *full;             /* the limit of the batch */
    uint8_t *room;             /* the end of the buffer */
    uint8_t *enough;           /* no record starts here or later; the last one may end later */
    int64_t count;             /* records of the batch */
    int64_t base_timestamp;
    int64_t max_timestamp;
    int64_t earliest, latest;  /* the accepted timestamps; -1 is accepted, too */
    int key_required;
    int slack;                 /* KS_SLACK bytes are readable from the start of each key and value */
    ks_widths widths;          /* of the next rows */
} ks_open_batch;

enum ks_encode_stop { KS_STOP_FULL, KS_STOP_ROOM, KS_STOP_ODD, KS_STOP_ENOUGH };

/* Why `ks_encode` stopped at this row; `total` gets the size of the row. */
int ks_why(const ks_open_batch *batch, const ks_bytes *key, const ks_bytes *value, const ks_bytes *headers,
           int64_t time, int64_t *total);

/* The widths of the next rows, needed in a batch with slack. */
ks_widths ks_widths_of(const ks_bytes *keys, const ks_bytes *values, const ks_bytes *headers, int64_t n);

/* Appends rows to the batch until one does not fit, or must be handled by the packer; returns how many it appended. If
   `keys` is NULL, no row has a key; if `headers` is NULL, no row has headers. */
int64_t ks_encode(ks_open_batch *batch, const ks_bytes *keys, const ks_bytes *values, const ks_bytes *headers,
                  const int64_t *times, int64_t n);

#endif
