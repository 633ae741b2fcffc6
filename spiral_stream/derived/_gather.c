/* Gather rows of pieces: values of fixed width, and spans of values, by their addresses in mapped memory.
 *
 * Rows of a shuffled batch lie anywhere in gigabytes, so nearly every one misses all caches. The loops ask for the
 * line of a row some rows ahead; the misses of a batch then overlap. The caller has verified that the memory is
 * mapped and is what was written.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

#define AHEAD 16 /* rows: 8 to 32 take the same time */

typedef struct {
  Py_buffer view;
  Py_ssize_t count;
} Words;

static int words_of(PyObject *object, Words *out, int writable) {
  if (PyObject_GetBuffer(object, &out->view, writable ? PyBUF_WRITABLE : PyBUF_SIMPLE) != 0) return 0;
  out->count = out->view.len / 8;
  if (out->view.len % 8 == 0) return 1;
  PyErr_SetString(PyExc_ValueError, "8 bytes each");
  PyBuffer_Release(&out->view);
  return 0;
}

static int all_words(PyObject *const *args, Words *out, int count, int writable_from) {
  for (int i = 0; i < count; i++) {
    if (!words_of(args[i], &out[i], i >= writable_from)) {
      while (i--) PyBuffer_Release(&out[i].view);
      return 0;
    }
  }
  return 1;
}

static PyObject *finished(Words *all, int count, const char *wrong) {
  for (int i = 0; i < count; i++) PyBuffer_Release(&all[i].view);
  if (wrong == NULL) Py_RETURN_NONE;
  PyErr_SetString(PyExc_ValueError, wrong);
  return NULL;
}

static PyObject *locate(PyObject *module, PyObject *args) {
  PyObject *given[4];
  Words all[4];
  if (!PyArg_ParseTuple(args, "OOOO", &given[0], &given[1], &given[2], &given[3])) return NULL;
  if (!all_words(given, all, 4, 2)) return NULL;
  const uint64_t *starts = all[0].view.buf, *ordinals = all[1].view.buf;
  int64_t *shards = all[2].view.buf;
  uint64_t *offsets = all[3].view.buf;
  const Py_ssize_t count = all[1].count, last = all[0].count - 1;
  const char *wrong = NULL;
  if (last < 0 || all[2].count != count || all[3].count != count) wrong = "arrays of unequal length";
  Py_BEGIN_ALLOW_THREADS
  for (Py_ssize_t i = 0; wrong == NULL && i < count; i++) {
    const uint64_t at = ordinals[i];
    if (at >= starts[last] || at < starts[0]) {
      wrong = "a row beyond the last shard, or before the first";
      break;
    }
    const uint64_t *base = starts;
    for (Py_ssize_t n = last; n > 1;) { /* branchless: the last start that is not above `at` */
      const Py_ssize_t half = n / 2;
      base += base[half] <= at ? half : 0;
      n -= half;
    }
    while (base[1] <= at) base++; /* shards without rows */
    shards[i] = base - starts;
    offsets[i] = at - *base;
  }
  Py_END_ALLOW_THREADS
  return finished(all, 4, wrong);
}

static PyObject *addresses(PyObject *module, PyObject *args) {
  PyObject *given[4];
  Words all[4];
  Py_ssize_t width;
  if (!PyArg_ParseTuple(args, "OOOnO", &given[0], &given[1], &given[2], &width, &given[3])) return NULL;
  if (!all_words(given, all, 4, 3)) return NULL;
  const uint64_t *bases = all[0].view.buf, *shards = all[1].view.buf, *offsets = all[2].view.buf;
  uint64_t *out = all[3].view.buf;
  const Py_ssize_t count = all[1].count;
  const char *wrong = NULL;
  if (all[2].count != count || all[3].count != count) wrong = "arrays of unequal length";
  for (Py_ssize_t i = 0; wrong == NULL && i < count; i++) {
    if (shards[i] >= (uint64_t)all[0].count) wrong = "a shard beyond the last";
    else out[i] = bases[shards[i]] + offsets[i] * (uint64_t)width;
  }
  return finished(all, 4, wrong);
}

#define COPY(TYPE)                                                                   \
  for (Py_ssize_t i = 0; i < count; i++) {                                           \
    if (i + AHEAD < count) __builtin_prefetch((const void *)(uintptr_t)from[i + AHEAD]); \
    memcpy(to + i * sizeof(TYPE), (const void *)(uintptr_t)from[i], sizeof(TYPE));   \
  }

