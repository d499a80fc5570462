/* Several chunks of columns at once, each by one thread from its first batch to its last.

   A thread that has its rows to itself measures nothing, waits for nobody, and keeps what it writes in its own cache.
   Where the chunks begin is somebody's guess (the index's); a chunk is believed as far as the one before it ended right
   there, and waits until it is wanted. What is not sound or not wanted as a whole ends a chunk: `ks_read` goes on from
   there and says what it is. Nothing here knows Python. */
#ifndef KSTORE_CHUNKS_H
#define KSTORE_CHUNKS_H

#include "together.h"

#define KS_MOST_CHUNKS 16
#define KS_MOST_BORDERS 64

typedef struct {
    ks_reader r; /* begins as a copy of whose chunk it is; where it has got to is where that one will be */
    ks_rows rows;
    int64_t from;
    enum ks_stop stop;
} ks_chunk;

/* What a thread reads and decompresses into, for one chunk after the other. */
typedef struct {
    ks_block *window, *plain;
    size_t plain_used; /* views of earlier chunks may point at what is before */
} ks_hand;

typedef struct {
    ks_chunk chunks[KS_MOST_CHUNKS];
    int n, next;                       /* chunks that have been read, and the one that comes next */
    int taken;
    ks_hand hands[KS_MOST_CHUNKS];
    int hands_n;                       /* those in use */
    int64_t borders[KS_MOST_BORDERS];  /* where chunks begin, and the last one ends; they rise */
    int borders_n;
} ks_ahead;

static void ks_ahead_forget(ks_ahead *a) {
    for (; a->next < a->n; a->next++) ks_rows_clear(&a->chunks[a->next].rows, 0);
    a->n = a->next = a->borders_n = 0;
}

static void ks_ahead_drop(ks_ahead *a) {
    ks_ahead_forget(a);
    for (int i = 0; i < KS_MOST_CHUNKS; i++) {
        ks_block_drop(a->hands[i].window);
        ks_block_drop(a->hands[i].plain);
    }
    memset(a->hands, 0, sizeof a->hands);
}

/* Takes the chunk that begins where `r` is, if it waits; whether it did. `r` has no rows. */
static int ks_take_chunk(ks_reader *r, ks_ahead *a) {
    if (a->next == a->n) return 0;
    ks_chunk *chunk = a->chunks + a->next;
    if (chunk->from != r->position) {
        ks_ahead_forget(a);
        return 0;
    }
    const ks_reader *c = &chunk->r;
    ks_rows rows = *r->out;
    *r->out = chunk->rows;
    chunk->rows = rows;
    a->next++;
    ks_follow(r, c);
    r->seen_bytes = c->seen_bytes;
    r->seen_plain = c->seen_plain;
    r->seen_rows = c->seen_rows;
    r->expected = 1;
    return 1;
}

static void ks_begin_chunk(const ks_reader *r, ks_chunk *chunk, int64_t from, int64_t to) {
    ks_reader *c = &chunk->r;
    ks_rows_clear(&chunk->rows, 0);
    ks_rows_like(&chunk->rows, r->out, 0);
    *c = *r;
    c->window = c->plain_block = NULL; /* a hand's, while it works on the chunk */
    c->window_at = -1;                 /* nothing of the file is in it; views may point at what is */
    c->window_size = c->plain_used = 0;
    c->plain = NULL;
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
}

static void ks_read_chunk(ks_chunk *chunk, ks_hand *hand) {
    ks_reader *c = &chunk->r;
    c->window = hand->window;
    c->plain_block = hand->plain;
    if (hand->plain && __atomic_load_n(&hand->plain->holders, __ATOMIC_ACQUIRE) > 1) c->plain_used = hand->plain_used;
    chunk->stop = ks_read(c);
    hand->window = c->window;
    hand->plain = c->plain_block;
    hand->plain_used = c->plain_used;
    c->window = c->plain_block = NULL;
}

static void ks_work_on_chunks(void *context) {
    ks_ahead *a = (ks_ahead *)context;
    ks_hand *hand = a->hands + __atomic_fetch_add(&a->hands_n, 1, __ATOMIC_RELAXED);
    for (;;) {
        int i = __atomic_fetch_add(&a->taken, 1, __ATOMIC_RELAXED);
        if (i >= a->n) return;
        ks_read_chunk(a->chunks + i, hand);
    }
}

/* Reads the next chunks, as many as there are hands, if at least two of them begin where `r` is; then takes the first,
   and answers whether it did. Of compressed batches, twice as many: a hand that is through sooner takes another, and all
   come together half as often. */
static int ks_read_chunks(ks_reader *r, ks_ahead *a, int hands) {
    int first = 0, n = 0;
    while (first < a->borders_n && a->borders[first] < r->position) first++;
    if (first + 2 >= a->borders_n || a->borders[first] != r->position) return 0;
    int64_t most = a->borders[a->borders_n - 1] < r->pause ? a->borders[a->borders_n - 1] : r->pause;
    int wanted = r->seen_plain > r->seen_bytes ? 2 * hands : hands;
    if (wanted > KS_MOST_CHUNKS) wanted = KS_MOST_CHUNKS;
    for (; n < wanted && first + n + 1 < a->borders_n && a->borders[first + n + 1] <= most; n++)
        ks_begin_chunk(r, a->chunks + n, a->borders[first + n], a->borders[first + n + 1]);
    if (n < 2) return 0;
    a->n = n;
    a->taken = a->next = a->hands_n = 0;
    ks_together(ks_work_on_chunks, a, (n < hands ? n : hands) - 1);
    int sound = 0;
    for (int goes_on = 1; sound < n && goes_on; sound++) {
        const ks_chunk *chunk = a->chunks + sound;
        if (chunk->rows.n == 0) break;
        goes_on = chunk->stop == KS_AT_END && sound + 1 < n && chunk->r.position == a->chunks[sound + 1].from;
    }
    for (int i = sound; i < n; i++) ks_rows_clear(&a->chunks[i].rows, 0);
    a->n = sound;
    if (sound < n) a->borders_n = 0; /* they were not right: others are asked for */
    return ks_take_chunk(r, a);
}

/* What becomes of the next batch, as a measure for those after it, where nothing is known yet. No rows are built of it;
   what was decompressed waits for whoever reads on. */
static void ks_sample(ks_reader *r) {
    const int64_t most_bytes = r->most_bytes;
    const int whole_batches = r->whole_batches;
    r->most_bytes = 0; /* too little for any batch */
    r->whole_batches = 2;
    enum ks_stop stop = ks_read(r);
    r->most_bytes = most_bytes;
    r->whole_batches = whole_batches;
    const uint8_t *p = stop == KS_FULL ? ks_look(r, r->position, KS_AT_RECORDS) : NULL;
    if (!p) return;
    int64_t size = KS_FRAME + (int64_t)ks_size(p), count = ks_get32(p + KS_AT_COUNT);
    int64_t plain = r->plain ? r->plain_end - r->plain : size - KS_AT_RECORDS;
    if (count > plain / 7 || ks_get64(p) < r->start_offset) return; /* no chunk begins amid a batch */
    r->seen_bytes = size;
    r->seen_plain = plain;
    r->seen_rows = count;
}

/* Whether somebody should say where the chunks behind `r` begin. */
static int ks_wants_borders(const ks_reader *r, const ks_ahead *a) {
    return a->next == a->n && r->seen_rows && r->staged_from == r->staged_to &&
           (a->borders_n < 2 || a->borders[a->borders_n - 1] <= r->position);
}

#endif
