/* Runs of hashes: hash identities, sort them with their rows, and look at sorted runs side by side.
 *
 * A hash is XXH64 of a value's bytes. Integers are 8 little-endian bytes, of which XXH64 is a bijection: two integers
 * never share a hash. The seed of a value is what the columns before it gave, so the values of several columns fold
 * into one hash and keep their borders.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "../_build.h"

#define P1 0x9E3779B185EBCA87ULL
#define P2 0xC2B2AE3D27D4EB4FULL
#define P3 0x165667B19E3779F9ULL
#define P4 0x85EBCA77C2B2AE63ULL
#define P5 0x27D4EB2F165667C5ULL
#define SMALL 16     /* items: insertion is quicker than another pass */
#define MOST_BITS 11 /* of a pass */

typedef struct {
  uint64_t hash, row;
} Item;

static inline uint64_t turned(uint64_t x, int by) { return (x << by) | (x >> (64 - by)); }
static inline uint64_t word(const uint8_t *at) {
  uint64_t out;
  memcpy(&out, at, 8);
  return out;
}
static inline uint64_t round_of(uint64_t sum, uint64_t value) { return turned(sum + value * P2, 31) * P1; }
static inline uint64_t merged(uint64_t hash, uint64_t sum) { return (hash ^ round_of(0, sum)) * P1 + P4; }
static inline uint64_t with_word(uint64_t hash, uint64_t value) {
  return turned(hash ^ round_of(0, value), 27) * P1 + P4;
}
static inline uint64_t finished(uint64_t hash) {
  hash = (hash ^ (hash >> 33)) * P2;
  hash = (hash ^ (hash >> 29)) * P3;
  return hash ^ (hash >> 32);
}

static uint64_t xxh64(const uint8_t *at, uint64_t size, uint64_t seed) {
  const uint8_t *end = at + size;
  uint64_t hash = seed + P5;
  if (size >= 32) {
    uint64_t a = seed + P1 + P2, b = seed + P2, c = seed, d = seed - P1;
    for (; end - at >= 32; at += 32) {
      a = round_of(a, word(at)), b = round_of(b, word(at + 8));
      c = round_of(c, word(at + 16)), d = round_of(d, word(at + 24));
    }
    hash = turned(a, 1) + turned(b, 7) + turned(c, 12) + turned(d, 18);
    hash = merged(merged(merged(merged(hash, a), b), c), d);
  }
  hash += size;
  for (; end - at >= 8; at += 8) hash = with_word(hash, word(at));
  if (end - at >= 4) {
    uint32_t half;
    memcpy(&half, at, 4);
    hash = turned(hash ^ half * P1, 23) * P2 + P3;
    at += 4;
  }
  for (; at < end; at++) hash = turned(hash ^ *at * P5, 11) * P1;
  return finished(hash);
}

/* Bits of a pass that leave one or two items a place. */
static int bits_of(Py_ssize_t count, int left) {
  int bits = 1;
  while (bits < MOST_BITS && bits < left && (Py_ssize_t)2 << bits <= count) bits++;
  return bits;
}

static void release(Py_buffer *all, int count) {
  while (count--) PyBuffer_Release(&all[count]);
}

/* Buffers of 8-byte words, but for those whose bit is set in `bytes`; from `writable` on they are written to. */
static int buffers(PyObject *const *given, Py_buffer *all, int count, int writable, unsigned bytes) {
  for (int i = 0; i < count; i++) {
    if (PyObject_GetBuffer(given[i], &all[i], i >= writable ? PyBUF_WRITABLE : PyBUF_SIMPLE) != 0) {
      release(all, i);
      return 0;
    }
    if (!(bytes >> i & 1) && all[i].len % 8) {
      release(all, i + 1);
      PyErr_SetString(PyExc_ValueError, "8 bytes each");
      return 0;
    }
  }
  return 1;
}

static PyObject *done(Py_buffer *all, int count, const char *wrong) {
  release(all, count);
  if (wrong == NULL) Py_RETURN_NONE;
  PyErr_SetString(PyExc_ValueError, wrong);
  return NULL;
}

