#include "columns/cells.h"

#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "columns/copy.h"
#include "columns/crew.h"

#if defined(__x86_64__) && defined(__GNUC__)
#include <emmintrin.h>
static inline void ks_pause(void) { _mm_pause(); }
#else
static inline void ks_pause(void) {}
#endif

#define KS_CELL ((int64_t)256 << 10)    /* fits the second-level cache together with its rows */
#define KS_VIEW_CELL ((int64_t)4 << 20) /* each cell becomes one buffer of views: large cells, few buffers */
#define KS_SPINS 1000                   /* how often a thread checks whether it is its turn before it sleeps */

typedef struct {
    ks_reader *r;
    int64_t from, to, cell, cells, spare; /* `spare`: space for a batch that extends past its cell */
    int headers_first;               /* if batches are large: reads headers first, then only the cell's batches */
    pthread_mutex_t lock;
    pthread_cond_t turned;
    int64_t taken;           /* how many cells threads have taken */
    int64_t chain, chain_at; /* the cell whose first batch is known, and the position of that batch */
    int64_t turn;            /* the cell whose rows are added next */
    int64_t last;            /* cells after this one are not read */
    int64_t cell_rows, cell_bytes; /* estimates for a decoded cell */
    int64_t key_nulls, value_nulls;
    int uncached;              /* the columns are so large that copies bypass the caches */
} ks_row_work;

typedef struct {
    ks_reader r;
    ks_rows rows;
    int32_t *buffers;        /* for views: the number that each of the cell's buffers has in the columns */
    int buffers_capacity;
} ks_cell;

/* Waits until `*cell` is `i`; returns 0 if cell `i` is no longer needed. */
static int ks_wait_turn(ks_row_work *t, const int64_t *cell, int64_t i) {
    for (int n = 0; n < KS_SPINS && __atomic_load_n(cell, __ATOMIC_RELAXED) != i; n++) ks_pause();
    pthread_mutex_lock(&t->lock);
    while (*cell != i && i <= t->last) pthread_cond_wait(&t->turned, &t->lock);
    int wanted = i <= t->last;
    pthread_mutex_unlock(&t->lock);
    return wanted;
}

static void ks_pass_turn(ks_row_work *t, int64_t *cell, int64_t i, int is_last) {
    pthread_mutex_lock(&t->lock);
    if (is_last && t->last > i) t->last = i;
    __atomic_store_n(cell, i + 1, __ATOMIC_RELAXED);
    pthread_cond_broadcast(&t->turned);
    pthread_mutex_unlock(&t->lock);
}

/* Follows the batches from `at` on. Returns where the first at or after `limit` starts; -1 if one is not sound. */
static int64_t ks_follow_chain(ks_reader *r, int64_t at, int64_t limit) {
    uint8_t frame[KS_CRC_AT];
    while (at < limit) {
        const uint8_t *p = frame;
        int64_t in_window = at - r->window_at;
        if (r->end - at < KS_RECORDS_AT) return -1;
        if (r->fd < 0)
            p = r->memory + at;
        else if (r->window && in_window >= 0 && in_window + KS_CRC_AT <= (int64_t)r->window_size)
            p = r->window->data + in_window;
        else if (ks_read_at(r->fd, frame, sizeof frame, at) != sizeof frame)
            return -1;
        int64_t size = ks_batch_size(p);
        if (p[KS_MAGIC_AT] != 2 || size < KS_RECORDS_AT || size > r->end - at) return -1;
        at += size;
    }
    return at;
}

/* Reserves the cell's rows in the columns, on the cell's turn; returns 0, or -1 without space. */
static int ks_take_place(ks_reader *r, ks_cell *c, ks_place *at) {
    ks_rows *out = r->out, *rows = &c->rows;
    if (c->r.first_base < r->min_base) return -1;
    if (c->r.last_position < 0 || rows->n > r->max_rows - out->n || rows->bytes > r->max_bytes - out->bytes) return -1;
    if (!ks_has_room(out, rows->n, rows->key.used, rows->value.used)) return -1;
    if (rows->buffers_n > c->buffers_capacity) {
        int32_t *buffers = (int32_t *)realloc(c->buffers, (size_t)rows->buffers_n * sizeof *buffers);
        if (!buffers) return -1;
        c->buffers = buffers;
        c->buffers_capacity = rows->buffers_n;
    }
    for (int i = 0; i < rows->buffers_n; i++) {
        int32_t number = c->buffers[i] = ks_rows_buffer(out, rows->buffers[i]);
        if (number < 0) return -1;
        if (out->extents[number] < rows->extents[i]) out->extents[number] = rows->extents[i];
    }
    memset(at, 0, sizeof *at);
    at->n = out->n;
    at->key_used = out->key.used;
    at->value_used = out->value.used;
    ks_clear_bits(&out->key, out->n, rows->n);
    ks_clear_bits(&out->value, out->n, rows->n);
    out->n += rows->n;
    out->bytes += rows->bytes;
    out->key.used += rows->key.used;
    out->value.used += rows->value.used;
    r->seen_bytes += c->r.seen_bytes;
    r->seen_decompressed += c->r.seen_decompressed;
    r->seen_rows += c->r.seen_rows;
    ks_follow(r, &c->r);
    return 0;
}

