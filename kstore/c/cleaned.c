#include "cleaned.h"

#include <stdlib.h>

#include "crc32c.h"
#include "record.h"
#include "text.h"

enum {
    KS_KEYS_AT_ONCE = 64, /* keys that are hashed and prefetched before the first one is looked up */
    KS_MOST_GROWTH = 14,  /* bytes by which a new base timestamp enlarges a record: its delta by 9, its length by 4 */
    KS_LEAST_RECORD = 7,  /* bytes of the smallest record */
    KS_SMALL = 128,       /* records of up to this size are copied whether they are kept or not */
    KS_NOT_PLAIN = 16,    /* records that are treated as not plain after one that is not plain */
    KS_CLEAN_NAMES_GROW = -1,   /* a step within this file: header names need more space than was reserved */
    KS_FLAGS = KS_TIMESTAMP_TYPE_BIT | KS_TRANSACTIONAL_BIT | KS_CONTROL_BIT
};

/* A varint of 5 (varlong: 10) bytes may have excess bits in its last byte: numbers this large are encoded again. */
#define KS_PLAIN_SIZE ((int64_t)1 << 27)
#define KS_PLAIN_DELTA ((int64_t)1 << 62)

/* ---- Memory. */

int ks_pile_room(ks_pile *pile, size_t n) {
    if (n <= pile->capacity - pile->used) return 0;
    size_t wanted = pile->used + n + (pile->used + n) / 4 + 4096;
    uint8_t *p = realloc(pile->p, wanted);
    if (!p) return -1;
    pile->p = p;
    pile->capacity = wanted;
    return 0;
}

static int ks_more_room(ks_output *out, size_t used, size_t capacity) {
    (void)used;
    capacity += capacity / 4;
    uint8_t *p = realloc(out->p, capacity);
    if (!p) return -1;
    out->p = p;
    out->capacity = capacity;
    return 0;
}

void ks_cleaner_free(ks_cleaner *c) {
    free(c->last_records);
    free(c->keep);
    free(c->rebuilt.p);
    free(c->room.p);
}

/* ---- Output. */

int ks_flush_run(ks_cleaner *c) {
    size_t n = (size_t)(c->run_end - c->run);
    if (!c->run) return 0;
    if (ks_pile_room(&c->out, n)) return -1;
    memcpy(c->out.p + c->out.used, c->run, n);
    c->out.used += n;
    c->run = c->run_end = NULL;
    return 0;
}

static void ks_move_on(ks_cleaner *c) {
    c->next_base = c->b.last + 1;
    c->p += c->b.size;
    c->stage = 0;
    c->section = c->section_end = NULL;
    c->control_type = KS_NO_CONTROL_TYPE;
}

int ks_drop(ks_cleaner *c) {
    c->changed = 1;
    ks_move_on(c);
    return KS_CLEANED;
}

/* Keeps the batch unchanged. */
static int ks_copy(ks_cleaner *c) {
    if (c->run_end != c->p) {
        if (ks_flush_run(c)) return KS_CLEAN_OUT_OF_MEMORY;
        c->run = c->p;
    }
    c->run_end = c->p + c->b.size;
    if (c->b.last > c->max_offset) c->max_offset = c->b.last;
    c->batches_kept++;
    c->records_kept += c->b.count;
    ks_move_on(c);
    return KS_CLEANED;
}

static int ks_sums_hold(ks_cleaner *c) {
    if (!c->b.sums_hold)
        c->b.sums_hold = (uint32_t)ks_load32(c->p + KS_CRC_AT) ==
                         ks_crc32c(0, c->p + KS_ATTRIBUTES_AT, (size_t)(c->b.size - KS_ATTRIBUTES_AT));
    return c->b.sums_hold;
}

static void ks_put_crc(uint8_t *p, size_t size) {
    ks_store32(p + KS_CRC_AT, (int32_t)ks_crc32c(0, p + KS_ATTRIBUTES_AT, size - KS_ATTRIBUTES_AT));
}

/* Keeps only the header (SEMANTICS 7.20). */
static int ks_empty(ks_cleaner *c) {
    uint8_t header[KS_RECORDS_AT];
    memcpy(header, c->p, KS_RECORDS_AT);
    ks_store32(header + KS_BATCH_LENGTH_AT, KS_RECORDS_AT - KS_LOG_OVERHEAD);
    ks_store16(header + KS_ATTRIBUTES_AT, c->b.attributes & KS_FLAGS);
    ks_store64(header + KS_BASE_TIMESTAMP_AT, -1);
    ks_store32(header + KS_RECORDS_COUNT_AT, 0);
    ks_put_crc(header, KS_RECORDS_AT);
    if (c->b.size == KS_RECORDS_AT && memcmp(header, c->p, KS_RECORDS_AT) == 0) return ks_copy(c);
    if (ks_flush_run(c) || ks_pile_room(&c->out, KS_RECORDS_AT)) return KS_CLEAN_OUT_OF_MEMORY;
    memcpy(c->out.p + c->out.used, header, KS_RECORDS_AT);
    c->out.used += KS_RECORDS_AT;
    c->changed = 1;
    c->batches_emptied++;
    if (c->b.last > c->max_offset) c->max_offset = c->b.last;
    ks_move_on(c);
    return KS_CLEANED;
}