static PyObject *hash_words(PyObject *module, PyObject *args) {
  PyObject *given[2];
  Py_buffer all[2];
  unsigned long long tag;
  if (!PyArg_ParseTuple(args, "OOK", &given[0], &given[1], &tag)) return NULL;
  if (!buffers(given, all, 2, 1, 0)) return NULL;
  const char *wrong = all[0].len != all[1].len ? "arrays of unequal length" : NULL;
  const uint64_t *values = all[0].buf;
  uint64_t *hashes = all[1].buf;
  const Py_ssize_t count = all[1].len / 8;
  Py_BEGIN_ALLOW_THREADS
  for (Py_ssize_t i = 0; wrong == NULL && i < count; i++)
    hashes[i] = finished(with_word((hashes[i] ^ tag) + P5 + 8, values[i]));
  Py_END_ALLOW_THREADS
  return done(all, 2, wrong);
}

static PyObject *hash_spans(PyObject *module, PyObject *args) {
  PyObject *given[3];
  Py_buffer all[3];
  unsigned long long tag;
  if (!PyArg_ParseTuple(args, "OOOK", &given[0], &given[1], &given[2], &tag)) return NULL;
  if (!buffers(given, all, 3, 2, 2)) return NULL;
  const char *wrong = all[0].len != all[2].len + 8 ? "arrays of unequal length" : NULL;
  const int64_t *ends = all[0].buf;
  const uint8_t *data = all[1].buf;
  uint64_t *hashes = all[2].buf;
  const Py_ssize_t count = all[2].len / 8;
  Py_BEGIN_ALLOW_THREADS
  for (Py_ssize_t i = 0; wrong == NULL && i < count; i++) {
    if (ends[i] < 0 || ends[i + 1] < ends[i] || ends[i + 1] > all[1].len)
      wrong = "a value beyond the data";
    else
      hashes[i] = xxh64(data + ends[i], (uint64_t)(ends[i + 1] - ends[i]), hashes[i] ^ tag);
  }
  Py_END_ALLOW_THREADS
  return done(all, 3, wrong);
}

/* HyperLogLog: the highest bits of a hash name a register, which keeps the most zeros that the other bits begin with. */
static PyObject *registers(PyObject *module, PyObject *args) {
  PyObject *given[2];
  Py_buffer all[2];
  if (!PyArg_ParseTuple(args, "OO", &given[0], &given[1])) return NULL;
  if (!buffers(given, all, 2, 1, 2)) return NULL;
  const uint64_t *hashes = all[0].buf;
  uint8_t *out = all[1].buf;
  const Py_ssize_t count = all[0].len / 8;
  int bits = 0;
  while ((Py_ssize_t)1 << bits < all[1].len) bits++;
  const char *wrong = bits < 1 || bits > 32 || (Py_ssize_t)1 << bits != all[1].len ? "a number of registers" : NULL;
  Py_BEGIN_ALLOW_THREADS
  for (Py_ssize_t i = 0; wrong == NULL && i < count; i++) {
    const uint64_t rest = hashes[i] << bits | (uint64_t)1 << (bits - 1);
    const uint8_t rank = (uint8_t)(__builtin_clzll(rest) + 1);
    uint8_t *at = &out[hashes[i] >> (64 - bits)];
    if (*at < rank) *at = rank;
  }
  Py_END_ALLOW_THREADS
  return done(all, 2, wrong);
}

/* Sort by hash, equal ones as they stand: by the highest bits, then by the next ones, between two buffers. Hashes are
 * spread evenly, so two passes leave one or two items a place. */
static void sort_items(Item *from, Item *to, Py_ssize_t count, int left, int back) {
  Item *out = back ? to : from;
  if (count <= SMALL || left == 0) {
    for (Py_ssize_t i = 0; i < count; i++) {
      const Item item = from[i];
      Py_ssize_t at = i;
      for (; left && at > 0 && out[at - 1].hash > item.hash; at--) out[at] = out[at - 1];
      out[at] = item;
    }
    return;
  }
  const int bits = bits_of(count, left), shift = left - bits;
  const uint64_t mask = ((uint64_t)1 << bits) - 1;
  Py_ssize_t ends[(1 << MOST_BITS) + 1];
  memset(ends, 0, (mask + 2) * sizeof(*ends));
  for (Py_ssize_t i = 0; i < count; i++) ends[(from[i].hash >> shift & mask) + 1]++;
  for (uint64_t k = 0; k < mask; k++) ends[k + 1] += ends[k];
  for (Py_ssize_t i = 0; i < count; i++) to[ends[from[i].hash >> shift & mask]++] = from[i];
  Py_ssize_t at = 0;
  for (uint64_t k = 0; k <= mask; at = ends[k++])
    if (ends[k] > at) sort_items(to + at, from + at, ends[k] - at, shift, !back);
}