/* Copies the rows of a cell to their place. */
static void ks_fill_place(ks_row_work *t, const ks_cell *c, const ks_place *at) {
    ks_rows *out = t->r->out;
    const ks_rows *rows = &c->rows;
    for (int i = 0; i < KS_FIXED_COLUMNS; i++)
        if (out->wanted >> i & 1) {
            size_t width = ks_fixed_width[i];
            ks_copy_rows(out->fixed[i].p + (size_t)at->n * width, rows->fixed[i].p, (size_t)rows->n * width, t->uncached);
        }
    ks_copy_var(&out->key, at->n, at->key_used, &rows->key, rows->n, c->buffers, t->uncached);
    ks_copy_var(&out->value, at->n, at->value_used, &rows->value, rows->n, c->buffers, t->uncached);
    if (t->uncached) ks_copy_fence();
    __atomic_fetch_add(&t->key_nulls, rows->key.nulls, __ATOMIC_RELAXED);
    __atomic_fetch_add(&t->value_nulls, rows->value.nulls, __ATOMIC_RELAXED);
}

static void ks_begin_cell(const ks_reader *r, ks_cell *c) {
    c->r.start_offset = r->start_offset;
    c->r.last_wanted = r->last_wanted;
    c->r.max_rows = INT64_MAX;
    c->r.max_bytes = INT64_MAX;
    c->r.check_crc = r->check_crc;
    c->r.chained = r->chained;
    c->r.offset_limit = r->offset_limit;
    c->r.fd = r->fd;
    c->r.memory = r->memory;
    c->r.end = r->end;
    c->r.whole_batches = 2;
    c->r.expected = 1;
    c->r.keeps_decompressed = r->keeps_decompressed;
    c->r.max_decompressed = r->max_decompressed;
    c->r.unpack = r->unpack;
    c->r.unpack_slowly = r->unpack_slowly;
    c->r.context = r->context;
    c->r.out = &c->rows;
    if (r->fd < 0 && r->window) c->r.window = ks_block_hold(r->window); /* views may point anywhere into the memory */
    ks_rows_like(&c->rows, r->out, 0);
}

static void ks_work_on_rows(void *context) {
    ks_row_work *t = (ks_row_work *)context;
    ks_reader *r = t->r;
    ks_cell c;
    memset(&c, 0, sizeof c);
    ks_begin_cell(r, &c);
    if (ks_rows_reserve(&c.rows, t->cell_rows, t->cell_bytes)) /* not an error: the columns grow later */
        ks_rows_clear(&c.rows, 0);
    for (;;) {
        pthread_mutex_lock(&t->lock);
        int64_t i = t->taken < t->cells && t->taken <= t->last ? t->taken++ : -1;
        pthread_mutex_unlock(&t->lock);
        if (i < 0) break;
        int64_t begin = t->from + i * t->cell, limit = begin + t->cell < t->to ? begin + t->cell : t->to;
        int broken = 0;
        ks_rows_clear(&c.rows, 1);
        if (c.r.decompressed_block && __atomic_load_n(&c.r.decompressed_block->holders, __ATOMIC_ACQUIRE) == 1)
            c.r.decompressed_used = 0;
        c.r.seen_bytes = c.r.seen_decompressed = c.r.seen_rows = 0;
        if (r->fd >= 0) {
            if (t->headers_first) {
                c.r.window_size = 0;
            } else {
                c.r.ahead = (size_t)(limit - begin);
                c.r.ahead_end = limit;
                broken = ks_window_open(&c.r, begin, (size_t)(limit - begin + t->spare), 0);
                if (!broken) ks_look(&c.r, begin, 1);
            }
        }
        if (!ks_wait_turn(t, &t->chain, i)) break;
        int64_t position = t->chain_at, next = broken ? -1 : ks_follow_chain(&c.r, position, limit);
        t->chain_at = next;
        ks_pass_turn(t, &t->chain, i, next < 0);
        c.r.position = position;
        c.r.pause = c.r.ahead_end = next;
        c.r.ahead = KS_WINDOW;
        c.r.decompressed = NULL;
        c.r.last_position = -1;
        c.r.min_base = c.r.first_base = INT64_MIN;
        if (next > position) broken = ks_read(&c.r) != KS_AT_END || c.r.position != next;
        else broken = next < 0;
        if (!ks_wait_turn(t, &t->turn, i)) break;
        ks_place at;
        int placed = ks_take_place(r, &c, &at) == 0;
        ks_pass_turn(t, &t->turn, i, broken || (!placed && next > position));
        if (placed) ks_fill_place(t, &c, &at);
    }
    ks_rows_clear(&c.rows, 0);
    free(c.buffers);
    ks_block_drop(c.r.decompressed_block);
    ks_window_close(&c.r);
}

