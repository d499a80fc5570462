/* A window on a file: a part of it in memory, which moves forward as bytes are requested; and CRCs through a window.

   Nothing is mapped: if the file is truncated during a read, there are fewer bytes, but no SIGBUS. */
#ifndef KSTORE_WINDOW_H
#define KSTORE_WINDOW_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { KS_FIRST_MOUNTED = 1 << 30 }; /* from here on, descriptors are those of kstore.disk.mounts */

/* Does what ks_read_at does, for a file of a mount. */
typedef ptrdiff_t (*ks_mounted_read)(int fd, uint8_t *p, size_t n, int64_t position);

/* Sets the function that reads files of mounts. Each module that is linked with window.c has its own. */
void ks_set_mounted_read(ks_mounted_read read);

/* Returns -1 with `errno` set to EREMOTEIO: a file of a mount cannot be read. */
ptrdiff_t ks_remote_failure(void);

/* Reads `n` bytes at `position`, fewer only at the end of the file; returns their number, or -1 with `errno`. */
ptrdiff_t ks_read_at(int fd, uint8_t *p, size_t n, int64_t position);

/* Reads `n` bytes from the page cache, without waiting for the disk. Returns -1 if the cache lacks some of them, if the
   file ends before them, or if the file system does not support such reads. */
ptrdiff_t ks_read_cached(int fd, uint8_t *p, size_t n, int64_t position);

enum {
    KS_HELD_BYTES = 1 << 20, /* the most bytes that are read or decoded while the lock is held: 0.1 ms */
    KS_CALL_BYTES = 4096     /* a system call counts as this many bytes */
};

/* A lock that stays held during short reads: the GIL (held.h). */
typedef struct ks_held {
    void (*give_up)(struct ks_held *held); /* NULL: nothing is held */
    int64_t bytes;                         /* read or decoded while it was held */
    void *given_up;
} ks_held;

/* Counts `n` bytes to be read or decoded, and releases the lock after KS_HELD_BYTES; returns whether it is held. */
static inline int ks_held_count(ks_held *held, int64_t n) {
    if (held->give_up && (held->bytes += n) > KS_HELD_BYTES) held->give_up(held);
    return held->give_up != NULL;
}

/* As ks_read_at, but releases the lock before it reads data that is not in the page cache. */
ptrdiff_t ks_read_held(ks_held *held, int fd, uint8_t *p, size_t n, int64_t position);

typedef struct {
    int fd;
    int error;          /* errno of a failed read, ENOMEM if the window could not grow; 0 if the file merely ended */
    int owns;           /* the window owns its memory, which grows for a larger request */
    int64_t start;      /* file position of data[0] */
    int64_t end;        /* nothing is read from this position on */
    ptrdiff_t size;     /* bytes in data */
    ptrdiff_t capacity;
    ptrdiff_t ahead;    /* the least number of bytes that one call reads; 1 to the capacity */
    uint8_t *data;
    ks_held held;
} ks_window;

/* Opens a window in the caller's memory of `capacity` bytes. */
void ks_window_on(ks_window *w, int fd, int64_t end, uint8_t *data, ptrdiff_t capacity);

/* Opens a window with its own memory, until `ks_window_free`; returns 0, or -1 without memory. */
int ks_window_new(ks_window *w, int fd, int64_t end, ptrdiff_t capacity);
void ks_window_free(ks_window *w);

/* Moves the window so that it starts at `position` and has `n` bytes; used by `ks_window_at`. */
const uint8_t *ks_window_move(ks_window *w, int64_t position, ptrdiff_t n);

/* The `n` bytes at `position`, or NULL with the reason in `error`. Invalidates earlier pointers. */
static inline const uint8_t *ks_window_at(ks_window *w, int64_t position, ptrdiff_t n) {
    int64_t at = position - w->start;
    return at >= 0 && at + n <= w->size ? w->data + at : ks_window_move(w, position, n);
}

/* Whether the CRC of the framed batch of `size` bytes at `position` is correct: 1, 0, or -1 if it cannot be read. Reads
   `piece` bytes at a time. */
int ks_window_crc_holds(ks_window *w, int64_t position, int64_t size, int magic, ptrdiff_t piece);

#endif
