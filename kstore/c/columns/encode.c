#include "columns/encode.h"

/* The bytes of a record after its length field. A field has at most INT32_MAX bytes: sums cannot overflow. */
KS_INLINE int64_t ks_body(const ks_bytes *key, const ks_bytes *value, const ks_bytes *headers,
                          uint64_t delta, uint64_t number) {
    return 1 + ks_short_size(delta) + ks_short_size(number) + (key ? ks_sized(key->n) : 1) + ks_sized(value->n) +
           (headers ? headers->n : 1);
}

KS_INLINE uint64_t ks_delta(const ks_open_batch *batch, int64_t time) {
    uint64_t delta = (uint64_t)time - (uint64_t)batch->base_timestamp; /* wraps, as in Kafka */
    return (delta << 1) ^ (0 - (delta >> 63));
}

KS_INLINE int ks_odd(const ks_open_batch *batch, const ks_bytes *key, int64_t time) {
    return ((time < batch->earliest || time > batch->latest) && time != -1) ||
           (batch->key_required && (!key || key->n < 0));
}

/* One row of the columns. */
typedef struct {
    const ks_bytes *key, *value, *header; /* NULL: no key, no headers */
    uint64_t delta;                       /* of the time */
} ks_columns_row;

KS_INLINE ks_columns_row ks_columns_row_at(const ks_open_batch *batch, const ks_bytes *keys, const ks_bytes *values,
                           const ks_bytes *headers, const int64_t *times, int64_t i) {
    ks_columns_row row = {keys ? &keys[i] : NULL, &values[i], headers ? &headers[i] : NULL, ks_delta(batch, times[i])};
    return row;
}

/* Continues the batch at `p`, with this offset delta (zigzag) for the next record. */
KS_INLINE void ks_go_on(ks_open_batch *batch, uint8_t *p, uint64_t number, int64_t latest) {
    batch->p = p;
    batch->count = (int64_t)(number >> 1);
    batch->max_timestamp = latest;
}

/* ---- a record at a time ---------------------------------------------------------------------------------------- */

/* Prefetches the next bytes: a column is read once, from start to end, and the last write(2) has evicted the buffer
   from the near caches. Past an end this does nothing. */
KS_INLINE void ks_prefetch(const uint8_t *from, int distance, const uint8_t *to) {
    __builtin_prefetch((const void *)((uintptr_t)from + (uintptr_t)distance));
    __builtin_prefetch((const void *)((uintptr_t)to + (uintptr_t)distance), 1);
}

/* As `ks_encode`, record by record. */
KS_INLINE int64_t ks_encode_each(ks_open_batch *batch, const ks_bytes *keys, const ks_bytes *values,
                                 const ks_bytes *headers, const int64_t *times, int64_t n) {
    uint8_t *p = batch->p;
    uint64_t number = (uint64_t)batch->count << 1; /* the offset delta, zigzag */
    int64_t i, latest = batch->max_timestamp;
    for (i = 0; i < n; i++) {
        ks_columns_row row = ks_columns_row_at(batch, keys, values, headers, times, i);
        int64_t body, total;
        ks_prefetch(row.value->p, 2048, p);
        if (row.value->n > 64) ks_prefetch(row.value->p + 64, 2048, p + 64);
        if (ks_odd(batch, row.key, times[i]) || p >= batch->enough) break;
        body = ks_body(row.key, row.value, row.header, row.delta, number);
        total = body + ks_short_size((uint64_t)body << 1);
        if (total > batch->full - p || total > batch->room - p) break;
        p = ks_put_short(p, (uint64_t)body << 1);
        *p++ = 0;
        p = ks_put_short(p, row.delta);
        p = ks_put_short(p, number);
        if (row.key) p = ks_put_field(p, row.key->p, row.key->n);
        else *p++ = 1;
        p = ks_put_field(p, row.value->p, row.value->n);
        if (row.header) p = ks_copy_exact(p, row.header->p, row.header->n);
        else *p++ = 0;
        number += 2;
        if (times[i] > latest) latest = times[i];
    }
    ks_go_on(batch, p, number, latest);
    return i;
}

/* ---- runs of records -------------------------------------------------------------------------------------------- */