/* Removes all records. If the first pass has not seen the batch, its CRC is checked before it is dropped: a corrupt
   producer id or key must not remove records. */
static int ks_lose_all(ks_cleaner *c) {
    if ((c->b.keeps_empty || !c->b.scanned) && !ks_sums_hold(c)) return KS_CLEAN_BAD_CRC;
    return c->b.keeps_empty ? ks_empty(c) : ks_drop(c);
}

/* ---- Rebuilt batches (SEMANTICS 7.21). */

/* Whether the headers of a parsed record have the shortest encoding and names in UTF-8, and so can be copied. */
static int ks_headers_are_canonical(const ks_record *r) {
    const uint8_t *p = r->headers, *key = NULL, *value = NULL;
    int32_t key_size = 0, value_size = 0;
    int fault;
    int64_t size = 0;
    for (int32_t i = 0; i < r->headers_count; i++) {
        p = ks_parse_header(p, r->end, &key, &key_size, &value, &value_size, &fault);
        if (value_size < -1) return 0;
        for (size_t at = 0, n = (size_t)key_size; at < n;) {
            int sound = 1;
            at += key[at] < 0x80 ? 1 : ks_utf8_step(key + at, n - at, &sound);
            if (!sound) return 0;
        }
        size += ks_uvarint_size((uint64_t)key_size << 1) + key_size;
        size += value_size < 0 ? 1 : ks_uvarint_size((uint64_t)value_size << 1) + value_size;
    }
    return size == r->end - r->headers;
}

/* Whether the record at `p` is encoded as by Kafka's builder. */
static inline int ks_is_canonical(const uint8_t *p, const ks_record *r) {
    int64_t headers = ks_uvarint_size((uint64_t)r->headers_count << 1) + (r->end - r->headers);
    uint64_t body = ks_body_size(r->timestamp_delta, r->offset_delta, r->key_size, r->value_size, headers);
    int length_size = ks_uvarint_size(body << 1);
    if ((int64_t)body + length_size != r->end - p || (int64_t)body >= KS_PLAIN_SIZE) return 0;
    if (p[length_size] != 0 || r->key_size < -1 || r->value_size < -1 || r->offset_delta >= KS_PLAIN_SIZE) return 0;
    if (r->timestamp_delta >= KS_PLAIN_DELTA || r->timestamp_delta < -KS_PLAIN_DELTA) return 0;
    return r->headers_count == 0 || ks_headers_are_canonical(r);
}

/* Writes a record of any encoding; returns NULL if the names of its headers grow and `names_may_grow` is 0. */
static uint8_t *ks_put_anew(uint8_t *to, const ks_record *r, int64_t delta, int names_may_grow) {
    const uint8_t *p = r->headers, *key = NULL, *value = NULL;
    int32_t key_size = 0, value_size = 0;
    int fault;
    uint64_t size = (uint64_t)ks_uvarint_size((uint64_t)r->headers_count << 1);
    for (int32_t i = 0; i < r->headers_count; i++) {
        p = ks_parse_header(p, r->end, &key, &key_size, &value, &value_size, &fault);
        size_t name = ks_utf8_size(key, (size_t)key_size);
        if (name > (size_t)key_size && !names_may_grow) return NULL;
        size += (uint64_t)ks_uvarint_size((uint64_t)name << 1) + name;
        size += value_size < 0 ? 1 : (uint64_t)ks_uvarint_size((uint64_t)value_size << 1) + (uint64_t)value_size;
    }
    uint64_t body = ks_body_size(delta, r->offset_delta, r->key_size, r->value_size, (int64_t)size);
    to = ks_put_record(to, body, delta, r->offset_delta, r->key, r->key_size, r->value, r->value_size, "", 0);
    to = ks_put_uvarint(to, (uint64_t)r->headers_count << 1);
    p = r->headers;
    for (int32_t i = 0; i < r->headers_count; i++) {
        p = ks_parse_header(p, r->end, &key, &key_size, &value, &value_size, &fault);
        to = ks_put_uvarint(to, (uint64_t)ks_utf8_size(key, (size_t)key_size) << 1);
        to = ks_put_utf8(to, key, (size_t)key_size);
        to = ks_put_field(to, value, value_size);
    }
    return to;
}

