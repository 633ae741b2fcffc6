/* One use of a slot of memory (`slots.py`): arrays keep it alive through their `base`, and it returns the memory when it dies. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

typedef struct {
  PyObject_HEAD
  PyObject *free; /* a list, which gets the memory back */
  Py_buffer memory;
} Lease;

static PyObject *lease_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
  PyObject *memory, *unused;
  if (!PyArg_ParseTuple(args, "OO!", &memory, &PyList_Type, &unused)) return NULL;
  Lease *self = (Lease *)PyType_GenericAlloc(type, 0);
  if (self == NULL) return NULL;
  if (PyObject_GetBuffer(memory, &self->memory, PyBUF_WRITABLE) == 0) {
    self->free = Py_NewRef(unused);
    return (PyObject *)self;
  }
  Py_DECREF(self);
  return NULL;
}

static void lease_dealloc(Lease *self) {
  if (self->free != NULL) {
    PyObject *kind, *value, *trace; /* an array may die while an error is on its way */
    PyErr_Fetch(&kind, &value, &trace);
    PyObject *memory = Py_NewRef(self->memory.obj);
    PyBuffer_Release(&self->memory);
    if (PyList_Append(self->free, memory) != 0) PyErr_Clear(); /* out of memory: this slot is given up */
    Py_DECREF(memory);
    Py_DECREF(self->free);
    PyErr_Restore(kind, value, trace);
  }
  PyTypeObject *type = Py_TYPE((PyObject *)self);
  PyObject_Free(self);
  Py_DECREF(type); /* an instance holds its type */
}

static int lease_buffer(Lease *self, Py_buffer *view, int flags) {
  return PyBuffer_FillInfo(view, (PyObject *)self, self->memory.buf, self->memory.len, 0, flags);
}

static PyType_Slot lease_slots[] = {
    {Py_tp_doc, "One use of memory: a list gets it back when nothing of it is alive."},
    {Py_tp_new, lease_new},
    {Py_tp_dealloc, lease_dealloc},
    {Py_bf_getbuffer, lease_buffer},
    {0, NULL},
};

static PyType_Spec lease_spec = {
    .name = "spiral_stream.runtime._slots.Lease",
    .basicsize = sizeof(Lease),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = lease_slots,
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_slots", NULL, -1, NULL, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__slots(void) {
  PyObject *module = PyModule_Create(&definition), *type = PyType_FromSpec(&lease_spec);
  if (module == NULL || type == NULL || PyModule_AddType(module, (PyTypeObject *)type) != 0) Py_CLEAR(module);
  Py_XDECREF(type);
  return module;
}
