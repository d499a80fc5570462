#include "siphash.h"

/* The same steps for eight inputs of one length side by side: 1.4 to 3.4 ns for each of 16 bytes, instead of 10. With the
   vectors of AVX2, which has no rotation, it takes 19, so that this is for AVX-512 alone. */

#if defined(__x86_64__) && defined(__GNUC__)

typedef uint64_t ks_eight __attribute__((vector_size(64)));

#define KS_EACH_OF(word)                                                                                      \
    (ks_eight){word(inputs[0]), word(inputs[1]), word(inputs[2]), word(inputs[3]), word(inputs[4]), word(inputs[5]), \
               word(inputs[6]), word(inputs[7])}
#define KS_ALL(x) ((ks_eight){} + (x))

__attribute__((target("avx512f,avx512vl"))) static void ks_eight_avx512(
    const uint8_t *const *inputs, size_t n, const uint64_t key[2], uint64_t *low, uint64_t *high) {
    ks_eight v0 = KS_ALL(key[0] ^ 0x736f6d6570736575u), v1 = KS_ALL(key[1] ^ 0x646f72616e646f6du ^ 0xee);
    ks_eight v2 = KS_ALL(key[0] ^ 0x6c7967656e657261u), v3 = KS_ALL(key[1] ^ 0x7465646279746573u), word;
    size_t at = 0;
#define KS_WORD(input) ks_load_le64((input) + at)
#define KS_TAIL(input) ks_load_tail((input) + at, n & 7)
    for (; at + 8 <= n; at += 8) {
        word = KS_EACH_OF(KS_WORD);
        v3 ^= word;
        KS_SIP_ROUND;
        v0 ^= word;
    }
    word = KS_ALL((uint64_t)n << 56);
    if (n & 7) word |= KS_EACH_OF(KS_TAIL);
    v3 ^= word;
    KS_SIP_ROUND;
    v0 ^= word;
    v2 ^= 0xee;
    for (int i = 0; i < 3; i++) KS_SIP_ROUND;
    word = v0 ^ v1 ^ v2 ^ v3;
    memcpy(low, &word, sizeof word);
    v1 ^= 0xdd;
    for (int i = 0; i < 3; i++) KS_SIP_ROUND;
    word = v0 ^ v1 ^ v2 ^ v3;
    memcpy(high, &word, sizeof word);
}

static ks_siphash_eight *ks_chosen;

__attribute__((constructor)) static void ks_choose(void) {
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl")) ks_chosen = ks_eight_avx512;
}

ks_siphash_eight *ks_siphash_at_once(void) { return ks_chosen; }

#else

ks_siphash_eight *ks_siphash_at_once(void) { return NULL; }

#endif
