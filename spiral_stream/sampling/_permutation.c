/* The Feistel network of `permutation.py`, which states the algorithm: rounds over Z_a x Z_b with cycle walking.
 *
 * Neighbours of one network go through the rounds in blocks, which the compiler turns into vector code: 3 ns per element
 * where the processor multiplies vectors of 64 bits (AVX-512), 7 ns elsewhere, and 30 ns for networks of one element each.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

#if defined(__x86_64__) && defined(__gnu_linux__) && !defined(__clang__) && __GNUC__ >= 12 && !defined(SPIRAL_PORTABLE)
#define FAST __attribute__((target_clones("arch=x86-64-v4", "default"))) /* the loader chooses */
#else
#define FAST
#endif

#define BLOCK 32 /* elements */
#define GOLDEN 0x9E3779B97F4A7C15u
#define LARGEST (1ull << 63)
#define M1 0xBF58476D1CE4E5B9u
#define M2 0x94D049BB133111EBu

static uint64_t half(uint64_t x) {
  x = (x ^ (x >> 30)) * M1;
  return (x ^ (x >> 27)) * M2;
}

typedef struct {
  uint64_t size, key, b, mask;
  int bits, rounds; /* an even number */
} Network;

static Network network(uint64_t size, uint64_t key, int rounds) {
  const uint64_t last = size - 1;
  const int bits = (64 - __builtin_clzll(last)) / 2;
  const uint64_t mixed = half(key);
  return (Network){size, mixed ^ (mixed >> 31), (last >> bits) + 1, (((uint64_t)1) << bits) - 1, bits, rounds};
}

static uint64_t forward(const Network *t, uint64_t x) {
  do {
    uint64_t low = x & t->mask, high = x >> t->bits;
    for (int i = 0; i < t->rounds; i += 2) {
      high += (half(low + t->key + i * GOLDEN) >> 32) * t->b >> 32;
      high -= high >= t->b ? t->b : 0;
      low = (low + (half(high + t->key + (i + 1) * GOLDEN) >> (64 - t->bits))) & t->mask;
    }
    x = high << t->bits | low;
  } while (x >= t->size);
  return x;
}

/* One pass of `BLOCK` elements through the rounds; results may lie beyond the size. */
FAST static void forward_block(const Network *t, const uint64_t *index, uint64_t *out) {
  uint64_t low[BLOCK], high[BLOCK];
  const uint64_t key = t->key, b = t->b, mask = t->mask;
  const int bits = t->bits;
  for (int j = 0; j < BLOCK; j++) low[j] = index[j] & mask, high[j] = index[j] >> bits;
  for (int i = 0; i < t->rounds; i += 2) {
    const uint64_t first = key + i * GOLDEN, second = key + (i + 1) * GOLDEN;
    for (int j = 0; j < BLOCK; j++) {
      uint64_t x = low[j] + first;
      x = (x ^ (x >> 30)) * M1;
      x = (x ^ (x >> 27)) * M2;
      x = high[j] + ((x >> 32) * b >> 32);
      high[j] = x >= b ? x - b : x;
      x = high[j] + second;
      x = (x ^ (x >> 30)) * M1;
      x = (x ^ (x >> 27)) * M2;
      low[j] = (low[j] + (x >> (64 - bits))) & mask;
    }
  }
  for (int j = 0; j < BLOCK; j++) out[j] = high[j] << bits | low[j];
}

/* Whether all indices are below the size; then `out` has their images. `index` and `out` may be the same. */
static int forward_all(const Network *t, const uint64_t *index, uint64_t *out, Py_ssize_t count) {
  Py_ssize_t i = 0;
  for (; i + BLOCK <= count; i += BLOCK) {
    uint64_t most = 0;
    for (int j = 0; j < BLOCK; j++) most = index[i + j] > most ? index[i + j] : most;
    if (most >= t->size) return 0; /* a walk from outside may never come in */
    forward_block(t, index + i, out + i);
    for (int j = 0; j < BLOCK; j++)
      if (out[i + j] >= t->size) out[i + j] = forward(t, out[i + j]);
  }
  for (; i < count; i++) {
    if (index[i] >= t->size) return 0;
    out[i] = forward(t, index[i]);
  }
  return 1;
}

static uint64_t backward(const Network *t, uint64_t x) {
  do {
    uint64_t low = x & t->mask, high = x >> t->bits;
    for (int i = t->rounds - 1; i > 0; i -= 2) {
      low = (low - (half(high + t->key + i * GOLDEN) >> (64 - t->bits))) & t->mask;
      const uint64_t word = (half(low + t->key + (i - 1) * GOLDEN) >> 32) * t->b >> 32;
      high = high >= word ? high - word : high + t->b - word;
    }
    x = high << t->bits | low;
  } while (x >= t->size);
  return x;
}

static PyObject *walk(PyObject *module, PyObject *args) {
  Py_buffer v[4]; /* index, size, keys, out */
  int rounds, inverse;
  if (!PyArg_ParseTuple(args, "y*y*y*w*ip", v, v + 1, v + 2, v + 3, &rounds, &inverse)) return NULL;
  const Py_ssize_t count = v[0].len / 8, sizes = v[1].len / 8, keys = v[2].len / 8;
  const uint64_t *index = v[0].buf, *size = v[1].buf, *key = v[2].buf;
  uint64_t *out = v[3].buf;
  int bad = rounds < 2 || rounds % 2 || v[3].len != v[0].len || v[0].len % 8 || v[1].len % 8 || v[2].len % 8 || (sizes != 1 && sizes != count) || (keys != 1 && keys != count);
  Py_BEGIN_ALLOW_THREADS
  for (Py_ssize_t i = 0; !bad && i < sizes; i++) bad = size[i] < 3 || size[i] > LARGEST;
  for (Py_ssize_t i = 0, next; !bad && i < count; i = next) { /* neighbours often share a network */
    const Py_ssize_t n = sizes == 1 ? 0 : i, k = keys == 1 ? 0 : i;
    const Network t = network(size[n], key[k], rounds);
    next = sizes == 1 && keys == 1 ? count : i + 1;
    while (next < count && (sizes == 1 || size[next] == size[n]) && (keys == 1 || key[next] == key[k])) next++;
    if (!inverse) bad = !forward_all(&t, index + i, out + i, next - i);
    for (Py_ssize_t j = i; inverse && !bad && j < next; j++) {
      bad = index[j] >= t.size;
      if (!bad) out[j] = backward(&t, index[j]);
    }
  }
  Py_END_ALLOW_THREADS
  for (int i = 0; i < 4; i++) PyBuffer_Release(v + i);
  if (!bad) Py_RETURN_NONE;
  PyErr_SetString(PyExc_ValueError, "one size and key, or one per index; sizes from 3 to 2**63, and indices below them");
  return NULL;
}

static PyMethodDef methods[] = {
    {"walk", walk, METH_VARARGS, "Permute indices, or the inverse, into an array."}, {NULL, NULL, 0, NULL}};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_permutation", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__permutation(void) { return PyModule_Create(&definition); }
