/* SipHash of 128 bits (Aumasson and Bernstein), with a key of 16 bytes that only this process knows.

   The secret key prevents prepared collisions; two given inputs have the same hash with probability 2^-128. Callers
   use one round for each 8 bytes and three at the end, as hash tables do; tests use 2 and 4, as the authors do. */
#ifndef KSTORE_SIPHASH_H
#define KSTORE_SIPHASH_H

#include <stddef.h>

#include "wire.h"

#define KS_ROTATE(x, by) ((x) << (by) | (x) >> (64 - (by)))
#define KS_SIP_ROUND                                                                     \
    do {                                                                                 \
        v0 += v1; v2 += v3; v1 = KS_ROTATE(v1, 13) ^ v0; v3 = KS_ROTATE(v3, 16) ^ v2;    \
        v0 = KS_ROTATE(v0, 32);                                                          \
        v2 += v1; v0 += v3; v1 = KS_ROTATE(v1, 17) ^ v2; v3 = KS_ROTATE(v3, 21) ^ v0;    \
        v2 = KS_ROTATE(v2, 32);                                                          \
    } while (0)

KS_INLINE uint64_t ks_load_le64(const uint8_t *p) {
    uint64_t x;
    memcpy(&x, p, 8);
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    return x;
#else
    return __builtin_bswap64(x);
#endif
}

/* The number whose low bytes are the `n` < 8 bytes at `p`. */
KS_INLINE uint64_t ks_load_tail(const uint8_t *p, size_t n) {
    uint64_t x = 0;
    while (n > 0) x = x << 8 | p[--n];
    return x;
}

/* Stores the two halves of the hash of the `n` bytes at `p` in `out`. */
KS_INLINE void ks_siphash(const uint8_t *p, size_t n, const uint64_t key[2], int rounds, int last_rounds,
                          uint64_t out[2]) {
    uint64_t v0 = key[0] ^ 0x736f6d6570736575u, v1 = key[1] ^ 0x646f72616e646f6du ^ 0xee;
    uint64_t v2 = key[0] ^ 0x6c7967656e657261u, v3 = key[1] ^ 0x7465646279746573u;
    const uint8_t *end = p + (n & ~(size_t)7);
    uint64_t word;
    for (; p != end; p += 8) {
        word = ks_load_le64(p);
        v3 ^= word;
        for (int i = 0; i < rounds; i++) KS_SIP_ROUND;
        v0 ^= word;
    }
    word = (uint64_t)n << 56 | ks_load_tail(p, n & 7);
    v3 ^= word;
    for (int i = 0; i < rounds; i++) KS_SIP_ROUND;
    v0 ^= word;
    v2 ^= 0xee;
    for (int i = 0; i < last_rounds; i++) KS_SIP_ROUND;
    out[0] = v0 ^ v1 ^ v2 ^ v3;
    v1 ^= 0xdd;
    for (int i = 0; i < last_rounds; i++) KS_SIP_ROUND;
    out[1] = v0 ^ v1 ^ v2 ^ v3;
}

#endif
