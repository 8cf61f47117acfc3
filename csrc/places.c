/* The open batches and numbers of a producer, which Python and the functions here share. */

#include "sending.h"

PyObject *gate_type, *counter_type, *open_place_type, *send_place_type;
PyObject *text_batch, *text_index, *text_watch, *text_popleft;

static PyMemberDef gate_members[] = {{"full", T_BOOL, offsetof(RoomGate, full), 0, NULL}, {NULL}};

static PyType_Slot gate_slots[] = {
    {Py_tp_doc, "Whether callers must wait for room."},
    {Py_tp_members, gate_members},
    {Py_tp_dealloc, free_object},
    {0, NULL},
};

PyType_Spec gate_spec = {
    "anabranch._sending.RoomGate", sizeof(RoomGate), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, gate_slots,
};

static PyMemberDef counter_members[] = {{"last", T_LONGLONG, offsetof(Counter, last), 0, NULL}, {NULL}};

static PyType_Slot counter_slots[] = {
    {Py_tp_doc, "The last sequence id of a producer."},
    {Py_tp_members, counter_members},
    {Py_tp_dealloc, free_object},
    {0, NULL},
};

PyType_Spec counter_spec = {
    "anabranch._sending.Counter", sizeof(Counter), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, counter_slots,
};

static PyMemberDef place_members[] = {
    {"batch", T_OBJECT, offsetof(OpenPlace, batch), 0, NULL},
    {"rows", T_OBJECT, offsetof(OpenPlace, rows), 0, NULL},
    {"room", T_LONGLONG, offsetof(OpenPlace, room), 0, NULL},
    {"bytes_left", T_LONGLONG, offsetof(OpenPlace, bytes_left), 0, NULL},
    {NULL},
};

static int
place_traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(((OpenPlace *)self)->batch);
    Py_VISIT(((OpenPlace *)self)->rows);
    return 0;
}

static int
place_clear(PyObject *self)
{
    Py_CLEAR(((OpenPlace *)self)->batch);
    Py_CLEAR(((OpenPlace *)self)->rows);
    return 0;
}

static void
place_dealloc(PyObject *self)
{
    PyObject_GC_UnTrack(self);
    place_clear(self);
    free_object(self);
}

static PyType_Slot place_slots[] = {
    {Py_tp_doc, "An open batch, its rows, and the room that is left."},
    {Py_tp_members, place_members},
    {Py_tp_traverse, place_traverse},
    {Py_tp_clear, place_clear},
    {Py_tp_dealloc, place_dealloc},
    {0, NULL},
};

PyType_Spec open_place_spec = {
    "anabranch._sending.OpenPlace", sizeof(OpenPlace), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, place_slots,
};

OpenPlace *
place_for(PyObject *by_key, PyObject *value, PyObject *key, Row *row, long long *left)
{
    if (!PyBytes_CheckExact(value) || (key != Py_None && !PyUnicode_CheckExact(key)))
        return NULL;
    PyObject *route = PyDict_GetItemWithError(by_key, key);
    if (route == NULL || !PyTuple_CheckExact(route) || PyTuple_Size(route) != 3) {
        PyErr_Clear();
        return NULL;
    }
    PyObject *found = PyTuple_GetItem(route, 0);
    if (!PyObject_TypeCheck(found, (PyTypeObject *)open_place_type))
        return NULL;
    OpenPlace *place = (OpenPlace *)found;
    if (place->rows == NULL || Py_TYPE(place->rows) != (PyTypeObject *)packed_rows_type || place->batch == NULL
        || ((PackedRows *)place->rows)->unusual != NULL)
        return NULL;
    long overhead = PyLong_AsLong(PyTuple_GetItem(route, 2));
    row->slot = PyLong_AsLong(PyTuple_GetItem(route, 1));
    if (PyErr_Occurred()) {
        PyErr_Clear();
        return NULL;
    }
    *left = place->bytes_left - PyBytes_Size(value) - overhead;
    return *left > 0 && place->room > 1 ? place : NULL;
}

int
add_to(OpenPlace *place, Counter *counter, PyObject *value, PyObject *key, Row *row, long long left)
{
    if (counter->last < -1 || counter->last == LLONG_MAX)
        return 0;
    row->sequence = (uint64_t)(counter->last + 1);
    if (!read_row(row, value, key))
        return 0;
    int packed = pack_row((PackedRows *)place->rows, row);
    if (packed > 0) {
        counter->last++;
        place->room--;
        place->bytes_left = left;
    }
    return packed;
}