/* Records whose timestamp deltas have the same number of bytes are similar. The fields between the length and the key
   of such a record are one word, in which only the offset delta (the "number") changes, and perhaps the timestamp. A
   field is copied together with the bytes after it, which the next field overwrites. Almost no branch depends on a
   record, so rows of all sizes cost the same. The word of a small record includes its length. */

enum {
    KS_SMALL = 63,      /* the greatest size whose varint has one byte */
    KS_MIDDLE = 8191,   /* the greatest size whose varint has two bytes */
    KS_MAX_FIELD = 256, /* longer fields are as fast record by record */
    KS_FEW = 4,         /* for fewer records, starting a run does not pay */
    KS_MIN_RECORD = 7,    /* bytes of an empty record */
    KS_MOST_BEFORE = 6    /* the most bytes of a word to which a missing key and a short length can be added */
};

/* A run is a series of similar records. These are their common parts. */
typedef struct {
    int64_t n;
    const int64_t *times;  /* NULL: all times are the same, and their delta is in the word */
    int64_t base;          /* no time is before it */
    uint64_t word;         /* in the word: a length without the sizes, a time's delta, continuation bits */
    uint64_t number;       /* in the word: the first number */
    uint64_t number_bits;  /* the bits of the number in the word */
    uint64_t number_step;  /* in the word: 2, by which the number grows */
    int64_t word_size;
} ks_run;

/* The bits of a varint of up to three bytes: ks_spread returns the number's bits, ks_more the continuation bits. */
KS_INLINE uint64_t ks_spread(uint64_t z) { return (z & 0x7f) | (z & 0x3f80) << 1 | (z & 0x1fc000) << 2; }
KS_INLINE uint64_t ks_more(int64_t size) { return 0x8080 >> (8 * (3 - size)); }

KS_INLINE void ks_copy_small(uint8_t *p, const uint8_t *from, int copied) {
    memcpy(p, from, 16);
    if (copied > 16) memcpy(p + 16, from + 16, 16);
    if (copied > 32) memcpy(p + 32, from + 32, 32);
}

/* The bits of a record's timestamp delta in the word, if the times differ. */
KS_INLINE uint64_t ks_time_bits(const ks_run *run, int64_t i, int times) {
    return times ? ks_spread((uint64_t)(run->times[i] - run->base) << 1) << 16 : 0;
}

KS_INLINE uint8_t *ks_put_run(uint8_t *p, const ks_run *run, const ks_bytes *keys, const ks_bytes *values, int copied,
                              int nulls, int times) {
    uint64_t number = run->number, bits = run->number_bits, common = run->word;
    for (int64_t i = 0; i < run->n; i++) {
        int64_t size = values[i].n, key_size = keys ? keys[i].n : 0;
        uint8_t short_size = (uint8_t)(size << 1), short_key_size = (uint8_t)(key_size << 1);
        uint64_t word;
        ks_prefetch(values[i].p, 1024, p);
        if (nulls) { /* a null: the varint of -1 is 1, and nothing is copied */
            short_size ^= (uint8_t)(size >> 63);
            size &= ~(size >> 63);
            short_key_size ^= (uint8_t)(key_size >> 63);
            key_size &= ~(key_size >> 63);
        }
        word = common + 2 * (uint64_t)(size + key_size) + number + ks_time_bits(run, i, times);
        memcpy(p, &word, 8);
        p += run->word_size;
        number = ((number | ~bits) + run->number_step) & bits; /* the 1 bits in between propagate the carry */
        *p++ = keys ? short_key_size : 1;
        if (keys) {
            ks_copy_small(p, keys[i].p, copied);
            p += key_size;
        }
        *p++ = short_size;
        ks_copy_small(p, values[i].p, copied);
        p += size;
        *p++ = 0;
    }
    return p;
}

/* As `ks_put_run` for non-null values of one size without keys: the word has everything before the value. */
KS_INLINE uint8_t *ks_put_alike(uint8_t *p, const ks_run *run, const ks_bytes *values, int copied, int times) {
    const int64_t size = values[0].n, before = run->word_size + 2, total = before + size + 1;
    const uint64_t bits = run->number_bits, no_key = 1, sizes = no_key | (uint64_t)size << 9;
    const uint64_t common = run->word + 2 * (uint64_t)size + (sizes << (8 * run->word_size));
    uint64_t number = run->number;
    for (int64_t i = 0; i < run->n; i++, p += total) {
        const uint64_t word = common + number + ks_time_bits(run, i, times);
        if (!(i & 3)) ks_prefetch(values[i].p, 2048, p);
        memcpy(p, &word, 8);
        ks_copy_small(p + before, values[i].p, copied);
        p[total - 1] = 0;
        number = ((number | ~bits) + run->number_step) & bits;
    }
    return p;
}