/* The first pass takes the hashes as they come; then each part is sorted while it lies in the cache. */
static int sort_hashes(uint64_t *hashes, uint32_t *narrow, uint64_t *wide, Py_ssize_t count) {
  const int bits = bits_of(count, 64), shift = 64 - bits;
  const uint64_t parts = (uint64_t)1 << bits;
  Py_ssize_t ends[(1 << MOST_BITS) + 1] = {0}, most = 1;
  for (Py_ssize_t i = 0; i < count; i++) ends[(hashes[i] >> shift) + 1]++;
  for (uint64_t k = 1; k <= parts; k++) most = ends[k] > most ? ends[k] : most;
  for (uint64_t k = 1; k <= parts; k++) ends[k] += ends[k - 1];
  Item *items = malloc((size_t)(count + most) * sizeof(Item));
  if (items == NULL) return 0;
  for (Py_ssize_t i = 0; i < count; i++) items[ends[hashes[i] >> shift]++] = (Item){hashes[i], (uint64_t)i};
  Py_ssize_t at = 0;
  for (uint64_t k = 0; k < parts; k++) {
    const Py_ssize_t end = ends[k];
    sort_items(items + at, items + count, end - at, shift, 0);
    for (; at < end; at++) {
      hashes[at] = items[at].hash;
      if (narrow) narrow[at] = (uint32_t)items[at].row;
      else wide[at] = items[at].row;
    }
  }
  free(items);
  return 1;
}

static PyObject *sort(PyObject *module, PyObject *args) {
  PyObject *given[2];
  Py_buffer all[2];
  if (!PyArg_ParseTuple(args, "OO", &given[0], &given[1])) return NULL;
  if (!buffers(given, all, 2, 0, 2)) return NULL;
  uint64_t *hashes = all[0].buf;
  const Py_ssize_t count = all[0].len / 8;
  const int narrow = all[1].len == 4 * count;
  if (!narrow && all[1].len != 8 * count) return done(all, 2, "arrays of unequal length");
  int made;
  Py_BEGIN_ALLOW_THREADS
  made = sort_hashes(hashes, narrow ? all[1].buf : NULL, narrow ? NULL : all[1].buf, count);
  Py_END_ALLOW_THREADS
  release(all, 2);
  if (made) Py_RETURN_NONE;
  return PyErr_NoMemory();
}

/* The first place from `at` on whose hash is not below `value`: steps that double, then halves. */
static inline Py_ssize_t reach(const uint64_t *run, Py_ssize_t at, Py_ssize_t count, uint64_t value) {
  if (at >= count || run[at] >= value) return at;
  Py_ssize_t step = 1;
  while (step < count - at && run[at + step] < value) at += step, step *= 2;
  Py_ssize_t end = step < count - at ? at + step : count;
  for (at++; at < end;) {
    const Py_ssize_t mid = at + (end - at) / 2;
    if (run[mid] < value) at = mid + 1;
    else end = mid;
  }
  return at;
}

static PyObject *cut(PyObject *module, PyObject *args) {
  PyObject *given[3];
  Py_buffer all[3];
  unsigned long long value;
  if (!PyArg_ParseTuple(args, "OOKO", &given[0], &given[1], &value, &given[2])) return NULL;
  if (!buffers(given, all, 3, 2, 0)) return NULL;
  const uint64_t *addresses = all[0].buf;
  const int64_t *counts = all[1].buf;
  int64_t *places = all[2].buf;
  const Py_ssize_t runs = all[0].len / 8;
  const char *wrong = all[1].len != all[0].len || all[2].len != all[0].len ? "arrays of unequal length" : NULL;
  Py_BEGIN_ALLOW_THREADS
  for (Py_ssize_t k = 0; wrong == NULL && k < runs; k++) {
    if (places[k] < 0 || places[k] > counts[k]) wrong = "a place beyond its run";
    else places[k] = reach((const uint64_t *)(uintptr_t)addresses[k], places[k], counts[k], value);
  }
  Py_END_ALLOW_THREADS
  return done(all, 3, wrong);
}

