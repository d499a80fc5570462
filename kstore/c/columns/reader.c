#include "columns/reader.h"

#include <errno.h>

#include "crc32c.h"

#define KS_VIEW_WINDOW ((size_t)8 << 20)  /* a window becomes a buffer of views: few are better */

void ks_window_close(ks_reader *r) {
    ks_block_drop(r->window);
    r->window = NULL;
    r->window_size = 0;
}

int ks_window_open(ks_reader *r, int64_t position, size_t n, size_t kept) {
    int views = r->out->key.layout == KS_VIEWS || r->out->value.layout == KS_VIEWS;
    size_t wanted = views ? KS_VIEW_WINDOW : KS_WINDOW;
    if ((int64_t)wanted > r->end - position) wanted = (size_t)(r->end - position);
    if (wanted < n) wanted = n;
    int reusable = r->window && __atomic_load_n(&r->window->holders, __ATOMIC_ACQUIRE) == 1;
    if (reusable && r->window->capacity >= n && (r->window->capacity >= wanted || !views)) {
        memmove(r->window->data, r->window->data + (position - r->window_at), kept);
    } else {
        ks_block *block = ks_block_new(wanted);
        if (!block) return -1;
        if (kept) memcpy(block->data, r->window->data + (position - r->window_at), kept);
        ks_block_drop(r->window);
        r->window = block;
    }
    r->window_at = position;
    r->window_size = kept;
    return 0;
}

const uint8_t *ks_look(ks_reader *r, int64_t position, size_t n) {
    if (r->fd < 0) return r->memory + position;
    int64_t at = position - r->window_at;
    if (r->window && at >= 0 && at <= (int64_t)r->window_size) {
        if (at + (int64_t)n <= (int64_t)r->window_size) return r->window->data + at;
        if (at + n > r->window->capacity && ks_window_open(r, position, n, r->window_size - (size_t)at)) goto no_memory;
    } else if (ks_window_open(r, position, n, 0)) {
        goto no_memory;
    }
    at = position - r->window_at;
    size_t wanted = (size_t)at + (n > r->ahead ? n : r->ahead);
    if (wanted > r->window->capacity) wanted = r->window->capacity;
    int64_t limit = r->end - r->window_at;
    if (r->ahead_end && r->ahead_end < r->end)
        limit = r->ahead_end - r->window_at > at + (int64_t)n ? r->ahead_end - r->window_at : at + (int64_t)n;
    if ((int64_t)wanted > limit) wanted = (size_t)limit;
    if (r->ahead < KS_WINDOW) r->ahead *= 4;
    if (wanted > r->window_size) {
        ptrdiff_t got = ks_read_held(&r->held, r->fd, r->window->data + r->window_size, wanted - r->window_size,
                                     r->window_at + (int64_t)r->window_size);
        if (got < 0) { r->error = errno; return NULL; }
        r->window_size += (size_t)got;
    }
    r->error = 0;
    return at + (int64_t)n <= (int64_t)r->window_size ? r->window->data + at : NULL;
no_memory:
    r->error = ENOMEM;
    return NULL;
}

int64_t ks_end_of(const uint8_t *p) {
    return ks_wrapping_add(ks_last_offset(p), 1);
}

__attribute__((noinline)) int ks_fits_in(ks_reader *r, const uint8_t *p, int64_t size) {
    int64_t base = ks_load64(p), last = ks_end_of(p) - 1, behind = r->position + size;
    uint8_t next[8];
    if (!r->chained) return 1;
    if (base < r->min_base || last < base || last >= r->offset_limit) return 0;
    if (base == r->min_base || behind == r->end) return 1;
    if (r->end - behind < KS_LOG_OVERHEAD) return 0;
    if (r->fd < 0) memcpy(next, r->memory + behind, sizeof next);
    else if (ks_read_held(&r->held, r->fd, next, sizeof next, behind) != sizeof next) return 0;
    int64_t next_base = ks_load64(next);
    return next_base > last || next_base < r->min_base; /* a base offset below `min_base`: the next batch is wrong */
}

void ks_passed(ks_reader *r, const uint8_t *p, int64_t size) {
    if (r->first_base == INT64_MIN) r->first_base = ks_load64(p);
    r->min_base = ks_end_of(p);
    r->position += size;
}