/* Writes the canonical record [p, end) with the timestamp delta `delta` instead of `old_delta`. */
static inline uint8_t *ks_put_moved(uint8_t *to, const uint8_t *p, const uint8_t *end, int64_t old_delta, int64_t delta) {
    uint64_t old = ks_zigzag(old_delta), now = ks_zigzag(delta);
    int64_t body = 1 + ks_uvarint_size(old);
    const uint8_t *rest = p;
    while (*rest++ >= 0x80) {}
    rest += body;
    size_t n = (size_t)(end - rest);
    to = ks_put_uvarint(to, (uint64_t)(1 + (uint64_t)ks_uvarint_size(now) + n) << 1);
    *to++ = 0;
    to = ks_put_uvarint(to, now);
    memcpy(to, rest, n);
    return to + n;
}

typedef struct {
    int64_t base_timestamp, max_timestamp, horizon;
} ks_stamps;

/* As KS_READ_SHORT, for a varint in its shortest encoding. */
#define KS_READ_SHORTEST(z, p, uncommon)                \
    uint64_t z = *p++;                                  \
    if (z >= 0x80) {                                    \
        uint64_t more = *p++;                           \
        z = (z & 0x7f) | more << 7;                     \
        if (more >= 0x80) {                             \
            more = *p++;                                \
            z = (z & 0x3fff) | more << 14;              \
        }                                               \
        if (more - 1 >= 0x7f) goto uncommon;            \
    }

/* Reads a record that is common (ks_common_record) and canonical; returns the start of the next one, otherwise NULL. */
static inline const uint8_t *ks_plain_record(const uint8_t *p, const uint8_t *end, uint64_t *timestamp, int64_t *delta) {
    if (end - p < KS_HEAD) return NULL;
    KS_READ_SHORTEST(size, p, uncommon)
    if ((int64_t)(size >> 1) > end - p) return NULL;
    const uint8_t *const next = p + (size >> 1);
    const uint8_t attributes = *p++;
    KS_READ_SHORTEST(stamp, p, uncommon)
    KS_READ_SHORTEST(offset, p, uncommon)
    KS_READ_SHORTEST(key, p, uncommon)
    if (!(key & 1)) {
        if ((int64_t)(key >> 1) > end - p - 3) return NULL;
        p += key >> 1;
    } else if (key != 1) {
        return NULL;
    }
    KS_READ_SHORTEST(value, p, uncommon)
    if (value & 1) {
        if (value != 1) return NULL;
        value = 0;
    }
    *timestamp = (stamp >> 1) ^ -(stamp & 1);
    *delta = (int64_t)(offset >> 1);
    if ((int64_t)(value >> 1) + 1 == next - p && !(((size | offset) & 1) | attributes | next[-1])) return next;
uncommon:
    return NULL;
}

/* The progress of rebuilding a batch. */
typedef struct {
    const uint8_t *p, *run; /* `run`: the first of the records before `p` that are still to be copied unchanged */
    uint8_t *out;
    int64_t previous;       /* delta of the last kept record */
    uint64_t shift;         /* new timestamp delta minus the old one */
    int32_t i;
    int first;              /* no record was kept yet */
} ks_rebuilding;

static inline void ks_copy_run(ks_rebuilding *b) {
    if (!b->run) return;
    memcpy(b->out, b->run, (size_t)(b->p - b->run));
    b->out += b->p - b->run;
    b->run = NULL;
}

/* Copies records while they are plain; returns 0 if a kept record is out of order. A small record with an unchanged
   timestamp delta is always copied; the next one overwrites it if it is not kept. A branch would be unpredictable. */
static int ks_copy_plain(const ks_cleaner *c, ks_rebuilding *b, const uint8_t *end, ks_stamps *t) {
    const int64_t last_delta = c->b.last - c->b.base;
    const uint8_t *p = b->p, *next;
    uint8_t *out = b->out;
    int64_t previous = b->previous, max_timestamp = t->max_timestamp, delta, misplaced = 0;
    const uint64_t shift = b->shift;
    uint64_t timestamp;
    int32_t i = b->i;
    for (; i < c->b.count && end - p >= KS_SMALL; i++, p = next) {
        next = ks_plain_record(p, end, &timestamp, &delta);
        if (!next) break;
        const int64_t keeps = -(int64_t)(c->keep[i / 64] >> (i % 64) & 1);
        const int64_t stamp = ks_wrapping_add(c->b.base_timestamp, (int64_t)timestamp);
        if (shift) {
            if (keeps) out = ks_put_moved(out, p, next, (int64_t)timestamp, (int64_t)(timestamp + shift));
        } else {
            if (next - p <= KS_SMALL) memcpy(out, p, KS_SMALL);
            else if (keeps) memcpy(out, p, (size_t)(next - p));
            out += (next - p) & keeps;
        }
        misplaced |= ((delta - previous - 1) | (last_delta - delta)) & keeps;
        previous ^= (previous ^ delta) & keeps;
        max_timestamp = keeps && stamp > max_timestamp ? stamp : max_timestamp;
    }
    t->max_timestamp = max_timestamp;
    b->p = p;
    b->out = out;
    b->previous = previous;
    b->i = i;
    return misplaced >= 0;
}

