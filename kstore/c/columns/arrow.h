/* Columns as arrays of the Arrow C data interface; an array holds the blocks that it points into.

   An engine releases arrays on any thread, and may move children out of their parent first. So each array holds its own
   blocks, and releasing needs neither Python nor the GIL. */
#ifndef KSTORE_ARROW_H
#define KSTORE_ARROW_H

#include "columns/arrow_c.h"
#include "columns/blocks.h"

/* An array with room for so many buffers and children, all NULL; 0, or -1 without memory. */
int ks_make_array(struct ArrowArray *out, int64_t length, int64_t nulls, int64_t buffers, int64_t children);

/* Buffer `i` of the array: `p`, inside of `block`, which the array holds from now on. */
void ks_set_buffer(struct ArrowArray *array, int64_t i, const void *p, ks_block *block);

/* A schema of one field with room for so many children; 0, or -1 without memory. */
int ks_make_schema(struct ArrowSchema *out, const char *format, const char *name, int64_t flags,
                   int64_t children);

#endif
