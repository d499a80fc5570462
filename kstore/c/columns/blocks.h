/* The memory of columns: blocks that count their holders, and go back to a pool when the last one drops them.

   The first write to fresh memory costs more than everything else in reading columns, so larger blocks are mapped, in huge
   pages if they are large enough, and kept in a bounded pool for the next columns. Holding and dropping needs no GIL: an
   engine releases an Arrow array on any thread. Every block has KS_SLACK bytes behind its capacity, so that a short copy
   can be made in whole words, unless its memory belongs to another (ks_block_of). Under the address sanitizer nothing is pooled, so that it sees every stray access. */
#ifndef KSTORE_BLOCKS_H
#define KSTORE_BLOCKS_H

#include <stddef.h>
#include <stdint.h>

#include "columns/layout.h"

typedef struct {
    uint8_t *data;
    size_t capacity; /* without the slack */
    size_t mapped;   /* bytes to unmap; 0 for memory of malloc, which follows this structure */
    int64_t holders;
    void (*release)(void *owner); /* of memory that belongs to another; else NULL */
    void *owner;
} ks_block;

/* A block of at least `size` bytes with one holder; NULL without memory. Its bytes are not set. */
ks_block *ks_block_new(size_t size);

/* A block of memory that belongs to another, without the slack, with one holder; NULL without memory. With the last
   holder `release(owner)` is called, on whatever thread that is. */
ks_block *ks_block_of(const void *data, size_t size, void (*release)(void *owner), void *owner);

/* Adds a holder. */
ks_block *ks_block_hold(ks_block *block);

/* Removes a holder; with the last one the block goes back to the pool. NULL is no block. */
void ks_block_drop(ks_block *block);

/* Unmaps the oldest idle blocks until `limit` bytes are left. */
void ks_pool_shrink(size_t limit);

/* How many blocks have holders, and how many bytes are idle. */
void ks_pool_use(int64_t *live, int64_t *idle_bytes);

/* ---- A block that grows ---------------------------------------------------------------------------------------- */

typedef struct {
    ks_block *block;
    uint8_t *p; /* block->data; NULL before the first use */
    size_t capacity;
} ks_vec;

/* Makes room for `need` bytes, and keeps the first `used`; 0, or -1 without memory. */
int ks_vec_grow(ks_vec *v, size_t used, size_t need);

static inline int ks_vec_reserve(ks_vec *v, size_t used, size_t need) {
    return need <= v->capacity && v->p ? 0 : ks_vec_grow(v, used, need);
}

void ks_vec_drop(ks_vec *v);

#endif
