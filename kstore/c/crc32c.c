/* The arithmetic. Bits are reflected: bit 31 of a checksum is the coefficient of x^0. Running the CRC register over a
 * word of zeros multiplies it by x^64 modulo the polynomial. The carry-less product of two reflected 32-bit values is
 * their product times x, and running a zero register over that word multiplies by x^32 and reduces. So "move a
 * checksum i words ahead" is step64(0, clmul(crc, x^(64 i - 33))). ks_powers[i] is x^(64 i - 33); the first is x^31,
 * which is 1 in reflected bits; each further one is the one before it, run over a word of zeros. Every constant below
 * is an entry of that table.
 */
#include "crc32c.h"

#include <string.h>

#define KS_CRC_POLYNOMIAL 0x82F63B78u

typedef uint32_t (*ks_crc32c_function)(uint32_t crc, const uint8_t *p, size_t n);

/* A little-endian word, as the CRC instructions expect it. */
static inline uint64_t ks_crc_load64(const uint8_t *p) {
    uint64_t word;
    memcpy(&word, p, 8);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    word = __builtin_bswap64(word);
#endif
    return word;
}

/* ---- table ---------------------------------------------------------------------------------------------------- */

static uint32_t ks_crc_tables[8][256]; /* [k][b]: the byte b followed by k zero bytes */

static void ks_crc_make_tables(void) {
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++) crc = (crc >> 1) ^ (KS_CRC_POLYNOMIAL & (0u - (crc & 1)));
        ks_crc_tables[0][byte] = crc;
    }
    for (int k = 1; k < 8; k++)
        for (int byte = 0; byte < 256; byte++) {
            uint32_t before = ks_crc_tables[k - 1][byte];
            ks_crc_tables[k][byte] = (before >> 8) ^ ks_crc_tables[0][before & 0xff];
        }
}

static uint32_t ks_crc32c_table(uint32_t crc, const uint8_t *p, size_t n) {
    crc = ~crc;
    for (; n >= 8; p += 8, n -= 8) {
        uint64_t word = ks_crc_load64(p) ^ crc;
        crc = 0;
        for (int k = 0; k < 8; k++) crc ^= ks_crc_tables[7 - k][(word >> (8 * k)) & 0xff];
    }
    for (; n; n--) crc = (crc >> 8) ^ ks_crc_tables[0][(crc ^ *p++) & 0xff];
    return ~crc;
}

/* ---- machine features for `streams` ---------------------------------------------------------------------------- */

#if defined(__x86_64__) && defined(__GNUC__)

#include <immintrin.h>
#if defined(__clang__) && __clang_major__ >= 14
#define KS_CRC_FEATURES "sse4.2,pclmul,crc32" /* for clang, SSE4.2 does not imply the CRC instruction */
#else
#define KS_CRC_FEATURES "sse4.2,pclmul"
#endif
#define KS_CRC_HARDWARE __attribute__((target(KS_CRC_FEATURES)))
#define KS_CRC_STREAMS_FROM 96 /* for fewer bytes, one chain is at least as fast as three and a merge */

KS_CRC_HARDWARE static inline uint64_t ks_crc_step64(uint64_t crc, uint64_t word) {
    return _mm_crc32_u64(crc, word);
}

KS_CRC_HARDWARE static inline uint64_t ks_crc_clmul(uint64_t a, uint32_t b) {
    __m128i product = _mm_clmulepi64_si128(_mm_cvtsi64_si128((long long)a), _mm_cvtsi32_si128((int)b), 0);
    return (uint64_t)_mm_cvtsi128_si64(product);
}

static int ks_crc_has_hardware(void) {
    __builtin_cpu_init();
    return __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul");
}

#elif defined(__aarch64__) && defined(__GNUC__) && (defined(__linux__) || defined(__APPLE__))

#define KS_CRC_HARDWARE
#define KS_CRC_STREAMS_FROM 2048 /* a merge costs some 80 cycles for the product below */

/* Assembly, since arm_acle.h declares the intrinsic only with flags that each compiler spells differently. */
static inline uint64_t ks_crc_step64(uint64_t crc, uint64_t word) {
    uint32_t next = (uint32_t)crc;
    __asm__(".arch_extension crc\n\tcrc32cx %w0, %w0, %x1" : "+r"(next) : "r"(word));
    return next;
}

/* Many ARMv8 cores have CRC but not PMULL, so the product is computed bit by bit; merges are rare. */
static inline uint64_t ks_crc_clmul(uint64_t a, uint32_t b) {
    uint64_t product = 0;
    for (int bit = 0; bit < 32; bit++) product ^= (a << bit) & (0 - (uint64_t)((b >> bit) & 1));
    return product;
}

