/* What it costs to ask for many lines of memory at once, and to use them afterwards, in a table of 96 MB.

   cc -O2 -o /tmp/prefetch bench/limits/prefetch.c && /tmp/prefetch

   For each way to ask, and each number of lines asked for at once: processor time for asking, and what the uses add, one
   after the other. A request that was dropped costs a whole wait for memory at its use. For x86-64 with Linux. */
#define _GNU_SOURCE
#include <immintrin.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum { BYTES = 96 << 20, ENTRY = 16, LOOKS = 1 << 20, ROUNDS = 10, WAYS = 3, SIZES = 5, LARGE_PAGE = 2 << 20 };

static const char *const names[WAYS] = {"prefetcht0", "prefetcht1", "a load"};
static const int sizes[SIZES] = {16, 32, 64, 128, 256};
static uint32_t places[LOOKS];

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static double look(const uint8_t *table, int way, int at_once, int use, volatile uint64_t *sink) {
    uint64_t sum = 0;
    double began = now();
    for (int first = 0; first < LOOKS; first += at_once) {
        const uint32_t *each = places + first;
        if (way == 0) for (int i = 0; i < at_once; i++) _mm_prefetch((const char *)table + each[i], _MM_HINT_T0);
        if (way == 1) for (int i = 0; i < at_once; i++) _mm_prefetch((const char *)table + each[i], _MM_HINT_T1);
        if (way == 2) for (int i = 0; i < at_once; i++) sum += table[each[i]];
        for (int i = 0; use && i < at_once; i++) {
            sum += table[each[i]];
            _mm_lfence();
        }
    }
    *sink += sum;
    return (now() - began) / LOOKS;
}

int main(void) {
    volatile uint64_t sink = 0;
    uint64_t x = 88172645463325252u;
    uint8_t *table = aligned_alloc(LARGE_PAGE, BYTES);
    if (!table) return 1;
    madvise(table, BYTES, MADV_HUGEPAGE);
    memset(table, 1, BYTES);
    for (int i = 0; i < LOOKS; i++) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        places[i] = (uint32_t)(x % (BYTES / ENTRY)) * ENTRY;
    }
    for (int way = 0; way < WAYS; way++) {
        printf("%-12s", names[way]);
        for (int size = 0; size < SIZES; size++) {
            double asked = 1e9, used = 1e9;
            for (int round = 0; round < ROUNDS; round++) {
                double alone = look(table, way, sizes[size], 0, &sink), both = look(table, way, sizes[size], 1, &sink);
                if (alone < asked) asked = alone;
                if (both < used) used = both;
            }
            printf("  %3d: %4.1f + %4.1f ns", sizes[size], asked, used - asked);
        }
        puts("");
    }
    free(table);
    return 0;
}
