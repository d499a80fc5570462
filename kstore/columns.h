/* Rows of columns under construction, and the loop that turns a batch's records into them.

   `ks_rows` is what has been built so far: each column that was asked for, in memory that grows. `ks_decode` appends
   one whole v2 batch or nothing: it takes only what is beyond doubt (offsets that rise and lie within the batch, every
   field sound), and leaves the rest to the row reader, which alone gives verdicts. `ks_rows_take` moves a range of rows
   from one to another, for batches of which only some are wanted. Nothing here knows Python. */
#ifndef KSTORE_COLUMNS_H
#define KSTORE_COLUMNS_H

#include "blocks.h"
#include "record.h"
#include "text.h"

enum ks_layout { KS_ABSENT, KS_BINARY, KS_LARGE, KS_VIEW };

/* Columns of one number a row; those after the second are the same for a whole batch but for the sequence. */
enum ks_fixed {
    KS_OFFSET, KS_TIMESTAMP, KS_LEADER_EPOCH, KS_PRODUCER_ID, KS_PRODUCER_EPOCH, KS_BASE_SEQUENCE, KS_SEQUENCE,
    KS_BASE_OFFSET, KS_TIMESTAMP_TYPE, KS_COMPRESSION, KS_TRANSACTIONAL, KS_FIXED
};

static const uint8_t ks_fixed_width[KS_FIXED] = {8, 8, 4, 8, 2, 4, 4, 8, 1, 1, 1};

/* Arrow's view of a value: up to 12 bytes in place, or the first four and where all are. */
typedef struct {
    int32_t size;
    uint8_t prefix[4];
    int32_t buffer;
    int32_t offset;
} ks_view;

/* A column of byte strings. */
typedef struct {
    int layout;
    int64_t used;   /* bytes of `data` */
    int64_t nulls;
    ks_vec places;  /* KS_BINARY: rows + 1 of int32_t; KS_LARGE: of int64_t; KS_VIEW: rows of ks_view */
    ks_vec data;    /* not for views */
    ks_vec valid;   /* a bit a row */
} ks_var;

typedef struct {
    int64_t n;
    int64_t bytes;             /* of the records as they were encoded, before compression */
    uint32_t wanted;           /* bits of ks_fixed */
    ks_vec fixed[KS_FIXED];
    ks_var key, value;
    int headers;               /* whether they are wanted */
    int64_t headers_n;
    ks_vec header_places;      /* n + 1 of int32_t */
    ks_var header_key, header_value;
    int measured;              /* whether `sizes` is kept */
    ks_vec sizes;              /* of each record, encoded: int32_t */
    ks_block **buffers;        /* that views refer to; held */
    int64_t *extents;          /* how much of each is in use */
    int buffers_n, buffers_capacity;
} ks_rows;

/* One batch whose records are to be decoded. */
typedef struct {
    const uint8_t *p, *end;    /* the records, decompressed */
    const uint8_t *safe;       /* reads up to here do no harm */
    int64_t count;
    int64_t base_offset;
    int64_t base_timestamp;    /* the greatest one where the log's own time counts */
    int32_t last_delta;
    int append_time;
    ks_block *block;           /* views: where p lies, and its number among their buffers */
    int32_t buffer;
    int32_t leader_epoch;
    int64_t producer_id;
    int16_t producer_epoch;
    int32_t base_sequence;
    int8_t timestamp_type, compression, transactional;
} ks_batch;

enum ks_decoded { KS_DECODED, KS_DOUBTFUL, KS_NO_MEMORY };

/* Asks for the columns that `of` has been asked for; with `measured` for offsets and sizes too. */
static void ks_rows_like(ks_rows *rows, const ks_rows *of, int measured) {
    rows->wanted = of->wanted | (uint32_t)measured << KS_OFFSET;
    rows->key.layout = of->key.layout;
    rows->value.layout = of->value.layout;
    rows->headers = of->headers;
    rows->header_key.layout = rows->header_value.layout = of->headers ? KS_BINARY : KS_ABSENT;
    rows->measured = measured;
}

/* ---- room ------------------------------------------------------------------------------------------------------- */

static size_t ks_place_width(int layout) { return layout == KS_BINARY ? 4 : layout == KS_LARGE ? 8 : sizeof(ks_view); }

