/* A producer's `enqueue`, and the coroutine of a call to it. */

#include "sending.h"

PyObject *enqueuing_type, *text_key;

typedef struct {
    PyObject_HEAD
    PyObject *by_key, *gate, *counter, *future, *loop, *slow;
    char closed;
} Enqueuer;

enum { NEW, DELEGATED, DONE };

typedef struct {
    PyObject_HEAD
    PyObject *enqueuer, *value, *key;
    PyObject *inner;  /* The coroutine of the Python form, if that has the message. */
    int state;
} Enqueuing;

/* The coroutine of the Python form; `args` or `names` may be NULL because of an error. */
static PyObject *
call_python(Enqueuer *enqueuer, PyObject *args, PyObject *names)
{
    if (args == NULL || names == NULL)
        return NULL;
    if (enqueuer->slow == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "the producer does not exist any more");
        return NULL;
    }
    return PyObject_Call(enqueuer->slow, args, names);
}

static PyObject *
call_slow(Enqueuer *enqueuer, PyObject *value, PyObject *key)
{
    PyObject *args = PyTuple_Pack(1, value), *names = Py_BuildValue("{OO}", text_key, key);
    PyObject *made = call_python(enqueuer, args, names);
    Py_XDECREF(args);
    Py_XDECREF(names);
    return made;
}

/* The future of a message that was added; None if the Python form has to add it. */
static PyObject *
try_enqueue(Enqueuer *enqueuer, PyObject *value, PyObject *key)
{
    Row row;
    long long left;
    if (enqueuer->closed || ((RoomGate *)enqueuer->gate)->full)
        Py_RETURN_NONE;
    OpenPlace *place = place_for(enqueuer->by_key, value, key, &row, &left);
    if (place == NULL)
        Py_RETURN_NONE;
    Py_ssize_t index = ((PackedRows *)place->rows)->count;
    PyObject *batch = Py_NewRef(place->batch), *future = NULL;
    int added = add_to(place, (Counter *)enqueuer->counter, value, key, &row, left);
    if (added > 0)
        future = new_send_place((PyTypeObject *)enqueuer->future, batch, index, enqueuer->loop);
    else if (added == 0)
        future = Py_NewRef(Py_None);
    Py_DECREF(batch);
    return future;
}

static PySendResult
enqueuing_am_send(PyObject *self, PyObject *argument, PyObject **result)
{
    Enqueuing *call = (Enqueuing *)self;
    *result = NULL;
    if (call->state == DONE) {
        PyErr_SetString(PyExc_RuntimeError, "cannot reuse already awaited coroutine");
        return PYGEN_ERROR;
    }
    if (call->state == NEW) {
        if (argument != Py_None) {
            PyErr_SetString(PyExc_TypeError, "can't send non-None value to a just-started coroutine");
            return PYGEN_ERROR;
        }
        call->state = DONE;
        PyObject *future = try_enqueue((Enqueuer *)call->enqueuer, call->value, call->key);
        if (future != Py_None) {
            *result = future;
            return future == NULL ? PYGEN_ERROR : PYGEN_RETURN;
        }
        Py_DECREF(future);
        call->inner = call_slow((Enqueuer *)call->enqueuer, call->value, call->key);
        if (call->inner == NULL)
            return PYGEN_ERROR;
        call->state = DELEGATED;
        PyObject_GC_Track(self);
    }
    PyObject *inner = Py_NewRef(call->inner);
    PySendResult sent = PyIter_Send(inner, argument, result);
    Py_DECREF(inner);
    if (sent != PYGEN_NEXT)
        call->state = DONE;
    return sent;
}

/* The result of a step as callers in Python expect it: a value that was yielded, or StopIteration. */
static PyObject *
stepped(PySendResult sent, PyObject *result)
{
    if (sent == PYGEN_NEXT)
        return result;
    if (sent == PYGEN_RETURN) {
        PyErr_SetObject(PyExc_StopIteration, result);
        Py_DECREF(result);
    }
    return NULL;
}

static PyObject *
enqueuing_send(PyObject *self, PyObject *argument)
{
    PyObject *result;
    PySendResult sent = enqueuing_am_send(self, argument, &result);
    return stepped(sent, result);
}

static PyObject *
enqueuing_next(PyObject *self)
{
    return enqueuing_send(self, Py_None);
}

