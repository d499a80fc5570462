/* A long stretch of a file, or of memory, read by several threads, in order.

   The stretch is divided into cells of equal size. Whoever takes a cell reads its bytes; then, one after the other, each
   finds out which batches begin in its cell, from where the one before it left the chain of batches; then checks,
   decompresses and measures them; and then, one after the other again, takes the place in the columns that they need,
   and decodes them there while the next one does the same. What is not sound, not regular, or would be too much, ends
   the work there: `ks_read` goes on from that place and says what it is. Nothing here knows Python. */
#ifndef KSTORE_TOGETHER_H
#define KSTORE_TOGETHER_H

#include "columnread.h"
#include "helpers.h"

#define KS_CELL ((int64_t)512 << 10)    /* with its rows it stays in the second-level cache */
#define KS_VIEW_CELL ((int64_t)4 << 20) /* what views point into is kept, and counted in few buffers */
#define KS_CELL_BATCHES 4               /* so many batches at least, or too much would be read twice */

typedef struct {
    ks_reader *r;
    int64_t from, to, cell, cells, spare; /* spare: room for a batch that goes on behind its cell */
    int apart;               /* batches are so large that their headers are read first, and cells exactly */
    pthread_mutex_t lock;
    pthread_cond_t moved;
    int64_t taken;           /* cells that somebody has taken */
    int64_t chain, chain_at; /* the cell whose first batch is known, and where that is */
    int64_t turn;            /* the cell whose rows come next */
    int64_t last;            /* cells behind this one are not wanted */
    int64_t key_nulls, value_nulls;
} ks_row_work;

/* The batches of a cell whose records are to become rows. */
typedef struct {
    ks_reader r;             /* its window and its decompressed records are used, nothing else */
    ks_batch *batches;
    int n, capacity;
    int64_t rows, bytes, key_bytes, value_bytes;
    const uint8_t *last;     /* the last batch that has been looked at, NULL for none */
    int64_t last_position, end_position, next_offset;
} ks_cell;

/* Waits until `*cell` is `i`; 0 if that is no longer wanted. */
static int ks_wait_turn(ks_row_work *t, const int64_t *cell, int64_t i) {
    pthread_mutex_lock(&t->lock);
    while (*cell != i && i <= t->last) pthread_cond_wait(&t->moved, &t->lock);
    int wanted = i <= t->last;
    pthread_mutex_unlock(&t->lock);
    return wanted;
}

static void ks_pass_turn(ks_row_work *t, int64_t *cell, int64_t i, int is_last) {
    pthread_mutex_lock(&t->lock);
    if (is_last && t->last > i) t->last = i;
    *cell = i + 1;
    pthread_cond_broadcast(&t->moved);
    pthread_mutex_unlock(&t->lock);
}

/* Where the first batch that begins at or behind `limit` does, from the one at `at` on; -1 where the chain breaks. */
static int64_t ks_follow_chain(ks_reader *r, int64_t at, int64_t limit) {
    uint8_t frame[KS_AT_CRC];
    while (at < limit) {
        const uint8_t *p = frame;
        int64_t in_window = at - r->window_at;
        if (r->end - at < KS_AT_RECORDS) return -1;
        if (r->fd < 0)
            p = r->memory + at;
        else if (r->window && in_window >= 0 && in_window + KS_AT_CRC <= (int64_t)r->window_size)
            p = r->window->data + in_window;
        else if (pread(r->fd, frame, sizeof frame, at) != sizeof frame)
            return -1;
        int64_t size = KS_FRAME + (int64_t)ks_size(p);
        if (p[KS_AT_MAGIC] != 2 || size < KS_AT_RECORDS || size > r->end - at) return -1;
        at += size;
    }
    return at;
}