static int ks_var_reserve(ks_var *v, int64_t n, int64_t rows, int64_t bytes) {
    if (v->layout == KS_ABSENT) return 0;
    size_t width = ks_place_width(v->layout);
    int fresh = !v->places.p;
    if (ks_vec_reserve(&v->places, (size_t)(n + 1) * width * !fresh, (size_t)(n + rows + 1) * width)) return -1;
    if (fresh) memset(v->places.p, 0, width);
    if (ks_vec_reserve(&v->valid, (size_t)(n + 7) / 8, (size_t)(n + rows + 63) / 64 * 8)) return -1;
    if (v->layout != KS_VIEW && ks_vec_reserve(&v->data, (size_t)v->used, (size_t)(v->used + bytes))) return -1;
    return 0;
}

/* Room for so many rows whose fields have so many bytes together; 0, or -1 without memory. */
static int ks_rows_reserve(ks_rows *out, int64_t rows, int64_t bytes) {
    for (int i = 0; i < KS_FIXED; i++)
        if (out->wanted >> i & 1) {
            size_t width = ks_fixed_width[i];
            if (ks_vec_reserve(&out->fixed[i], (size_t)out->n * width, (size_t)(out->n + rows) * width)) return -1;
        }
    if (out->measured && ks_vec_reserve(&out->sizes, (size_t)out->n * 4, (size_t)(out->n + rows) * 4)) return -1;
    if (ks_var_reserve(&out->key, out->n, rows, bytes)) return -1;
    if (ks_var_reserve(&out->value, out->n, rows, bytes)) return -1;
    if (out->headers) {
        int fresh = !out->header_places.p;
        if (ks_vec_reserve(&out->header_places, (size_t)(out->n + 1) * 4 * !fresh, (size_t)(out->n + rows + 1) * 4))
            return -1;
        if (fresh) memset(out->header_places.p, 0, 4);
    }
    return 0;
}

static int ks_var_has_room(const ks_var *v, int64_t rows, int64_t bytes) {
    if (v->layout == KS_ABSENT) return 1;
    size_t places = (size_t)(rows + (v->layout != KS_VIEW)) * ks_place_width(v->layout);
    return v->places.p && places <= v->places.capacity && (size_t)(rows + 63) / 64 * 8 <= v->valid.capacity &&
           (v->layout == KS_VIEW || (v->data.p && (size_t)(v->used + bytes) <= v->data.capacity));
}

/* Whether so many more rows fit without any memory being moved. */
static int ks_has_room(const ks_rows *out, int64_t rows, int64_t key_bytes, int64_t value_bytes) {
    for (int i = 0; i < KS_FIXED; i++)
        if (out->wanted >> i & 1 && (size_t)(out->n + rows) * ks_fixed_width[i] > out->fixed[i].capacity) return 0;
    return ks_var_has_room(&out->key, out->n + rows, key_bytes) && ks_var_has_room(&out->value, out->n + rows, value_bytes);
}

static inline uint64_t ks_little(uint64_t word) {
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    word = __builtin_bswap64(word);
#endif
    return word;
}

/* Clears the bits of `rows` rows from `n` on, while other threads may set those of the rows before. */
static void ks_clear_bits(ks_var *v, int64_t n, int64_t rows) {
    if (v->layout == KS_ABSENT || rows == 0) return;
    uint64_t *words = (uint64_t *)v->valid.p, before = ((uint64_t)1 << (n & 63)) - 1;
    int64_t first = (n + 63) / 64, last = (n + rows + 63) / 64;
    if (n & 63) __atomic_fetch_and(words + n / 64, ks_little(before), __ATOMIC_RELAXED);
    if (last > first) memset(words + first, 0, (size_t)(last - first) * 8);
}

/* Room for `times` as much as there is, and for `more` bytes behind it; if it cannot be had, columns grow as they go. */
static void ks_rows_expect(ks_rows *out, double times, int64_t more) {
    int64_t rows = (int64_t)((double)out->n * (times - 1)) + 64;
    if (ks_rows_reserve(out, rows, 0)) return;
    ks_var *vars[] = {&out->key, &out->value};
    for (int i = 0; i < 2; i++)
        ks_var_reserve(vars[i], out->n, rows, (int64_t)((double)vars[i]->used * (times - 1)) + more);
}

static void ks_var_drop(ks_var *v) {
    ks_vec_drop(&v->places);
    ks_vec_drop(&v->data);
    ks_vec_drop(&v->valid);
    v->used = v->nulls = 0;
}

