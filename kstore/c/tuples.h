/* Allocates an instance of a subclass of tuple with `n` items that are not set, without calling the class. */
#ifndef KSTORE_TUPLES_H
#define KSTORE_TUPLES_H

#include <Python.h>

static inline PyObject *ks_new_tuple(PyTypeObject *type, Py_ssize_t n) {
    PyObject *made = type->tp_alloc(type, n);
#if PY_VERSION_HEX >= 0x030E0000
    if (made) ((PyTupleObject *)made)->ob_hash = -1; /* not computed yet */
#endif
    return made;
}

#endif
