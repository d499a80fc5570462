/* A long stretch of a file read by several threads, in order.

   The stretch is divided into cells of equal size. Whoever takes a cell reads its bytes; then, one after the other, each
   finds out which batches begin in its cell, from where the one before it left the chain of batches; then decodes them
   into rows of its own; and then, one after the other again, adds its rows to the columns. What is not sound, or would
   be too much, ends the work there: `ks_read` goes on from that place and says what it is. Nothing here knows Python. */
#ifndef KSTORE_TOGETHER_H
#define KSTORE_TOGETHER_H

#include "columnread.h"
#include "helpers.h"

#define KS_CELL ((int64_t)512 << 10)    /* with its rows it stays in the second-level cache */
#define KS_VIEW_CELL ((int64_t)4 << 20) /* what views point into is kept, and counted in few buffers */
#define KS_CELL_BATCHES 4               /* so many batches at least, or too much would be read twice */

typedef struct {
    ks_reader *r;
    int64_t from, to, cell, cells;
    int apart;               /* batches are so large that their headers are read first, and cells exactly */
    pthread_mutex_t lock;
    pthread_cond_t moved;
    int64_t taken;           /* cells that somebody has taken */
    int64_t chain, chain_at; /* the cell whose first batch is known, and where that is */
    int64_t turn;            /* the cell whose rows come next */
    int64_t last;            /* cells behind this one are not wanted */
} ks_row_work;

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
        if (r->window && in_window >= 0 && in_window + KS_AT_CRC <= (int64_t)r->window_size)
            p = r->window->data + in_window;
        else if (pread(r->fd, frame, sizeof frame, at) != sizeof frame)
            return -1;
        int64_t size = KS_FRAME + (int64_t)ks_size(p);
        if (p[KS_AT_MAGIC] != 2 || size < KS_AT_RECORDS || size > r->end - at) return -1;
        at += size;
    }
    return at;
}

/* Adds the rows of a cell, whose batches have `size` bytes; 0 if all of it has been used and more may follow. */
static int ks_add_cell(ks_reader *r, ks_reader *cell, enum ks_stop stop, int64_t size) {
    ks_rows *rows = cell->out;
    if (rows->n > r->most_rows - r->out->n || rows->bytes > r->most_bytes - r->out->bytes) return -1;
    if (rows->n && ks_rows_take(r->out, rows, 0, rows->n, rows->bytes)) return -1;
    if (rows->n && !r->expected) ks_expect(r, rows->bytes, size);
    r->seen_bytes += size;
    r->seen_plain += rows->bytes;
    r->seen_rows += rows->n;
    r->position = cell->position;
    r->next_offset = cell->next_offset > r->next_offset ? cell->next_offset : r->next_offset;
    if (cell->last_position >= 0) {
        r->last_position = cell->last_position;
        r->last_base = cell->last_base;
        r->last_crc = cell->last_crc;
        memcpy(r->last_header, cell->last_header, sizeof r->last_header);
    }
    return stop == KS_AT_END ? 0 : -1;
}

static void ks_work_on_rows(void *context) {
    ks_row_work *t = (ks_row_work *)context;
    ks_reader *r = t->r, cell;
    ks_rows rows;
    memset(&cell, 0, sizeof cell);
    memset(&rows, 0, sizeof rows);
    ks_rows_like(&rows, r->out, 0);
    ks_rows_like(&cell.staged, r->out, 1);
    cell.out = &rows;
    cell.start_offset = r->start_offset;
    cell.last_wanted = r->last_wanted;
    cell.most_rows = cell.most_bytes = INT64_MAX;
    cell.check_crc = r->check_crc;
    cell.fd = r->fd;
    cell.expected = 1;
    cell.most_plain = r->most_plain;
    cell.unpack = r->unpack;
    cell.unpack_context = r->unpack_context;
    int views = rows.key.layout == KS_VIEW || rows.value.layout == KS_VIEW;
    for (;;) {
        pthread_mutex_lock(&t->lock);
        int64_t i = t->taken < t->cells && t->taken <= t->last ? t->taken++ : -1;
        pthread_mutex_unlock(&t->lock);
        if (i < 0) break;
        int64_t begin = t->from + i * t->cell, limit = begin + t->cell < t->to ? begin + t->cell : t->to;
        cell.end = limit;
        cell.error = 0;
        ks_rows_clear(&rows, !views);
        if (!t->apart) {
            cell.ahead = (size_t)(limit - begin);
            ks_window_restart(&cell, begin);
            ks_look(&cell, begin, 1);
        }
        if (!ks_wait_turn(t, &t->chain, i)) break;
        cell.position = t->chain_at;
        cell.end = r->end;
        int64_t from = cell.position, next = ks_follow_chain(&cell, from, limit);
        t->chain_at = next;
        ks_pass_turn(t, &t->chain, i, next < 0);
        cell.end = next < 0 ? r->end : next;
        cell.pause = next < 0 ? limit : next;
        cell.next_offset = r->start_offset;
        cell.last_position = -1;
        cell.staged_from = cell.staged_to = 0;
        cell.ahead = t->apart ? (size_t)t->cell : KS_FIRST_LOOK;
        enum ks_stop stop = ks_read(&cell);
        if (!ks_wait_turn(t, &t->turn, i)) break;
        ks_pass_turn(t, &t->turn, i, ks_add_cell(r, &cell, stop, cell.position - from));
    }
    ks_rows_clear(&rows, 0);
    ks_rows_clear(&cell.staged, 0);
    ks_block_drop(cell.plain_block);
    ks_window_close(&cell);
}

/* Reads as much of [position, pause) as is likely not to be too much; what is left, is left to `ks_read`. */
static void ks_read_cells(ks_reader *r, int hands) {
    int views = r->out->key.layout == KS_VIEW || r->out->value.layout == KS_VIEW;
    if (hands < 2 || r->fd < 0 || r->staged_from < r->staged_to || r->plain || !r->seen_rows) return;
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
    pthread_mutex_init(&t.lock, NULL);
    pthread_cond_init(&t.moved, NULL);
    if (hands > t.cells) hands = (int)t.cells;
    ks_together(ks_work_on_rows, &t, hands - 1);
    pthread_mutex_destroy(&t.lock);
    pthread_cond_destroy(&t.moved);
}

/* As `ks_read`, with so many threads where there is enough to do. */
static enum ks_stop ks_read_together(ks_reader *r, int hands) {
    int64_t pause = r->pause;
    if (hands > 1 && r->fd >= 0 && pause - r->position > 2 * KS_CELL) {
        r->pause = r->position + !r->seen_rows; /* rows that are left of a batch; the first batch, to see what it is like */
        enum ks_stop stop = ks_read(r);
        r->pause = pause;
        if (stop != KS_AT_END) return stop;
        ks_read_cells(r, hands);
    }
    return ks_read(r);
}

#endif
