/* Compresses LZ4 frames and zstd frames without Python, by functions of the libraries behind codec/compression.py.

   The output is the same as that of codec/compression.py. If a library's functions are missing, the result is
   KS_NOT_MINE, and the caller must use codec/compression.py. */
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

/* Compresses into `to`, which has `room` bytes (at least the bound); returns the size, or KS_NOT_MINE. */
int64_t ks_compress(int codec, int level, const uint8_t *p, size_t n, uint8_t *to, size_t room);

#endif