/* Copies or skips one record of any encoding; returns a step, KS_CLEANED if the next record is at `b->p`. */
static int ks_copy_any(ks_cleaner *c, ks_rebuilding *b, const uint8_t *end, ks_stamps *t, int names_may_grow) {
    const int by_append_time = c->b.attributes & KS_TIMESTAMP_TYPE_BIT;
    const uint8_t *const start = b->p, *next;
    ks_record r;
    if (!(c->keep[b->i / 64] >> (b->i % 64) & 1)) {
        int32_t size;
        ks_copy_run(b);
        c->fault = KS_BAD_VARINT;
        if (!(next = ks_varint(start, end, &size))) return KS_CLEAN_BAD_RECORD;
        c->fault = size < 0 ? KS_NEGATIVE_LENGTH : KS_LENGTH_TOO_LARGE;
        if (size < 0 || size > end - next) return KS_CLEAN_BAD_RECORD;
        b->p = next + size;
        return KS_CLEANED;
    }
    if (!(next = ks_parse_record(start, end, &r))) { c->fault = r.fault; return KS_CLEAN_BAD_RECORD; }
    if (r.offset_delta < 0 || r.offset_delta > c->b.last - c->b.base) return KS_CLEAN_BAD_PLACE;
    if (r.offset_delta <= b->previous) return KS_CLEAN_BAD_RECORD_ORDER;
    b->previous = r.offset_delta;
    int64_t stamp = c->b.max_timestamp, delta;
    if (!by_append_time) {
        stamp = ks_wrapping_add(c->b.base_timestamp, r.timestamp_delta);
        if (stamp > t->max_timestamp) t->max_timestamp = stamp;
    }
    if (b->first) {
        if (t->horizon < 0) t->base_timestamp = stamp;
        b->shift = (uint64_t)(by_append_time ? stamp : c->b.base_timestamp) - (uint64_t)t->base_timestamp;
        b->first = 0;
    }
    delta = (int64_t)(by_append_time ? b->shift : b->shift + (uint64_t)r.timestamp_delta);
    const int canonical = ks_is_canonical(start, &r);
    if (canonical && delta == r.timestamp_delta) {
        if (!b->run) b->run = start;
    } else {
        ks_copy_run(b);
        if (canonical) b->out = ks_put_moved(b->out, start, r.end, r.timestamp_delta, delta);
        else if (!(b->out = ks_put_anew(b->out, &r, delta, names_may_grow))) return KS_CLEAN_NAMES_GROW;
    }
    b->p = next;
    return KS_CLEANED;
}

/* Copies the kept records of [p, end), with new timestamp deltas if needed, to `to`, which has KS_SMALL spare bytes. */
static int ks_copy_kept(ks_cleaner *c, const uint8_t *p, const uint8_t *end, uint8_t **to, ks_stamps *t,
                        int names_may_grow) {
    const int by_append_time = c->b.attributes & KS_TIMESTAMP_TYPE_BIT; /* all records get the same delta */
    ks_rebuilding b = {.p = p, .out = *to, .previous = -1, .first = 1};
    t->base_timestamp = t->horizon;
    t->max_timestamp = by_append_time ? c->b.max_timestamp : -1;
    int32_t try_again = 0; /* the first record at which ks_copy_plain is tried */
    while (b.i < c->b.count) {
        int step = ks_copy_any(c, &b, end, t, names_may_grow);
        if (step != KS_CLEANED) return step;
        const int32_t i = ++b.i;
        if (b.first || by_append_time || i < try_again) continue;
        ks_copy_run(&b);
        if (!ks_copy_plain(c, &b, end, t)) return KS_CLEAN_BAD_RECORD_ORDER;
        if (b.i == i) try_again = i + KS_NOT_PLAIN;
    }
    ks_copy_run(&b);
    c->fault = KS_TRAILING_BYTES;
    if (b.p != end) return KS_CLEAN_BAD_RECORD;
    c->b.greatest_kept = c->b.base + b.previous;
    *to = b.out;
    return KS_CLEANED;
}