static PyObject *
enqueuing_throw(PyObject *self, PyObject *args)
{
    Enqueuing *call = (Enqueuing *)self;
    PyObject *type, *value = NULL, *trace = NULL;
    if (!PyArg_UnpackTuple(args, "throw", 1, 3, &type, &value, &trace))
        return NULL;
    if (call->state == DELEGATED) {
        PyObject *throw = PyObject_GetAttrString(call->inner, "throw");
        PyObject *result = throw == NULL ? NULL : PyObject_Call(throw, args, NULL);
        Py_XDECREF(throw);
        if (result == NULL)
            call->state = DONE;
        return result;
    }
    call->state = DONE;
    if (PyExceptionInstance_Check(type)) {
        PyErr_SetObject((PyObject *)Py_TYPE(type), type);
    }
    else if (PyExceptionClass_Check(type)) {
        PyErr_SetObject(type, value);
    }
    else {
        PyErr_SetString(PyExc_TypeError, "exceptions must be classes or instances deriving from BaseException");
    }
    return NULL;
}

static PyObject *
enqueuing_close(PyObject *self, PyObject *unused)
{
    Enqueuing *call = (Enqueuing *)self;
    int delegated = call->state == DELEGATED;
    call->state = DONE;
    if (!delegated)
        Py_RETURN_NONE;
    return PyObject_CallMethod(call->inner, "close", NULL);
}

static PyObject *
enqueuing_await(PyObject *self)
{
    return Py_NewRef(self);
}

static int
enqueuing_traverse(PyObject *self, visitproc visit, void *arg)
{
    Enqueuing *call = (Enqueuing *)self;
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(call->enqueuer);
    Py_VISIT(call->value);
    Py_VISIT(call->key);
    Py_VISIT(call->inner);
    return 0;
}

static int
enqueuing_clear(PyObject *self)
{
    Enqueuing *call = (Enqueuing *)self;
    call->state = DONE;
    Py_CLEAR(call->enqueuer);
    Py_CLEAR(call->value);
    Py_CLEAR(call->key);
    Py_CLEAR(call->inner);
    return 0;
}

static void
enqueuing_dealloc(PyObject *self)
{
    PyObject_GC_UnTrack(self);
    if (((Enqueuing *)self)->state == NEW) {
        PyObject *type, *error, *trace;
        PyErr_Fetch(&type, &error, &trace);
        if (PyErr_WarnEx(PyExc_RuntimeWarning, "coroutine 'AsyncProducer.enqueue' was never awaited", 1) < 0)
            PyErr_WriteUnraisable(Py_None);
        PyErr_Restore(type, error, trace);
    }
    enqueuing_clear(self);
    free_object(self);
}

static PyMethodDef enqueuing_methods[] = {
    {"send", enqueuing_send, METH_O, NULL},
    {"throw", enqueuing_throw, METH_VARARGS, NULL},
    {"close", enqueuing_close, METH_NOARGS, NULL},
    {NULL},
};

static PyType_Slot enqueuing_slots[] = {
    {Py_tp_doc, "A call of `enqueue`: a coroutine that adds its message when it is awaited."},
    {Py_tp_methods, enqueuing_methods},
    {Py_am_await, enqueuing_await},
    {Py_am_send, enqueuing_am_send},
    {Py_tp_iter, enqueuing_await},
    {Py_tp_iternext, enqueuing_next},
    {Py_tp_traverse, enqueuing_traverse},
    {Py_tp_clear, enqueuing_clear},
    {Py_tp_dealloc, enqueuing_dealloc},
    {0, NULL},
};

PyType_Spec enqueuing_spec = {
    "anabranch._sending.Enqueuing", sizeof(Enqueuing), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION, enqueuing_slots,
};

/* Whether a call names nothing but a key. */
static int
names_only_key(PyObject *names)
{
    if (PyTuple_Size(names) != 1)
        return 0;
    PyObject *name = PyTuple_GetItem(names, 0);
    return name == text_key || PyUnicode_CompareWithASCIIString(name, "key") == 0;
}

static PyObject *
call_with_all(Enqueuer *enqueuer, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    PyObject *values = PyTuple_New(count), *named = PyDict_New(), *made = NULL;
    if (values == NULL || named == NULL)
        goto done;
    for (Py_ssize_t i = 0; i < count; i++)
        if (PyTuple_SetItem(values, i, Py_NewRef(args[i])) < 0)
            goto done;
    for (Py_ssize_t i = 0; names != NULL && i < PyTuple_Size(names); i++)
        if (PyDict_SetItem(named, PyTuple_GetItem(names, i), args[count + i]) < 0)
            goto done;
    made = call_python(enqueuer, values, named);
done:
    Py_XDECREF(values);
    Py_XDECREF(named);
    return made;
}

