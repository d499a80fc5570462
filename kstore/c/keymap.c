#define _GNU_SOURCE
#include "keymap.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#if defined(__linux__) && !defined(MADV_COLLAPSE)
#define MADV_COLLAPSE 25 /* since Linux 6.1; older ones refuse it */
#endif

/* The map is full at 15/16 of its slots and grows by 9/32, so that between 0.73 and 0.94 of the slots are used. */
enum {
    KS_FIRST_HOMES = 8,
    KS_MOVED_AT_ONCE = 256,      /* groups: with a copy of their entries a part of the second-level cache */
    KS_MOVED_LATER = 4096,       /* entries that wait for the groups before these */
    KS_MAPPED_BYTES = 256 << 10, /* from here on memory comes by the page */
    KS_LARGE_PAGE = 2 << 20,
    KS_GROUP_BYTES = KS_GROUP_SLOTS * sizeof(ks_entry)
};

#ifdef __linux__
/* Memory by the page that begins where a large page may, the first `old` bytes from `p`. Pages are moved, not copied, and
   large ones where the system has them: each key is somewhere else, and small ones are too many to find at once. */
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

/* Gives both arrays room for `homes` and the groups behind them, with 0 for each new tag; -1 without memory. */
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
    /* What was the end of the tags has small pages. Where the system does not join them, nothing is lost. */
    if (before >= KS_LARGE_PAGE) madvise(tags, before / KS_LARGE_PAGE * KS_LARGE_PAGE, MADV_COLLAPSE);
#endif
    return 0;
}

/* Takes the entries of the groups [group, end) out of them, in order; how many. `to` has room for one more. */
static int64_t ks_take_out(const ks_keymap *m, uint64_t group, uint64_t end, ks_entry *to) {
    ks_entry *begin = to;
    for (uint64_t i = group * KS_GROUP_SLOTS; i < end * KS_GROUP_SLOTS; i++) {
        *to = m->slots[i];
        to += m->tags[i] != 0;
    }
    memset(m->tags + group * KS_GROUP_SLOTS, 0, (end - group) * KS_GROUP_SLOTS);
    return to - begin;
}

/* Gives each of `n` entries a slot, but those whose home is before the group `first`: how many these are, now the first
   ones; or -1 where there is no slot. The slots of a group are taken from the first on, and `used` counts them. */
static int64_t ks_put_back(const ks_keymap *m, ks_entry *entries, int64_t n, uint64_t first, uint8_t *used) {
    const uint64_t last = m->homes + KS_SPARE_GROUPS - 1;
    int64_t left = 0;
    for (int64_t i = 0; i < n; i++) {
        ks_entry entry = entries[i];
        uint64_t group = ks_home_number(m, entry.hash);
        if (group < first) {
            entries[left++] = entry;
            continue;
        }
        while (used[group] == KS_GROUP_SLOTS) group++;
        if (group >= last) return -1;
        uint64_t slot = group * KS_GROUP_SLOTS + used[group]++;
        m->slots[slot] = entry;
        m->tags[slot] = ks_tag((ks_key){entry.hash, entry.more});
    }
    return left;
}

/* Grows to `homes`; -1 without memory. `moved` has room for the entries that are moved at once, `used` is 0. */
static int ks_grow_to(ks_keymap *m, uint64_t homes, uint64_t at_once, ks_entry *moved, uint8_t *used) {
    const uint64_t old = m->homes ? m->homes + KS_SPARE_GROUPS : 0;
    int64_t left = 0;
    if (ks_make_room(m, homes)) return -1;
    m->homes = homes;
    m->limit = (int64_t)(homes * KS_GROUP_SLOTS * 15 / 16);
    /* From the last to the first: what is behind the groups that are moved is free or was moved already. */
    for (uint64_t end = old, first; end > 0; end = first) {
        first = end > at_once ? end - at_once : 0;
        left += ks_take_out(m, first, end, moved + left);
        left = ks_put_back(m, moved, left, first, used);
        if (left < 0 || left > KS_MOVED_LATER) return -1; /* by chance never: too many keys of nearly the same hash */
    }
    return 0;
}

/* The next number of homes. Many of them end where a large page does: the system then gives no small ones. */
static uint64_t ks_more_homes(uint64_t homes) {
    const uint64_t in_page = KS_LARGE_PAGE / KS_GROUP_BYTES;
    uint64_t more = homes + homes * 9 / 32;
    if (more >= 16 * in_page) more = (more + KS_SPARE_GROUPS) / in_page * in_page - KS_SPARE_GROUPS;
    return more;
}

