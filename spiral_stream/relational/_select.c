/* Select and rank over the survivors of many shards: which row the n-th survivor is, and how many come before a row.
 *
 * A shard keeps all its rows, ascending uint32 offsets, or a bitmap with the number of survivors before each block of
 * 512 bits. The table has four words a shard: form, address of the offsets or words, address of the ranks, blocks.
 * Rows of a shuffled batch miss all caches, so each loop asks for its lines some rows ahead. Results of damaged memory
 * are wrong, never out of bounds: the caller verifies what was touched before it uses them.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

enum { ALL, OFFSETS, BITMAP, CLOSED, FORM = 3, BY_ROW = 4 }; /* CLOSED: not mapped yet; BY_ROW: to verify by row */
enum { FIELDS = 4, BATCH = 32, BLOCK = 512, WORDS = 8, MOST = 8 };

typedef struct {
  Py_buffer view[MOST];
  int held;
} Arrays;

static void release(Arrays *all) {
  while (all->held) PyBuffer_Release(&all->view[--all->held]);
}

static int hold(Arrays *all, PyObject *const *objects, int count, int writable_from) {
  all->held = 0;
  for (int i = 0; i < count; i++) {
    const int flags = i >= writable_from ? PyBUF_WRITABLE : PyBUF_SIMPLE;
    if (PyObject_GetBuffer(objects[i], &all->view[i], flags) != 0) {
      release(all);
      return 0;
    }
    all->held++;
    if (all->view[i].len % 8 != 0) {
      PyErr_SetString(PyExc_ValueError, "8 bytes each");
      release(all);
      return 0;
    }
  }
  return 1;
}

#define INLINE static inline __attribute__((always_inline)) /* so that each copy counts bits as its processor can */
#define ones(x) ((uint64_t)__builtin_popcountll(x))

/* The last of `count` + 1 ascending values that is not above `at`, past those that are equal. */
INLINE int64_t span_of(const uint64_t *values, int64_t count, uint64_t at) {
  int64_t found = 0;
  for (int64_t n = count; n > 1;) {
    const int64_t half = n / 2;
    found += half & -(int64_t)(values[found + half] <= at); /* no branch */
    n -= half;
  }
  while (values[found + 1] <= at) found++; /* shards without rows */
  return found;
}

/* The last block with at most `nth` survivors before it; the guess is right for rows that are spread evenly. */
INLINE uint64_t block_of(const uint32_t *ranks, uint64_t blocks, uint64_t nth, uint64_t guess) {
  uint64_t low = guess, high = guess + 1, step = 1;
  while (low > 0 && ranks[low] > nth) {
    high = low;
    low = low > step ? low - step : 0;
    step *= 2;
  }
  for (step = 1; high < blocks && ranks[high] <= nth; step *= 2) {
    low = high;
    high = high + step < blocks ? high + step : blocks;
  }
  while (high - low > 1) {
    const uint64_t middle = low + (high - low) / 2;
    if (ranks[middle] <= nth)
      low = middle;
    else
      high = middle;
  }
  return low;
}

#define EACH 0x0101010101010101u /* a one in every byte */
#define TOPS 0x8080808080808080u

/* The place of a set bit: its byte by comparing all eight cumulated counts at once (Vigna 2008), then within the byte. */
INLINE uint64_t nth_bit(uint64_t word, uint64_t nth) {
  uint64_t sums = word - ((word >> 1) & 0x5555555555555555u);
  sums = (sums & 0x3333333333333333u) + ((sums >> 2) & 0x3333333333333333u);
  sums = ((sums + (sums >> 4)) & 0x0f0f0f0f0f0f0f0fu) * EACH;
  const uint64_t past = ((((nth & 63) * EACH) | TOPS) - sums) & TOPS; /* bytes that end at or before it */
  const uint64_t bytes = ((past >> 7) * EACH) >> 56;
  const uint64_t shift = bytes < 8 ? bytes * 8 : 56;
  nth -= ((sums << 8) >> shift) & 0xff;
  uint64_t byte = (word >> shift) & 0xff, bit = 0;
  for (int width = 4; width >= 1; width /= 2) {
    const uint64_t here = ones(byte & ((1u << width) - 1)), over = nth >= here;
    nth -= over ? here : 0;
    byte >>= over ? width : 0;
    bit += over ? (uint64_t)width : 0;
  }
  return shift + bit;
}

/* Without branches: where a bit lies is random, so nearly every branch would be mispredicted. */
INLINE uint64_t nth_of_block(const uint64_t *words, uint64_t nth) {
  uint64_t upto = 0, at = 0, before = 0;
  for (int i = 0; i < WORDS - 1; i++) {
    upto += ones(words[i]);
    const uint64_t past = upto <= nth;
    at += past;
    before = past ? upto : before;
  }
  return at * 64 + nth_bit(words[at], nth - before);
}

