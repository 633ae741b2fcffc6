/* Copy rows of several columns into a batch, in one call: values of fixed width and texts, from mapped memory.
 *
 * A column is a table of addresses: where the values of each shard begin, and of texts also where their ends do. A row is a
 * shard and an offset there. What a row touches has been verified (`_mapped.h`), or nothing is copied and the caller is told
 * which column to make ready. Rows of a shuffled batch miss all caches, so the loops ask for a row's line some rows ahead.
 */
#include "../integrity/_mapped.h"

#include <string.h>

#define AHEAD 16 /* rows: 8 to 32 take the same time */
#define FAR 256  /* bytes of a row that are asked for ahead */

typedef struct {
  Py_ssize_t width;       /* bytes of a value; 0: a text */
  uint64_t *bases, *ends; /* [S] addresses of values and, of texts, of their ends; 0: not mapped yet */
  int64_t *item;          /* [S] bytes of an item, of texts */
  PyObject *files;        /* a tuple: what they lie in, as far as it is mapped */
  int is_mapped;          /* no address is 0 */
} Column;

typedef struct {
  PyObject_HEAD
  Py_ssize_t count, shards;
  Column *columns;
} Rows;

/* One call: P rows, and scratch of P words each. */
typedef struct {
  Py_ssize_t count;
  const uint64_t *shards, *offsets;
  uint64_t *places;
  uint64_t *begins; /* of texts, column by column */
  int64_t *sizes;   /* their bytes */
} Call;

static const MappedFiles *mapped;

/* ---- a column's rows */

static uint64_t place(const uint64_t *bases, const Call *call, Py_ssize_t row, Py_ssize_t width) {
  return bases[call->shards[row]] + call->offsets[row] * (uint64_t)width;
}

/* Whether rows of a table are mapped and verified; each has so many bytes, and lies so far from the one before it. */
static int is_there(const uint64_t *bases, const Call *call, Py_ssize_t apart, int64_t bytes) {
  for (Py_ssize_t i = 0; i < call->count; i++) {
    if (bases[call->shards[i]] == 0) return 0;
    call->places[i] = place(bases, call, i, apart);
  }
  return mapped->rows_verified(call->places, &bytes, 1, call->count);
}

static int is_ready(const Column *column, const Call *call) {
  if (column->is_mapped && mapped->files_verified(column->files)) return 1;
  if (column->width) return is_there(column->bases, call, column->width, column->width);
  for (Py_ssize_t i = 0; i < call->count; i++)
    if (column->bases[call->shards[i]] == 0) return 0;
  return is_there(column->ends, call, 8, 16); /* where a text begins and ends */
}

#define COPY(SIZE)                                                                                       \
  for (Py_ssize_t i = 0; i < count; i++) {                                                               \
    if (i + AHEAD < count) __builtin_prefetch((const void *)(uintptr_t)place(bases, call, i + AHEAD, SIZE)); \
    memcpy(to + i * SIZE, (const void *)(uintptr_t)place(bases, call, i, SIZE), SIZE);                   \
  }

static void copy(const Column *column, const Call *call, uint8_t *to) {
  const uint64_t *bases = column->bases;
  const Py_ssize_t count = call->count, width = column->width;
  switch (width) {
    case 1: COPY(1) return;
    case 2: COPY(2) return;
    case 4: COPY(4) return;
    case 8: COPY(8) return;
    default: break;
  }
  for (Py_ssize_t i = 0; i < count; i++) {
    if (i + AHEAD < count) {
      const char *next = (const char *)(uintptr_t)place(bases, call, i + AHEAD, width);
      for (Py_ssize_t at = 0; at < width && at < FAR; at += 64) __builtin_prefetch(next + at);
    }
    memcpy(to + i * width, (const void *)(uintptr_t)place(bases, call, i, width), width);
  }
}

static void spans(const Column *column, const Call *call, uint64_t *begins, int64_t *sizes) {
  const uint64_t *ends = column->ends, *bases = column->bases;
  const int64_t *item = column->item;
  for (Py_ssize_t i = 0; i < call->count; i++) {
    if (i + AHEAD < call->count) __builtin_prefetch((const void *)(uintptr_t)place(ends, call, i + AHEAD, 8));
    int64_t pair[2];
    memcpy(pair, (const void *)(uintptr_t)place(ends, call, i, 8), 16);
    const uint64_t shard = call->shards[i];
    begins[i] = bases[shard] + (uint64_t)(pair[0] * item[shard]);
    sizes[i] = (pair[1] - pair[0]) * item[shard];
  }
}

static PyObject *texts(const uint64_t *begins, const int64_t *sizes, Py_ssize_t count) {
  PyObject *out = PyList_New(count);
  for (Py_ssize_t i = 0; out != NULL && i < count; i++) {
    if (i + AHEAD < count) __builtin_prefetch((const void *)(uintptr_t)begins[i + AHEAD]);
    PyObject *one = PyUnicode_DecodeUTF8((const char *)(uintptr_t)begins[i], (Py_ssize_t)sizes[i], NULL);
    if (one == NULL || PyList_SetItem(out, i, one) != 0) Py_CLEAR(out);
  }
  return out;
}