void ks_used_up(ks_reader *r, const uint8_t *p, int64_t size) {
    r->last_position = r->position;
    r->last_base = ks_load64(p);
    r->last_crc = (uint32_t)ks_load32(p + KS_CRC_AT);
    memcpy(r->last_header, p, sizeof r->last_header);
    ks_passed(r, p, size);
    if (r->decompressed) r->decompressed_used = (size_t)(r->decompressed_end - r->decompressed_block->data);
    r->decompressed = NULL;
}

void ks_follow(ks_reader *r, const ks_reader *c) {
    r->decompressed = NULL;
    r->position = c->position;
    r->min_base = c->min_base;
    r->next_offset = c->next_offset;
    r->last_position = c->last_position;
    r->last_base = c->last_base;
    r->last_crc = c->last_crc;
    memcpy(r->last_header, c->last_header, sizeof r->last_header);
}

void ks_describe(const uint8_t *p, ks_batch *b) {
    int16_t attributes = ks_load16(p + KS_ATTRIBUTES_AT);
    b->base_offset = ks_load64(p);
    b->last_delta = ks_load32(p + KS_LAST_OFFSET_DELTA_AT);
    b->count = ks_load32(p + KS_RECORDS_COUNT_AT);
    b->append_time = (attributes & KS_TIMESTAMP_TYPE_BIT) != 0;
    b->base_timestamp = ks_load64(p + (b->append_time ? KS_MAX_TIMESTAMP_AT : KS_BASE_TIMESTAMP_AT));
    b->leader_epoch = ks_load32(p + KS_LEADER_EPOCH_AT);
    b->producer_id = ks_load64(p + KS_PRODUCER_ID_AT);
    b->producer_epoch = ks_load16(p + KS_PRODUCER_EPOCH_AT);
    b->base_sequence = ks_load32(p + KS_BASE_SEQUENCE_AT);
    b->timestamp_type = (int8_t)b->append_time;
    b->compression = (int8_t)(attributes & KS_CODEC_MASK);
    b->transactional = (attributes & KS_TRANSACTIONAL_BIT) != 0;
}

/* The slot in `kept` of the first offset, from slot `at` on, that is not below `offset`: it is near `at`. */
static int64_t ks_kept_from(const ks_reader *r, int64_t at, int64_t offset) {
    int64_t step = 1, low = at;
    while (at < r->kept_n && r->kept[at] < offset) {
        low = at + 1;
        at += step;
        step *= 2;
    }
    int64_t high = at < r->kept_n ? at : r->kept_n;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (r->kept[middle] < offset) low = middle + 1;
        else high = middle;
    }
    return low;
}

int64_t ks_kept_between(ks_reader *r, int64_t base, int64_t last) {
    if (r->kept_at && r->kept[r->kept_at - 1] >= base) r->kept_at = 0; /* the caller moved back */
    r->kept_at = ks_kept_from(r, r->kept_at, base);
    int64_t at = r->kept_at;
    if (at < r->kept_n && r->kept[at] <= last) at = ks_kept_from(r, at, last + 1);
    return at - r->kept_at;
}

#define KS_DECOMPRESSED_BLOCK ((size_t)1 << 20)

uint8_t *ks_decompressed_room(ks_reader *r, size_t used, size_t size) {
    ks_block *block = r->decompressed_block;
    if (!r->keeps_decompressed) r->decompressed_used = 0;
    if (!block || block->capacity - r->decompressed_used < size) {
        block = ks_block_new(r->keeps_decompressed && size < KS_DECOMPRESSED_BLOCK ? KS_DECOMPRESSED_BLOCK : size + size / 2);
        if (!block) return NULL;
        if (used) memcpy(block->data, r->decompressed_block->data + r->decompressed_used, used);
        ks_block_drop(r->decompressed_block);
        r->decompressed_block = block;
        r->decompressed_used = 0;
    }
    return block->data + r->decompressed_used;
}

static int ks_grow_decompressed(ks_output *out, size_t used, size_t capacity) {
    ks_reader *r = (ks_reader *)out->context;
    ks_held_count(&r->held, (int64_t)(capacity - used));
    if (!(out->p = ks_decompressed_room(r, used, capacity))) return -1;
    out->capacity = r->decompressed_block->capacity - r->decompressed_used;
    return 0;
}

