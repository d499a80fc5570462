/* Moving finished rows to where they stay: past the caches, where that is too much for them.

   Memory that a cache does not hold is read before it is written, unless whole lines are written around the caches: then
   a copy takes half of the time. What goes to a cache anyway is faster with plain stores. Nothing here knows Python. */
#ifndef KSTORE_MOVES_H
#define KSTORE_MOVES_H

#include "columns.h"

#define KS_AROUND_FROM ((size_t)24 << 20) /* bytes of a column */

#if defined(__x86_64__) && defined(__GNUC__)
#include <emmintrin.h>

static inline void ks_pause(void) { _mm_pause(); }

static inline void ks_moved_around(void) { _mm_sfence(); }

static void ks_move(uint8_t *to, const uint8_t *from, size_t n, int around) {
    size_t head = (size_t)(-(uintptr_t)to & 63);
    if (!around || n < head + 256) {
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

static inline void ks_pause(void) {}
static inline void ks_moved_around(void) {}
static void ks_move(uint8_t *to, const uint8_t *from, size_t n, int around) { (void)around; memcpy(to, from, n); }

#endif

#define KS_MOVED 512 /* places at a time */

/* Sets bits from row `n` on, which are all 0, as the first `count` of `from` are; others set those of the rows around. */
static void ks_move_bits(uint8_t *to, int64_t n, const uint8_t *from, int64_t count) {
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

/* Moves all of `from`, which has `count` rows, to row `n` and byte `used` of `to`, where there is room. */
static void ks_move_var(ks_var *to, int64_t n, int64_t used, const ks_var *from, int64_t count, const int32_t *buffers,
                        int around) {
    if (to->layout == KS_ABSENT || count == 0) return;
    ks_move_bits(to->valid.p, n, from->valid.p, count);
    if (to->layout == KS_VIEW) {
        ks_view *views = (ks_view *)to->places.p + n;
        memcpy(views, from->places.p, (size_t)count * sizeof *views);
        for (int64_t i = 0; i < count; i++)
            if (views[i].size > 12) views[i].buffer = buffers[views[i].buffer];
        return;
    }
    ks_move(to->data.p + used, from->data.p, (size_t)from->used, around);
    for (int64_t i = 0, some; i < count; i += some) {
        some = count - i < KS_MOVED ? count - i : KS_MOVED;
        if (to->layout == KS_BINARY) {
            const int32_t *source = (const int32_t *)from->places.p + i + 1;
            int32_t moved[KS_MOVED];
            for (int64_t k = 0; k < some; k++) moved[k] = (int32_t)(source[k] + used);
            ks_move(to->places.p + (n + i + 1) * 4, (const uint8_t *)moved, (size_t)some * 4, around);
        } else {
            const int64_t *source = (const int64_t *)from->places.p + i + 1;
            int64_t moved[KS_MOVED];
            for (int64_t k = 0; k < some; k++) moved[k] = source[k] + used;
            ks_move(to->places.p + (n + i + 1) * 8, (const uint8_t *)moved, (size_t)some * 8, around);
        }
    }
}

#endif