PyDoc_STRVAR(add_rows_doc,
"add_rows(by_key, values, keys, start, counter)\n--\n\n"
"Add messages from number `start` to the open batches of their keys.\n\n"
"Returns the number of the first message that was not added: it is unusual, or opens or fills a batch.");

static PyObject *
add_rows(PyObject *self, PyObject *args)
{
    PyObject *by_key, *values, *keys, *counter;
    Py_ssize_t i;
    if (!PyArg_ParseTuple(args, "O!O!OnO!:add_rows", &PyDict_Type, &by_key, &PyList_Type, &values, &keys, &i,
                          (PyTypeObject *)counter_type, &counter))
        return NULL;
    if (i < 0 || (keys != Py_None && !PyList_Check(keys))) {
        PyErr_SetString(PyExc_TypeError, "add_rows needs a start of 0 or more, and a list of keys or None");
        return NULL;
    }
    for (; i < PyList_Size(values) && (keys == Py_None || i < PyList_Size(keys)); i++) {
        PyObject *key = keys == Py_None ? Py_None : PyList_GetItem(keys, i);
        PyObject *value = PyList_GetItem(values, i);
        Row row;
        long long left;
        OpenPlace *place = place_for(by_key, value, key, &row, &left);
        int added = place == NULL ? 0 : add_to(place, (Counter *)counter, value, key, &row, left);
        if (added < 0)
            return NULL;
        if (!added)
            break;
    }
    return PyLong_FromSsize_t(i);
}

/* Tell the outcome of a message its place. Returns 1 if a caller waits for the outcome, -1 for an error. */
static int
tell_place(PyObject *outcome, PyObject *batch, Py_ssize_t index)
{
    PyObject *number = PyLong_FromSsize_t(index);
    if (number == NULL)
        return -1;
    /* In this order: a caller in another thread that begins to wait looks at the batch. */
    int failed = PyObject_SetAttr(outcome, text_index, number) < 0 || PyObject_SetAttr(outcome, text_batch, batch) < 0;
    Py_DECREF(number);
    PyObject *watch = failed ? NULL : PyObject_GetAttr(outcome, text_watch);
    if (watch == NULL)
        return -1;
    int watched = watch != Py_None;
    Py_DECREF(watch);
    return watched;
}

/* Add the first of the items. Returns 0, and adds nothing, if it is unusual, or opens or fills a batch; 2 if a caller
   waits for its outcome already; -1 for an error. */
static int
add_item(PyObject *by_key, Counter *counter, PyObject *item)
{
    if (!PyTuple_CheckExact(item) || PyTuple_Size(item) != 3)
        return 0;
    PyObject *value = PyTuple_GetItem(item, 1), *key = PyTuple_GetItem(item, 2);
    Row row;
    long long left;
    OpenPlace *place = place_for(by_key, value, key, &row, &left);
    if (place == NULL)
        return 0;
    Py_ssize_t index = ((PackedRows *)place->rows)->count;
    PyObject *batch = Py_NewRef(place->batch);
    int added = add_to(place, counter, value, key, &row, left);
    int watched = added > 0 ? tell_place(PyTuple_GetItem(item, 0), batch, index) : 0;
    Py_DECREF(batch);
    return watched < 0 ? -1 : added + watched;
}

PyDoc_STRVAR(add_items_doc,
"add_items(by_key, items, counter)\n--\n\n"
"Take items of (outcome, value, key) from the left of a deque, add them, and tell the outcomes their places.\n\n"
"Returns an outcome for which a caller waits, when it was told; None before an item that was not taken: it is\n"
"unusual, or opens or fills a batch.");

static PyObject *
add_items(PyObject *self, PyObject *args)
{
    PyObject *by_key, *items, *counter;
    if (!PyArg_ParseTuple(args, "O!OO!:add_items", &PyDict_Type, &by_key, &items, (PyTypeObject *)counter_type,
                          &counter))
        return NULL;
    Py_ssize_t count = PySequence_Size(items);
    if (count < 0)
        return NULL;
    for (; count > 0; count--) {
        PyObject *item = PySequence_GetItem(items, 0);
        if (item == NULL)
            return NULL;
        int added = add_item(by_key, (Counter *)counter, item);
        PyObject *taken = added > 0 ? PyObject_CallMethodObjArgs(items, text_popleft, NULL) : NULL;
        PyObject *outcome = added > 1 ? Py_NewRef(PyTuple_GetItem(item, 0)) : NULL;
        Py_DECREF(item);
        Py_XDECREF(taken);
        if (added < 0 || (added > 0 && taken == NULL)) {
            Py_XDECREF(outcome);
            return NULL;
        }
        if (outcome != NULL)
            return outcome;
        if (!added)
            break;
    }
    Py_RETURN_NONE;
}

