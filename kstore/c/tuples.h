/* A tuple of a subclass of tuple whose items are not set yet, as calling the class makes it, without call arguments. */
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