#if defined(__APPLE__)
static int ks_crc_has_hardware(void) { return 1; } /* every ARM Mac has it */
#else
#include <sys/auxv.h>
static int ks_crc_has_hardware(void) { return (getauxval(AT_HWCAP) & (1 << 7)) != 0; } /* HWCAP_CRC32 */
#endif

#endif

/* ---- streams --------------------------------------------------------------------------------------------------- */

#ifdef KS_CRC_HARDWARE

#define KS_CRC_STREAM_WORDS 512 /* the longest stream: with 12 KiB between merges their cost is negligible */

static uint32_t ks_powers[2 * KS_CRC_STREAM_WORDS + 1];

KS_CRC_HARDWARE static void ks_crc_make_powers(void) {
    uint64_t power = 1; /* x^31, reflected */
    for (int i = 1; i <= 2 * KS_CRC_STREAM_WORDS; i++) {
        ks_powers[i] = (uint32_t)power;
        power = ks_crc_step64(power, 0);
    }
}

/* The register after three consecutive streams of `words` words each. */
KS_CRC_HARDWARE static inline uint64_t ks_crc_three(uint64_t crc, const uint8_t *p, size_t words) {
    uint64_t second = 0, third = 0;
    size_t stream = 8 * words;
    for (const uint8_t *end = p + stream; p != end; p += 8) {
        crc = ks_crc_step64(crc, ks_crc_load64(p));
        second = ks_crc_step64(second, ks_crc_load64(p + stream));
        third = ks_crc_step64(third, ks_crc_load64(p + 2 * stream));
    }
    crc = ks_crc_clmul(crc, ks_powers[2 * words]) ^ ks_crc_clmul(second, ks_powers[words]);
    return ks_crc_step64(0, crc) ^ third;
}

/* The register, not inverted before or after: three streams while enough bytes are left, then one chain. */
KS_CRC_HARDWARE static inline uint32_t ks_crc_run(uint64_t crc, const uint8_t *p, size_t n) {
    const uint8_t *start = p;
    for (; n >= 24 * KS_CRC_STREAM_WORDS; p += 24 * KS_CRC_STREAM_WORDS, n -= 24 * KS_CRC_STREAM_WORDS)
        crc = ks_crc_three(crc, p, KS_CRC_STREAM_WORDS);
    if (n >= KS_CRC_STREAMS_FROM) {
        size_t words = n / 24;
        crc = ks_crc_three(crc, p, words);
        p += 24 * words;
        n -= 24 * words;
    }
    for (; n >= 8; p += 8, n -= 8) crc = ks_crc_step64(crc, ks_crc_load64(p));
    if (n) {
        /* Fewer than 8 bytes are left. Zeros before them do not change a zero register. So these bytes, combined with
         * the first n bytes of the register, become the end of a word; the register's other bytes move down. */
        uint64_t word = 0;
        if (p - start >= 8)
            word = ks_crc_load64(p + n - 8) >> (64 - 8 * n);
        else
            for (size_t i = 0; i < n; i++) word |= (uint64_t)p[i] << (8 * i);
        crc = ks_crc_step64(0, (word ^ crc) << (64 - 8 * n)) ^ (crc >> (8 * n));
    }
    return (uint32_t)crc;
}

KS_CRC_HARDWARE static uint32_t ks_crc32c_streams(uint32_t crc, const uint8_t *p, size_t n) {
    return ~ks_crc_run((uint32_t)~crc, p, n);
}

#endif

/* ---- fold ------------------------------------------------------------------------------------------------------ */

#if defined(KS_CRC_HARDWARE) && defined(__x86_64__)

#define KS_CRC_FOLD_FROM 384
#define KS_CRC_WIDE __attribute__((target("avx512f,vpclmulqdq," KS_CRC_FEATURES)))

/* Moves the four 128-bit lanes of `sum` ahead by the distance of `powers`, and adds `next`. */
KS_CRC_WIDE static inline __m512i ks_crc_fold(__m512i sum, __m512i powers, __m512i next) {
    __m512i first = _mm512_clmulepi64_epi128(sum, powers, 0x00);
    __m512i last = _mm512_clmulepi64_epi128(sum, powers, 0x11);
    return _mm512_ternarylogic_epi64(first, last, next, 0x96); /* first ^ last ^ next */
}

/* A lane's low half comes first in the input, so it lies one word further from the target than its high half. */
KS_CRC_WIDE static inline __m512i ks_crc_distance(int words) {
    return _mm512_broadcast_i32x4(_mm_set_epi64x(ks_powers[words], ks_powers[words + 1]));
}

