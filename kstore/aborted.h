/* Aborted transactions, asked of each batch whether it belongs to one. Nothing here knows Python. */
#ifndef KSTORE_ABORTED_H
#define KSTORE_ABORTED_H

#include <stdint.h>
#include <string.h>

typedef struct {
    int64_t producer_id, first, last; /* the first offset of its data, and that of its marker */
} ks_span;

/* Whether the batch whose header is at `p` is aborted: transactional data of a producer within one of its `spans`, which
   rise by producer and first offset. */
static int ks_is_aborted(const ks_span *spans, int64_t n, const uint8_t *p) {
    enum { MAGIC_AT = 16, ATTRIBUTES_AT = 21, PRODUCER_ID_AT = 43, TRANSACTIONAL = 0x10, CONTROL = 0x20 };
    if (p[MAGIC_AT] != 2 || (p[ATTRIBUTES_AT + 1] & (TRANSACTIONAL | CONTROL)) != TRANSACTIONAL) return 0;
    uint64_t x;
    memcpy(&x, p + PRODUCER_ID_AT, 8);
    int64_t producer_id = (int64_t)__builtin_bswap64(x);
    memcpy(&x, p, 8);
    int64_t offset = (int64_t)__builtin_bswap64(x), low = 0, high = n;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        const ks_span *s = spans + middle;
        if (s->producer_id < producer_id || (s->producer_id == producer_id && s->first <= offset)) low = middle + 1;
        else high = middle;
    }
    return low > 0 && spans[low - 1].producer_id == producer_id && offset <= spans[low - 1].last;
}

#endif