/* Forgets the rows; `keep_memory` keeps what they were in, for the next ones. */
static void ks_rows_clear(ks_rows *rows, int keep_memory) {
    rows->n = rows->bytes = rows->headers_n = 0;
    for (int i = 0; i < rows->buffers_n; i++) ks_block_drop(rows->buffers[i]);
    rows->buffers_n = 0;
    ks_var *vars[] = {&rows->key, &rows->value, &rows->header_key, &rows->header_value};
    for (int i = 0; i < 4; i++)
        if (keep_memory) vars[i]->used = vars[i]->nulls = 0; else ks_var_drop(vars[i]);
    if (keep_memory) return;
    for (int i = 0; i < KS_FIXED; i++) ks_vec_drop(&rows->fixed[i]);
    ks_vec_drop(&rows->header_places);
    ks_vec_drop(&rows->sizes);
    free(rows->buffers);
    free(rows->extents);
    rows->buffers = NULL;
    rows->extents = NULL;
    rows->buffers_capacity = 0;
}

/* What it takes to forget the rows that came after. */
typedef struct {
    int64_t n, bytes, headers_n;
    struct { int64_t used, nulls; } vars[4];
} ks_mark;

static ks_mark ks_rows_mark(const ks_rows *rows) {
    ks_mark mark = {rows->n, rows->bytes, rows->headers_n, {{0, 0}}};
    const ks_var *vars[] = {&rows->key, &rows->value, &rows->header_key, &rows->header_value};
    for (int i = 0; i < 4; i++) {
        mark.vars[i].used = vars[i]->used;
        mark.vars[i].nulls = vars[i]->nulls;
    }
    return mark;
}

static void ks_rows_back(ks_rows *rows, const ks_mark *mark) {
    rows->n = mark->n;
    rows->bytes = mark->bytes;
    rows->headers_n = mark->headers_n;
    ks_var *vars[] = {&rows->key, &rows->value, &rows->header_key, &rows->header_value};
    for (int i = 0; i < 4; i++) {
        vars[i]->used = mark->vars[i].used;
        vars[i]->nulls = mark->vars[i].nulls;
    }
}

/* Moves what is small out of memory that is large, before it is handed over for who knows how long. */
static void ks_vec_fit(ks_vec *v, size_t used) {
    if (!v->p || used > v->capacity / 2 || v->capacity < 4096) return;
    if (used > (1 << 20) && used > v->capacity / 8) return; /* what was never touched costs nothing */
    ks_block *block = ks_block_new(used);
    if (!block) return;
    memcpy(block->data, v->p, used);
    ks_block_drop(v->block);
    v->block = block;
    v->p = block->data;
    v->capacity = block->capacity;
}

static void ks_var_finish(ks_var *v, int64_t n) {
    if (v->layout == KS_ABSENT || ks_var_reserve(v, n, 0, 0)) return;
    ks_vec_fit(&v->places, (size_t)(n + (v->layout != KS_VIEW)) * ks_place_width(v->layout));
    if (v->nulls) ks_vec_fit(&v->valid, (size_t)(n + 63) / 64 * 8); else ks_vec_drop(&v->valid);
    if (v->layout != KS_VIEW) ks_vec_fit(&v->data, (size_t)v->used);
}

/* Nothing comes after this but `ks_rows_clear`. */
static void ks_rows_finish(ks_rows *rows) {
    if (rows->n == 0 && ks_rows_reserve(rows, 0, 0)) return;
    for (int i = 0; i < KS_FIXED; i++)
        if (rows->wanted >> i & 1) ks_vec_fit(&rows->fixed[i], (size_t)rows->n * ks_fixed_width[i]);
    ks_var_finish(&rows->key, rows->n);
    ks_var_finish(&rows->value, rows->n);
    if (!rows->headers) return;
    ks_vec_fit(&rows->header_places, (size_t)(rows->n + 1) * 4);
    ks_var_finish(&rows->header_key, rows->headers_n);
    ks_var_finish(&rows->header_value, rows->headers_n);
}

/* The number of `block` among the buffers of views, of which it becomes one; -1 without memory. */
static int32_t ks_rows_buffer(ks_rows *rows, ks_block *block) {
    for (int i = rows->buffers_n - 1; i >= 0; i--)
        if (rows->buffers[i] == block) return i;
    if (rows->buffers_n == rows->buffers_capacity) {
        int capacity = rows->buffers_capacity ? 2 * rows->buffers_capacity : 8;
        ks_block **buffers = (ks_block **)realloc(rows->buffers, (size_t)capacity * sizeof *buffers);
        if (!buffers) return -1;
        rows->buffers = buffers;
        int64_t *extents = (int64_t *)realloc(rows->extents, (size_t)capacity * sizeof *extents);
        if (!extents) return -1;
        rows->extents = extents;
        rows->buffers_capacity = capacity;
    }
    rows->buffers[rows->buffers_n] = ks_block_hold(block);
    rows->extents[rows->buffers_n] = 0;
    return rows->buffers_n++;
}

