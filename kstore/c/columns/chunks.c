#include "columns/chunks.h"

/* ---- one chunk -------------------------------------------------------------------------------------------------- */

static void ks_begin_chunk(const ks_chunks *a, ks_chunk *chunk, int64_t from, int64_t to) {
    ks_reader *c = &chunk->r;
    chunk->is_read = 0; /* before its rows change: a fork may happen in between */
    ks_rows_clear(&chunk->rows, 0);
    ks_rows_like(&chunk->rows, &a->like, 0);
    *c = a->model;
    c->window = c->decompressed_block = NULL; /* set later to the buffers of the thread that reads the chunk */
    c->window_at = -1;                 /* the window holds no part of the file; views may point into it */
    c->window_size = c->decompressed_used = 0;
    c->decompressed = NULL;
    c->unpack_slowly = NULL;           /* it would take the GIL, which a caller that waits for the chunk may hold */
    memset(&c->staged, 0, sizeof c->staged); /* not used: batches are whole */
    c->staged_from = c->staged_to = 0;
    c->out = &chunk->rows;
    c->whole_batches = 2;
    c->position = from;
    c->pause = c->ahead_end = chunk->to = to;
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

/* ---- chunks in slots -------------------------------------------------------------------------------------------- */

static int ks_has_slot(const ks_chunks *a) { return a->begun < a->count && a->begun < a->next + a->slots; }

/* Starts and reads a chunk; returns 0 if no chunk or no slot is left. Called with the lock; reads without it. */
static int ks_read_another(ks_chunks *a) {
    if (!ks_has_slot(a)) return 0;
    const int64_t *border = a->borders + a->first + a->begun;
    ks_chunk *chunk = a->chunks + a->begun++ % a->slots;
    ks_thread_buffers *buffers = a->buffers;
    ks_begin_chunk(a, chunk, border[0], border[1]);
    while (buffers->is_used) buffers++; /* there are at least as many buffers as slots */
    buffers->is_used = 1;
    pthread_mutex_unlock(&a->lock);
    ks_read_chunk(chunk, buffers);
    pthread_mutex_lock(&a->lock);
    buffers->is_used = 0;
    chunk->is_read = 1;
    pthread_cond_signal(&a->read);
    return 1;
}

static void ks_work_on_chunks(void *context) {
    ks_chunks *a = (ks_chunks *)context;
    pthread_mutex_lock(&a->lock);
    if (a->at_work < a->helpers) {
        a->at_work++;
        while (ks_read_another(a)) continue;
        a->at_work--;
    }
    pthread_mutex_unlock(&a->lock);
}

/* Called in a forked child: abandons the memory that helpers were using, which may be in any state. */
static void ks_lose(ks_chunks *a) {
    for (int i = 0; i < KS_MAX_CHUNKS; i++) {
        if (a->buffers[i].is_used) memset(a->buffers + i, 0, sizeof a->buffers[i]);
        if (!a->chunks[i].is_read) memset(&a->chunks[i].rows, 0, sizeof a->chunks[i].rows);
    }
    a->helps = 0;
}

void ks_chunks_forget(ks_chunks *a) {
    a->borders_n = 0;
    if (a->helps && ks_job_is_lost(&a->job)) ks_lose(a);
    if (a->helps) {
        pthread_mutex_lock(&a->lock);
        a->count = a->begun; /* no further chunk is started */
        pthread_mutex_unlock(&a->lock);
        ks_job_end(&a->job);
        pthread_mutex_destroy(&a->lock);
        pthread_cond_destroy(&a->read);
        a->helps = 0;
    }
    a->count = a->begun = a->next = 0;
    for (int i = 0; i < KS_MAX_CHUNKS; i++) ks_rows_clear(&a->chunks[i].rows, 0);
}

void ks_chunks_drop(ks_chunks *a) {
    ks_chunks_forget(a);
    for (int i = 0; i < KS_MAX_CHUNKS; i++) {
        ks_block_drop(a->buffers[i].window);
        ks_block_drop(a->buffers[i].decompressed);
    }
    memset(a->buffers, 0, sizeof a->buffers);
}

/* Waits for the next chunk, and reads others while it waits. */
static ks_chunk *ks_wait_for_chunk(ks_chunks *a) {
    ks_chunk *chunk = a->chunks + a->next % a->slots;
    pthread_mutex_lock(&a->lock);
    while (a->begun <= a->next || !chunk->is_read)
        if (!ks_read_another(a)) pthread_cond_wait(&a->read, &a->lock);
    pthread_mutex_unlock(&a->lock);
    return chunk;
}

/* Frees the slot of the chunk that was taken. */
static void ks_go_on(ks_chunks *a, const ks_mark *previous) {
    pthread_mutex_lock(&a->lock);
    a->next++;
    a->model.previous = *previous;
    int wanted = ks_has_slot(a) ? a->helpers - a->at_work : 0; /* helpers at work find the slot themselves */
    pthread_mutex_unlock(&a->lock);
    ks_job_ask(&a->job, wanted);
}

int ks_take_chunk(ks_reader *r, ks_chunks *a) {
    if (a->next == a->count) return 0;
    if (ks_job_is_lost(&a->job) || a->borders[a->first + a->next] != r->position) {
        ks_chunks_forget(a);
        return 0;
    }
    ks_chunk *chunk = ks_wait_for_chunk(a);
    const ks_reader *c = &chunk->r;
    if (chunk->rows.n == 0 || c->first_base < r->min_base) {
        ks_chunks_forget(a); /* the borders were wrong: the caller provides new ones */
        return 0;
    }
    int goes_on = chunk->stop == KS_AT_END && c->position == chunk->to;
    ks_mark previous = ks_rows_mark(&chunk->rows);
    ks_rows rows = *r->out;
    *r->out = chunk->rows;
    chunk->rows = rows;
    ks_follow(r, c);
    r->seen_bytes = c->seen_bytes;
    r->seen_decompressed = c->seen_decompressed;
    r->seen_rows = c->seen_rows;
    r->expected = 1;
    if (goes_on) ks_go_on(a, &previous); else ks_chunks_forget(a);
    return 1;
}

/* Sets up the state with which helpers read the chunks from borders[first] on. */
static void ks_set_up(ks_chunks *a, const ks_reader *r, int first, int count, int threads) {
    int slots = r->seen_decompressed > r->seen_bytes ? 2 * threads : threads;
    a->first = first;
    a->count = count;
    a->slots = slots < KS_MAX_CHUNKS ? slots : KS_MAX_CHUNKS;
    a->helpers = (count < threads ? count : threads) - 1;
    a->begun = a->next = a->at_work = 0;
    a->model = *r;
    ks_rows_like(&a->like, r->out, 0);
    ks_job_begin(&a->job, ks_work_on_chunks, a);
    pthread_mutex_init(&a->lock, NULL);
    pthread_cond_init(&a->read, NULL);
    a->helps = 1;
}

int ks_read_chunks(ks_reader *r, ks_chunks *a, int threads) {
    int first = 0, n = 0;
    while (first < a->borders_n && a->borders[first] < r->position) first++;
    if (first + 2 >= a->borders_n || a->borders[first] != r->position) return 0;
    while (first + n + 1 < a->borders_n && a->borders[first + n + 1] <= r->pause) n++;
    if (n < 2) return 0;
    if (a->helps) {
        int borders_n = a->borders_n; /* the helpers worked for earlier chunks, which have all been taken */
        ks_chunks_forget(a);
        a->borders_n = borders_n;
    }
    ks_set_up(a, r, first, n, threads);
    ks_job_ask(&a->job, a->helpers);
    return ks_take_chunk(r, a);
}

void ks_sample(ks_reader *r) {
    const int64_t max_bytes = r->max_bytes;
    const int whole_batches = r->whole_batches;
    r->max_bytes = 0; /* no batch fits, so that no row is built */
    r->whole_batches = 2;
    enum ks_stop stop = ks_read(r);
    r->max_bytes = max_bytes;
    r->whole_batches = whole_batches;
    const uint8_t *p = stop == KS_FULL ? ks_look(r, r->position, KS_RECORDS_AT) : NULL;
    if (!p) return;
    int64_t size = ks_batch_size(p), count = ks_load32(p + KS_RECORDS_COUNT_AT);
    int64_t decompressed = r->decompressed ? r->decompressed_end - r->decompressed : size - KS_RECORDS_AT;
    if (count > decompressed / 7 || ks_load64(p) < r->start_offset) return; /* no chunk starts inside a batch */
    r->seen_bytes = size;
    r->seen_decompressed = decompressed;
    r->seen_rows = count;
}

int ks_wants_borders(const ks_reader *r, const ks_chunks *a) {
    return a->next == a->count && !r->by_python && r->seen_rows && r->staged_from == r->staged_to &&
           (a->borders_n < 2 || a->borders[a->borders_n - 1] <= r->position);
}
