/* Columns as arrays of the Arrow C data interface; an array holds the blocks that it points into.

   A query engine releases arrays on any thread, and may first move children out of their parent. So each array holds
   its own blocks, and releasing it needs neither Python nor the GIL. */
#ifndef KSTORE_ARROW_H
#define KSTORE_ARROW_H

#include "columns/arrow_c.h"
#include "columns/blocks.h"

/* Makes an array with this many empty buffers and children; returns 0, or -1 without memory. */
int ks_make_array(struct ArrowArray *out, int64_t length, int64_t nulls, int64_t buffers, int64_t children);

/* Sets buffer `i` of the array to `p`, inside `block`, which the array then holds. */
void ks_set_buffer(struct ArrowArray *array, int64_t i, const void *p, ks_block *block);

/* Makes a schema of one field with `children` empty children; returns 0, or -1 without memory. */
int ks_make_schema(struct ArrowSchema *out, const char *format, const char *name, int64_t flags,
                   int64_t children);

#endif
