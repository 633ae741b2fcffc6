/* Write the token fields of a batch: ids, labels, masks, segments and positions, padding included.
 *
 * A field's [B, T] array is written once from its begin to its end: padding, a piece of a sequence, padding, ...
 * in loops that the compiler turns into vector code. Every piece is checked against the batch and its sequence
 * before the first byte is written.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__) && defined(__gnu_linux__) && defined(__GNUC__) && !defined(__clang__)
#define FAST __attribute__((target_clones("avx2", "default"))) /* 10 % more tokens; the loader chooses */
#else
#define FAST
#endif

/* Bytes of output from which on a call gives up the interpreter's lock in any case: 50 us of work. */
#define LONG (1 << 20)
#define PAGE 4096
#define MOST_FIELDS 16 /* of one call */
#define VIEWS 8        /* arrays that say what the pieces are */
#define WRONG "the arrays differ in length, or the output in shape, item size or alignment"

enum { TOKENS, SHIFTED, LABELS, ONES, SEGMENTS, POSITIONS, KINDS };

#define FILLER(NAME, OUT, VALUE)                                                     \
  FAST static void NAME(void *to, int64_t value, int64_t count) {                    \
    OUT *out = to;                                                                   \
    for (int64_t i = 0; i < count; i++) out[i] = (OUT)(VALUE);                       \
  }
FILLER(same1, int8_t, value)
FILLER(same2, int16_t, value)
FILLER(same4, int32_t, value)
FILLER(same8, int64_t, value)
FILLER(climb2, uint16_t, value + i)
FILLER(climb4, int32_t, value + i)
FILLER(climb8, int64_t, value + i)

static void put_same(uint8_t *out, int item, int64_t value, int64_t count) {
  switch (item) {
    case 1: same1(out, value, count); break;
    case 2: same2(out, value, count); break;
    case 4: same4(out, value, count); break;
    default: same8(out, value, count);
  }
}

/* Widen or narrow `count` items; not 0 if one of them does not fit. */
#define MOVER(NAME, OUT, IN, LOST)                                                   \
  FAST static uint64_t NAME(void *to, const void *from, int64_t count) {             \
    OUT *restrict out = to;                                                          \
    const IN *restrict in = from;                                                    \
    uint64_t lost = 0;                                                               \
    for (int64_t i = 0; i < count; i++) {                                            \
      IN v = in[i];                                                                  \
      out[i] = (OUT)v;                                                               \
      lost |= (uint64_t)(LOST);                                                      \
    }                                                                                \
    return lost;                                                                     \
  }
MOVER(u1_2, uint16_t, uint8_t, 0 * v)
MOVER(u2_2, uint16_t, uint16_t, 0 * v)
MOVER(u4_2, uint16_t, uint32_t, v >> 16)
MOVER(u8_2, uint16_t, uint64_t, v >> 16)
MOVER(i1_2, uint16_t, int8_t, v < 0)
MOVER(i2_2, uint16_t, int16_t, v < 0)
MOVER(i4_2, uint16_t, int32_t, (int32_t)(uint16_t)v ^ v)
MOVER(i8_2, uint16_t, int64_t, (int64_t)(uint16_t)v ^ v)
MOVER(u1_4, int32_t, uint8_t, 0 * v)
MOVER(u2_4, int32_t, uint16_t, 0 * v)
MOVER(u4_4, int32_t, uint32_t, v >> 31)
MOVER(u8_4, int32_t, uint64_t, v >> 31)
MOVER(i1_4, int32_t, int8_t, 0 * v)
MOVER(i2_4, int32_t, int16_t, 0 * v)
MOVER(i4_4, int32_t, int32_t, 0 & v)
MOVER(i8_4, int32_t, int64_t, (int64_t)(int32_t)v ^ v)
MOVER(u1_8, int64_t, uint8_t, 0 * v)
MOVER(u2_8, int64_t, uint16_t, 0 * v)
MOVER(u4_8, int64_t, uint32_t, 0 * v)
MOVER(u8_8, int64_t, uint64_t, v >> 63)
MOVER(i1_8, int64_t, int8_t, 0 * v)
MOVER(i2_8, int64_t, int16_t, 0 * v)
MOVER(i4_8, int64_t, int32_t, 0 & v)
MOVER(i8_8, int64_t, int64_t, 0 & v)

