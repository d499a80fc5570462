#define _GNU_SOURCE
#include "keymap.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#endif

#if defined(__linux__) && !defined(MADV_COLLAPSE)
#define MADV_COLLAPSE 25 /* since Linux 6.1; older versions refuse it */
#endif

/* The map is full at 15/16 of its slots and grows by 1/5 to 5/16, so that 0.71 to 0.94 of the slots are used. */
enum {
    KS_FIRST_HOMES = 8,
    KS_MOVED_LATER = 4096,       /* the most entries that wait to be moved to an earlier group */
    KS_MAPPED_BYTES = 256 << 10, /* memory of this size or more is allocated by the page */
    KS_LARGE_PAGE = 2 << 20,
    KS_GROUP_BYTES = KS_GROUP_SLOTS * sizeof(ks_entry)
};

#ifdef __linux__
/* Allocates pages, aligned to a large page; the first `old` bytes are those of `p`, whose pages are moved, not copied.
   Pages are large if the system has such pages: accesses are random, and small pages would be too many for the TLB. */
static void *ks_map(void *p, size_t old, size_t bytes) {
    if (old >= KS_MAPPED_BYTES && mremap(p, old, bytes, 0) != MAP_FAILED) return p;
    size_t page = (size_t)sysconf(_SC_PAGESIZE), whole = (bytes + page - 1) / page * page, room = whole + KS_LARGE_PAGE;
    uint8_t *place = mmap(NULL, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (place == MAP_FAILED) return NULL;
    size_t before = (size_t)(-(uintptr_t)place & (KS_LARGE_PAGE - 1));
    void *more = old >= KS_MAPPED_BYTES
        ? mremap(p, old, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, place + before)
        : mmap(place + before, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    if (more == MAP_FAILED) {
        munmap(place, room);
        return NULL;
    }
    if (before) munmap(place, before);
    munmap(place + before + whole, room - before - whole);
    madvise(more, bytes, MADV_HUGEPAGE);
    if (old && old < KS_MAPPED_BYTES) {
        memcpy(more, p, old);
        free(p);
    }
    return more;
}
#endif

static void *ks_resize(void *p, size_t old, size_t bytes) {
#ifdef __linux__
    if (bytes >= KS_MAPPED_BYTES) return ks_map(p, old, bytes);
#endif
    (void)old;
    return realloc(p, bytes);
}

static void ks_release(void *p, size_t bytes) {
#ifdef __linux__
    if (bytes >= KS_MAPPED_BYTES) {
        munmap(p, bytes);
        return;
    }
#endif
    (void)bytes;
    free(p);
}

/* Enlarges both arrays to `homes` and the spare groups, with 0 for each new tag; returns -1 without memory. */
static int ks_make_room(ks_keymap *m, uint64_t homes) {
    const size_t groups = homes + KS_SPARE_GROUPS, before = m->tags_bytes;
    ks_entry *slots = ks_resize(m->slots, m->slots_bytes, groups * KS_GROUP_BYTES);
    if (!slots) return -1;
    m->slots = slots;
    m->slots_bytes = groups * KS_GROUP_BYTES;
    uint8_t *tags = ks_resize(m->tags, m->tags_bytes, groups * KS_GROUP_SLOTS);
    if (!tags) return -1;
    m->tags = tags;
    m->tags_bytes = groups * KS_GROUP_SLOTS;
    memset(tags + before, 0, m->tags_bytes - before);
#ifdef __linux__
    /* The former end of the tags has small pages. If the system does not join them, this does no harm. */
    if (before >= KS_LARGE_PAGE) madvise(tags, before / KS_LARGE_PAGE * KS_LARGE_PAGE, MADV_COLLAPSE);
#endif
    return 0;
}

/* Puts each of `n` entries into a slot. If an entry's home is before the group `first`, the entry is moved to the start
   of `entries` instead. Returns how many were moved, or -1 if no slot is free. `used`: filled slots of each group. */
static int64_t ks_put_back(const ks_keymap *m, ks_entry *entries, int64_t n, uint64_t first, uint8_t *used) {
    const uint64_t homes = m->homes, last = homes + KS_SPARE_GROUPS - KS_GROUPS_AT_ONCE;
    ks_entry *const slots = m->slots;
    uint8_t *const tags = m->tags;
    int64_t left = 0;
    for (int64_t i = 0; i < n; i++) {
        uint64_t group = (uint64_t)((unsigned __int128)entries[i].hash * homes >> 64);
        if (group < first) {
            entries[left++] = entries[i];
            continue;
        }
        uint64_t count = used[group];
        if (count == KS_GROUP_SLOTS) {
            while ((count = used[++group]) == KS_GROUP_SLOTS) {}
            if (group >= last) return -1;
        }
        used[group] = (uint8_t)(count + 1);
        const uint64_t slot = group * KS_GROUP_SLOTS + count;
        tags[slot] = ks_tag((ks_key){.more = entries[i].more});
        memcpy(slots + slot, entries + i, sizeof *entries);
    }
    return left;
}

/* Grows to `homes`; returns -1 without memory. `used` must be all 0. */
static int ks_grow_to(ks_keymap *m, uint64_t homes, ks_entry *moved, uint8_t *used) {
    const uint64_t old = m->homes ? m->homes + KS_SPARE_GROUPS : 0;
    int64_t left = 0;
    if (ks_make_room(m, homes)) return -1;
    m->homes = homes;
    m->limit = (int64_t)(homes * KS_GROUP_SLOTS * 15 / 16);
    /* From the last to the first: all groups after the one being moved are free or have been moved. */
    for (uint64_t group = old; group-- > 0;) {
        uint8_t *tags = m->tags + group * KS_GROUP_SLOTS;
        const uint32_t none = ks_match(tags, 0);
        memcpy(moved + left, m->slots + group * KS_GROUP_SLOTS, KS_GROUP_BYTES);
        memset(tags, 0, KS_GROUP_SLOTS);
        left += __builtin_ctz(none | 1u << KS_GROUP_SLOTS);
        left = ks_put_back(m, moved, left, group, used);
        if (left < 0 || left > KS_MOVED_LATER) return -1; /* practically never: too many keys with similar hashes */
    }
    return 0;
}

/* The next number of homes. From four large pages on, the slots fill whole large pages, so that none is small. */
static uint64_t ks_more_homes(uint64_t homes) {
    const uint64_t in_page = KS_LARGE_PAGE / KS_GROUP_BYTES, pages = (homes + KS_SPARE_GROUPS) * 21 / 16 / in_page;
    return pages < 4 ? homes + homes * 9 / 32 : pages * in_page - KS_SPARE_GROUPS;
}

int ks_keymap_grow(ks_keymap *m) {
    uint64_t homes = m->homes ? ks_more_homes(m->homes) : KS_FIRST_HOMES;
    ks_entry *moved = malloc((KS_MOVED_LATER + 2 * KS_GROUP_SLOTS) * sizeof *moved);
    uint8_t *used = calloc(homes + KS_SPARE_GROUPS, 1);
    int grown = moved && used ? ks_grow_to(m, homes, moved, used) : -1;
    free(moved);
    free(used);
    if (grown == 0) return 0;
    ks_keymap_clear(m);
    return KS_MAP_NO_MEMORY;
}

KS_INLINE int ks_put_all_by(ks_keymap *m, const ks_key *keys, const uint32_t *ordinals, int n, int64_t capacity,
                            int64_t *previous, ks_finder *stops) {
    uint64_t slots[KS_AT_ONCE];
    int i;
    if (!m->slots && ks_keymap_grow(m)) return KS_MAP_NO_MEMORY;
    const uint64_t homes = m->homes; /* the slots below are valid for this size */
    for (i = 0; i < n; i++) {
        slots[i] = ks_home_number(m, keys[i].hash) * KS_GROUP_SLOTS;
        KS_FETCH(m->tags + slots[i]);
    }
    for (i = 0; i < n; i++) {
        slots[i] = ks_candidate_by(m, keys[i], slots[i], stops);
        KS_FETCH(m->slots + slots[i]);
    }
    for (i = 0; i < n && m->size < capacity; i++) {
        if (m->homes != homes) slots[i] = ks_home_number(m, keys[i].hash) * KS_GROUP_SLOTS;
        ks_key_place place = ks_look_from(m, keys[i], slots[i], stops);
        previous[i] = ks_keymap_put_at(m, keys[i], ordinals[i], place);
        if (previous[i] == KS_MAP_NO_MEMORY) return KS_MAP_NO_MEMORY;
    }
    return i;
}

static int ks_put_all(ks_keymap *m, const ks_key *keys, const uint32_t *ordinals, int n, int64_t capacity,
                      int64_t *previous) {
    return ks_put_all_by(m, keys, ordinals, n, capacity, previous, ks_stops);
}

#if defined(__x86_64__) && defined(__GNUC__)

/* An AVX2 vector holds two of the four groups of a step, an AVX-512 vector all four. AVX-512 saves a fifth of the time
   for a known key, a fourteenth for a new one. */
__attribute__((target("avx2"))) static inline uint64_t ks_stops_256(const uint8_t *p, uint8_t tag) {
    const __m256i wanted = _mm256_set1_epi8((char)tag), none = _mm256_setzero_si256();
    uint64_t bits = 0;
    for (int i = 0; i < 2; i++) {
        __m256i tags = _mm256_loadu_si256((const __m256i *)p + i);
        __m256i stops = _mm256_or_si256(_mm256_cmpeq_epi8(tags, wanted), _mm256_cmpeq_epi8(tags, none));
        bits |= (uint64_t)(uint32_t)_mm256_movemask_epi8(stops) << (32 * i);
    }
    return bits;
}

__attribute__((target("avx512bw"))) static inline uint64_t ks_stops_512(const uint8_t *p, uint8_t tag) {
    const __m512i tags = _mm512_loadu_si512(p);
    return _mm512_cmpeq_epi8_mask(tags, _mm512_set1_epi8((char)tag)) | _mm512_testn_epi8_mask(tags, tags);
}

__attribute__((target("avx2"))) static int ks_put_all_256(
    ks_keymap *m, const ks_key *keys, const uint32_t *ordinals, int n, int64_t capacity, int64_t *previous) {
    return ks_put_all_by(m, keys, ordinals, n, capacity, previous, ks_stops_256);
}

__attribute__((target("avx512bw"))) static int ks_put_all_512(
    ks_keymap *m, const ks_key *keys, const uint32_t *ordinals, int n, int64_t capacity, int64_t *previous) {
    return ks_put_all_by(m, keys, ordinals, n, capacity, previous, ks_stops_512);
}

/* The variant for this processor. */
static int (*ks_chosen)(ks_keymap *, const ks_key *, const uint32_t *, int, int64_t, int64_t *) = ks_put_all;

__attribute__((constructor)) static void ks_choose(void) {
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2")) ks_chosen = ks_put_all_256;
    if (__builtin_cpu_supports("avx512bw")) ks_chosen = ks_put_all_512;
}

#else
#define ks_chosen ks_put_all
#endif

int ks_keymap_put_all(ks_keymap *m, const ks_key *keys, const uint32_t *ordinals, int n, int64_t capacity,
                      int64_t *previous) {
    return ks_chosen(m, keys, ordinals, n, capacity, previous);
}

const ks_entry *ks_keymap_next(const ks_keymap *m, const ks_entry *entry) {
    const size_t end = m->tags_bytes;
    for (size_t slot = entry ? (size_t)(entry - m->slots) + 1 : 0; slot < end; slot++)
        if (m->tags[slot]) return m->slots + slot;
    return NULL;
}

void ks_keymap_start(ks_keymap *m, const uint8_t secret[16], int bits) {
    memset(m, 0, sizeof *m);
    ks_secret_start(&m->secret, secret, 1);
    m->mask = bits >= 64 ? ~(uint64_t)0 : ~(~(uint64_t)0 >> abs(bits));
    m->more_mask = bits >= 96 || bits < 0 ? ~(uint32_t)0 : bits > 64 ? ~(~(uint32_t)0 >> (bits - 64)) : 0;
}

void ks_keymap_clear(ks_keymap *m) {
    ks_release(m->slots, m->slots_bytes);
    ks_release(m->tags, m->tags_bytes);
    m->slots = NULL;
    m->tags = NULL;
    m->homes = 0;
    m->size = m->limit = 0;
    m->slots_bytes = m->tags_bytes = 0;
}
