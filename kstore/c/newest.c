#include "newest.h"

#include "record.h"

void ks_newest_start(ks_newest *s, int64_t capacity, int64_t first_dirty, const uint8_t secret[16], int bits,
                     int64_t most_records) {
    memset(s, 0, sizeof *s);
    ks_keymap_start(&s->map, secret, bits);
    s->capacity = capacity;
    s->first_dirty = first_dirty;
    s->most_records = most_records < KS_MOST_ORDINALS ? most_records : KS_MOST_ORDINALS;
    s->latest = -1;
}

void ks_newest_free(ks_newest *s) {
    ks_keymap_clear(&s->map);
    ks_bits_free(&s->superseded);
    ks_bits_free(&s->tombstones);
    free(s->aborted);
    s->aborted = NULL;
    s->aborted_n = s->aborted_capacity = 0;
}

int ks_newest_note_aborted(ks_newest *s) {
    if (s->aborted_n == s->aborted_capacity) {
        int64_t capacity = s->aborted_capacity ? 2 * s->aborted_capacity : 64;
        int64_t *grown = realloc(s->aborted, (size_t)capacity * sizeof *grown);
        if (!grown) return -1;
        s->aborted = grown;
        s->aborted_capacity = capacity;
    }
    s->aborted[s->aborted_n++] = s->records;
    return 0;
}

int ks_newest_is_aborted(const ks_newest *s, int64_t ordinal) {
    int64_t low = 0, high = s->aborted_n;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (s->aborted[middle] < ordinal) low = middle + 1;
        else high = middle;
    }
    return low < s->aborted_n && s->aborted[low] == ordinal;
}

/* Called if the map became full within a batch: keyless records after `latest` are not superseded. */
static void ks_unmark(ks_newest *s, const uint8_t *head, const uint8_t *p, const uint8_t *end, int64_t first) {
    int32_t count = ks_load32(head + KS_RECORDS_COUNT_AT);
    ks_record r;
    for (int64_t i = first; i < first + count && (p = ks_parse_record(p, end, &r)); i++)
        if (r.key_size < 0 && ks_load64(head) + r.offset_delta > s->latest && ks_bits_has(&s->superseded, i)) {
            ks_bits_clear(&s->superseded, i);
            s->keyless--;
        }
}

int ks_newest_settle(ks_newest *s) {
    ks_waiting *w = &s->waiting;
    const int n = w->n;
    ks_key hashes[KS_AT_ONCE];
    int64_t older[KS_AT_ONCE];
    w->n = 0;
    if (!n) return 0;
    ks_keymap_hash_all(&s->map, w->keys, w->sizes, n, hashes);
    const int put = ks_keymap_put_all(&s->map, hashes, w->ordinals, n, s->capacity, older);
    if (put == KS_MAP_NO_MEMORY) return -1;
    for (int i = 0; i < put; i++)
        if (older[i] >= 0) ks_bits_set(&s->superseded, older[i]);
    if (put > 0 && w->offsets[put - 1] > s->latest) s->latest = w->offsets[put - 1];
    if (put < n) s->full = 1;
    return 0;
}

int ks_newest_take(ks_newest *s, const uint8_t *head, const uint8_t *p, const uint8_t *end, int stays, int *fault) {
    const int64_t base = ks_load64(head), first = s->records, last = ks_last_offset(head);
    const int32_t count = ks_load32(head + KS_RECORDS_COUNT_AT), last_delta = ks_load32(head + KS_LAST_OFFSET_DELTA_AT);
    const uint8_t *begin = p;
    ks_waiting *w = &s->waiting;
    int32_t previous = -1;
    ks_record r;
    if (ks_bits_reserve(&s->superseded, first, first + count)) return KS_NO_ROOM;
    if (ks_bits_reserve(&s->tombstones, first, first + count)) return KS_NO_ROOM;
    for (int32_t i = 0; i < count; i++) {
        p = ks_parse_record(p, end, &r);
        if (!p) { *fault = r.fault; return KS_DAMAGED; }
        if ((uint32_t)r.offset_delta > (uint32_t)last_delta) return KS_OUT_OF_BATCH;
        if (r.offset_delta <= previous) return KS_UNORDERED;
        previous = r.offset_delta;
        if (r.value_size < 0) ks_bits_set(&s->tombstones, first + i);
        if (base + r.offset_delta < s->first_dirty) continue;
        if (r.key_size < 0) {
            ks_bits_set(&s->superseded, first + i);
            s->keyless++;
        } else if (!s->full) {
            w->keys[w->n] = r.key;
            w->sizes[w->n] = r.key_size;
            w->offsets[w->n] = base + r.offset_delta;
            w->ordinals[w->n++] = (uint32_t)(first + i);
            if (w->n == KS_AT_ONCE && ks_newest_settle(s)) return KS_NO_ROOM;
        }
    }
    if (p != end) { *fault = KS_TRAILING_BYTES; return KS_DAMAGED; }
    if ((!stays || s->map.size + w->n > s->capacity) && ks_newest_settle(s)) return KS_NO_ROOM;
    s->records += count;
    if (s->full) ks_unmark(s, head, begin, end, first);
    else if (last >= s->first_dirty) s->latest = last;
    return KS_TAKEN;
}

int ks_newest_take_one(ks_newest *s, int64_t offset, const uint8_t *key, int64_t key_size, int tombstone) {
    int64_t ordinal = s->records;
    if (ks_bits_reserve(&s->superseded, ordinal, ordinal + 1)) return -1;
    if (ks_bits_reserve(&s->tombstones, ordinal, ordinal + 1)) return -1;
    s->records++;
    if (tombstone) ks_bits_set(&s->tombstones, ordinal);
    if (s->full || offset < s->first_dirty) return 0;
    if (key_size < 0) {
        ks_bits_set(&s->superseded, ordinal);
        s->keyless++;
    } else {
        if (s->map.size >= s->capacity) {
            s->full = 1;
        } else {
            int64_t older = ks_keymap_put(&s->map, ks_keymap_hash(&s->map, key, (int32_t)key_size), (uint32_t)ordinal);
            if (older == KS_MAP_NO_MEMORY) return -1;
            if (older >= 0) ks_bits_set(&s->superseded, older);
            s->latest = offset;
        }
    }
    return 0;
}
