/* The compiled forms of the steps that a producer takes for each message: a message gets its sequence id and is
   written into the open batch of its key, as the entry will hold it.

   The Python forms are the reference: an unusual message, and one that opens or fills a batch, is left to them. They
   also take over where the package was built without a compiler. The module uses the stable interface of CPython
   3.11, so one build serves every later version. */

#ifndef ANABRANCH_SENDING_H
#define ANABRANCH_SENDING_H

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030b0000
#include <Python.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <structmember.h>

/* Free an object of a type made from a spec, or of a class of Python below it. */
static inline void
free_object(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(self);
    Py_DECREF(type);
}

/* rows.c: the messages of an open batch, as bytes of the entry. */

typedef struct {
    uint64_t sequence;
    uint32_t start, value_size, key_size;
    uint16_t slot;
    uint8_t has_key, header_size;  /* A header of 255 bytes or more counts as 255. */
} RowPlace;

typedef struct {
    PyObject_HEAD
    unsigned char *data;
    RowPlace *places;
    Py_ssize_t used, allocated, count, places_allocated;
    PyObject *unusual;  /* A list of all rows, once one of them could not be written as bytes. */
} PackedRows;

typedef struct {
    PyObject *value;
    const char *key;
    Py_ssize_t key_size, header_size;
    uint64_t sequence;
    long slot;
} Row;

extern PyType_Spec packed_rows_spec;
extern PyObject *packed_rows_type;

/* Complete a row that has its sequence id and its slot; returns 0 for an unusual value or key. */
int read_row(Row *row, PyObject *value, PyObject *key);

/* Write a row behind the others; returns 0 if it does not fit, -1 for an error. */
int pack_row(PackedRows *rows, const Row *row);

/* places.c: the numbers that Python and these functions share, and the place of a message in its batch. */

typedef struct {
    PyObject_HEAD
    char full;
} RoomGate;

typedef struct {
    PyObject_HEAD
    long long last;
} Counter;

typedef struct {
    PyObject_HEAD
    PyObject *batch, *rows;
    long long room, bytes_left;
} OpenPlace;

typedef struct {
    PyObject_HEAD
    PyObject *batch, *loop;
    Py_ssize_t index;
    char cancelled, blocking;
} SendPlace;

extern PyType_Spec gate_spec, counter_spec, open_place_spec, send_place_spec;
extern PyObject *gate_type, *counter_type, *open_place_type, *send_place_type;
extern PyObject *text_batch, *text_index, *text_watch, *text_popleft;
extern PyMethodDef adding_methods[];

/* The open batch of a key's route that takes a message of this value without becoming full; NULL if there is none. */
OpenPlace *place_for(PyObject *by_key, PyObject *value, PyObject *key, Row *row, long long *left);

/* Add a message with the next sequence id to a batch that `place_for` has found. Returns 0, and adds nothing, if the
   message is unusual; -1 for an error. No code of Python runs meanwhile. */
int add_to(OpenPlace *place, Counter *counter, PyObject *value, PyObject *key, Row *row, long long left);

PyObject *new_send_place(PyTypeObject *type, PyObject *batch, Py_ssize_t index, PyObject *loop);

/* enqueuing.c: a producer's `enqueue`, and the coroutine of a call to it. */

extern PyType_Spec enqueuer_spec, enqueuing_spec;
extern PyObject *enqueuing_type, *text_key;

#endif
