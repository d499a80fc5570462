/* The hash of Kafka's default partitioner (FORMAT 13): murmur2 with its fixed seed, 32 bits, little-endian groups. */
#ifndef KSTORE_MURMUR2_H
#define KSTORE_MURMUR2_H

#include <stddef.h>
#include <stdint.h>

#define KS_MURMUR2_FACTOR 0x5bd1e995u

static inline uint32_t ks_murmur2(const uint8_t *p, size_t n) {
    uint32_t h = 0x9747b28cu ^ (uint32_t)n;
    for (; n >= 4; p += 4, n -= 4) {
        uint32_t k = (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
        k *= KS_MURMUR2_FACTOR;
        k ^= k >> 24;
        h = h * KS_MURMUR2_FACTOR ^ k * KS_MURMUR2_FACTOR;
    }
    if (n > 0) {
        if (n > 2) h ^= (uint32_t)p[2] << 16;
        if (n > 1) h ^= (uint32_t)p[1] << 8;
        h = (h ^ p[0]) * KS_MURMUR2_FACTOR;
    }
    h = (h ^ h >> 13) * KS_MURMUR2_FACTOR;
    return h ^ h >> 15;
}

/* Kafka masks the sign away; it does not take the absolute value. `partitions` is 1 or more. */
static inline int32_t ks_partition_of(const uint8_t *key, size_t n, int32_t partitions) {
    return (int32_t)((ks_murmur2(key, n) & 0x7fffffffu) % (uint32_t)partitions);
}

/* The same with a division made a multiplication (Lemire, Kaser and Kurz: exact for 32 bits); `inverse` is that of
   ks_inverse(partitions). A hash is a chain of multiplications already, and nothing overlaps with its end. */
static inline uint64_t ks_inverse(int32_t partitions) { return UINT64_MAX / (uint32_t)partitions + 1; }

static inline int32_t ks_partition_by(const uint8_t *key, size_t n, int32_t partitions, uint64_t inverse) {
    uint64_t fraction = inverse * (ks_murmur2(key, n) & 0x7fffffffu);
    return (int32_t)(((unsigned __int128)fraction * (uint32_t)partitions) >> 64);
}

#endif
