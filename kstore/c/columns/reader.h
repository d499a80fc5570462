/* Reads the batches of a file into rows of columns: reads ahead, checks frames and checksums, skips batches.

   `ks_read` reads as far as it can and returns why it stopped. A batch that is not a sound, regular v2 batch is left to
   the row reader, which decides what is wrong with it; `position` is then the position of that batch. */
#ifndef KSTORE_READER_H
#define KSTORE_READER_H

#include "aborted.h"
#include "columns/decode.h"
#include "unpack.h"
#include "window.h"
#include "wire.h"

#define KS_WINDOW ((size_t)512 << 10)     /* stays in the second-level cache between reading and decoding */
#define KS_PIECE ((int64_t)64 << 10)      /* bytes of a large batch that are checked and decoded at a time */
#define KS_FIRST_LOOK ((size_t)32 << 10)  /* the first read: a whole window would be too much for a few records */

enum ks_stop {
    KS_AT_END,        /* every batch of the range has been used */
    KS_FULL,          /* `out` has the most rows or bytes allowed */
    KS_PAST,          /* the next batch starts after `last_wanted` */
    KS_LEFT_ALONE,    /* the batch at `position` is for the row reader */
    KS_PACKED,        /* the batch at `position` cannot be decompressed */
    KS_FAILED_READ,   /* `error` has the errno */
    KS_OUT_OF_MEMORY
};

typedef struct ks_reader {
    /* Which records to read; set by the caller. */
    int64_t start_offset, last_wanted;
    int64_t max_rows, max_bytes;   /* of `out`; a single row may have more bytes */
    int check_crc;
    /* Where to read: the batches of [position, end) in a file, or in memory (fd < 0, `memory` starts at position 0). */
    int fd;
    const uint8_t *memory;
    int64_t position, end;
    int64_t pause;                   /* `ks_read` stops at a batch that starts here or later */
    int whole_batches;               /* 1: a batch that does not fit is left for the next rows unless it is the first;
                                        2: even if it is the first */
    int64_t ahead_end;               /* nothing after this position is read ahead; 0: no limit */
    int expected;                    /* whether space is reserved for all of `out`; cleared together with `out` */
    int64_t bytes_ahead;             /* bytes left in this file and in the files after it, if known */
    /* A window on the file, unlike that of window.h: columns hold its block while views point into it, so the used
       bytes never move, and a full block is replaced by a new one. */
    ks_block *window;
    int64_t window_at;               /* file position of its first byte */
    size_t window_size, ahead;
    ks_held held;                    /* the caller's; helpers hold no lock */
    int error;
    const ks_span *aborted;          /* batches of these transactions are skipped */
    int64_t aborted_n;
    /* The wanted offsets, rising; NULL: all are wanted. The first `kept_at` of them have been passed. */
    const int64_t *kept;
    int64_t kept_n, kept_at;
    /* The decompressed records of the batch at `position`. `unpack` is ks_unpack_natively. `unpack_slowly` gets the
       payloads that `unpack` rejects, writes to memory of ks_decompressed_room, and returns the size or -1. */
    int64_t (*unpack)(int codec, const uint8_t *p, size_t n, ks_output *out, int64_t limit);
    int64_t (*unpack_slowly)(void *context, struct ks_reader *r, const uint8_t *p, int64_t size);
    void *context;
    int by_python;                   /* `unpack_slowly` was needed */
    int64_t max_decompressed;        /* limit for one batch */
    const uint8_t *decompressed, *decompressed_end;
    ks_block *decompressed_block;
    size_t decompressed_used;        /* the first bytes of the block, which are still needed */
    int keeps_decompressed;          /* views point into the block, or several batches wait there */
    /* A batch whose rows are not all added to `out`, or not in one call. */
    ks_rows staged;
    int64_t staged_from, staged_to;  /* the rows that are left */
    int64_t staged_next;             /* the offset after the batch; -1 if rows after the last wanted one were cut off */
    /* The bytes read from the file since it was opened, and the decompressed bytes and rows in them. */
    int64_t seen_bytes, seen_decompressed, seen_rows;
    ks_mark previous;                /* the sizes of the previous columns */
    /* Batches are in order: the next one starts at `min_base` or above, all end below `offset_limit`. `min_base` is
       INT64_MIN if the previous batch is not known; `first_base` is then set to the base offset of the first batch. */
    int chained;
    int magic;                       /* of the previous batch; only batchtable.h uses it */
    int64_t min_base, offset_limit, first_base;
    /* The result. */
    ks_rows *out;
    int64_t next_offset;
    int64_t last_position;           /* of the batch used last, -1 if none */
    int64_t last_base, last_crc;
    uint8_t last_header[21];
} ks_reader;

/* ---- the window ------------------------------------------------------------------------------------------------- */

void ks_window_close(ks_reader *r);

/* Moves the window to `position`, with space for `n` bytes; keeps the first `kept`. Returns 0, or -1 without memory. */
int ks_window_open(ks_reader *r, int64_t position, size_t n, size_t kept);

/* Returns the `n` bytes at `position`, which end at `end` at the latest. If it returns NULL, `error` is 0 if the file
   has fewer bytes, the errno of a failed read, or ENOMEM. */
const uint8_t *ks_look(ks_reader *r, int64_t position, size_t n);

/* ---- one batch -------------------------------------------------------------------------------------------------- */

/* The lowest base offset of the batch after the one at `p`. */
int64_t ks_end_of(const uint8_t *p);

/* Whether the offsets of the batch at `p`, of `size` bytes, lie between the offsets of its neighbours: no CRC covers
   the base offset. After a gap the batch must also end before the next one starts. Called if ks_fits cannot tell. */
__attribute__((noinline)) int ks_fits_in(ks_reader *r, const uint8_t *p, int64_t size);

KS_INLINE int ks_fits(ks_reader *r, const uint8_t *p, int64_t size) {
    int64_t base = ks_load64(p), last = ks_wrapping_add(base, ks_load32(p + KS_LAST_OFFSET_DELTA_AT));
    return (base == r->min_base && last >= base && last < r->offset_limit) || ks_fits_in(r, p, size);
}

/* Skips the batch at `p`. */
void ks_passed(ks_reader *r, const uint8_t *p, int64_t size);

/* Moves past the batch at `p`, whose rows have been used. */
void ks_used_up(ks_reader *r, const uint8_t *p, int64_t size);

/* Moves `r` to the position of `c`, which started at the position of `r`. */
void ks_follow(ks_reader *r, const ks_reader *c);

/* Fills `b` from the batch header at `p`. */
void ks_describe(const uint8_t *p, ks_batch *b);

/* The number of kept offsets in [base, last]; sets `kept_at` to the first of them. */
int64_t ks_kept_between(ks_reader *r, int64_t base, int64_t last);

/* Memory for `size` bytes of a batch's records; keeps the first `used` bytes, already written. NULL without memory. */
uint8_t *ks_decompressed_room(ks_reader *r, size_t used, size_t size);

/* ---- reading ---------------------------------------------------------------------------------------------------- */

/* Reads the batches from `position` on into rows of `out`. */
enum ks_stop ks_read(ks_reader *r);

#endif