/* Writes the header of the rebuilt batch of `size` bytes at `p`, and its CRC. */
static void ks_put_rebuilt_header(const ks_cleaner *c, uint8_t *p, size_t size, const ks_stamps *t) {
    int codec = c->b.attributes & KS_CODEC_MASK, horizon_bit = t->horizon >= 0 ? KS_DELETE_HORIZON_BIT : 0;
    memcpy(p, c->p, KS_RECORDS_AT);
    ks_store32(p + KS_BATCH_LENGTH_AT, (int32_t)(size - KS_LOG_OVERHEAD));
    ks_store16(p + KS_ATTRIBUTES_AT, (int16_t)((c->b.attributes & KS_FLAGS) | codec | horizon_bit));
    ks_store64(p + KS_BASE_TIMESTAMP_AT, t->base_timestamp);
    ks_store64(p + KS_MAX_TIMESTAMP_AT, t->max_timestamp);
    ks_store32(p + KS_RECORDS_COUNT_AT, (int32_t)c->b.kept);
    ks_put_crc(p, size);
}

static int ks_rebuilt(ks_cleaner *c) {
    c->changed = 1;
    c->batches_rebuilt++;
    c->records_kept += c->b.kept;
    if (c->b.greatest_kept > c->max_offset) c->max_offset = c->b.greatest_kept;
    ks_move_on(c);
    return KS_CLEANED;
}

static int64_t ks_horizon_after(const ks_cleaner *c) {
    if (c->b.has_horizon) return c->b.horizon;
    return c->b.null_value || (c->b.can_discard && c->b.attributes & KS_CONTROL_BIT) ? c->new_horizon : -1;
}

/* Writes the kept records to the output, or to `rebuilt` if they will be compressed. */
static int ks_rebuild(ks_cleaner *c, const uint8_t *p, const uint8_t *end) {
    const int packed = c->b.attributes & KS_CODEC_MASK;
    ks_pile *pile = packed ? &c->rebuilt : &c->out;
    ks_stamps t = {.horizon = ks_horizon_after(c)};
    if (!ks_sums_hold(c)) return KS_CLEAN_BAD_CRC;
    if (ks_flush_run(c)) return KS_CLEAN_OUT_OF_MEMORY;
    if (packed) pile->used = 0;
    size_t room = KS_RECORDS_AT + (size_t)(end - p) + KS_MOST_GROWTH * (size_t)c->b.kept + KS_SMALL;
    for (int names_may_grow = 0; names_may_grow < 2; names_may_grow++, room += 3 * (size_t)(end - p)) {
        if (ks_pile_room(pile, room)) return KS_CLEAN_OUT_OF_MEMORY;
        uint8_t *header = pile->p + pile->used, *to = header + KS_RECORDS_AT;
        int step = ks_copy_kept(c, p, end, &to, &t, names_may_grow);
        if (step == KS_CLEAN_NAMES_GROW) continue;
        if (step != KS_CLEANED) return step;
        if (to - header > INT32_MAX) return KS_CLEAN_TOO_LARGE;
        size_t size = (size_t)(to - header);
        if (packed) {
            ks_put_rebuilt_header(c, header, KS_RECORDS_AT, &t);
            pile->used = size;
            return KS_CLEAN_TO_PACK;
        }
        ks_put_rebuilt_header(c, header, size, &t);
        pile->used += size;
        return ks_rebuilt(c);
    }
    return KS_CLEAN_OUT_OF_MEMORY; /* never: the second round has enough space */
}

int ks_put_packed(ks_cleaner *c, const uint8_t *payload, size_t n) {
    if (n > INT32_MAX - KS_RECORDS_AT) return KS_CLEAN_TOO_LARGE;
    if (ks_pile_room(&c->out, KS_RECORDS_AT + n)) return KS_CLEAN_OUT_OF_MEMORY;
    memcpy(c->out.p + c->out.used + KS_RECORDS_AT, payload, n);
    return ks_packed_in_place(c, n);
}

int ks_packed_in_place(ks_cleaner *c, size_t n) {
    if (n > INT32_MAX - KS_RECORDS_AT) return KS_CLEAN_TOO_LARGE;
    uint8_t *p = c->out.p + c->out.used;
    memcpy(p, c->rebuilt.p, KS_RECORDS_AT);
    ks_store32(p + KS_BATCH_LENGTH_AT, (int32_t)(KS_RECORDS_AT + n - KS_LOG_OVERHEAD));
    ks_put_crc(p, KS_RECORDS_AT + n);
    c->out.used += KS_RECORDS_AT + n;
    return ks_rebuilt(c);
}

/* ---- Which records are kept (SEMANTICS 7.19). */

