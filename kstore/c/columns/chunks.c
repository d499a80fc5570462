#include "columns/chunks.h"

#include "columns/crew.h"

void ks_chunks_forget(ks_chunks *a) {
    for (; a->next < a->n; a->next++) ks_rows_clear(&a->chunks[a->next].rows, 0);
    a->n = a->next = a->borders_n = 0;
}

void ks_chunks_drop(ks_chunks *a) {
    ks_chunks_forget(a);
    for (int i = 0; i < KS_MAX_CHUNKS; i++) {
        ks_block_drop(a->buffers[i].window);
        ks_block_drop(a->buffers[i].decompressed);
    }
    memset(a->buffers, 0, sizeof a->buffers);
}

int ks_take_chunk(ks_reader *r, ks_chunks *a) {
    if (a->next == a->n) return 0;
    ks_chunk *chunk = a->chunks + a->next;
    if (chunk->from != r->position) {
        ks_chunks_forget(a);
        return 0;
    }
    const ks_reader *c = &chunk->r;
    ks_rows rows = *r->out;
    *r->out = chunk->rows;
    chunk->rows = rows;
    a->next++;
    ks_follow(r, c);
    r->seen_bytes = c->seen_bytes;
    r->seen_decompressed = c->seen_decompressed;
    r->seen_rows = c->seen_rows;
    r->expected = 1;
    return 1;
}

static void ks_begin_chunk(const ks_reader *r, ks_chunk *chunk, int64_t from, int64_t to) {
    ks_reader *c = &chunk->r;
    ks_rows_clear(&chunk->rows, 0);
    ks_rows_like(&chunk->rows, r->out, 0);
    *c = *r;
    c->window = c->decompressed_block = NULL; /* those of the thread that reads the chunk */
    c->window_at = -1;                 /* it holds no part of the file; views may point at the bytes in it */
    c->window_size = c->decompressed_used = 0;
    c->decompressed = NULL;
    memset(&c->staged, 0, sizeof c->staged); /* not used: batches are whole */
    c->staged_from = c->staged_to = 0;
    c->out = &chunk->rows;
    c->whole_batches = 2;
    c->position = chunk->from = from;
    c->pause = c->ahead_end = to;
    c->bytes_ahead = to - from;
    c->ahead = KS_WINDOW;
    c->expected = 0;
    c->last_position = -1;
    c->min_base = c->first_base = INT64_MIN;
}

static void ks_read_chunk(ks_chunk *chunk, ks_thread_buffers *buffers) {
    ks_reader *c = &chunk->r;
    c->window = buffers->window;
    c->decompressed_block = buffers->decompressed;
    if (buffers->decompressed && __atomic_load_n(&buffers->decompressed->holders, __ATOMIC_ACQUIRE) > 1)
        c->decompressed_used = buffers->decompressed_used;
    chunk->stop = ks_read(c);
    buffers->window = c->window;
    buffers->decompressed = c->decompressed_block;
    buffers->decompressed_used = c->decompressed_used;
    c->window = c->decompressed_block = NULL;
}

static void ks_work_on_chunks(void *context) {
    ks_chunks *a = (ks_chunks *)context;
    ks_thread_buffers *buffers = a->buffers + __atomic_fetch_add(&a->threads_n, 1, __ATOMIC_RELAXED);
    for (;;) {
        int i = __atomic_fetch_add(&a->taken, 1, __ATOMIC_RELAXED);
        if (i >= a->n) return;
        ks_read_chunk(a->chunks + i, buffers);
    }
}

int ks_read_chunks(ks_reader *r, ks_chunks *a, int threads) {
    int first = 0, n = 0;
    while (first < a->borders_n && a->borders[first] < r->position) first++;
    if (first + 2 >= a->borders_n || a->borders[first] != r->position) return 0;
    int64_t limit = a->borders[a->borders_n - 1] < r->pause ? a->borders[a->borders_n - 1] : r->pause;
    int wanted = r->seen_decompressed > r->seen_bytes ? 2 * threads : threads;
    if (wanted > KS_MAX_CHUNKS) wanted = KS_MAX_CHUNKS;
    for (; n < wanted && first + n + 1 < a->borders_n && a->borders[first + n + 1] <= limit; n++)
        ks_begin_chunk(r, a->chunks + n, a->borders[first + n], a->borders[first + n + 1]);
    if (n < 2) return 0;
    a->n = n;
    a->taken = a->next = a->threads_n = 0;
    ks_crew_run(ks_work_on_chunks, a, (n < threads ? n : threads) - 1);
    int sound = 0;
    for (int goes_on = 1; sound < n && goes_on; sound++) {
        const ks_chunk *chunk = a->chunks + sound;
        if (chunk->rows.n == 0 || chunk->r.first_base < (sound ? chunk[-1].r.min_base : r->min_base)) break;
        goes_on = chunk->stop == KS_AT_END && sound + 1 < n && chunk->r.position == a->chunks[sound + 1].from;
    }
    for (int i = sound; i < n; i++) ks_rows_clear(&a->chunks[i].rows, 0);
    a->n = sound;
    if (sound < n) a->borders_n = 0; /* the borders were wrong: the caller gives new ones */
    return ks_take_chunk(r, a);
}

void ks_sample(ks_reader *r) {
    const int64_t max_bytes = r->max_bytes;
    const int whole_batches = r->whole_batches;
    r->max_bytes = 0; /* too little for any batch */
    r->whole_batches = 2;
    enum ks_stop stop = ks_read(r);
    r->max_bytes = max_bytes;
    r->whole_batches = whole_batches;
    const uint8_t *p = stop == KS_FULL ? ks_look(r, r->position, KS_RECORDS_AT) : NULL;
    if (!p) return;
    int64_t size = ks_batch_size(p), count = ks_load32(p + KS_RECORDS_COUNT_AT);
    int64_t decompressed = r->decompressed ? r->decompressed_end - r->decompressed : size - KS_RECORDS_AT;
    if (count > decompressed / 7 || ks_load64(p) < r->start_offset) return; /* no chunk begins amid a batch */
    r->seen_bytes = size;
    r->seen_decompressed = decompressed;
    r->seen_rows = count;
}

int ks_wants_borders(const ks_reader *r, const ks_chunks *a) {
    return a->next == a->n && r->seen_rows && r->staged_from == r->staged_to &&
           (a->borders_n < 2 || a->borders[a->borders_n - 1] <= r->position);
}