/* Decompresses the batch at `p`; returns 0, or -1 on failure. */
static int ks_unpack(ks_reader *r, const uint8_t *p, int64_t size) {
    ks_output out = {NULL, 0, ks_grow_decompressed, r};
    int64_t decompressed = r->unpack(ks_load16(p + KS_ATTRIBUTES_AT) & KS_CODEC_MASK, p + KS_RECORDS_AT,
                                     (size_t)(size - KS_RECORDS_AT), &out, r->max_decompressed);
    if (decompressed < 0 && r->unpack_slowly) {
        decompressed = r->unpack_slowly(r->context, r, p, size);
        r->by_python = 1;
    }
    if (decompressed < 0 || (!r->decompressed_block && ks_grow_decompressed(&out, 0, 1))) return -1;
    r->decompressed = r->decompressed_block->data + r->decompressed_used;
    r->decompressed_end = r->decompressed + decompressed;
    return 0;
}

/* Selects the rows of `staged` in the wanted range; offsets rise. */
static void ks_stage(ks_reader *r, int64_t next_offset) {
    const int64_t *offsets = (const int64_t *)r->staged.fixed[KS_OFFSET].p;
    int64_t from = 0, to = r->staged.n;
    while (from < to && offsets[from] < r->start_offset) from++;
    while (from < to && offsets[to - 1] > r->last_wanted) to--;
    r->staged_next = to < r->staged.n ? -1 : next_offset;
    r->staged_from = from;
    r->staged_to = to;
}

/* As ks_take_staged, for a batch of which only some rows are kept: takes them run by run. */
static int ks_take_kept(ks_reader *r) {
    const int32_t *sizes = (const int32_t *)r->staged.sizes.p;
    const int64_t *offsets = (const int64_t *)r->staged.fixed[KS_OFFSET].p;
    int64_t first = r->staged_from, to = r->staged_to;
    while (first < to) {
        int64_t at = r->kept_at = ks_kept_from(r, r->kept_at, offsets[first]);
        int64_t wanted = at < r->kept_n ? r->kept[at] : INT64_MAX;
        while (first < to && offsets[first] < wanted) first++;
        int64_t last = first, bytes = 0;
        while (last < to && at < r->kept_n && offsets[last] == r->kept[at] && r->out->n + (last - first) < r->max_rows) {
            int64_t more = bytes + sizes[last];
            if (r->out->bytes + more > r->max_bytes && r->out->n + (last - first) > 0) break;
            bytes = more;
            last++;
            at++;
        }
        if (last > first) {
            if (ks_rows_take(r->out, &r->staged, first, last - first, bytes)) return -1;
            r->next_offset = offsets[last - 1] + 1;
        } else if (first < to && offsets[first] == wanted) { /* the row does not fit */
            break;
        }
        first = last;
    }
    r->staged_from = first;
    if (first == to && r->staged_next >= 0) r->next_offset = r->staged_next;
    return 0;
}

/* Moves staged rows to `out` while they fit; returns 0, or -1 without memory. */
static int ks_take_staged(ks_reader *r) {
    if (r->kept) return ks_take_kept(r);
    const int32_t *sizes = (const int32_t *)r->staged.sizes.p;
    const int64_t *offsets = (const int64_t *)r->staged.fixed[KS_OFFSET].p;
    int64_t first = r->staged_from, last = first, bytes = 0;
    while (last < r->staged_to && r->out->n + (last - first) < r->max_rows) {
        int64_t more = bytes + sizes[last];
        if (r->out->bytes + more > r->max_bytes && r->out->n + (last - first) > 0) break;
        bytes = more;
        last++;
    }
    if (last > first) {
        if (ks_rows_take(r->out, &r->staged, first, last - first, bytes)) return -1;
        r->next_offset = offsets[last - 1] + 1;
    }
    r->staged_from = last;
    if (last == r->staged_to && r->staged_next >= 0) r->next_offset = r->staged_next;
    return 0;
}

