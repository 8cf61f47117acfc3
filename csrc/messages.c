/* Received messages: each is a place in an entry. */

#include "reading.h"

PyObject *received_place_type, *text_content, *text_columns, *text_values;

typedef struct {
    PyObject_HEAD
    PyObject *entry;
    Py_ssize_t index;
    long long number, retries;
} ReceivedPlace;

static PyMemberDef place_members[] = {
    {"_entry", T_OBJECT_EX, offsetof(ReceivedPlace, entry), 0, NULL},
    {"_index", T_PYSSIZET, offsetof(ReceivedPlace, index), 0, NULL},
    {"_number", T_LONGLONG, offsetof(ReceivedPlace, number), 0, NULL},
    {"_retries", T_LONGLONG, offsetof(ReceivedPlace, retries), 0, NULL},
    {NULL},
};

static ReceivedPlace *
new_place(PyTypeObject *type, allocfunc allocate, PyObject *entry, Py_ssize_t index, long long number)
{
    ReceivedPlace *made = (ReceivedPlace *)allocate(type, 0);
    if (made == NULL)
        return NULL;
    made->entry = Py_NewRef(entry);
    made->index = index;
    made->number = number;
    return made;
}

static PyObject *
place_new(PyTypeObject *type, PyObject *args, PyObject *names)
{
    PyObject *entry;
    Py_ssize_t index;
    long long number, retries = 0;
    if (!PyArg_ParseTuple(args, "OnL|L:ReceivedPlace", &entry, &index, &number, &retries))
        return NULL;
    ReceivedPlace *made = new_place(type, (allocfunc)PyType_GetSlot(type, Py_tp_alloc), entry, index, number);
    if (made != NULL)
        made->retries = retries;
    return (PyObject *)made;
}

static void
place_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    Py_CLEAR(((ReceivedPlace *)self)->entry);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

/* The item at an index as Python finds it, at once if the column is a list that has it. */
static PyObject *
item_at(PyObject *column, Py_ssize_t index)
{
    if (PyList_CheckExact(column) && index >= 0 && index < PyList_Size(column))
        return Py_NewRef(PyList_GetItem(column, index));
    PyObject *number = PyLong_FromSsize_t(index);
    PyObject *item = number == NULL ? NULL : PyObject_GetItem(column, number);
    Py_XDECREF(number);
    return item;
}

static PyObject *
place_data(PyObject *self, void *closure)
{
    ReceivedPlace *place = (ReceivedPlace *)self;
    if (place->entry == NULL) {
        PyErr_SetString(PyExc_AttributeError, "_entry");
        return NULL;
    }
    PyObject *entry = Py_NewRef(place->entry), *values = NULL, *item = NULL;
    PyObject *content = PyObject_GetAttr(entry, text_content);
    if (content == Py_None) {
        Py_DECREF(content);
        content = PyObject_CallMethodObjArgs(entry, text_columns, NULL);
    }
    if (content != NULL)
        values = PyObject_GetAttr(content, text_values);
    if (values != NULL)
        item = item_at(values, place->index);
    Py_XDECREF(values);
    Py_XDECREF(content);
    Py_DECREF(entry);
    if (item == Py_None) {
        Py_DECREF(item);
        return PyBytes_FromStringAndSize(NULL, 0);
    }
    return item;
}

static PyGetSetDef place_getters[] = {
    {"data", place_data, NULL, "The value's bytes; empty for a null value.", NULL},
    {NULL},
};

static PyType_Slot place_slots[] = {
    {Py_tp_doc, "ReceivedPlace(entry, index, number, retries=0)\n--\n\nThe place of a message in a received entry."},
    {Py_tp_new, place_new},
    {Py_tp_members, place_members},
    {Py_tp_getset, place_getters},
    {Py_tp_dealloc, place_dealloc},
    {0, NULL},
};

PyType_Spec received_place_spec = {
    "anabranch._reading.ReceivedPlace", sizeof(ReceivedPlace), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, place_slots,
};

/* A class of Python lets the collector count and visit its objects; that was a tenth of a consumer's time. No entry
   refers to its messages, so there is nothing to find. */

static PyType_Slot message_slots[] = {
    {Py_tp_new, place_new},
    {Py_tp_dealloc, place_dealloc},
    {0, NULL},
};

static PyType_Spec message_spec = {
    "anabranch.client.message.Message", sizeof(ReceivedPlace), 0, Py_TPFLAGS_DEFAULT, message_slots,
};

const char uncollected_doc[] =
"uncollected(kind)\n--\n\n"
"A class with the bases and attributes of the class of messages, whose objects the garbage collector ignores.";

PyObject *
uncollected(PyObject *self, PyObject *kind)
{
    PyObject *bases = PyObject_GetAttrString(kind, "__bases__");
    PyObject *made = bases == NULL ? NULL : PyType_FromSpecWithBases(&message_spec, bases);
    PyObject *found = made == NULL ? NULL : PyObject_GetAttrString(kind, "__dict__");
    PyObject *items = found == NULL ? NULL : PyMapping_Items(found);
    for (Py_ssize_t i = 0; items != NULL && i < PyList_Size(items); i++) {
        PyObject *item = PyList_GetItem(items, i), *name = PyTuple_GetItem(item, 0);
        if (PyUnicode_CompareWithASCIIString(name, "__slots__") == 0)
            continue;
        if (PyObject_SetAttr(made, name, PyTuple_GetItem(item, 1)) < 0)
            Py_CLEAR(items);
    }
    if (items == NULL)
        Py_CLEAR(made);
    Py_XDECREF(items);
    Py_XDECREF(found);
    Py_XDECREF(bases);
    return made;
}

const char make_messages_doc[] =
"make_messages(type, entry, indexes, last)\n--\n\n"
"Messages of an entry, the last of `indexes` first; it gets the number `last`, and each other one the number before.\n\n"
"`indexes` is a list of numbers, or a count, which stands for all numbers below it.";

PyObject *
make_messages(PyObject *self, PyObject *args)
{
    PyObject *type, *entry, *indexes;
    long long last;
    if (!PyArg_ParseTuple(args, "O!OOL:make_messages", &PyType_Type, &type, &entry, &indexes, &last))
        return NULL;
    if (!PyType_IsSubtype((PyTypeObject *)type, (PyTypeObject *)received_place_type)) {
        PyErr_SetString(PyExc_TypeError, "make_messages needs a type of messages");
        return NULL;
    }
    int listed = PyList_CheckExact(indexes);
    Py_ssize_t count = listed ? PyList_Size(indexes) : PyLong_AsSsize_t(indexes);
    if (count < 0) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_ValueError, "make_messages needs a count of 0 or more");
        return NULL;
    }
    allocfunc allocate = (allocfunc)PyType_GetSlot((PyTypeObject *)type, Py_tp_alloc);
    PyObject *made = PyList_New(count);
    for (Py_ssize_t i = 0; made != NULL && i < count; i++) {
        Py_ssize_t index = count - 1 - i;
        if (listed)
            index = PyLong_AsSsize_t(PyList_GetItem(indexes, index));
        ReceivedPlace *place = NULL;
        if (index != -1 || !PyErr_Occurred())
            place = new_place((PyTypeObject *)type, allocate, entry, index, last - i);
        if (place == NULL || PyList_SetItem(made, i, (PyObject *)place) < 0)
            Py_CLEAR(made);
    }
    return made;
}