/* Writes -1 to KS_MIDDLE as a varint of one or two bytes. */
KS_INLINE uint8_t *ks_put_middle(uint8_t *p, int64_t n) {
    uint64_t z = (uint64_t)n << 1 ^ (uint64_t)(n >> 63);
    uint64_t two = z > 0x7f;
    uint16_t both = (uint16_t)(z + (z & ~(uint64_t)0x7f) + (two << 7)); /* shifts the bits above the low 7 by one */
    memcpy(p, &both, 2);
    return p + 1 + two;
}

typedef uint8_t ks_half __attribute__((vector_size(KS_SLACK / 2), aligned(1), may_alias));

KS_INLINE void ks_copy_slack(uint8_t *p, const uint8_t *from) {
    ((ks_half *)p)[0] = ((const ks_half *)from)[0];
    ((ks_half *)p)[1] = ((const ks_half *)from)[1];
}

/* Writes a field with its size before it. Copies KS_SLACK bytes of a shorter field, else exactly the field's bytes. */
KS_INLINE uint8_t *ks_put_with_slack(uint8_t *p, const ks_bytes *field) {
    const uint8_t *from = field->p;
    int64_t size = field->n < 0 ? 0 : field->n;
    p = ks_put_middle(p, field->n);
    ks_copy_slack(p, from);
    if (size > KS_SLACK) {
        for (int64_t at = KS_SLACK; at < size - KS_SLACK; at += KS_SLACK) ks_copy_slack(p + at, from + at);
        ks_copy_slack(p + size - KS_SLACK, from + size - KS_SLACK);
    }
    return p + size;
}

KS_INLINE int64_t ks_middle_size(const ks_bytes *field) {
    return 1 + (field->n > KS_SMALL) + (field->n & ~(field->n >> 63)); /* null: 1 */
}

/* Copies a field in pieces of KS_SLACK bytes that start within the field: as many as a field of `widest` bytes needs.
   If sizes vary, a useless piece costs less than an unpredictable branch. */
KS_INLINE uint8_t *ks_put_varied(uint8_t *p, const ks_bytes *field, int64_t widest) {
    const uint8_t *from = field->p;
    int64_t size = field->n & ~(field->n >> 63), last = size - KS_SLACK, third = last - KS_SLACK, second;
    if (widest > KS_MAX_FIELD) return ks_put_with_slack(p, field);
    p = ks_put_middle(p, field->n);
    ks_copy_slack(p, from);
    if (widest > KS_SLACK) {
        last &= ~(last >> 63);
        if (widest > 2 * KS_SLACK) {
            second = last < KS_SLACK ? last : KS_SLACK;
            ks_copy_slack(p + second, from + second);
        }
        if (widest > 3 * KS_SLACK) {
            third &= ~(third >> 63);
            ks_copy_slack(p + third, from + third);
        }
        ks_copy_slack(p + last, from + last);
    }
    return p + size;
}

/* As `ks_put_run` for records of up to KS_MIDDLE bytes. */
KS_INLINE uint8_t *ks_put_middle_run(uint8_t *p, const ks_run *run, const ks_widths *widths, const ks_bytes *keys,
                                     const ks_bytes *values, const ks_bytes *headers, int times, int one_size) {
    uint64_t number = run->number, bits = run->number_bits;
    for (int64_t i = 0; i < run->n; i++) {
        uint64_t word = (run->word + number + ks_time_bits(run, i, times)) >> 8;
        ks_prefetch(values[i].p, 2048, p);
        if (widths->value > 64) ks_prefetch(values[i].p + 64, 2048, p + 64);
        p = ks_put_middle(p, run->word_size - 1 + (keys ? ks_middle_size(&keys[i]) : 1) + ks_middle_size(&values[i]) +
                                 (headers ? headers[i].n : 1));
        memcpy(p, &word, 8);
        p += run->word_size - 1;
        number = ((number | ~bits) + run->number_step) & bits;
        if (!keys) *p++ = 1;
        else p = one_size ? ks_put_with_slack(p, &keys[i]) : ks_put_varied(p, &keys[i], widths->key);
        p = one_size ? ks_put_with_slack(p, &values[i]) : ks_put_varied(p, &values[i], widths->value);
        if (headers && headers[i].n != 1) p = ks_copy_exact(p, headers[i].p, headers[i].n);
        else *p++ = headers ? *headers[i].p : 0;
    }
    return p;
}

