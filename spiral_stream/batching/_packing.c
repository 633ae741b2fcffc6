/* Which row each sample joins: the loops of packing that cannot be array code, as every choice depends on the last.
 *
 * first_fit: a tree of maxima over the rows finds the leftmost row with room in log2(samples) steps.
 * best_fit: stacks of rows by free places, and a bitmap of the stacks that are not empty in four levels of 64 bits:
 * the tightest row is found in at most 2 * LEVELS - 1 words, however wide the row is.
 * lay: samples end to end, cut at every row's end.
 * run_ends: the longest runs of samples that keep to the limits of a batch.
 *
 * All arrays are int64. Rows are numbered in the order in which they are opened.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { LEVELS = 4, ARRAYS = 6 };
#define LARGEST ((1 << 24) - 1)     /* 64 ** LEVELS - 1: the widest row */
#define LONGEST ((int64_t)1 << 40) /* with MOST of them, sums stay below 2 ** 63 */
#define MOST ((int64_t)1 << 22)

/* ---- first fit ---------------------------------------------------------------------- */

/* Rows opened, or -1 without memory. A row that may not take another sample counts as having -1 places. */
static int64_t first_fit(const int64_t *lengths, int64_t count, int32_t width, int64_t segments, int64_t *rows, int64_t *starts) {
  int64_t leaves = 1, opened = 0;
  while (leaves < count) leaves *= 2;
  int32_t *free_of = malloc(2 * (size_t)leaves * sizeof *free_of);
  int64_t *taken = calloc((size_t)leaves, sizeof *taken);
  if (!free_of || !taken) opened = -1;
  if (opened == 0) {
    for (int64_t node = 1; node < 2 * leaves; node++) free_of[node] = width; /* rows not opened yet have all places */
    for (int64_t i = 0; i < count; i++) {
      const int32_t length = (int32_t)lengths[i];
      int64_t node = 1;
      while (node < leaves) node = 2 * node + (free_of[2 * node] < length);
      const int64_t row = node - leaves;
      if (row >= opened) opened = row + 1;
      rows[i] = row;
      starts[i] = width - free_of[node];
      free_of[node] = ++taken[row] == segments ? -1 : free_of[node] - length;
      while (node > 1) {
        const int32_t left = free_of[node & ~(int64_t)1], right = free_of[node | 1];
        const int32_t most = left > right ? left : right;
        node /= 2;
        if (free_of[node] == most) break;
        free_of[node] = most;
      }
    }
  }
  free(free_of);
  free(taken);
  return opened;
}

/* ---- best fit ----------------------------------------------------------------------- */

typedef struct {
  uint64_t *level[LEVELS];
  uint64_t *words;
} Bitmap;

static int make_bitmap(Bitmap *map, int64_t bits) {
  int64_t sizes[LEVELS], total = 0;
  for (int k = 0; k < LEVELS; k++) total += sizes[k] = bits = (bits + 63) / 64;
  map->words = calloc((size_t)total, sizeof *map->words);
  if (!map->words) return 0;
  map->level[0] = map->words;
  for (int k = 1; k < LEVELS; k++) map->level[k] = map->level[k - 1] + sizes[k - 1];
  return 1;
}

static void set_bit(Bitmap *map, int64_t bit) {
  for (int k = 0; k < LEVELS; k++, bit >>= 6) map->level[k][bit >> 6] |= (uint64_t)1 << (bit & 63);
}

static void clear_bit(Bitmap *map, int64_t bit) {
  for (int k = 0; k < LEVELS; k++, bit >>= 6)
    if (map->level[k][bit >> 6] &= ~((uint64_t)1 << (bit & 63))) return;
}

/* The first bit set at or after this one, which is below `bits`; -1 if there is none. */
static int64_t next_bit(const Bitmap *map, int64_t bit, int64_t bits) {
  for (int k = 0; k < LEVELS && bit < bits; k++) {
    const uint64_t word = map->level[k][bit >> 6] >> (bit & 63);
    if (word) {
      bit += __builtin_ctzll(word);
      while (k--) bit = bit << 6 | __builtin_ctzll(map->level[k][bit]);
      return bit;
    }
    bit = (bit >> 6) + 1;
    bits = (bits + 63) >> 6;
  }
  return -1;
}