/* Called after the first whole batch of `out`, of `size` bytes (decompressed: `decompressed`): reserves the rest. */
static void ks_expect(ks_reader *r, int64_t decompressed, int64_t size) {
    ks_rows *out = r->out;
    double bytes = (double)out->bytes + (double)decompressed / (double)size * (double)r->bytes_ahead;
    if (bytes > (double)r->max_bytes) bytes = (double)r->max_bytes;
    double times = bytes / (double)out->bytes;
    if (times * (double)out->n > (double)r->max_rows) times = (double)r->max_rows / (double)out->n;
    if (times > 1.5) ks_rows_expect(out, times * 1.1, decompressed);
    r->expected = 1;
}

/* Called before the first whole batch, of `size` bytes (decompressed: `decompressed`): reserves space according to the
   sizes of the previous columns, and `spare` more bytes of keys and of values. */
static void ks_expect_alike(ks_reader *r, int64_t decompressed, int64_t size, int64_t spare) {
    const ks_mark *previous = &r->previous;
    if (r->expected || r->kept || r->out->n || previous->bytes <= 2 * decompressed) return;
    double bytes = (double)decompressed / (double)size * (double)r->bytes_ahead;
    if (bytes > (double)r->max_bytes) bytes = (double)r->max_bytes;
    double times = 1.05 * bytes / (double)previous->bytes;
    double rows = times * (double)previous->n, max_rows = (double)r->max_rows;
    if (ks_rows_reserve(r->out, (int64_t)(rows < max_rows ? rows : max_rows) + 64, 0)) return;
    ks_var *vars[] = {&r->out->key, &r->out->value};
    for (int i = 0; i < 2; i++) ks_var_reserve(vars[i], 0, 0, (int64_t)(times * (double)previous->vars[i].used) + spare);
    r->expected = 1;
}

/* Reserves space for all kept rows, estimated from the rows so far. */
static void ks_expect_kept(ks_reader *r) {
    ks_rows *out = r->out;
    double times = (double)(r->kept_n - r->kept_at) / (double)out->n + 1;
    double most = (double)r->max_bytes / (double)(out->bytes ? out->bytes : 1);
    if (out->n < 100 && times > 100) return; /* too few rows for an estimate */
    if (times > most) times = most;
    if (times > 1.5) ks_rows_expect(out, times * 1.05, 0);
    r->expected = 1;
}

/* Whether the batch may be decoded piece by piece: all its rows are wanted and fit, and its records are small. */
static int ks_suits_pieces(const ks_reader *r, const uint8_t *p, const ks_batch *b, int64_t size) {
    int64_t decompressed = size - KS_RECORDS_AT;
    return size > 2 * KS_PIECE && b->compression == 0 && !(ks_load16(p + KS_ATTRIBUTES_AT) & KS_CONTROL_BIT) &&
           r->out->key.layout != KS_VIEWS && r->out->value.layout != KS_VIEWS && ks_has_regular_offsets(b) &&
           b->count > decompressed / (KS_PIECE / 8) && b->count <= decompressed / 7 && b->base_offset >= r->start_offset &&
           b->base_offset + b->last_delta <= r->last_wanted && b->count <= r->max_rows - r->out->n &&
           decompressed <= r->max_bytes - r->out->bytes;
}

/* Describes the memory around an uncompressed batch: a window is in the caches, the caller's memory is not yet. */
static void ks_lies_in_source(const ks_reader *r, ks_batch *b) {
    b->unread = r->fd < 0;
    b->safe = r->fd < 0 ? r->memory + r->end : r->window->data + r->window->capacity + KS_SLACK;
}

/* For a batch larger than a cache: adds each piece to the checksum and decodes its records, then reads the next piece
   into the same memory. Unless it returns KS_DECODED, nothing has changed and the batch may be read as a whole. */