static int ks_keep_room(ks_cleaner *c) {
    size_t words = ((size_t)c->b.count + 63) / 64;
    if (words > c->keep_words) {
        uint64_t *keep = realloc(c->keep, 2 * words * sizeof *keep);
        if (!keep) return -1;
        c->keep = keep;
        c->keep_words = 2 * words;
    }
    return 0;
}

/* The 64 bits from any ordinal on. */
static inline uint64_t ks_bits_from(const ks_bits *bits, int64_t first) {
    int64_t at = first & ~(int64_t)63, shift = first & 63;
    uint64_t word = ks_bits_word(bits, at) >> shift;
    return shift ? word | ks_bits_word(bits, at + 64) << (64 - shift) : word;
}

/* Counts the kept records of a batch by the bits of the first pass, which has judged all of them. */
static void ks_judge_by_bits(ks_cleaner *c) {
    const ks_newest *s = c->newest;
    int64_t superseded = ks_bits_count(&s->superseded, NULL, c->b.ordinal, c->b.count);
    c->b.kept = c->b.count - superseded;
    if (!c->b.kept) return;
    int64_t tombstones = ks_bits_count(&s->tombstones, &s->superseded, c->b.ordinal, c->b.count);
    int due = c->b.has_horizon && c->b.horizon <= c->now;
    if (due) {
        c->b.removed = tombstones;
        c->b.kept -= tombstones;
    } else {
        c->b.tombstones = tombstones;
        c->b.null_value = tombstones > 0;
    }
}

static int ks_keep_by_bits(ks_cleaner *c) {
    const ks_newest *s = c->newest;
    int due = c->b.has_horizon && c->b.horizon <= c->now;
    if (ks_keep_room(c)) return KS_CLEAN_OUT_OF_MEMORY;
    for (int64_t i = 0; i < c->b.count; i += 64) {
        uint64_t gone = ks_bits_from(&s->superseded, c->b.ordinal + i);
        if (due) gone |= ks_bits_from(&s->tombstones, c->b.ordinal + i);
        c->keep[i / 64] = ~gone;
    }
    return KS_CLEANED;
}

/* Reads each record, and decides whether it is kept. */
static int ks_judge_by_records(ks_cleaner *c, const uint8_t *p, const uint8_t *end) {
    const ks_newest *s = c->newest;
    const int is_control = c->b.attributes & KS_CONTROL_BIT;
    const int due = c->b.has_horizon && c->b.horizon <= c->now;
    const int has_bits = c->b.scanned && !c->b.was_aborted;
    const int64_t last_delta = c->b.last - c->b.base;
    const uint8_t *keys[KS_KEYS_AT_ONCE];
    int32_t sizes[KS_KEYS_AT_ONCE];
    ks_key hashes[KS_KEYS_AT_ONCE];
    uint8_t looked_up[KS_KEYS_AT_ONCE];
    int64_t previous = -1;
    ks_record r;
    if (ks_keep_room(c)) return KS_CLEAN_OUT_OF_MEMORY;
    for (int32_t first = 0; first < c->b.count; first += KS_KEYS_AT_ONCE) {
        uint64_t keep = 0, tombstones = 0, bound = 0;
        int n = 0, to_look_up = 0;
        for (; n < KS_KEYS_AT_ONCE && first + n < c->b.count; n++) {
            if (!(p = ks_parse_record(p, end, &r))) { c->fault = r.fault; return KS_CLEAN_BAD_RECORD; }
            if (r.offset_delta < 0 || r.offset_delta > last_delta) return KS_CLEAN_BAD_PLACE;
            if (r.offset_delta <= previous) return KS_CLEAN_BAD_RECORD_ORDER;
            previous = r.offset_delta;
            const uint64_t bit = (uint64_t)1 << n;
            const int64_t offset = c->b.base + r.offset_delta;
            if (r.value_size < 0) tombstones |= bit;
            if (is_control || offset > s->latest) {
                keep |= bit;
                continue;
            }
            bound |= bit;
            if (r.key_size < 0) {
                if (!has_bits || offset < s->first_dirty) c->b.keyless++;
            } else if (has_bits && offset >= s->first_dirty) {
                if (!ks_bits_has(&s->superseded, c->b.ordinal + first + n)) keep |= bit;
            } else {
                keys[to_look_up] = r.key;
                sizes[to_look_up] = r.key_size;
                looked_up[to_look_up++] = (uint8_t)n;
            }
        }
        ks_keymap_hash_all(&s->map, keys, sizes, to_look_up, hashes);
        for (int i = 0; i < to_look_up; i++) ks_keymap_prefetch(&s->map, hashes[i]);
        for (int i = 0; i < to_look_up; i++) ks_keymap_prefetch_slot(&s->map, hashes[i]);
        for (int i = 0; i < to_look_up; i++) {
            int64_t newest = ks_keymap_get(&s->map, hashes[i]), own = c->b.ordinal + first + looked_up[i];
            if (newest < 0 || (c->b.was_aborted && newest < own)) keep |= (uint64_t)1 << looked_up[i];
        }
        if (due) {
            c->b.removed += __builtin_popcountll(keep & tombstones & bound);
            keep &= ~(tombstones & bound);
        }
        c->keep[first / 64] = keep;
        c->b.kept += __builtin_popcountll(keep);
        if (keep & tombstones) c->b.null_value = 1;
        if (!is_control) c->b.tombstones += __builtin_popcountll(keep & tombstones);
    }
    c->fault = KS_TRAILING_BYTES;
    return p == end ? KS_CLEANED : KS_CLEAN_BAD_RECORD;
}

