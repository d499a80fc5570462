/* The offset map of compaction (SEMANTICS 7.9): for each key the ordinal of its newest record, in 16 bytes per entry.

   Instead of a key, 96 bits of a hash are stored, with a new secret for each map: among 10^9 keys there is a collision
   with probability 2^-37. The entries are in groups of 16 slots, with a tag (a byte of the hash) for each slot, so that
   a search compares four groups in one step. If a key's home group is full, the key is in the first later group that
   was not full. The tags are a separate array, small enough for the caches; the next group's tags are mostly in the
   same cache line. Home groups are ordered by hash, so the map grows in place, from its last group to its first,
   without a second copy. It takes 18.5 to 24 bytes per key, for any number of keys. */
#ifndef KSTORE_KEYMAP_H
#define KSTORE_KEYMAP_H

#include "keyhash.h"

#ifdef __SSE2__
#include <emmintrin.h>
#endif

/* Spare groups follow the last home group. The last four spare groups stay free: a search ends within the tags. */
enum { KS_GROUP_SLOTS = 16, KS_GROUPS_AT_ONCE = 4, KS_SPARE_GROUPS = 16 };
enum { KS_SLOTS_AT_ONCE = KS_GROUPS_AT_ONCE * KS_GROUP_SLOTS }; /* slots compared in one step, with a bit for each */
enum { KS_AT_ONCE = 128 }; /* the most keys of one ks_keymap_put_all: their cache lines are fetched at the same time */
enum { KS_NEW_KEY = -1, KS_MAP_NO_MEMORY = -2 };
#define KS_MOST_ORDINALS ((int64_t)UINT32_MAX)

typedef struct {
    uint64_t hash;
    uint32_t more; /* 32 further bits of the hash */
    uint32_t ordinal;
} ks_entry;

typedef struct {
    uint8_t *tags;      /* for each slot 8 bits of the hash, never 0; or 0 if the slot is free */
    ks_entry *slots;    /* `homes` home groups, then the spare groups; NULL before the first key */
    size_t tags_bytes, slots_bytes;
    uint64_t homes;
    int64_t size, limit;
    ks_secret secret;
    uint64_t mask;      /* the bits of `hash` that are used: all except in tests of weaker hashes */
    uint32_t more_mask; /* the same for `more` */
} ks_keymap;

/* Makes an empty map that uses `bits` bits of the hash: 96 except in tests; -20 means the first 20 and the last 32. */
void ks_keymap_start(ks_keymap *m, const uint8_t secret[16], int bits);

/* Frees the memory and empties the map. */
void ks_keymap_clear(ks_keymap *m);

/* Makes the map larger; returns 0, or KS_MAP_NO_MEMORY, after which the map is empty. */
int ks_keymap_grow(ks_keymap *m);

/* Bytes of memory. */
KS_INLINE int64_t ks_keymap_memory(const ks_keymap *m) { return (int64_t)(m->tags_bytes + m->slots_bytes); }

/* The entry after `entry`, nearly in order of the hashes; the first one for NULL, and NULL after the last one. */
const ks_entry *ks_keymap_next(const ks_keymap *m, const ks_entry *entry);

/* Hashes `n` keys, several in parallel. */
KS_INLINE void ks_keymap_hash_all(const ks_keymap *m, const uint8_t *const *keys, const int32_t *sizes, int n,
                                  ks_key *hashes) {
    ks_hash_keys(&m->secret, keys, sizes, n, hashes);
    if (m->mask == UINT64_MAX && m->more_mask == UINT32_MAX) return;
    for (int i = 0; i < n; i++) hashes[i] = (ks_key){hashes[i].hash & m->mask, hashes[i].more & m->more_mask};
}

KS_INLINE ks_key ks_keymap_hash(const ks_keymap *m, const uint8_t *key, int32_t size) {
    ks_key k;
    ks_keymap_hash_all(m, &key, &size, 1, &k);
    return k;
}

/* Compares 16 bytes at `p` with `tag`; returns a bit for each, set if the byte is `tag`. */
KS_INLINE uint32_t ks_match(const uint8_t *p, uint8_t tag) {
#ifdef __SSE2__
    __m128i tags = _mm_loadu_si128((const __m128i *)p);
    return (uint32_t)_mm_movemask_epi8(_mm_cmpeq_epi8(tags, _mm_set1_epi8((char)tag)));
#else
    uint32_t bits = 0;
    for (int i = 0; i < KS_GROUP_SLOTS; i++) bits |= (uint32_t)(p[i] == tag) << i;
    return bits;
#endif
}

KS_INLINE uint8_t ks_tag(ks_key k) {
    uint8_t tag = (uint8_t)k.more;
    return tag ? tag : 1;
}

/* The home group of a hash, where its search starts. */
KS_INLINE uint64_t ks_home_number(const ks_keymap *m, uint64_t hash) {
    return (uint64_t)((unsigned __int128)hash * m->homes >> 64);
}

/* Prefetches a line into the second-level cache: AMD's first level has a short queue, and drops further requests. */
#define KS_FETCH(p) __builtin_prefetch((p), 0, 2)

