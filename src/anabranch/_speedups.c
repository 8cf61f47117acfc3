/* The compiled forms of the few steps that a client takes for each message.

   Every function here has a Python form beside its caller, which is the reference: it takes over whenever a
   function returns None or stops early, and where the package was built without a compiler. The functions keep
   no state. They use the stable interface of CPython 3.11, so one build serves every later version. */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030b0000
#include <Python.h>
#include <stdint.h>
#include <string.h>

/* Limits of the field `message_sizes`, as in protocol/message_sizes.py. */
#define SIZES_BYTES_MAX 3072
#define SIZES_MESSAGES_MIN 4
#define SIZES_HEADER_MAX 134

#define KEY_TAG 0x12
#define SIZE_TAG 0x18
#define EVENT_TIME_TAG 0x28
#define SEQUENCE_TAG 0x40

static PyObject *name_batch, *name_bytes_left, *name_room, *name_rows;

static Py_ssize_t
varint_length(uint64_t number)
{
    Py_ssize_t length = 1;
    while (number >= 0x80) {
        number >>= 7;
        length++;
    }
    return length;
}

static unsigned char *
write_varint(unsigned char *at, uint64_t number)
{
    while (number >= 0x80) {
        *at++ = (unsigned char)(number | 0x80);
        number >>= 7;
    }
    *at++ = (unsigned char)number;
    return at;
}

/* Rows into the messages of a batch. */

typedef struct {
    const char *value, *key;
    Py_ssize_t value_size, key_size, header_size;
    uint64_t sequence;
} Row;

/* Read one row of (value, key, sequence id, bucket hash). Returns 0 for an unusual row, -1 for an error. */
static int
read_row(PyObject *tuple, Row *row, long *slot)
{
    if (!PyTuple_CheckExact(tuple) || PyTuple_Size(tuple) != 4)
        return 0;
    PyObject *value = PyTuple_GetItem(tuple, 0), *key = PyTuple_GetItem(tuple, 1);
    if (!PyBytes_CheckExact(value))
        return 0;
    row->value = PyBytes_AsString(value);
    row->value_size = PyBytes_Size(value);
    row->header_size = 1 + varint_length((uint64_t)row->value_size) + 1;
    if (key == Py_None) {
        row->key = NULL;
    }
    else if (PyUnicode_CheckExact(key)) {
        row->key = PyUnicode_AsUTF8AndSize(key, &row->key_size);
        if (row->key == NULL)
            return -1;
        row->header_size += 1 + varint_length((uint64_t)row->key_size) + row->key_size;
    }
    else {
        return 0;  /* Bytes may need Base64. */
    }
    long long sequence = PyLong_AsLongLong(PyTuple_GetItem(tuple, 2));
    if (sequence == -1 && PyErr_Occurred())
        return -1;
    row->sequence = (uint64_t)sequence;
    row->header_size += varint_length(row->sequence);
    *slot = PyLong_AsLong(PyTuple_GetItem(tuple, 3));
    if (*slot == -1 && PyErr_Occurred())
        return -1;
    return 1;
}

static unsigned char *
write_row(unsigned char *at, const Row *row)
{
    uint32_t size = (uint32_t)row->header_size;
    *at++ = (unsigned char)(size >> 24);
    *at++ = (unsigned char)(size >> 16);
    *at++ = (unsigned char)(size >> 8);
    *at++ = (unsigned char)size;
    if (row->key != NULL) {
        *at++ = KEY_TAG;
        at = write_varint(at, (uint64_t)row->key_size);
        memcpy(at, row->key, (size_t)row->key_size);
        at += row->key_size;
    }
    *at++ = SIZE_TAG;
    at = write_varint(at, (uint64_t)row->value_size);
    *at++ = SEQUENCE_TAG;
    at = write_varint(at, row->sequence);
    memcpy(at, row->value, (size_t)row->value_size);
    return at + row->value_size;
}