/* ---- one value -------------------------------------------------------------------------------------------------- */

#define KS_SHORT_VALUE 512 /* up to here, copying whole words in line beats the C library */
#define KS_OVERREACH (KS_SHORT_VALUE + KS_SLACK)

/* As many bytes as the widest registers of the processor hold, of any alignment. */
typedef long long ks_32_bytes __attribute__((vector_size(32), aligned(1), may_alias));
#define KS_MOVE_32(to, from) (*(ks_32_bytes *)(to) = *(const ks_32_bytes *)(from))

/* Copies in steps of 32 and 64 bytes if the value is short and begins at `harmless` or before: up to 63 more bytes are
   read and written then. */
KS_INLINE void ks_copy(uint8_t *to, const uint8_t *from, size_t size, const uint8_t *harmless) {
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

/* Where the rows of a batch go. */
typedef struct {
    int64_t n;                      /* the first of them; then one past the last */
    int64_t key_used, value_used;   /* bytes of the columns' data before them; then after */
    int64_t key_valid, value_valid; /* how many have been added that are not null */
    int32_t buffer;                 /* views: the number of the block that they point into */
    int in_pieces;                  /* the batch may go on behind `end`; then: */
    int64_t least_delta;            /* of the next record */
    const uint8_t *stopped;         /* where the first record begins of which not all is there */
} ks_place;

/* What of a ks_var changes with each row. */
typedef struct {
    uint8_t *places, *data, *to; /* data: where the first value begins; to: where the next one will */
    uint64_t bits;               /* of the word of 64 rows that is being filled */
    int64_t valid_n;
    const uint8_t *buffer_p;
    int32_t buffer;
} ks_cursor;

KS_INLINE ks_cursor ks_cursor_at(const ks_var *v, const ks_place *at, int64_t used, const uint8_t *buffer_p) {
    ks_cursor c = {v->places.p, v->data.p, v->data.p + used, 0, 0, buffer_p, at->buffer};
    if (v->layout != KS_ABSENT && at->n & 63) {
        c.bits = ks_little(((const uint64_t *)v->valid.p)[at->n / 64]) & (((uint64_t)1 << (at->n & 63)) - 1);
        c.valid_n -= __builtin_popcountll(c.bits); /* counted again when the word is written */
    }
    return c;
}

/* Writes the bits of the word that holds row `n`, and opens the next word. */
KS_INLINE void ks_cursor_flush(ks_cursor *c, ks_var *v, int64_t n) {
    if (v->layout == KS_ABSENT) return;
    uint64_t *word = (uint64_t *)v->valid.p + n / 64;
    c->valid_n += __builtin_popcountll(c->bits);
    *word = ks_little(c->bits);
    c->bits = 0;
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

/* Writes row `n`, whose bit in its word is `bit`, and for which the caller has made room; a negative size is null. */
KS_INLINE void ks_put_value(ks_cursor *c, int layout, int64_t n, uint64_t bit, const uint8_t *p, int64_t size,
                            const uint8_t *harmless) {
    if (layout == KS_ABSENT) return;
    if (size >= 0) {
        c->bits |= bit;
        if (layout != KS_VIEW) {
            ks_copy(c->to, p, (size_t)size, harmless);
            c->to += size;
        }
    } else {
        size = 0;
    }
    if (layout == KS_VIEW) ks_put_view(c->places + n * 16, p, (uint32_t)size, c, harmless);
    else if (layout == KS_BINARY) ((int32_t *)c->places)[n + 1] = (int32_t)(c->to - c->data);
    else ((int64_t *)c->places)[n + 1] = c->to - c->data;
}

/* ---- headers ---------------------------------------------------------------------------------------------------- */

/* Appends one value to a column of `n` rows, making room for it; 0, or -1 without memory. */
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

/* A name whose bytes are not UTF-8 gets U+FFFD in the place of each wrong sequence, as in Kafka's consumers. */
static int ks_append_name(ks_rows *out, const uint8_t *key, int32_t size) {
    ks_var *v = &out->header_key;
    if (ks_var_reserve(v, out->headers_n, 1, 3 * (int64_t)size)) return -1;
    v->used = ks_put_utf8(v->data.p + v->used, key, (size_t)size) - v->data.p;
    ((int32_t *)v->places.p)[out->headers_n + 1] = (int32_t)v->used;
    return 0;
}

/* Appends one header; 0, or -1 without memory. */
static int ks_append_header(ks_rows *out, const uint8_t *key, int32_t key_size, const uint8_t *value,
                            int32_t value_size) {
    if (ks_append_name(out, key, key_size)) return -1;
    if (ks_var_append(&out->header_value, out->headers_n, value, value_size, NULL, 0)) return -1;
    out->headers_n++;
    return 0;
}

/* ---- a batch ---------------------------------------------------------------------------------------------------- */

KS_INLINE int64_t ks_wrapping_add(int64_t a, int64_t b) { return (int64_t)((uint64_t)a + (uint64_t)b); }

/* A varint of up to three bytes, as an unsigned number; `longer` is where to go for one that has more. */
#define KS_READ_SHORT(z, p, longer)                     \
    uint64_t z = *p++;                                  \
    if (z >= 0x80) {                                    \
        uint64_t more = *p++;                           \
        z = (z & 0x7f) | more << 7;                     \
        if (more >= 0x80) {                             \
            more = *p++;                                \
            z = (z & 0x3fff) | more << 14;              \
            if (more >= 0x80) goto longer;              \
        }                                               \
    }

#define KS_HEAD 16 /* bytes that all fields but key and value may take in short form, before the value */

static __attribute__((noinline)) const uint8_t *ks_uncommon_record(const uint8_t *p, const uint8_t *end, ks_record *r) {
    return ks_parse_record(p, end, r);
}

/* What columns want to know of a record. */
typedef struct {
    int64_t timestamp, delta, key_size, value_size; /* sizes: negative is null */
    const uint8_t *key, *value;
    int32_t headers_count;
    const uint8_t *headers;
} ks_fields;

/* Reads the record at `p` as ks_parse_record does, whose answer it is for all that is uncommon; where the next begins. */
KS_INLINE const uint8_t *ks_next_record(const uint8_t *p, const uint8_t *end, ks_fields *f) {
    const uint8_t *const begin = p;
    if (end - p < KS_HEAD) goto uncommon;
    KS_READ_SHORT(size, p, uncommon)
    const uint8_t *const next = p + (size >> 1);
    p++; /* attributes */
    KS_READ_SHORT(timestamp, p, uncommon)
    KS_READ_SHORT(delta, p, uncommon)
    KS_READ_SHORT(key, p, uncommon)
    f->timestamp = (int64_t)(timestamp >> 1) ^ -(int64_t)(timestamp & 1);
    f->delta = (int64_t)(delta >> 1);
    f->key = p;
    f->key_size = -1;
    if (!(key & 1)) {
        f->key_size = (int64_t)(key >> 1);
        if (f->key_size > end - p - 3) goto uncommon;
        p += f->key_size;
    }
    KS_READ_SHORT(value, p, uncommon)
    f->value = p;
    f->value_size = -1;
    if (!(value & 1)) {
        f->value_size = (int64_t)(value >> 1);
        p += f->value_size;
    }
    f->headers_count = 0;
    f->headers = p;
    /* The fields end where the record does, and it within the batch: so none of them reached too far. */
    if (p + 1 == next && next <= end && !(((size | delta) & 1) | *p)) return next;
uncommon:; /* headers, long varints, the end of the batch, or worse */
    ks_record r;
    const uint8_t *after = ks_uncommon_record(begin, end, &r);
    if (!after) return NULL;
    f->timestamp = r.timestamp_delta;
    f->delta = r.offset_delta;
    f->key = r.key;
    f->key_size = r.key_size;
    f->value = r.value;
    f->value_size = r.value_size;
    f->headers_count = r.headers_count;
    f->headers = r.headers;
    return after;
}

/* Appends the headers of row `n`, whose record ends at `end`; 0, or -1 without memory. */
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

/* Decodes a batch into the rows from `at` on, for which there is room; where it ended is in `at`. `plain`: offsets and
   timestamps are wanted, headers and sizes are not. */
KS_INLINE int ks_decode_with(const ks_batch *b, ks_rows *out, ks_place *at, int key_layout, int value_layout, int plain) {
    const uint8_t *buffer_p = b->block ? b->block->data : NULL;
    int64_t n = at->n, last = n + b->count;
    ks_cursor key = ks_cursor_at(&out->key, at, at->key_used, buffer_p);
    ks_cursor value = ks_cursor_at(&out->value, at, at->value_used, buffer_p);
    int64_t *offsets = out->wanted >> KS_OFFSET & 1 ? (int64_t *)out->fixed[KS_OFFSET].p : NULL;
    int64_t *timestamps = out->wanted >> KS_TIMESTAMP & 1 ? (int64_t *)out->fixed[KS_TIMESTAMP].p : NULL;
    int32_t *sizes = !plain && out->measured ? (int32_t *)out->sizes.p : NULL;
    int headers = !plain && out->headers;
    const int64_t mask = b->append_time ? 0 : -1, base_offset = b->base_offset, base_timestamp = b->base_timestamp;
    const uint8_t *p = b->p, *const end = b->end;
    const uint8_t *harmless = b->safe - p > KS_OVERREACH ? b->safe - KS_OVERREACH : NULL;
    int64_t before = at->least_delta - 1;
    ks_fields f;
    while (n < last) {
        int64_t stop = (n | 63) + 1 < last ? (n | 63) + 1 : last;
        for (uint64_t bit = (uint64_t)1 << (n & 63); n < stop; n++, bit <<= 1) {
            const uint8_t *next = ks_next_record(p, end, &f);
            if (!next && at->in_pieces) goto stopped;
            if (!next || f.delta <= before) return KS_DOUBTFUL;
            before = f.delta;
            if (plain || offsets) offsets[n] = base_offset + before;
            if (plain || timestamps) timestamps[n] = ks_wrapping_add(base_timestamp, f.timestamp & mask);
            if (!plain && sizes) sizes[n] = (int32_t)(next - p);
            ks_put_value(&key, key_layout, n, bit, f.key, f.key_size, harmless);
            ks_put_value(&value, value_layout, n, bit, f.value, f.value_size, harmless);
            if (headers && ks_append_headers(out, n, &f, next)) return KS_NO_MEMORY;
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
    at->least_delta = at->in_pieces ? before + 1 : 0;
    if (n & 63) {
        ks_cursor_flush(&key, &out->key, n - 1);
        ks_cursor_flush(&value, &out->value, n - 1);
    }
    at->n = n;
    at->key_used = key.to - key.data;
    at->value_used = value.to - value.data;
    at->key_valid += key.valid_n;
    at->value_valid += value.valid_n;
    return KS_DECODED;
}

/* The loop for the columns most asked for, and for whatever else; each also for processors whose registers are wider. */
#define KS_DECODERS(suffix, target)                                                                 \
    target static int ks_decode_values##suffix(const ks_batch *b, ks_rows *out, ks_place *at) {     \
        return ks_decode_with(b, out, at, KS_ABSENT, KS_BINARY, 1);                                 \
    }                                                                                               \
    target static int ks_decode_pairs##suffix(const ks_batch *b, ks_rows *out, ks_place *at) {      \
        return ks_decode_with(b, out, at, KS_BINARY, KS_BINARY, 1);                                 \
    }                                                                                               \
    target static int ks_decode_views##suffix(const ks_batch *b, ks_rows *out, ks_place *at) {      \
        return ks_decode_with(b, out, at, KS_VIEW, KS_VIEW, 1);                                     \
    }                                                                                               \
    target static int ks_decode_any##suffix(const ks_batch *b, ks_rows *out, ks_place *at) {        \
        return ks_decode_with(b, out, at, out->key.layout, out->value.layout, 0);                   \
    }

