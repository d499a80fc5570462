#include "columns/decode.h"

#include "text.h"

/* ---- one value -------------------------------------------------------------------------------------------------- */

#define KS_SHORT_VALUE 512 /* up to this size, copying whole words inline is faster than the C library */
#define KS_OVERREACH (KS_SHORT_VALUE + KS_SLACK)

enum { KS_LINE = 64 };
#define KS_FETCH_AHEAD(p, n) __builtin_prefetch((const void *)((uintptr_t)(p) + (n)), 0, 2) /* to the second level */

/* 32 bytes of any alignment, in the widest registers of the processor. */
typedef long long ks_32_bytes __attribute__((vector_size(32), aligned(1), may_alias));
#define KS_MOVE_32(to, from) (*(ks_32_bytes *)(to) = *(const ks_32_bytes *)(from))

/* Copies a value. If it is short and starts at or before `harmless`, up to 63 bytes after it are copied, too. */
KS_INLINE void ks_copy_words(uint8_t *to, const uint8_t *from, size_t size, const uint8_t *harmless) {
    if (size > KS_SHORT_VALUE || (uintptr_t)from > (uintptr_t)harmless) {
        memcpy(to, from, size);
        return;
    }
    KS_MOVE_32(to, from);
    for (size_t i = 32; i < size; i += 64) {
        KS_MOVE_32(to + i, from + i);
        KS_MOVE_32(to + i + 32, from + i + 32);
    }
}

/* The parts of a ks_var that change with each row. */
typedef struct {
    uint8_t *places, *data, *to; /* data: the start of the first value; to: the start of the next one */
    uint64_t bits;               /* validity bits of the current 64 rows */
    int64_t valid_n;
    const uint8_t *buffer_p;
    int32_t buffer;
} ks_cursor;

KS_INLINE ks_cursor ks_cursor_at(const ks_var *v, const ks_place *at, int64_t used, const uint8_t *buffer_p) {
    ks_cursor c = {v->places.p, v->data.p, v->data.p + used, 0, 0, buffer_p, at->buffer};
    if (v->layout != KS_ABSENT && at->n & 63) {
        c.bits = ks_little(((const uint64_t *)v->valid.p)[at->n / 64]) & (((uint64_t)1 << (at->n & 63)) - 1);
        c.valid_n -= __builtin_popcountll(c.bits); /* these rows are counted again when the word is written */
    }
    return c;
}

/* Writes the word of bits that holds row `n`, and starts the next word. */
KS_INLINE void ks_cursor_flush(ks_cursor *c, ks_var *v, int64_t n) {
    if (v->layout == KS_ABSENT) return;
    uint64_t *word = (uint64_t *)v->valid.p + n / 64;
    c->valid_n += __builtin_popcountll(c->bits);
    *word = ks_little(c->bits);
    c->bits = 0;
}

/* Flushes the bits of the last rows before row `n`, and stores the places of the cursors in `at`. */
KS_INLINE void ks_end_at(ks_place *at, ks_rows *out, int64_t n, ks_cursor *key, ks_cursor *value) {
    if (n & 63) {
        ks_cursor_flush(key, &out->key, n - 1);
        ks_cursor_flush(value, &out->value, n - 1);
    }
    at->n = n;
    at->key_used = key->to - key->data;
    at->value_used = value->to - value->data;
    at->key_valid += key->valid_n;
    at->value_valid += value->valid_n;
}

KS_INLINE void ks_put_view(uint8_t *to, const uint8_t *p, uint32_t size, const ks_cursor *c, const uint8_t *harmless) {
    uint8_t view[16] = {0};
    memcpy(view, &size, 4);
    if (size > 12) {
        int32_t offset = (int32_t)(p - c->buffer_p);
        memcpy(view + 4, p, 4);
        memcpy(view + 8, &c->buffer, 4);
        memcpy(view + 12, &offset, 4);
    } else if ((uintptr_t)p <= (uintptr_t)harmless) {
        static const uint8_t ones[24] = {255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255};
        uint64_t a, a_mask;
        uint32_t b, b_mask;
        memcpy(&a, p, 8);
        memcpy(&b, p + 8, 4);
        memcpy(&a_mask, ones + 12 - size, 8);
        memcpy(&b_mask, ones + 20 - size, 4);
        a &= a_mask;
        b &= b_mask;
        memcpy(view + 4, &a, 8);
        memcpy(view + 12, &b, 4);
    } else {
        memcpy(view + 4, p, size);
    }
    memcpy(to, view, 16);
}