typedef uint64_t (*Mover)(void *, const void *, int64_t);
static const Mover movers[3][2][9] = { /* of 2, 4 and 8 bytes of output; unsigned and signed; bytes of input */
    {{[1] = u1_2, [2] = u2_2, [4] = u4_2, [8] = u8_2}, {[1] = i1_2, [2] = i2_2, [4] = i4_2, [8] = i8_2}},
    {{[1] = u1_4, [2] = u2_4, [4] = u4_4, [8] = u8_4}, {[1] = i1_4, [2] = i2_4, [4] = i4_4, [8] = i8_4}},
    {{[1] = u1_8, [2] = u2_8, [4] = u4_8, [8] = u8_8}, {[1] = i1_8, [2] = i2_8, [4] = i4_8, [8] = i8_8}}};

/* Whether one of `count` labels of 2 bytes is the value that a loss ignores, which no id of them may be. */
FAST static uint64_t holds(const void *labels, int64_t value, int64_t count) {
  const uint16_t *at = labels;
  uint64_t found = 0;
  for (int64_t i = 0; i < count; i++) found |= at[i] == (uint16_t)value;
  return found;
}

/* The batch and its pieces; the arrays are [S]. */
typedef struct {
  int kind, is_signed, is_near; /* near: no token has to come from a disk */
  int64_t padding, count, rows_B, width_T;
  const uint64_t *addresses;
  const int64_t *sizes, *rows, *starts, *offsets, *lengths, *numbers; /* numbers of segments; NULL: counted */
  const uint8_t *items;
} Fill;

/* Where piece i lies. Without arrays it begins row i, with the begin of its sequence. */
static inline int64_t row_of(const Fill *f, int64_t i) { return f->rows ? f->rows[i] : i; }
static inline int64_t start_of(const Fill *f, int64_t i) { return f->starts ? f->starts[i] : 0; }
static inline int64_t offset_of(const Fill *f, int64_t i) { return f->offsets ? f->offsets[i] : 0; }

/* What is wrong with piece i, whose row is used up to `end`; NULL if nothing. */
static const char *fault(const Fill *f, int64_t i, int64_t row, int64_t end) {
  int64_t length = f->lengths[i], item = f->items[i];
  if (row_of(f, i) < row || row_of(f, i) >= f->rows_B) return "its row is outside the batch, or before that of the piece in front";
  if (length < 0 || length > f->width_T || start_of(f, i) < 0 || start_of(f, i) > f->width_T - length)
    return "it is outside its row";
  if (row_of(f, i) == row && start_of(f, i) < end) return "it overlaps the piece in front of it";
  if (length > f->sizes[i] || offset_of(f, i) < 0 || offset_of(f, i) > f->sizes[i] - length) return "its sequence is shorter";
  if (item != 1 && item != 2 && item != 4 && item != 8) return "its items are not of 1, 2, 4 or 8 bytes";
  if (length && f->addresses[i] % item) return "its sequence is not aligned to its items";
  return NULL;
}

static const char *check(const Fill *f, int64_t *piece) {
  int64_t row = 0, end = 0;
  for (int64_t i = 0; i < f->count; i++) {
    const char *found = fault(f, i, row, end);
    *piece = i;
    if (found) return found;
    row = row_of(f, i);
    end = start_of(f, i) + f->lengths[i];
  }
  return NULL;
}

/* `count` labels; not 0 if one of them does not fit, or is ignored though it is an id: only 2 bytes have no sign to tell. */
static uint64_t put_labels(uint8_t *out, int item, const Fill *f, Mover move, const uint8_t *from, int64_t count) {
  uint64_t lost = move(out, from, count);
  return item == 2 ? lost | holds(out, f->padding, count) : lost;
}

/* `count` equal numbers; not 0 if they do not fit. */
static uint64_t put_number(uint8_t *out, int item, int64_t number, int64_t count) {
  put_same(out, item, number, count);
  return item == 2 && number >> 16;
}

/* 0, 1, 2, ...; not 0 if the last of them does not fit. */
static uint64_t put_positions(uint8_t *out, int item, int64_t count) {
  (item == 2 ? climb2 : item == 4 ? climb4 : climb8)(out, 0, count);
  return item == 2 && (count - 1) >> 16;
}