/* Compares KS_SLOTS_AT_ONCE bytes at `p`; returns a bit for each, set if the byte is `tag` or 0. */
KS_INLINE uint64_t ks_stops(const uint8_t *p, uint8_t tag) {
#ifdef __SSE2__
    const __m128i wanted = _mm_set1_epi8((char)tag), none = _mm_setzero_si128();
    uint64_t bits = 0;
    for (int i = 0; i < KS_GROUPS_AT_ONCE; i++) {
        __m128i tags = _mm_loadu_si128((const __m128i *)(p + i * KS_GROUP_SLOTS));
        __m128i stops = _mm_or_si128(_mm_cmpeq_epi8(tags, wanted), _mm_cmpeq_epi8(tags, none));
        bits |= (uint64_t)(uint32_t)_mm_movemask_epi8(stops) << (i * KS_GROUP_SLOTS);
    }
    return bits;
#else
    uint64_t bits = 0;
    for (int i = 0; i < KS_SLOTS_AT_ONCE; i++) bits |= (uint64_t)(p[i] == tag || !p[i]) << i;
    return bits;
#endif
}

/* ks_stops, or its equivalent for a processor with wider vectors. */
typedef uint64_t ks_finder(const uint8_t *p, uint8_t tag);

/* Returns the first slot, from `slot` on, that has the key's tag or is free; a free slot ends the search. The slots of
   a group are filled in order, so that no used slot follows a free slot of its group. */
KS_INLINE uint64_t ks_candidate_by(const ks_keymap *m, ks_key k, uint64_t slot, ks_finder *stops) {
    for (;; slot += KS_SLOTS_AT_ONCE) {
        uint64_t bits = stops(m->tags + slot, ks_tag(k));
        if (bits) return slot + (uint64_t)__builtin_ctzll(bits);
    }
}

KS_INLINE uint64_t ks_keymap_candidate(const ks_keymap *m, ks_key k, uint64_t slot) {
    return ks_candidate_by(m, k, slot, ks_stops);
}

/* Called in this order before a get or put: prefetch the tags of a key's home group, then the slot they indicate. */
KS_INLINE void ks_keymap_prefetch(const ks_keymap *m, ks_key k) {
    if (m->slots) KS_FETCH(m->tags + ks_home_number(m, k.hash) * KS_GROUP_SLOTS);
}

KS_INLINE void ks_keymap_prefetch_slot(const ks_keymap *m, ks_key k) {
    if (m->slots) KS_FETCH(m->slots + ks_keymap_candidate(m, k, ks_home_number(m, k.hash) * KS_GROUP_SLOTS));
}

KS_INLINE int ks_is_entry(const ks_entry *entry, ks_key k) { return entry->hash == k.hash && entry->more == k.more; }

/* The slot of a key, or the free slot that the key would get. */
typedef struct {
    uint64_t slot;
    int is_there;
} ks_key_place;

/* Searches from `slot` on, which is in the key's home group or a later one; no earlier slot has the key. */
KS_INLINE ks_key_place ks_look_from(const ks_keymap *m, ks_key k, uint64_t slot, ks_finder *stops) {
    while (m->tags[slot] && !ks_is_entry(m->slots + slot, k)) slot = ks_candidate_by(m, k, slot + 1, stops);
    return (ks_key_place){slot, m->tags[slot] != 0};
}

KS_INLINE ks_key_place ks_keymap_look(const ks_keymap *m, ks_key k) {
    return ks_look_from(m, k, ks_keymap_candidate(m, k, ks_home_number(m, k.hash) * KS_GROUP_SLOTS), ks_stops);
}

/* The ordinal of a key, or KS_NEW_KEY. */
KS_INLINE int64_t ks_keymap_get(const ks_keymap *m, ks_key k) {
    if (!m->slots) return KS_NEW_KEY;
    ks_key_place place = ks_keymap_look(m, k);
    return place.is_there ? (int64_t)m->slots[place.slot].ordinal : KS_NEW_KEY;
}

/* Stores a key's ordinal at the place found for it; returns its previous ordinal, KS_NEW_KEY, or KS_MAP_NO_MEMORY. */
KS_INLINE int64_t ks_keymap_put_at(ks_keymap *m, ks_key k, uint32_t ordinal, ks_key_place place) {
    if (place.is_there) {
        uint32_t previous = m->slots[place.slot].ordinal;
        m->slots[place.slot].ordinal = ordinal;
        return previous;
    }
    while (m->size == m->limit || place.slot >= (m->homes + KS_SPARE_GROUPS - KS_GROUPS_AT_ONCE) * KS_GROUP_SLOTS) {
        if (ks_keymap_grow(m)) return KS_MAP_NO_MEMORY;
        place = ks_keymap_look(m, k);
    }
    m->slots[place.slot] = (ks_entry){k.hash, k.more, ordinal};
    m->tags[place.slot] = ks_tag(k);
    m->size++;
    return KS_NEW_KEY;
}

KS_INLINE int64_t ks_keymap_put(ks_keymap *m, ks_key k, uint32_t ordinal) {
    if (!m->slots && ks_keymap_grow(m)) return KS_MAP_NO_MEMORY;
    return ks_keymap_put_at(m, k, ordinal, ks_keymap_look(m, k));
}

/* Puts at most KS_AT_ONCE keys, in their order, while the map has fewer than `capacity`. Returns how many it put, or
   KS_MAP_NO_MEMORY; `previous` gets the result of ks_keymap_put for each. */
int ks_keymap_put_all(ks_keymap *m, const ks_key *keys, const uint32_t *ordinals, int n, int64_t capacity,
                      int64_t *previous);

#endif
