/* The messages of a payload, and the module of the compiled steps of a consumer; `reading.h` says what they do. */

#include "headers.h"
#include "reading.h"

/* The messages of a batch into values, or into offsets. */

PyDoc_STRVAR(split_messages_doc,
"split_messages(payload, start, count)\n--\n\n"
"The offsets and the values of the messages that fill a payload from `start` to its end.\n\n"
"None if the payload is not filled by `count` messages with headers of the usual shape, without event times.");

static PyObject *
split_messages(PyObject *self, PyObject *args)
{
    PyObject *payload;
    Py_ssize_t start, count;
    if (!PyArg_ParseTuple(args, "Snn:split_messages", &payload, &start, &count))
        return NULL;
    const unsigned char *data = (const unsigned char *)PyBytes_AsString(payload);
    Py_ssize_t size = PyBytes_Size(payload);
    if (start < 0 || start > size || count < 1 || count > (size - start) / MESSAGE_BYTES_MIN)
        Py_RETURN_NONE;
    const unsigned char *at = data + start, *end = data + size;
    PyObject *starts = PyList_New(count), *values = PyList_New(count), *result = NULL;
    if (starts == NULL || values == NULL)
        goto done;
    for (Py_ssize_t i = 0; i < count; i++) {
        Header header;
        const unsigned char *value = read_header(at, end, &header);
        if (value == NULL || header.event_time) {
            result = Py_NewRef(Py_None);
            goto done;
        }
        PyObject *offset = PyLong_FromSsize_t(at - data);
        if (offset == NULL || PyList_SetItem(starts, i, offset) < 0)
            goto done;
        PyObject *found = PyBytes_FromStringAndSize((const char *)value, (Py_ssize_t)header.value_size);
        if (found == NULL || PyList_SetItem(values, i, found) < 0)
            goto done;
        at = value + header.value_size;
    }
    result = at == end ? PyTuple_Pack(2, starts, values) : Py_NewRef(Py_None);
done:
    Py_XDECREF(starts);
    Py_XDECREF(values);
    return result;
}

PyDoc_STRVAR(holds_messages_doc,
"holds_messages(payload, start, count)\n--\n\n"
"Whether `split_messages` returns the messages of a payload; makes no objects for them.");

static PyObject *
holds_messages(PyObject *self, PyObject *args)
{
    PyObject *payload;
    Py_ssize_t start, count;
    if (!PyArg_ParseTuple(args, "Snn:holds_messages", &payload, &start, &count))
        return NULL;
    const unsigned char *data = (const unsigned char *)PyBytes_AsString(payload);
    Py_ssize_t size = PyBytes_Size(payload);
    if (start < 0 || start > size || count < 1 || count > (size - start) / MESSAGE_BYTES_MIN)
        Py_RETURN_FALSE;
    const unsigned char *at = data + start, *end = data + size;
    for (; count > 0; count--) {
        Header header;
        const unsigned char *value = read_header(at, end, &header);
        if (value == NULL || header.event_time)
            Py_RETURN_FALSE;
        at = value + header.value_size;
    }
    return PyBool_FromLong(at == end);
}

PyDoc_STRVAR(find_messages_doc,
"find_messages(payloads, counts, ends, columns)\n--\n\n"
"Whether so many messages with headers of the usual shape fill each of the joined payloads, up to its end.\n\n"
"Fills six columns of 64-bit numbers, one after the other: start and end of each header, start and end of each\n"
"key, which begins where the header does if there is none, the end of each value, and the event times or 0.");

static int
fill_columns(const unsigned char *data, Py_ssize_t size, PyObject *counts, PyObject *ends, int64_t *columns,
             Py_ssize_t rows)
{
    const unsigned char *at = data;
    Py_ssize_t row = 0;
    for (Py_ssize_t i = 0; i < PyList_Size(counts); i++) {
        Py_ssize_t count = PyLong_AsSsize_t(PyList_GetItem(counts, i));
        Py_ssize_t stop = PyLong_AsSsize_t(PyList_GetItem(ends, i));
        if (PyErr_Occurred())
            return -1;
        if (stop < at - data || stop > size || count < 0 || count > rows - row)
            return 0;
        for (; count > 0; count--, row++) {
            Header header;
            const unsigned char *value = read_header(at, data + stop, &header);
            if (value == NULL)
                return 0;
            at = value + header.value_size;
            columns[row] = header.start - data;
            columns[row + rows] = value - data;
            columns[row + 2 * rows] = header.key - data;
            columns[row + 3 * rows] = header.key - data + (header.key_size < 0 ? 0 : header.key_size);
            columns[row + 4 * rows] = at - data;
            columns[row + 5 * rows] = header.event_time;
        }
        if (at != data + stop)
            return 0;
    }
    return row == rows;
}

static PyObject *
find_messages(PyObject *self, PyObject *args)
{
    PyObject *payloads, *counts, *ends, *columns;
    if (!PyArg_ParseTuple(args, "SO!O!O:find_messages", &payloads, &PyList_Type, &counts, &PyList_Type, &ends,
                          &columns))
        return NULL;
    Py_buffer buffer;
    if (PyObject_GetBuffer(columns, &buffer, PyBUF_CONTIG) < 0)
        return NULL;
    int found = -1;
    if (buffer.itemsize != 8 || buffer.len % (6 * 8) || PyList_Size(counts) != PyList_Size(ends))
        PyErr_SetString(PyExc_ValueError, "find_messages needs six columns, and as many counts as ends");
    else
        found = fill_columns((const unsigned char *)PyBytes_AsString(payloads), PyBytes_Size(payloads), counts,
                             ends, buffer.buf, buffer.len / (6 * 8));
    PyBuffer_Release(&buffer);
    return found < 0 ? NULL : PyBool_FromLong(found);
}

static PyMethodDef methods[] = {
    {"find_messages", find_messages, METH_VARARGS, find_messages_doc},
    {"holds_messages", holds_messages, METH_VARARGS, holds_messages_doc},
    {"make_messages", make_messages, METH_VARARGS, make_messages_doc},
    {"split_messages", split_messages, METH_VARARGS, split_messages_doc},
    {"uncollected", uncollected, METH_O, uncollected_doc},
    {NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "anabranch._reading",
    .m_doc = "Compiled forms of the steps that a consumer takes for each message.",
    .m_size = -1,
    .m_methods = methods,
};

PyMODINIT_FUNC
PyInit__reading(void)
{
    PyObject *made = PyModule_Create(&module);
    if (made == NULL)
        return NULL;
    if ((text_content = PyUnicode_InternFromString("content")) == NULL
        || (text_columns = PyUnicode_InternFromString("columns")) == NULL
        || (text_values = PyUnicode_InternFromString("values")) == NULL
        || (received_place_type = PyType_FromSpec(&received_place_spec)) == NULL
        || PyModule_AddObjectRef(made, "ReceivedPlace", received_place_type) < 0) {
        Py_DECREF(made);
        return NULL;
    }
    return made;
}
