#include "columns/batchtable.h"

#include <stdlib.h>

#include "columns/crew.h"

#define KS_CLOSE_BYTES 2048

int ks_read_header(const uint8_t *p, int64_t n, int64_t left, ks_header *h) {
    memset(h, 0, sizeof *h);
    if (n < KS_LOG_OVERHEAD + KS_MIN_V0_MESSAGE) return -1;
    int64_t size = ks_batch_size(p);
    h->magic = (int8_t)p[KS_MAGIC_AT];
    if (h->magic < 0 || h->magic > 2 || size > left) return -1;
    if (size < (h->magic == 2 ? KS_RECORDS_AT
                              : KS_LOG_OVERHEAD + (h->magic ? KS_MIN_V1_MESSAGE : KS_MIN_V0_MESSAGE))) return -1;
    h->size_bytes = (int32_t)size;
    if (size > INT32_MAX) return -1;
    if (h->magic < 2) {
        uint8_t attributes = p[KS_LEGACY_ATTRIBUTES_AT];
        h->compression = attributes & KS_CODEC_MASK;
        h->last_offset = ks_load64(p);
        h->base_offset = h->compression ? -1 : h->last_offset; /* a wrapper's first offset is in the compressed data */
        h->count = h->compression ? -1 : 1;
        h->crc = (uint32_t)ks_load32(p + KS_LEGACY_CRC_AT);
        h->base_timestamp = h->max_timestamp = h->magic ? ks_load64(p + KS_LEGACY_TIMESTAMP_AT) : -1;
        h->timestamp_type = h->magic ? (attributes & KS_TIMESTAMP_TYPE_BIT) != 0 : -1;
        h->producer_id = h->producer_epoch = -1;
        h->partition_leader_epoch = h->base_sequence = -1;
        h->delete_horizon_ms = -1;
        return 0;
    }
    if (n < KS_RECORDS_AT) return -1;
    int16_t attributes = ks_load16(p + KS_ATTRIBUTES_AT);
    h->base_offset = ks_load64(p);
    h->last_offset = ks_last_offset(p);
    h->count = ks_load32(p + KS_RECORDS_COUNT_AT);
    h->crc = (uint32_t)ks_load32(p + KS_CRC_AT);
    h->compression = attributes & KS_CODEC_MASK;
    h->timestamp_type = (attributes & KS_TIMESTAMP_TYPE_BIT) != 0;
    h->is_transactional = (attributes & KS_TRANSACTIONAL_BIT) != 0;
    h->is_control = (attributes & KS_CONTROL_BIT) != 0;
    h->base_timestamp = ks_load64(p + KS_BASE_TIMESTAMP_AT);
    h->max_timestamp = ks_load64(p + KS_MAX_TIMESTAMP_AT);
    h->delete_horizon_ms = attributes & KS_DELETE_HORIZON_BIT ? h->base_timestamp : -1;
    h->producer_id = ks_load64(p + KS_PRODUCER_ID_AT);
    h->producer_epoch = ks_load16(p + KS_PRODUCER_EPOCH_AT);
    h->base_sequence = ks_load32(p + KS_BASE_SEQUENCE_AT);
    h->partition_leader_epoch = ks_load32(p + KS_LEADER_EPOCH_AT);
    return 0;
}