/* One piece of at least one token; not 0 if one of its tokens does not fit. */
static uint64_t put_piece(uint8_t *out, int item, const Fill *f, int64_t i, int64_t segment) {
  int64_t length = f->lengths[i], size = f->items[i];
  const uint8_t *from = (const uint8_t *)(uintptr_t)f->addresses[i] + offset_of(f, i) * size;
  Mover move = movers[item == 2 ? 0 : item == 4 ? 1 : 2][f->is_signed][size];
  switch (f->kind) {
    case SHIFTED:
      put_same(out + (length - 1) * item, item, f->padding, 1);
      return put_labels(out, item, f, move, from + size, length - 1);
    case LABELS:
      if (!start_of(f, i)) return put_labels(out, item, f, move, from, length);
      put_same(out, item, f->padding, 1);
      return put_labels(out + item, item, f, move, from + size, length - 1);
    case ONES: put_same(out, item, 1, length); return 0;
    case SEGMENTS: return put_number(out, item, f->numbers ? f->numbers[i] : segment, length);
    case POSITIONS: return put_positions(out, item, length);
    default: return move(out, from, length);
  }
}

/* The first piece with a token that does not fit, or -1. */
static int64_t run(const Fill *f, uint8_t *out, int item) {
  int64_t done = 0, row = -1, segment = 0, failed = -1; /* `done`: items of the batch written so far */
  for (int64_t i = 0; i < f->count; i++) {
    int64_t start = row_of(f, i) * f->width_T + start_of(f, i);
    if (!f->lengths[i]) continue;
    segment = row_of(f, i) == row ? segment + 1 : 1;
    row = row_of(f, i);
    put_same(out + done * item, item, f->padding, start - done);
    if (put_piece(out + start * item, item, f, i, segment) && failed < 0) failed = i;
    done = start + f->lengths[i];
  }
  put_same(out + done * item, item, f->padding, f->rows_B * f->width_T - done);
  return failed;
}

/* A field: what it writes, its padding, its item size. */
typedef struct {
  long long kind, padding, item;
} Spec;

/* Whether the arrays of the pieces hold what the numbers say; `views` are addresses, sizes, items, rows, starts, offsets, lengths, numbers. */
static int agree(const Fill *f, const Py_buffer *views) {
  if (f->rows_B < 0 || f->width_T < 0 || (f->width_T && f->rows_B > INT64_MAX / 8 / f->width_T)) return 0;
  for (int i = 0; i < VIEWS; i++)
    if (views[i].buf && views[i].len != f->count * (i == 2 ? 1 : 8)) return 0;
  return 1;
}

/* Whether a field's array is as its spec says. */
static int fits(const Fill *f, const Spec *spec, const Py_buffer *out) {
  const long long item = spec->item;
  if (spec->kind < 0 || spec->kind >= KINDS || (item != 1 && item != 2 && item != 4 && item != 8)) return 0;
  if (spec->kind != ONES && item < 2) return 0;
  return out->len == f->rows_B * f->width_T * item && (uintptr_t)out->buf % item == 0;
}

/* Read the fields: how many arrays were got, which are to be released; `*found` says what is wrong, or is empty with an error set. */
static Py_ssize_t read_fields(const Fill *f, PyObject *told, PyObject *arrays, Spec *specs, Py_buffer *outs, const char **found) {
  const Py_ssize_t fields = PyTuple_Size(arrays);
  Py_ssize_t got = 0;
  *found = "more fields than one call takes, or not three numbers for each";
  if (fields > MOST_FIELDS || PyTuple_Size(told) != 3 * fields) return 0;
  *found = "";
  for (Py_ssize_t i = 0; i < 3 * fields; i++) {
    ((long long *)specs)[i] = PyLong_AsLongLong(PyTuple_GetItem(told, i));
    if (PyErr_Occurred()) return 0;
  }
  while (got < fields && !PyObject_GetBuffer(PyTuple_GetItem(arrays, got), outs + got, PyBUF_CONTIG)) got++;
  if (got < fields) return got;
  *found = NULL;
  for (Py_ssize_t i = 0; i < fields; i++)
    if (!fits(f, specs + i, outs + i)) *found = WRONG;
  return got;
}

/* The first piece with a token that does not fit a field, or -1. */
static int64_t run_all(Fill *f, const Spec *specs, const Py_buffer *outs, Py_ssize_t fields) {
  int64_t failed = -1;
  for (Py_ssize_t i = 0; i < fields && failed < 0; i++) {
    f->kind = (int)specs[i].kind, f->padding = specs[i].padding;
    failed = run(f, outs[i].buf, (int)specs[i].item);
  }
  return failed;
}