/* The field `message_sizes`; None if a header is unusual or the field would be too large. */
static PyObject *
encode_sizes(const Row *rows, Py_ssize_t count)
{
    Py_ssize_t largest = 0, smallest = PY_SSIZE_T_MAX;
    if (count < SIZES_MESSAGES_MIN)
        Py_RETURN_NONE;
    for (Py_ssize_t i = 0; i < count; i++) {
        if (rows[i].header_size > SIZES_HEADER_MAX)
            Py_RETURN_NONE;
        if (rows[i].value_size > largest)
            largest = rows[i].value_size;
        if (rows[i].value_size < smallest)
            smallest = rows[i].value_size;
    }
    Py_ssize_t width = largest == smallest ? 0 : largest < 0x100 ? 1 : largest < 0x10000 ? 2 : 4;
    Py_ssize_t total = 1 + count + (width ? width * count : 4);
    if (total > SIZES_BYTES_MAX || largest > UINT32_MAX)
        Py_RETURN_NONE;
    PyObject *sizes = PyBytes_FromStringAndSize(NULL, total);
    if (sizes == NULL)
        return NULL;
    unsigned char *at = (unsigned char *)PyBytes_AsString(sizes);
    *at++ = (unsigned char)width;
    for (Py_ssize_t i = 0; i < count; i++)
        *at++ = (unsigned char)rows[i].header_size;
    for (Py_ssize_t i = 0; i < (width ? count : 1); i++)
        for (Py_ssize_t byte = 0; byte < (width ? width : 4); byte++)
            *at++ = (unsigned char)(rows[i].value_size >> (8 * byte));
    return sizes;
}

PyDoc_STRVAR(encode_rows_doc,
"encode_rows(rows)\n--\n\n"
"The messages of a batch, the field of their sizes, and their lowest and highest bucket hash.\n\n"
"None if a row is unusual.");

static PyObject *
encode_rows(PyObject *self, PyObject *list)
{
    if (!PyList_CheckExact(list))
        Py_RETURN_NONE;
    Py_ssize_t count = PyList_Size(list), total = 0;
    long low = LONG_MAX, high = LONG_MIN;
    Row *rows = PyMem_Malloc((size_t)(count ? count : 1) * sizeof(Row));
    if (rows == NULL)
        return PyErr_NoMemory();
    PyObject *messages = NULL, *sizes = NULL, *result = NULL;
    /* The list keeps the rows alive, and nothing below runs code that could change it. */
    for (Py_ssize_t i = 0; i < count; i++) {
        long slot = 0;
        int usual = read_row(PyList_GetItem(list, i), &rows[i], &slot);
        if (usual < 0)
            goto done;
        if (!usual) {
            result = Py_NewRef(Py_None);
            goto done;
        }
        low = slot < low ? slot : low;
        high = slot > high ? slot : high;
        total += 4 + rows[i].header_size + rows[i].value_size;
    }
    messages = PyBytes_FromStringAndSize(NULL, total);
    if (messages == NULL)
        goto done;
    unsigned char *at = (unsigned char *)PyBytes_AsString(messages);
    for (Py_ssize_t i = 0; i < count; i++)
        at = write_row(at, &rows[i]);
    sizes = encode_sizes(rows, count);
    if (sizes != NULL)
        result = Py_BuildValue("(OOll)", messages, sizes, low, high);
done:
    Py_XDECREF(messages);
    Py_XDECREF(sizes);
    PyMem_Free(rows);
    return result;
}

/* Messages into open batches. */

#define PLACES_MAX 8

/* The open batch of a bucket; the bucket learns what is left of its room when the place is left. */
typedef struct {
    PyObject *bucket, *rows;
    long long room, bytes_left;
} Place;

static long long
get_number(PyObject *object, PyObject *name)
{
    PyObject *number = PyObject_GetAttr(object, name);
    if (number == NULL)
        return -1;
    long long found = PyLong_AsLongLong(number);
    Py_DECREF(number);
    return found;
}

static int
set_number(PyObject *object, PyObject *name, long long number)
{
    PyObject *value = PyLong_FromLongLong(number);
    if (value == NULL)
        return -1;
    int failed = PyObject_SetAttr(object, name, value);
    Py_DECREF(value);
    return failed;
}

/* Leave a place, also one that was never entered; returns -1 for an error. */
static int
leave(Place *place)
{
    int failed = 0;
    if (place->bucket != NULL)
        failed = set_number(place->bucket, name_room, place->room) < 0
                 || set_number(place->bucket, name_bytes_left, place->bytes_left) < 0;
    Py_CLEAR(place->bucket);
    Py_CLEAR(place->rows);
    return failed ? -1 : 0;
}

