/* The rows of an open batch, which are kept as bytes of its entry. */

#include "headers.h"
#include "sending.h"

/* Limits of the field `message_sizes`, as in protocol/entry/message_sizes.py. */
#define SIZES_BYTES_MAX 3072
#define SIZES_MESSAGES_MIN 4
#define SIZES_HEADER_MAX 134

#define SLOT_MAX 0xffff
#define PACKED_BYTES_MAX ((Py_ssize_t)1 << 30)
#define FIRST_BYTES 4096
#define FIRST_ROWS 32

PyObject *packed_rows_type;

int
read_row(Row *row, PyObject *value, PyObject *key)
{
    if (!PyBytes_CheckExact(value) || row->slot < 0 || row->slot > SLOT_MAX)
        return 0;
    row->value = value;
    row->key = NULL;
    row->key_size = 0;
    row->header_size = 2 + varint_length((uint64_t)PyBytes_Size(value)) + varint_length(row->sequence);
    if (key == Py_None)
        return 1;
    if (!PyUnicode_CheckExact(key))
        return 0;  /* Bytes may need Base64. */
    row->key = PyUnicode_AsUTF8AndSize(key, &row->key_size);
    if (row->key == NULL) {
        PyErr_Clear();
        return 0;
    }
    row->header_size += 1 + varint_length((uint64_t)row->key_size) + row->key_size;
    return 1;
}

/* Make room for a message of `size` bytes; returns 0 if the rows would be too large, -1 for an error. */
static int
make_room(PackedRows *rows, Py_ssize_t size)
{
    if (size > PACKED_BYTES_MAX - rows->used)
        return 0;
    if (rows->used + size > rows->allocated) {
        Py_ssize_t wanted = rows->allocated ? 2 * rows->allocated : FIRST_BYTES;
        while (wanted < rows->used + size)
            wanted *= 2;
        unsigned char *data = PyMem_Realloc(rows->data, (size_t)wanted);
        if (data == NULL) {
            PyErr_NoMemory();
            return -1;
        }
        rows->data = data;
        rows->allocated = wanted;
    }
    if (rows->count == rows->places_allocated) {
        Py_ssize_t wanted = rows->places_allocated ? 2 * rows->places_allocated : FIRST_ROWS;
        RowPlace *places = PyMem_Realloc(rows->places, (size_t)wanted * sizeof(RowPlace));
        if (places == NULL) {
            PyErr_NoMemory();
            return -1;
        }
        rows->places = places;
        rows->places_allocated = wanted;
    }
    return 1;
}

int
pack_row(PackedRows *rows, const Row *row)
{
    Py_ssize_t value_size = PyBytes_Size(row->value);
    if (value_size > PACKED_BYTES_MAX || row->key_size > PACKED_BYTES_MAX)
        return 0;
    int room = make_room(rows, 4 + row->header_size + value_size);
    if (room <= 0)
        return room;
    RowPlace *place = &rows->places[rows->count];
    unsigned char *at = rows->data + rows->used;
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
    at = write_varint(at, (uint64_t)value_size);
    *at++ = SEQUENCE_TAG;
    at = write_varint(at, row->sequence);
    memcpy(at, PyBytes_AsString(row->value), (size_t)value_size);
    place->start = (uint32_t)rows->used;
    place->value_size = (uint32_t)value_size;
    place->key_size = (uint32_t)row->key_size;
    place->has_key = row->key != NULL;
    place->header_size = row->header_size < 255 ? (uint8_t)row->header_size : 255;
    place->sequence = row->sequence;
    place->slot = (uint16_t)row->slot;
    rows->used = at + value_size - rows->data;
    rows->count++;
    return 1;
}

/* The row as a tuple of value, key, sequence id and slot. */
static PyObject *
unpacked_row(const PackedRows *rows, Py_ssize_t number)
{
    const RowPlace *place = &rows->places[number];
    Py_ssize_t end = number + 1 < rows->count ? place[1].start : rows->used;
    const char *value = (const char *)rows->data + end - place->value_size;
    const char *key = (const char *)rows->data + place->start + 5 + varint_length(place->key_size);
    PyObject *text = place->has_key ? PyUnicode_FromStringAndSize(key, place->key_size) : Py_NewRef(Py_None);
    if (text == NULL)
        return NULL;
    return Py_BuildValue("(y#NKi)", value, (Py_ssize_t)place->value_size, text,
                         (unsigned long long)place->sequence, (int)place->slot);
}

/* Keep the rows as a list from now on; returns -1 for an error. */
static int
unpack_all(PackedRows *rows)
{
    PyObject *list = PyList_New(0);
    if (list == NULL)
        return -1;
    for (Py_ssize_t i = 0; i < rows->count; i++) {
        PyObject *row = unpacked_row(rows, i);
        if (row == NULL || PyList_Append(list, row) < 0) {
            Py_XDECREF(row);
            Py_DECREF(list);
            return -1;
        }
        Py_DECREF(row);
    }
    rows->unusual = list;
    return 0;
}

PyDoc_STRVAR(append_doc,
"append(row)\n--\n\n"
"Add a row of (value, key, sequence id, bucket hash); after an unusual one the rows are kept as a list.");