/* Folds the input into four registers of 64 bytes, and these into one, which has the same remainder as the folded
 * input: running the CRC instruction over its 64 bytes yields the checksum register. */
KS_CRC_WIDE static uint32_t ks_crc32c_fold(uint32_t crc, const uint8_t *p, size_t n) {
    if (n < KS_CRC_FOLD_FROM) return ks_crc32c_streams(crc, p, n);
    __m512i a = _mm512_loadu_si512(p), b = _mm512_loadu_si512(p + 64);
    __m512i c = _mm512_loadu_si512(p + 128), d = _mm512_loadu_si512(p + 192);
    a = _mm512_xor_si512(a, _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)~crc)));
    __m512i far = ks_crc_distance(4 * 8), near = ks_crc_distance(8);
    for (p += 256, n -= 256; n >= 256; p += 256, n -= 256) {
        a = ks_crc_fold(a, far, _mm512_loadu_si512(p));
        b = ks_crc_fold(b, far, _mm512_loadu_si512(p + 64));
        c = ks_crc_fold(c, far, _mm512_loadu_si512(p + 128));
        d = ks_crc_fold(d, far, _mm512_loadu_si512(p + 192));
    }
    a = ks_crc_fold(ks_crc_fold(ks_crc_fold(a, near, b), near, c), near, d);
    for (; n >= 64; p += 64, n -= 64) a = ks_crc_fold(a, near, _mm512_loadu_si512(p));
    uint8_t rest[64];
    _mm512_storeu_si512(rest, a);
    return ~ks_crc_run(ks_crc_run(0, rest, 64), p, n);
}

static int ks_crc_has_fold(void) {
    return ks_crc_has_hardware() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("vpclmulqdq");
}

/* ---- mixed ----------------------------------------------------------------------------------------------------- */

/* Different units of a processor execute the CRC instruction and the product, each 8 bytes per cycle if products are 32
 * bytes wide. So a block is split in two: its first bytes are folded while three streams run over the others. */
#define KS_CRC_MIXED_FROM 768
#define KS_CRC_MIXED_WORDS 4 /* words that each stream advances while 128 bytes are folded */
#define KS_CRC_MIXED_STEP (128 + 24 * KS_CRC_MIXED_WORDS)
#define KS_CRC_MIXED_MOST (2 * KS_CRC_STREAM_WORDS / (3 * KS_CRC_MIXED_WORDS)) /* steps: the limit of ks_powers */
#define KS_CRC_HALF __attribute__((target("avx2,vpclmulqdq," KS_CRC_FEATURES)))

KS_CRC_HALF static inline __m256i ks_crc_load256(const uint8_t *p) { return _mm256_loadu_si256((const __m256i *)p); }

/* As `ks_crc_fold` and `ks_crc_distance`, with two lanes. */
KS_CRC_HALF static inline __m256i ks_crc_fold256(__m256i sum, __m256i powers, __m256i next) {
    __m256i first = _mm256_clmulepi64_epi128(sum, powers, 0x00);
    __m256i last = _mm256_clmulepi64_epi128(sum, powers, 0x11);
    return _mm256_xor_si256(_mm256_xor_si256(first, last), next);
}

KS_CRC_HALF static inline __m256i ks_crc_distance256(int words) {
    return _mm256_broadcastsi128_si256(_mm_set_epi64x(ks_powers[words], ks_powers[words + 1]));
}

/* The register after `steps` steps of `KS_CRC_MIXED_STEP` bytes. */
KS_CRC_HALF static inline uint64_t ks_crc_both(uint64_t crc, const uint8_t *p, size_t steps) {
    size_t words = KS_CRC_MIXED_WORDS * steps, stream = 8 * words;
    const uint8_t *q = p + 128 * steps, *end = q;
    uint64_t first = 0, second = 0, third = 0;
    __m256i a = ks_crc_load256(p), b = ks_crc_load256(p + 32), c = ks_crc_load256(p + 64), d = ks_crc_load256(p + 96);
    a = _mm256_xor_si256(a, _mm256_zextsi128_si256(_mm_cvtsi64_si128((long long)crc)));
    __m256i far = ks_crc_distance256(4 * 4), near = ks_crc_distance256(4);
    for (p += 128;; p += 128) {
        for (int i = 0; i < KS_CRC_MIXED_WORDS; i++, q += 8) {
            first = ks_crc_step64(first, ks_crc_load64(q));
            second = ks_crc_step64(second, ks_crc_load64(q + stream));
            third = ks_crc_step64(third, ks_crc_load64(q + 2 * stream));
        }
        if (p == end) break;
        a = ks_crc_fold256(a, far, ks_crc_load256(p));
        b = ks_crc_fold256(b, far, ks_crc_load256(p + 32));
        c = ks_crc_fold256(c, far, ks_crc_load256(p + 64));
        d = ks_crc_fold256(d, far, ks_crc_load256(p + 96));
    }
    a = ks_crc_fold256(ks_crc_fold256(ks_crc_fold256(a, near, b), near, c), near, d);
    uint8_t rest[32];
    _mm256_storeu_si256((__m256i *)rest, a);
    crc = ks_crc_clmul(ks_crc_run(0, rest, 32), ks_powers[3 * words]);
    crc ^= ks_crc_clmul(first, ks_powers[2 * words]) ^ ks_crc_clmul(second, ks_powers[words]);
    return ks_crc_step64(0, crc) ^ third;
}

