/* Attributes that the interpreter reads in line (LOAD_ATTR_SLOT), where a property costs a call. */
#ifndef KSTORE_MEMBER_H
#define KSTORE_MEMBER_H

#include <Python.h>
#include <structmember.h>

/* Give the extension type `kind` a read-only attribute: the object reference at `offset` of an instance, never NULL
   once the instance is made. `definition` must live as long as the type. */
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
