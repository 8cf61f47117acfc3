/* The compiled forms of the steps that Spark's source and sink take for each row: messages into columns of keys and
   values, columns into messages, and the hashes of a column of keys.

   Every function here has a Python form beside its caller, which is the reference: it takes over whenever a function
   returns None, and where the package was built without a compiler. The functions keep no state. They use the stable
   interface of CPython 3.11, so one build serves every later version. */

#include "headers.h"

#define OFFSET_MAX INT32_MAX
#define FIELDS_BYTES_MAX (4 + 4 * 11)  /* Of a header besides its key: its size, and four tags with numbers. */

/* The buffers of a call, which are released together. */

#define VIEWS_MAX 8

typedef struct {
    Py_buffer views[VIEWS_MAX];
    int count;
} Views;

/* The memory of an object with items of this size, which are contiguous; NULL for an error. */
static Py_buffer *
view_of(Views *views, PyObject *object, Py_ssize_t item_size, int flags)
{
    Py_buffer *view = &views->views[views->count];
    if (PyObject_GetBuffer(object, view, flags) < 0)
        return NULL;
    views->count++;
    if (view->itemsize != item_size) {
        PyErr_SetString(PyExc_ValueError, "a column has items of another size");
        return NULL;
    }
    return view;
}

static void
release_views(Views *views)
{
    while (views->count > 0)
        PyBuffer_Release(&views->views[--views->count]);
}

/* Messages into columns. */

typedef struct {
    int32_t *key_ends, *value_ends;
    unsigned char *keys, *values, *valid;
    Py_ssize_t rows, keys_size, values_size;
    Py_ssize_t row, keys_used, values_used, missing;
} Columns;

/* Copy keys and values of the messages of a payload; returns 0 if it is not filled by `count` usual messages. */
static int
copy_payload(Columns *columns, const unsigned char *at, const unsigned char *end, Py_ssize_t count)
{
    if (count < 0 || count > columns->rows - columns->row)
        return 0;
    for (; count > 0; count--) {
        Header header;
        const unsigned char *value = read_header(at, end, &header);
        if (value == NULL)
            return 0;
        Py_ssize_t key_size = header.key_size < 0 ? 0 : header.key_size;
        Py_ssize_t value_size = (Py_ssize_t)header.value_size;
        if (key_size > columns->keys_size - columns->keys_used ||
            value_size > columns->values_size - columns->values_used)
            return 0;
        memcpy(columns->keys + columns->keys_used, header.key, (size_t)key_size);
        memcpy(columns->values + columns->values_used, value, (size_t)value_size);
        columns->keys_used += key_size;
        columns->values_used += value_size;
        if (header.key_size < 0)
            columns->missing++;
        else
            columns->valid[columns->row >> 3] |= (unsigned char)(1 << (columns->row & 7));
        columns->row++;
        columns->key_ends[columns->row] = (int32_t)columns->keys_used;
        columns->value_ends[columns->row] = (int32_t)columns->values_used;
        at = value + value_size;
    }
    return at == end;
}

static int
copy_payloads(Columns *columns, PyObject *payloads, PyObject *counts)
{
    for (Py_ssize_t i = 0; i < PyList_Size(counts); i++) {
        Py_buffer payload;
        Py_ssize_t count = PyLong_AsSsize_t(PyList_GetItem(counts, i));
        if (count == -1 && PyErr_Occurred())
            return -1;
        if (PyObject_GetBuffer(PyList_GetItem(payloads, i), &payload, PyBUF_SIMPLE) < 0)
            return -1;
        const unsigned char *data = payload.buf;
        int copied = copy_payload(columns, data, data + payload.len, count);
        PyBuffer_Release(&payload);
        if (!copied)
            return 0;
    }
    return columns->row == columns->rows;
}

PyDoc_STRVAR(copy_messages_doc,
"copy_messages(payloads, counts, key_offsets, keys, valid, value_offsets, values)\n--\n\n"
"Copy the keys and values of the messages in a list of payloads, each with its number of messages, into columns.\n\n"
"`valid` has a bit of zero for each row, which is set if the row has a key. Returns the bytes of all keys, those of\n"
"all values, and the rows without a key; None if a message has no header of the usual shape, or a column is full.");

