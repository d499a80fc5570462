#include "columns/rows.h"

#include <stdlib.h>
#include <string.h>

void ks_rows_like(ks_rows *rows, const ks_rows *of, int measured) {
    rows->wanted = of->wanted | (uint32_t)measured << KS_OFFSET;
    rows->key.layout = of->key.layout;
    rows->value.layout = of->value.layout;
    rows->headers = of->headers;
    rows->header_key.layout = rows->header_value.layout = of->headers ? KS_OFFSETS32 : KS_ABSENT;
    rows->measured = measured;
}

/* ---- space ------------------------------------------------------------------------------------------------------ */

static size_t ks_place_width(int layout) { return layout == KS_OFFSETS32 ? 4 : layout == KS_OFFSETS64 ? 8 : sizeof(ks_view); }

int ks_var_reserve(ks_var *v, int64_t n, int64_t rows, int64_t bytes) {
    if (v->layout == KS_ABSENT) return 0;
    size_t width = ks_place_width(v->layout);
    int fresh = !v->places.p;
    if (ks_vec_reserve(&v->places, (size_t)(n + 1) * width * !fresh, (size_t)(n + rows + 1) * width)) return -1;
    if (fresh) memset(v->places.p, 0, width);
    if (ks_vec_reserve(&v->valid, (size_t)(n + 7) / 8, (size_t)(n + rows + 63) / 64 * 8)) return -1;
    if (v->layout != KS_VIEWS && ks_vec_reserve(&v->data, (size_t)v->used, (size_t)(v->used + bytes))) return -1;
    return 0;
}

int ks_rows_reserve(ks_rows *out, int64_t rows, int64_t bytes) {
    for (int i = 0; i < KS_FIXED_COLUMNS; i++)
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
    size_t places = (size_t)(rows + (v->layout != KS_VIEWS)) * ks_place_width(v->layout);
    return v->places.p && places <= v->places.capacity && (size_t)(rows + 63) / 64 * 8 <= v->valid.capacity &&
           (v->layout == KS_VIEWS || (v->data.p && (size_t)(v->used + bytes) <= v->data.capacity));
}

int ks_has_room(const ks_rows *out, int64_t rows, int64_t key_bytes, int64_t value_bytes) {
    for (int i = 0; i < KS_FIXED_COLUMNS; i++)
        if (out->wanted >> i & 1 && (size_t)(out->n + rows) * ks_fixed_width[i] > out->fixed[i].capacity) return 0;
    return ks_var_has_room(&out->key, out->n + rows, key_bytes) && ks_var_has_room(&out->value, out->n + rows, value_bytes);
}

void ks_clear_bits(ks_var *v, int64_t n, int64_t rows) {
    if (v->layout == KS_ABSENT || rows == 0) return;
    uint64_t *words = (uint64_t *)v->valid.p, before = ((uint64_t)1 << (n & 63)) - 1;
    int64_t first = (n + 63) / 64, last = (n + rows + 63) / 64;
    if (n & 63) __atomic_fetch_and(words + n / 64, ks_little(before), __ATOMIC_RELAXED);
    if (last > first) memset(words + first, 0, (size_t)(last - first) * 8);
}