typedef int (*ks_decoder)(const ks_batch *, ks_rows *, ks_place *);
enum { KS_VALUES, KS_PAIRS, KS_VIEWS, KS_ANY, KS_DECODERS_N };

KS_DECODERS(, )
static ks_decoder ks_decoders[KS_DECODERS_N] = {ks_decode_values, ks_decode_pairs, ks_decode_views, ks_decode_any};

#if defined(__x86_64__) && defined(__GNUC__)
KS_DECODERS(_wide, __attribute__((target("avx2,bmi,bmi2,lzcnt,popcnt"))))

static void ks_choose_decoders(int wide) {
    static const ks_decoder narrow_ones[] = {ks_decode_values, ks_decode_pairs, ks_decode_views, ks_decode_any};
    static const ks_decoder wide_ones[] = {ks_decode_values_wide, ks_decode_pairs_wide, ks_decode_views_wide,
                                           ks_decode_any_wide};
    __builtin_cpu_init();
    wide = wide && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2");
    memcpy(ks_decoders, wide ? wide_ones : narrow_ones, sizeof ks_decoders);
}
#else
static void ks_choose_decoders(int wide) { (void)wide; }
#endif

#define KS_FILL(type, column, number)                                                          \
    if (out->wanted >> column & 1) {                                                           \
        type *to = (type *)out->fixed[column].p, fill = (type)(number);                        \
        for (int64_t i = first; i < last; i++) to[i] = fill;                                   \
    }