PyDoc_STRVAR(largest_plain_doc,
"largest_plain(values, keys)\n--\n\n"
"The size of the largest value; None if a value is not bytes, or if a key is neither None nor ASCII text.");

static PyObject *
largest_plain(PyObject *self, PyObject *args)
{
    PyObject *values, *keys;
    if (!PyArg_ParseTuple(args, "O!O:largest_plain", &PyList_Type, &values, &keys))
        return NULL;
    if (keys != Py_None && (!PyList_CheckExact(keys) || PyList_Size(keys) != PyList_Size(values)))
        Py_RETURN_NONE;
    Py_ssize_t largest = 0;
    for (Py_ssize_t i = 0; i < PyList_Size(values); i++) {
        PyObject *value = PyList_GetItem(values, i), *key = keys == Py_None ? Py_None : PyList_GetItem(keys, i);
        if (!PyBytes_CheckExact(value))
            Py_RETURN_NONE;
        if (key != Py_None) {
            Py_ssize_t size;
            if (!PyUnicode_CheckExact(key))
                Py_RETURN_NONE;
            /* Text takes as many bytes as characters if it is ASCII. */
            if (PyUnicode_AsUTF8AndSize(key, &size) == NULL || size != PyUnicode_GetLength(key)) {
                PyErr_Clear();
                Py_RETURN_NONE;
            }
        }
        largest = PyBytes_Size(value) > largest ? PyBytes_Size(value) : largest;
    }
    return PyLong_FromSsize_t(largest);
}

static PyMemberDef send_place_members[] = {
    {"_batch", T_OBJECT, offsetof(SendPlace, batch), 0, NULL},
    {"_index", T_PYSSIZET, offsetof(SendPlace, index), 0, NULL},
    {"_loop", T_OBJECT, offsetof(SendPlace, loop), 0, NULL},
    {"_cancelled", T_BOOL, offsetof(SendPlace, cancelled), 0, NULL},
    {"_asyncio_future_blocking", T_BOOL, offsetof(SendPlace, blocking), 0, NULL},
    {NULL},
};

PyObject *
new_send_place(PyTypeObject *type, PyObject *batch, Py_ssize_t index, PyObject *loop)
{
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    SendPlace *made = (SendPlace *)allocate(type, 0);
    if (made == NULL)
        return NULL;
    made->batch = Py_NewRef(batch);
    made->loop = Py_NewRef(loop);
    made->index = index;
    /* An application may keep many futures, which the collector need not visit: their batches drop them. */
    if (PyType_GetFlags(type) & Py_TPFLAGS_HAVE_GC)
        PyObject_GC_UnTrack(made);
    return (PyObject *)made;
}

static PyObject *
send_place_new(PyTypeObject *type, PyObject *args, PyObject *names)
{
    PyObject *batch, *loop;
    Py_ssize_t index;
    if (!PyArg_ParseTuple(args, "OnO:SendPlace", &batch, &index, &loop))
        return NULL;
    return new_send_place(type, batch, index, loop);
}

static void
send_place_dealloc(PyObject *self)
{
    Py_CLEAR(((SendPlace *)self)->batch);
    Py_CLEAR(((SendPlace *)self)->loop);
    free_object(self);
}

static PyType_Slot send_place_slots[] = {
    {Py_tp_doc, "SendPlace(batch, index, loop)\n--\n\nThe place of a message, which its future remembers."},
    {Py_tp_new, send_place_new},
    {Py_tp_members, send_place_members},
    {Py_tp_dealloc, send_place_dealloc},
    {0, NULL},
};

PyType_Spec send_place_spec = {
    "anabranch._sending.SendPlace", sizeof(SendPlace), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, send_place_slots,
};

PyMethodDef adding_methods[] = {
    {"add_rows", add_rows, METH_VARARGS, add_rows_doc},
    {"add_items", add_items, METH_VARARGS, add_items_doc},
    {"largest_plain", largest_plain, METH_VARARGS, largest_plain_doc},
    {NULL},
};