/* Looks at the batch at `p`, of which `left` bytes may be its own: 0 if it is part of the cell now, or -1. */
static int ks_enter_batch(ks_reader *r, ks_cell *c, const uint8_t *p, int64_t position, int64_t left) {
    int64_t size = KS_FRAME + (int64_t)ks_size(p);
    if (size < KS_AT_RECORDS || size > left || p[KS_AT_MAGIC] != 2) return -1; /* not what the chain had seen here */
    if (c->n == c->capacity) {
        int capacity = c->capacity ? 2 * c->capacity : 64;
        ks_batch *batches = (ks_batch *)realloc(c->batches, (size_t)capacity * sizeof *batches);
        if (!batches) return -1;
        c->batches = batches;
        c->capacity = capacity;
    }
    ks_batch *b = c->batches + c->n;
    ks_describe(p, b);
    b->p = p + KS_AT_RECORDS;
    b->end = p + size;
    if (!ks_has_regular_offsets(b)) return -1;
    if (r->check_crc &&
        ks_crc32c(0, p + KS_AT_ATTRIBUTES, (size_t)(size - KS_AT_ATTRIBUTES)) != (uint32_t)ks_get32(p + KS_AT_CRC))
        return -1;
    int64_t last_offset = b->base_offset + b->last_delta;
    if (b->base_offset < r->start_offset || last_offset > r->last_wanted) return -1; /* not all of it */
    if (b->count > 0 && !(ks_get16(p + KS_AT_ATTRIBUTES) & 0x20)) {
        b->block = c->r.window;
        if (b->compression) {
            if (ks_unpack(&c->r, p, size)) return -1;
            b->p = c->r.plain;
            b->end = c->r.plain_end;
            b->block = c->r.plain_block;
        }
        if (!ks_is_regular(b) || ks_measure(b) != KS_DECODED) return -1;
        if (b->compression) c->r.plain_used = (size_t)(b->end - b->block->data);
        b->safe = b->block->data + b->block->capacity + KS_SLACK;
        ks_block_hold(b->block);
        c->n++;
        c->rows += b->count;
        c->bytes += b->end - b->p;
        c->key_bytes += b->key_bytes;
        c->value_bytes += b->value_bytes;
    }
    c->last = p;
    c->last_position = position;
    c->end_position = position + size;
    c->next_offset = last_offset + 1;
    return 0;
}

/* Takes the place that the cell needs in the columns; 0 if it is there, or -1. It is this cell's turn. */
static int ks_take_place(ks_reader *r, ks_cell *c, ks_place *at) {
    ks_rows *out = r->out;
    if (!c->last || c->rows > r->most_rows - out->n || c->bytes > r->most_bytes - out->bytes) return -1;
    if (!ks_has_room(out, c->rows, c->key_bytes, c->value_bytes)) return -1;
    for (int i = 0; i < c->n; i++)
        if (ks_buffer_of(c->batches + i, out) < 0) return -1;
    ks_place place = {out->n, out->key.used, out->value.used, 0, 0, 0, 1, 0, 0, 0, 0, NULL};
    *at = place;
    ks_clear_bits(&out->key, out->n, c->rows);
    ks_clear_bits(&out->value, out->n, c->rows);
    out->n += c->rows;
    out->bytes += c->bytes;
    out->key.used += c->key_bytes;
    out->value.used += c->value_bytes;
    r->seen_bytes += c->end_position - r->position;
    r->seen_plain += c->bytes;
    r->seen_rows += c->rows;
    r->position = c->last_position;
    ks_used_up(r, c->last, c->end_position - c->last_position);
    r->next_offset = c->next_offset;
    return 0;
}

/* Decodes the batches of a cell in their place: their number among the buffers of views is known by now. */
static void ks_fill_place(ks_row_work *t, ks_cell *c, ks_place *at) {
    ks_rows *out = t->r->out;
    int64_t keys_left = c->key_bytes, values_left = c->value_bytes;
    for (int i = 0; i < c->n; i++) {
        ks_batch *b = c->batches + i;
        keys_left -= b->key_bytes;
        values_left -= b->value_bytes;
        at->buffer = b->buffer;
        at->key_exact = keys_left < KS_SLACK; /* what follows is another's */
        at->value_exact = values_left < KS_SLACK;
        if (ks_decode_at(b, out, at) != KS_DECODED) abort(); /* it has been measured, in memory that is only ours */
    }
    __atomic_fetch_add(&t->key_nulls, c->rows - at->key_valid, __ATOMIC_RELAXED);
    __atomic_fetch_add(&t->value_nulls, c->rows - at->value_valid, __ATOMIC_RELAXED);
}

static void ks_empty_cell(ks_cell *c) {
    for (int i = 0; i < c->n; i++) ks_block_drop(c->batches[i].block);
    c->n = 0;
    c->rows = c->bytes = c->key_bytes = c->value_bytes = 0;
    c->last = NULL;
    if (c->r.plain_block && __atomic_load_n(&c->r.plain_block->holders, __ATOMIC_ACQUIRE) == 1) c->r.plain_used = 0;
}

