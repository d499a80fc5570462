/* Walks that hold the interpreter as long as what they read is in the page cache. Beside a thread that computes it takes 5 ms
   to get the interpreter back, a thousand times what a short walk takes. */
#ifndef KSTORE_HELD_H
#define KSTORE_HELD_H

#include <Python.h>

#include "window.h"

enum { KS_HELD_BYTES = 1 << 20 }; /* that are read while others wait, a tenth of a millisecond */

/* Whether no other thread of Python's is there, that could wait. */
static inline int ks_is_alone(void) { return !PyThreadState_Next(PyInterpreterState_ThreadHead(PyInterpreterState_Get())); }

/* A ks_reading for a walk that begins with the interpreter held, and touches no object of Python. For what is not in the page
   cache, and behind so many bytes, the interpreter is given up until ks_take_back, which must follow the walk's last read.
   Where nobody could wait, the system is not asked what is there: that costs 50 ns. */
static inline ptrdiff_t ks_read_held(int fd, uint8_t *p, size_t n, int64_t position, ks_held *held) {
    if (!held->given_up && !ks_is_alone()) {
        if ((held->bytes += (int64_t)n) <= KS_HELD_BYTES) {
            ptrdiff_t got = ks_read_cached(fd, p, n, position);
            if (got >= 0) return got;
        }
        held->given_up = PyEval_SaveThread();
    }
    return ks_read_at(fd, p, n, position);
}

static inline void ks_take_back(ks_held *held) {
    if (held->given_up) PyEval_RestoreThread((PyThreadState *)held->given_up);
    *held = (ks_held){0, NULL};
}

#endif