/* Rows opened, or -1 without memory. Of rows that are equally full, the one that took a sample last is taken. */
static int64_t best_fit(const int64_t *lengths, int64_t count, int32_t width, int64_t segments, int64_t *rows, int64_t *starts) {
  const int64_t bits = (int64_t)width + 1;
  Bitmap map;
  int64_t opened = make_bitmap(&map, bits) ? 0 : -1;
  int64_t *top = calloc((size_t)bits, sizeof *top); /* 1 + the row on top of each stack; pages not touched cost nothing */
  int64_t *below = malloc((size_t)(count + 1) * sizeof *below);
  int64_t *taken = calloc((size_t)(count + 1), sizeof *taken);
  if (!top || !below || !taken) opened = -1;
  for (int64_t i = 0; i < count && opened >= 0; i++) {
    int64_t space = next_bit(&map, lengths[i], bits), row;
    if (space < 0) {
      space = width;
      row = opened++;
    } else {
      row = top[space] - 1;
      if (!(top[space] = below[row])) clear_bit(&map, space);
    }
    rows[i] = row;
    starts[i] = width - space;
    if (++taken[row] == segments) continue;
    space -= lengths[i];
    if (!(below[row] = top[space])) set_bit(&map, space);
    top[space] = row + 1;
  }
  free(map.words);
  free(top);
  free(below);
  free(taken);
  return opened;
}

/* ---- end to end --------------------------------------------------------------------- */

/* Pieces written. `out`: sample, row, start, offset, length of each; there is room for every sample and every full row. */
static int64_t lay(const int64_t *lengths, int64_t count, int64_t width, int64_t segments, int64_t **out) {
  int64_t piece = 0, row = -1, start = width, taken = 0;
  for (int64_t i = 0; i < count; i++) {
    int64_t offset = 0, left = lengths[i];
    do {
      if (row < 0 || taken == segments || (left && start == width)) {
        row++;
        start = taken = 0;
      }
      const int64_t length = left < width - start ? left : width - start;
      out[0][piece] = i;
      out[1][piece] = row;
      out[2][piece] = start;
      out[3][piece] = offset;
      out[4][piece++] = length;
      start += length;
      offset += length;
      left -= length;
      taken++;
    } while (left);
  }
  return piece;
}

/* ---- runs --------------------------------------------------------------------------- */

typedef struct {
  int64_t batch_size, multiple, max_tokens, padded; /* no limit: -1 */
  int64_t count, additive;
  const int64_t *lengths, *costs, *limits; /* [S], [A, S], [A] */
} Limits;

/* The end of the longest run from `start`; at least one sample. Sums wrap around, as NumPy's do. */
static int64_t run_end(const Limits *l, int64_t start, uint64_t *sums) {
  int64_t longest = 0, end = start;
  uint64_t tokens = 0;
  memset(sums, 0, (size_t)l->additive * sizeof *sums);
  for (; end < l->count; end++) {
    const int64_t samples = end - start + 1, length = l->lengths[end];
    longest = end == start || length > longest ? length : longest;
    tokens += (uint64_t)length;
    const int64_t blocks = (longest + l->multiple - 1) / l->multiple;
    const uint64_t width = (uint64_t)(blocks < 1 ? 1 : blocks) * (uint64_t)l->multiple;
    int good = l->batch_size < 0 || samples <= l->batch_size;
    if (l->max_tokens >= 0) good &= (int64_t)(l->padded ? (uint64_t)samples * width : tokens) <= l->max_tokens;
    for (int64_t a = 0; a < l->additive; a++) {
      sums[a] += (uint64_t)l->costs[a * l->count + end];
      good &= (int64_t)sums[a] <= l->limits[a];
    }
    if (!good) break;
  }
  return end > start ? end : start + 1;
}

/* ---- the door ----------------------------------------------------------------------- */

typedef struct {
  Py_buffer views[ARRAYS];
  int64_t *data[ARRAYS], sizes[ARRAYS];
  int held;
} Arrays;

static PyObject *give(Arrays *arrays, PyObject *result) {
  while (arrays->held) PyBuffer_Release(arrays->views + --arrays->held);
  return result;
}

/* Take the arrays: the first is read, the others are written. */
static int take(Arrays *arrays, PyObject **objects, int count) {
  arrays->held = 0;
  for (; arrays->held < count; arrays->held++) {
    const int i = arrays->held;
    if (PyObject_GetBuffer(objects[i], arrays->views + i, i ? PyBUF_CONTIG : PyBUF_CONTIG_RO)) {
      give(arrays, NULL);
      return 0;
    }
    arrays->data[i] = arrays->views[i].buf;
    arrays->sizes[i] = (int64_t)(arrays->views[i].len / 8);
  }
  return 1;
}

/* Whether there are not too many lengths, all in [0, most], and how many whole rows they would fill. */
static int in_range(const Arrays *arrays, int64_t most, int64_t width, int64_t *full) {
  *full = 0;
  if (arrays->sizes[0] > MOST) return 0;
  for (int64_t i = 0; i < arrays->sizes[0]; i++) {
    if (arrays->data[0][i] < 0 || arrays->data[0][i] > most) return 0;
    *full += arrays->data[0][i];
  }
  *full /= width;
  return 1;
}