/* Reads the part of [position, pause) that is likely to fit; `ks_read` reads the rest. */
static void ks_read_cells(ks_reader *r, int threads) {
    int views = r->out->key.layout == KS_VIEWS || r->out->value.layout == KS_VIEWS;
    if (r->staged_from < r->staged_to || r->decompressed || !r->seen_rows || !r->expected || r->out->headers) return;
    /* The bytes of the file that fit, if further rows resemble those read so far. */
    double growth = (double)r->seen_decompressed / (double)r->seen_bytes;
    double density = (double)r->seen_rows / (double)r->seen_bytes;
    double room = (double)(r->max_bytes - r->out->bytes) / (growth > 1 ? growth * 1.05 : 1);
    double room_rows = (double)(r->max_rows - r->out->n) / (density * 1.05);
    if (room_rows < room) room = room_rows;
    int64_t to = r->pause;
    if ((double)(to - r->position) > room) to = r->position + (int64_t)room;
    int64_t size = KS_RECORDS_AT, cell = views ? KS_VIEW_CELL : KS_CELL;
    const uint8_t *p = to - r->position > cell ? ks_look(r, r->position, KS_RECORDS_AT) : NULL;
    if (!p) return;
    size = ks_batch_size(p);
    if (cell < size) cell = size;
    if (to - r->position < 2 * cell) return;
    ks_row_work t;
    memset(&t, 0, sizeof t);
    t.r = r;
    t.from = t.chain_at = r->position;
    t.to = to;
    t.cell = cell;
    t.cells = t.last = (to - t.from + cell - 1) / cell;
    t.headers_first = size > cell / 8;
    t.spare = 2 * size;
    t.cell_rows = (int64_t)(1.1 * density * (double)cell);
    t.cell_bytes = (int64_t)(1.1 * growth * (double)cell);
    t.uncached = r->out->value.data.capacity + r->out->key.data.capacity >= KS_UNCACHED_FROM;
    pthread_mutex_init(&t.lock, NULL);
    pthread_cond_init(&t.turned, NULL);
    if (threads > t.cells) threads = (int)t.cells;
    ks_crew_run(ks_work_on_rows, &t, threads - 1);
    pthread_mutex_destroy(&t.lock);
    pthread_cond_destroy(&t.turned);
    r->out->key.nulls += t.key_nulls;
    r->out->value.nulls += t.value_nulls;
}

enum ks_stop ks_read_threaded(ks_reader *r, int threads) {
    int64_t pause = r->pause, before;
    if (threads < 2 || r->aborted_n || r->kept) return ks_read(r); /* cells cannot skip batches or rows */
    do {
        before = r->position;
        if (pause - before < 2 * KS_CELL) return ks_read(r);
        r->pause = before + 1; /* reads the rest of a batch and one whole batch, to estimate the space */
        enum ks_stop stop = ks_read(r);
        r->pause = pause;
        if (stop != KS_AT_END) return stop;
        if (!r->expected) continue; /* only a part of a batch was read, which yields no estimate */
        before = r->position;
        ks_read_cells(r, threads);
    } while (r->position > before);
    return ks_read(r);
}
