/* From the batches of a file to rows of columns: reads ahead, checks frames and checksums, skips batches.

   `ks_read` goes on as far as it can and says why it stopped. A batch that is not sound, regular v2 is left to the row
   reader, which decides what is wrong with it; `position` is then where it begins. */
#ifndef KSTORE_READER_H
#define KSTORE_READER_H

#include "aborted.h"
#include "columns/decode.h"
#include "unpack.h"
#include "window.h"
#include "wire.h"

#define KS_WINDOW ((size_t)512 << 10)     /* stays in the second-level cache between the copy in and the copy out */
#define KS_PIECE ((int64_t)64 << 10)      /* of a large batch, checked and decoded at a time */
#define KS_FIRST_LOOK ((size_t)32 << 10)  /* to read a few records, a whole window is too much */

enum ks_stop {
    KS_AT_END,        /* every batch of the range has been used */
    KS_FULL,          /* `out` has as many rows or bytes as it may have */
    KS_PAST,          /* the next batch begins behind `last_wanted` */
    KS_LEFT_ALONE,    /* the batch at `position` is for the row reader */
    KS_PACKED,        /* the batch at `position` cannot be decompressed */
    KS_FAILED_READ,   /* `error` has the errno */
    KS_OUT_OF_MEMORY
};

typedef struct ks_reader {
    /* What to read; set by the caller. */
    int64_t start_offset, last_wanted;
    int64_t max_rows, max_bytes;   /* of `out`; a single row may have more bytes */
    int check_crc;
    /* Where to read: the batches of [position, end) in a file, or in memory (fd < 0, `memory` begins at 0). */
    int fd;
    const uint8_t *memory;
    int64_t position, end;
    int64_t pause;                   /* KS_AT_END from here on; the last batch may reach over it */
    int whole_batches;               /* 1: a batch that does not fit is left for the next rows, unless it would be the first;
                                        2: even then */
    int64_t ahead_end;               /* nothing is read ahead from behind it; 0: no limit */
    int expected;                    /* whether room was made for all of `out`; cleared with it */
    int64_t bytes_ahead;             /* in the file and in those after it, as far as is known */
    /* A window on the file, other than that of window.h: columns hold its block while views point into it, so that the
       bytes in use never move, and a full block is replaced by a new one. */
    ks_block *window;
    int64_t window_at;               /* file position of its first byte */
    size_t window_size, ahead;
    ks_held held;                    /* of the caller; helpers hold nothing */
    int error;
    const ks_span *aborted;          /* batches of these transactions are skipped */
    int64_t aborted_n;
    /* Only the records at these offsets are wanted, which rise; NULL: all are. `kept_at`: how many of them are behind us. */
    const int64_t *kept;
    int64_t kept_n, kept_at;
    /* The decompressed records of the batch at `position`. `unpack` is ks_unpack_natively. What it leaves alone
       `unpack_slowly` decompresses: it writes to the memory of ks_decompressed_room, and returns the size, or a negative
       number. */
    int64_t (*unpack)(int codec, const uint8_t *p, size_t n, ks_output *out, int64_t limit);
    int64_t (*unpack_slowly)(void *context, struct ks_reader *r, const uint8_t *p, int64_t size);
    void *context;
    int by_python;                   /* it was needed */
    int64_t max_decompressed;        /* limit for one batch */
    const uint8_t *decompressed, *decompressed_end;
    ks_block *decompressed_block;
    size_t decompressed_used;        /* bytes of it that are still needed */
    int keeps_decompressed;          /* views point into it, or several batches wait there */
    /* A batch of which only some rows go into `out`, or not all at once. */
    ks_rows staged;
    int64_t staged_from, staged_to;  /* rows that are left */
    int64_t staged_next;             /* the offset after the batch; -1 when rows behind the last wanted were cut off */
    /* Bytes of the file that were read since it was opened, and the bytes and rows that they became. */
    int64_t seen_bytes, seen_decompressed, seen_rows;
    ks_mark previous;                /* the sizes of the columns before these */
    /* Batches follow one another: the next one begins at `min_base` or above, all end below `offset_limit`. `min_base` is
       INT64_MIN where the batch before is not known; then `first_base` becomes the base offset of the first one. */
    int chained;
    int magic;                       /* of the batch before; only batchtable.h uses it */
    int64_t min_base, offset_limit, first_base;
    /* What has been read. */
    ks_rows *out;
    int64_t next_offset;
    int64_t last_position;           /* of the batch used last, -1 for none */
    int64_t last_base, last_crc;
    uint8_t last_header[21];
} ks_reader;

/* ---- the window ------------------------------------------------------------------------------------------------- */

void ks_window_close(ks_reader *r);

/* A block that starts with what the window has from `position` on, and has room for `n` bytes and more. */
int ks_window_open(ks_reader *r, int64_t position, size_t n, size_t kept);

/* The `n` bytes at `position`, which end at `end` at the latest. NULL where the file has fewer (error 0), could not be
   read (its errno), or where there is no memory (ENOMEM). */
const uint8_t *ks_look(ks_reader *r, int64_t position, size_t n);

/* ---- one batch -------------------------------------------------------------------------------------------------- */

/* The least base offset of the batch after the one at `p`. */
int64_t ks_end_of(const uint8_t *p);

/* Whether the batch at `p`, of `size` bytes, has offsets between those of its neighbours, where that is not obvious: no
   CRC covers a base offset. Behind a gap it must also end where the next one begins. */
__attribute__((noinline)) int ks_fits_in(ks_reader *r, const uint8_t *p, int64_t size);

KS_INLINE int ks_fits(ks_reader *r, const uint8_t *p, int64_t size) {
    int64_t base = ks_load64(p), last = ks_wrapping_add(base, ks_load32(p + KS_LAST_OFFSET_DELTA_AT));
    return (base == r->min_base && last >= base && last < r->offset_limit) || ks_fits_in(r, p, size);
}

/* Skips the batch at `p`. */
void ks_passed(ks_reader *r, const uint8_t *p, int64_t size);

/* Goes past the batch at `p`, whose rows are in `out`. */
void ks_used_up(ks_reader *r, const uint8_t *p, int64_t size);

/* Moves `r` to where `c` is; `c` began where `r` was. */
void ks_follow(ks_reader *r, const ks_reader *c);

/* Describes a batch by its header at `p`. */
void ks_describe(const uint8_t *p, ks_batch *b);

/* How many of the kept offsets are in [base, last]; `kept_at` is then the first of them. */
int64_t ks_kept_between(ks_reader *r, int64_t base, int64_t last);

/* Memory for `size` bytes of a batch's records, with the first `used` that were written before; NULL without memory. */
uint8_t *ks_decompressed_room(ks_reader *r, size_t used, size_t size);

/* ---- the walk --------------------------------------------------------------------------------------------------- */

/* Turns the batches at `position` and behind it into rows of `out`. */
enum ks_stop ks_read(ks_reader *r);

#endif