/* (kind, padding, item) of F fields, their arrays [B, T], signed, near, B, T,
 * addresses, sizes, items [S], rows, starts, offsets [S] or None, lengths [S], numbers [S] or None */
static PyObject *fill(PyObject *self, PyObject *args) {
  Py_buffer v[VIEWS], outs[MOST_FIELDS];
  Spec specs[MOST_FIELDS];
  PyObject *told, *arrays;
  Fill f = {.kind = 0};
  long long rows_B, width_T;
  if (!PyArg_ParseTuple(args, "O!O!ppLLy*y*y*z*z*z*y*z*", &PyTuple_Type, &told, &PyTuple_Type, &arrays, &f.is_signed,
                        &f.is_near, &rows_B, &width_T, v, v + 1, v + 2, v + 3, v + 4, v + 5, v + 6, v + 7))
    return NULL;
  f.rows_B = rows_B, f.width_T = width_T, f.count = v[0].len / 8;
  f.addresses = v[0].buf, f.sizes = v[1].buf, f.items = v[2].buf, f.rows = v[3].buf;
  f.starts = v[4].buf, f.offsets = v[5].buf, f.lengths = v[6].buf, f.numbers = v[7].buf;
  const char *found = WRONG;
  int64_t piece = -1, failed = -1, bytes = 0;
  Py_ssize_t got = 0;
  if (agree(&f, v)) got = read_fields(&f, told, arrays, specs, outs, &found);
  for (Py_ssize_t i = 0; i < got; i++) bytes += outs[i].len;
  if (!found) {
    PyThreadState *released = f.is_near && bytes < LONG ? NULL : PyEval_SaveThread();
    found = check(&f, &piece);
    if (!found) failed = run_all(&f, specs, outs, got);
    if (released) PyEval_RestoreThread(released);
  }
  for (int i = 0; i < VIEWS; i++) PyBuffer_Release(v + i);
  for (Py_ssize_t i = 0; i < got; i++) PyBuffer_Release(outs + i);
  if (!found) return PyLong_FromLongLong(failed);
  if (piece >= 0) PyErr_Format(PyExc_ValueError, "piece %lld: %s", (long long)piece, found);
  else if (*found) PyErr_SetString(PyExc_ValueError, found);
  return NULL;
}

/* addresses, sizes, items [S], most: reads a byte of each page of each sequence, if they have `most` bytes at most; whether it did */
static PyObject *touch(PyObject *self, PyObject *args) {
  Py_buffer v[3];
  long long most;
  if (!PyArg_ParseTuple(args, "y*y*y*L", v, v + 1, v + 2, &most)) return NULL;
  const int64_t count = v[2].len;
  const uint64_t *addresses = v[0].buf;
  const int64_t *sizes = v[1].buf;
  const uint8_t *items = v[2].buf;
  const int agreed = v[0].len == count * 8 && v[1].len == count * 8;
  int64_t bytes = 0;
  for (int64_t i = 0; agreed && i < count; i++) bytes += sizes[i] * items[i];
  const int few = agreed && bytes <= most;
  Py_BEGIN_ALLOW_THREADS
  for (int64_t i = 0; few && i < count; i++) {
    const volatile uint8_t *from = (const uint8_t *)(uintptr_t)addresses[i];
    const int64_t length = sizes[i] * items[i];
    for (int64_t at = 0; at < length; at += PAGE) (void)from[at];
    if (length > 0) (void)from[length - 1];
  }
  Py_END_ALLOW_THREADS
  for (int i = 0; i < 3; i++) PyBuffer_Release(v + i);
  if (agreed) return PyBool_FromLong(few);
  PyErr_SetString(PyExc_ValueError, "the arrays differ in length");
  return NULL;
}

static PyMethodDef methods[] = {
    {"touch", touch, METH_VARARGS, "Bring few bytes of sequences into memory, without the interpreter's lock."},
    {"fill", fill, METH_VARARGS, "Write fields of a batch; -1, or the first piece with a token that does not fit."},
    {NULL, NULL, 0, NULL}};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_tokens", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__tokens(void) { return PyModule_Create(&module); }
