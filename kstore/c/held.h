/* Short reads keep the GIL: getting it back from a busy thread takes 5 ms, a thousand times as long as such a read. */
#ifndef KSTORE_HELD_H
#define KSTORE_HELD_H

#include <Python.h>

#include "window.h"

/* Whether this is the only Python thread. Reads only this thread's own state. */
static inline int ks_is_alone(void) {
    PyThreadState *own = PyThreadState_Get();
    return PyInterpreterState_ThreadHead(PyInterpreterState_Get()) == own && !PyThreadState_Next(own);
}

static inline void ks_give_up(ks_held *held) {
    held->give_up = NULL;
    held->given_up = PyEval_SaveThread();
}

/* Called before a read that uses no Python object; ks_take_back must follow, since the read may release the GIL. If no
   other thread exists, the GIL is never released: this saves the check whether data is in the page cache (50 ns). */
static inline void ks_hold(ks_held *held) { *held = (ks_held){ks_is_alone() ? NULL : ks_give_up, 0, NULL}; }

static inline void ks_take_back(ks_held *held) {
    if (held->given_up) PyEval_RestoreThread((PyThreadState *)held->given_up);
    *held = (ks_held){NULL, 0, NULL};
}

#endif
