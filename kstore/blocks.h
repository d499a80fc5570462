/* The memory of columns: blocks that are counted, and go back to a pool when the last holder lets go.

   First touch of fresh memory costs more than everything else in reading columns, so blocks of some size are mapped, in
   huge pages where they are large enough, and kept in a bounded pool for the next columns. Holding and dropping needs
   no GIL: an engine lets go of an Arrow array from whatever thread it likes. Every block has KS_SLACK bytes behind its
   capacity, so that a short copy may be made in whole words. Under the address sanitizer nothing is pooled: a stray
   access must be seen. */
#ifndef KSTORE_BLOCKS_H
#define KSTORE_BLOCKS_H

#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define KS_SLACK 64
#define KS_ALIGN 64
#define KS_MAPPED_FROM (64 << 10) /* below, the C library's own allocator */
#define KS_HUGE (2 << 20)
#define KS_POOL_BLOCKS 64
#define KS_POOL_BYTES ((size_t)256 << 20)

#if defined(__SANITIZE_ADDRESS__)
#define KS_PLAIN_BLOCKS 1
#else
#define KS_PLAIN_BLOCKS 0
#endif

typedef struct {
    uint8_t *data;
    size_t capacity; /* without the slack */
    size_t mapped;   /* bytes to unmap; 0 for memory of malloc, which follows this structure */
    int64_t holders;
} ks_block;

typedef struct {
    pthread_mutex_t lock;
    ks_block *idle[KS_POOL_BLOCKS]; /* the last returned at the end */
    int count;
    size_t bytes, limit;
    int64_t live; /* blocks that somebody holds */
} ks_pool_state;

static ks_pool_state ks_own_pool = {PTHREAD_MUTEX_INITIALIZER, {0}, 0, 0, KS_POOL_BYTES, 0};
static ks_pool_state *ks_pool = &ks_own_pool; /* the modules that include this use the pool of one of them */

static void ks_pool_enter(void) { pthread_mutex_lock(&ks_pool->lock); }
static void ks_pool_leave(void) { pthread_mutex_unlock(&ks_pool->lock); }

/* A fork while another thread is in here must not leave the child a lock that nobody will open. */
static void ks_pool_setup(void) { pthread_atfork(ks_pool_enter, ks_pool_leave, ks_pool_leave); }
static void ks_pool_adopt(ks_pool_state *pool) { ks_pool = pool; }

static void ks_block_free(ks_block *block) {
    if (block->mapped) munmap(block->data, block->mapped);
    free(block);
}

/* An eighth more at the most, so that blocks of about one size can stand in for each other. */
static size_t ks_block_class(size_t size) {
    size_t step = ((size_t)1 << (63 - __builtin_clzll((unsigned long long)size))) >> 3;
    if (size >= KS_HUGE && step < KS_HUGE) step = KS_HUGE;
    return (size + step - 1) / step * step;
}

static ks_block *ks_block_map(size_t size) {
    ks_block *block = (ks_block *)malloc(sizeof *block);
    if (!block) return NULL;
    size_t over = size >= KS_HUGE ? KS_HUGE : 0;
    uint8_t *base = (uint8_t *)mmap(NULL, size + over, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == (uint8_t *)MAP_FAILED) { free(block); return NULL; }
    if (over) {
        size_t before = (size_t)(-(uintptr_t)base & (KS_HUGE - 1));
        if (before) munmap(base, before);
        base += before;
        if (over > before) munmap(base + size, over - before);
#ifdef MADV_HUGEPAGE
        madvise(base, size, MADV_HUGEPAGE);
#endif
    }
    block->data = base;
    block->mapped = size;
    block->capacity = size - KS_SLACK;
    return block;
}

