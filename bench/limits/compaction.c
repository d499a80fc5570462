/* What no cleaner of a thread can leave out: it reads and writes bytes, and looks once at memory for each key. With
   `checks` it also sums up what it reads first, hashes each key, as a cleaner does that writes only what was sound and
   takes no key for another, and sums up the batches that it writes anew. No record is parsed, nothing is compared or
   built: a key is where the record before it and its size say. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "crc32c.h"
#include "keyhash.h"

enum { PIECE_BYTES = 256 << 10, AT_ONCE = 128, LARGE_PAGE = 2 << 20, KEY_BYTES = 16 };

struct entry {
    uint64_t hash;
    uint32_t more, ordinal;
};

/* Memory of an offset map that has its last size from the beginning; NULL without. */
struct entry *table(long entries) {
    struct entry *made = aligned_alloc(LARGE_PAGE, ((size_t)entries * sizeof *made + LARGE_PAGE - 1) / LARGE_PAGE * LARGE_PAGE);
    if (!made) return NULL;
    madvise(made, (size_t)entries * sizeof *made, MADV_HUGEPAGE);
    memset(made, 1, (size_t)entries * sizeof *made);
    return made;
}

struct round {
    struct entry *entries;
    long count;              /* of entries */
    long record_bytes;
    int checks;
    ks_secret secret;
    uint64_t random;
    uint32_t sum;
};

/* One look and one store at a random entry for each record of a piece, whose lines are asked for 128 at a time. */
static void look(struct round *r, const uint8_t *piece, long records) {
    const uint8_t *keys[AT_ONCE];
    int32_t sizes[AT_ONCE];
    ks_key hashes[AT_ONCE];
    struct entry *places[AT_ONCE];
    uint64_t x = r->random;
    for (int i = 0; i < AT_ONCE; i++) sizes[i] = KEY_BYTES;
    for (long first = 0; first < records; first += AT_ONCE) {
        const int n = records - first < AT_ONCE ? (int)(records - first) : AT_ONCE;
        if (r->checks) {
            for (int i = 0; i < n; i++) keys[i] = piece + (first + i) * r->record_bytes;
            ks_hash_keys(&r->secret, keys, sizes, n, hashes);
        }
        for (int i = 0; i < n; i++) {
            x ^= x << 13, x ^= x >> 7, x ^= x << 17;
            const uint64_t hash = r->checks ? hashes[i].hash : x;
            places[i] = r->entries + (uint64_t)((unsigned __int128)hash * (uint64_t)r->count >> 64);
            __builtin_prefetch(places[i], 1, 2);
        }
        for (int i = 0; i < n; i++) {
            r->sum += places[i]->ordinal;
            places[i]->ordinal = (uint32_t)first;
        }
    }
    r->random = x;
}

/* A hash, a look and a store for each of `n` keys, one after the other in memory. */
void puts_of(struct entry *entries, long count, const uint8_t *keys, long n) {
    struct round r = {.entries = entries, .count = count, .record_bytes = KEY_BYTES, .checks = 1};
    ks_secret_start(&r.secret, (const uint8_t *)"sixteen of bytes", 1);
    look(&r, keys, n);
    memcpy(entries, &r.sum, sizeof r.sum); /* so that nothing is left out */
}

/* Reads [0, size) of a file in pieces of Kafka's default buffer, and looks at each as a first pass; 0, or -1. */
static int read_all(struct round *r, int fd, uint8_t *piece, long size, int first_pass) {
    for (long at = 0; at < size;) {
        ssize_t got = pread(fd, piece, PIECE_BYTES, at);
        if (got <= 0) return -1;
        at += got;
        if (!first_pass) continue;
        if (r->checks) r->sum += ks_crc32c(0, piece, (size_t)got);
        look(r, piece, got / r->record_bytes);
    }
    return 0;
}

/* The files once, a part of them again, and what stays, in the same pieces; 0, or -1. */
int round_of(const int *fds, const long *sizes, const long *again, int n, int out, long written, int rebuilt,
             struct entry *entries, long count, long record_bytes, int checks) {
    struct round r = {.entries = entries, .count = count, .record_bytes = record_bytes, .checks = checks,
                      .random = 88172645463325252u};
    uint8_t *piece = malloc(PIECE_BYTES);
    int failed = !piece;
    ks_secret_start(&r.secret, (const uint8_t *)"sixteen of bytes", 1);
    if (piece) memset(piece, 1, PIECE_BYTES);
    for (int i = 0; i < n && !failed; i++) failed = read_all(&r, fds[i], piece, sizes[i], 1);
    for (int i = 0; i < n && !failed; i++) failed = read_all(&r, fds[i], piece, again[i], 0);
    for (long at = 0; at < written && !failed; at += PIECE_BYTES) {
        if (checks && rebuilt) r.sum += ks_crc32c(0, piece, PIECE_BYTES);
        failed = pwrite(out, piece, PIECE_BYTES, at) != PIECE_BYTES;
    }
    memcpy(entries, &r.sum, sizeof r.sum); /* so that nothing is left out */
    free(piece);
    return failed ? -1 : 0;
}