/* Returns the largest size of a field in these rows; sets whether there is a null, and whether sizes differ. */
KS_INLINE int64_t ks_widest(const ks_bytes *bytes, int64_t n, ks_widths *widths) {
    int64_t max = 0, signs = 0, differ = 0;
    for (int64_t i = 0; i < n; i++) {
        signs |= bytes[i].n;
        differ |= bytes[i].n ^ bytes[0].n;
    }
    widths->nulls |= signs < 0;
    if (!differ) return signs > 0 ? signs : 0; /* the size of all fields */
    widths->differ = 1;
    for (int64_t i = 0; i < n; i++) max = bytes[i].n > max ? bytes[i].n : max;
    return max;
}

ks_widths ks_widths_of(const ks_bytes *keys, const ks_bytes *values, const ks_bytes *headers, int64_t n) {
    ks_widths widths = {.header = 1};
    if (headers) widths.header = ks_widest(headers, n, &widths);
    widths.differ = 0; /* only for keys and values */
    widths.value = ks_widest(values, n, &widths);
    if (keys) widths.key = ks_widest(keys, n, &widths);
    return widths;
}

KS_INLINE int ks_same_time(const int64_t *times, int64_t n) {
    int64_t differ = 0;
    if (times[n - 1] != times[0]) return 0;
    for (int64_t i = 1; i < n; i++) differ |= times[i] ^ times[0];
    return differ == 0;
}

/* The number of leading rows whose times are accepted, not before the base, and have deltas of `delta_size` bytes. */
KS_INLINE int64_t ks_alike(const ks_open_batch *batch, const int64_t *times, int64_t n, int64_t delta_size) {
    const int64_t base = batch->base_timestamp, end = (int64_t)1 << (7 * delta_size - 1);
    if (base > INT64_MAX - end) return 0;
    int64_t first = base + (delta_size > 1 ? end >> 7 : 0), last = base + end - 1, i = 0;
    if (first < batch->earliest) first = batch->earliest;
    if (last > batch->latest) last = batch->latest;
    while (i < n && times[i] >= first && times[i] <= last) i++;
    return i;
}

KS_INLINE int64_t ks_latest(const int64_t *times, int64_t n, int64_t latest) {
    for (int64_t i = 0; i < n; i++) latest = times[i] > latest ? times[i] : latest;
    return latest;
}

/* Writes a run; `times` is whether the records' times differ. */
KS_INLINE uint8_t *ks_put_any_run(uint8_t *p, const ks_run *run, const ks_widths *widths, const ks_bytes *keys,
                                  const ks_bytes *values, const ks_bytes *headers, int small, int times) {
    if (!headers && !small && !times && !widths->differ) return ks_put_middle_run(p, run, widths, keys, values, NULL, 0, 1);
    if (!headers && !keys && small && !widths->differ && !widths->nulls && run->word_size <= KS_MOST_BEFORE) {
        if (widths->value <= 16) return ks_put_alike(p, run, values, 16, times);
        return ks_put_alike(p, run, values, 64, times);
    }
    if (headers || !small) return ks_put_middle_run(p, run, widths, keys, values, headers, times, 0);
    if (widths->nulls) return ks_put_run(p, run, keys, values, 64, 1, times);
    if (widths->value <= 16 && widths->key <= 16) return ks_put_run(p, run, keys, values, 16, 0, times);
    return ks_put_run(p, run, keys, values, 64, 0, times);
}

