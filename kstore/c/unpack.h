/* Decompresses, without Python, the LZ4 frames, snappy streams and zstd frames that Kafka's clients write.

   The libraries behind codec/compression.py decide what is damaged: if a payload is not clearly sound, the result is
   KS_NOT_MINE, and the caller must use them. Each length in the input is checked before use. */
#ifndef KSTORE_UNPACK_H
#define KSTORE_UNPACK_H

#include <stddef.h>
#include <stdint.h>

#define KS_NOT_MINE (-1)

enum { KS_CODEC_SNAPPY = 2, KS_CODEC_LZ4 = 3, KS_CODEC_ZSTD = 4 };

#define KS_WILD 32 /* bytes that a fast copy may write past its end; every target has as much extra space */

/* Memory for the output; `room` enlarges it. */
typedef struct ks_output {
    uint8_t *p;      /* start of the output */
    size_t capacity; /* bytes of the output, without KS_WILD */
    int (*room)(struct ks_output *out, size_t used, size_t capacity); /* 0, or -1 without memory */
    void *context;
} ks_output;

/* Stores the functions of a zstd library; returns 1, or 0 if one is missing. Called once, before any thread reads. */
int ks_zstd_setup(void *new_context, void *free_context, void *decompress, void *is_error);

/* Decompresses the payload of a batch of format v2; returns the size, or KS_NOT_MINE. */
int64_t ks_unpack_natively(int codec, const uint8_t *p, size_t n, ks_output *out, int64_t limit);

#endif