PyDoc_STRVAR(enqueue_doc, "As `AsyncProducer.enqueue`, which takes the messages that are unusual.");

static PyObject *
enqueuer_enqueue(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    if (count != 1 || (names != NULL && !names_only_key(names)))
        return call_with_all((Enqueuer *)self, args, count, names);
    Enqueuing *call = PyObject_GC_New(Enqueuing, (PyTypeObject *)enqueuing_type);
    if (call == NULL)
        return NULL;
    call->enqueuer = Py_NewRef(self);
    call->value = Py_NewRef(args[0]);
    call->key = Py_NewRef(names == NULL ? Py_None : args[1]);
    call->inner = NULL;
    call->state = NEW;
    /* The collector learns of a call that lasts; most are done at once. */
    return (PyObject *)call;
}

static PyObject *
enqueuer_new(PyTypeObject *type, PyObject *args, PyObject *names)
{
    PyObject *by_key, *gate, *counter, *future, *loop, *slow;
    if (!PyArg_ParseTuple(args, "O!O!O!O!OO:Enqueuer", &PyDict_Type, &by_key, (PyTypeObject *)gate_type, &gate,
                          (PyTypeObject *)counter_type, &counter, &PyType_Type, &future, &loop, &slow))
        return NULL;
    if (!PyType_IsSubtype((PyTypeObject *)future, (PyTypeObject *)send_place_type)) {
        PyErr_SetString(PyExc_TypeError, "the type of the futures must be a subclass of SendPlace");
        return NULL;
    }
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    Enqueuer *made = (Enqueuer *)allocate(type, 0);
    if (made == NULL)
        return NULL;
    made->by_key = Py_NewRef(by_key);
    made->gate = Py_NewRef(gate);
    made->counter = Py_NewRef(counter);
    made->future = Py_NewRef(future);
    made->loop = Py_NewRef(loop);
    made->slow = Py_NewRef(slow);
    return (PyObject *)made;
}

static int
enqueuer_traverse(PyObject *self, visitproc visit, void *arg)
{
    Enqueuer *enqueuer = (Enqueuer *)self;
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(enqueuer->by_key);
    Py_VISIT(enqueuer->gate);
    Py_VISIT(enqueuer->counter);
    Py_VISIT(enqueuer->future);
    Py_VISIT(enqueuer->loop);
    Py_VISIT(enqueuer->slow);
    return 0;
}

static int
enqueuer_clear(PyObject *self)
{
    Enqueuer *enqueuer = (Enqueuer *)self;
    /* A call that outlives the clearing must find nothing to use. */
    enqueuer->closed = 1;
    Py_CLEAR(enqueuer->slow);
    Py_CLEAR(enqueuer->future);
    Py_CLEAR(enqueuer->loop);
    Py_CLEAR(enqueuer->by_key);
    Py_CLEAR(enqueuer->counter);
    Py_CLEAR(enqueuer->gate);
    return 0;
}

static void
enqueuer_dealloc(PyObject *self)
{
    PyObject_GC_UnTrack(self);
    enqueuer_clear(self);
    free_object(self);
}

static PyMethodDef enqueuer_methods[] = {
    {"enqueue", (PyCFunction)(void (*)(void))enqueuer_enqueue, METH_FASTCALL | METH_KEYWORDS, enqueue_doc},
    {NULL},
};

static PyMemberDef enqueuer_members[] = {{"closed", T_BOOL, offsetof(Enqueuer, closed), 0, NULL}, {NULL}};

static PyType_Slot enqueuer_slots[] = {
    {Py_tp_doc, "Enqueuer(by_key, gate, counter, future, loop, slow)\n--\n\nThe quick way into the batches of a producer."},
    {Py_tp_new, enqueuer_new},
    {Py_tp_methods, enqueuer_methods},
    {Py_tp_members, enqueuer_members},
    {Py_tp_traverse, enqueuer_traverse},
    {Py_tp_clear, enqueuer_clear},
    {Py_tp_dealloc, enqueuer_dealloc},
    {0, NULL},
};

PyType_Spec enqueuer_spec = {
    "anabranch._sending.Enqueuer", sizeof(Enqueuer), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, enqueuer_slots,
};