/* Writes row `n`, whose bit in its word is `bit`, into space that the caller has reserved; a negative size is null. */
KS_INLINE void ks_put_value(ks_cursor *c, int layout, int64_t n, uint64_t bit, const uint8_t *p, int64_t size,
                            const uint8_t *harmless) {
    if (layout == KS_ABSENT) return;
    if (size >= 0) {
        c->bits |= bit;
        if (layout != KS_VIEWS) {
            ks_copy_words(c->to, p, (size_t)size, harmless);
            c->to += size;
        }
    } else {
        size = 0;
    }
    if (layout == KS_VIEWS) ks_put_view(c->places + n * 16, p, (uint32_t)size, c, harmless);
    else if (layout == KS_OFFSETS32) ((int32_t *)c->places)[n + 1] = (int32_t)(c->to - c->data);
    else ((int64_t *)c->places)[n + 1] = c->to - c->data;
}

/* ---- headers ---------------------------------------------------------------------------------------------------- */

/* Appends one value to a column of `n` rows; returns 0, or -1 without memory. */
static int ks_var_append(ks_var *v, int64_t n, const uint8_t *p, int32_t size, ks_block *block, int32_t buffer) {
    if (v->layout == KS_ABSENT) return 0;
    if (ks_var_reserve(v, n, 1, size > 0 ? size : 0)) return -1;
    static const uint8_t nothing[KS_SLACK];
    if (!p) p = nothing;
    ks_place at = {n, 0, 0, 0, 0, buffer, 0, 0, NULL};
    ks_cursor c = ks_cursor_at(v, &at, v->used, block ? block->data : NULL);
    ks_put_value(&c, v->layout, n, (uint64_t)1 << (n & 63), p, size, NULL);
    ks_cursor_flush(&c, v, n);
    v->used = c.to - c.data;
    v->nulls += size < 0;
    return 0;
}

/* Appends a header's name; each sequence that is not UTF-8 becomes U+FFFD, as in Kafka's consumers. */
static int ks_append_name(ks_rows *out, const uint8_t *key, int32_t size) {
    ks_var *v = &out->header_key;
    if (ks_var_reserve(v, out->headers_n, 1, 3 * (int64_t)size)) return -1;
    v->used = ks_put_utf8(v->data.p + v->used, key, (size_t)size) - v->data.p;
    ((int32_t *)v->places.p)[out->headers_n + 1] = (int32_t)v->used;
    return 0;
}

int ks_append_header(ks_rows *out, const uint8_t *key, int32_t key_size, const uint8_t *value,
                     int32_t value_size) {
    if (ks_append_name(out, key, key_size)) return -1;
    if (ks_var_append(&out->header_value, out->headers_n, value, value_size, NULL, 0)) return -1;
    out->headers_n++;
    return 0;
}

/* ---- a batch ---------------------------------------------------------------------------------------------------- */

/* Reads the record at `p`; returns the start of the next one. */
KS_INLINE const uint8_t *ks_next_record(const uint8_t *p, const uint8_t *end, ks_fields *f) {
    const uint8_t *next = ks_common_record(p, end, f);
    if (next) return next;
    ks_record r;
    if (!(next = ks_parse_uncommon(p, end, &r))) return NULL;
    f->timestamp = r.timestamp_delta;
    f->delta = r.offset_delta;
    f->key = r.key;
    f->key_size = r.key_size;
    f->value = r.value;
    f->value_size = r.value_size;
    f->headers_count = r.headers_count;
    f->headers = r.headers;
    return next;
}

