#include "transactions.h"

#include <stdlib.h>

#include "record.h"

static int ks_grow(ks_aborted_txn **p, size_t count, size_t *capacity) {
    if (count < *capacity) return 0;
    size_t wanted = *capacity ? 2 * *capacity : 16;
    ks_aborted_txn *grown = realloc(*p, wanted * sizeof **p);
    if (!grown) return -1;
    *p = grown;
    *capacity = wanted;
    return 0;
}

/* ---- The heap. */

int ks_transactions_add(ks_transactions *t, const ks_aborted_txn *txn) {
    if (ks_grow(&t->waiting, t->waiting_count, &t->waiting_capacity)) return -1;
    size_t at = t->waiting_count++;
    while (at > 0) {
        size_t parent = (at - 1) / 2;
        if (t->waiting[parent].first <= txn->first) break;
        t->waiting[at] = t->waiting[parent];
        at = parent;
    }
    t->waiting[at] = *txn;
    return 0;
}

static ks_aborted_txn ks_take_first(ks_transactions *t) {
    ks_aborted_txn first = t->waiting[0], moved = t->waiting[--t->waiting_count];
    size_t at = 0, n = t->waiting_count;
    for (;;) {
        size_t child = 2 * at + 1;
        if (child >= n) break;
        if (child + 1 < n && t->waiting[child + 1].first < t->waiting[child].first) child++;
        if (t->waiting[child].first >= moved.first) break;
        t->waiting[at] = t->waiting[child];
        at = child;
    }
    if (n) t->waiting[at] = moved;
    return first;
}

/* ---- The producers. */

/* The slot of a producer id, or the empty slot that it would get. The table is never full. */
static ks_producer_txns *ks_slot(const ks_transactions *t, int64_t producer_id) {
    uint64_t h = ((uint64_t)producer_id ^ t->seed) * 0x9e3779b97f4a7c15u;
    h = (h ^ h >> 32) * 0xd6e8feb86659fd93u;
    size_t mask = t->producers_capacity - 1;
    for (size_t at = (size_t)(h ^ h >> 32) & mask;; at = (at + 1) & mask) {
        ks_producer_txns *slot = t->producers + at;
        if (!slot->used || slot->aborted.producer_id == producer_id) return slot;
    }
}

static ks_producer_txns *ks_find(const ks_transactions *t, int64_t producer_id) {
    if (!t->producers_used) return NULL;
    ks_producer_txns *slot = ks_slot(t, producer_id);
    return slot->used ? slot : NULL;
}

/* The slot of a producer id, added if new; NULL without memory. Growing drops producers without an open transaction. */
static ks_producer_txns *ks_find_or_add(ks_transactions *t, int64_t producer_id) {
    if (2 * t->producers_used >= t->producers_capacity) {
        size_t open = 0;
        for (size_t i = 0; i < t->producers_capacity; i++) open += t->producers[i].active | t->producers[i].committed;
        size_t capacity = 16;
        while (capacity < 4 * (open + 1)) capacity *= 2;
        ks_transactions grown = *t;
        grown.producers = calloc(capacity, sizeof *grown.producers);
        if (!grown.producers) return NULL;
        grown.producers_capacity = capacity;
        for (size_t i = 0; i < t->producers_capacity; i++) {
            const ks_producer_txns *old = t->producers + i;
            if (old->active | old->committed) *ks_slot(&grown, old->aborted.producer_id) = *old;
        }
        free(t->producers);
        t->producers = grown.producers;
        t->producers_capacity = capacity;
        t->producers_used = open;
    }
    ks_producer_txns *slot = ks_slot(t, producer_id);
    if (!slot->used) {
        slot->used = 1;
        slot->aborted.producer_id = producer_id;
        t->producers_used++;
    }
    return slot;
}

/* ---- Visits. */

/* Activates aborted transactions that start at or below `offset`; drops one if its producer has an active one. */
static int ks_activate(ks_transactions *t, int64_t offset) {
    while (t->waiting_count && t->waiting[0].first <= offset) {
        ks_producer_txns *of = ks_find_or_add(t, t->waiting[0].producer_id);
        if (!of) return -1;
        ks_aborted_txn txn = ks_take_first(t);
        if (of->active) continue;
        of->aborted = txn;
        of->active = 1;
        of->has_data = 0;
    }
    return 0;
}

int ks_transactions_on_data(ks_transactions *t, const uint8_t *p) {
    if (t->waiting_count && ks_activate(t, ks_last_offset(p))) return -1;
    if (p[KS_MAGIC_AT] != 2 || !(ks_load16(p + KS_ATTRIBUTES_AT) & KS_TRANSACTIONAL_BIT)) return 0;
    ks_producer_txns *of = ks_find_or_add(t, ks_load64(p + KS_PRODUCER_ID_AT));
    if (!of) return -1;
    if (of->active) {
        of->has_data = 1;
        return 1;
    }
    of->committed = 1;
    return 0;
}

int ks_transactions_on_control(ks_transactions *t, const uint8_t *p, int type) {
    if (t->waiting_count && ks_activate(t, ks_last_offset(p))) return -1;
    if (type == KS_CONTROL_EMPTY) return 1;
    if (type != KS_CONTROL_ABORT && type != KS_CONTROL_COMMIT) return 0;
    ks_producer_txns *of = ks_find(t, ks_load64(p + KS_PRODUCER_ID_AT));
    if (!of) return 1;
    if (type == KS_CONTROL_COMMIT) {
        int orphan = !of->committed;
        of->committed = 0;
        return orphan;
    }
    if (!of->active) return 1;
    if (of->has_data) {
        if (ks_grow(&t->retained, t->retained_count, &t->retained_capacity)) return -1;
        t->retained[t->retained_count++] = of->aborted;
    }
    of->active = 0;
    return !of->has_data;
}

void ks_transactions_free(ks_transactions *t) {
    free(t->waiting);
    free(t->producers);
    free(t->retained);
    memset(t, 0, sizeof *t);
}

/* ---- Markers. */

int ks_control_type_of(const uint8_t *p, const uint8_t *end) {
    ks_record r;
    if (!ks_parse_record(p, end, &r) || r.key_size < 4 || ks_load16(r.key) < 0) return KS_CONTROL_BAD;
    int type = ks_load16(r.key + 2);
    return type == KS_CONTROL_ABORT || type == KS_CONTROL_COMMIT ? type : KS_CONTROL_OTHER;
}

int ks_control_type(const uint8_t *p, int64_t size) {
    int32_t count = ks_load32(p + KS_RECORDS_COUNT_AT);
    if (count == 0) return KS_CONTROL_EMPTY;
    if (count < 0) return KS_CONTROL_BAD;
    if (ks_load16(p + KS_ATTRIBUTES_AT) & KS_CODEC_MASK) return KS_CONTROL_COMPRESSED;
    return ks_control_type_of(p + KS_RECORDS_AT, p + size);
}