/* ---- One batch. */

int ks_keeps_empty(const ks_cleaner *c, int64_t last, int64_t producer_id, int16_t epoch, int is_control) {
    if (last + 1 == c->first_uncleanable) return 1;
    if (producer_id < 0) return 0;
    size_t low = 0, high = c->last_records_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (c->last_records[middle].producer_id < producer_id) low = middle + 1;
        else high = middle;
    }
    const ks_last_record *of = c->last_records + low;
    if (low == c->last_records_count || of->producer_id != producer_id) return 0;
    return of->last_offset >= 0 ? of->last_offset == last : is_control && of->epoch == epoch;
}

int ks_drop_unread(ks_cleaner *c, int64_t records, int64_t batches, int64_t last) {
    const ks_newest *s = c->newest;
    if (records > s->records - c->ordinal || last < c->next_base || last + 1 == c->first_uncleanable) return 0;
    if (ks_bits_count(&s->superseded, NULL, c->ordinal, records) < records) return 0;
    for (size_t i = 0; i < c->last_records_count; i++)
        if (c->last_records[i].last_offset >= c->next_base && c->last_records[i].last_offset <= last) return 0;
    c->ordinal += records;
    c->next_base = last + 1;
    c->batches_read += batches;
    c->records_read += records;
    return 1;
}

/* Reads the header of the batch at `p` and sets `stage` to 1. For a cut batch it returns KS_CLEANED with stage 0. */
static int ks_read_batch(ks_cleaner *c) {
    const uint8_t *p = c->p;
    ks_cleaned_batch *b = &c->b;
    const int64_t left = c->end - p;
    if (left < KS_LOG_OVERHEAD) return KS_CLEANED;
    memset(b, 0, sizeof *b);
    b->size = ks_batch_size(p);
    if (b->size < KS_LOG_OVERHEAD + KS_MIN_V0_MESSAGE) return KS_CLEAN_BAD_SIZE;
    if (left < KS_HEADER_UP_TO_MAGIC || b->size > left) return KS_CLEANED;
    if (p[KS_MAGIC_AT] > 2) return KS_CLEAN_BAD_MAGIC;
    if (p[KS_MAGIC_AT] < 2) return KS_CLEAN_LEGACY;
    if (b->size < KS_RECORDS_AT) return KS_CLEAN_BAD_SIZE;
    const int32_t last_delta = ks_load32(p + KS_LAST_OFFSET_DELTA_AT);
    b->base = ks_load64(p);
    if (b->base < 0 || last_delta < 0 || b->base >= INT64_MAX - last_delta) return KS_CLEAN_BAD_OFFSETS;
    b->last = b->base + last_delta;
    if (b->base < c->next_base) return KS_CLEAN_BAD_ORDER;
    b->count = ks_load32(p + KS_RECORDS_COUNT_AT);
    if (b->count < 0 || b->count > (int64_t)last_delta + 1) return KS_CLEAN_BAD_COUNT;
    b->attributes = ks_load16(p + KS_ATTRIBUTES_AT);
    b->base_timestamp = ks_load64(p + KS_BASE_TIMESTAMP_AT);
    b->max_timestamp = ks_load64(p + KS_MAX_TIMESTAMP_AT);
    if (b->attributes & KS_DELETE_HORIZON_BIT) {
        b->has_horizon = 1;
        b->horizon = b->base_timestamp;
    }
    c->stage = 1;
    return KS_CLEANED;
}