INLINE uint64_t before_in_block(const uint64_t *words, uint64_t bits) {
  uint64_t found = 0;
  const uint64_t whole = bits / 64;
  for (uint64_t i = 0; i < whole; i++) found += ones(words[i]);
  return bits % 64 ? found + ones(words[whole] & ((1ull << (bits % 64)) - 1)) : found;
}

typedef struct {
  int64_t closed, by_row; /* rows of such shards */
} Found;

typedef struct {
  uint64_t shard, form, by_row, data, ranks, blocks, at, block;
  double each; /* blocks of one survivor */
} Row;

INLINE uint64_t within(double block, uint64_t blocks) {
  const uint64_t last = blocks - 1;
  return block <= 0 ? 0 : block >= (double)last ? last : (uint64_t)block;
}

/* Find the shard of one of `count` values and how it is kept; the number of the value in its shard is `at`. */
INLINE Row placed(const uint64_t *from, const uint64_t *table, int64_t shards, uint64_t value) {
  Row row;
  row.shard = (uint64_t)span_of(from, shards, value);
  const uint64_t *kept = table + row.shard * FIELDS;
  const uint64_t form = __atomic_load_n(&kept[0], __ATOMIC_ACQUIRE);
  row.form = form & FORM, row.by_row = form >= BY_ROW;
  row.data = kept[1], row.ranks = kept[2], row.blocks = kept[3];
  row.at = value - from[row.shard];
  row.block = 0;
  return row;
}

#define AT(TYPE, address) ((const TYPE *)(uintptr_t)(address))

INLINE Found selected(const Arrays *all, int64_t shards, int64_t count) {
  const uint64_t *firsts = all->view[0].buf, *starts = all->view[1].buf, *table = all->view[2].buf,
                 *rows = all->view[3].buf;
  uint64_t *out = all->view[4].buf, *touched = all->view[5].buf;
  Found seen = {0, 0};
  Row some[BATCH];
  for (int64_t from = 0; from < count; from += BATCH) {
    const int64_t here = count - from < BATCH ? count - from : BATCH;
    for (int64_t i = 0; i < here; i++) {
      Row *row = &some[i];
      *row = placed(firsts, table, shards, rows[from + i]);
      if (row->form == OFFSETS) {
        __builtin_prefetch(AT(uint32_t, row->data) + row->at);
      } else if (row->form == BITMAP) {
        row->each = (double)row->blocks / (double)(firsts[row->shard + 1] - firsts[row->shard]);
        row->block = within((double)row->at * row->each, row->blocks);
        __builtin_prefetch(AT(uint32_t, row->ranks) + row->block);
      }
    }
    for (int64_t i = 0; i < here; i++) {
      Row *row = &some[i];
      if (row->form != BITMAP) continue;
      const uint32_t *ranks = AT(uint32_t, row->ranks);
      const double off = (double)row->at - (double)ranks[row->block];
      row->block = within((double)row->block + off * row->each, row->blocks);
      row->block = block_of(ranks, row->blocks, row->at, row->block);
      __builtin_prefetch(AT(uint64_t, row->data) + row->block * WORDS);
    }
    for (int64_t i = 0; i < here; i++) {
      const Row *row = &some[i];
      uint64_t found = row->at, address = 0;
      if (row->form == OFFSETS) {
        address = row->data + row->at * 4;
        found = *AT(uint32_t, address);
      } else if (row->form == BITMAP) {
        address = row->data + row->block * WORDS * 8;
        const uint64_t nth = row->at - AT(uint32_t, row->ranks)[row->block];
        found = row->block * BLOCK + nth_of_block(AT(uint64_t, address), nth);
      }
      seen.closed += row->form == CLOSED, seen.by_row += row->by_row;
      touched[from + i] = address;
      out[from + i] = starts[row->shard] + found;
    }
  }
  return seen;
}

INLINE Found ranked(const Arrays *all, int64_t shards, int64_t count) {
  const uint64_t *firsts = all->view[0].buf, *starts = all->view[1].buf, *table = all->view[2].buf,
                 *ordinals = all->view[3].buf;
  uint64_t *out = all->view[4].buf, *touched = all->view[5].buf;
  Found seen = {0, 0};
  Row some[BATCH];
  for (int64_t from = 0; from < count; from += BATCH) {
    const int64_t here = count - from < BATCH ? count - from : BATCH;
    for (int64_t i = 0; i < here; i++) {
      Row *row = &some[i];
      *row = placed(starts, table, shards, ordinals[from + i]);
      if (row->form != BITMAP) continue;
      row->block = row->at / BLOCK;
      __builtin_prefetch(AT(uint32_t, row->ranks) + row->block);
      __builtin_prefetch(AT(uint64_t, row->data) + row->block * WORDS);
    }
    for (int64_t i = 0; i < here; i++) {
      const Row *row = &some[i];
      uint64_t found = row->at, address = 0;
      if (row->form == OFFSETS) { /* how many offsets are below */
        const uint32_t *offsets = AT(uint32_t, row->data);
        uint64_t low = 0, high = firsts[row->shard + 1] - firsts[row->shard];
        address = row->data;
        while (low < high) {
          const uint64_t middle = low + (high - low) / 2;
          if (offsets[middle] < row->at)
            low = middle + 1;
          else
            high = middle;
        }
        found = low;
      } else if (row->form == BITMAP) {
        address = row->data + row->block * WORDS * 8;
        found = AT(uint32_t, row->ranks)[row->block] + before_in_block(AT(uint64_t, address), row->at % BLOCK);
      }
      seen.closed += row->form == CLOSED, seen.by_row += row->by_row;
      touched[from + i] = address;
      out[from + i] = firsts[row->shard] + found;
    }
  }
  return seen;
}

