/* Compresses LZ4 frames and zstd frames without Python, by functions of the libraries behind codec/compression.py.

   The bytes are those that codec/compression.py writes for the same data. If a library's functions are missing, the
   result is KS_NOT_MINE, and that file must be used. */
#ifndef KSTORE_COMPRESS_H
#define KSTORE_COMPRESS_H

#include <stddef.h>
#include <stdint.h>

/* Store the functions of a library; return 1, or 0 if one is missing. Called once, before any thread compresses. */
int ks_lz4_compress_setup(void *bound, void *compress, void *is_error);
int ks_zstd_compress_setup(void *new_context, void *free_context, void *set, void *bound, void *compress,
                           void *is_error);

/* The most bytes that `n` bytes may have when compressed; 0 for a codec without functions. */
size_t ks_compress_bound(int codec, size_t n);

/* Compresses into `room` bytes (at least the bound) with a level of the library; returns the size, or KS_NOT_MINE. */
int64_t ks_compress(int codec, int level, const uint8_t *p, size_t n, uint8_t *to, size_t room);

#endif