/* What is the same for all rows of [first, last); offsets are there already. */
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
        for (int64_t i = first; i < last; i++) /* goes on at 0 after the greatest, as a producer counts */
            to[i] = b->base_sequence < 0 ? -1
                    : (int32_t)(((int64_t)b->base_sequence + (offsets[i] - b->base_offset)) & 0x7fffffff);
    }
}

/* Whether offsets from base to last are numbers that a log has; else the row reader's rules are what counts. */
static int ks_has_regular_offsets(const ks_batch *b) {
    return b->base_offset >= 0 && b->last_delta >= 0 && b->base_offset <= INT64_MAX - 1 - b->last_delta;
}

static int ks_is_regular(const ks_batch *b) {
    return ks_has_regular_offsets(b) && b->count >= 0 && b->count <= (b->end - b->p) / 7; /* seven bytes are the least */
}

/* Decodes the batch into the rows at `at`, for which there is room. */
static int ks_decode_at(const ks_batch *b, ks_rows *out, ks_place *at) {
    int key = out->key.layout, value = out->value.layout, which = KS_ANY;
    if (!out->measured && !out->headers && (out->wanted & 3) == 3) {
        if (key == KS_ABSENT && value == KS_BINARY) which = KS_VALUES;
        else if (key == KS_BINARY && value == KS_BINARY) which = KS_PAIRS;
        else if (key == KS_VIEW && value == KS_VIEW) which = KS_VIEWS;
    }
    int64_t first = at->n;
    int decoded = ks_decoders[which](b, out, at);
    if (decoded == KS_DECODED) ks_fill_batch(b, out, first, at->n);
    return decoded;
}

