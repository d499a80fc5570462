/* One row for each batch of a file, from the headers only: the rest of the file is not read.

   A `ks_reader` has the range and the position. A frame that is not sound ends the reading, as in `ks_read`. */
#ifndef KSTORE_BATCHTABLE_H
#define KSTORE_BATCHTABLE_H

#include "columns/reader.h"
#include "window.h"

typedef struct {
    int64_t base_offset, last_offset, position, segment_base_offset, base_timestamp, max_timestamp, producer_id,
        delete_horizon_ms;
    int32_t size_bytes, count, partition_leader_epoch, base_sequence;
    uint32_t crc;
    int16_t producer_epoch;
    int8_t magic, compression, timestamp_type, is_transactional, is_control;
} ks_header;

/* Headers that are close together are read with one call, others with one call each. */
#define KS_HEADERS_WINDOW ((ptrdiff_t)16 << 10)

typedef struct {
    uint8_t data[KS_HEADERS_WINDOW];
    int64_t before; /* size of the previous batch */
} ks_headers_memory;

/* Reads the header of the batch at `p`; `n` of its bytes are in memory. Returns 0, or -1 if its frame is not sound. */
int ks_read_header(const uint8_t *p, int64_t n, int64_t left, ks_header *h);

/* Appends the row of the batch at `position`, if it has offsets in the range and was not aborted. */
enum ks_stop ks_take_header(ks_reader *r, ks_vec *rows, int64_t *n, ks_header *h, int64_t segment,
                            const uint8_t *p);

/* Appends a row for each batch of [position, pause), with several threads if there are several borders. Borders are
   rising positions in that range; the first is `position`. */
enum ks_stop ks_read_headers_threaded(ks_reader *r, ks_headers_memory *w, ks_vec *rows, int64_t *n,
                                      int64_t segment, const int64_t *borders, int64_t count, int threads);

/* Copies one field of `n` rows, which lies `at` bytes into each and is `width` bytes wide. */
void ks_pick_field(uint8_t *to, const ks_vec *rows, int64_t first, int64_t n, size_t at, size_t width);

#endif
