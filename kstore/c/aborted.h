/* Whether a batch belongs to an aborted transaction. */
#ifndef KSTORE_ABORTED_H
#define KSTORE_ABORTED_H

#include "wire.h"

typedef struct {
    int64_t producer_id, first, last; /* first: of the transaction's data; last: of its marker */
} ks_span;

/* Whether the batch at `p` is transactional data in a span of its producer. `spans` are sorted by producer, `first`. */
static inline int ks_is_aborted(const ks_span *spans, int64_t n, const uint8_t *p) {
    if (p[KS_MAGIC_AT] != 2) return 0;
    if ((ks_load16(p + KS_ATTRIBUTES_AT) & (KS_TRANSACTIONAL_BIT | KS_CONTROL_BIT)) != KS_TRANSACTIONAL_BIT) return 0;
    int64_t producer_id = ks_load64(p + KS_PRODUCER_ID_AT), offset = ks_load64(p), low = 0, high = n;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        const ks_span *s = spans + middle;
        if (s->producer_id < producer_id || (s->producer_id == producer_id && s->first <= offset)) low = middle + 1;
        else high = middle;
    }
    return low > 0 && spans[low - 1].producer_id == producer_id && offset <= spans[low - 1].last;
}

#endif