/* Appends the headers of row `n`, whose record ends at `end`; returns 0, or -1 without memory. */
static int ks_append_headers(ks_rows *out, int64_t n, const ks_fields *f, const uint8_t *end) {
    const uint8_t *p = f->headers, *key, *value;
    int32_t key_size, value_size;
    int fault;
    for (int32_t i = 0; i < f->headers_count; i++) {
        if (!(p = ks_parse_header(p, end, &key, &key_size, &value, &value_size, &fault))) return -1;
        if (ks_append_header(out, key, key_size, value, value_size)) return -1;
    }
    ((int32_t *)out->header_places.p)[n + 1] = (int32_t)out->headers_n;
    return 0;
}

/* Decodes a batch into the rows from `at` on, for which space is reserved, and moves `at` past them. `usual`: offsets
   and timestamps are wanted; headers, sizes and tombstones are not. */
KS_INLINE int ks_decode_with(const ks_batch *b, ks_rows *out, ks_place *at, int key_layout, int value_layout, int usual) {
    const uint8_t *buffer_p = b->block ? b->block->data : NULL;
    int64_t n = at->n, last = n + b->count;
    ks_cursor key = ks_cursor_at(&out->key, at, at->key_used, buffer_p);
    ks_cursor value = ks_cursor_at(&out->value, at, at->value_used, buffer_p);
    int64_t *offsets = out->wanted >> KS_OFFSET & 1 ? (int64_t *)out->fixed[KS_OFFSET].p : NULL;
    int64_t *timestamps = out->wanted >> KS_TIMESTAMP & 1 ? (int64_t *)out->fixed[KS_TIMESTAMP].p : NULL;
    int32_t *sizes = !usual && out->measured ? (int32_t *)out->sizes.p : NULL;
    uint8_t *tombstones = !usual && out->wanted >> KS_TOMBSTONE & 1 ? out->fixed[KS_TOMBSTONE].p : NULL;
    int headers = !usual && out->headers;
    const int64_t mask = b->append_time ? 0 : -1, base_offset = b->base_offset, base_timestamp = b->base_timestamp;
    const uint8_t *p = b->p, *const end = b->end;
    const uint8_t *harmless = b->safe - p > KS_OVERREACH ? b->safe - KS_OVERREACH : NULL;
    const size_t ahead = (size_t)(end - p) + KS_RECORDS_AT;
    int64_t before = at->min_delta - 1;
    ks_fields f;
    while (n < last) {
        int64_t stop = (n | 63) + 1 < last ? (n | 63) + 1 : last;
        for (uint64_t bit = (uint64_t)1 << (n & 63); n < stop; n++, bit <<= 1) {
            const uint8_t *next = ks_next_record(p, end, &f);
            if (!next && at->in_pieces) goto stopped;
            if (!next || f.delta <= before) return KS_DOUBTFUL;
            before = f.delta;
            if (usual || offsets) offsets[n] = base_offset + before;
            if (usual || timestamps) timestamps[n] = ks_wrapping_add(base_timestamp, f.timestamp & mask);
            if (!usual && sizes) sizes[n] = (int32_t)(next - p);
            if (!usual && tombstones) tombstones[n] = f.value_size < 0;
            ks_put_value(&key, key_layout, n, bit, f.key, f.key_size, harmless);
            ks_put_value(&value, value_layout, n, bit, f.value, f.value_size, harmless);
            if (headers && ks_append_headers(out, n, &f, next)) return KS_NO_MEMORY;
            if (b->unread) /* prefetches the next batch, so that reading it overlaps with writing this one */
                for (size_t at_line = 0; at_line < (size_t)(next - p); at_line += KS_LINE) KS_FETCH_AHEAD(p, ahead + at_line);
            p = next;
        }
        if (!(n & 63)) {
            ks_cursor_flush(&key, &out->key, n - 1);
            ks_cursor_flush(&value, &out->value, n - 1);
        }
    }
    if (!at->in_pieces && (p != end || before > b->last_delta)) return KS_DOUBTFUL;
stopped:
    at->stopped = p;
    at->min_delta = at->in_pieces ? before + 1 : 0;
    ks_end_at(at, out, n, &key, &value);
    return KS_DECODED;
}