/* Appends records while several fit and none must be checked individually; returns how many. */
KS_INLINE int64_t ks_encode_runs(ks_open_batch *batch, const ks_bytes *keys, const ks_bytes *values,
                                 const ks_bytes *headers, const int64_t *times, int64_t n) {
    uint64_t delta = ks_delta(batch, times[0]), number;
    int64_t delta_size = ks_uvarint_size(delta), number_size, max_body, fits, done = 0;
    uint8_t *limit = batch->room - KS_SLACK, shift;
    const ks_widths of_rows = batch->widths, *widths = &of_rows; /* a copy that no store changes: kept in registers */
    ks_run run = {.base = batch->base_timestamp};
    if (limit > batch->full) limit = batch->full;
    if (limit > batch->enough) limit = batch->enough;
    fits = (limit - batch->p) / KS_MIN_RECORD;
    if (n > fits) n = fits;
    if (n < KS_FEW || !batch->slack || delta_size > 3) return 0;
    if (widths->value > KS_MAX_FIELD || widths->key > KS_MAX_FIELD || widths->header > KS_MAX_FIELD) return 0;
    if (!ks_same_time(times, n)) {
        n = ks_alike(batch, times, n, delta_size);
        if (n < KS_FEW) return 0;
        run.times = times;
        delta = 0;
    }
    if (ks_odd(batch, widths->nulls ? NULL : keys, times[0])) return 0;
    for (;;) {
        number = (uint64_t)batch->count << 1;
        number_size = ks_uvarint_size(number);
        run.word_size = 2 + delta_size + number_size;
        max_body = run.word_size + 3 + widths->key + widths->value + widths->header;
        if (number_size > 3 || max_body > KS_MIDDLE) break;
        fits = (limit - batch->p) / (max_body + 2);
        run.n = n - done < fits ? n - done : fits;
        if (run.n < KS_FEW) break;
        fits = ((int64_t)1 << (7 * number_size - 1)) - batch->count; /* records whose numbers have the same size */
        if (run.n > fits) run.n = fits;
        shift = (uint8_t)(8 * (2 + delta_size));
        run.word = (uint64_t)(run.word_size + 2) << 1 | (ks_spread(delta) | ks_more(delta_size)) << 16 |
                   ks_more(number_size) << shift;
        run.number = ks_spread(number) << shift;
        run.number_bits = (uint64_t)(0x7f7f7f >> (8 * (3 - number_size))) << shift;
        run.number_step = (uint64_t)2 << shift;
        if (run.times) batch->p = ks_put_any_run(batch->p, &run, widths, keys, values, headers, max_body - 2 <= KS_SMALL, 1);
        else batch->p = ks_put_any_run(batch->p, &run, widths, keys, values, headers, max_body - 2 <= KS_SMALL, 0);
        if (run.times) run.times += run.n;
        batch->count += run.n;
        done += run.n;
        values += run.n;
        if (keys) keys += run.n;
        if (headers) headers += run.n;
    }
    batch->max_timestamp = ks_latest(times, run.times ? done : done > 0, batch->max_timestamp);
    return done;
}

/* ---- rows with nothing in common -------------------------------------------------------------------------------- */

/* As `ks_encode_each`, for a batch with slack, with almost no branch that depends on a row. Also stops at a large
   record or number, or at a time far from the batch's base timestamp. */
