#include "compress.h"

#include <pthread.h>
#include <string.h>

#include "unpack.h"

/* ISO C has no cast from an object pointer to a function pointer. */
#define KS_TAKE(function, symbol) memcpy(&(function), &(symbol), sizeof(symbol))

/* ---- LZ4 -------------------------------------------------------------------------------------------------------- */

/* LZ4F_preferences_t of lz4frame.h, as in versions 1.7 and later. */
typedef struct {
    struct {
        int block_size_id, independent, content_checksum, frame_type;
        unsigned long long content_size;
        unsigned dictionary_id;
        int block_checksum;
    } frame;
    int level;
    unsigned flush, favor_decompression, reserved[3];
} ks_lz4_preferences;

static struct {
    size_t (*bound)(size_t n, const ks_lz4_preferences *preferences);
    size_t (*compress)(void *to, size_t room, const void *p, size_t n, const ks_lz4_preferences *preferences);
    unsigned (*is_error)(size_t made);
} ks_lz4;

int ks_lz4_compress_setup(void *bound, void *compress, void *is_error) {
    if (!bound || !compress || !is_error) return 0;
    KS_TAKE(ks_lz4.bound, bound);
    KS_TAKE(ks_lz4.is_error, is_error);
    KS_TAKE(ks_lz4.compress, compress);
    return 1;
}

/* Independent blocks of 64 KiB, without sizes and checksums, as Kafka's producers write them. */
static ks_lz4_preferences ks_lz4_as_kafka(int level) {
    ks_lz4_preferences preferences;
    memset(&preferences, 0, sizeof preferences);
    preferences.frame.block_size_id = 4;
    preferences.frame.independent = 1;
    preferences.level = level;
    return preferences;
}

/* ---- zstd ------------------------------------------------------------------------------------------------------- */

enum { KS_ZSTD_LEVEL = 100, KS_ZSTD_CONTENT_SIZE = 200 }; /* ZSTD_cParameter of zstd.h */

static struct {
    void *(*new_context)(void);
    size_t (*free_context)(void *context);
    size_t (*set)(void *context, int parameter, int value);
    size_t (*bound)(size_t n);
    size_t (*compress)(void *context, void *to, size_t room, const void *p, size_t n);
    unsigned (*is_error)(size_t made);
} ks_zstd;
static pthread_key_t ks_context;

static void ks_forget(void *context) { ks_zstd.free_context(context); }

int ks_zstd_compress_setup(void *new_context, void *free_context, void *set, void *bound, void *compress,
                           void *is_error) {
    if (!new_context || !free_context || !set || !bound || !compress || !is_error) return 0;
    if (pthread_key_create(&ks_context, ks_forget)) return 0;
    KS_TAKE(ks_zstd.new_context, new_context);
    KS_TAKE(ks_zstd.free_context, free_context);
    KS_TAKE(ks_zstd.set, set);
    KS_TAKE(ks_zstd.bound, bound);
    KS_TAKE(ks_zstd.is_error, is_error);
    KS_TAKE(ks_zstd.compress, compress);
    return 1;
}

/* The context of this thread; NULL without memory. */
static void *ks_own_context(void) {
    void *context = pthread_getspecific(ks_context);
    if (context || !(context = ks_zstd.new_context())) return context;
    if (!pthread_setspecific(ks_context, context)) return context;
    ks_zstd.free_context(context);
    return NULL;
}

static int64_t ks_compress_zstd(int level, const uint8_t *p, size_t n, uint8_t *to, size_t room) {
    void *context = ks_own_context();
    if (!context || ks_zstd.is_error(ks_zstd.set(context, KS_ZSTD_LEVEL, level)) ||
        ks_zstd.is_error(ks_zstd.set(context, KS_ZSTD_CONTENT_SIZE, 0)))
        return KS_NOT_MINE;
    size_t made = ks_zstd.compress(context, to, room, p, n);
    return ks_zstd.is_error(made) ? KS_NOT_MINE : (int64_t)made;
}

/* ---- By codec --------------------------------------------------------------------------------------------------- */

size_t ks_compress_bound(int codec, size_t n) {
    if (codec == KS_CODEC_LZ4 && ks_lz4.compress) {
        ks_lz4_preferences preferences = ks_lz4_as_kafka(0);
        return ks_lz4.bound(n, &preferences);
    }
    return codec == KS_CODEC_ZSTD && ks_zstd.compress ? ks_zstd.bound(n) : 0;
}

int64_t ks_compress(int codec, int level, const uint8_t *p, size_t n, uint8_t *to, size_t room) {
    if (codec == KS_CODEC_LZ4 && ks_lz4.compress) {
        ks_lz4_preferences preferences = ks_lz4_as_kafka(level);
        size_t made = ks_lz4.compress(to, room, p, n, &preferences);
        return ks_lz4.is_error(made) ? KS_NOT_MINE : (int64_t)made;
    }
    return codec == KS_CODEC_ZSTD && ks_zstd.compress ? ks_compress_zstd(level, p, n, to, room) : KS_NOT_MINE;
}
