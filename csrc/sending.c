/* The module of the compiled steps of a producer; `sending.h` says what they do. */

#include "sending.h"

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "anabranch._sending",
    .m_doc = "Compiled forms of the steps that a producer takes for each message.",
    .m_size = -1,
    .m_methods = adding_methods,
};

/* Make a type, keep it in `kept`, and add it to the module unless `name` is NULL. */
static int
add_type(PyObject *made, PyType_Spec *spec, const char *name, PyObject **kept)
{
    *kept = PyType_FromSpec(spec);
    if (*kept == NULL)
        return -1;
    return name == NULL ? 0 : PyModule_AddObjectRef(made, name, *kept);
}

PyMODINIT_FUNC
PyInit__sending(void)
{
    static PyObject *enqueuer_type;
    PyObject *made = PyModule_Create(&module);
    if (made == NULL)
        return NULL;
    if ((text_key = PyUnicode_InternFromString("key")) == NULL
        || (text_batch = PyUnicode_InternFromString("_batch")) == NULL
        || (text_index = PyUnicode_InternFromString("_index")) == NULL
        || (text_watch = PyUnicode_InternFromString("_watch")) == NULL
        || (text_popleft = PyUnicode_InternFromString("popleft")) == NULL
        || add_type(made, &packed_rows_spec, "PackedRows", &packed_rows_type) < 0
        || add_type(made, &gate_spec, "RoomGate", &gate_type) < 0
        || add_type(made, &counter_spec, "Counter", &counter_type) < 0
        || add_type(made, &open_place_spec, "OpenPlace", &open_place_type) < 0
        || add_type(made, &send_place_spec, "SendPlace", &send_place_type) < 0
        || add_type(made, &enqueuer_spec, "Enqueuer", &enqueuer_type) < 0
        || add_type(made, &enqueuing_spec, NULL, &enqueuing_type) < 0) {
        Py_DECREF(made);
        return NULL;
    }
    return made;
}
