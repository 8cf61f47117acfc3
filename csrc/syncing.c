/* A thread that appends bytes to a file and syncs the file, without the interpreter.

   A thread of Python waits for the interpreter twice for each commit, once to begin the write and once to report
   its end, and the event loop waits for the interpreter behind it. This thread never holds the interpreter. It
   does one append at a time and reports its end on an event descriptor, which the event loop watches. The module
   uses the stable interface of CPython 3.11, so one build serves every later version. */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030b0000
#include <Python.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define FORGET_BYTES (1024 * 1024)  /* As in `os_disk.py`, which says why pages are forgotten. */

typedef enum { IDLE, GIVEN, DONE } State;

typedef struct {
    PyObject_HEAD
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pid_t runs_in;  /* The process of the thread, 0 before it starts: a fork does not copy threads. */
    int ends, event;
    State state;
    int file, error;
    PyObject *data;
    const char *bytes;
    Py_ssize_t size, written;
} SyncThread;

/* Append all bytes and sync the file; returns the number of an error, or 0. */
static int
append_and_sync(int file, const char *bytes, Py_ssize_t size, Py_ssize_t *written)
{
    *written = 0;
    while (*written < size) {
        ssize_t step = write(file, bytes + *written, size - *written);
        if (step >= 0)
            *written += step;
        else if (errno != EINTR)
            return errno;
    }
    while (fdatasync(file) < 0)
        if (errno != EINTR)
            return errno;
    return 0;
}

static void *
serve(void *given)
{
    SyncThread *self = given;
    Py_ssize_t unforgotten = 0;
    const uint64_t one = 1;
    pthread_mutex_lock(&self->lock);
    for (;;) {
        while (self->state != GIVEN && !self->ends)
            pthread_cond_wait(&self->changed, &self->lock);
        if (self->state != GIVEN)
            break;
        int file = self->file;
        const char *bytes = self->bytes;
        Py_ssize_t size = self->size, written;
        pthread_mutex_unlock(&self->lock);
        int error = append_and_sync(file, bytes, size, &written);
        if ((unforgotten += written) >= FORGET_BYTES) {
            unforgotten = 0;
            posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
        }
        pthread_mutex_lock(&self->lock);
        self->error = error;
        self->written = written;
        self->state = DONE;
        /* The counter of an event descriptor cannot overflow here, so the write does not fail. */
        if (write(self->event, &one, sizeof one) < 0)
            continue;
    }
    pthread_mutex_unlock(&self->lock);
    return NULL;
}

static int
start(SyncThread *self)
{
    sigset_t all, before;
    sigfillset(&all);
    /* Signals belong to the threads of Python. */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(&self->thread, NULL, serve, self);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    self->runs_in = failed ? 0 : getpid();
    return failed;
}

PyDoc_STRVAR(give_doc,
"give(file, data)\n--\n\n"
"Append the bytes to the file of this descriptor, and sync it; one append at a time.");

static PyObject *
give(SyncThread *self, PyObject *args)
{
    int file;
    PyObject *data;
    if (!PyArg_ParseTuple(args, "iS", &file, &data))
        return NULL;
    if (self->ends || self->data != NULL) {
        PyErr_SetString(PyExc_RuntimeError, self->ends ? "the thread is closed" : "an append is under way");
        return NULL;
    }
    if (!self->runs_in && (errno = start(self)))
        return PyErr_SetFromErrno(PyExc_OSError);
    self->data = Py_NewRef(data);
    pthread_mutex_lock(&self->lock);
    self->file = file;
    self->bytes = PyBytes_AsString(data);
    self->size = PyBytes_Size(data);
    self->state = GIVEN;
    pthread_cond_signal(&self->changed);
    pthread_mutex_unlock(&self->lock);
    Py_RETURN_NONE;
}

PyDoc_STRVAR(take_doc,
"take()\n--\n\n"
"The bytes that the append wrote and the number of its error, 0 without one; None while it is under way.");