/* As ks_decode_with, for the records at the offsets `kept`; adds their sizes to `bytes`. */
static int ks_decode_some_at(const ks_batch *b, ks_rows *out, ks_place *at, const int64_t *kept, int64_t kept_n,
                             int64_t *bytes) {
    const uint8_t *buffer_p = b->block ? b->block->data : NULL;
    ks_cursor key = ks_cursor_at(&out->key, at, at->key_used, buffer_p);
    ks_cursor value = ks_cursor_at(&out->value, at, at->value_used, buffer_p);
    int64_t *offsets = out->wanted >> KS_OFFSET & 1 ? (int64_t *)out->fixed[KS_OFFSET].p : NULL;
    int64_t *timestamps = out->wanted >> KS_TIMESTAMP & 1 ? (int64_t *)out->fixed[KS_TIMESTAMP].p : NULL;
    uint8_t *tombstones = out->wanted >> KS_TOMBSTONE & 1 ? out->fixed[KS_TOMBSTONE].p : NULL;
    const int64_t mask = b->append_time ? 0 : -1;
    const uint8_t *p = b->p, *const end = b->end;
    const uint8_t *harmless = b->safe - p > KS_OVERREACH ? b->safe - KS_OVERREACH : NULL;
    int64_t before = -1, n = at->n, wanted = kept[0] - b->base_offset;
    ks_fields f;
    for (int64_t left = b->count; left > 0; left--) {
        const uint8_t *next = ks_next_record(p, end, &f);
        if (!next || f.delta <= before) return KS_DOUBTFUL;
        before = f.delta;
        const int64_t size = next - p;
        p = next;
        if (before != wanted) continue;
        *bytes += size;
        uint64_t bit = (uint64_t)1 << (n & 63);
        if (offsets) offsets[n] = b->base_offset + before;
        if (timestamps) timestamps[n] = ks_wrapping_add(b->base_timestamp, f.timestamp & mask);
        if (tombstones) tombstones[n] = f.value_size < 0;
        ks_put_value(&key, out->key.layout, n, bit, f.key, f.key_size, harmless);
        ks_put_value(&value, out->value.layout, n, bit, f.value, f.value_size, harmless);
        if (out->headers && ks_append_headers(out, n, &f, next)) return KS_NO_MEMORY;
        n++;
        if (!(n & 63)) {
            ks_cursor_flush(&key, &out->key, n - 1);
            ks_cursor_flush(&value, &out->value, n - 1);
        }
        wanted = n - at->n < kept_n ? kept[n - at->n] - b->base_offset : -1;
    }
    if (p != end || before > b->last_delta || n - at->n != kept_n) return KS_DOUBTFUL;
    ks_end_at(at, out, n, &key, &value);
    return KS_DECODED;
}

/* A loop for each of the most common sets of columns, and one for all others; all are also compiled for AVX2. */
#define KS_DECODERS(suffix, target)                                                                 \
    target static int ks_decode_values##suffix(const ks_batch *b, ks_rows *out, ks_place *at) {     \
        return ks_decode_with(b, out, at, KS_ABSENT, KS_OFFSETS32, 1);                                 \
    }                                                                                               \
    target static int ks_decode_pairs##suffix(const ks_batch *b, ks_rows *out, ks_place *at) {      \
        return ks_decode_with(b, out, at, KS_OFFSETS32, KS_OFFSETS32, 1);                                 \
    }                                                                                               \
    target static int ks_decode_views##suffix(const ks_batch *b, ks_rows *out, ks_place *at) {      \
        return ks_decode_with(b, out, at, KS_VIEWS, KS_VIEWS, 1);                                     \
    }                                                                                               \
    target static int ks_decode_keys##suffix(const ks_batch *b, ks_rows *out, ks_place *at) {       \
        return ks_decode_with(b, out, at, KS_OFFSETS32, KS_ABSENT, 0);                              \
    }                                                                                               \
    target static int ks_decode_any##suffix(const ks_batch *b, ks_rows *out, ks_place *at) {        \
        return ks_decode_with(b, out, at, out->key.layout, out->value.layout, 0);                   \
    }