/* Enter the open batch of a bucket; returns 0 if the bucket has none, -1 for an error. */
static int
enter(Place *place, PyObject *bucket)
{
    PyObject *batch = PyObject_GetAttr(bucket, name_batch);
    if (batch == NULL)
        return -1;
    if (batch == Py_None) {
        Py_DECREF(batch);
        return 0;
    }
    place->rows = PyObject_GetAttr(batch, name_rows);
    Py_DECREF(batch);
    place->room = get_number(bucket, name_room);
    place->bytes_left = get_number(bucket, name_bytes_left);
    if (PyErr_Occurred() || !PyList_CheckExact(place->rows)) {
        Py_CLEAR(place->rows);
        return PyErr_Occurred() ? -1 : 0;
    }
    place->bucket = Py_NewRef(bucket);
    return 1;
}

/* The place of a bucket, entered if it was not; NULL if its batch is not open, or for an error. */
static Place *
place_of(Place *places, PyObject *bucket, Py_ssize_t turn)
{
    for (int i = 0; i < PLACES_MAX; i++)
        if (places[i].bucket == bucket)
            return &places[i];
    Place *place = &places[turn % PLACES_MAX];
    for (int i = 0; i < PLACES_MAX; i++)
        if (places[i].bucket == NULL)
            place = &places[i];
    if (leave(place) < 0 || enter(place, bucket) <= 0)
        return NULL;
    return place;
}

static int
append_row(PyObject *rows, PyObject *value, PyObject *key, long long sequence, PyObject *slot)
{
    PyObject *number = PyLong_FromLongLong(sequence);
    if (number == NULL)
        return -1;
    PyObject *row = PyTuple_Pack(4, value, key, number, slot);
    Py_DECREF(number);
    if (row == NULL)
        return -1;
    int failed = PyList_Append(rows, row);
    Py_DECREF(row);
    return failed;
}

/* Add one message to the open batch of its route. Returns 0, and adds nothing, if the batch is not open or would be
   full; -1 for an error. */
static int
add_to_batch(Place *places, PyObject *route, PyObject *value, PyObject *key, long long sequence)
{
    if (!PyTuple_CheckExact(route) || PyTuple_Size(route) != 3)
        return 0;
    Place *place = place_of(places, PyTuple_GetItem(route, 0), (Py_ssize_t)sequence);
    if (place == NULL)
        return PyErr_Occurred() ? -1 : 0;
    long overhead = PyLong_AsLong(PyTuple_GetItem(route, 2));
    if (overhead == -1 && PyErr_Occurred())
        return -1;
    long long left = place->bytes_left - PyBytes_Size(value) - overhead;
    if (left <= 0 || place->room <= 1)
        return 0;
    if (append_row(place->rows, value, key, sequence, PyTuple_GetItem(route, 1)) < 0)
        return -1;
    place->bytes_left = left;
    place->room--;
    return 1;
}

/* As `add_to_batch`, by the key of the message; an unusual value or key is not added. */
static int
add_by_key(Place *places, PyObject *by_key, PyObject *value, PyObject *key, long long sequence)
{
    if (!PyBytes_CheckExact(value))
        return 0;
    if (key != Py_None && !PyUnicode_CheckExact(key) && !PyBytes_CheckExact(key))
        return 0;
    PyObject *route = PyDict_GetItemWithError(by_key, key);
    if (route == NULL)
        return PyErr_Occurred() ? -1 : 0;
    /* The collector may run when a row is made, and run code that changes the lists and the routes. */
    Py_INCREF(route);
    Py_INCREF(value);
    Py_INCREF(key);
    int added = add_to_batch(places, route, value, key, sequence);
    Py_DECREF(route);
    Py_DECREF(value);
    Py_DECREF(key);
    return added;
}

PyDoc_STRVAR(add_rows_doc,
"add_rows(by_key, values, keys, start, sequence_id)\n--\n\n"
"Add messages from number `start` to the open batches of their keys; `sequence_id` is that of the one before.\n\n"
"Returns the number of the first message that was not added: it is unusual, or opens or fills a batch.");

