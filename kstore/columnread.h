/* From the batches of a file to rows of columns: reads ahead, checks frames and checksums, passes batches over.

   `ks_read` goes on until there is nothing more to do without help, and says why it stopped. It gives no verdict on bad
   bytes: a batch that is not sound, regular v2 is left to the row reader, at `position`. Nothing here knows Python, and
   nothing needs the GIL. */
#ifndef KSTORE_COLUMNREAD_H
#define KSTORE_COLUMNREAD_H

#include <errno.h>
#include <unistd.h>

#include "aborted.h"
#include "columns.h"
#include "crc32c.h"
#include "unpack.h"

enum {
    KS_AT_LENGTH = 8, KS_AT_EPOCH = 12, KS_AT_MAGIC = 16, KS_AT_CRC = 17, KS_AT_ATTRIBUTES = 21, KS_AT_LAST_DELTA = 23,
    KS_AT_BASE_TIMESTAMP = 27, KS_AT_MAX_TIMESTAMP = 35, KS_AT_PRODUCER_ID = 43, KS_AT_PRODUCER_EPOCH = 51,
    KS_AT_BASE_SEQUENCE = 53, KS_AT_COUNT = 57, KS_AT_RECORDS = 61, KS_FRAME = 12
};

#define KS_WINDOW ((size_t)512 << 10)     /* stays in the second-level cache between the copy in and the copy out */
#define KS_PIECE ((int64_t)64 << 10)      /* of a large batch: as much as is checked and decoded in one go */
#define KS_VIEW_WINDOW ((size_t)8 << 20)  /* what views point into is kept, and counted in few buffers */
#define KS_FIRST_LOOK ((size_t)32 << 10)  /* a page of a few records need not pay for a whole window */

enum ks_stop {
    KS_AT_END,        /* every batch of the range has been used */
    KS_FULL,          /* as many rows or bytes as were wanted */
    KS_PAST,          /* the next batch begins behind the last offset wanted */
    KS_LEFT_ALONE,    /* the batch at `position` is for the row reader */
    KS_PACKED,        /* the batch at `position` does not decompress */
    KS_FAILED_READ,   /* `error` has the errno */
    KS_OUT_OF_MEMORY
};

typedef struct ks_reader {
    /* What is wanted; set by the caller. */
    int64_t start_offset, last_wanted;
    int64_t most_rows, most_bytes;   /* of `out`; one row is given whatever its size */
    int check_crc;
    /* Where to read: the batches of [position, end) in a file, or in memory (fd < 0, `memory` begins at 0). */
    int fd;
    const uint8_t *memory;
    int64_t position, end;
    int64_t pause;                   /* KS_AT_END is answered from here on: a batch may reach over it */
    int whole_batches;               /* 1: a batch that does not fit is left for the next rows, unless it would be the first;
                                        2: even then */
    int64_t ahead_end;               /* no more than is needed is read from behind it; 0 for no such place */
    int expected;                    /* whether room was made for all of `out`; cleared with it */
    int64_t bytes_ahead;             /* in the file and in those after it, as far as is known */
    /* A window on the file. */
    ks_block *window;
    int64_t window_at;               /* file position of its first byte */
    size_t window_size, ahead;
    int error;
    const ks_span *aborted;          /* batches of these are passed over */
    int64_t aborted_n;
    /* The records of the batch at `position`, decompressed. `unpack` does what unpack.h does not: it writes where
       ks_plain_room says, and answers how much, or a negative number if it cannot. */
    int64_t (*unpack)(void *context, struct ks_reader *r, const uint8_t *p, int64_t size);
    void *unpack_context;
    int64_t most_plain;              /* what one batch may become */
    const uint8_t *plain, *plain_end;
    ks_block *plain_block;
    size_t plain_used;               /* bytes of it that are still needed */
    int keeps_plain;                 /* views point into it, or several batches wait there */
    /* A batch of which not all rows were wanted, or not all at once. */
    ks_rows staged;
    int64_t staged_from, staged_to;  /* rows that are left */
    int64_t staged_next;             /* the offset after the batch; -1 when rows behind the last wanted were cut off */
    /* How much of the file has become how many rows of how many bytes, since it was opened. */
    int64_t seen_bytes, seen_plain, seen_rows;
    ks_mark given;                   /* the sizes of the columns that were handed over last */
    /* What has been used up. */
    ks_rows *out;
    int64_t next_offset;
    int64_t last_position;           /* of the batch used last, -1 for none */
    int64_t last_base, last_crc;
    uint8_t last_header[21];
} ks_reader;