static PyObject *refuse(Arrays *arrays, const char *reason) {
  PyErr_SetString(PyExc_ValueError, reason);
  return give(arrays, NULL);
}

static PyObject *fit(PyObject *self, PyObject *args) { /* lengths, width, segments, best, rows, starts */
  PyObject *objects[3];
  int width, best;
  long long segments;
  int64_t full, opened;
  Arrays arrays;
  (void)self;
  if (!PyArg_ParseTuple(args, "OiLpOO", objects, &width, &segments, &best, objects + 1, objects + 2)) return NULL;
  if (!take(&arrays, objects, 3)) return NULL;
  const int64_t count = arrays.sizes[0];
  if (width < 1 || width > LARGEST || segments < 0) return refuse(&arrays, "width or segments is out of range");
  if (arrays.sizes[1] < count || arrays.sizes[2] < count) return refuse(&arrays, "an array is too short");
  if (!in_range(&arrays, width, width, &full)) return refuse(&arrays, "a length is not in [0, width], or too many");
  Py_BEGIN_ALLOW_THREADS
  opened = (best ? best_fit : first_fit)(arrays.data[0], count, width, segments, arrays.data[1], arrays.data[2]);
  Py_END_ALLOW_THREADS
  return give(&arrays, opened < 0 ? PyErr_NoMemory() : PyLong_FromLongLong(opened));
}

static PyObject *cut(PyObject *self, PyObject *args) { /* lengths, width, segments, samples, rows, starts, offsets, pieces */
  PyObject *objects[ARRAYS];
  int width;
  long long segments;
  int64_t full, pieces;
  Arrays arrays;
  (void)self;
  if (!PyArg_ParseTuple(args, "OiLOOOOO", objects, &width, &segments, objects + 1, objects + 2, objects + 3, objects + 4,
                        objects + 5))
    return NULL;
  if (!take(&arrays, objects, ARRAYS)) return NULL;
  if (width < 1 || segments < 0) return refuse(&arrays, "width or segments is out of range");
  if (!in_range(&arrays, LONGEST, width, &full)) return refuse(&arrays, "a length is not in [0, 2**40], or too many");
  for (int i = 1; i < ARRAYS; i++)
    if (arrays.sizes[i] < arrays.sizes[0] + full) return refuse(&arrays, "an array is too short");
  Py_BEGIN_ALLOW_THREADS
  pieces = lay(arrays.data[0], arrays.sizes[0], width, segments, arrays.data + 1);
  Py_END_ALLOW_THREADS
  return give(&arrays, PyLong_FromLongLong(pieces));
}

static PyObject *run_ends(PyObject *self, PyObject *args) { /* lengths, costs, limits, ends, and the four limits */
  PyObject *objects[4];
  long long batch_size, multiple, max_tokens;
  int padded;
  int64_t found = 0;
  Arrays arrays;
  (void)self;
  if (!PyArg_ParseTuple(args, "OOOOLLLp", objects, objects + 1, objects + 2, objects + 3, &batch_size, &multiple,
                        &max_tokens, &padded))
    return NULL;
  if (!take(&arrays, objects, 4)) return NULL;
  const Limits limits = {batch_size, multiple, max_tokens, padded, arrays.sizes[0], arrays.sizes[2],
                         arrays.data[0], arrays.data[1], arrays.data[2]};
  if (multiple < 1 || batch_size == 0) return refuse(&arrays, "multiple or batch_size is out of range");
  if (arrays.sizes[1] != limits.count * limits.additive || arrays.sizes[3] < limits.count)
    return refuse(&arrays, "arrays of unequal length");
  uint64_t *sums = malloc((size_t)(limits.additive + 1) * sizeof *sums);
  if (sums == NULL) return give(&arrays, PyErr_NoMemory());
  Py_BEGIN_ALLOW_THREADS
  for (int64_t at = 0; at < limits.count;) arrays.data[3][found++] = at = run_end(&limits, at, sums);
  Py_END_ALLOW_THREADS
  free(sums);
  return give(&arrays, PyLong_FromLongLong(found));
}

static PyMethodDef methods[] = {
    {"fit", fit, METH_VARARGS, "Write the row and the start of each sample; the number of rows."},
    {"cut", cut, METH_VARARGS, "Lay samples end to end and write the pieces; the number of pieces."},
    {"run_ends", run_ends, METH_VARARGS, "Write the ends of the longest runs within the limits; the number of runs."},
    {NULL, NULL, 0, NULL}};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_packing", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__packing(void) { return PyModule_Create(&module); }
