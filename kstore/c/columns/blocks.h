/* The memory of columns: reference-counted blocks that return to a pool when the last holder drops them.

   The first write to fresh memory costs more than everything else in reading columns. So larger blocks are mapped, in
   huge pages if they are large enough, and kept in a bounded pool for the next columns. Holding and dropping needs no
   GIL: a query engine releases Arrow arrays on any thread. Every block except foreign memory (ks_block_of) has KS_SLACK
   bytes after its capacity, for short copies in whole words. The pool is off under the address sanitizer, which then
   detects every invalid access. */
#ifndef KSTORE_BLOCKS_H
#define KSTORE_BLOCKS_H

#include <stddef.h>
#include <stdint.h>

#include "columns/layout.h"

typedef struct {
    uint8_t *data;
    size_t capacity; /* without the slack */
    size_t mapped;   /* bytes to unmap; 0 if the data is from malloc and follows this structure */
    int64_t holders;
    void (*release)(void *owner); /* for foreign memory; else NULL */
    void *owner;
} ks_block;

/* Returns a block of at least `size` uninitialized bytes with one holder; NULL without memory. */
ks_block *ks_block_new(size_t size);

/* Returns a block of foreign memory, without the slack, with one holder; NULL without memory. When the last holder
   drops it, `release(owner)` is called on that thread. */
ks_block *ks_block_of(const void *data, size_t size, void (*release)(void *owner), void *owner);

ks_block *ks_block_hold(ks_block *block);

/* Removes a holder; after the last one the block returns to the pool. Ignores NULL. */
void ks_block_drop(ks_block *block);

/* Unmaps the oldest idle blocks until `limit` bytes are left. */
void ks_pool_shrink(size_t limit);

/* Returns the number of blocks with holders, and the idle bytes. */
void ks_pool_use(int64_t *live, int64_t *idle_bytes);

/* ---- A growing block ------------------------------------------------------------------------------------------- */

typedef struct {
    ks_block *block;
    uint8_t *p; /* block->data; NULL before the first use */
    size_t capacity;
} ks_vec;

/* Grows to `need` bytes, and keeps the first `used`; returns 0, or -1 without memory. */
int ks_vec_grow(ks_vec *v, size_t used, size_t need);

static inline int ks_vec_reserve(ks_vec *v, size_t used, size_t need) {
    return need <= v->capacity && v->p ? 0 : ks_vec_grow(v, used, need);
}

void ks_vec_drop(ks_vec *v);

#endif
