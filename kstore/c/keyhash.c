#include "keyhash.h"

static void ks_hash_by_siphash(const ks_secret *s, const uint8_t *const *keys, const int32_t *sizes, int n,
                               ks_key *hashes) {
    uint64_t halves[2];
    for (int i = 0; i < n; i++) {
        ks_siphash(keys[i], (size_t)sizes[i], s->siphash, 1, 3, halves);
        hashes[i] = (ks_key){halves[0], (uint32_t)halves[1]};
    }
}

#if defined(__x86_64__) && defined(__GNUC__)

#include <immintrin.h>

/* Lanes: keys hashed in parallel. While an AES round waits for the previous one, rounds of seven other keys start. */
enum { KS_LANES = 8, KS_HASHED_TOGETHER = 128 };

_Static_assert(sizeof(ks_key) == KS_AES_BLOCK, "a block is stored where a hash is, its last 4 bytes behind it");

#define KS_AES __attribute__((target("aes,sse4.1")))

KS_AES static inline void ks_encrypt(const uint8_t (*keys)[KS_AES_BLOCK], __m128i x[KS_LANES]) {
    __m128i key = _mm_loadu_si128((const __m128i *)keys[0]);
    for (int lane = 0; lane < KS_LANES; lane++) x[lane] = _mm_xor_si128(x[lane], key);
    for (int round = 1; round < KS_AES_ROUND_KEYS - 1; round++) {
        key = _mm_loadu_si128((const __m128i *)keys[round]);
        for (int lane = 0; lane < KS_LANES; lane++) x[lane] = _mm_aesenc_si128(x[lane], key);
    }
    key = _mm_loadu_si128((const __m128i *)keys[KS_AES_ROUND_KEYS - 1]);
    for (int lane = 0; lane < KS_LANES; lane++) x[lane] = _mm_aesenclast_si128(x[lane], key);
}

/* A last block of `n` < 16 bytes, followed by a 1 bit. */
KS_AES static inline __m128i ks_padded(const uint8_t *p, size_t n) {
    uint64_t low, high = 0;
    if (n >= 8) {
        low = ks_load_le64(p);
        if (n > 8) high = ks_load_le64(p + n - 8) >> (8 * (16 - n));
        high |= (uint64_t)0x80 << (8 * (n - 8));
    } else {
        low = ks_load_tail(p, n) | (uint64_t)0x80 << (8 * n);
    }
    return _mm_set_epi64x((long long)high, (long long)low);
}

/* The number of blocks of a key; an empty key has one. */
static inline size_t ks_blocks(int32_t size) { return size ? ((size_t)size - 1) / KS_AES_BLOCK + 1 : 1; }

/* As ks_hash_keys, for KS_LANES keys of `blocks` blocks. A hash is the first 12 bytes of the last encrypted block. */
KS_AES static void ks_hash_lanes(const ks_secret *s, const uint8_t *const *keys, const int32_t *sizes, size_t blocks,
                                 ks_key *hashes) {
    const __m128i whole = _mm_loadu_si128((const __m128i *)s->whole);
    const __m128i padded = _mm_loadu_si128((const __m128i *)s->padded);
    const size_t before = (blocks - 1) * KS_AES_BLOCK;
    __m128i x[KS_LANES];
    for (int lane = 0; lane < KS_LANES; lane++) x[lane] = _mm_setzero_si128();
    for (size_t at = 0; at < before; at += KS_AES_BLOCK) {
        for (int lane = 0; lane < KS_LANES; lane++)
            x[lane] = _mm_xor_si128(x[lane], _mm_loadu_si128((const __m128i *)(keys[lane] + at)));
        ks_encrypt(s->rounds, x);
    }
    for (int lane = 0; lane < KS_LANES; lane++) {
        const uint8_t *p = keys[lane] + before;
        const size_t left = (size_t)sizes[lane] - before;
        const __m128i last = left == KS_AES_BLOCK ? _mm_xor_si128(_mm_loadu_si128((const __m128i *)p), whole)
                                                  : _mm_xor_si128(ks_padded(p, left), padded);
        x[lane] = _mm_xor_si128(x[lane], last);
    }
    ks_encrypt(s->rounds, x);
    for (int lane = 0; lane < KS_LANES; lane++) _mm_storeu_si128((__m128i *)(hashes + lane), x[lane]);
}

/* The same for any number of keys. Unused lanes hash the last key. */
static void ks_hash_alike(const ks_secret *s, const uint8_t *const *keys, const int32_t *sizes, int n, size_t blocks,
                          ks_key *hashes) {
    int i = 0;
    for (; n - i >= KS_LANES; i += KS_LANES) ks_hash_lanes(s, keys + i, sizes + i, blocks, hashes + i);
    if (i == n) return;
    const uint8_t *lane_keys[KS_LANES];
    int32_t lane_sizes[KS_LANES];
    ks_key lane_hashes[KS_LANES];
    for (int lane = 0; lane < KS_LANES; lane++) {
        const int of = i + lane < n ? i + lane : n - 1;
        lane_keys[lane] = keys[of];
        lane_sizes[lane] = sizes[of];
    }
    ks_hash_lanes(s, lane_keys, lane_sizes, blocks, lane_hashes);
    memcpy(hashes + i, lane_hashes, (size_t)(n - i) * sizeof *hashes);
}