/* A block of at least `size` bytes with one holder; NULL without memory. Its bytes are whatever they were. */
static ks_block *ks_block_new(size_t size) {
    ks_block *block = NULL;
    if (size > (size_t)1 << 46) return NULL;
    size_t whole = size + KS_SLACK;
    if (KS_PLAIN_BLOCKS || whole < KS_MAPPED_FROM) {
        uint8_t *memory = (uint8_t *)malloc(sizeof *block + KS_ALIGN + whole);
        if (!memory) return NULL;
        block = (ks_block *)memory;
        memory += sizeof *block;
        block->data = memory + (-(uintptr_t)memory & (KS_ALIGN - 1));
        block->mapped = 0;
        block->capacity = size;
    } else {
        whole = ks_block_class(whole);
        ks_pool_enter();
        for (int i = ks_pool->count - 1; i >= 0 && !block; i--)
            if (ks_pool->idle[i]->mapped >= whole && ks_pool->idle[i]->mapped / 2 <= whole) {
                block = ks_pool->idle[i];
                ks_pool->count--;
                ks_pool->bytes -= block->mapped;
                memmove(ks_pool->idle + i, ks_pool->idle + i + 1, (size_t)(ks_pool->count - i) * sizeof *ks_pool->idle);
            }
        ks_pool_leave();
        if (!block && !(block = ks_block_map(whole))) return NULL;
    }
    block->holders = 1;
    __atomic_add_fetch(&ks_pool->live, 1, __ATOMIC_RELAXED);
    return block;
}

static ks_block *ks_block_hold(ks_block *block) {
    __atomic_add_fetch(&block->holders, 1, __ATOMIC_RELAXED);
    return block;
}

/* Unmaps the oldest idle blocks until `limit` bytes are left. */
static void ks_pool_shrink(size_t limit) {
    ks_block *gone[KS_POOL_BLOCKS];
    int count = 0;
    ks_pool_enter();
    while (count < ks_pool->count && (ks_pool->bytes > limit || ks_pool->count - count >= KS_POOL_BLOCKS)) {
        gone[count] = ks_pool->idle[count];
        ks_pool->bytes -= gone[count++]->mapped;
    }
    ks_pool->count -= count;
    memmove(ks_pool->idle, ks_pool->idle + count, (size_t)ks_pool->count * sizeof *ks_pool->idle);
    ks_pool_leave();
    while (count) ks_block_free(gone[--count]);
}

static void ks_block_drop(ks_block *block) {
    if (!block || __atomic_sub_fetch(&block->holders, 1, __ATOMIC_ACQ_REL)) return;
    __atomic_sub_fetch(&ks_pool->live, 1, __ATOMIC_RELAXED);
    if (!block->mapped || block->mapped > ks_pool->limit) {
        ks_block_free(block);
        return;
    }
    ks_pool_shrink(ks_pool->limit - block->mapped);
    ks_pool_enter();
    int kept = ks_pool->count < KS_POOL_BLOCKS && ks_pool->bytes + block->mapped <= ks_pool->limit;
    if (kept) {
        ks_pool->idle[ks_pool->count++] = block;
        ks_pool->bytes += block->mapped;
    }
    ks_pool_leave();
    if (!kept) ks_block_free(block); /* others were faster */
}

/* ---- A block that grows ---------------------------------------------------------------------------------------- */

typedef struct {
    ks_block *block;
    uint8_t *p; /* block->data; NULL before the first use */
    size_t capacity;
} ks_vec;

/* Room for `need` bytes, the first `used` of which stay; 0, or -1 without memory. */
static int ks_vec_grow(ks_vec *v, size_t used, size_t need) {
    size_t wanted = v->capacity + v->capacity / 2;
    ks_block *block = ks_block_new(need > wanted ? need : wanted);
    if (!block) return -1;
    if (used) memcpy(block->data, v->p, used);
    ks_block_drop(v->block);
    v->block = block;
    v->p = block->data;
    v->capacity = block->capacity;
    return 0;
}

static inline int ks_vec_reserve(ks_vec *v, size_t used, size_t need) {
    return need <= v->capacity && v->p ? 0 : ks_vec_grow(v, used, need);
}

static void ks_vec_drop(ks_vec *v) {
    ks_block_drop(v->block);
    memset(v, 0, sizeof *v);
}

#endif