typedef int (*ks_decoder)(const ks_batch *, ks_rows *, ks_place *);
enum { KS_DECODE_VALUES, KS_DECODE_PAIRS, KS_DECODE_VIEWS, KS_DECODE_KEYS, KS_DECODE_ANY, KS_DECODERS_N };

KS_DECODERS(, )
static ks_decoder ks_decoders[KS_DECODERS_N] = {ks_decode_values, ks_decode_pairs, ks_decode_views, ks_decode_keys,
                                                 ks_decode_any};

#if defined(__x86_64__) && defined(__GNUC__)
KS_DECODERS(_wide, __attribute__((target("avx2,bmi,bmi2,lzcnt,popcnt"))))

__attribute__((constructor)) static void ks_choose_decoders(void) {
    static const ks_decoder wide[] = {ks_decode_values_wide, ks_decode_pairs_wide, ks_decode_views_wide, ks_decode_keys_wide,
                                     ks_decode_any_wide};
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2")) memcpy(ks_decoders, wide, sizeof ks_decoders);
}
#endif

#define KS_FILL(type, column, number)                                                          \
    if (out->wanted >> column & 1) {                                                           \
        type *to = (type *)out->fixed[column].p, fill = (type)(number);                        \
        for (int64_t i = first; i < last; i++) to[i] = fill;                                   \
    }

/* Writes the columns that depend only on the batch to the rows [first, last), whose offsets have been written. */
static void ks_fill_batch(const ks_batch *b, ks_rows *out, int64_t first, int64_t last) {
    if (!(out->wanted >> KS_LEADER_EPOCH)) return;
    KS_FILL(int32_t, KS_LEADER_EPOCH, b->leader_epoch)
    KS_FILL(int64_t, KS_PRODUCER_ID, b->producer_id)
    KS_FILL(int16_t, KS_PRODUCER_EPOCH, b->producer_epoch)
    KS_FILL(int32_t, KS_BASE_SEQUENCE, b->base_sequence)
    KS_FILL(int64_t, KS_BASE_OFFSET, b->base_offset)
    KS_FILL(int8_t, KS_TIMESTAMP_TYPE, b->timestamp_type)
    KS_FILL(int8_t, KS_COMPRESSION, b->compression)
    KS_FILL(int8_t, KS_TRANSACTIONAL, b->transactional)
    if (out->wanted >> KS_SEQUENCE & 1) {
        int32_t *to = (int32_t *)out->fixed[KS_SEQUENCE].p;
        const int64_t *offsets = (const int64_t *)out->fixed[KS_OFFSET].p;
        for (int64_t i = first; i < last; i++) /* 0 follows the greatest sequence, as in producers */
            to[i] = b->base_sequence < 0 ? -1
                    : (int32_t)(((int64_t)b->base_sequence + (offsets[i] - b->base_offset)) & 0x7fffffff);
    }
}


static int ks_is_regular(const ks_batch *b) {
    return ks_has_regular_offsets(b) && b->count >= 0 && b->count <= (b->end - b->p) / 7; /* 7: the smallest record */
}

int ks_decode_at(const ks_batch *b, ks_rows *out, ks_place *at) {
    int key = out->key.layout, value = out->value.layout, which = KS_DECODE_ANY;
    if (!out->measured && !out->headers && (out->wanted & 3) == 3 && !(out->wanted >> KS_TOMBSTONE & 1)) {
        if (key == KS_ABSENT && value == KS_OFFSETS32) which = KS_DECODE_VALUES;
        else if (key == KS_OFFSETS32 && value == KS_OFFSETS32) which = KS_DECODE_PAIRS;
        else if (key == KS_VIEWS && value == KS_VIEWS) which = KS_DECODE_VIEWS;
    }
    if (!out->measured && !out->headers && key == KS_OFFSETS32 && value == KS_ABSENT) which = KS_DECODE_KEYS;
    int64_t first = at->n;
    int decoded = ks_decoders[which](b, out, at);
    if (decoded == KS_DECODED) ks_fill_batch(b, out, first, at->n);
    return decoded;
}