/* Hashes up to KS_HASHED_TOGETHER keys. Keys with the same number of blocks are hashed together even if they are not
   neighbours: if sizes vary from key to key, few neighbours have the same number. */
static void ks_hash_together(const ks_secret *s, const uint8_t *const *keys, const int32_t *sizes, int n, ks_key *hashes) {
    const uint8_t *some_keys[KS_HASHED_TOGETHER];
    int32_t some_sizes[KS_HASHED_TOGETHER];
    ks_key some_hashes[KS_HASHED_TOGETHER];
    uint8_t some[KS_HASHED_TOGETHER], others[KS_HASHED_TOGETHER];
    const size_t first = ks_blocks(sizes[0]);
    int alike = 1;
    while (alike < n && ks_blocks(sizes[alike]) == first) alike++;
    if (alike == n) {
        ks_hash_alike(s, keys, sizes, n, first, hashes);
        return;
    }
    for (int i = 0; i < n; i++) others[i] = (uint8_t)i;
    while (n) {
        const size_t blocks = ks_blocks(sizes[others[0]]);
        int taken = 0, left = 0;
        for (int i = 0; i < n; i++) {
            const uint8_t number = others[i];
            const int is_alike = ks_blocks(sizes[number]) == blocks;
            some[taken] = others[left] = number; /* written to both; only one of the two counts below advances */
            some_keys[taken] = keys[number];
            some_sizes[taken] = sizes[number];
            taken += is_alike;
            left += !is_alike;
        }
        ks_hash_alike(s, some_keys, some_sizes, taken, blocks, some_hashes);
        for (int i = 0; i < taken; i++) hashes[some[i]] = some_hashes[i];
        n = left;
    }
}

static void ks_hash_by_aes(const ks_secret *s, const uint8_t *const *keys, const int32_t *sizes, int n,
                           ks_key *hashes) {
    for (int i = 0; i < n; i += KS_HASHED_TOGETHER)
        ks_hash_together(s, keys + i, sizes + i, n - i < KS_HASHED_TOGETHER ? n - i : KS_HASHED_TOGETHER, hashes + i);
}

/* The next key of AES-128's schedule; `assisted` is the previous key after AESKEYGENASSIST. */
KS_AES static __m128i ks_next_round(__m128i key, __m128i assisted) {
    for (int i = 0; i < 3; i++) key = _mm_xor_si128(key, _mm_slli_si128(key, 4));
    return _mm_xor_si128(key, _mm_shuffle_epi32(assisted, 0xff));
}

KS_AES static void ks_schedule(__m128i key, uint8_t (*rounds)[KS_AES_BLOCK]) {
    _mm_storeu_si128((__m128i *)rounds[0], key);
#define KS_ROUND(number, constant)                                         \
    key = ks_next_round(key, _mm_aeskeygenassist_si128(key, (constant))); \
    _mm_storeu_si128((__m128i *)rounds[number], key)
    KS_ROUND(1, 0x01);
    KS_ROUND(2, 0x02);
    KS_ROUND(3, 0x04);
    KS_ROUND(4, 0x08);
    KS_ROUND(5, 0x10);
    KS_ROUND(6, 0x20);
    KS_ROUND(7, 0x40);
    KS_ROUND(8, 0x80);
    KS_ROUND(9, 0x1b);
    KS_ROUND(10, 0x36);
}

/* K1 is a block of 16 bytes of value 1, encrypted by AES with the secret; K2 and K3 are the same with 2 and 3. */
KS_AES static void ks_start_aes(ks_secret *s, const uint8_t bytes[16]) {
    __m128i x[KS_LANES];
    for (int lane = 0; lane < KS_LANES; lane++) x[lane] = _mm_set1_epi8((char)(lane + 1));
    ks_schedule(_mm_loadu_si128((const __m128i *)bytes), s->rounds);
    ks_encrypt(s->rounds, x);
    ks_schedule(x[0], s->rounds);
    _mm_storeu_si128((__m128i *)s->whole, x[1]);
    _mm_storeu_si128((__m128i *)s->padded, x[2]);
}

void ks_secret_start(ks_secret *s, const uint8_t bytes[16], int by_aes) {
    memcpy(s->siphash, bytes, sizeof s->siphash);
    __builtin_cpu_init();
    s->by_aes = by_aes && __builtin_cpu_supports("aes") && __builtin_cpu_supports("sse4.1");
    if (s->by_aes) ks_start_aes(s, bytes);
}

void ks_hash_keys(const ks_secret *s, const uint8_t *const *keys, const int32_t *sizes, int n, ks_key *hashes) {
    (s->by_aes ? ks_hash_by_aes : ks_hash_by_siphash)(s, keys, sizes, n, hashes);
}

#else

void ks_secret_start(ks_secret *s, const uint8_t bytes[16], int by_aes) {
    (void)by_aes;
    memcpy(s->siphash, bytes, sizeof s->siphash);
    s->by_aes = 0;
}

void ks_hash_keys(const ks_secret *s, const uint8_t *const *keys, const int32_t *sizes, int n, ks_key *hashes) {
    ks_hash_by_siphash(s, keys, sizes, n, hashes);
}

#endif