static PyObject *
add_rows(PyObject *self, PyObject *args)
{
    PyObject *by_key, *values, *keys;
    Py_ssize_t i;
    long long sequence;
    if (!PyArg_ParseTuple(args, "O!O!OnL:add_rows", &PyDict_Type, &by_key, &PyList_Type, &values, &keys, &i,
                          &sequence))
        return NULL;
    if (i < 0 || (keys != Py_None && !PyList_Check(keys))) {
        PyErr_SetString(PyExc_TypeError, "add_rows needs a start of 0 or more, and a list of keys or None");
        return NULL;
    }
    Place places[PLACES_MAX] = {0};
    int added = 1;
    for (; i < PyList_Size(values) && (keys == Py_None || i < PyList_Size(keys)); i++) {
        PyObject *key = keys == Py_None ? Py_None : PyList_GetItem(keys, i);
        added = add_by_key(places, by_key, PyList_GetItem(values, i), key, ++sequence);
        if (added <= 0)
            break;
    }
    PyObject *type, *error, *trace;
    PyErr_Fetch(&type, &error, &trace);
    for (int number = 0; number < PLACES_MAX; number++)
        if (leave(&places[number]) < 0)
            added = -1;
    if (type != NULL)
        PyErr_Restore(type, error, trace);
    return added < 0 ? NULL : PyLong_FromSsize_t(i);
}

/* The messages of a batch into values, or into offsets. */

#define MESSAGE_BYTES_MIN 8

typedef struct {
    const unsigned char *start, *key;
    Py_ssize_t key_size;  /* -1 without a key. */
    int64_t value_size, event_time;
} Header;

/* Read a number of at most eight bytes; returns the byte behind it, or NULL. */
static const unsigned char *
read_varint(const unsigned char *at, const unsigned char *stop, int64_t *number)
{
    *number = 0;
    for (int shift = 0; shift < 56 && at < stop; shift += 7) {
        *number |= (int64_t)(*at & 0x7f) << shift;
        if (*at++ < 0x80)
            return at;
    }
    return NULL;
}

/* Read the header of the message at `at`, if it has the usual shape: an optional key of less than 128 bytes, the
   size of the value, an optional event time, and a sequence id. Returns the start of the value, which lies before
   `end` with all of its bytes, or NULL. */
static const unsigned char *
read_header(const unsigned char *at, const unsigned char *end, Header *header)
{
    if (end - at < MESSAGE_BYTES_MIN || at[0] || at[1] || at[2] || at[3] > end - at - 4)
        return NULL;
    const unsigned char *stop = at + 4 + at[3];
    int64_t sequence;
    header->start = at += 4;
    header->key = at;
    header->key_size = -1;
    header->event_time = 0;
    if (stop - at >= 2 && *at == KEY_TAG) {
        if (at[1] >= 0x80 || at[1] > stop - at - 2)
            return NULL;
        header->key = at + 2;
        header->key_size = at[1];
        at += 2 + at[1];
    }
    if (at >= stop || *at++ != SIZE_TAG || (at = read_varint(at, stop, &header->value_size)) == NULL)
        return NULL;
    if (at < stop && *at == EVENT_TIME_TAG && (at = read_varint(at + 1, stop, &header->event_time)) == NULL)
        return NULL;
    if (at >= stop || *at++ != SEQUENCE_TAG || read_varint(at, stop, &sequence) != stop)
        return NULL;
    return header->value_size > end - stop ? NULL : stop;
}

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
    {"encode_rows", encode_rows, METH_O, encode_rows_doc},
    {"add_rows", add_rows, METH_VARARGS, add_rows_doc},
    {"find_messages", find_messages, METH_VARARGS, find_messages_doc},
    {"split_messages", split_messages, METH_VARARGS, split_messages_doc},
    {NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "anabranch._speedups",
    .m_doc = "Compiled forms of the steps that a client takes for each message.",
    .m_size = -1,
    .m_methods = methods,
};

PyMODINIT_FUNC
PyInit__speedups(void)
{
    if ((name_batch = PyUnicode_InternFromString("batch")) == NULL
        || (name_bytes_left = PyUnicode_InternFromString("bytes_left")) == NULL
        || (name_room = PyUnicode_InternFromString("room")) == NULL
        || (name_rows = PyUnicode_InternFromString("rows")) == NULL)
        return NULL;
    return PyModule_Create(&module);
}
