/* Reuses a bytes object if nobody but its owner holds a reference: creating and freeing an object costs more than
   copying a typical value of a hundred bytes.

   An object may have more space than its size says; CPython's _PyBytes_Resize leaves such objects, too. */
#ifndef KSTORE_REFILL_H
#define KSTORE_REFILL_H

#include <Python.h>
#include <stdint.h>

/* Sets `*slot`, None or bytes, to the `n` bytes at `p`, or to None if `n` is negative; 0, or -1 with an exception.
   `*room` is the capacity of `*slot`, -1 if unknown. Reuses `*slot` if it will be at least half full. */
static inline int ks_refill(PyObject **slot, Py_ssize_t *room, const uint8_t *p, Py_ssize_t n) {
    PyObject *old = *slot, *made;
    if (n <= *room && n >= *room / 2 && n > 1 && Py_REFCNT(old) == 1) { /* bytes of length 0 and 1 are shared */
        PyBytesObject *bytes = (PyBytesObject *)old;
        Py_SET_SIZE(bytes, n);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
        bytes->ob_shash = -1;
#pragma GCC diagnostic pop
        memcpy(bytes->ob_sval, p, (size_t)n);
        bytes->ob_sval[n] = 0;
        return 0;
    }
    if (n < 0) {
        made = Py_None;
        Py_INCREF(made);
    } else if (!(made = PyBytes_FromStringAndSize((const char *)p, n))) {
        return -1;
    }
    *slot = made;
    *room = n;
    Py_DECREF(old);
    return 0;
}

#endif