typedef Found Work(const Arrays *, int64_t, int64_t);

static Found select_rows(const Arrays *all, int64_t shards, int64_t count) { return selected(all, shards, count); }

static Found rank_rows(const Arrays *all, int64_t shards, int64_t count) { return ranked(all, shards, count); }

#if defined(__x86_64__) && !defined(SPIRAL_PORTABLE)
#define COUNTS __attribute__((target("popcnt")))

COUNTS static Found select_fast(const Arrays *all, int64_t shards, int64_t count) { return selected(all, shards, count); }

COUNTS static Found rank_fast(const Arrays *all, int64_t shards, int64_t count) { return ranked(all, shards, count); }

static int counts_bits(void) { return __builtin_cpu_supports("popcnt"); }
#else
#define select_fast select_rows
#define rank_fast rank_rows

static int counts_bits(void) { return 0; }
#endif

static PyObject *run(PyObject *args, Work *work, int located_by) {
  PyObject *given[6];
  Arrays all;
  if (!PyArg_ParseTuple(args, "OOOOOO", &given[0], &given[1], &given[2], &given[3], &given[4], &given[5])) return NULL;
  if (!hold(&all, given, 6, 4)) return NULL;
  const int64_t shards = all.view[0].len / 8 - 1, count = all.view[3].len / 8;
  int wrong = shards < 0 || all.view[1].len != all.view[0].len || all.view[2].len != shards * FIELDS * 8 ||
              all.view[4].len != all.view[3].len || all.view[5].len != all.view[3].len;
  Found found = {0, 0};
  if (!wrong) {
    const uint64_t end = ((const uint64_t *)all.view[located_by].buf)[shards], *values = all.view[3].buf;
    Py_BEGIN_ALLOW_THREADS
    for (int64_t i = 0; i < count; i++) wrong |= values[i] >= end;
    if (!wrong) found = work(&all, shards, count);
    Py_END_ALLOW_THREADS
  }
  release(&all);
  if (!wrong) return Py_BuildValue("LL", (long long)found.closed, (long long)found.by_row);
  PyErr_SetString(PyExc_ValueError, "arrays of unequal length, or a row beyond the last shard");
  return NULL;
}

static PyObject *select_(PyObject *module, PyObject *args) { return run(args, counts_bits() ? select_fast : select_rows, 0); }

static PyObject *rank(PyObject *module, PyObject *args) { return run(args, counts_bits() ? rank_fast : rank_rows, 1); }

static PyObject *enter(PyObject *module, PyObject *args) {
  PyObject *given[5];
  Arrays all;
  if (!PyArg_ParseTuple(args, "OOOOO", &given[0], &given[1], &given[2], &given[3], &given[4])) return NULL;
  PyObject *order[5] = {given[1], given[2], given[3], given[4], given[0]};
  if (!hold(&all, order, 5, 4)) return NULL;
  const uint64_t *shards = all.view[0].buf, *forms = all.view[1].buf, *data = all.view[2].buf, *ranks = all.view[3].buf;
  uint64_t *table = all.view[4].buf;
  const Py_ssize_t count = all.view[0].len / 8, last = all.view[4].len / 8 / FIELDS;
  int wrong = 0;
  for (int i = 1; i < 4; i++) wrong |= all.view[i].len != all.view[0].len;
  for (Py_ssize_t i = 0; !wrong && i < count; i++) {
    wrong = shards[i] >= (uint64_t)last;
    if (wrong) break;
    uint64_t *kept = table + shards[i] * FIELDS;
    kept[1] = data[i], kept[2] = ranks[i];
    __atomic_store_n(&kept[0], forms[i], __ATOMIC_RELEASE); /* readers hold no lock */
  }
  release(&all);
  if (!wrong) Py_RETURN_NONE;
  PyErr_SetString(PyExc_ValueError, "arrays of unequal length, or a shard beyond the last");
  return NULL;
}

static PyMethodDef methods[] = {
    {"select", select_, METH_VARARGS, "The ordinals of surviving rows; returns how many lie in closed shards, and in those verified by row."},
    {"rank", rank, METH_VARARGS, "The survivors before ordinals; returns how many lie in closed shards, and in those verified by row."},
    {"enter", enter, METH_VARARGS, "Enter the forms and addresses of shards into a table."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_select", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__select(void) { return PyModule_Create(&definition); }