static enum ks_decoded ks_decode_in_pieces(ks_reader *r, const uint8_t *head, ks_batch *b, int64_t size) {
    ks_rows *out = r->out;
    const int64_t rows = b->count, first = out->n;
    ks_mark mark = ks_rows_mark(out);
    ks_place at = {first, out->key.used, out->value.used, 0, 0, 0, 1, 0, NULL};
    uint32_t crc = ks_crc32c(0, head + KS_ATTRIBUTES_AT, KS_RECORDS_AT - KS_ATTRIBUTES_AT);
    int64_t done = KS_RECORDS_AT, summed = KS_RECORDS_AT; /* bytes decoded; bytes that `crc` covers */
    ks_expect_alike(r, size - KS_RECORDS_AT, size, KS_PIECE);
    /* If space was reserved by the sizes of the previous columns, columns grow piece by piece. Space for all bytes of
       the batch would be mostly unused in a column of short keys, which would later be moved into a smaller block. */
    if (ks_rows_reserve(out, rows, r->expected ? KS_PIECE : size - KS_RECORDS_AT)) return KS_NO_MEMORY;
    while (summed < size) {
        int64_t to = size - summed < KS_PIECE ? size : summed + KS_PIECE;
        const uint8_t *p = ks_look(r, r->position + done, (size_t)(to - done));
        if (!p) goto back;
        out->key.used = at.key_used;
        out->value.used = at.value_used;
        if (ks_rows_reserve(out, rows, to - done)) goto back;
        if (r->check_crc) crc = ks_crc32c(crc, p + (summed - done), (size_t)(to - summed));
        summed = to;
        b->p = p;
        b->end = p + (to - done);
        ks_lies_in_source(r, b);
        b->block = NULL;
        b->count = rows - (at.n - first);
        if (ks_decode_at(b, out, &at) != KS_DECODED || at.stopped == p) goto back;
        done += at.stopped - p;
    }
    if (done != size || at.n != first + rows || at.min_delta > (int64_t)b->last_delta + 1) goto back;
    if (r->check_crc && crc != (uint32_t)ks_load32(head + KS_CRC_AT)) goto back;
    ks_keep_rows(out, &at, rows, size - KS_RECORDS_AT);
    b->count = rows;
    return KS_DECODED;
back:
    ks_rows_back(out, &mark);
    b->count = rows;
    return KS_DOUBTFUL;
}

/* Moves past a batch of `decompressed` bytes whose rows have all been added to `out`. */
static void ks_used_whole(ks_reader *r, const uint8_t *p, const ks_batch *b, int64_t size, int64_t decompressed) {
    if (!r->expected && r->kept) ks_expect_kept(r);
    if (!r->expected && !r->kept) ks_expect(r, decompressed, size);
    r->seen_bytes += size;
    r->seen_decompressed += decompressed;
    r->seen_rows += b->count;
    ks_used_up(r, p, size);
    r->next_offset = b->base_offset + b->last_delta + 1;
}

