/* Bytes that are filled anew where nobody but their owner holds them: to make and free an object costs more than to copy
   the hundred bytes that most values have.

   An object may have more room than its size says, as after CPython's own _PyBytes_Resize in place. */
#ifndef KSTORE_REFILL_H
#define KSTORE_REFILL_H

#include <Python.h>
#include <stdint.h>

/* Makes `*slot`, None or bytes, the `n` bytes at `p`, None for a negative `n`; 0, or -1 with an exception. `*room` is how
   many bytes `*slot` has room for, -1 where it was not made here; what would be less than half full is made anew. */
static inline int ks_refill(PyObject **slot, Py_ssize_t *room, const uint8_t *p, Py_ssize_t n) {
    PyObject *old = *slot, *made;
    if (n <= *room && n >= *room / 2 && n > 1 && Py_REFCNT(old) == 1) { /* bytes of 0 and 1 are shared by all */
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
