#include "columns/blocks.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define KS_ALIGN 64
#define KS_MAPPED_FROM (64 << 10) /* smaller blocks come from malloc */
#define KS_HUGE (2 << 20)
#define KS_POOL_BLOCKS 64
#define KS_POOL_BYTES ((size_t)256 << 20)

#if defined(__SANITIZE_ADDRESS__)
#define KS_UNPOOLED 1
#else
#define KS_UNPOOLED 0
#endif

static struct {
    pthread_mutex_t lock;
    ks_block *idle[KS_POOL_BLOCKS]; /* the block returned last is at the end */
    int count;
    size_t bytes, limit;
    int64_t live; /* blocks with a holder */
} ks_pool = {PTHREAD_MUTEX_INITIALIZER, {0}, 0, 0, KS_POOL_BYTES, 0};

static void ks_pool_enter(void) { pthread_mutex_lock(&ks_pool.lock); }
static void ks_pool_leave(void) { pthread_mutex_unlock(&ks_pool.lock); }

/* If another thread holds the lock during a fork, the child must not get a lock that nobody releases. */
__attribute__((constructor)) static void ks_pool_setup(void) {
    pthread_atfork(ks_pool_enter, ks_pool_leave, ks_pool_leave);
}

static void ks_block_free(ks_block *block) {
    if (block->mapped) munmap(block->data, block->mapped);
    free(block);
}

/* Rounds up by at most an eighth, so that blocks of similar size are interchangeable. */
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

ks_block *ks_block_new(size_t size) {
    ks_block *block = NULL;
    if (size > (size_t)1 << 46) return NULL;
    size_t whole = size + KS_SLACK;
    if (KS_UNPOOLED || whole < KS_MAPPED_FROM) {
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
        for (int i = ks_pool.count - 1; i >= 0 && !block; i--)
            if (ks_pool.idle[i]->mapped >= whole && ks_pool.idle[i]->mapped / 2 <= whole) {
                block = ks_pool.idle[i];
                ks_pool.count--;
                ks_pool.bytes -= block->mapped;
                memmove(ks_pool.idle + i, ks_pool.idle + i + 1, (size_t)(ks_pool.count - i) * sizeof *ks_pool.idle);
            }
        ks_pool_leave();
        if (!block && !(block = ks_block_map(whole))) return NULL;
    }
    block->holders = 1;
    block->release = NULL;
    __atomic_add_fetch(&ks_pool.live, 1, __ATOMIC_RELAXED);
    return block;
}

ks_block *ks_block_of(const void *data, size_t size, void (*release)(void *owner), void *owner) {
    ks_block *block = (ks_block *)malloc(sizeof *block);
    if (!block) return NULL;
    *block = (ks_block){(uint8_t *)(uintptr_t)data, size, 0, 1, release, owner};
    __atomic_add_fetch(&ks_pool.live, 1, __ATOMIC_RELAXED);
    return block;
}

ks_block *ks_block_hold(ks_block *block) {
    __atomic_add_fetch(&block->holders, 1, __ATOMIC_RELAXED);
    return block;
}

void ks_pool_shrink(size_t limit) {
    ks_block *gone[KS_POOL_BLOCKS];
    int count = 0;
    ks_pool_enter();
    while (count < ks_pool.count && (ks_pool.bytes > limit || ks_pool.count - count >= KS_POOL_BLOCKS)) {
        gone[count] = ks_pool.idle[count];
        ks_pool.bytes -= gone[count++]->mapped;
    }
    ks_pool.count -= count;
    memmove(ks_pool.idle, ks_pool.idle + count, (size_t)ks_pool.count * sizeof *ks_pool.idle);
    ks_pool_leave();
    while (count) ks_block_free(gone[--count]);
}

void ks_block_drop(ks_block *block) {
    if (!block || __atomic_sub_fetch(&block->holders, 1, __ATOMIC_ACQ_REL)) return;
    __atomic_sub_fetch(&ks_pool.live, 1, __ATOMIC_RELAXED);
    if (block->release) block->release(block->owner);
    if (!block->mapped || block->mapped > ks_pool.limit) {
        ks_block_free(block);
        return;
    }
    ks_pool_shrink(ks_pool.limit - block->mapped);
    ks_pool_enter();
    int kept = ks_pool.count < KS_POOL_BLOCKS && ks_pool.bytes + block->mapped <= ks_pool.limit;
    if (kept) {
        ks_pool.idle[ks_pool.count++] = block;
        ks_pool.bytes += block->mapped;
    }
    ks_pool_leave();
    if (!kept) ks_block_free(block); /* other threads have filled the pool */
}

void ks_pool_use(int64_t *live, int64_t *idle_bytes) {
    *live = __atomic_load_n(&ks_pool.live, __ATOMIC_RELAXED);
    ks_pool_enter();
    *idle_bytes = (int64_t)ks_pool.bytes;
    ks_pool_leave();
}

int ks_vec_grow(ks_vec *v, size_t used, size_t need) {
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

void ks_vec_drop(ks_vec *v) {
    ks_block_drop(v->block);
    memset(v, 0, sizeof *v);
}