void ks_rows_expect(ks_rows *out, double times, int64_t more) {
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

void ks_rows_clear(ks_rows *rows, int keep_memory) {
    rows->n = rows->bytes = rows->headers_n = 0;
    for (int i = 0; i < rows->buffers_n; i++) ks_block_drop(rows->buffers[i]);
    rows->buffers_n = 0;
    ks_var *vars[] = {&rows->key, &rows->value, &rows->header_key, &rows->header_value};
    for (int i = 0; i < 4; i++)
        if (keep_memory) vars[i]->used = vars[i]->nulls = 0; else ks_var_drop(vars[i]);
    if (keep_memory) return;
    for (int i = 0; i < KS_FIXED_COLUMNS; i++) ks_vec_drop(&rows->fixed[i]);
    ks_vec_drop(&rows->header_places);
    ks_vec_drop(&rows->sizes);
    free(rows->buffers);
    free(rows->extents);
    rows->buffers = NULL;
    rows->extents = NULL;
    rows->buffers_capacity = 0;
}

ks_mark ks_rows_mark(const ks_rows *rows) {
    ks_mark mark = {rows->n, rows->bytes, rows->headers_n, {{0, 0}}};
    const ks_var *vars[] = {&rows->key, &rows->value, &rows->header_key, &rows->header_value};
    for (int i = 0; i < 4; i++) {
        mark.vars[i].used = vars[i]->used;
        mark.vars[i].nulls = vars[i]->nulls;
    }
    return mark;
}

void ks_rows_back(ks_rows *rows, const ks_mark *mark) {
    rows->n = mark->n;
    rows->bytes = mark->bytes;
    rows->headers_n = mark->headers_n;
    ks_var *vars[] = {&rows->key, &rows->value, &rows->header_key, &rows->header_value};
    for (int i = 0; i < 4; i++) {
        vars[i]->used = mark->vars[i].used;
        vars[i]->nulls = mark->vars[i].nulls;
    }
}

/* Copies a few rows from a large block into a small one, since the result may live long. */
static void ks_vec_fit(ks_vec *v, size_t used) {
    if (!v->p || used > v->capacity / 2 || v->capacity < 4096) return;
    if (used > (1 << 20) && used > v->capacity / 8) return; /* pages that were never touched cost no memory */
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
    ks_vec_fit(&v->places, (size_t)(n + (v->layout != KS_VIEWS)) * ks_place_width(v->layout));
    if (v->nulls) ks_vec_fit(&v->valid, (size_t)(n + 63) / 64 * 8); else ks_vec_drop(&v->valid);
    if (v->layout != KS_VIEWS) ks_vec_fit(&v->data, (size_t)v->used);
}

void ks_rows_finish(ks_rows *rows) {
    if (rows->n == 0 && ks_rows_reserve(rows, 0, 0)) return;
    for (int i = 0; i < KS_FIXED_COLUMNS; i++)
        if (rows->wanted >> i & 1) ks_vec_fit(&rows->fixed[i], (size_t)rows->n * ks_fixed_width[i]);
    ks_var_finish(&rows->key, rows->n);
    ks_var_finish(&rows->value, rows->n);
    if (!rows->headers) return;
    ks_vec_fit(&rows->header_places, (size_t)(rows->n + 1) * 4);
    ks_var_finish(&rows->header_key, rows->headers_n);
    ks_var_finish(&rows->header_value, rows->headers_n);
}

int32_t ks_rows_buffer(ks_rows *rows, ks_block *block) {
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
    return v->layout == KS_OFFSETS32 ? ((const int32_t *)v->places.p)[row] : ((const int64_t *)v->places.p)[row];
}

/* Appends rows [first, first + count) of `from` to `to`, which has `n` rows and the same layout. */
static int ks_var_take(ks_var *to, int64_t n, const ks_var *from, int64_t first, int64_t count, const int32_t *buffers) {
    if (to->layout == KS_ABSENT || count == 0) return to->layout == KS_ABSENT ? 0 : ks_var_reserve(to, n, 0, 0);
    int64_t begin = 0, bytes = 0;
    if (to->layout != KS_VIEWS) {
        begin = ks_begin_of(from, first);
        bytes = ks_begin_of(from, first + count) - begin;
    }
    if (ks_var_reserve(to, n, count, bytes)) return -1;
    ks_take_bits(to->valid.p, n, from->valid.p, first, count);
    if (from->nulls)
        for (int64_t i = first; i < first + count; i++) to->nulls += !(from->valid.p[i / 8] >> (i & 7) & 1);
    if (to->layout == KS_VIEWS) {
        ks_view *views = (ks_view *)to->places.p + n;
        memcpy(views, (const ks_view *)from->places.p + first, (size_t)count * sizeof *views);
        for (int64_t i = 0; i < count; i++)
            if (views[i].size > 12) views[i].buffer = buffers[views[i].buffer];
        return 0;
    }
    memcpy(to->data.p + to->used, from->data.p + begin, (size_t)bytes);
    int64_t move = to->used - begin;
    if (to->layout == KS_OFFSETS32) {
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

int ks_rows_take(ks_rows *to, const ks_rows *from, int64_t first, int64_t count, int64_t bytes) {
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
    for (int i = 0; i < KS_FIXED_COLUMNS; i++)
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
