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

/* What is wrong with piece i, whose row is used up to `end`; NULL if nothing. */
static const char *fault(const Fill *f, int64_t i, int64_t row, int64_t end) {
  int64_t length = f->lengths[i], item = f->items[i];
  if (f->rows[i] < row || f->rows[i] >= f->rows_B) return "its row is outside the batch, or before that of the piece in front";
  if (length < 0 || length > f->width_T || f->starts[i] < 0 || f->starts[i] > f->width_T - length)
    return "it is outside its row";
  if (f->rows[i] == row && f->starts[i] < end) return "it overlaps the piece in front of it";
  if (length > f->sizes[i] || f->offsets[i] < 0 || f->offsets[i] > f->sizes[i] - length) return "its sequence is shorter";
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
    row = f->rows[i];
    end = f->starts[i] + f->lengths[i];
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
  const uint8_t *from = (const uint8_t *)(uintptr_t)f->addresses[i] + f->offsets[i] * size;
  Mover move = movers[item == 2 ? 0 : item == 4 ? 1 : 2][f->is_signed][size];
  switch (f->kind) {
    case SHIFTED:
      put_same(out + (length - 1) * item, item, f->padding, 1);
      return put_labels(out, item, f, move, from + size, length - 1);
    case LABELS:
      if (!f->starts[i]) return put_labels(out, item, f, move, from, length);
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
    int64_t start = f->rows[i] * f->width_T + f->starts[i];
    if (!f->lengths[i]) continue;
    segment = f->rows[i] == row ? segment + 1 : 1;
    row = f->rows[i];
    put_same(out + done * item, item, f->padding, start - done);
    if (put_piece(out + start * item, item, f, i, segment) && failed < 0) failed = i;
    done = start + f->lengths[i];
  }
  put_same(out + done * item, item, f->padding, f->rows_B * f->width_T - done);
  return failed;
}

/* Whether the arrays hold what the numbers say. */
static int agree(const Fill *f, const Py_buffer *views, int item) {
  int64_t count = f->count;
  if (f->kind < 0 || f->kind >= KINDS || (item != 1 && item != 2 && item != 4 && item != 8)) return 0;
  if (f->kind != ONES && item < 2) return 0;
  if (f->rows_B < 0 || f->width_T < 0 || (f->width_T && f->rows_B > INT64_MAX / 8 / f->width_T)) return 0;
  if (views[0].len != f->rows_B * f->width_T * item || (uintptr_t)views[0].buf % item) return 0;
  for (int i = 1; i < 8; i++)
    if (views[i].len != count * (i == 3 ? 1 : 8)) return 0;
  return 1;
}

/* kind, signed, padding, B, T, item of out, out [B, T], addresses, sizes, items, rows, starts, offsets, lengths [S], near, numbers [S] or None */
static PyObject *fill(PyObject *self, PyObject *args) {
  Py_buffer v[8], numbers = {.obj = NULL};
  PyObject *counted = Py_None;
  Fill f = {.is_near = 0};
  int item;
  long long padding, rows_B, width_T;
  if (!PyArg_ParseTuple(args, "ipLLLiw*y*y*y*y*y*y*y*|pO", &f.kind, &f.is_signed, &padding, &rows_B, &width_T, &item, v,
                        v + 1, v + 2, v + 3, v + 4, v + 5, v + 6, v + 7, &f.is_near, &counted))
    return NULL;
  f.padding = padding, f.rows_B = rows_B, f.width_T = width_T, f.count = v[1].len / 8;
  f.addresses = v[1].buf, f.sizes = v[2].buf, f.items = v[3].buf, f.rows = v[4].buf;
  f.starts = v[5].buf, f.offsets = v[6].buf, f.lengths = v[7].buf;
  if (counted != Py_None) {
    if (PyObject_GetBuffer(counted, &numbers, PyBUF_CONTIG_RO)) {
      for (int i = 0; i < 8; i++) PyBuffer_Release(v + i);
      return NULL;
    }
    f.numbers = numbers.buf;
  }
  const char *found = "the arrays differ in length, or the output in shape, item size or alignment";
  int64_t piece = -1, failed = -1;
  if (agree(&f, v, item) && (!f.numbers || numbers.len == v[4].len)) {
    PyThreadState *released = f.is_near && v[0].len < LONG ? NULL : PyEval_SaveThread();
    found = check(&f, &piece);
    if (!found) failed = run(&f, v[0].buf, item);
    if (released) PyEval_RestoreThread(released);
  }
  for (int i = 0; i < 8; i++) PyBuffer_Release(v + i);
  if (f.numbers) PyBuffer_Release(&numbers);
  if (!found) return PyLong_FromLongLong(failed);
  if (piece < 0) PyErr_SetString(PyExc_ValueError, found);
  else PyErr_Format(PyExc_ValueError, "piece %lld: %s", (long long)piece, found);
  return NULL;
}

/* addresses, sizes, items [S]: reads a byte of each page of each sequence */
static PyObject *touch(PyObject *self, PyObject *args) {
  Py_buffer v[3];
  if (!PyArg_ParseTuple(args, "y*y*y*", v, v + 1, v + 2)) return NULL;
  const int64_t count = v[2].len;
  const uint64_t *addresses = v[0].buf;
  const int64_t *sizes = v[1].buf;
  const uint8_t *items = v[2].buf;
  const int agreed = v[0].len == count * 8 && v[1].len == count * 8;
  Py_BEGIN_ALLOW_THREADS
  for (int64_t i = 0; agreed && i < count; i++) {
    const volatile uint8_t *from = (const uint8_t *)(uintptr_t)addresses[i];
    const int64_t length = sizes[i] * items[i];
    for (int64_t at = 0; at < length; at += PAGE) (void)from[at];
    if (length > 0) (void)from[length - 1];
  }
  Py_END_ALLOW_THREADS
  for (int i = 0; i < 3; i++) PyBuffer_Release(v + i);
  if (agreed) Py_RETURN_NONE;
  PyErr_SetString(PyExc_ValueError, "the arrays differ in length");
  return NULL;
}

static PyMethodDef methods[] = {
    {"touch", touch, METH_VARARGS, "Bring sequences into memory, without the interpreter's lock."},
    {"fill", fill, METH_VARARGS, "Write one field of a batch; -1, or the first piece with a token that does not fit."},
    {NULL, NULL, 0, NULL}};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_tokens", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__tokens(void) { return PyModule_Create(&module); }