int ks_keymap_grow(ks_keymap *m) {
    uint64_t homes = m->homes ? ks_more_homes(m->homes) : KS_FIRST_HOMES;
    uint64_t at_once = m->homes ? m->homes + KS_SPARE_GROUPS : 1;
    if (at_once > KS_MOVED_AT_ONCE) at_once = KS_MOVED_AT_ONCE;
    ks_entry *moved = malloc((at_once * KS_GROUP_SLOTS + KS_MOVED_LATER + 1) * sizeof *moved);
    uint8_t *used = calloc(homes + KS_SPARE_GROUPS, 1);
    int grown = moved && used ? ks_grow_to(m, homes, at_once, moved, used) : -1;
    free(moved);
    free(used);
    if (grown == 0) return 0;
    ks_keymap_clear(m);
    return KS_MAP_NO_MEMORY;
}

void ks_keymap_hash_all(const ks_keymap *m, const uint8_t *const *keys, const int32_t *sizes, int n, ks_key *hashes) {
    ks_siphash_eight *eight = ks_siphash_at_once();
    uint64_t low[8], high[8];
    for (int i = 0; i < n;) {
        int same = 1;
        while (same < 8 && i + same < n && sizes[i + same] == sizes[i]) same++;
        if (!eight || same < 8) {
            hashes[i] = ks_keymap_hash(m, keys[i], (size_t)sizes[i]);
            i++;
            continue;
        }
        eight(keys + i, (size_t)sizes[i], m->secret, low, high);
        for (int j = 0; j < 8; j++) hashes[i + j] = (ks_key){low[j] & m->mask, (uint32_t)high[j] & m->more_mask};
        i += 8;
    }
}

int ks_keymap_put_all(ks_keymap *m, const ks_key *keys, const uint32_t *ordinals, int n, int64_t capacity,
                      int64_t *previous) {
    const uint64_t homes = m->homes; /* the slots below are of a map of this size */
    const uint64_t last = (homes + KS_SPARE_GROUPS - 1) * KS_GROUP_SLOTS;
    uint64_t slots[KS_AT_ONCE];
    int i;
    if (homes) {
        for (i = 0; i < n; i++) {
            slots[i] = ks_home_number(m, keys[i].hash) * KS_GROUP_SLOTS;
            KS_FETCH(m->tags + slots[i]);
        }
        for (i = 0; i < n; i++) {
            slots[i] = ks_keymap_candidate(m, keys[i], slots[i]);
            KS_FETCH(m->slots + slots[i]);
        }
        for (i = 0; i < n; i++) { /* one in nine has another key's tag first */
            if (!m->tags[slots[i]] || ks_is_entry(m->slots + slots[i], keys[i])) continue;
            slots[i] = ks_keymap_candidate(m, keys[i], slots[i] + 1);
            KS_FETCH(m->slots + slots[i]);
        }
    }
    for (i = 0; i < n && m->size < capacity; i++) {
        const ks_key k = keys[i];
        if (homes && m->homes == homes) {
            ks_entry *entry = m->slots + slots[i];
            uint8_t *tag = m->tags + slots[i];
            /* A slot that is free still is the first one: nothing was put into its group, and those before it are full. */
            if (!*tag && m->size < m->limit && slots[i] < last) {
                *entry = (ks_entry){k.hash, k.more, ordinals[i]};
                *tag = ks_tag(k);
                m->size++;
                previous[i] = KS_NEW_KEY;
                continue;
            }
            if (*tag && ks_is_entry(entry, k)) {
                previous[i] = entry->ordinal;
                entry->ordinal = ordinals[i];
                continue;
            }
        }
        if ((previous[i] = ks_keymap_put(m, k, ordinals[i])) == KS_MAP_NO_MEMORY) return KS_MAP_NO_MEMORY;
    }
    return i;
}

const ks_entry *ks_keymap_next(const ks_keymap *m, const ks_entry *entry) {
    const size_t end = m->tags_bytes;
    for (size_t slot = entry ? (size_t)(entry - m->slots) + 1 : 0; slot < end; slot++)
        if (m->tags[slot]) return m->slots + slot;
    return NULL;
}

void ks_keymap_start(ks_keymap *m, const uint8_t secret[16], int bits) {
    memset(m, 0, sizeof *m);
    memcpy(m->secret, secret, sizeof m->secret);
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
