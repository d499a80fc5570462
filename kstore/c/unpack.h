/* Decompresses, without Python, the LZ4 frames and zstd frames that Kafka's clients write, by liblz4 and libzstd.

   If a payload is not clearly sound, or if setup.py has not linked the codec's library, the result is KS_NOT_MINE, and
   the caller must use codec/compression.py. Each length in the input is checked before use. */
#ifndef KSTORE_UNPACK_H
#define KSTORE_UNPACK_H

#include <stddef.h>
#include <stdint.h>

#define KS_NOT_MINE (-1)

enum { KS_CODEC_LZ4 = 3, KS_CODEC_ZSTD = 4 };

/* Memory for the output; `room` enlarges it. */
typedef struct ks_output {
    uint8_t *p;      /* start of the output */
    size_t capacity; /* bytes of the output */
    int (*room)(struct ks_output *out, size_t used, size_t capacity); /* 0, or -1 without memory */
    void *context;
} ks_output;

/* The versions of the libraries; NULL for one that is not linked. */
const char *ks_lz4_version(void);
const char *ks_zstd_version(void);

/* Decompresses the payload of a batch of format v2; returns the size, or KS_NOT_MINE. */
int64_t ks_unpack_natively(int codec, const uint8_t *p, size_t n, ks_output *out, int64_t limit);

/* ---- Consecutive zstd frames, piece by piece -------------------------------------------------------------------- */

/* A new stream; NULL without the library or without memory. */
void *ks_zstd_stream(void);
void ks_zstd_stream_free(void *stream);

/* Decompresses from `p` into `to`; sets `used` to the bytes read and `*inside` unless a frame has just ended. Returns
   the bytes written, or -1 after setting `*error`. */
int64_t ks_zstd_stream_read(void *stream, const uint8_t *p, size_t n, size_t *used, uint8_t *to, size_t room,
                            int *inside, const char **error);

#endif
