#define _GNU_SOURCE
#include "window.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/uio.h>
#include <unistd.h>
#ifdef RWF_NOWAIT
#include <linux/magic.h>
#include <sys/vfs.h>
#endif

#include "crc32.h"
#include "crc32c.h"
#include "wire.h"

static ks_mounted_read ks_mounted;

void ks_set_mounted_read(ks_mounted_read read) { ks_mounted = read; }

ptrdiff_t ks_remote_failure(void) {
    errno = EREMOTEIO;
    return -1;
}

ptrdiff_t ks_read_at(int fd, uint8_t *p, size_t n, int64_t position) {
    if (fd >= KS_FIRST_MOUNTED && ks_mounted) return ks_mounted(fd, p, n, position);
    size_t done = 0;
    while (done < n) {
        ssize_t got = pread(fd, p + done, n - done, position + (int64_t)done);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return -1;
        if (got == 0) break;
        done += (size_t)got;
    }
    return (ptrdiff_t)done;
}

#ifdef RWF_NOWAIT
/* Whether a file is on tmpfs, which lacks RWF_NOWAIT: a read waits for a disk only if memory has been swapped out. */
static int ks_is_in_memory(int fd) {
    struct statfs system;
    return fstatfs(fd, &system) == 0 && system.f_type == TMPFS_MAGIC;
}
#endif

ptrdiff_t ks_read_cached(int fd, uint8_t *p, size_t n, int64_t position) {
#ifdef RWF_NOWAIT
    size_t done = 0;
    if (fd >= KS_FIRST_MOUNTED) return -1;
    if (position < 0) return -1; /* -1 would mean the descriptor's own position */
    while (done < n) {
        struct iovec rest = {p + done, n - done};
        ssize_t got = preadv2(fd, &rest, 1, position + (int64_t)done, RWF_NOWAIT);
        if (got < 0 && errno == EOPNOTSUPP && ks_is_in_memory(fd))
            got = pread(fd, rest.iov_base, rest.iov_len, position + (int64_t)done);
        if (got <= 0) return -1; /* 0 need not mean the end: Linux 5.9 and 5.10 also return it for uncached pages */
        done += (size_t)got;
    }
    return (ptrdiff_t)done;
#else
    (void)fd;
    (void)p;
    (void)n;
    (void)position;
    return -1;
#endif
}

ptrdiff_t ks_read_held(ks_held *held, int fd, uint8_t *p, size_t n, int64_t position) {
    if (ks_held_count(held, (int64_t)n + KS_CALL_BYTES)) {
        ptrdiff_t got = ks_read_cached(fd, p, n, position);
        if (got >= 0) return got;
        held->give_up(held);
    }
    return ks_read_at(fd, p, n, position);
}

void ks_window_on(ks_window *w, int fd, int64_t end, uint8_t *data, ptrdiff_t capacity) {
    memset(w, 0, sizeof *w);
    w->fd = fd;
    w->end = end;
    w->capacity = w->ahead = capacity;
    w->data = data;
}

int ks_window_new(ks_window *w, int fd, int64_t end, ptrdiff_t capacity) {
    ks_window_on(w, fd, end, (uint8_t *)malloc((size_t)capacity), capacity);
    w->owns = 1;
    return w->data ? 0 : -1;
}

void ks_window_free(ks_window *w) {
    if (w->owns) free(w->data);
    w->data = NULL;
}

const uint8_t *ks_window_move(ks_window *w, int64_t position, ptrdiff_t n) {
    int64_t at = position - w->start;
    if (n > w->capacity) {
        uint8_t *data = w->owns ? (uint8_t *)realloc(w->data, (size_t)n) : NULL;
        if (!data) { w->error = ENOMEM; return NULL; }
        w->data = data;
        w->capacity = n;
    }
    ptrdiff_t kept = 0;
    if (at >= 0 && at < w->size) {
        kept = w->size - (ptrdiff_t)at;
        memmove(w->data, w->data + at, (size_t)kept);
    }
    w->start = position;
    w->size = kept;
    ptrdiff_t wanted = n > w->ahead ? n : w->ahead;
    if (wanted > w->end - position) wanted = (ptrdiff_t)(w->end - position);
    if (wanted > kept) {
        ptrdiff_t got = ks_read_held(&w->held, w->fd, w->data + kept, (size_t)(wanted - kept), position + kept);
        if (got < 0) { w->error = errno; return NULL; }
        w->size += got;
    }
    return w->size >= n ? w->data : NULL;
}

int ks_window_crc_holds(ks_window *w, int64_t position, int64_t size, int magic, ptrdiff_t piece) {
    ptrdiff_t skip = magic == 2 ? KS_ATTRIBUTES_AT : KS_LEGACY_MAGIC_AT;
    int64_t at = position, end = position + size;
    uint32_t crc = 0, stored = 0;
    while (at < end) {
        ptrdiff_t n = end - at < piece ? (ptrdiff_t)(end - at) : piece;
        const uint8_t *p = ks_window_at(w, at, n);
        if (!p) return -1;
        if (at == position) stored = (uint32_t)ks_load32(p + (magic == 2 ? KS_CRC_AT : KS_LEGACY_CRC_AT));
        else skip = 0;
        crc = magic == 2 ? ks_crc32c(crc, p + skip, (size_t)(n - skip)) : ks_crc32(crc, p + skip, (size_t)(n - skip));
        at += n;
    }
    return crc == stored;
}