enum ks_stop ks_read(ks_reader *r) {
    for (;;) {
        if (r->staged_from < r->staged_to) {
            if (ks_take_staged(r)) return KS_OUT_OF_MEMORY;
            if (r->staged_from < r->staged_to) return KS_FULL;
            if (r->staged_next < 0) return KS_PAST;
        }
        if (r->out->n >= r->max_rows || (r->out->bytes >= r->max_bytes && r->out->n > 0)) return KS_FULL;
        int64_t left = r->end - r->position;
        if (left <= 0 || r->position >= r->pause) return KS_AT_END;
        if (left < KS_RECORDS_AT) return KS_LEFT_ALONE;
        const uint8_t *p = ks_look(r, r->position, KS_RECORDS_AT);
        if (!p) return r->error == ENOMEM ? KS_OUT_OF_MEMORY : r->error ? KS_FAILED_READ : KS_LEFT_ALONE;
        int64_t size = ks_batch_size(p);
        if (p[KS_MAGIC_AT] != 2 || size < KS_RECORDS_AT || size > left || !ks_fits(r, p, size)) return KS_LEFT_ALONE;
        if (ks_load64(p) > r->last_wanted) return KS_PAST;
        if (r->aborted_n && !r->decompressed && ks_is_aborted(r->aborted, r->aborted_n, p)) {
            ks_passed(r, p, size);
            continue;
        }
        ks_batch b;
        ks_describe(p, &b);
        int64_t kept = b.count;
        if (r->kept) {
            kept = ks_kept_between(r, b.base_offset, ks_end_of(p) - 1);
            if (!kept) {
                ks_passed(r, p, size);
                int64_t next = r->min_base - 1 > r->last_wanted ? r->last_wanted + 1 : r->min_base;
                if (next > r->next_offset) r->next_offset = next;
                r->decompressed = NULL;
                continue;
            }
        }
        if (kept == b.count && ks_suits_pieces(r, p, &b, size)) {
            uint8_t head[KS_RECORDS_AT];
            memcpy(head, p, sizeof head);
            ks_describe(head, &b);
            if (ks_suits_pieces(r, head, &b, size) && ks_decode_in_pieces(r, head, &b, size) == KS_DECODED) {
                ks_used_whole(r, head, &b, size, size - KS_RECORDS_AT);
                continue;
            }
        }
        if (!(p = ks_look(r, r->position, (size_t)size)))
            return r->error == ENOMEM ? KS_OUT_OF_MEMORY : r->error ? KS_FAILED_READ : KS_LEFT_ALONE;
        ks_describe(p, &b);
        if (b.count < 0 || !ks_has_regular_offsets(&b)) return KS_LEFT_ALONE;
        if (r->check_crc && !r->decompressed &&
            ks_crc32c(0, p + KS_ATTRIBUTES_AT, (size_t)(size - KS_ATTRIBUTES_AT)) != (uint32_t)ks_load32(p + KS_CRC_AT))
            return KS_LEFT_ALONE;
        int64_t last_offset = b.base_offset + b.last_delta;
        if (last_offset < r->start_offset) {
            ks_passed(r, p, size);
            r->decompressed = NULL;
            continue;
        }
        if (b.count == 0 || ks_load16(p + KS_ATTRIBUTES_AT) & KS_CONTROL_BIT) {
            ks_used_up(r, p, size);
            r->next_offset = last_offset + 1;
            continue;
        }
        if (b.compression == 0) {
            b.p = p + KS_RECORDS_AT;
            b.end = p + size;
            ks_lies_in_source(r, &b);
            b.block = r->window;
        } else {
            if (!r->decompressed && ks_unpack(r, p, size)) return KS_PACKED;
            b.p = r->decompressed;
            b.end = r->decompressed_end;
            b.block = r->decompressed_block;
            b.safe = b.block->data + b.block->capacity + KS_SLACK;
            b.unread = 0;
        }
        ks_held_count(&r->held, b.end - b.p);
        int whole = kept == b.count && b.base_offset >= r->start_offset && last_offset <= r->last_wanted &&
                    b.count <= r->max_rows - r->out->n && b.end - b.p <= r->max_bytes - r->out->bytes;
        if (r->kept && !whole && b.base_offset >= r->start_offset && last_offset <= r->last_wanted && kept <= b.count &&
            kept <= r->max_rows - r->out->n && b.end - b.p <= r->max_bytes - r->out->bytes) {
            enum ks_decoded some = ks_decode_some(&b, r->out, r->kept + r->kept_at, kept);
            if (some == KS_NO_MEMORY) return KS_OUT_OF_MEMORY;
            if (some == KS_DOUBTFUL) return KS_LEFT_ALONE;
            ks_used_up(r, p, size);
            r->next_offset = last_offset + 1;
            if (!r->expected) ks_expect_kept(r);
            continue;
        }
        if (!whole && (r->whole_batches > 1 || (r->whole_batches && r->out->n))) return KS_FULL;
        if (whole) ks_expect_alike(r, b.end - b.p, size, b.end - b.p);
        else ks_rows_clear(&r->staged, 1);
        enum ks_decoded decoded = ks_decode(&b, whole ? r->out : &r->staged);
        if (decoded == KS_NO_MEMORY) return KS_OUT_OF_MEMORY;
        if (decoded == KS_DOUBTFUL) return KS_LEFT_ALONE;
        if (whole) {
            ks_used_whole(r, p, &b, size, b.end - b.p);
            continue;
        }
        r->seen_bytes += size;
        r->seen_decompressed += b.end - b.p;
        r->seen_rows += b.count;
        ks_used_up(r, p, size);
        ks_stage(r, last_offset + 1);
        if (r->staged_from == r->staged_to) { /* no row is in the range */
            if (r->staged_next < 0) return KS_PAST;
            r->next_offset = r->staged_next;
        }
    }
}