static PyObject *
packed_append(PyObject *self, PyObject *tuple)
{
    PackedRows *rows = (PackedRows *)self;
    if (!PyTuple_CheckExact(tuple) || PyTuple_Size(tuple) != 4) {
        PyErr_SetString(PyExc_TypeError, "a row is a tuple of value, key, sequence id and bucket hash");
        return NULL;
    }
    if (rows->unusual == NULL) {
        Row row;
        int packed = 0;
        long long sequence = PyLong_AsLongLong(PyTuple_GetItem(tuple, 2));
        row.sequence = (uint64_t)sequence;
        row.slot = PyLong_AsLong(PyTuple_GetItem(tuple, 3));
        if (PyErr_Occurred())
            return NULL;
        if (sequence >= 0 && read_row(&row, PyTuple_GetItem(tuple, 0), PyTuple_GetItem(tuple, 1)))
            packed = pack_row(rows, &row);
        if (packed > 0)
            Py_RETURN_NONE;
        if (packed < 0 || unpack_all(rows) < 0)
            return NULL;
    }
    if (PyList_Append(rows->unusual, tuple) < 0)
        return NULL;
    Py_RETURN_NONE;
}

/* The field `message_sizes`; None if a header is unusual or the field would be too large. */
static PyObject *
encoded_sizes(const PackedRows *rows)
{
    uint32_t largest = 0, smallest = UINT32_MAX;
    Py_ssize_t count = rows->count;
    if (count < SIZES_MESSAGES_MIN)
        Py_RETURN_NONE;
    for (Py_ssize_t i = 0; i < count; i++) {
        if (rows->places[i].header_size > SIZES_HEADER_MAX)
            Py_RETURN_NONE;
        uint32_t size = rows->places[i].value_size;
        largest = size > largest ? size : largest;
        smallest = size < smallest ? size : smallest;
    }
    Py_ssize_t width = largest == smallest ? 0 : largest < 0x100 ? 1 : largest < 0x10000 ? 2 : 4;
    Py_ssize_t total = 1 + count + (width ? width * count : 4);
    if (total > SIZES_BYTES_MAX)
        Py_RETURN_NONE;
    PyObject *sizes = PyBytes_FromStringAndSize(NULL, total);
    if (sizes == NULL)
        return NULL;
    unsigned char *at = (unsigned char *)PyBytes_AsString(sizes);
    *at++ = (unsigned char)width;
    for (Py_ssize_t i = 0; i < count; i++)
        *at++ = rows->places[i].header_size;
    for (Py_ssize_t i = 0; i < (width ? count : 1); i++)
        for (Py_ssize_t byte = 0; byte < (width ? width : 4); byte++)
            *at++ = (unsigned char)(rows->places[i].value_size >> (8 * byte));
    return sizes;
}

PyDoc_STRVAR(encoded_doc,
"encoded()\n--\n\n"
"The messages of the batch, the field of their sizes, and their lowest and highest bucket hash.\n\n"
"None without rows, or if one of them is unusual.");

static PyObject *
packed_encoded(PyObject *self, PyObject *unused)
{
    PackedRows *rows = (PackedRows *)self;
    if (rows->unusual != NULL || rows->count == 0)
        Py_RETURN_NONE;
    int low = SLOT_MAX, high = 0;
    for (Py_ssize_t i = 0; i < rows->count; i++) {
        int slot = rows->places[i].slot;
        low = slot < low ? slot : low;
        high = slot > high ? slot : high;
    }
    PyObject *sizes = encoded_sizes(rows);
    if (sizes == NULL)
        return NULL;
    return Py_BuildValue("(y#Nii)", (const char *)rows->data, rows->used, sizes, low, high);
}

static Py_ssize_t
packed_length(PyObject *self)
{
    PackedRows *rows = (PackedRows *)self;
    return rows->unusual == NULL ? rows->count : PyList_Size(rows->unusual);
}

static PyObject *
packed_item(PyObject *self, Py_ssize_t number)
{
    PackedRows *rows = (PackedRows *)self;
    if (rows->unusual != NULL)
        return PySequence_GetItem(rows->unusual, number);
    if (number < 0 || number >= rows->count) {
        PyErr_SetString(PyExc_IndexError, "no such row");
        return NULL;
    }
    return unpacked_row(rows, number);
}

static int
packed_traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(((PackedRows *)self)->unusual);
    return 0;
}

static int
packed_clear(PyObject *self)
{
    Py_CLEAR(((PackedRows *)self)->unusual);
    return 0;
}

static void
packed_dealloc(PyObject *self)
{
    PackedRows *rows = (PackedRows *)self;
    PyObject_GC_UnTrack(self);
    packed_clear(self);
    PyMem_Free(rows->data);
    PyMem_Free(rows->places);
    free_object(self);
}

static PyMethodDef packed_methods[] = {
    {"append", packed_append, METH_O, append_doc},
    {"encoded", packed_encoded, METH_NOARGS, encoded_doc},
    {NULL},
};

static PyType_Slot packed_slots[] = {
    {Py_tp_doc, "The rows of an open batch, kept as bytes of its entry; a list of rows for its users."},
    {Py_tp_methods, packed_methods},
    {Py_sq_length, packed_length},
    {Py_sq_item, packed_item},
    {Py_tp_traverse, packed_traverse},
    {Py_tp_clear, packed_clear},
    {Py_tp_dealloc, packed_dealloc},
    {0, NULL},
};

PyType_Spec packed_rows_spec = {
    "anabranch._sending.PackedRows", sizeof(PackedRows), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, packed_slots,
};
