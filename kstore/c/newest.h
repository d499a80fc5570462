/* The first pass of compaction (SEMANTICS 7.11, 7.12): which of the dirty records are superseded by a later record.

   Each record of each scanned batch has an ordinal, from 0 in the order of the file. Control batches and aborted ones
   get as many ordinals as their headers declare. Headers have been checked; records are not trusted. */
#ifndef KSTORE_NEWEST_H
#define KSTORE_NEWEST_H

#include "bits.h"
#include "keymap.h"

/* Keys that are not yet in the map, in the order of their records: one call adds the keys of several small batches. */
typedef struct {
    int n;
    const uint8_t *keys[KS_AT_ONCE];
    int32_t sizes[KS_AT_ONCE];
    uint32_t ordinals[KS_AT_ONCE];
    int64_t offsets[KS_AT_ONCE];
} ks_waiting;

typedef struct {
    ks_keymap map;
    ks_bits superseded; /* by ordinal, in [first_dirty, latest]: a later record has the key, or the record has none */
    ks_bits tombstones; /* by ordinal: the value is null; never set for control and aborted records */
    int64_t capacity;   /* the most keys */
    int64_t most_records;
    int64_t records;    /* next ordinal */
    int64_t keyless;    /* records without a key in the dirty part, all superseded */
    int64_t first_dirty;
    int64_t latest;     /* the last offset of the pass */
    int64_t *aborted;   /* first ordinals of the batches that were treated as aborted, ascending */
    int64_t aborted_n, aborted_capacity;
    int full;
    ks_waiting waiting;
} ks_newest;

enum ks_taken {
    KS_TAKEN = 0,
    KS_DAMAGED,     /* `fault` is an enum ks_fault (record.h) */
    KS_OUT_OF_BATCH,/* a record's offset is outside the batch */
    KS_UNORDERED,   /* a record's offset is not above the previous record's offset */
    KS_NO_ROOM      /* without memory */
};

void ks_newest_start(ks_newest *s, int64_t capacity, int64_t first_dirty, const uint8_t secret[16], int bits,
                     int64_t most_records);
void ks_newest_free(ks_newest *s);

/* Whether the pass ends before a batch of `count` records; marks the map as full if too few ordinals are left. */
static inline int ks_newest_ends_at(ks_newest *s, int32_t count) {
    if (s->records + count > s->most_records) s->full = 1;
    return s->full;
}

/* Counts the batch at `head` without reading its records. */
static inline void ks_newest_pass(ks_newest *s, const uint8_t *head) {
    int64_t last = ks_last_offset(head);
    s->records += ks_load32(head + KS_RECORDS_COUNT_AT);
    if (last >= s->first_dirty) s->latest = last;
}

/* Notes that the next batch is treated as aborted: its keys stay out of the map, even if the second pass finds that
   the batch was committed. Returns 0, or -1 without memory. */
int ks_newest_note_aborted(ks_newest *s);

/* Whether the batch whose first record has this ordinal was treated as aborted. */
int ks_newest_is_aborted(const ks_newest *s, int64_t ordinal);

/* Takes the records [p, end) of the batch whose header is at `head`, as many as the header declares. All get ordinals,
   even if the map becomes full. `stays`: the records' memory is valid until ks_newest_settle is called, so that keys
   may wait. Keys wait only if the map has space for all of them. A result other than KS_TAKEN ends the pass. */
int ks_newest_take(ks_newest *s, const uint8_t *head, const uint8_t *p, const uint8_t *end, int stays, int *fault);

/* Puts the waiting keys into the map; returns 0, or -1 without memory. Called before results of the pass are read, and
   before the memory of the records is freed. */
int ks_newest_settle(ks_newest *s);

/* Takes one record of format 0 or 1; returns 0, or -1 without memory. No key may be waiting. */
int ks_newest_take_one(ks_newest *s, int64_t offset, const uint8_t *key, int64_t key_size, int tombstone);

/* Whether a key has a scanned record at or above the first dirty offset. */
static inline int ks_newest_has(const ks_newest *s, const uint8_t *key, size_t n) {
    return n <= INT32_MAX && ks_keymap_get(&s->map, ks_keymap_hash(&s->map, key, (int32_t)n)) >= 0;
}

#endif