int32_t ks_buffer_of(ks_batch *b, ks_rows *out) {
    if (out->key.layout != KS_VIEWS && out->value.layout != KS_VIEWS) return b->buffer = 0;
    int32_t buffer = b->buffer = ks_rows_buffer(out, b->block);
    if (buffer >= 0 && out->extents[buffer] < b->end - b->block->data) out->extents[buffer] = b->end - b->block->data;
    return buffer;
}

void ks_keep_rows(ks_rows *out, const ks_place *at, int64_t rows, int64_t bytes) {
    out->n = at->n;
    out->bytes += bytes;
    out->key.used = at->key_used;
    out->value.used = at->value_used;
    out->key.nulls += rows - at->key_valid;
    out->value.nulls += rows - at->value_valid;
}

int ks_decode(ks_batch *b, ks_rows *out) {
    if (!ks_is_regular(b)) return KS_DOUBTFUL;
    if (ks_rows_reserve(out, b->count, b->end - b->p)) return KS_NO_MEMORY;
    ks_mark mark; /* only headers are added to `out` before the batch is known to be sound */
    if (out->headers) mark = ks_rows_mark(out);
    ks_place at = {out->n, out->key.used, out->value.used, 0, 0, ks_buffer_of(b, out), 0, 0, NULL};
    int decoded = at.buffer < 0 ? KS_NO_MEMORY : ks_decode_at(b, out, &at);
    if (decoded != KS_DECODED) {
        if (out->headers) ks_rows_back(out, &mark);
        return decoded;
    }
    ks_keep_rows(out, &at, b->count, b->end - b->p);
    return KS_DECODED;
}

int ks_decode_some(ks_batch *b, ks_rows *out, const int64_t *kept, int64_t n) {
    if (!ks_is_regular(b)) return KS_DOUBTFUL;
    if (ks_rows_reserve(out, n, b->end - b->p)) return KS_NO_MEMORY;
    ks_mark mark = ks_rows_mark(out);
    ks_place at = {out->n, out->key.used, out->value.used, 0, 0, ks_buffer_of(b, out), 0, 0, NULL};
    int64_t bytes = 0;
    int decoded = at.buffer < 0 ? KS_NO_MEMORY : ks_decode_some_at(b, out, &at, kept, n, &bytes);
    if (decoded != KS_DECODED) {
        ks_rows_back(out, &mark);
        return decoded;
    }
    ks_fill_batch(b, out, mark.n, at.n);
    ks_keep_rows(out, &at, n, bytes);
    return KS_DECODED;
}

int ks_append_row(ks_rows *out, const ks_batch *b, int64_t offset, int64_t timestamp, const uint8_t *key,
                  int32_t key_size, const uint8_t *value, int32_t value_size, ks_block *block, int64_t bytes) {
    int32_t buffer = 0;
    if (ks_rows_reserve(out, 1, 0)) return -1;
    if (block && (buffer = ks_rows_buffer(out, block)) < 0) return -1;
    if (block) out->extents[buffer] = (int64_t)block->capacity;
    if (ks_var_append(&out->key, out->n, key, key_size, block, buffer)) return -1;
    if (ks_var_append(&out->value, out->n, value, value_size, block, buffer)) return -1;
    if (out->headers) ((int32_t *)out->header_places.p)[out->n + 1] = (int32_t)out->headers_n;
    if (out->wanted >> KS_OFFSET & 1) ((int64_t *)out->fixed[KS_OFFSET].p)[out->n] = offset;
    if (out->wanted >> KS_TIMESTAMP & 1) ((int64_t *)out->fixed[KS_TIMESTAMP].p)[out->n] = timestamp;
    if (out->measured) ((int32_t *)out->sizes.p)[out->n] = (int32_t)bytes;
    if (out->wanted >> KS_TOMBSTONE & 1) out->fixed[KS_TOMBSTONE].p[out->n] = value_size < 0;
    ks_fill_batch(b, out, out->n, out->n + 1);
    out->n++;
    out->bytes += bytes;
    return 0;
}
