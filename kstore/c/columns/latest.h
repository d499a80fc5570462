/* The offset of each key's newest record, from columns of keys in the order of the log.

   The offset map (keymap.h) stores 32 bits for each key: the offset minus the log's first offset. If a log has too many
   offsets for 32 bits, the map stores the key's number instead, and an array has the offset for each number. Keys are
   numbered in the order in which they appear. So memory grows with the keys, and not with the records. */
#ifndef KSTORE_LATEST_H
#define KSTORE_LATEST_H

#include "keymap.h"

#define KS_NO_RECORD UINT32_MAX /* instead of an offset: the newest record is a tombstone */

typedef struct {
    ks_keymap map;
    int64_t first;      /* offset */
    int is_numbered;    /* the map has numbers of keys */
    int64_t *offsets;   /* by number; -1: the newest record is a tombstone */
    int64_t capacity;   /* of `offsets` */
    int64_t live;       /* keys whose newest record is not a tombstone */
} ks_latest;

/* Starts with no keys; offsets will be in [first, end). */
void ks_latest_start(ks_latest *l, const uint8_t secret[16], int bits, int64_t first, int64_t end);

void ks_latest_clear(ks_latest *l);

/* Adds `n` records: their offsets, the places of their keys in `bytes`, a bit for each key that is not null (NULL: all
   have keys), and whether each is a tombstone. Returns 0, or KS_MAP_NO_MEMORY, also for more than 2^32 - 2 keys. */
int ks_latest_add(ks_latest *l, const int64_t *offsets, const int32_t *places, const uint8_t *bytes, const uint8_t *valid,
                  const uint8_t *tombstones, int64_t n);

/* The offset of a key's newest record; -1 for a tombstone, and for an unknown key. */
int64_t ks_latest_find(const ks_latest *l, const uint8_t *key, size_t n);

/* Writes the offsets of the `live` newest records, unsorted. */
void ks_latest_list(const ks_latest *l, int64_t *to);

/* Writes 64 bits of the hashes of the `live` keys, unsorted. */
void ks_latest_hashes(const ks_latest *l, uint64_t *to);

#endif
