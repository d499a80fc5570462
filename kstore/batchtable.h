/* One row for each batch of a file, from the headers alone: what of the file is not a header is not even read.

   Uses the walk's `ks_reader` for what is wanted and what has been used up, and a small window of its own. As there, a
   frame that is not sound is left alone. Nothing here knows Python. */
#ifndef KSTORE_BATCHTABLE_H
#define KSTORE_BATCHTABLE_H

#include "columnread.h"
#include "helpers.h"

typedef struct {
    int64_t base_offset, last_offset, position, segment_base_offset, base_timestamp, max_timestamp, producer_id,
        delete_horizon_ms;
    int32_t size_bytes, count, partition_leader_epoch, base_sequence;
    uint32_t crc;
    int16_t producer_epoch;
    int8_t magic, compression, timestamp_type, is_transactional, is_control;
} ks_header;

enum { KS_LEGACY_CRC = 12, KS_LEGACY_ATTRIBUTES = 17, KS_LEGACY_TIMESTAMP = 18, KS_LEGACY_V0 = 26, KS_LEGACY_V1 = 34 };

/* Headers close to each other are read in one go, those far apart one by one. */
#define KS_HEADERS_WINDOW ((size_t)16 << 10)
#define KS_CLOSE_BYTES 2048

typedef struct {
    uint8_t data[KS_HEADERS_WINDOW];
    int64_t at;
    size_t size;
    int64_t before; /* size of the batch before */
} ks_headers_window;

static const uint8_t *ks_look_at_header(ks_reader *r, ks_headers_window *w, int64_t position, size_t n) {
    int64_t from = position - w->at;
    if (from >= 0 && from + (int64_t)n <= (int64_t)w->size) return w->data + from;
    size_t wanted = w->before < KS_CLOSE_BYTES ? KS_HEADERS_WINDOW : n;
    if ((int64_t)wanted > r->end - position) wanted = (size_t)(r->end - position);
    w->at = position;
    w->size = 0;
    while (w->size < wanted) {
        ssize_t got = pread(r->fd, w->data + w->size, wanted - w->size, position + (int64_t)w->size);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) { r->error = errno; return NULL; }
        if (got == 0) break;
        w->size += (size_t)got;
    }
    r->error = 0;
    return n <= w->size ? w->data : NULL;
}

/* The batch at `p`, of which `n` bytes are there, if its frame is sound; 0, or -1. */
static int ks_read_header(const uint8_t *p, int64_t n, int64_t left, ks_header *h) {
    memset(h, 0, sizeof *h);
    if (n < KS_LEGACY_V0) return -1;
    int64_t size = KS_FRAME + (int64_t)ks_size(p);
    h->magic = (int8_t)p[KS_AT_MAGIC];
    if (h->magic < 0 || h->magic > 2 || size > left) return -1;
    if (size < (h->magic == 0 ? KS_LEGACY_V0 : h->magic == 1 ? KS_LEGACY_V1 : KS_AT_RECORDS)) return -1;
    h->size_bytes = (int32_t)size;
    if (size > INT32_MAX) return -1;
    if (h->magic < 2) {
        uint8_t attributes = p[KS_LEGACY_ATTRIBUTES];
        h->compression = attributes & 7;
        h->last_offset = ks_get64(p);
        h->base_offset = h->compression ? -1 : h->last_offset; /* the first of several is inside */
        h->count = h->compression ? -1 : 1;
        h->crc = (uint32_t)ks_get32(p + KS_LEGACY_CRC);
        h->base_timestamp = h->max_timestamp = h->magic ? ks_get64(p + KS_LEGACY_TIMESTAMP) : -1;
        h->timestamp_type = h->magic ? attributes >> 3 & 1 : -1;
        h->producer_id = h->producer_epoch = -1;
        h->partition_leader_epoch = h->base_sequence = -1;
        h->delete_horizon_ms = -1;
        return 0;
    }
    if (n < KS_AT_RECORDS) return -1;
    int16_t attributes = ks_get16(p + KS_AT_ATTRIBUTES);
    h->base_offset = ks_get64(p);
    h->last_offset = ks_wrapping_add(h->base_offset, ks_get32(p + KS_AT_LAST_DELTA));
    h->count = ks_get32(p + KS_AT_COUNT);
    h->crc = (uint32_t)ks_get32(p + KS_AT_CRC);
    h->compression = attributes & 7;
    h->timestamp_type = attributes >> 3 & 1;
    h->is_transactional = attributes >> 4 & 1;
    h->is_control = attributes >> 5 & 1;
    h->base_timestamp = ks_get64(p + KS_AT_BASE_TIMESTAMP);
    h->max_timestamp = ks_get64(p + KS_AT_MAX_TIMESTAMP);
    h->delete_horizon_ms = attributes & 0x40 ? h->base_timestamp : -1;
    h->producer_id = ks_get64(p + KS_AT_PRODUCER_ID);
    h->producer_epoch = ks_get16(p + KS_AT_PRODUCER_EPOCH);
    h->base_sequence = ks_get32(p + KS_AT_BASE_SEQUENCE);
    h->partition_leader_epoch = ks_get32(p + KS_AT_EPOCH);
    return 0;
}

