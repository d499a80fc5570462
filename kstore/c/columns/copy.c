#include "columns/copy.h"

#include <stdint.h>
#include <string.h>

#if defined(__x86_64__) && defined(__GNUC__)
#include <emmintrin.h>

void ks_copy_fence(void) { _mm_sfence(); }

void ks_copy_rows(uint8_t *to, const uint8_t *from, size_t n, int uncached) {
    size_t head = (size_t)(-(uintptr_t)to & 63);
    if (!uncached || n < head + 256) {
        memcpy(to, from, n);
        return;
    }
    memcpy(to, from, head);
    to += head;
    from += head;
    n -= head;
    for (; n >= 64; n -= 64, to += 64, from += 64)
        for (int i = 0; i < 64; i += 16) _mm_stream_si128((__m128i *)(to + i), _mm_loadu_si128((const __m128i *)(from + i)));
    memcpy(to, from, n);
}

#else

void ks_copy_fence(void) {}
void ks_copy_rows(uint8_t *to, const uint8_t *from, size_t n, int uncached) { (void)uncached; memcpy(to, from, n); }

#endif

#define KS_COPY_ROWS 512 /* rows whose places are copied at a time */

/* Copies the first `count` bits of `from` to the bits from row `n` on, which are 0; other threads set adjacent bits. */
static void ks_copy_bits(uint8_t *to, int64_t n, const uint8_t *from, int64_t count) {
    uint64_t *words = (uint64_t *)to + n / 64;
    const uint64_t *source = (const uint64_t *)from;
    int shift = (int)(n & 63);
    for (int64_t i = 0; i < count; i += 64, words++, source++) {
        uint64_t bits = ks_little(*source);
        if (count - i < 64) bits &= ((uint64_t)1 << (count - i)) - 1;
        __atomic_fetch_or(words, ks_little(bits << shift), __ATOMIC_RELAXED);
        if (shift && bits >> (64 - shift)) __atomic_fetch_or(words + 1, ks_little(bits >> (64 - shift)), __ATOMIC_RELAXED);
    }
}

void ks_copy_var(ks_var *to, int64_t n, int64_t used, const ks_var *from, int64_t count, const int32_t *buffers,
                 int uncached) {
    if (to->layout == KS_ABSENT || count == 0) return;
    ks_copy_bits(to->valid.p, n, from->valid.p, count);
    if (to->layout == KS_VIEWS) {
        ks_view *views = (ks_view *)to->places.p + n;
        memcpy(views, from->places.p, (size_t)count * sizeof *views);
        for (int64_t i = 0; i < count; i++)
            if (views[i].size > 12) views[i].buffer = buffers[views[i].buffer];
        return;
    }
    ks_copy_rows(to->data.p + used, from->data.p, (size_t)from->used, uncached);
    for (int64_t i = 0, some; i < count; i += some) {
        some = count - i < KS_COPY_ROWS ? count - i : KS_COPY_ROWS;
        if (to->layout == KS_OFFSETS32) {
            const int32_t *source = (const int32_t *)from->places.p + i + 1;
            int32_t moved[KS_COPY_ROWS];
            for (int64_t k = 0; k < some; k++) moved[k] = (int32_t)(source[k] + used);
            ks_copy_rows(to->places.p + (n + i + 1) * 4, (const uint8_t *)moved, (size_t)some * 4, uncached);
        } else {
            const int64_t *source = (const int64_t *)from->places.p + i + 1;
            int64_t moved[KS_COPY_ROWS];
            for (int64_t k = 0; k < some; k++) moved[k] = source[k] + used;
            ks_copy_rows(to->places.p + (n + i + 1) * 8, (const uint8_t *)moved, (size_t)some * 8, uncached);
        }
    }
}
