/* Copies finished rows into the columns, and bypasses the caches if the columns are too large for them.

   A plain store to memory that is not in a cache makes the processor read the line first. Stores of whole lines that
   bypass the caches avoid this, and halve the time of a copy. For memory in a cache, plain stores are faster. */
#ifndef KSTORE_COPY_H
#define KSTORE_COPY_H

#include "columns/rows.h"

#define KS_UNCACHED_FROM ((size_t)6 << 20) /* copies bypass the caches if a column has this many bytes */

/* Copies `n` bytes. With `uncached` it bypasses the caches: `ks_copy_fence` must follow before another thread reads. */
void ks_copy_rows(uint8_t *to, const uint8_t *from, size_t n, int uncached);

void ks_copy_fence(void);

/* Copies all of `from`, which has `count` rows, to row `n` and byte `used` of `to`, which has space for it. */
void ks_copy_var(ks_var *to, int64_t n, int64_t used, const ks_var *from, int64_t count, const int32_t *buffers,
                 int uncached);

#endif
