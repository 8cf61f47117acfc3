/* The compiled forms of the steps that a consumer takes for each message.

   Every function here has a Python form beside its caller, which is the reference: it takes over whenever a
   function returns None or stops early, and where the package was built without a compiler. The functions keep
   no state. They use the stable interface of CPython 3.11, so one build serves every later version. */

#ifndef ANABRANCH_READING_H
#define ANABRANCH_READING_H

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030b0000
#include <Python.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <structmember.h>

/* messages.c: received messages. */

extern PyType_Spec received_place_spec;
extern PyObject *received_place_type, *text_content, *text_columns, *text_values;
extern const char make_messages_doc[], uncollected_doc[];

PyObject *make_messages(PyObject *self, PyObject *args);
PyObject *uncollected(PyObject *self, PyObject *kind);

#endif