/* The number of the block of a batch among the buffers of views; 0 where there are no views, -1 without memory. */
static int32_t ks_buffer_of(ks_batch *b, ks_rows *out) {
    if (out->key.layout != KS_VIEW && out->value.layout != KS_VIEW) return b->buffer = 0;
    int32_t buffer = b->buffer = ks_rows_buffer(out, b->block);
    if (buffer >= 0 && out->extents[buffer] < b->end - b->block->data) out->extents[buffer] = b->end - b->block->data;
    return buffer;
}

/* The rows of a batch that have been decoded at the end of `out` are rows of it now. */
static void ks_keep_rows(ks_rows *out, const ks_place *at, int64_t rows, int64_t bytes) {
    out->n = at->n;
    out->bytes += bytes;
    out->key.used = at->key_used;
    out->value.used = at->value_used;
    out->key.nulls += rows - at->key_valid;
    out->value.nulls += rows - at->value_valid;
}

/* Appends all records of a batch, or none: KS_DOUBTFUL when the row reader must look at it. */
static int ks_decode(ks_batch *b, ks_rows *out) {
    if (!ks_is_regular(b)) return KS_DOUBTFUL;
    if (ks_rows_reserve(out, b->count, b->end - b->p)) return KS_NO_MEMORY;
    ks_mark mark = ks_rows_mark(out);
    ks_place at = {out->n, out->key.used, out->value.used, 0, 0, ks_buffer_of(b, out), 0, 0, NULL};
    int decoded = at.buffer < 0 ? KS_NO_MEMORY : ks_decode_at(b, out, &at);
    if (decoded != KS_DECODED) {
        ks_rows_back(out, &mark);
        return decoded;
    }
    ks_keep_rows(out, &at, b->count, b->end - b->p);
    return KS_DECODED;
}

/* ---- a range of rows ------------------------------------------------------------------------------------------- */

static void ks_take_bits(uint8_t *to, int64_t n, const uint8_t *from, int64_t first, int64_t count) {
    for (int64_t i = 0; i < count;) {
        int64_t at = n + i, source = first + i;
        int room = 8 - (int)(at & 7), there = 8 - (int)(source & 7);
        int step = room < there ? room : there;
        if (step > count - i) step = (int)(count - i);
        uint8_t mask = (uint8_t)(((1u << step) - 1) << (at & 7));
        uint8_t bits = (uint8_t)((from[source / 8] >> (source & 7)) << (at & 7));
        to[at / 8] = (uint8_t)((to[at / 8] & ~mask) | (bits & mask));
        i += step;
    }
}

static int64_t ks_begin_of(const ks_var *v, int64_t row) {
    return v->layout == KS_BINARY ? ((const int32_t *)v->places.p)[row] : ((const int64_t *)v->places.p)[row];
}

