#include "columns/gather.h"

/* ---- a range of rows ------------------------------------------------------------------------------------------ */

static inline void ks_apply_nulls(const ks_column *c, int64_t row, int64_t n, ks_bytes *out) {
    if (!c->validity) return;
    for (int64_t i = 0; i < n; i++)
        if (!ks_bit(c->validity, c->offset + row + i)) out[i].n = -1;
}

/* Gathers rows between offsets, from offset `at` on. All rows are sound if no difference of offsets is negative. A
   difference can overflow only if an earlier one is negative. */
#define KS_GATHER_OFFSETS(load)                                                              \
    do {                                                                                     \
        for (; i < n; i++) {                                                                 \
            int64_t from = load(c->offsets, at + i), to = load(c->offsets, at + i + 1);      \
            uint64_t size = (uint64_t)to - (uint64_t)from;                                   \
            wrong |= (uint64_t)from | ((uint64_t)from - (uint64_t)c->low) | size |           \
                     ((uint64_t)c->high - (uint64_t)to) | (INT32_MAX - size);                \
            out[i].p = (const uint8_t *)((uintptr_t)c->data + (uintptr_t)from);              \
            out[i].n = (int64_t)size;                                                        \
        }                                                                                    \
    } while (0)

static int ks_gather_offsets_portable(const ks_column *c, int64_t at, int64_t n, ks_bytes *out) {
    uint64_t wrong = 0;
    int64_t i = 0;
    if (c->layout == KS_OFFSETS32) KS_GATHER_OFFSETS(ks_i32);
    else KS_GATHER_OFFSETS(ks_i64);
    return !(wrong >> 63);
}

static int (*ks_gather_offsets)(const ks_column *, int64_t, int64_t, ks_bytes *) = ks_gather_offsets_portable;

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>

/* The same as ks_gather_offsets_portable, four rows at a time. */
__attribute__((target("avx2"))) static int ks_gather_offsets_wide(const ks_column *c, int64_t at, int64_t n,
                                                                  ks_bytes *out) {
    const __m256i data = _mm256_set1_epi64x((int64_t)(uintptr_t)c->data), largest = _mm256_set1_epi64x(INT32_MAX);
    const __m256i low = _mm256_set1_epi64x(c->low), high = _mm256_set1_epi64x(c->high);
    __m256i signs = _mm256_setzero_si256();
    uint64_t wrong = 0;
    int64_t i = 0;
    for (; i + 4 <= n; i += 4) {
        __m256i from, to, size, start, even, odd;
        if (c->layout == KS_OFFSETS32) {
            _mm_prefetch((const char *)((uintptr_t)c->offsets + 4 * (uintptr_t)(at + i) + 2048), _MM_HINT_T0);
            from = _mm256_cvtepi32_epi64(_mm_loadu_si128((const __m128i *)(c->offsets + 4 * (at + i))));
            to = _mm256_cvtepi32_epi64(_mm_loadu_si128((const __m128i *)(c->offsets + 4 * (at + i) + 4)));
        } else {
            _mm_prefetch((const char *)((uintptr_t)c->offsets + 8 * (uintptr_t)(at + i) + 2048), _MM_HINT_T0);
            from = _mm256_loadu_si256((const __m256i *)(c->offsets + 8 * (at + i)));
            to = _mm256_loadu_si256((const __m256i *)(c->offsets + 8 * (at + i) + 8));
        }
        size = _mm256_sub_epi64(to, from);
        start = _mm256_add_epi64(data, from);
        signs = _mm256_or_si256(signs, _mm256_or_si256(from, _mm256_sub_epi64(from, low)));
        signs = _mm256_or_si256(signs, _mm256_or_si256(size, _mm256_sub_epi64(high, to)));
        signs = _mm256_or_si256(signs, _mm256_sub_epi64(largest, size));
        even = _mm256_unpacklo_epi64(start, size);
        odd = _mm256_unpackhi_epi64(start, size);
        _mm_storeu_si128((__m128i *)&out[i], _mm256_castsi256_si128(even));
        _mm_storeu_si128((__m128i *)&out[i + 1], _mm256_castsi256_si128(odd));
        _mm_storeu_si128((__m128i *)&out[i + 2], _mm256_extracti128_si256(even, 1));
        _mm_storeu_si128((__m128i *)&out[i + 3], _mm256_extracti128_si256(odd, 1));
    }
    if (c->layout == KS_OFFSETS32) KS_GATHER_OFFSETS(ks_i32);
    else KS_GATHER_OFFSETS(ks_i64);
    return !(wrong >> 63) && _mm256_movemask_pd(_mm256_castsi256_pd(signs)) == 0;
}

__attribute__((constructor)) static void ks_gather_choose(void) {
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2")) ks_gather_offsets = ks_gather_offsets_wide;
}
#endif

/* The end of the readable memory after the rows; NULL if it is not known. Null rows start before it, too. */
static const uint8_t *ks_readable(const ks_column *c) {
    switch (c->layout) {
    case KS_STRIDED:
    case KS_PADDED: return c->stride > 0 ? c->data + (c->offset + c->length - 1) * c->stride + c->width : NULL;
    case KS_OFFSETS32:
    case KS_OFFSETS64: return c->high > c->low ? c->data + c->high : NULL;
    case KS_DICTIONARY: return c->items->length > 0 ? ks_readable(c->items) : NULL;
    default: return NULL;
    }
}

/* Returns how many of the first `n` rows have KS_SLACK readable bytes each, with `slack` 1. If the first row has not,
   returns `n` with `slack` 0. Checks each row: another thread may change the offsets, so they might not rise. */
