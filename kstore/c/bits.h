/* Bits by ordinal, in pages that are allocated on demand: a range without a bit takes no memory. */
#ifndef KSTORE_BITS_H
#define KSTORE_BITS_H

#include <stdint.h>
#include <stdlib.h>

enum { KS_PAGE_BITS = 1 << 17, KS_PAGE_WORDS = KS_PAGE_BITS / 64 };

typedef struct {
    uint64_t **pages; /* a page without set bits may be NULL */
    int64_t pages_n, taken;
} ks_bits;

static inline void ks_bits_free(ks_bits *b) {
    for (int64_t i = 0; i < b->pages_n; i++) free(b->pages[i]);
    free(b->pages);
    b->pages = NULL;
    b->pages_n = b->taken = 0;
}

static inline int64_t ks_bits_memory(const ks_bits *b) {
    return b->pages_n * (int64_t)sizeof(uint64_t *) + b->taken * (KS_PAGE_BITS / 8);
}

/* Allocates the pages of the bits [first, end); returns 0, or -1 without memory. Required before a bit is set. */
static inline int ks_bits_reserve(ks_bits *b, int64_t first, int64_t end) {
    if (end > b->pages_n * KS_PAGE_BITS) {
        int64_t n = (end + KS_PAGE_BITS - 1) / KS_PAGE_BITS;
        if (n < b->pages_n + b->pages_n / 4) n = b->pages_n + b->pages_n / 4;
        uint64_t **pages = realloc(b->pages, (size_t)n * sizeof(uint64_t *));
        if (!pages) return -1;
        for (int64_t i = b->pages_n; i < n; i++) pages[i] = NULL;
        b->pages = pages;
        b->pages_n = n;
    }
    for (int64_t i = first / KS_PAGE_BITS; i * KS_PAGE_BITS < end; i++)
        if (!b->pages[i]) {
            if (!(b->pages[i] = calloc(KS_PAGE_WORDS, sizeof(uint64_t)))) return -1;
            b->taken++;
        }
    return 0;
}

static inline void ks_bits_set(ks_bits *b, int64_t i) {
    b->pages[i / KS_PAGE_BITS][i % KS_PAGE_BITS / 64] |= (uint64_t)1 << (i % 64);
}

static inline void ks_bits_clear(ks_bits *b, int64_t i) {
    b->pages[i / KS_PAGE_BITS][i % KS_PAGE_BITS / 64] &= ~((uint64_t)1 << (i % 64));
}

/* Returns the 64 bits from `i` on; `i` is a multiple of 64. */
static inline uint64_t ks_bits_word(const ks_bits *b, int64_t i) {
    int64_t page = i / KS_PAGE_BITS;
    return page < b->pages_n && b->pages[page] ? b->pages[page][i % KS_PAGE_BITS / 64] : 0;
}

static inline int ks_bits_has(const ks_bits *b, int64_t i) {
    return (int)(ks_bits_word(b, i & ~(int64_t)63) >> (i % 64) & 1);
}

/* Counts the bits of [first, first + n) that are set in `b` and, if `without` is not NULL, are not set in `without`. */
static inline int64_t ks_bits_count(const ks_bits *b, const ks_bits *without, int64_t first, int64_t n) {
    int64_t end = first + n, count = 0;
    for (int64_t i = first & ~(int64_t)63; i < end;) {
        if (i / KS_PAGE_BITS >= b->pages_n) break;
        if (!b->pages[i / KS_PAGE_BITS]) {
            i = (i / KS_PAGE_BITS + 1) * KS_PAGE_BITS;
            continue;
        }
        uint64_t word = ks_bits_word(b, i);
        if (without) word &= ~ks_bits_word(without, i);
        if (i < first) word &= ~(uint64_t)0 << (first - i);
        if (end - i < 64) word &= ((uint64_t)1 << (end - i)) - 1;
        count += __builtin_popcountll(word);
        i += 64;
    }
    return count;
}

#endif