static int16_t ks_get16(const uint8_t *p) { return (int16_t)(p[0] << 8 | p[1]); }
static int32_t ks_get32(const uint8_t *p) { uint32_t x; memcpy(&x, p, 4); return (int32_t)__builtin_bswap32(x); }
static int64_t ks_get64(const uint8_t *p) { uint64_t x; memcpy(&x, p, 8); return (int64_t)__builtin_bswap64(x); }

/* What the batch at `p` declares to follow its first 12 bytes. */
static int32_t ks_size(const uint8_t *p) { return ks_get32(p + KS_AT_LENGTH); }

/* ---- the window ------------------------------------------------------------------------------------------------- */

static void ks_window_close(ks_reader *r) {
    ks_block_drop(r->window);
    r->window = NULL;
    r->window_size = 0;
}

/* A block that starts with what the window has from `position` on, and has room for `n` bytes and more. */
static int ks_window_open(ks_reader *r, int64_t position, size_t n, size_t kept) {
    int views = r->out->key.layout == KS_VIEW || r->out->value.layout == KS_VIEW;
    size_t wanted = views ? KS_VIEW_WINDOW : KS_WINDOW;
    if ((int64_t)wanted > r->end - position) wanted = (size_t)(r->end - position);
    if (wanted < n) wanted = n;
    int reusable = r->window && __atomic_load_n(&r->window->holders, __ATOMIC_ACQUIRE) == 1;
    if (reusable && r->window->capacity >= n && (r->window->capacity >= wanted || !views)) {
        memmove(r->window->data, r->window->data + (position - r->window_at), kept);
    } else {
        ks_block *block = ks_block_new(wanted);
        if (!block) return -1;
        if (kept) memcpy(block->data, r->window->data + (position - r->window_at), kept);
        ks_block_drop(r->window);
        r->window = block;
    }
    r->window_at = position;
    r->window_size = kept;
    return 0;
}

/* The `n` bytes at `position`, which end at `end` at the latest. NULL where the file has fewer (error 0), could not be
   read (its errno), or where there is no memory (ENOMEM). */
static const uint8_t *ks_look(ks_reader *r, int64_t position, size_t n) {
    if (r->fd < 0) return r->memory + position;
    int64_t at = position - r->window_at;
    if (r->window && at >= 0 && at <= (int64_t)r->window_size) {
        if (at + (int64_t)n <= (int64_t)r->window_size) return r->window->data + at;
        if (at + n > r->window->capacity && ks_window_open(r, position, n, r->window_size - (size_t)at)) goto no_memory;
    } else if (ks_window_open(r, position, n, 0)) {
        goto no_memory;
    }
    at = position - r->window_at;
    size_t wanted = (size_t)at + (n > r->ahead ? n : r->ahead);
    if (wanted > r->window->capacity) wanted = r->window->capacity;
    int64_t most = r->end - r->window_at;
    if (r->ahead_end && r->ahead_end < r->end)
        most = r->ahead_end - r->window_at > at + (int64_t)n ? r->ahead_end - r->window_at : at + (int64_t)n;
    if ((int64_t)wanted > most) wanted = (size_t)most;
    if (r->ahead < KS_WINDOW) r->ahead *= 4;
    while (r->window_size < wanted) {
        ssize_t got = pread(r->fd, r->window->data + r->window_size, wanted - r->window_size,
                            r->window_at + (int64_t)r->window_size);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) { r->error = errno; return NULL; }
        if (got == 0) break;
        r->window_size += (size_t)got;
    }
    r->error = 0;
    return at + (int64_t)n <= (int64_t)r->window_size ? r->window->data + at : NULL;
