/* A window on a file: a part of it in memory, which moves forward as a walk asks for bytes. And CRCs through a window.

   Nothing is mapped: a file that is cut meanwhile gives fewer bytes, and no fault. Nothing here knows Python. */
#ifndef KSTORE_WINDOW_H
#define KSTORE_WINDOW_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Reads up to `n` bytes at `position`; returns how many (fewer only at the end of the file), or -1 with `errno`. */
ptrdiff_t ks_read_at(int fd, uint8_t *p, size_t n, int64_t position);

/* Reads `n` bytes that are all in the page cache, without waiting for the disk; -1 where some are not, at the end of the file
   too, or where the file system cannot tell. */
ptrdiff_t ks_read_cached(int fd, uint8_t *p, size_t n, int64_t position);

enum {
    KS_HELD_BYTES = 1 << 20, /* the most that is read or decoded while others wait for a lock: a tenth of a millisecond */
    KS_CALL_BYTES = 4096     /* a call of the system counts as so many bytes */
};

/* A lock that a walk holds while it is short: the interpreter, see held.h. Others wait for it meanwhile. */
typedef struct ks_held {
    void (*give_up)(struct ks_held *held); /* NULL: nothing is held */
    int64_t bytes;                         /* that were read or decoded while it was held */
    void *given_up;
} ks_held;

/* Counts `n` bytes that are read or decoded next: behind KS_HELD_BYTES the lock is given up. Whether it is held still. */
static inline int ks_held_count(ks_held *held, int64_t n) {
    if (held->give_up && (held->bytes += n) > KS_HELD_BYTES) held->give_up(held);
    return held->give_up != NULL;
}

/* As ks_read_at; what is not in the page cache is read without the lock. */
ptrdiff_t ks_read_held(ks_held *held, int fd, uint8_t *p, size_t n, int64_t position);

typedef struct {
    int fd;
    int error;          /* errno of a failed read, ENOMEM if the window could not grow; 0 if the file merely ended */
    int owns;           /* the window owns its memory, which grows for a larger request */
    int64_t start;      /* file position of data[0] */
    int64_t end;        /* nothing is read from here on */
    ptrdiff_t size;     /* bytes in data */
    ptrdiff_t capacity;
    ptrdiff_t ahead;    /* at least so many bytes are read with one call; 1 to the capacity */
    uint8_t *data;
    ks_held held;
} ks_window;

/* A window in memory of the caller's, of `capacity` bytes. */
void ks_window_on(ks_window *w, int fd, int64_t end, uint8_t *data, ptrdiff_t capacity);

/* A window with memory of its own, until `ks_window_free`; 0, or -1 without memory. */
int ks_window_new(ks_window *w, int fd, int64_t end, ptrdiff_t capacity);
void ks_window_free(ks_window *w);

/* Reads on, so that the window begins at `position` and has `n` bytes; as `ks_window_at`, which calls it. */
const uint8_t *ks_window_move(ks_window *w, int64_t position, ptrdiff_t n);

/* The `n` bytes at `position`, or NULL with the reason in `error`. Earlier pointers become invalid. */
static inline const uint8_t *ks_window_at(ks_window *w, int64_t position, ptrdiff_t n) {
    int64_t at = position - w->start;
    return at >= 0 && at + n <= w->size ? w->data + at : ks_window_move(w, position, n);
}

/* Whether the CRC of the framed batch of `size` bytes at `position` holds, read `piece` bytes at a time: 1, 0, or -1
   if its bytes cannot be read. */
int ks_window_crc_holds(ks_window *w, int64_t position, int64_t size, int magic, ptrdiff_t piece);

#endif
