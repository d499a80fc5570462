/* What no cleaner of a thread can leave out: it reads and writes bytes, and looks once at memory for each key. Nothing is
   checked, parsed, hashed, compared or built. */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PIECE_BYTES = 256 << 10, AT_ONCE = 128, LARGE_PAGE = 2 << 20 };

struct entry {
    uint64_t hash;
    uint32_t more, ordinal;
};

/* Reads [0, size) of a file in pieces of Kafka's default buffer; 0, or -1. */
static int read_all(int fd, char *piece, long size) {
    for (long at = 0; at < size;) {
        ssize_t got = pread(fd, piece, PIECE_BYTES, at);
        if (got <= 0) return -1;
        at += got;
    }
    return 0;
}

/* The files once, a part of them again, and what stays, in the same pieces; 0, or -1. */
int reads_and_writes(const int *fds, const long *sizes, const long *again, int n, int out, long written) {
    char *piece = malloc(PIECE_BYTES);
    int failed = !piece;
    if (piece) memset(piece, 1, PIECE_BYTES);
    for (int i = 0; i < n && !failed; i++) failed = read_all(fds[i], piece, sizes[i]);
    for (int i = 0; i < n && !failed; i++) failed = read_all(fds[i], piece, again[i]);
    for (long at = 0; at < written && !failed; at += PIECE_BYTES)
        failed = pwrite(out, piece, PIECE_BYTES, at) != PIECE_BYTES;
    free(piece);
    return failed ? -1 : 0;
}

/* Memory of an offset map that has its last size from the beginning; NULL without. */
struct entry *table(long entries) {
    struct entry *made = aligned_alloc(LARGE_PAGE, ((size_t)entries * sizeof *made + LARGE_PAGE - 1) / LARGE_PAGE * LARGE_PAGE);
    if (!made) return NULL;
    madvise(made, (size_t)entries * sizeof *made, MADV_HUGEPAGE);
    memset(made, 1, (size_t)entries * sizeof *made);
    return made;
}

/* One look and one store at a random entry for each record, whose lines are asked for 128 at a time. */
uint32_t looks(struct entry *entries, long n, long records) {
    uint64_t x = 88172645463325252u;
    uint32_t sum = 0, places[AT_ONCE];
    for (long first = 0; first < records; first += AT_ONCE) {
        for (int i = 0; i < AT_ONCE; i++) {
            x ^= x << 13, x ^= x >> 7, x ^= x << 17;
            places[i] = (uint32_t)((unsigned __int128)x * (uint64_t)n >> 64);
            __builtin_prefetch(entries + places[i], 1, 2);
        }
        for (int i = 0; i < AT_ONCE; i++) {
            sum += entries[places[i]].ordinal;
            entries[places[i]].ordinal = (uint32_t)first;
        }
    }
    return sum;
}