KS_CRC_HALF static uint32_t ks_crc32c_mixed(uint32_t crc, const uint8_t *p, size_t n) {
    uint64_t sum = (uint32_t)~crc;
    while (n >= KS_CRC_MIXED_FROM) {
        size_t steps = n / KS_CRC_MIXED_STEP;
        if (steps > KS_CRC_MIXED_MOST) steps = KS_CRC_MIXED_MOST;
        sum = ks_crc_both(sum, p, steps);
        p += steps * KS_CRC_MIXED_STEP;
        n -= steps * KS_CRC_MIXED_STEP;
    }
    return ~ks_crc_run(sum, p, n);
}

static int ks_crc_has_mixed(void) {
    return ks_crc_has_hardware() && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("vpclmulqdq");
}

#endif

/* ---- the choice ------------------------------------------------------------------------------------------------ */

/* By implementation; NULL if this machine lacks it. Written once, when the module is loaded. */
static ks_crc32c_function ks_crc32c_functions[KS_CRC_IMPLEMENTATIONS];
static ks_crc32c_function ks_crc32c_best = ks_crc32c_table;

__attribute__((constructor)) static void ks_crc_choose(void) {
    ks_crc_make_tables();
    ks_crc32c_functions[KS_CRC_TABLE] = ks_crc32c_table;
#ifdef KS_CRC_HARDWARE
    if (ks_crc_has_hardware()) {
        ks_crc_make_powers();
        ks_crc32c_functions[KS_CRC_STREAMS] = ks_crc32c_best = ks_crc32c_streams;
    }
#ifdef KS_CRC_WIDE
    if (ks_crc_has_mixed()) ks_crc32c_functions[KS_CRC_MIXED] = ks_crc32c_best = ks_crc32c_mixed;
    if (ks_crc_has_fold()) ks_crc32c_functions[KS_CRC_FOLD] = ks_crc32c_best = ks_crc32c_fold;
#endif
#endif
}

uint32_t ks_crc32c(uint32_t crc, const uint8_t *p, size_t n) { return ks_crc32c_best(crc, p, n); }

/* ---- joining two checksums --------------------------------------------------------------------------------------- */

static uint32_t ks_crc_squares[64]; /* x^(2^k), reflected */

/* The product modulo the polynomial, bit by bit: it is needed only a few times per batch. */
static uint32_t ks_crc_multiply(uint32_t a, uint32_t b) {
    uint32_t product = 0;
    for (; a; a <<= 1) {
        product ^= b & (0u - (a >> 31));
        b = (b >> 1) ^ (KS_CRC_POLYNOMIAL & (0u - (b & 1)));
    }
    return product;
}

__attribute__((constructor)) static void ks_crc_make_squares(void) {
    uint32_t power = 1u << 30; /* x */
    for (int k = 0; k < 64; k++, power = ks_crc_multiply(power, power)) ks_crc_squares[k] = power;
}

uint32_t ks_crc32c_joined(uint32_t first, uint32_t second, uint64_t n) {
    for (int k = 3; n; n >>= 1, k++)
        if (n & 1) first = ks_crc_multiply(ks_crc_squares[k], first);
    return first ^ second;
}

const char *ks_crc32c_name(int implementation) {
    static const char *const names[] = {"table", "streams", "mixed", "fold"};
    return names[implementation];
}

int ks_crc32c_present(int implementation) { return ks_crc32c_functions[implementation] != NULL; }

uint32_t ks_crc32c_with(int implementation, uint32_t crc, const uint8_t *p, size_t n) {
    return ks_crc32c_functions[implementation](crc, p, n);
}