static void ks_work_on_rows(void *context) {
    ks_row_work *t = (ks_row_work *)context;
    ks_reader *r = t->r;
    ks_rows like;
    ks_cell c;
    memset(&c, 0, sizeof c);
    memset(&like, 0, sizeof like);
    ks_rows_like(&like, r->out, 0);
    c.r.out = &like;
    c.r.fd = r->fd;
    c.r.memory = r->memory;
    c.r.copies = c.r.keeps_plain = 1;
    c.r.most_plain = r->most_plain;
    c.r.unpack = r->unpack;
    c.r.unpack_context = r->unpack_context;
    for (;;) {
        pthread_mutex_lock(&t->lock);
        int64_t i = t->taken < t->cells && t->taken <= t->last ? t->taken++ : -1;
        pthread_mutex_unlock(&t->lock);
        if (i < 0) break;
        int64_t begin = t->from + i * t->cell, limit = begin + t->cell < t->to ? begin + t->cell : t->to;
        ks_empty_cell(&c);
        c.r.end = r->end;
        c.r.ahead = (size_t)(limit - begin);
        int broken = ks_window_open(&c.r, begin, (size_t)(limit - begin + t->spare), 0);
        if (!broken && !t->apart) ks_look(&c.r, begin, 1);
        if (!ks_wait_turn(t, &t->chain, i)) break;
        int64_t position = t->chain_at, next = broken ? -1 : ks_follow_chain(&c.r, position, limit);
        t->chain_at = next;
        ks_pass_turn(t, &t->chain, i, next < 0);
        c.r.ahead = 0;
        const uint8_t *p = NULL, *q;
        if (next > position) p = ks_look(&c.r, position, (size_t)(next - position));
        broken = next < 0 || (next > position && !p);
        for (q = p; !broken && position + (q - p) < next; q += KS_FRAME + (int64_t)ks_size(q))
            broken = ks_enter_batch(r, &c, q, position + (q - p), next - position - (q - p));
        if (!ks_wait_turn(t, &t->turn, i)) break;
        ks_place at;
        int placed = c.last && ks_take_place(r, &c, &at) == 0;
        ks_pass_turn(t, &t->turn, i, broken || (!placed && c.last));
        if (placed) ks_fill_place(t, &c, &at);
    }
    ks_empty_cell(&c);
    free(c.batches);
    ks_block_drop(c.r.plain_block);
    ks_window_close(&c.r);
}

/* Reads as much of [position, pause) as is likely not to be too much; what is left, is left to `ks_read`. */
static void ks_read_cells(ks_reader *r, int hands) {
    int views = r->out->key.layout == KS_VIEW || r->out->value.layout == KS_VIEW;
    if (r->staged_from < r->staged_to || r->plain || !r->seen_rows || !r->expected || r->out->headers) return;
    /* How much of the file fits, by what the rows so far took of it. */
    double growth = (double)r->seen_plain / (double)r->seen_bytes, density = (double)r->seen_rows / (double)r->seen_bytes;
    double room = (double)(r->most_bytes - r->out->bytes) / (growth > 1 ? growth * 1.05 : 1);
    double room_rows = (double)(r->most_rows - r->out->n) / (density * 1.05);
    if (room_rows < room) room = room_rows;
    int64_t to = r->pause;
    if ((double)(to - r->position) > room) to = r->position + (int64_t)room;
    int64_t size = KS_AT_RECORDS, cell = views ? KS_VIEW_CELL : KS_CELL;
    const uint8_t *p = to - r->position > cell ? ks_look(r, r->position, KS_AT_RECORDS) : NULL;
    if (!p) return;
    size = KS_FRAME + (int64_t)ks_size(p);
    if (cell < KS_CELL_BATCHES * size) cell = KS_CELL_BATCHES * size;
    if (to - r->position < 2 * cell) return;
    ks_row_work t;
    memset(&t, 0, sizeof t);
    t.r = r;
    t.from = t.chain_at = r->position;
    t.to = to;
    t.cell = cell;
    t.cells = t.last = (to - t.from + cell - 1) / cell;
    t.apart = size > cell / 8;
    t.spare = 2 * size;
    pthread_mutex_init(&t.lock, NULL);
    pthread_cond_init(&t.moved, NULL);
    if (hands > t.cells) hands = (int)t.cells;
    ks_together(ks_work_on_rows, &t, hands - 1);
    pthread_mutex_destroy(&t.lock);
    pthread_cond_destroy(&t.moved);
    r->out->key.nulls += t.key_nulls;
    r->out->value.nulls += t.value_nulls;
}

/* As `ks_read`, with so many threads where there is enough to do. */
static enum ks_stop ks_read_together(ks_reader *r, int hands) {
    int64_t pause = r->pause, before;
    if (hands < 2) return ks_read(r);
    do {
        before = r->position;
        if (pause - before < 2 * KS_CELL) return ks_read(r);
        r->pause = before + 1; /* rows that are left of a batch, and one batch: for it, room is made */
        enum ks_stop stop = ks_read(r);
        r->pause = pause;
        if (stop != KS_AT_END) return stop;
        before = r->position;
        ks_read_cells(r, hands);
    } while (r->position > before);
    return ks_read(r);
}

#endif