/* ---- one call */

/* The arrays of a batch, those of texts empty; 0 with an error if one has another size. */
static int outputs(const Rows *self, const Call *call, PyObject *outs, Py_buffer *views) {
  for (Py_ssize_t k = 0; k < self->count; k++) {
    const Py_ssize_t width = self->columns[k].width;
    if (!width) continue;
    PyObject *out = PyList_GetItem(outs, k);
    if (out == NULL || PyObject_GetBuffer(out, &views[k], PyBUF_WRITABLE) != 0) return 0;
    if (views[k].len != call->count * width) {
      PyErr_Format(PyExc_ValueError, "column %zd: %zd bytes for %zd rows of %zd", k, views[k].len, call->count, width);
      return 0;
    }
  }
  return 1;
}

/* -1 when all is copied, -2 with an error, else the first column that is not ready. */
static Py_ssize_t run(const Rows *self, Call *call, PyObject *outs, Py_buffer *views) {
  for (Py_ssize_t k = 0; k < self->count; k++)
    if (!is_ready(&self->columns[k], call)) return k;
  Py_BEGIN_ALLOW_THREADS
  for (Py_ssize_t k = 0, text = 0; k < self->count; k++) {
    if (self->columns[k].width) copy(&self->columns[k], call, views[k].buf);
    else spans(&self->columns[k], call, call->begins + text * call->count, call->sizes + text * call->count), text++;
  }
  Py_END_ALLOW_THREADS
  for (Py_ssize_t k = 0, text = 0; k < self->count; k++) {
    if (self->columns[k].width) continue;
    const Column *column = &self->columns[k];
    const Py_ssize_t first = text++ * call->count;
    if (column->is_mapped && mapped->files_verified(column->files)) continue;
    if (!mapped->rows_verified(call->begins + first, call->sizes + first, 0, call->count)) return k;
  }
  for (Py_ssize_t k = 0, text = 0; k < self->count; k++) {
    if (self->columns[k].width) continue;
    int64_t bytes = 0;
    for (Py_ssize_t i = 0; i < call->count; i++) bytes += call->sizes[text * call->count + i];
    PyObject *made = texts(call->begins + text * call->count, call->sizes + text * call->count, call->count);
    PyObject *pair = made == NULL ? NULL : Py_BuildValue("NL", made, (long long)bytes);
    if (pair == NULL || PyList_SetItem(outs, k, pair) != 0) return -2;
    text++;
  }
  return -1;
}

static PyObject *rows_fill(Rows *self, PyObject *args) {
  Py_buffer shards, offsets;
  PyObject *outs;
  if (!PyArg_ParseTuple(args, "y*y*O!", &shards, &offsets, &PyList_Type, &outs)) return NULL;
  Call call = {offsets.len / 8, shards.buf, offsets.buf, NULL, NULL, NULL};
  Py_ssize_t number = -2, text = 0;
  for (Py_ssize_t k = 0; k < self->count; k++) text += !self->columns[k].width;
  uint64_t *scratch = PyMem_Malloc((size_t)(1 + 2 * text) * (size_t)(call.count + 1) * 8);
  Py_buffer *views = PyMem_Calloc((size_t)self->count + 1, sizeof *views);
  int good = scratch != NULL && views != NULL;
  if (!good) PyErr_NoMemory();
  if (good && (shards.len != offsets.len || shards.len % 8 || PyList_Size(outs) != self->count)) {
    PyErr_SetString(PyExc_ValueError, "as many shards as offsets, 8 bytes each, and as many outputs as columns");
    good = 0;
  }
  for (Py_ssize_t i = 0; good && i < call.count; i++) good = call.shards[i] < (uint64_t)self->shards;
  if (!good && !PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "a shard beyond the last");
  if (good && outputs(self, &call, outs, views)) {
    call.places = scratch, call.begins = scratch + call.count, call.sizes = (int64_t *)(call.begins + text * call.count);
    number = run(self, &call, outs, views);
  }
  for (Py_ssize_t k = 0; views != NULL && k < self->count; k++)
    if (views[k].obj != NULL) PyBuffer_Release(&views[k]);
  PyMem_Free(views);
  PyMem_Free(scratch);
  PyBuffer_Release(&shards);
  PyBuffer_Release(&offsets);
  return number == -2 ? NULL : PyLong_FromSsize_t(number);
}

/* ---- the columns */