/* Visits the batch; returns 1 if its records must be discarded, 0 if not, or a negated step. */
static int ks_visit(ks_cleaner *c) {
    ks_cleaned_batch *b = &c->b;
    int answer;
    if (b->attributes & KS_CONTROL_BIT) {
        int type = c->control_type != KS_NO_CONTROL_TYPE ? c->control_type : ks_control_type(c->p, b->size);
        if (type == KS_CONTROL_COMPRESSED) return -KS_CLEAN_PACKED_CONTROL;
        if (type == KS_CONTROL_BAD) return -KS_CLEAN_BAD_MARKER;
        answer = ks_transactions_on_control(c->transactions, c->p, type);
    } else {
        answer = ks_transactions_on_data(c->transactions, c->p);
    }
    if (answer < 0) return -KS_CLEAN_OUT_OF_MEMORY;
    b->can_discard = (uint8_t)answer;
    b->keeps_empty = (uint8_t)ks_keeps_empty(c, b->last, ks_load64(c->p + KS_PRODUCER_ID_AT),
                                             ks_load16(c->p + KS_PRODUCER_EPOCH_AT), b->attributes & KS_CONTROL_BIT);
    c->batches_read++;
    c->records_read += b->count;
    if (c->scanned && b->base <= c->newest->latest) {
        b->scanned = 1;
        b->ordinal = c->ordinal;
        if (b->count > c->newest->records - b->ordinal) return -KS_CLEAN_NOT_SCANNED;
        c->ordinal += b->count;
        b->was_aborted = !answer && b->attributes & KS_TRANSACTIONAL_BIT && !(b->attributes & KS_CONTROL_BIT) &&
                         ks_newest_is_aborted(c->newest, b->ordinal);
    } else if (b->base <= c->newest->latest && b->last >= c->newest->first_dirty) {
        return -KS_CLEAN_NOT_SCANNED;
    }
    c->stage = 2;
    if (!(b->attributes & KS_CONTROL_BIT)) return answer;
    return answer && b->has_horizon && b->horizon <= c->now;
}

/* Sets `section` to the records of the batch; returns KS_CLEAN_PACKED if the caller must decompress them. */
static int ks_open_section(ks_cleaner *c) {
    if (c->section) return KS_CLEANED;
    const int codec = c->b.attributes & KS_CODEC_MASK;
    if (!codec) {
        c->section = c->p + KS_RECORDS_AT;
        c->section_end = c->p + c->b.size;
    } else {
        c->room.room = ks_more_room;
        int64_t n = c->unpack(codec, c->p + KS_RECORDS_AT, (size_t)(c->b.size - KS_RECORDS_AT), &c->room, c->limit);
        if (n < 0) return KS_CLEAN_PACKED;
        c->section = c->room.p;
        c->section_end = c->section + n;
    }
    return KS_CLEANED;
}

static void ks_count(ks_cleaner *c) {
    c->keyless_dropped += c->b.keyless;
    c->tombstones_kept += c->b.tombstones;
    c->tombstones_removed += c->b.removed;
}

static int ks_clean_batch(ks_cleaner *c) {
    ks_cleaned_batch *b = &c->b;
    const ks_newest *s = c->newest;
    int step;
    if (c->stage == 1) {
        int discard = ks_visit(c);
        if (discard < 0) return -discard;
        if (discard || b->count == 0) return ks_lose_all(c);
    }
    const int is_control = b->attributes & KS_CONTROL_BIT;
    const int by_bits = b->scanned && !b->was_aborted && !is_control && b->base >= s->first_dirty && b->last <= s->latest;
    if (c->stage == 2 && by_bits) {
        ks_judge_by_bits(c);
        ks_count(c);
        c->stage = 3;
        if (b->kept == 0) return ks_lose_all(c);
        if (b->kept == b->count && ks_horizon_after(c) == (b->has_horizon ? b->horizon : -1)) return ks_copy(c);
    }
    if (c->stage == 2 && b->has_horizon && (is_control || b->base > s->latest)) return ks_copy(c);
    if ((step = ks_open_section(c)) != KS_CLEANED) return step;
    if (c->section_end - c->section < (int64_t)b->count * KS_LEAST_RECORD) {
        c->fault = KS_ENDS_EARLY;
        return KS_CLEAN_BAD_RECORD;
    }
    if (c->stage == 2) {
        step = ks_judge_by_records(c, c->section, c->section_end);
        if (step != KS_CLEANED) return step;
        ks_count(c);
        if (b->kept == 0) return ks_lose_all(c);
        if (b->kept == b->count && ks_horizon_after(c) == (b->has_horizon ? b->horizon : -1)) return ks_copy(c);
    } else if ((step = ks_keep_by_bits(c)) != KS_CLEANED) {
        return step;
    }
    return ks_rebuild(c, c->section, c->section_end);
}

int ks_clean(ks_cleaner *c) {
    for (;;) {
        if (c->stage == 0) {
            int step = ks_read_batch(c);
            if (step != KS_CLEANED || c->stage == 0) return step;
        }
        int step = ks_clean_batch(c);
        if (step != KS_CLEANED) return step;
    }
}