static PyObject *common(PyObject *module, PyObject *args) {
  PyObject *given[3];
  Py_buffer all[3];
  if (!PyArg_ParseTuple(args, "OOO", &given[0], &given[1], &given[2])) return NULL;
  if (!buffers(given, all, 3, 2, 0)) return NULL;
  const uint64_t *run = all[0].buf, *wanted = all[1].buf;
  int64_t *out = all[2].buf;
  const Py_ssize_t count = all[0].len / 8, asked = all[1].len / 8, room = all[2].len / 8;
  Py_ssize_t found = 0;
  Py_BEGIN_ALLOW_THREADS
  for (Py_ssize_t i = 0, j = 0; i < count && j < asked && found < room;) {
    if (run[i] < wanted[j]) i = reach(run, i, count, wanted[j]);
    else if (wanted[j] < run[i]) j = reach(wanted, j, asked, run[i]);
    else out[found++] = i++;
  }
  Py_END_ALLOW_THREADS
  release(all, 3);
  return PyLong_FromSsize_t(found);
}

/* A bit stands for the hashes of a small span, and a run goes through the bits in order. */
static PyObject *seen(PyObject *module, PyObject *args) {
  PyObject *given[3];
  Py_buffer all[3];
  unsigned long long low;
  int shift, set;
  if (!PyArg_ParseTuple(args, "OKiOOp", &given[0], &low, &shift, &given[1], &given[2], &set)) return NULL;
  if (!buffers(given, all, 3, 1, 0)) return NULL;
  const uint64_t *run = all[0].buf;
  uint64_t *bits = all[1].buf, *out = all[2].buf;
  const Py_ssize_t count = all[0].len / 8;
  const uint64_t spans = (uint64_t)all[1].len * 8;
  Py_ssize_t found = 0;
  const char *wrong = shift < 0 || shift > 63 || all[2].len < all[0].len ? "arrays of unequal length" : NULL;
  Py_BEGIN_ALLOW_THREADS
  for (Py_ssize_t i = 0; wrong == NULL && i < count; i++) {
    const uint64_t span = (run[i] - low) >> shift, bit = (uint64_t)1 << (span & 63);
    if (span >= spans) {
      wrong = "a hash beyond the range";
      break;
    }
    out[found] = run[i];
    found += (bits[span >> 6] & bit) != 0;
    if (set) bits[span >> 6] |= bit;
  }
  Py_END_ALLOW_THREADS
  if (wrong != NULL) return done(all, 3, wrong);
  release(all, 3);
  return PyLong_FromSsize_t(found);
}

/* Hashes of a run whose bit is set, into `out`; the word after the last bits is 0, and all that lie beyond have its bit. */
static Py_ssize_t passing(
    const uint64_t *run, Py_ssize_t count, uint64_t low, int shift, const uint64_t *bits, uint64_t spans, uint64_t *out
) {
  Py_ssize_t found = 0;
  for (Py_ssize_t i = 0; i < count; i++) {
    uint64_t span = (run[i] - low) >> shift;
    span = span < spans ? span : spans;
    out[found] = run[i];
    found += bits[span >> 6] >> (span & 63) & 1;
  }
  return found;
}

#ifdef HAVE_X86
__attribute__((target("avx512f,popcnt"))) static Py_ssize_t passing_avx512(
    const uint64_t *run, Py_ssize_t count, uint64_t low, int shift, const uint64_t *bits, uint64_t spans, uint64_t *out
) {
  const __m512i lows = _mm512_set1_epi64((long long)low), last = _mm512_set1_epi64((long long)spans);
  const __m512i one = _mm512_set1_epi64(1), within = _mm512_set1_epi64(63);
  const __m128i by = _mm_cvtsi32_si128(shift);
  Py_ssize_t found = 0, i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m512i hashes = _mm512_loadu_si512(run + i);
    const __m512i span = _mm512_min_epu64(_mm512_srl_epi64(_mm512_sub_epi64(hashes, lows), by), last);
    const __m512i words = _mm512_i64gather_epi64(_mm512_srli_epi64(span, 6), bits, 8);
    const __mmask8 set = _mm512_test_epi64_mask(words, _mm512_sllv_epi64(one, _mm512_and_si512(span, within)));
    if (set == 0) continue;
    _mm512_mask_compressstoreu_epi64(out + found, set, hashes);
    found += __builtin_popcount(set);
  }
  return found + passing(run + i, count - i, low, shift, bits, spans, out + found);
}
static int has_avx512(void) { return __builtin_cpu_supports("avx512f"); }
#else
#define passing_avx512 passing
static int has_avx512(void) { return 0; }
#endif

