#include "unpack.h"

#include <pthread.h>
#include <string.h>

static inline uint32_t ks_le32(const uint8_t *p) {
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

/* Copies `size` bytes from `distance` bytes back, in steps of up to 16 bytes; source and target may overlap. */
static inline void ks_copy_back(uint8_t *to, size_t distance, size_t size) {
    const uint8_t *from = to - distance;
    if (distance >= 16) {
        for (size_t i = 0; i < size; i += 16) memcpy(to + i, from + i, 16);
    } else if (distance >= 8) {
        for (size_t i = 0; i < size; i += 8) memcpy(to + i, from + i, 8);
    } else {
        /* The pattern repeats. `whole`: the lowest multiple of its size >= 8, written first and then copied. */
        size_t whole = distance * (8 / distance + (8 % distance != 0));
        size_t first = size < whole ? size : whole;
        for (size_t i = 0; i < first; i++) to[i] = from[i];
        for (size_t i = first; i < size; i += 8) memcpy(to + i, to + i - whole, 8);
    }
}

/* ---- LZ4 -------------------------------------------------------------------------------------------------------- */

static inline uint16_t ks_le16(const uint8_t *p) {
    uint16_t number;
    memcpy(&number, p, sizeof number); /* one load, unlike two combined bytes */
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    number = __builtin_bswap16(number);
#endif
    return number;
}

/* Copies 8 bytes from `distance` bytes back; returns the source of the following ones, at least 8 bytes before them. */
static inline const uint8_t *ks_copy_first_8(uint8_t *to, size_t distance) {
    const uint8_t *from = to - distance;
    if (__builtin_expect(distance >= 8, 1)) {
        memcpy(to, from, 8);
        return from + 8;
    }
    /* The pattern repeats. For each distance: the source of the second 4 bytes; the lowest multiple that is >= 8. */
    static const uint8_t second[8] = {0, 0, 0, 1, 0, 4, 4, 4}, whole[8] = {0, 8, 8, 9, 8, 10, 12, 14};
    for (int i = 0; i < 4; i++) to[i] = from[i];
    memcpy(to + 4, from + second[distance], 4);
    return to + 8 - whole[distance];
}

/* Reads a length that continues in further bytes; returns -1 at the end of the input. */
static inline int64_t ks_lz4_more(const uint8_t **at, const uint8_t *end, int64_t length) {
    const uint8_t *p = *at;
    for (;;) {
        if (p >= end) return -1;
        length += *p;
        if (*p++ != 255) break;
    }
    *at = p;
    return length;
}

#define KS_LZ4_FAR 64 /* at this distance from both ends, the fixed-size copies of a short sequence stay inside */

/* Matches of up to 18 bytes have their size in the token, longer ones in further bytes. */
enum { KS_LZ4_SHORT = 18, KS_LZ4_LONGER = 32 };

static int64_t ks_lz4_longer(const uint8_t *p, const uint8_t *end, uint8_t *out, uint8_t *to, uint8_t *out_end);

/* Decompresses the rest of a block from `p` on into [out, out_end); [to, out) is already written. Returns the size of
   the whole block, or KS_NOT_MINE. The end of a block must follow the format: the last match ends at least 5 bytes
   before the output does, and starts at least 12 bytes before. `longer`: many matches have 19 to 32 bytes. */
static inline __attribute__((always_inline)) int64_t
ks_lz4_rest(const uint8_t *p, const uint8_t *end, uint8_t *out, uint8_t *to, uint8_t *out_end, const int longer) {
    const uint8_t *begin = p, *far_end = end - p > KS_LZ4_FAR ? end - KS_LZ4_FAR : p;
    uint8_t *far_out_end = out_end - out > KS_LZ4_FAR ? out_end - KS_LZ4_FAR : out;
    int64_t longer_n = 0;
    for (;;) {
        /* The common sequences, of fewer than 15 literals and matches of at most 18 bytes: the token alone determines
           the position of the next one, and a match of any distance starts with a copy of 8 bytes. */
        while (!longer && p < far_end && out < far_out_end) {
            size_t literals = *p, match = literals & 15;
            literals >>= 4;
            if (__builtin_expect(literals == 15, 0) || __builtin_expect(match == 15, 0)) break;
            memcpy(out, p + 1, 16);
            out += literals;
            p += literals + 3;
            size_t distance = ks_le16(p - 2);
            if (distance - 1 >= (size_t)(out - to)) return KS_NOT_MINE;
            match += 4;
            const uint8_t *from = ks_copy_first_8(out, distance);
            memcpy(out + 8, from, 8);
            if (__builtin_expect(match > 16, 0)) memcpy(out + 16, from + 8, 2);
            out += match;
        }
        /* The same with matches of at most 32 bytes. Always copies 32: that costs less than an unpredictable branch. */
        while (longer && p < far_end && out < far_out_end) {
            size_t literals = *p, match = literals & 15, has_more = match == 15;
            literals >>= 4;
            if (__builtin_expect(literals == 15, 0)) break;
            memcpy(out, p + 1, 16);
            const uint8_t *behind = p + 1 + literals;
            size_t distance = ks_le16(behind), more = behind[2] & (0 - has_more);
            if (__builtin_expect(more > KS_LZ4_LONGER - KS_LZ4_SHORT - 1, 0)) break;
            if (distance - 1 >= (size_t)(out + literals - to)) return KS_NOT_MINE;
            out += literals;
            p = behind + 2 + has_more;
            if (__builtin_expect(distance >= 16, 1)) {
                memcpy(out, out - distance, 16);
                memcpy(out + 16, out + 16 - distance, 16);
            } else {
                const uint8_t *from = ks_copy_first_8(out, distance);
                for (int i = 0; i < 24; i += 8) memcpy(out + 8 + i, from + i, 8);
            }
            out += match + 4 + more;
        }
        if (p >= end) return KS_NOT_MINE;
        uint8_t token = *p++;
        int64_t literals = token >> 4;
        if (literals == 15 && (literals = ks_lz4_more(&p, end, 15)) < 0) return KS_NOT_MINE;
        if (literals > end - p || literals > out_end - out) return KS_NOT_MINE;
        if (literals <= 32 && end - p >= 32) {
            memcpy(out, p, 16);
            memcpy(out + 16, p + 16, 16);
        } else {
            memcpy(out, p, (size_t)literals);
        }
        out += literals;
        p += literals;
        if (p == end) return literals >= 5 || out - to == literals ? out - to : KS_NOT_MINE;
        if (end - p < 8 || out_end - out < 12) return KS_NOT_MINE;
        size_t distance = (size_t)(p[0] | p[1] << 8);
        p += 2;
        int64_t match = token & 15;
        if (match == 15 && (match = ks_lz4_more(&p, end, 15)) < 0) return KS_NOT_MINE;
        match += 4;
        longer_n += match > KS_LZ4_SHORT && match <= KS_LZ4_LONGER && literals < 15;
        if (distance == 0 || distance > (size_t)(out - to) || match > out_end - out - 5) return KS_NOT_MINE;
        ks_copy_back(out, distance, (size_t)match);
        out += match;
        if (!longer && longer_n > 8 && longer_n > (p - begin) / 64) return ks_lz4_longer(p, end, out, to, out_end);
    }
}

static __attribute__((noinline)) int64_t ks_lz4_longer(const uint8_t *p, const uint8_t *end, uint8_t *out, uint8_t *to,
                                                       uint8_t *out_end) {
    return ks_lz4_rest(p, end, out, to, out_end, 1);
}

/* Decompresses one block into at most `capacity` bytes; returns the size, or KS_NOT_MINE. */
static int64_t ks_lz4_block(const uint8_t *p, size_t n, uint8_t *to, size_t capacity) {
    return ks_lz4_rest(p, p + n, to, to, to + capacity, 0);
}

/* The second byte of the xxHash32 (seed 0) of a frame descriptor of fewer than 16 bytes. */
static uint8_t ks_lz4_header_checksum(const uint8_t *p, size_t n) {
    uint32_t h = 374761393u + (uint32_t)n;
    size_t at = 0;
    for (; at + 4 <= n; at += 4) {
        h += ks_le32(p + at) * 3266489917u;
        h = (h << 17 | h >> 15) * 668265263u;
    }
    for (; at < n; at++) {
        h += p[at] * 374761393u;
        h = (h << 11 | h >> 21) * 2654435761u;
    }
    h = (h ^ h >> 15) * 2246822519u;
    h = (h ^ h >> 13) * 3266489917u;
    return (uint8_t)((h ^ h >> 16) >> 8);
}

static int64_t ks_unpack_lz4(const uint8_t *p, size_t n, ks_output *out, int64_t limit) {
    const uint8_t *end = p + n;
    if (n < 11 || ks_le32(p) != 0x184d2204u) return KS_NOT_MINE;
    uint8_t flags = p[4], sizes = p[5];
    size_t descriptor = flags & 0x08 ? 10 : 2;
    if (flags >> 6 != 1 || (flags & 0x33) != 0x20 || sizes & 0x8f || sizes >> 4 < 4) return KS_NOT_MINE;
    if (n < 4 + descriptor + 1 || p[4 + descriptor] != ks_lz4_header_checksum(p + 4, descriptor)) return KS_NOT_MINE;
    size_t largest = (size_t)1 << (8 + 2 * (sizes >> 4));
    int64_t used = 0;
    for (p += 4 + descriptor + 1;;) {
        if (end - p < 4) return KS_NOT_MINE;
        uint32_t mark = ks_le32(p), size = mark & 0x7fffffff;
        p += 4;
        if (mark == 0) return used;
        if (size > largest || size > (size_t)(end - p) || used > limit) return KS_NOT_MINE;
        size_t wanted = (size_t)used + (mark >> 31 ? size : largest);
        if (wanted > out->capacity && out->room(out, (size_t)used, wanted)) return KS_NOT_MINE;
        int64_t made = size;
        if (mark >> 31) {
            if (size > 0) memcpy(out->p + used, p, size); /* without any output, out->p may be NULL */
        } else if ((made = ks_lz4_block(p, size, out->p + used, largest)) < 0) return KS_NOT_MINE;
        p += size;
        used += made;
        if (used > limit) return KS_NOT_MINE;
    }
}

/* ---- snappy ----------------------------------------------------------------------------------------------------- */

/* Decompresses one raw block after `used` bytes of output; returns the new size of the output, or KS_NOT_MINE. */
static int64_t ks_snappy_block(const uint8_t *p, size_t n, ks_output *out, int64_t used, int64_t limit) {
    const uint8_t *end = p + n;
    uint64_t size = 0;
    for (int shift = 0;; shift += 7) {
        if (p >= end || shift > 28) return KS_NOT_MINE;
        size |= (uint64_t)(*p & 0x7f) << shift;
        if (*p++ < 0x80) break;
    }
    if (size > 64 * (uint64_t)n || (int64_t)size > limit - used) return KS_NOT_MINE;
    size_t wanted = (size_t)used + (size_t)size;
    if (wanted > out->capacity && out->room(out, (size_t)used, wanted)) return KS_NOT_MINE;
    uint8_t *begin = out->p + used, *to = begin, *to_end = begin + size;
    while (p < end) {
        uint8_t tag = *p++;
        size_t length, distance;
        if ((tag & 3) == 0) {
            length = tag >> 2;
            if (length >= 60) {
                size_t bytes = length - 59;
                if ((size_t)(end - p) < bytes) return KS_NOT_MINE;
                length = 0;
                for (size_t i = 0; i < bytes; i++) length |= (size_t)p[i] << (8 * i);
                p += bytes;
            }
            length++;
            if (length > (size_t)(end - p) || length > (size_t)(to_end - to)) return KS_NOT_MINE;
            if (length <= 32 && end - p >= 32) {
                memcpy(to, p, 16);
                memcpy(to + 16, p + 16, 16);
            } else {
                memcpy(to, p, length);
            }
            to += length;
            p += length;
            continue;
        }
        size_t bytes = (tag & 3) == 3 ? 4 : (size_t)(tag & 3);
        if ((size_t)(end - p) < bytes) return KS_NOT_MINE;
        if (bytes == 1) {
            length = 4 + (tag >> 2 & 7);
            distance = (size_t)(tag >> 5) << 8 | p[0];
        } else {
            length = 1 + (tag >> 2);
            distance = bytes == 2 ? (size_t)(p[0] | p[1] << 8) : ks_le32(p);
        }
        p += bytes;
        if (distance == 0 || distance > (size_t)(to - begin) || length > (size_t)(to_end - to)) return KS_NOT_MINE;
        ks_copy_back(to, distance, length);
        to += length;
    }
    return to == to_end ? (int64_t)wanted : KS_NOT_MINE;
}

/* Decompresses Xerial's stream, a header of 16 bytes and blocks, or one raw block. */
static int64_t ks_unpack_snappy(const uint8_t *p, size_t n, ks_output *out, int64_t limit) {
    static const uint8_t magic[8] = {0x82, 'S', 'N', 'A', 'P', 'P', 'Y', 0};
    const uint8_t *end = p + n;
    int64_t used = 0;
    if (n < 16 || memcmp(p, magic, 8) != 0) return n == 0 ? KS_NOT_MINE : ks_snappy_block(p, n, out, 0, limit);
    for (p += 16; end - p >= 4;) {
        uint32_t size = (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
        p += 4;
        if (size > (size_t)(end - p)) return KS_NOT_MINE; /* another header, or damage */
        if ((used = ks_snappy_block(p, size, out, used, limit)) < 0) return KS_NOT_MINE;
        p += size;
    }
    return used;
}

/* ---- zstd ------------------------------------------------------------------------------------------------------- */

/* The library's functions, if `ks_zstd_setup` has stored them; each thread has its own context. */
static struct {
    void *(*new_context)(void);
    size_t (*free_context)(void *context);
    size_t (*decompress)(void *context, void *to, size_t capacity, const void *from, size_t n);
    unsigned (*is_error)(size_t made);
} ks_zstd;
static pthread_key_t ks_zstd_context;

static void ks_zstd_forget(void *context) { ks_zstd.free_context(context); }

int ks_zstd_setup(void *new_context, void *free_context, void *decompress, void *is_error) {
    if (!new_context || !free_context || !decompress || !is_error) return 0;
    if (pthread_key_create(&ks_zstd_context, ks_zstd_forget)) return 0;
    memcpy(&ks_zstd.new_context, &new_context, sizeof new_context); /* ISO C cannot cast these pointers to functions */
    memcpy(&ks_zstd.free_context, &free_context, sizeof free_context);
    memcpy(&ks_zstd.is_error, &is_error, sizeof is_error);
    memcpy(&ks_zstd.decompress, &decompress, sizeof decompress);
    return 1;
}

enum { KS_ZSTD_BLOCK = 128 << 10, KS_ZSTD_MOST = 64 << 20 };

/* The largest size that a frame can decompress to, by its blocks. Returns KS_NOT_MINE unless the frame ends with the
   data. Also returns it if the frame exceeds its window or a block exceeds the limit of blocks: the library accepts
   such frames when it decompresses in one call, but not in a stream. */
static int64_t ks_zstd_bound(const uint8_t *p, size_t n) {
    static const uint8_t sizes[4] = {0, 2, 4, 8};
    const uint8_t *end = p + n;
    if (n < 9 || ks_le32(p) != 0xfd2fb528u || p[4] & 0x0b) return KS_NOT_MINE; /* a dictionary, or a reserved bit */
    int single = p[4] >> 5 & 1, size_of_size = p[4] >> 6;
    size_t tail = p[4] & 4 ? 4 : 0, head = 5 + (single && !size_of_size ? 1 : (size_t)!single + sizes[size_of_size]);
    int64_t bound = 0, window = KS_ZSTD_MOST;
    if (!single) {
        if (p[5] >> 3 > 15) return KS_NOT_MINE; /* 64 MiB and more */
        window = (int64_t)1 << (10 + (p[5] >> 3));
        window += window / 8 * (p[5] & 7);
    }
    if (n < head + tail) return KS_NOT_MINE;
    const int64_t most = window < KS_ZSTD_BLOCK ? window : KS_ZSTD_BLOCK;
    for (p += head;;) {
        if (end - p < 3) return KS_NOT_MINE;
        uint32_t block = (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16, size = block >> 3;
        int kind = block >> 1 & 3; /* types of blocks: raw, one byte repeated, compressed */
        p += 3;
        if (kind == 3 || (kind == 1 ? 1 : size) > (size_t)(end - p)) return KS_NOT_MINE;
        p += kind == 1 ? 1 : size;
        if (size > most) return KS_NOT_MINE;
        bound += kind < 2 ? size : most;
        if (bound > window) return KS_NOT_MINE;
        if (block & 1) break;
    }
    return (size_t)(end - p) == tail ? bound : KS_NOT_MINE;
}

static int64_t ks_unpack_zstd(const uint8_t *p, size_t n, ks_output *out, int64_t limit) {
    int64_t bound = ks_zstd.decompress ? ks_zstd_bound(p, n) : KS_NOT_MINE;
    if (bound > limit) bound = limit; /* the library refuses a frame that needs more space */
    if (bound < 0 || ((size_t)bound > out->capacity && out->room(out, 0, (size_t)bound))) return KS_NOT_MINE;
    void *context = pthread_getspecific(ks_zstd_context);
    if (!context) {
        if (!(context = ks_zstd.new_context())) return KS_NOT_MINE;
        if (pthread_setspecific(ks_zstd_context, context)) {
            ks_zstd.free_context(context);
            return KS_NOT_MINE;
        }
    }
    size_t made = ks_zstd.decompress(context, out->p, (size_t)bound, p, n);
    return ks_zstd.is_error(made) ? KS_NOT_MINE : (int64_t)made;
}

int64_t ks_unpack_natively(int codec, const uint8_t *p, size_t n, ks_output *out, int64_t limit) {
    if (codec == KS_CODEC_LZ4) return ks_unpack_lz4(p, n, out, limit);
    if (codec == KS_CODEC_SNAPPY) return ks_unpack_snappy(p, n, out, limit);
    if (codec == KS_CODEC_ZSTD) return ks_unpack_zstd(p, n, out, limit);
    return KS_NOT_MINE;
}