static PyObject *
take(SyncThread *self, PyObject *unused)
{
    uint64_t count;
    if (read(self->event, &count, sizeof count) < 0 && errno != EAGAIN)
        return PyErr_SetFromErrno(PyExc_OSError);
    pthread_mutex_lock(&self->lock);
    int done = self->state == DONE, error = self->error;
    Py_ssize_t written = self->written;
    if (done)
        self->state = IDLE;
    pthread_mutex_unlock(&self->lock);
    if (!done)
        Py_RETURN_NONE;
    Py_CLEAR(self->data);
    return Py_BuildValue("ni", written, error);
}

static void
end(SyncThread *self)
{
    if (self->ends)
        return;
    pthread_mutex_lock(&self->lock);
    self->ends = 1;
    pthread_cond_signal(&self->changed);
    pthread_mutex_unlock(&self->lock);
    if (self->runs_in == getpid()) {
        Py_BEGIN_ALLOW_THREADS
        pthread_join(self->thread, NULL);
        Py_END_ALLOW_THREADS
    }
    close(self->event);
    Py_CLEAR(self->data);
}

PyDoc_STRVAR(close_doc,
"close()\n--\n\n"
"Take no more appends, and wait for the one under way.");

static PyObject *
close_thread(SyncThread *self, PyObject *unused)
{
    end(self);
    Py_RETURN_NONE;
}

PyDoc_STRVAR(fileno_doc,
"fileno()\n--\n\n"
"The descriptor that becomes readable when an append has ended.");

static PyObject *
fileno_of(SyncThread *self, PyObject *unused)
{
    return PyLong_FromLong(self->event);
}

static PyObject *
new_thread(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    if (!PyArg_ParseTuple(args, ""))
        return NULL;
    int event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (event < 0)
        return PyErr_SetFromErrno(PyExc_OSError);
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    SyncThread *self = (SyncThread *)allocate(type, 0);
    if (self == NULL) {
        close(event);
        return NULL;
    }
    self->event = event;
    pthread_mutex_init(&self->lock, NULL);
    pthread_cond_init(&self->changed, NULL);
    return (PyObject *)self;
}

static void
dealloc_thread(SyncThread *self)
{
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    end(self);
    pthread_cond_destroy(&self->changed);
    pthread_mutex_destroy(&self->lock);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(self);
    Py_DECREF(type);
}

static PyMethodDef thread_methods[] = {
    {"give", (PyCFunction)give, METH_VARARGS, give_doc},
    {"take", (PyCFunction)take, METH_NOARGS, take_doc},
    {"close", (PyCFunction)close_thread, METH_NOARGS, close_doc},
    {"fileno", (PyCFunction)fileno_of, METH_NOARGS, fileno_doc},
    {NULL, NULL, 0, NULL},
};

PyDoc_STRVAR(thread_doc,
"SyncThread()\n--\n\n"
"A thread that appends bytes to files and syncs them; the first append starts it.");

static PyType_Slot thread_slots[] = {
    {Py_tp_doc, (void *)thread_doc},
    {Py_tp_new, new_thread},
    {Py_tp_dealloc, dealloc_thread},
    {Py_tp_methods, thread_methods},
    {0, NULL},
};

static PyType_Spec thread_spec = {
    .name = "anabranch._syncing.SyncThread",
    .basicsize = sizeof(SyncThread),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = thread_slots,
};

static int
fill_module(PyObject *module)
{
    PyObject *type = PyType_FromModuleAndSpec(module, &thread_spec, NULL);
    int failed = type == NULL ? -1 : PyModule_AddType(module, (PyTypeObject *)type);
    Py_XDECREF(type);
    return failed;
}

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, fill_module},
    {0, NULL},
};

static struct PyModuleDef syncing_module = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "anabranch._syncing",
    .m_doc = "Appends and syncs on a thread that needs no interpreter.",
    .m_slots = module_slots,
};

PyMODINIT_FUNC
PyInit__syncing(void)
{
    return PyModuleDef_Init(&syncing_module);
}
