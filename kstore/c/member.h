/* Attributes that the interpreter reads inline (LOAD_ATTR_SLOT), without the call that a property costs. */
#ifndef KSTORE_MEMBER_H
#define KSTORE_MEMBER_H

#include <Python.h>
#include <structmember.h>

/* Adds a read-only attribute to the extension type `kind`: the object reference at `offset` of an instance, which is
   never NULL once the instance exists. `definition` must live as long as the type. */
static int ks_add_member(PyObject *kind, PyMemberDef *definition, const char *name, Py_ssize_t offset) {
    PyTypeObject *type = (PyTypeObject *)kind;
    definition->name = (char *)name;
    definition->type = T_OBJECT_EX;
    definition->offset = offset;
    definition->flags = READONLY;
    PyObject *descriptor = PyDescr_NewMember(type, definition);
    if (!descriptor) return -1;
    int answer = PyDict_SetItemString(type->tp_dict, name, descriptor);
    Py_DECREF(descriptor);
    PyType_Modified(type);
    return answer;
}

#endif
