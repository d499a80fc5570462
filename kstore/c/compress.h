/* Compresses LZ4 frames and zstd frames without Python, by liblz4 and libzstd.

   If setup.py has not linked a codec's library, the result is KS_NOT_MINE, and the caller must use
   codec/compression.py. */
#ifndef KSTORE_COMPRESS_H
#define KSTORE_COMPRESS_H

#include <stddef.h>
#include <stdint.h>

/* The most bytes that `n` bytes may have when compressed; 0 for a codec without a library. */
size_t ks_compress_bound(int codec, size_t n);

/* Compresses into `to`, which has `room` bytes (at least the bound); returns the size, or KS_NOT_MINE. */
int64_t ks_compress(int codec, int level, const uint8_t *p, size_t n, uint8_t *to, size_t room);

#endif
