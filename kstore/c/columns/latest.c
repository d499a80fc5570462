#include "columns/latest.h"

#include <stdlib.h>

void ks_latest_start(ks_latest *l, const uint8_t secret[16], int bits, int64_t first, int64_t end) {
    memset(l, 0, sizeof *l);
    ks_keymap_start(&l->map, secret, bits);
    l->first = first;
    l->is_numbered = end - first >= KS_NO_RECORD;
}

void ks_latest_clear(ks_latest *l) {
    ks_keymap_clear(&l->map);
    free(l->offsets);
    l->offsets = NULL;
    l->capacity = l->live = 0;
}

/* The offset of an entry of the map; -1 for a tombstone. */
KS_INLINE int64_t ks_latest_offset(const ks_latest *l, uint32_t ordinal) {
    if (l->is_numbered) return l->offsets[ordinal];
    return ordinal == KS_NO_RECORD ? -1 : l->first + ordinal;
}

/* Assigns the next number to a new key; returns the number, or KS_MAP_NO_MEMORY. */
static int64_t ks_latest_number(ks_latest *l, ks_key k) {
    int64_t number = l->map.size;
    if (number >= KS_MOST_ORDINALS) return KS_MAP_NO_MEMORY;
    if (number == l->capacity) {
        int64_t capacity = number + number / 2 + 1024;
        int64_t *offsets = (int64_t *)realloc(l->offsets, (size_t)capacity * sizeof *offsets);
        if (!offsets) return KS_MAP_NO_MEMORY;
        l->offsets = offsets;
        l->capacity = capacity;
    }
    if (ks_keymap_put(&l->map, k, (uint32_t)number) == KS_MAP_NO_MEMORY) return KS_MAP_NO_MEMORY;
    l->offsets[number] = -1;
    return number;
}

/* Puts up to KS_AT_ONCE keys; returns 0, or KS_MAP_NO_MEMORY. */
static int ks_latest_put(ks_latest *l, const ks_key *keys, const uint32_t *newest, int count) {
    int64_t before[KS_AT_ONCE];
    if (ks_keymap_put_all(&l->map, keys, newest, count, INT64_MAX, before) == KS_MAP_NO_MEMORY) return KS_MAP_NO_MEMORY;
    for (int i = 0; i < count; i++)
        l->live += (newest[i] != KS_NO_RECORD) - (before[i] >= 0 && before[i] != KS_NO_RECORD);
    return 0;
}

/* The same for a map of numbers. */
static int ks_latest_put_numbered(ks_latest *l, const ks_key *keys, const int64_t *newest, int count) {
    for (int i = 0; i < count; i++) ks_keymap_prefetch(&l->map, keys[i]);
    for (int i = 0; i < count; i++) ks_keymap_prefetch_slot(&l->map, keys[i]);
    for (int i = 0; i < count; i++) {
        int64_t number = ks_keymap_get(&l->map, keys[i]);
        if (number < 0) number = ks_latest_number(l, keys[i]);
        if (number < 0) return KS_MAP_NO_MEMORY;
        l->live += (newest[i] >= 0) - (l->offsets[number] >= 0);
        l->offsets[number] = newest[i];
    }
    return 0;
}

int ks_latest_add(ks_latest *l, const int64_t *offsets, const int32_t *places, const uint8_t *bytes, const uint8_t *valid,
                  const uint8_t *tombstones, int64_t n) {
    const uint8_t *found[KS_AT_ONCE];
    int32_t sizes[KS_AT_ONCE];
    ks_key keys[KS_AT_ONCE];
    uint32_t near[KS_AT_ONCE];
    int64_t far[KS_AT_ONCE];
    for (int64_t first = 0; first < n; first += KS_AT_ONCE) {
        int64_t stop = first + KS_AT_ONCE < n ? first + KS_AT_ONCE : n;
        int count = 0;
        for (int64_t row = first; row < stop; row++) {
            if (valid && !(valid[row >> 3] >> (row & 7) & 1)) continue;
            found[count] = bytes + places[row];
            sizes[count] = places[row + 1] - places[row];
            near[count] = tombstones[row] ? KS_NO_RECORD : (uint32_t)(offsets[row] - l->first);
            far[count++] = tombstones[row] ? -1 : offsets[row];
        }
        ks_keymap_hash_all(&l->map, found, sizes, count, keys);
        int failed = l->is_numbered ? ks_latest_put_numbered(l, keys, far, count) : ks_latest_put(l, keys, near, count);
        if (failed) return failed;
    }
    return 0;
}

int64_t ks_latest_find(const ks_latest *l, const uint8_t *key, size_t n) {
    if (n > INT32_MAX) return -1; /* no record has such a key */
    int64_t ordinal = ks_keymap_get(&l->map, ks_keymap_hash(&l->map, key, (int32_t)n));
    return ordinal < 0 ? -1 : ks_latest_offset(l, (uint32_t)ordinal);
}

void ks_latest_list(const ks_latest *l, int64_t *to) {
    for (const ks_entry *entry = ks_keymap_next(&l->map, NULL); entry; entry = ks_keymap_next(&l->map, entry)) {
        int64_t offset = ks_latest_offset(l, entry->ordinal);
        if (offset >= 0) *to++ = offset;
    }
}

void ks_latest_hashes(const ks_latest *l, uint64_t *to) {
    for (const ks_entry *entry = ks_keymap_next(&l->map, NULL); entry; entry = ks_keymap_next(&l->map, entry))
        if (ks_latest_offset(l, entry->ordinal) >= 0) *to++ = entry->hash;
}