enum ks_stop ks_take_header(ks_reader *r, ks_vec *rows, int64_t *n, ks_header *h, int64_t segment,
                            const uint8_t *p) {
    if (h->magic == 2 && h->base_offset > r->last_wanted) return KS_PAST;
    if (h->last_offset < r->start_offset) {
        ks_passed(r, p, h->size_bytes);
        return KS_AT_END;
    }
    if (h->magic < 2 && h->base_offset > r->last_wanted) return KS_PAST;
    if (r->aborted_n && ks_is_aborted(r->aborted, r->aborted_n, p)) {
        ks_passed(r, p, h->size_bytes);
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

static enum ks_stop ks_read_headers(ks_reader *r, ks_headers_memory *m, ks_vec *rows, int64_t *n, int64_t segment) {
    ks_header h;
    ks_window w; /* a new window: the file may have been truncated and rewritten */
    ks_window_on(&w, r->fd, r->end, m->data, KS_HEADERS_WINDOW);
    while (r->position < r->pause) {
        int64_t left = r->end - r->position;
        ptrdiff_t size = left < KS_RECORDS_AT ? (ptrdiff_t)left : KS_RECORDS_AT;
        w.ahead = m->before < KS_CLOSE_BYTES ? KS_HEADERS_WINDOW : size;
        const uint8_t *p = ks_window_at(&w, r->position, size);
        r->error = w.error;
        if (!p) return r->error ? KS_FAILED_READ : KS_LEFT_ALONE;
        if (ks_read_header(p, size, left, &h)) return KS_LEFT_ALONE;
        /* If the format changes, the whole batch is checked: the CRC of format 2 does not cover the magic. */
        if ((r->chained && h.magic != r->magic) || (h.magic == 2 ? !ks_fits(r, p, h.size_bytes) : !ks_fits_in(r, p, h.size_bytes)))
            return KS_LEFT_ALONE;
        m->before = h.size_bytes;
        enum ks_stop stop = ks_take_header(r, rows, n, &h, segment, p);
        if (stop != KS_AT_END) return stop;
    }
    return KS_AT_END;
}

/* ---- several threads -------------------------------------------------------------------------------------------

   A thread that reads headers waits for memory at each header. So several threads read in parallel, each from a
   position in the index. A thread's part is used only if the part before it ended where this part starts. */

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
    ks_headers_memory memory;
    for (;;) {
        int64_t i = __atomic_fetch_add(&t->taken, 1, __ATOMIC_RELAXED);
        if (i >= t->count) return;
        ks_headers_part *part = t->parts + i;
        memory.before = INT32_MAX;
        part->stop = ks_read_headers(&part->r, &memory, &part->rows, &part->n, t->segment);
    }
}

enum ks_stop ks_read_headers_threaded(ks_reader *r, ks_headers_memory *m, ks_vec *rows, int64_t *n,
                                      int64_t segment, const int64_t *borders, int64_t count, int threads) {
    ks_headers_part *parts = count > 1 ? (ks_headers_part *)calloc((size_t)count, sizeof *parts) : NULL;
    if (parts) {
        ks_headers_work t = {parts, count, 0, segment};
        for (int64_t i = 0; i < count; i++) {
            parts[i].r = *r;
            parts[i].r.position = borders[i];
            if (i) parts[i].r.min_base = parts[i].r.first_base = INT64_MIN;
            parts[i].r.pause = i + 1 < count ? borders[i + 1] : r->pause;
        }
        ks_crew_run(ks_work_on_headers, &t, threads - 1);
        int goes_on = 1;
        for (int64_t i = 0; i < count; i++) {
            ks_headers_part *part = parts + i;
            size_t used = (size_t)*n * sizeof(ks_header), more = (size_t)part->n * sizeof(ks_header);
            if (goes_on && r->position == borders[i] && part->r.position >= borders[i] &&
                (i == 0 || part->r.first_base >= r->min_base) && !(more && ks_vec_reserve(rows, used, used + more))) {
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
    return ks_read_headers(r, m, rows, n, segment); /* reads the rest, and returns why it stopped */
}

void ks_pick_field(uint8_t *to, const ks_vec *rows, int64_t first, int64_t n, size_t at, size_t width) {
    const uint8_t *from = rows->p + (size_t)first * sizeof(ks_header) + at;
    for (int64_t i = 0; i < n; i++, to += width, from += sizeof(ks_header)) {
        if (width == 8) memcpy(to, from, 8);
        else if (width == 4) memcpy(to, from, 4);
        else if (width == 2) memcpy(to, from, 2);
        else *to = *from;
    }
}