no_memory:
    r->error = ENOMEM;
    return NULL;
}

/* ---- one batch -------------------------------------------------------------------------------------------------- */

static void ks_used_up(ks_reader *r, const uint8_t *p, int64_t size) {
    r->last_position = r->position;
    r->last_base = ks_get64(p);
    r->last_crc = (uint32_t)ks_get32(p + KS_AT_CRC);
    memcpy(r->last_header, p, sizeof r->last_header);
    r->position += size;
    if (r->plain) r->plain_used = (size_t)(r->plain_end - r->plain_block->data);
    r->plain = NULL;
}

/* Goes to where `c` has got, which began where `r` is. */
static void ks_follow(ks_reader *r, const ks_reader *c) {
    r->plain = NULL;
    r->position = c->position;
    r->next_offset = c->next_offset;
    r->last_position = c->last_position;
    r->last_base = c->last_base;
    r->last_crc = c->last_crc;
    memcpy(r->last_header, c->last_header, sizeof r->last_header);
}

static void ks_describe(const uint8_t *p, ks_batch *b) {
    int16_t attributes = ks_get16(p + KS_AT_ATTRIBUTES);
    b->base_offset = ks_get64(p);
    b->last_delta = ks_get32(p + KS_AT_LAST_DELTA);
    b->count = ks_get32(p + KS_AT_COUNT);
    b->append_time = (attributes & 0x08) != 0;
    b->base_timestamp = ks_get64(p + (b->append_time ? KS_AT_MAX_TIMESTAMP : KS_AT_BASE_TIMESTAMP));
    b->leader_epoch = ks_get32(p + KS_AT_EPOCH);
    b->producer_id = ks_get64(p + KS_AT_PRODUCER_ID);
    b->producer_epoch = ks_get16(p + KS_AT_PRODUCER_EPOCH);
    b->base_sequence = ks_get32(p + KS_AT_BASE_SEQUENCE);
    b->timestamp_type = (int8_t)b->append_time;
    b->compression = (int8_t)(attributes & 0x07);
    b->transactional = (attributes & 0x10) != 0;
}

#define KS_PLAIN_BLOCK ((size_t)1 << 20)

/* Room for `size` bytes of a batch's records, of which the first `used` are there already; NULL without memory. */
static uint8_t *ks_plain_room(ks_reader *r, size_t used, size_t size) {
    ks_block *block = r->plain_block;
    if (!r->keeps_plain) r->plain_used = 0;
    if (!block || block->capacity - r->plain_used < size) {
        block = ks_block_new(r->keeps_plain && size < KS_PLAIN_BLOCK ? KS_PLAIN_BLOCK : size + size / 2);
        if (!block) return NULL;
        if (used) memcpy(block->data, r->plain_block->data + r->plain_used, used);
        ks_block_drop(r->plain_block);
        r->plain_block = block;
        r->plain_used = 0;
    }
    return block->data + r->plain_used;
}

static int ks_grow_plain(ks_output *out, size_t used, size_t capacity) {
    ks_reader *r = (ks_reader *)out->context;
    if (!(out->p = ks_plain_room(r, used, capacity))) return -1;
    out->capacity = r->plain_block->capacity - r->plain_used;
    return 0;
}

/* Decompresses the batch at `p`; 0, or -1. */
static int ks_unpack(ks_reader *r, const uint8_t *p, int64_t size) {
    ks_output out = {NULL, 0, ks_grow_plain, r};
    int64_t plain = ks_unpack_natively(ks_get16(p + KS_AT_ATTRIBUTES) & 7, p + KS_AT_RECORDS,
                                       (size_t)(size - KS_AT_RECORDS), &out, r->most_plain);
    if (plain < 0 && r->unpack) plain = r->unpack(r->unpack_context, r, p, size);
    if (plain < 0 || (!r->plain_block && ks_grow_plain(&out, 0, 1))) return -1;
    r->plain = r->plain_block->data + r->plain_used;
    r->plain_end = r->plain + plain;
    return 0;
}