#define AT_A_TIME 4096   /* hashes of a run, which stay in the cache */
#define BITS_PER_HASH 128 /* then one of 128 other hashes is looked for in vain */

/* Bits stand for small spans of the hashes that are wanted; only a hash that meets one is looked for. */
static Py_ssize_t shared_by(
    const uint64_t *addresses, const int64_t *counts, Py_ssize_t runs, const uint64_t *wanted, Py_ssize_t asked
) {
  int shift = 0;
  const uint64_t low = wanted[0], width = wanted[asked - 1] - low;
  while (width >> shift >= (uint64_t)asked * BITS_PER_HASH) shift++;
  const uint64_t spans = (width >> shift) + 1;
  uint64_t *bits = calloc(spans / 64 + 2, sizeof(*bits)), *out = malloc(AT_A_TIME * sizeof(*out));
  Py_ssize_t found = -1;
  if (bits != NULL && out != NULL) {
    found = 0;
    const int wide = has_avx512();
    for (Py_ssize_t i = 0; i < asked; i++) {
      const uint64_t span = (wanted[i] - low) >> shift;
      bits[span >> 6] |= (uint64_t)1 << (span & 63);
    }
    for (Py_ssize_t k = 0; k < runs; k++) {
      const uint64_t *run = (const uint64_t *)(uintptr_t)addresses[k];
      for (Py_ssize_t at = 0; at < counts[k]; at += AT_A_TIME) {
        const Py_ssize_t count = counts[k] - at < AT_A_TIME ? counts[k] - at : AT_A_TIME;
        const Py_ssize_t met = (wide ? passing_avx512 : passing)(run + at, count, low, shift, bits, spans, out);
        for (Py_ssize_t i = 0, from = 0; i < met; i++) {
          from = reach(wanted, from, asked, out[i]);
          found += from < asked && wanted[from] == out[i];
        }
      }
    }
  }
  free(bits), free(out);
  return found;
}

static PyObject *shared(PyObject *module, PyObject *args) {
  PyObject *given[3];
  Py_buffer all[3];
  if (!PyArg_ParseTuple(args, "OOO", &given[0], &given[1], &given[2])) return NULL;
  if (!buffers(given, all, 3, 3, 0)) return NULL;
  const Py_ssize_t runs = all[0].len / 8, asked = all[2].len / 8;
  const char *wrong = all[1].len != all[0].len ? "arrays of unequal length" : NULL;
  Py_ssize_t found = 0;
  Py_BEGIN_ALLOW_THREADS
  if (wrong == NULL && asked > 0) found = shared_by(all[0].buf, all[1].buf, runs, all[2].buf, asked);
  Py_END_ALLOW_THREADS
  if (wrong != NULL) return done(all, 3, wrong);
  release(all, 3);
  return found < 0 ? PyErr_NoMemory() : PyLong_FromSsize_t(found);
}

static PyMethodDef methods[] = {
    {"hash_words", hash_words, METH_VARARGS, "Fold a column of 8-byte values into hashes."},
    {"hash_spans", hash_spans, METH_VARARGS, "Fold a column of texts or bytes into hashes."},
    {"registers", registers, METH_VARARGS, "Raise registers of HyperLogLog, a power of two of bytes, to those of hashes."},
    {"sort", sort, METH_VARARGS, "Sort hashes in place, and say in which row each of them stood."},
    {"cut", cut, METH_VARARGS, "Move a place in each run on to the first hash that is not below a value."},
    {"common", common, METH_VARARGS, "The places of a run whose hash is also in another run; returns how many."},
    {"shared", shared, METH_VARARGS, "How many hashes of some runs, given by address and length, another run has."},
    {"seen", seen, METH_VARARGS, "The hashes of a run whose bit is set, and set the bits of all; returns how many."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_runs", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__runs(void) { return PyModule_Create(&definition); }
