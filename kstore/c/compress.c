#include "compress.h"

#include "unpack.h"

#ifdef KS_HAVE_LZ4
#include <lz4frame.h>
#endif
#ifdef KS_HAVE_ZSTD
#include <pthread.h>
#include <zstd.h>
#endif

#ifdef KS_HAVE_LZ4

/* Independent blocks of 64 KiB, without sizes and checksums, as Kafka's producers write them. */
static LZ4F_preferences_t ks_lz4_as_kafka(int level) {
    LZ4F_preferences_t preferences = LZ4F_INIT_PREFERENCES;
    preferences.frameInfo.blockSizeID = LZ4F_max64KB;
    preferences.frameInfo.blockMode = LZ4F_blockIndependent;
    preferences.compressionLevel = level;
    return preferences;
}

static size_t ks_lz4_bound(size_t n) {
    LZ4F_preferences_t preferences = ks_lz4_as_kafka(0);
    return LZ4F_compressFrameBound(n, &preferences);
}

static int64_t ks_compress_lz4(int level, const uint8_t *p, size_t n, uint8_t *to, size_t room) {
    LZ4F_preferences_t preferences = ks_lz4_as_kafka(level);
    size_t made = LZ4F_compressFrame(to, room, p, n, &preferences);
    return LZ4F_isError(made) ? KS_NOT_MINE : (int64_t)made;
}

#endif
#ifdef KS_HAVE_ZSTD

static pthread_key_t ks_context; /* each thread keeps its own */
static pthread_once_t ks_context_once = PTHREAD_ONCE_INIT;
static int ks_context_failed;

static void ks_forget(void *context) { ZSTD_freeCCtx(context); }

static void ks_make_key(void) { ks_context_failed = pthread_key_create(&ks_context, ks_forget); }

/* The context of this thread; NULL without memory. */
static ZSTD_CCtx *ks_own_context(void) {
    if (pthread_once(&ks_context_once, ks_make_key) || ks_context_failed) return NULL;
    ZSTD_CCtx *context = pthread_getspecific(ks_context);
    if (context || !(context = ZSTD_createCCtx())) return context;
    if (!pthread_setspecific(ks_context, context)) return context;
    ZSTD_freeCCtx(context);
    return NULL;
}

static int64_t ks_compress_zstd(int level, const uint8_t *p, size_t n, uint8_t *to, size_t room) {
    ZSTD_CCtx *context = ks_own_context();
    if (!context || ZSTD_isError(ZSTD_CCtx_setParameter(context, ZSTD_c_compressionLevel, level)) ||
        ZSTD_isError(ZSTD_CCtx_setParameter(context, ZSTD_c_contentSizeFlag, 0)))
        return KS_NOT_MINE;
    size_t made = ZSTD_compress2(context, to, room, p, n);
    return ZSTD_isError(made) ? KS_NOT_MINE : (int64_t)made;
}

#endif

size_t ks_compress_bound(int codec, size_t n) {
#ifdef KS_HAVE_LZ4
    if (codec == KS_CODEC_LZ4) return ks_lz4_bound(n);
#endif
#ifdef KS_HAVE_ZSTD
    if (codec == KS_CODEC_ZSTD) return ZSTD_compressBound(n);
#endif
    (void)codec, (void)n;
    return 0;
}

int64_t ks_compress(int codec, int level, const uint8_t *p, size_t n, uint8_t *to, size_t room) {
#ifdef KS_HAVE_LZ4
    if (codec == KS_CODEC_LZ4) return ks_compress_lz4(level, p, n, to, room);
#endif
#ifdef KS_HAVE_ZSTD
    if (codec == KS_CODEC_ZSTD) return ks_compress_zstd(level, p, n, to, room);
#endif
    (void)codec, (void)level, (void)p, (void)n, (void)to, (void)room;
    return KS_NOT_MINE;
}