/* The rows of the batch in `staged` that are wanted at all; offsets rise. */
static void ks_stage(ks_reader *r, int64_t next_offset) {
    const int64_t *offsets = (const int64_t *)r->staged.fixed[KS_OFFSET].p;
    int64_t from = 0, to = r->staged.n;
    while (from < to && offsets[from] < r->start_offset) from++;
    while (from < to && offsets[to - 1] > r->last_wanted) to--;
    r->staged_next = to < r->staged.n ? -1 : next_offset;
    r->staged_from = from;
    r->staged_to = to;
}

/* Moves staged rows to `out` while there is room; 0, or -1 without memory. */
static int ks_take_staged(ks_reader *r) {
    const int32_t *sizes = (const int32_t *)r->staged.sizes.p;
    const int64_t *offsets = (const int64_t *)r->staged.fixed[KS_OFFSET].p;
    int64_t first = r->staged_from, last = first, bytes = 0;
    while (last < r->staged_to && r->out->n + (last - first) < r->most_rows) {
        int64_t more = bytes + sizes[last];
        if (r->out->bytes + more > r->most_bytes && r->out->n + (last - first) > 0) break;
        bytes = more;
        last++;
    }
    if (last > first) {
        if (ks_rows_take(r->out, &r->staged, first, last - first, bytes)) return -1;
        r->next_offset = offsets[last - 1] + 1;
    }
    r->staged_from = last;
    if (last == r->staged_to && r->staged_next >= 0) r->next_offset = r->staged_next;
    return 0;
}

/* After the first whole batch of `out`, of `size` bytes that became `plain`: room for as much as seems to be coming. */
static void ks_expect(ks_reader *r, int64_t plain, int64_t size) {
    ks_rows *out = r->out;
    double bytes = (double)out->bytes + (double)plain / (double)size * (double)r->bytes_ahead;
    if (bytes > (double)r->most_bytes) bytes = (double)r->most_bytes;
    double times = bytes / (double)out->bytes;
    if (times * (double)out->n > (double)r->most_rows) times = (double)r->most_rows / (double)out->n;
    if (times > 1.5) ks_rows_expect(out, times * 1.1, plain);
    r->expected = 1;
}

/* Before the first whole batch, of `size` bytes that become `plain`: room by what the columns before needed. */
static void ks_expect_alike(ks_reader *r, int64_t plain, int64_t size) {
    const ks_mark *given = &r->given;
    if (r->expected || r->out->n || given->bytes <= 2 * plain) return;
    double bytes = (double)plain / (double)size * (double)r->bytes_ahead;
    if (bytes > (double)r->most_bytes) bytes = (double)r->most_bytes;
    double times = 1.05 * bytes / (double)given->bytes;
    double rows = times * (double)given->n, most_rows = (double)r->most_rows;
    if (ks_rows_reserve(r->out, (int64_t)(rows < most_rows ? rows : most_rows) + 64, 0)) return;
    ks_var *vars[] = {&r->out->key, &r->out->value};
    for (int i = 0; i < 2; i++) ks_var_reserve(vars[i], 0, 0, (int64_t)(times * (double)given->vars[i].used) + plain);
    r->expected = 1;
}

