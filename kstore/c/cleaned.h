/* The second pass of compaction over v2 batches (SEMANTICS 7.16 to 7.22): each is dropped, kept, emptied or rebuilt.

   A kept batch is copied only if the output cannot be a part of the input. Every count, length and offset is checked
   before it is used. A fault ends the pass with a step that names it. A batch that needs Python (a codec, format 0 or
   1) interrupts the pass: the caller handles the batch and continues. */
#ifndef KSTORE_CLEANED_H
#define KSTORE_CLEANED_H

#include "newest.h"
#include "transactions.h"
#include "unpack.h"

enum ks_step {
    KS_CLEANED,               /* all whole batches are done */
    KS_CLEAN_LEGACY,          /* `p` is at a message of format 0 or 1 */
    KS_CLEAN_PACKED_CONTROL,  /* the caller sets `control_type` */
    KS_CLEAN_PACKED,          /* the caller sets `section` and `section_end` */
    KS_CLEAN_TO_PACK,         /* the caller compresses `rebuilt`, and calls ks_put_packed or ks_packed_in_place */
    KS_CLEAN_BAD_SIZE,
    KS_CLEAN_BAD_MAGIC,
    KS_CLEAN_BAD_OFFSETS,
    KS_CLEAN_BAD_ORDER,
    KS_CLEAN_BAD_COUNT,
    KS_CLEAN_BAD_MARKER,
    KS_CLEAN_BAD_CRC,
    KS_CLEAN_BAD_RECORD,      /* `fault` says why */
    KS_CLEAN_BAD_PLACE,       /* a record's offset is outside its batch */
    KS_CLEAN_BAD_RECORD_ORDER,/* a record's offset is not above the previous record's offset */
    KS_CLEAN_TOO_LARGE,       /* a rebuilt batch would have more than 2^31 - 1 bytes */
    KS_CLEAN_NOT_SCANNED,     /* the first pass has not seen this batch, or saw fewer records in it */
    KS_CLEAN_OUT_OF_MEMORY
};

/* The last record of an active producer (SEMANTICS 7.18). */
typedef struct {
    int64_t producer_id, last_offset; /* -1: no data of the producer is known */
    int16_t epoch;
} ks_last_record;

/* A buffer that grows. */
typedef struct {
    uint8_t *p;
    size_t used, capacity;
} ks_pile;

typedef struct {
    int64_t size, base, last, horizon, base_timestamp, max_timestamp;
    int64_t ordinal;         /* of its first record; only if `scanned` */
    int64_t kept, tombstones, removed, keyless, greatest_kept;
    int32_t count;
    int16_t attributes;
    uint8_t scanned;         /* the first pass has ordinals for its records */
    uint8_t was_aborted;     /* the first pass treated it as aborted and read no keys; this pass does not */
    uint8_t has_horizon, can_discard, keeps_empty, sums_hold;
    uint8_t null_value;      /* a kept record has no value */
} ks_cleaned_batch;

typedef struct {
    const ks_newest *newest;
    ks_transactions *transactions;
    int64_t (*unpack)(int codec, const uint8_t *p, size_t n, ks_output *out, int64_t limit);
    int64_t now, new_horizon;      /* new_horizon < 0: no horizon can be set */
    int64_t first_uncleanable, limit, next_base, ordinal;
    ks_last_record *last_records;  /* in order of the producer id */
    size_t last_records_count;

    /* State of one call. */
    const uint8_t *begin, *p, *end;
    const uint8_t *run, *run_end;  /* kept batches of the input, not yet copied to the end of `out` */
    ks_pile out;
    int64_t max_offset;
    int scanned, changed, fault;

    /* The batch at `p`. */
    int stage, control_type;
    ks_cleaned_batch b;
    const uint8_t *section, *section_end;
    uint64_t *keep;                /* a bit for each record */
    size_t keep_words;
    ks_pile rebuilt;               /* the records of a rebuilt batch that is to be compressed */
    ks_output room;                /* memory for decompressed batches */

    int64_t batches_read, batches_kept, batches_rebuilt, batches_emptied, records_read, records_kept;
    int64_t keyless_dropped, tombstones_kept, tombstones_removed;
} ks_cleaner;

enum { KS_NO_CONTROL_TYPE = -3 };

/* Continues from `p` to the end of the last whole batch, or until the caller must act. If it returns a step that is not
   among the first five, the cleaner must not be used again. */
int ks_clean(ks_cleaner *c);

/* Reserves `n` more bytes at the end of a pile; returns 0, or -1 without memory. */
int ks_pile_room(ks_pile *pile, size_t n);

/* Copies the batches of `run` to `out`; returns 0, or -1 without memory. */
int ks_flush_run(ks_cleaner *c);

/* Writes the rebuilt batch with these compressed records to `out`, and moves past the batch. Returns KS_CLEANED,
   KS_CLEAN_TOO_LARGE or KS_CLEAN_OUT_OF_MEMORY. */
int ks_put_packed(ks_cleaner *c, const uint8_t *payload, size_t n);

/* As `ks_put_packed`, for `n` compressed bytes that already lie in `out`, one header size after its end. */
int ks_packed_in_place(ks_cleaner *c, size_t n);

/* Drops the batch, and moves past it; returns KS_CLEANED. */
int ks_drop(ks_cleaner *c);

/* Drops the next `batches` scanned data batches without reading them: they have `records` records and end at `last`.
   Does so only if all records are superseded and no batch must be kept empty; returns whether it did. */
int ks_drop_unread(ks_cleaner *c, int64_t records, int64_t batches, int64_t last);

/* Whether the batch is the last of an active producer or of the cleanable offsets (SEMANTICS 7.18, RETAIN_EMPTY). */
int ks_keeps_empty(const ks_cleaner *c, int64_t last, int64_t producer_id, int16_t epoch, int is_control);

void ks_cleaner_free(ks_cleaner *c);

#endif
