#include "unpack.h"

#include <string.h>

#ifdef KS_HAVE_LZ4
#include <lz4.h>
#endif
#ifdef KS_HAVE_ZSTD
#include <pthread.h>
#include <zstd.h>
#endif

static inline uint32_t ks_le32(const uint8_t *p) {
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

/* ---- LZ4 -------------------------------------------------------------------------------------------------------- */

#ifdef KS_HAVE_LZ4

const char *ks_lz4_version(void) { return LZ4_versionString(); }

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

/* Kafka's rules for frames are not those of the library's reader of frames: its reader of blocks is used. */
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
        int made = (int)size;
        if (mark >> 31) {
            if (size > 0) memcpy(out->p + used, p, size); /* without any output, out->p may be NULL */
        } else {
            made = LZ4_decompress_safe((const char *)p, (char *)out->p + used, (int)size, (int)largest);
            if (made < 0) return KS_NOT_MINE;
        }
        p += size;
        used += made;
        if (used > limit) return KS_NOT_MINE;
    }
}

#else

const char *ks_lz4_version(void) { return NULL; }

static int64_t ks_unpack_lz4(const uint8_t *p, size_t n, ks_output *out, int64_t limit) {
    (void)p, (void)n, (void)out, (void)limit;
    return KS_NOT_MINE;
}

#endif

/* ---- zstd ------------------------------------------------------------------------------------------------------- */

#ifdef KS_HAVE_ZSTD

const char *ks_zstd_version(void) { return ZSTD_versionString(); }

static pthread_key_t ks_context; /* each thread keeps its own */
static pthread_once_t ks_context_once = PTHREAD_ONCE_INIT;
static int ks_context_failed;

static void ks_forget(void *context) { ZSTD_freeDCtx(context); }

static void ks_make_key(void) { ks_context_failed = pthread_key_create(&ks_context, ks_forget); }

/* The context of this thread; NULL without memory. */
static ZSTD_DCtx *ks_own_context(void) {
    if (pthread_once(&ks_context_once, ks_make_key) || ks_context_failed) return NULL;
    ZSTD_DCtx *context = pthread_getspecific(ks_context);
    if (context || !(context = ZSTD_createDCtx())) return context;
    if (!pthread_setspecific(ks_context, context)) return context;
    ZSTD_freeDCtx(context);
    return NULL;
}

enum { KS_ZSTD_MOST = 64 << 20 };

/* The largest size that a frame can decompress to, by its blocks. Returns KS_NOT_MINE unless the frame ends with the
   data. Also returns it if the frame exceeds its window or a block exceeds the limit of blocks: the library accepts
   such frames when it decompresses in one call, but not in a stream. */
static int64_t ks_zstd_bound(const uint8_t *p, size_t n) {
    static const uint8_t sizes[4] = {0, 2, 4, 8};
    const uint8_t *end = p + n;
    if (n < 9 || ks_le32(p) != ZSTD_MAGICNUMBER || p[4] & 0x0b) return KS_NOT_MINE; /* a dictionary, a reserved bit */
    int single = p[4] >> 5 & 1, size_of_size = p[4] >> 6;
    size_t tail = p[4] & 4 ? 4 : 0, head = 5 + (single && !size_of_size ? 1 : (size_t)!single + sizes[size_of_size]);
    int64_t bound = 0, window = KS_ZSTD_MOST;
    if (!single) {
        if (p[5] >> 3 > 15) return KS_NOT_MINE; /* 64 MiB and more */
        window = (int64_t)1 << (10 + (p[5] >> 3));
        window += window / 8 * (p[5] & 7);
    }
    if (n < head + tail) return KS_NOT_MINE;
    const int64_t most = window < ZSTD_BLOCKSIZE_MAX ? window : ZSTD_BLOCKSIZE_MAX;
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
    int64_t bound = ks_zstd_bound(p, n);
    if (bound > limit) bound = limit; /* the library refuses a frame that needs more space */
    if (bound < 0 || ((size_t)bound > out->capacity && out->room(out, 0, (size_t)bound))) return KS_NOT_MINE;
    ZSTD_DCtx *context = ks_own_context();
    if (!context) return KS_NOT_MINE;
    size_t made = ZSTD_decompressDCtx(context, out->p, (size_t)bound, p, n);
    return ZSTD_isError(made) ? KS_NOT_MINE : (int64_t)made;
}

void *ks_zstd_stream(void) { return ZSTD_createDStream(); }

void ks_zstd_stream_free(void *stream) { ZSTD_freeDStream(stream); }

int64_t ks_zstd_stream_read(void *stream, const uint8_t *p, size_t n, size_t *used, uint8_t *to, size_t room,
                            int *inside, const char **error) {
    ZSTD_inBuffer in = {p, n, 0};
    ZSTD_outBuffer out = {to, room, 0};
    size_t result = ZSTD_decompressStream(stream, &out, &in);
    *used = in.pos;
    if (ZSTD_isError(result)) {
        *error = ZSTD_getErrorName(result);
        return -1;
    }
    if (in.pos || out.pos) *inside = result != 0; /* a call that does nothing asks for a frame, too */
    return (int64_t)out.pos;
}

#else

const char *ks_zstd_version(void) { return NULL; }

static int64_t ks_unpack_zstd(const uint8_t *p, size_t n, ks_output *out, int64_t limit) {
    (void)p, (void)n, (void)out, (void)limit;
    return KS_NOT_MINE;
}

void *ks_zstd_stream(void) { return NULL; }

void ks_zstd_stream_free(void *stream) { (void)stream; }

int64_t ks_zstd_stream_read(void *stream, const uint8_t *p, size_t n, size_t *used, uint8_t *to, size_t room,
                            int *inside, const char **error) {
    (void)stream, (void)p, (void)n, (void)used, (void)to, (void)room, (void)inside, (void)error;
    return -1;
}

#endif

int64_t ks_unpack_natively(int codec, const uint8_t *p, size_t n, ks_output *out, int64_t limit) {
    if (codec == KS_CODEC_LZ4) return ks_unpack_lz4(p, n, out, limit);
    if (codec == KS_CODEC_ZSTD) return ks_unpack_zstd(p, n, out, limit);
    return KS_NOT_MINE;
}