/* Whether the batch described may be decoded piece by piece: all of it is wanted, as rows, and records are small. */
static int ks_suits_pieces(const ks_reader *r, const uint8_t *p, const ks_batch *b, int64_t size) {
    int64_t plain = size - KS_AT_RECORDS;
    return size > 2 * KS_PIECE && b->compression == 0 && !(ks_get16(p + KS_AT_ATTRIBUTES) & 0x20) &&
           r->out->key.layout != KS_VIEW && r->out->value.layout != KS_VIEW && ks_has_regular_offsets(b) &&
           b->count > plain / (KS_PIECE / 8) && b->count <= plain / 7 && b->base_offset >= r->start_offset &&
           b->base_offset + b->last_delta <= r->last_wanted && b->count <= r->most_rows - r->out->n &&
           plain <= r->most_bytes - r->out->bytes;
}

/* A large batch, of which not all fits a cache: of each piece the checksum, then the records, and the next piece is read
   where this one was. KS_DECODED, or nothing has happened: the batch may be looked at as a whole. */
static enum ks_decoded ks_decode_in_pieces(ks_reader *r, const uint8_t *head, ks_batch *b, int64_t size) {
    ks_rows *out = r->out;
    const int64_t rows = b->count, first = out->n;
    ks_mark mark = ks_rows_mark(out);
    ks_place at = {first, out->key.used, out->value.used, 0, 0, 0, 1, 0, NULL};
    uint32_t crc = ks_crc32c(0, head + KS_AT_ATTRIBUTES, KS_AT_RECORDS - KS_AT_ATTRIBUTES);
    int64_t done = KS_AT_RECORDS, summed = KS_AT_RECORDS; /* bytes of the batch that are decoded; that are in `crc` */
    ks_expect_alike(r, size - KS_AT_RECORDS, size);
    if (ks_rows_reserve(out, rows, size - KS_AT_RECORDS)) return KS_NO_MEMORY;
    while (summed < size) {
        int64_t to = size - summed < KS_PIECE ? size : summed + KS_PIECE;
        const uint8_t *p = ks_look(r, r->position + done, (size_t)(to - done));
        if (!p) goto back;
        if (r->check_crc) crc = ks_crc32c(crc, p + (summed - done), (size_t)(to - summed));
        summed = to;
        b->p = p;
        b->end = p + (to - done);
        b->safe = r->fd < 0 ? r->memory + r->end : r->window->data + r->window->capacity + KS_SLACK;
        b->block = NULL;
        b->count = rows - (at.n - first);
        if (ks_decode_at(b, out, &at) != KS_DECODED || at.stopped == p) goto back;
        done += at.stopped - p;
    }
    if (done != size || at.n != first + rows || at.least_delta > (int64_t)b->last_delta + 1) goto back;
    if (r->check_crc && crc != (uint32_t)ks_get32(head + KS_AT_CRC)) goto back;
    ks_keep_rows(out, &at, rows, size - KS_AT_RECORDS);
    b->count = rows;
    return KS_DECODED;
back:
    ks_rows_back(out, &mark);
    b->count = rows;
    return KS_DOUBTFUL;
}

/* A batch of which all rows are in `out` now, of `plain` bytes. */
static void ks_used_whole(ks_reader *r, const uint8_t *p, const ks_batch *b, int64_t size, int64_t plain) {
    if (!r->expected) ks_expect(r, plain, size);
    r->seen_bytes += size;
    r->seen_plain += plain;
    r->seen_rows += b->count;
    ks_used_up(r, p, size);
    r->next_offset = b->base_offset + b->last_delta + 1;
}

/* ---- the walk --------------------------------------------------------------------------------------------------- */