static PyObject *copy(PyObject *module, PyObject *args) {
  PyObject *given;
  Py_ssize_t width;
  Py_buffer out;
  Words addresses;
  if (!PyArg_ParseTuple(args, "Onw*", &given, &width, &out)) return NULL;
  if (!words_of(given, &addresses, 0)) {
    PyBuffer_Release(&out);
    return NULL;
  }
  const uint64_t *from = addresses.view.buf;
  uint8_t *to = out.buf;
  const Py_ssize_t count = addresses.count;
  const char *wrong = width < 1 || out.len / width != count || out.len % width ? "out has another size" : NULL;
  Py_BEGIN_ALLOW_THREADS
  if (wrong != NULL) {
  } else if (width == 8) {
    COPY(uint64_t)
  } else if (width == 4) {
    COPY(uint32_t)
  } else if (width == 2) {
    COPY(uint16_t)
  } else if (width == 1) {
    COPY(uint8_t)
  } else {
    for (Py_ssize_t i = 0; i < count; i++) {
      if (i + AHEAD < count) {
        const char *next = (const char *)(uintptr_t)from[i + AHEAD];
        for (Py_ssize_t at = 0; at < width && at < 256; at += 64) __builtin_prefetch(next + at);
      }
      memcpy(to + i * width, (const void *)(uintptr_t)from[i], width);
    }
  }
  Py_END_ALLOW_THREADS
  PyBuffer_Release(&out);
  return finished(&addresses, 1, wrong);
}

static PyObject *spans(PyObject *module, PyObject *args) {
  PyObject *given[5];
  Words all[5];
  if (!PyArg_ParseTuple(args, "OOOOO", &given[0], &given[1], &given[2], &given[3], &given[4])) return NULL;
  if (!all_words(given, all, 5, 3)) return NULL;
  const uint64_t *ends = all[0].view.buf, *bases = all[1].view.buf;
  const int64_t *items = all[2].view.buf;
  uint64_t *begins = all[3].view.buf;
  int64_t *sizes = all[4].view.buf;
  const Py_ssize_t count = all[0].count;
  const char *wrong = NULL;
  for (int k = 1; k < 5; k++)
    if (all[k].count != count) wrong = "arrays of unequal length";
  Py_BEGIN_ALLOW_THREADS
  for (Py_ssize_t i = 0; wrong == NULL && i < count; i++) {
    if (i + AHEAD < count) __builtin_prefetch((const void *)(uintptr_t)ends[i + AHEAD]);
    int64_t pair[2];
    memcpy(pair, (const void *)(uintptr_t)ends[i], 16);
    begins[i] = bases[i] + (uint64_t)(pair[0] * items[i]);
    sizes[i] = (pair[1] - pair[0]) * items[i];
  }
  Py_END_ALLOW_THREADS
  return finished(all, 5, wrong);
}

static PyObject *copy_spans(PyObject *module, PyObject *args) {
  PyObject *given[2];
  Words all[2];
  Py_buffer out;
  if (!PyArg_ParseTuple(args, "OOw*", &given[0], &given[1], &out)) return NULL;
  if (!all_words(given, all, 2, 2)) {
    PyBuffer_Release(&out);
    return NULL;
  }
  const uint64_t *from = all[0].view.buf;
  const int64_t *sizes = all[1].view.buf;
  uint8_t *to = out.buf;
  const Py_ssize_t count = all[0].count;
  Py_ssize_t room = out.len;
  const char *wrong = all[1].count != count ? "arrays of unequal length" : NULL;
  Py_BEGIN_ALLOW_THREADS
  for (Py_ssize_t i = 0; wrong == NULL && i < count; i++) {
    if (sizes[i] < 0 || sizes[i] > room) {
      wrong = "out has another size";
      break;
    }
    if (i + AHEAD < count) __builtin_prefetch((const void *)(uintptr_t)from[i + AHEAD]);
    memcpy(to, (const void *)(uintptr_t)from[i], (size_t)sizes[i]);
    to += sizes[i], room -= sizes[i];
  }
  if (wrong == NULL && room != 0) wrong = "out has another size";
  Py_END_ALLOW_THREADS
  PyBuffer_Release(&out);
  return finished(all, 2, wrong);
}

static PyMethodDef methods[] = {
    {"addresses", addresses, METH_VARARGS, "Addresses of values of one width, by where the values of each shard begin."},
    {"locate", locate, METH_VARARGS, "The shard of each ordinal, and its offset there."},
    {"copy", copy, METH_VARARGS, "Copy values of one width from their addresses, one after another."},
    {"spans", spans, METH_VARARGS, "Where spans begin and how many bytes they have, by the addresses of their ends."},
    {"copy_spans", copy_spans, METH_VARARGS, "Copy spans from their addresses, one after another."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_gather", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__gather(void) { return PyModule_Create(&definition); }