/* Appends the batch that is at `position`, if it is wanted and was not aborted. */
static enum ks_stop ks_take_header(ks_reader *r, ks_vec *rows, int64_t *n, ks_header *h, int64_t segment,
                                   const uint8_t *p) {
    if (h->magic == 2 && h->base_offset > r->last_wanted) return KS_PAST;
    if (h->last_offset < r->start_offset) {
        r->position += h->size_bytes;
        return KS_AT_END;
    }
    if (h->magic < 2 && h->base_offset > r->last_wanted) return KS_PAST;
    if (r->aborted_n && ks_is_aborted(r->aborted, r->aborted_n, p)) {
        r->position += h->size_bytes;
        return KS_AT_END;
    }
    h->position = r->position;
    h->segment_base_offset = segment;
    if (ks_vec_reserve(rows, (size_t)*n * sizeof *h, ((size_t)*n + 1) * sizeof *h)) return KS_OUT_OF_MEMORY;
    memcpy(rows->p + (size_t)(*n)++ * sizeof *h, h, sizeof *h);
    ks_used_up(r, p, h->size_bytes);
    r->next_offset = ks_wrapping_add(h->last_offset, 1);
    return KS_AT_END;
}

static enum ks_stop ks_read_headers(ks_reader *r, ks_headers_window *w, ks_vec *rows, int64_t *n, int64_t segment) {
    ks_header h;
    w->size = 0; /* the file may have been cut and written anew */
    while (r->position < r->pause) {
        int64_t left = r->end - r->position;
        size_t there = left < KS_AT_RECORDS ? (size_t)left : KS_AT_RECORDS;
        const uint8_t *p = ks_look_at_header(r, w, r->position, there);
        if (!p) return r->error ? KS_FAILED_READ : KS_LEFT_ALONE;
        if (ks_read_header(p, (int64_t)there, left, &h)) return KS_LEFT_ALONE;
        w->before = h.size_bytes;
        enum ks_stop stop = ks_take_header(r, rows, n, &h, segment, p);
        if (stop != KS_AT_END) return stop;
    }
    return KS_AT_END;
}

/* ---- several threads -------------------------------------------------------------------------------------------

   A walk from header to header is one wait for memory after the other, so several walk at once, each from a position
   where the index says that a batch begins. They are believed as far as the walk before ended right there. */

typedef struct {
    ks_reader r;
    ks_vec rows;
    int64_t n;
    enum ks_stop stop;
} ks_headers_part;

typedef struct {
    ks_headers_part *parts;
    int64_t count, taken;
    int64_t segment;
} ks_headers_work;

static void ks_work_on_headers(void *context) {
    ks_headers_work *t = (ks_headers_work *)context;
    ks_headers_window window;
    for (;;) {
        int64_t i = __atomic_fetch_add(&t->taken, 1, __ATOMIC_RELAXED);
        if (i >= t->count) return;
        ks_headers_part *part = t->parts + i;
        window.before = INT32_MAX;
        part->stop = ks_read_headers(&part->r, &window, &part->rows, &part->n, t->segment);
    }
}

/* As ks_read_headers; `borders` are positions in [position, pause), rising, of which the first is `position`. */
static enum ks_stop ks_read_headers_together(ks_reader *r, ks_headers_window *w, ks_vec *rows, int64_t *n,
                                             int64_t segment, const int64_t *borders, int64_t count, int hands) {
    ks_headers_part *parts = count > 1 ? (ks_headers_part *)calloc((size_t)count, sizeof *parts) : NULL;
    if (parts) {
        ks_headers_work t = {parts, count, 0, segment};
        for (int64_t i = 0; i < count; i++) {
            parts[i].r = *r;
            parts[i].r.position = borders[i];
            parts[i].r.pause = i + 1 < count ? borders[i + 1] : r->pause;
        }
        ks_together(ks_work_on_headers, &t, hands - 1);
        int goes_on = 1;
        for (int64_t i = 0; i < count; i++) {
            ks_headers_part *part = parts + i;
            size_t used = (size_t)*n * sizeof(ks_header), more = (size_t)part->n * sizeof(ks_header);
            if (goes_on && r->position == borders[i] && part->r.position >= borders[i] &&
                !(more && ks_vec_reserve(rows, used, used + more))) {
                if (more) memcpy(rows->p + used, part->rows.p, more);
                *n += part->n;
                int64_t pause = r->pause, next = r->next_offset;
                *r = part->r;
                r->pause = pause;
                if (next > r->next_offset) r->next_offset = next;
            }
            goes_on = goes_on && part->stop == KS_AT_END;
            ks_vec_drop(&part->rows);
        }
        free(parts);
    }
    return ks_read_headers(r, w, rows, n, segment); /* what is left, and why */
}

/* One field of `n` rows, which lies `at` bytes into each and is `width` bytes wide. */
static void ks_pick_field(uint8_t *to, const ks_vec *rows, int64_t first, int64_t n, size_t at, size_t width) {
    const uint8_t *from = rows->p + (size_t)first * sizeof(ks_header) + at;
    for (int64_t i = 0; i < n; i++, to += width, from += sizeof(ks_header)) {
        if (width == 8) memcpy(to, from, 8);
        else if (width == 4) memcpy(to, from, 4);
        else if (width == 2) memcpy(to, from, 2);
        else *to = *from;
    }
}

#endif