static enum ks_stop ks_read(ks_reader *r) {
    for (;;) {
        if (r->staged_from < r->staged_to) {
            if (ks_take_staged(r)) return KS_OUT_OF_MEMORY;
            if (r->staged_from < r->staged_to) return KS_FULL;
            if (r->staged_next < 0) return KS_PAST;
        }
        if (r->out->n >= r->most_rows || (r->out->bytes >= r->most_bytes && r->out->n > 0)) return KS_FULL;
        int64_t left = r->end - r->position;
        if (left <= 0 || r->position >= r->pause) return KS_AT_END;
        if (left < KS_AT_RECORDS) return KS_LEFT_ALONE;
        const uint8_t *p = ks_look(r, r->position, KS_AT_RECORDS);
        if (!p) return r->error == ENOMEM ? KS_OUT_OF_MEMORY : r->error ? KS_FAILED_READ : KS_LEFT_ALONE;
        int64_t size = KS_FRAME + (int64_t)ks_size(p);
        if (p[KS_AT_MAGIC] != 2 || size < KS_AT_RECORDS || size > left) return KS_LEFT_ALONE;
        if (ks_get64(p) > r->last_wanted) return KS_PAST;
        if (r->aborted_n && !r->plain && ks_is_aborted(r->aborted, r->aborted_n, p)) {
            r->position += size;
            continue;
        }
        ks_batch b;
        ks_describe(p, &b);
        if (ks_suits_pieces(r, p, &b, size)) {
            uint8_t head[KS_AT_RECORDS];
            memcpy(head, p, sizeof head);
            ks_describe(head, &b);
            if (ks_suits_pieces(r, head, &b, size) && ks_decode_in_pieces(r, head, &b, size) == KS_DECODED) {
                ks_used_whole(r, head, &b, size, size - KS_AT_RECORDS);
                continue;
            }
        }
        if (!(p = ks_look(r, r->position, (size_t)size)))
            return r->error == ENOMEM ? KS_OUT_OF_MEMORY : r->error ? KS_FAILED_READ : KS_LEFT_ALONE;
        ks_describe(p, &b);
        if (b.count < 0 || !ks_has_regular_offsets(&b)) return KS_LEFT_ALONE;
        if (r->check_crc && !r->plain &&
            ks_crc32c(0, p + KS_AT_ATTRIBUTES, (size_t)(size - KS_AT_ATTRIBUTES)) != (uint32_t)ks_get32(p + KS_AT_CRC))
            return KS_LEFT_ALONE;
        int64_t last_offset = b.base_offset + b.last_delta;
        if (last_offset < r->start_offset) {
            r->position += size;
            r->plain = NULL;
            continue;
        }
        if (b.count == 0 || ks_get16(p + KS_AT_ATTRIBUTES) & 0x20) {
            ks_used_up(r, p, size);
            r->next_offset = last_offset + 1;
            continue;
        }
        if (b.compression == 0) {
            b.p = p + KS_AT_RECORDS;
            b.end = p + size;
            b.safe = r->fd < 0 ? r->memory + r->end : r->window->data + r->window->capacity + KS_SLACK;
            b.block = r->window;
        } else {
            if (!r->plain && ks_unpack(r, p, size)) return KS_PACKED;
            b.p = r->plain;
            b.end = r->plain_end;
            b.block = r->plain_block;
            b.safe = b.block->data + b.block->capacity + KS_SLACK;
        }
        int whole = b.base_offset >= r->start_offset && last_offset <= r->last_wanted &&
                    b.count <= r->most_rows - r->out->n && b.end - b.p <= r->most_bytes - r->out->bytes;
        if (!whole && (r->whole_batches > 1 || (r->whole_batches && r->out->n))) return KS_FULL;
        if (whole) ks_expect_alike(r, b.end - b.p, size);
        else ks_rows_clear(&r->staged, 1);
        enum ks_decoded decoded = ks_decode(&b, whole ? r->out : &r->staged);
        if (decoded == KS_NO_MEMORY) return KS_OUT_OF_MEMORY;
        if (decoded == KS_DOUBTFUL) return KS_LEFT_ALONE;
        if (whole) {
            ks_used_whole(r, p, &b, size, b.end - b.p);
            continue;
        }
        r->seen_bytes += size;
        r->seen_plain += b.end - b.p;
        r->seen_rows += b.count;
        ks_used_up(r, p, size);
        ks_stage(r, last_offset + 1);
        if (r->staged_from == r->staged_to) { /* only rows that nobody wants */
            if (r->staged_next < 0) return KS_PAST;
            r->next_offset = r->staged_next;
        }
    }
}

#endif
