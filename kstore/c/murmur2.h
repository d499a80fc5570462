/* The hash of Kafka's default partitioner (FORMAT 13): murmur2 with its fixed seed, 32 bits, little-endian groups. */
#ifndef KSTORE_MURMUR2_H
#define KSTORE_MURMUR2_H

#include <stddef.h>
#include <stdint.h>

#include "bytes.h"

#define KS_MURMUR2_FACTOR 0x5bd1e995u
#define KS_MURMUR2_SEED 0x9747b28cu

/* Adds the next whole group to the hash. */
static inline uint32_t ks_murmur2_more(uint32_t h, const uint8_t *p) {
    uint32_t k = (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
    k *= KS_MURMUR2_FACTOR;
    k ^= k >> 24;
    return h * KS_MURMUR2_FACTOR ^ k * KS_MURMUR2_FACTOR;
}

/* Adds the last `n` bytes, less than a group, to the hash, and finishes it. */
static inline uint32_t ks_murmur2_end(uint32_t h, const uint8_t *p, size_t n) {
    if (n > 0) {
        if (n > 2) h ^= (uint32_t)p[2] << 16;
        if (n > 1) h ^= (uint32_t)p[1] << 8;
        h = (h ^ p[0]) * KS_MURMUR2_FACTOR;
    }
    h = (h ^ h >> 13) * KS_MURMUR2_FACTOR;
    return h ^ h >> 15;
}

static inline uint32_t ks_murmur2(const uint8_t *p, size_t n) {
    uint32_t h = KS_MURMUR2_SEED ^ (uint32_t)n;
    for (; n >= 4; p += 4, n -= 4) h = ks_murmur2_more(h, p);
    return ks_murmur2_end(h, p, n);
}

/* The partition of a key. Kafka clears the hash's sign bit instead of taking the absolute value. `partitions` >= 1. */
static inline int32_t ks_partition_of(const uint8_t *key, size_t n, int32_t partitions) {
    return (int32_t)((ks_murmur2(key, n) & 0x7fffffffu) % (uint32_t)partitions);
}

/* ks_partition_by multiplies by `inverse`, which is ks_inverse(partitions), instead of dividing (Lemire, Kaser and
   Kurz: exact for 32 bits). Nothing runs in parallel with the end of a hash: a division would add its full latency. */
static inline uint64_t ks_inverse(int32_t partitions) { return UINT64_MAX / (uint32_t)partitions + 1; }

static inline int32_t ks_partition_of_hash(uint32_t hash, int32_t partitions, uint64_t inverse) {
    uint64_t fraction = inverse * (hash & 0x7fffffffu);
    return (int32_t)(((unsigned __int128)fraction * (uint32_t)partitions) >> 64);
}

static inline int32_t ks_partition_by(const uint8_t *key, size_t n, int32_t partitions, uint64_t inverse) {
    return ks_partition_of_hash(ks_murmur2(key, n), partitions, inverse);
}

/* The partitions of `n` keys, -1 for a null. Four keys are hashed in parallel, since a hash is a chain of dependent
   multiplications. If sizes vary, branches on them are unpredictable: so only the longest of the four is tested. */
static inline void ks_partitions_by(const ks_bytes *keys, int64_t n, int32_t partitions, uint64_t inverse, int32_t *out) {
    enum { SIDE = 4 };
    static const uint8_t none[4];
    int64_t i = 0;
    for (; n - i >= SIDE; i += SIDE) {
        uint32_t h[SIDE];
        int64_t size[SIDE], most = 0;
        for (int j = 0; j < SIDE; j++) {
            size[j] = keys[i + j].n < 0 ? 0 : keys[i + j].n;
            h[j] = KS_MURMUR2_SEED ^ (uint32_t)size[j];
            most = size[j] > most ? size[j] : most;
        }
        for (int64_t at = 0; at + 4 <= most; at += 4)
            for (int j = 0; j < SIDE; j++) {
                const int there = at + 4 <= size[j];
                const uint32_t more = ks_murmur2_more(h[j], there ? keys[i + j].p + at : none);
                h[j] = there ? more : h[j];
            }
        for (int j = 0; j < SIDE; j++) {
            const int64_t rest = size[j] & 3, last = rest - (rest > 0);
            const uint8_t *p = rest ? keys[i + j].p + (size[j] - rest) : none;
            const uint32_t end = p[0] | (uint32_t)p[rest >> 1] << 8 * (rest >> 1) | (uint32_t)p[last] << 8 * last;
            const uint32_t more = (h[j] ^ end) * KS_MURMUR2_FACTOR;
            const int32_t partition =
                ks_partition_of_hash(ks_murmur2_end(rest ? more : h[j], p, 0), partitions, inverse);
            out[i + j] = keys[i + j].n < 0 ? -1 : partition;
        }
    }
    for (; i < n; i++)
        out[i] = keys[i].n < 0 ? -1 : ks_partition_by(keys[i].p, (size_t)keys[i].n, partitions, inverse);
}

#endif