/* Copy a table of addresses or sizes; one that is there already is written anew, for it may be read meanwhile. */
static int table(PyObject *given, uint64_t **out, Py_ssize_t *shards) {
  Py_buffer view;
  if (PyObject_GetBuffer(given, &view, PyBUF_SIMPLE) != 0) return 0;
  int good = view.len % 8 == 0 && (*shards < 0 || view.len / 8 == *shards);
  if (!good) PyErr_SetString(PyExc_ValueError, "tables of one length, 8 bytes each");
  if (good && *out == NULL && (*out = PyMem_Malloc(view.len + 1)) == NULL) {
    PyErr_NoMemory();
    good = 0;
  }
  if (good) {
    *shards = view.len / 8;
    const uint64_t *from = view.buf;
    for (Py_ssize_t s = 0; s < *shards; s++) (*out)[s] = from[s];
  }
  PyBuffer_Release(&view);
  return good;
}

static int column_of(PyObject *given, Column *out, Py_ssize_t *shards) {
  PyObject *bases, *ends, *item, *files;
  Py_ssize_t width;
  if (!PyArg_ParseTuple(given, "nOOOO!", &width, &bases, &ends, &item, &PyTuple_Type, &files)) return 0;
  if (width < 0 || (out->bases != NULL && width != out->width)) {
    PyErr_SetString(PyExc_ValueError, "a width below 0, or another one than before");
    return 0;
  }
  out->width = width;
  if (!table(bases, &out->bases, shards)) return 0;
  if (!width && !(table(ends, &out->ends, shards) && table(item, (uint64_t **)&out->item, shards))) return 0;
  PyObject *before = out->files;
  out->files = Py_NewRef(files);
  Py_XDECREF(before);
  out->is_mapped = 1;
  for (Py_ssize_t s = 0; s < *shards; s++) out->is_mapped &= out->bases[s] != 0 && (width || out->ends[s] != 0);
  return 1;
}

static PyObject *rows_refresh(Rows *self, PyObject *args) {
  Py_ssize_t number;
  PyObject *given;
  if (!PyArg_ParseTuple(args, "nO!", &number, &PyTuple_Type, &given)) return NULL;
  if (number < 0 || number >= self->count) return PyErr_Format(PyExc_IndexError, "column %zd of %zd", number, self->count);
  if (!column_of(given, &self->columns[number], &self->shards)) return NULL;
  Py_RETURN_NONE;
}

static void rows_dealloc(Rows *self) {
  for (Py_ssize_t k = 0; k < self->count; k++) {
    PyMem_Free(self->columns[k].bases);
    PyMem_Free(self->columns[k].ends);
    PyMem_Free(self->columns[k].item);
    Py_XDECREF(self->columns[k].files);
  }
  PyMem_Free(self->columns);
  PyTypeObject *type = Py_TYPE((PyObject *)self);
  PyObject_Free(self);
  Py_DECREF(type); /* an instance holds its type */
}

static PyObject *rows_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
  PyObject *given;
  if (!PyArg_ParseTuple(args, "O!", &PyList_Type, &given)) return NULL;
  Rows *self = (Rows *)PyType_GenericAlloc(type, 0);
  if (self == NULL) return NULL;
  self->shards = -1;
  self->columns = PyMem_Calloc((size_t)PyList_Size(given) + 1, sizeof *self->columns);
  if (self->columns == NULL) PyErr_NoMemory();
  for (Py_ssize_t k = 0; self->columns != NULL && k < PyList_Size(given); k++) {
    self->count = k + 1;
    if (!column_of(PyList_GetItem(given, k), &self->columns[k], &self->shards)) break;
  }
  if (!PyErr_Occurred()) return (PyObject *)self;
  Py_DECREF(self);
  return NULL;
}

static PyMethodDef rows_methods[] = {
    {"fill", (PyCFunction)rows_fill, METH_VARARGS,
     "Copy rows, by shard and offset, into an array per column; of texts, the list and its bytes take its place. "
     "-1, or the first column that is not mapped and verified."},
    {"refresh", (PyCFunction)rows_refresh, METH_VARARGS, "Learn what is mapped of a column by now."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot rows_slots[] = {
    {Py_tp_doc, "Columns, each as (width, bases, ends, item bytes, files); of width 0 are texts."},
    {Py_tp_new, rows_new},
    {Py_tp_dealloc, rows_dealloc},
    {Py_tp_methods, rows_methods},
    {0, NULL},
};

static PyType_Spec rows_spec = {
    .name = "spiral_stream.derived._rows.Rows",
    .basicsize = sizeof(Rows),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = rows_slots,
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_rows", NULL, -1, NULL, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__rows(void) {
  PyObject *files = PyImport_ImportModule("spiral_stream.integrity._mapped"); /* a capsule imports its package only */
  if (files == NULL) return NULL;
  Py_DECREF(files);
  mapped = PyCapsule_Import(MAPPED_FILES, 0);
  if (mapped == NULL) return NULL;
  PyObject *module = PyModule_Create(&definition), *type = PyType_FromSpec(&rows_spec);
  if (module == NULL || type == NULL || PyModule_AddType(module, (PyTypeObject *)type) != 0) Py_CLEAR(module);
  Py_XDECREF(type);
  return module;
}