static PyObject *
copy_messages(PyObject *self, PyObject *args)
{
    PyObject *payloads, *counts, *key_offsets, *keys, *valid, *value_offsets, *values, *result = NULL;
    Views views = {.count = 0};
    Py_buffer *view[5];
    if (!PyArg_ParseTuple(args, "O!O!OOOOO:copy_messages", &PyList_Type, &payloads, &PyList_Type, &counts,
                          &key_offsets, &keys, &valid, &value_offsets, &values))
        return NULL;
    if ((view[0] = view_of(&views, key_offsets, 4, PyBUF_CONTIG)) == NULL ||
        (view[1] = view_of(&views, value_offsets, 4, PyBUF_CONTIG)) == NULL ||
        (view[2] = view_of(&views, keys, 1, PyBUF_CONTIG)) == NULL ||
        (view[3] = view_of(&views, values, 1, PyBUF_CONTIG)) == NULL ||
        (view[4] = view_of(&views, valid, 1, PyBUF_CONTIG)) == NULL)
        goto done;
    Py_ssize_t rows = view[0]->len / 4 - 1;
    if (rows < 0 || view[1]->len != view[0]->len || view[4]->len < (rows + 7) / 8 || view[2]->len > OFFSET_MAX ||
        view[3]->len > OFFSET_MAX || PyList_Size(payloads) != PyList_Size(counts)) {
        PyErr_SetString(PyExc_ValueError, "copy_messages needs columns of one length, and a count for each payload");
        goto done;
    }
    Columns columns = {
        .key_ends = view[0]->buf, .value_ends = view[1]->buf, .keys = view[2]->buf, .values = view[3]->buf,
        .valid = view[4]->buf, .rows = rows, .keys_size = view[2]->len, .values_size = view[3]->len,
    };
    columns.key_ends[0] = columns.value_ends[0] = 0;
    int copied = copy_payloads(&columns, payloads, counts);
    if (copied > 0)
        result = Py_BuildValue("(nnn)", columns.keys_used, columns.values_used, columns.missing);
    else if (copied == 0)
        result = Py_NewRef(Py_None);
done:
    release_views(&views);
    return result;
}

/* Columns into messages. */

typedef struct {
    const unsigned char *data;
    const int64_t *offsets;
    Py_ssize_t size;
} Spans;

/* The bytes of a row; -1 if they do not lie in the column. */
static Py_ssize_t
span(const Spans *column, int64_t row, const unsigned char **start)
{
    int64_t begin = column->offsets[row], end = column->offsets[row + 1];
    if (begin < 0 || begin > end || end > column->size)
        return -1;
    *start = column->data + begin;
    return (Py_ssize_t)(end - begin);
}

/* Write the message of a row; returns the byte behind it, or NULL if it does not fit or the row does not exist. */
static unsigned char *
write_message(unsigned char *at, const unsigned char *end, int64_t row, const Spans *keys, const Spans *values,
              int64_t event_time, int64_t sequence)
{
    const unsigned char *key = NULL, *value;
    Py_ssize_t key_size = keys == NULL ? 0 : span(keys, row, &key), value_size = span(values, row, &value);
    if (key_size < 0 || value_size < 0 || end - at < FIELDS_BYTES_MAX || key_size > end - at - FIELDS_BYTES_MAX ||
        value_size > end - at - FIELDS_BYTES_MAX - key_size)
        return NULL;
    unsigned char *head = at;
    at += 4;
    if (keys != NULL) {
        *at++ = KEY_TAG;
        at = write_varint(at, (uint64_t)key_size);
        memcpy(at, key, (size_t)key_size);
        at += key_size;
    }
    *at++ = SIZE_TAG;
    at = write_varint(at, (uint64_t)value_size);
    if (event_time) {
        *at++ = EVENT_TIME_TAG;
        at = write_varint(at, (uint64_t)event_time);
    }
    if (sequence >= 0) {
        *at++ = SEQUENCE_TAG;
        at = write_varint(at, (uint64_t)sequence);
    }
    uint32_t size = (uint32_t)(at - head - 4);
    head[0] = (unsigned char)(size >> 24);
    head[1] = (unsigned char)(size >> 16);
    head[2] = (unsigned char)(size >> 8);
    head[3] = (unsigned char)size;
    memcpy(at, value, (size_t)value_size);
    return at + value_size;
}

PyDoc_STRVAR(join_messages_doc,
"join_messages(order, keys, values, event_times, first_sequence_id, messages, starts)\n--\n\n"
"Write the messages of rows in this order; returns whether they fit.\n\n"
"Keys and values are pairs of bytes and 64-bit offsets; None stands for no keys, for no event times, and for no\n"
"sequence ids. A row has the sequence id of the first row plus its number. Fills the offsets before and after each\n"
"message.");

static int
open_spans(Views *views, PyObject *pair, Py_ssize_t rows, Spans *spans)
{
    PyObject *data, *offsets;
    Py_buffer *view;
    if (!PyArg_ParseTuple(pair, "OO", &data, &offsets) || (view = view_of(views, data, 1, PyBUF_CONTIG_RO)) == NULL)
        return -1;
    spans->data = view->buf;
    spans->size = view->len;
    if ((view = view_of(views, offsets, 8, PyBUF_CONTIG_RO)) == NULL)
        return -1;
    spans->offsets = view->buf;
    if (view->len / 8 != rows + 1) {
        PyErr_SetString(PyExc_ValueError, "columns have different lengths");
        return -1;
    }
    return 0;
}