KS_INLINE int64_t ks_encode_varied(ks_open_batch *batch, const ks_bytes *keys, const ks_bytes *values,
                                   const ks_bytes *headers, const int64_t *times, int64_t n) {
    uint8_t *p = batch->p, *limit = batch->room - KS_SLACK;
    uint64_t number = (uint64_t)batch->count << 1;
    const int64_t max_key = batch->widths.key, max = batch->widths.value;
    int64_t i, latest = batch->max_timestamp;
    if (limit > batch->full) limit = batch->full;
    if (limit > batch->enough) limit = batch->enough;
    if (!batch->slack) return 0;
    for (i = 0; i < n; i++) {
        ks_columns_row row = ks_columns_row_at(batch, keys, values, headers, times, i);
        uint64_t delta = row.delta, word;
        uint8_t *next;
        int64_t delta_size = 1 + (delta > 0x7f) + (delta > 0x3fff), number_size = 1 + (number > 0x7f) + (number > 0x3fff);
        int64_t body = 2 + delta_size + number_size + ks_middle_size(row.value) +
                       (row.key ? ks_middle_size(row.key) : 1) + (row.header ? row.header->n - 1 : 0);
        ks_prefetch(row.value->p, 2048, p);
        if (max > 64) ks_prefetch(row.value->p + 64, 2048, p + 64);
        if (ks_odd(batch, row.key, times[i]) || (delta | number) > 0x1fffff) break;
        if (body > KS_MIDDLE || body + 2 > limit - p) break;
        word = (ks_spread(number) | ks_more(number_size)) << (8 * delta_size) | ks_spread(delta) | ks_more(delta_size);
        next = p + 1 + (body > KS_SMALL) + body; /* known before the fields are written: rows are written in parallel */
        p = ks_put_middle(p, body);
        *p++ = 0;
        memcpy(p, &word, 8);
        p += delta_size + number_size;
        if (row.key) p = ks_put_varied(p, row.key, max_key);
        else *p++ = 1;
        p = ks_put_varied(p, row.value, max);
        if (row.header && row.header->n != 1) ks_copy_exact(p, row.header->p, row.header->n);
        else *p = row.header ? *row.header->p : 0;
        p = next;
        number += 2;
        if (times[i] > latest) latest = times[i];
    }
    ks_go_on(batch, p, number, latest);
    return i;
}

/* As `ks_encode`: in runs if possible, then row by row. */
KS_INLINE int64_t ks_encode_rows(ks_open_batch *batch, const ks_bytes *keys, const ks_bytes *values,
                                 const ks_bytes *headers, const int64_t *times, int64_t n) {
    int64_t done = 0, more;
    while (done < n) {
        more = ks_encode_runs(batch, keys ? keys + done : NULL, values + done, headers ? headers + done : NULL, times + done,
                              n - done);
        if (more == 0) break;
        done += more;
    }
    if (done < n)
        done += ks_encode_varied(batch, keys ? keys + done : NULL, values + done, headers ? headers + done : NULL,
                                 times + done, n - done);
    if (done == n) return n;
    return done + ks_encode_each(batch, keys ? keys + done : NULL, values + done, headers ? headers + done : NULL,
                                 times + done, n - done);
}

int ks_why(const ks_open_batch *batch, const ks_bytes *key, const ks_bytes *value, const ks_bytes *headers,
           int64_t time, int64_t *total) {
    int64_t body = ks_body(key, value, headers, ks_delta(batch, time), (uint64_t)batch->count << 1);
    *total = body + ks_uvarint_size((uint64_t)body << 1);
    if (batch->p >= batch->enough) return KS_STOP_ENOUGH;
    if (ks_odd(batch, key, time)) return KS_STOP_ODD;
    return *total > batch->full - batch->p ? KS_STOP_FULL : KS_STOP_ROOM;
}

#define KS_ENCODE_FORMS                                                                        \
    if (!keys && !headers) return ks_encode_rows(batch, NULL, values, NULL, times, n);         \
    if (!headers) return ks_encode_rows(batch, keys, values, NULL, times, n);                  \
    return ks_encode_rows(batch, keys, values, headers, times, n);

typedef int64_t (*ks_encode_function)(ks_open_batch *, const ks_bytes *, const ks_bytes *, const ks_bytes *,
                                      const int64_t *, int64_t);

static int64_t ks_encode_portable(ks_open_batch *batch, const ks_bytes *keys, const ks_bytes *values, const ks_bytes *headers,
                               const int64_t *times, int64_t n) {
    KS_ENCODE_FORMS
}

static ks_encode_function ks_encode_best = ks_encode_portable;

#if defined(__x86_64__) && defined(__GNUC__)
/* The same source, compiled for copies of 32 bytes in one register. */
__attribute__((target("avx2,bmi2"))) static int64_t ks_encode_wide(
    ks_open_batch *batch, const ks_bytes *keys, const ks_bytes *values, const ks_bytes *headers, const int64_t *times,
    int64_t n) {
    KS_ENCODE_FORMS
}

__attribute__((constructor)) static void ks_encode_choose(void) {
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2")) ks_encode_best = ks_encode_wide;
}
#endif

int64_t ks_encode(ks_open_batch *batch, const ks_bytes *keys, const ks_bytes *values, const ks_bytes *headers,
                  const int64_t *times, int64_t n) {
    return ks_encode_best(batch, keys, values, headers, times, n);
}