static int64_t ks_roomy(const ks_column *c, const ks_bytes *rows, int64_t n, int *slack) {
    uintptr_t last = (uintptr_t)ks_readable(c), left = 0;
    int64_t roomy = 0;
    *slack = 0;
    if (last < KS_SLACK) return n;
    last -= KS_SLACK;
    for (int64_t i = 0; i < n; i++) left |= last - (uintptr_t)rows[i].p; /* negative if a row starts after `last` */
    if ((intptr_t)left >= 0) roomy = n;
    else while (roomy < n && (uintptr_t)rows[roomy].p <= last) roomy++;
    if (roomy == 0) return n;
    *slack = 1;
    return roomy;
}

int64_t ks_gather(const ks_column *c, int64_t row, int64_t n, ks_bytes *out, int *slack, int *fault) {
    int64_t at = c->offset + row, i;
    *fault = KS_COLUMN_FINE;
    switch (c->layout) {
    case KS_STRIDED:
        for (i = 0; i < n; i++) { out[i].p = c->data + (at + i) * c->stride; out[i].n = c->width; }
        ks_apply_nulls(c, row, n, out);
        return ks_roomy(c, out, n, slack);
    case KS_OFFSETS32:
    case KS_OFFSETS64:
        if (!ks_gather_offsets(c, at, n, out)) break;
        ks_apply_nulls(c, row, n, out);
        return ks_roomy(c, out, n, slack);
    }
    for (i = 0; i < n; i++)
        if ((*fault = ks_any_row(c, row + i, &out[i]))) break;
    return ks_roomy(c, out, i, slack);
}

int64_t ks_gather_times(const ks_column *c, int64_t row, int64_t n, int64_t now, int64_t *out, int *fault) {
    int64_t at = c->offset + row, i, time, divisor = c->divisor;
    *fault = KS_COLUMN_FINE;
    if (c->layout != KS_TIMES) { /* KS_ABSENT */
        for (i = 0; i < n; i++) out[i] = now;
        return n;
    }
    if (c->width == 8 && c->stride == 8 && !c->validity && !c->has_nat && divisor == 1 && c->multiplier == 1) {
        uint64_t wrong = 0;
        memcpy(out, c->data + 8 * at, 8 * (size_t)n);
        for (i = 0; i < n; i++) wrong |= (uint64_t)out[i] + 1; /* a sign bit: below -1, or the largest, handled below */
        if (!(wrong >> 63)) return n;
    }
    for (i = 0; i < n; i++) {
        if (c->validity && !ks_bit(c->validity, at + i)) { out[i] = now; continue; }
        time = ks_number(c->data + (at + i) * c->stride, c->width, c->is_unsigned);
        if (time == INT64_MIN && c->has_nat) { out[i] = now; continue; }
        if (divisor == 1000) time = time >= 0 ? time / 1000 : time == -1000 ? -1 : -2;
        else if (divisor == 1000000) time = time >= 0 ? time / 1000000 : time == -1000000 ? -1 : -2;
        else if (divisor != 1) time = time >= 0 ? time / divisor : time == -divisor ? -1 : -2;
        else if (c->multiplier != 1)
            time = time < 0 || time > INT64_MAX / c->multiplier ? -2 : time * c->multiplier;
        if (time < -1) { *fault = KS_TIME_RANGE; return i; }
        out[i] = time;
    }
    return n;
}

int64_t ks_gather_no_headers(const ks_column *c, int64_t row, int64_t n, ks_bytes none, ks_bytes *out) {
    int64_t at = c->offset + row, i = 0, from, to;
    if (c->layout == KS_LIST32 && !c->validity) { /* the usual layout, in a separate loop */
        const int64_t low = c->low, high = c->high;
        for (; i < n; i++) {
            from = ks_i32(c->offsets, at + i);
            if (ks_i32(c->offsets, at + i + 1) != from || from < low || from > high) break;
            out[i] = none;
        }
        return i;
    }
    for (; i < n; i++) {
        if (ks_list_row(c, row + i, &from, &to) || from != to) break;
        out[i] = none;
    }
    return i;
}

int64_t ks_headers_size(const ks_column *c, int64_t from, int64_t to) {
    int64_t size = ks_uvarint_size((uint64_t)(to - from) << 1);
    ks_bytes name, value;
    int fault;
    for (int64_t i = from; i < to; i++) {
        if ((fault = ks_any_row(c->names, i, &name)) || (fault = ks_any_row(c->items, i, &value))) return -fault;
        if (name.n < 0) return -KS_NULL_NAME;
        size += ks_sized(name.n) + ks_sized(value.n);
        if (size > INT32_MAX) return -KS_HEADERS_TOO_LARGE;
    }
    return size;
}

int64_t ks_put_headers(const ks_column *c, int64_t from, int64_t to, uint8_t *out, int64_t room) {
    uint8_t *p = out, *end = out + room;
    ks_bytes name, value;
    if (room < 10) return 0;
    p = ks_put_uvarint(p, (uint64_t)(to - from) << 1);
    for (int64_t i = from; i < to; i++) {
        if (ks_any_row(c->names, i, &name) || ks_any_row(c->items, i, &value) || name.n < 0) return 0;
        if (name.n > end - p || value.n > end - p || ks_sized(name.n) + ks_sized(value.n) > end - p) return 0;
        p = ks_put_field(p, name.p, name.n);
        p = ks_put_field(p, value.p, value.n);
    }
    return p - out;
}