static PyObject *
join_messages(PyObject *self, PyObject *args)
{
    PyObject *order, *keys, *values, *times, *first, *messages, *starts, *result = NULL;
    Views views = {.count = 0};
    Spans key_spans, value_spans;
    Py_buffer *rows, *out, *out_starts, *time_view = NULL;
    int64_t first_sequence = -1;
    if (!PyArg_ParseTuple(args, "OOOOOOO:join_messages", &order, &keys, &values, &times, &first, &messages, &starts))
        return NULL;
    if (first != Py_None && (first_sequence = PyLong_AsLongLong(first)) < 0) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_ValueError, "a sequence id is negative");
        return NULL;
    }
    if ((rows = view_of(&views, order, 8, PyBUF_CONTIG_RO)) == NULL)
        goto done;
    Py_ssize_t count = rows->len / 8;
    if ((keys != Py_None && open_spans(&views, keys, count, &key_spans) < 0) ||
        open_spans(&views, values, count, &value_spans) < 0 ||
        (times != Py_None && (time_view = view_of(&views, times, 8, PyBUF_CONTIG_RO)) == NULL) ||
        (out = view_of(&views, messages, 1, PyBUF_CONTIG)) == NULL ||
        (out_starts = view_of(&views, starts, 8, PyBUF_CONTIG)) == NULL)
        goto done;
    if (out_starts->len != rows->len + 8 || (time_view != NULL && time_view->len != rows->len) ||
        first_sequence > INT64_MAX - count) {
        PyErr_SetString(PyExc_ValueError, "join_messages needs columns of one length");
        goto done;
    }
    unsigned char *begin = out->buf, *at = begin;
    const int64_t *numbers = rows->buf, *event_times = time_view == NULL ? NULL : time_view->buf;
    int64_t *offsets = out_starts->buf;
    offsets[0] = 0;
    for (Py_ssize_t i = 0; i < count && at != NULL; i++) {
        int64_t row = numbers[i];
        if (row < 0 || row >= count) {
            at = NULL;
            break;
        }
        at = write_message(at, begin + out->len, row, keys == Py_None ? NULL : &key_spans, &value_spans,
                           event_times == NULL ? 0 : event_times[row], first_sequence < 0 ? -1 : first_sequence + row);
        if (at != NULL)
            offsets[i + 1] = at - begin;
    }
    result = PyBool_FromLong(at != NULL);
done:
    release_views(&views);
    return result;
}

/* Hashes. */

static uint32_t
rotated(uint32_t word, int bits)
{
    return word << bits | word >> (32 - bits);
}

static uint32_t
mixed(uint32_t word)
{
    return rotated(word * 0xcc9e2d51u, 15) * 0x1b873593u;
}

/* The 32-bit hash of MurmurHash3 with the seed 0. */
static uint32_t
murmur(const unsigned char *data, Py_ssize_t size)
{
    uint32_t hash = 0, tail = 0;
    Py_ssize_t at = 0;
    for (; size - at >= 4; at += 4) {
        uint32_t word = (uint32_t)data[at] | (uint32_t)data[at + 1] << 8 | (uint32_t)data[at + 2] << 16 |
                        (uint32_t)data[at + 3] << 24;
        hash = rotated(hash ^ mixed(word), 13) * 5 + 0xe6546b64u;
    }
    for (int shift = 0; at < size; at++, shift += 8)
        tail |= (uint32_t)data[at] << shift;
    hash ^= mixed(tail);
    hash ^= (uint32_t)size;
    hash = (hash ^ hash >> 16) * 0x85ebca6bu;
    hash = (hash ^ hash >> 13) * 0xc2b2ae35u;
    return hash ^ hash >> 16;
}

PyDoc_STRVAR(hash_rows_doc,
"hash_rows(data, offsets, hashes)\n--\n\n"
"Fill a column of 32-bit numbers with the hashes of spans, whose 64-bit offsets are one more; returns whether all\n"
"spans lie in the data.");

static PyObject *
hash_rows(PyObject *self, PyObject *args)
{
    PyObject *data, *offsets, *hashes, *result = NULL;
    Views views = {.count = 0};
    Spans spans;
    Py_buffer *out;
    if (!PyArg_ParseTuple(args, "OOO:hash_rows", &data, &offsets, &hashes))
        return NULL;
    PyObject *pair = PyTuple_Pack(2, data, offsets);
    if (pair == NULL)
        return NULL;
    if ((out = view_of(&views, hashes, 4, PyBUF_CONTIG)) == NULL ||
        open_spans(&views, pair, out->len / 4, &spans) < 0)
        goto done;
    uint32_t *hash = out->buf;
    Py_ssize_t row = 0;
    for (; row < out->len / 4; row++) {
        const unsigned char *start;
        Py_ssize_t size = span(&spans, row, &start);
        if (size < 0)
            break;
        hash[row] = murmur(start, size);
    }
    result = PyBool_FromLong(row == out->len / 4);
done:
    release_views(&views);
    Py_DECREF(pair);
    return result;
}

static PyMethodDef methods[] = {
    {"copy_messages", copy_messages, METH_VARARGS, copy_messages_doc},
    {"join_messages", join_messages, METH_VARARGS, join_messages_doc},
    {"hash_rows", hash_rows, METH_VARARGS, hash_rows_doc},
    {NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "anabranch._columns",
    .m_doc = "Compiled forms of the steps that Spark's source and sink take for each row.",
    .m_size = -1,
    .m_methods = methods,
};

PyMODINIT_FUNC
PyInit__columns(void)
{
    return PyModule_Create(&module);
}