/* Appends the rows [first, first + count) of `from` to `to`, which has n; layouts are the same. */
static int ks_var_take(ks_var *to, int64_t n, const ks_var *from, int64_t first, int64_t count, const int32_t *buffers) {
    if (to->layout == KS_ABSENT || count == 0) return to->layout == KS_ABSENT ? 0 : ks_var_reserve(to, n, 0, 0);
    int64_t begin = 0, bytes = 0;
    if (to->layout != KS_VIEW) {
        begin = ks_begin_of(from, first);
        bytes = ks_begin_of(from, first + count) - begin;
    }
    if (ks_var_reserve(to, n, count, bytes)) return -1;
    ks_take_bits(to->valid.p, n, from->valid.p, first, count);
    if (from->nulls)
        for (int64_t i = first; i < first + count; i++) to->nulls += !(from->valid.p[i / 8] >> (i & 7) & 1);
    if (to->layout == KS_VIEW) {
        ks_view *views = (ks_view *)to->places.p + n;
        memcpy(views, (const ks_view *)from->places.p + first, (size_t)count * sizeof *views);
        for (int64_t i = 0; i < count; i++)
            if (views[i].size > 12) views[i].buffer = buffers[views[i].buffer];
        return 0;
    }
    memcpy(to->data.p + to->used, from->data.p + begin, (size_t)bytes);
    int64_t move = to->used - begin;
    if (to->layout == KS_BINARY) {
        int32_t *places = (int32_t *)to->places.p + n + 1;
        const int32_t *source = (const int32_t *)from->places.p + first + 1;
        for (int64_t i = 0; i < count; i++) places[i] = (int32_t)(source[i] + move);
    } else {
        int64_t *places = (int64_t *)to->places.p + n + 1;
        const int64_t *source = (const int64_t *)from->places.p + first + 1;
        for (int64_t i = 0; i < count; i++) places[i] = source[i] + move;
    }
    to->used += bytes;
    return 0;
}

/* Appends the rows [first, first + count) of `from`, whose encoded records have `bytes`; 0, or -1 without memory. */
static int ks_rows_take(ks_rows *to, const ks_rows *from, int64_t first, int64_t count, int64_t bytes) {
    int32_t numbers[8], *buffers = numbers;
    if (from->buffers_n > 8 && !(buffers = (int32_t *)malloc((size_t)from->buffers_n * 4))) return -1;
    int failed = ks_rows_reserve(to, count, 0);
    for (int i = 0; i < from->buffers_n && !failed; i++) {
        failed = (buffers[i] = ks_rows_buffer(to, from->buffers[i])) < 0;
        if (!failed && to->extents[buffers[i]] < from->extents[i]) to->extents[buffers[i]] = from->extents[i];
    }
    failed = failed || ks_var_take(&to->key, to->n, &from->key, first, count, buffers) ||
             ks_var_take(&to->value, to->n, &from->value, first, count, buffers);
    if (!failed && to->headers) {
        const int32_t *source = (const int32_t *)from->header_places.p + first;
        int32_t *places = (int32_t *)to->header_places.p + to->n;
        int64_t begin = source[0], headers = source[count] - begin;
        failed = ks_var_take(&to->header_key, to->headers_n, &from->header_key, begin, headers, NULL) ||
                 ks_var_take(&to->header_value, to->headers_n, &from->header_value, begin, headers, NULL);
        for (int64_t i = 1; i <= count && !failed; i++) places[i] = (int32_t)(source[i] - begin + to->headers_n);
        if (!failed) to->headers_n += headers;
    }
    if (buffers != numbers) free(buffers);
    if (failed) return -1;
    for (int i = 0; i < KS_FIXED; i++)
        if (to->wanted >> i & 1) {
            size_t width = ks_fixed_width[i];
            memcpy(to->fixed[i].p + (size_t)to->n * width, from->fixed[i].p + (size_t)first * width,
                   (size_t)count * width);
        }
    if (to->measured)
        memcpy(to->sizes.p + to->n * 4, from->sizes.p + first * 4, (size_t)count * 4);
    to->n += count;
    to->bytes += bytes;
    return 0;
}

/* ---- one row ---------------------------------------------------------------------------------------------------- */

/* Appends one row as the row reader found it: of formats 0 and 1, and of batches in doubt. Its headers are there. */
static int ks_append_row(ks_rows *out, const ks_batch *b, int64_t offset, int64_t timestamp, const uint8_t *key,
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
    ks_fill_batch(b, out, out->n, out->n + 1);
    out->n++;
    out->bytes += bytes;
    return 0;
}

#endif
