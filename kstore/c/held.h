/* The interpreter as what a short walk holds: beside a thread that computes it takes 5 ms to get it back, a thousand times
   what such a walk takes. */
#ifndef KSTORE_HELD_H
#define KSTORE_HELD_H

#include <Python.h>

#include "window.h"

/* Whether this is the only thread of Python. Nothing but this thread's own state is looked into. */
static inline int ks_is_alone(void) {
    PyThreadState *own = PyThreadState_Get();
    return PyInterpreterState_ThreadHead(PyInterpreterState_Get()) == own && !PyThreadState_Next(own);
}

static inline void ks_give_up(ks_held *held) {
    held->give_up = NULL;
    held->given_up = PyEval_SaveThread();
}

/* Before a walk that touches no object of Python, and after which ks_take_back must follow: until then the interpreter may have
   been given up. Where nobody could wait for it, it is kept whatever comes: the system is not asked what is in the page
   cache, which costs 50 ns. */
static inline void ks_hold(ks_held *held) { *held = (ks_held){ks_is_alone() ? NULL : ks_give_up, 0, NULL}; }

static inline void ks_take_back(ks_held *held) {
    if (held->given_up) PyEval_RestoreThread((PyThreadState *)held->given_up);
    *held = (ks_held){NULL, 0, NULL};
}

#endif
