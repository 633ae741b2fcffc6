/* Decode only the part of a baseline JPEG that a crop needs, for a list of images at once.
 *
 * libjpeg-turbo can skip rows (no inverse DCT, no colour conversion) and crop columns, but no wheel offers that
 * to Python. Pillow's wheel ships the shared library; `open_library` loads it and takes the functions of its
 * public interface (ABI 6.2, unchanged since 1998). The two structures below declare the leading fields that are
 * read here; the library is asked to confirm the size of the first one before any image is decoded.
 *
 * The region is decoded 4 pixels wider on each side and 4 rows higher than asked, so that chroma upsampling
 * sees the same neighbours as in a full decode: the pixels inside are the same bits (tests/stream/decoders).
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#ifndef SPIRAL_PORTABLE /* a portable build opens no library, so every image is decoded whole */
#include <dlfcn.h>
#endif
#include <setjmp.h>
#include <stdint.h>
#include <string.h>

enum { ABI = 62, MARGIN = 4, RGB = 2, GRAY = 1, YCC = 3, ROOM = 4096 };

typedef struct {
  void (*exit)(void *), (*emit)(void *, int), (*print)(void *);
  void *format, *reset;
  int code;
  char parameters[80];
  int trace_level;
  long warnings;
  char rest[ROOM];
  jmp_buf jump; /* ours, behind whatever the library uses */
} Errors;

typedef struct {
  Errors *errors;
  void *memory, *progress, *client;
  int is_decompressor, state;
  void *source;
  unsigned width, height;
  int components, space, out_space;
  unsigned scale_num, scale_denom;
  double gamma;
  int buffered, raw, dct, fancy, smoothing, quantize, dither, two_pass, colors, quant1, quant_ext, quant2;
  unsigned out_width, out_height;
  int out_components, stored_components, row_group, actual_colors;
  void *map;
  unsigned row;
  char rest[ROOM];
} Decoder;

static struct {
  Errors *(*std_error)(Errors *);
  void (*create)(Decoder *, int, size_t);
  void (*memory_source)(Decoder *, const unsigned char *, unsigned long);
  int (*read_header)(Decoder *, int);
  int (*start)(Decoder *);
  unsigned (*read_rows)(Decoder *, unsigned char **, unsigned);
  unsigned (*skip_rows)(Decoder *, unsigned);
  void (*crop_columns)(Decoder *, unsigned *, unsigned *);
  void (*destroy)(Decoder *);
} jpeg;
static size_t decoder_size; /* 0: no library */

static void fail(void *decoder) { longjmp(((Decoder *)decoder)->errors->jump, 1); }
static void stay_quiet(void *decoder) { (void)decoder; }
static void count_warning(void *decoder, int level) {
  if (level < 0) ((Decoder *)decoder)->errors->warnings++;
}

static void begin(Decoder *decoder, Errors *errors) {
  memset(decoder, 0, sizeof *decoder);
  memset(errors, 0, sizeof *errors);
  decoder->errors = jpeg.std_error(errors);
  errors->exit = fail;
  errors->print = stay_quiet;
  errors->emit = count_warning;
}

/* Find the size that the library has for its structure: it refuses every other one. */
static size_t probe_size(void) {
  Decoder decoder;
  Errors errors;
  for (volatile size_t size = 400; size <= 1200; size += 8) {
    begin(&decoder, &errors);
    if (setjmp(errors.jump) == 0) {
      jpeg.create(&decoder, ABI, size);
      jpeg.destroy(&decoder);
      return size;
    }
  }
  return 0;
}

#ifdef SPIRAL_PORTABLE
static void *open_at(const char *path) { return (void)path, NULL; }
static void *find(void *library, const char *name) { return (void)library, (void)name, NULL; }
#else
static void *open_at(const char *path) { return dlopen(path, RTLD_NOW | RTLD_LOCAL); }
static void *find(void *library, const char *name) { return dlsym(library, name); }
#endif

static PyObject *open_library(PyObject *self, PyObject *argument) {
  const char *path = PyUnicode_AsUTF8AndSize(argument, NULL);
  if (!path) return NULL;
  void *library = open_at(path);
  if (!library) Py_RETURN_FALSE;
  void **slots[] = {(void **)&jpeg.std_error,     (void **)&jpeg.create,       (void **)&jpeg.memory_source,
                    (void **)&jpeg.read_header,   (void **)&jpeg.start,        (void **)&jpeg.read_rows,
                    (void **)&jpeg.skip_rows,     (void **)&jpeg.crop_columns, (void **)&jpeg.destroy};
  const char *names[] = {"jpeg_std_error",       "jpeg_CreateDecompress", "jpeg_mem_src",
                         "jpeg_read_header",     "jpeg_start_decompress", "jpeg_read_scanlines",
                         "jpeg_skip_scanlines",  "jpeg_crop_scanline",    "jpeg_destroy_decompress"};
  for (int i = 0; i < 9; i++)
    if (!(*slots[i] = find(library, names[i]))) Py_RETURN_FALSE;
  decoder_size = probe_size();
  return PyBool_FromLong(decoder_size != 0);
}

/* Height and width of a whole baseline JPEG of 1 or 3 components, or 0: anything else is for the full decoder. */
static int measure(const uint8_t *data, Py_ssize_t size, int32_t *height, int32_t *width) {
  if (size < 4 || data[0] != 0xFF || data[1] != 0xD8 || data[size - 2] != 0xFF || data[size - 1] != 0xD9) return 0;
  Py_ssize_t at = 2;
  while (at + 9 < size) {
    if (data[at] != 0xFF) return 0;
    uint8_t marker = data[at + 1];
    if (marker == 0xFF) {
      at++;
      continue;
    }
    int length = data[at + 2] << 8 | data[at + 3];
    if (marker == 0xC0 || marker == 0xC1) {
      *height = data[at + 5] << 8 | data[at + 6];
      *width = data[at + 7] << 8 | data[at + 8];
      int components = data[at + 9];
      return data[at + 4] == 8 && *height > 0 && *width > 0 && (components == 1 || components == 3);
    }
    if (marker == 0xDA || (marker >= 0xC2 && marker <= 0xCF && marker != 0xC4 && marker != 0xC8 && marker != 0xCC) || length < 2)
      return 0;
    at += 2 + length;
  }
  return 0;
}

/* Decode rows [top, top + height) into `out`; 0 where the full decoder has to look. */
static int decode(const uint8_t *data, Py_ssize_t size, const int32_t *box, uint8_t *out, Py_ssize_t room, uint64_t *origin,
                  int64_t *stride) {
  Decoder decoder;
  Errors errors;
  begin(&decoder, &errors);
  if (setjmp(errors.jump)) {
    jpeg.destroy(&decoder);
    return 0;
  }
  jpeg.create(&decoder, ABI, decoder_size);
  jpeg.memory_source(&decoder, data, (unsigned long)size);
  jpeg.read_header(&decoder, 1);
  int top = box[0], left = box[1], bottom = top + box[2], right = left + box[3];
  if ((decoder.space != YCC && decoder.space != GRAY) || bottom > (int)decoder.height || right > (int)decoder.width) {
    jpeg.destroy(&decoder);
    return 0;
  }
  decoder.out_space = RGB;
  jpeg.start(&decoder);
  unsigned x = left > MARGIN ? (unsigned)(left - MARGIN) : 0;
  unsigned end = right + MARGIN < (int)decoder.out_width ? (unsigned)(right + MARGIN) : decoder.out_width;
  unsigned columns = end - x;
  if (columns < decoder.out_width) jpeg.crop_columns(&decoder, &x, &columns);
  unsigned first = top > MARGIN ? (unsigned)(top - MARGIN) : 0;
  if (first) jpeg.skip_rows(&decoder, first);
  Py_ssize_t pitch = 3 * (Py_ssize_t)columns;
  if (pitch * (Py_ssize_t)(bottom - (int)first) > room) {
    jpeg.destroy(&decoder);
    return 0;
  }
  uint8_t *next = out;
  while ((int)decoder.row < bottom) {
    unsigned char *rows[8];
    unsigned wanted = (unsigned)bottom - decoder.row < 8 ? (unsigned)bottom - decoder.row : 8;
    for (unsigned i = 0; i < wanted; i++) rows[i] = next + pitch * i;
    next += pitch * jpeg.read_rows(&decoder, rows, wanted);
  }
  long warnings = errors.warnings;
  jpeg.destroy(&decoder);
  *origin = (uint64_t)(uintptr_t)(out + pitch * (top - (int)first) + 3 * (left - (int)x));
  *stride = pitch;
  return warnings == 0;
}

/* Take `count` contiguous buffers out of `args`; the first two are addresses [B] u64 and lengths [B] i64. */
static Py_ssize_t take(PyObject *args, const int *flags, Py_buffer *views, int count) {
  if (PyTuple_Size(args) != count) {
    PyErr_Format(PyExc_TypeError, "takes %d arrays", count);
    return -1;
  }
  for (int i = 0; i < count; i++)
    if (PyObject_GetBuffer(PyTuple_GetItem(args, i), views + i, flags[i] | PyBUF_C_CONTIGUOUS)) {
      while (i) PyBuffer_Release(views + --i);
      return -1;
    }
  return views[0].len / 8;
}

static PyObject *give(Py_buffer *views, int count, PyObject *result) {
  while (count) PyBuffer_Release(views + --count);
  return result;
}

static PyObject *too_short(void) {
  PyErr_SetString(PyExc_ValueError, "an array is too short");
  return NULL;
}

static PyObject *sizes(PyObject *self, PyObject *args) { /* addresses, lengths, heights [B] i32, widths [B] i32 */
  const int flags[] = {PyBUF_SIMPLE, PyBUF_SIMPLE, PyBUF_WRITABLE, PyBUF_WRITABLE};
  Py_buffer views[4];
  Py_ssize_t count = take(args, flags, views, 4);
  if (count < 0) return NULL;
  if (views[1].len < 8 * count || views[2].len < 4 * count || views[3].len < 4 * count) return give(views, 4, too_short());
  const uint64_t *addresses = views[0].buf;
  const int64_t *lengths = views[1].buf;
  int32_t *heights = views[2].buf, *widths = views[3].buf;
  for (Py_ssize_t i = 0; i < count; i++)
    if (!measure((const uint8_t *)(uintptr_t)addresses[i], lengths[i], heights + i, widths + i)) heights[i] = widths[i] = 0;
  return give(views, 4, Py_NewRef(Py_None));
}

/* addresses, lengths, boxes [B, 4] i32, places in scratch [B + 1] i64, scratch u8, origins [B] u64, strides [B] i64 */
static PyObject *decode_regions(PyObject *self, PyObject *args) {
  const int flags[] = {PyBUF_SIMPLE,   PyBUF_SIMPLE,   PyBUF_SIMPLE,  PyBUF_SIMPLE,
                       PyBUF_WRITABLE, PyBUF_WRITABLE, PyBUF_WRITABLE};
  Py_buffer views[7];
  Py_ssize_t count = take(args, flags, views, 7), failed = -1;
  if (count < 0) return NULL;
  const uint64_t *addresses = views[0].buf;
  const int64_t *lengths = views[1].buf, *places = views[3].buf;
  const int32_t *boxes = views[2].buf;
  uint8_t *scratch = views[4].buf;
  if (views[1].len < 8 * count || views[2].len < 16 * count || views[3].len < 8 * (count + 1) ||
      places[count] > views[4].len || views[5].len < 8 * count || views[6].len < 8 * count)
    return give(views, 7, too_short());
  if (!decoder_size) {
    PyErr_SetString(PyExc_RuntimeError, "no library is open");
    return give(views, 7, NULL);
  }
  Py_BEGIN_ALLOW_THREADS
  for (Py_ssize_t i = 0; i < count && failed < 0; i++)
    if (!decode((const uint8_t *)(uintptr_t)addresses[i], lengths[i], boxes + 4 * i, scratch + places[i],
                places[i + 1] - places[i], (uint64_t *)views[5].buf + i, (int64_t *)views[6].buf + i))
      failed = i;
  Py_END_ALLOW_THREADS
  return give(views, 7, PyLong_FromSsize_t(failed));
}

static PyMethodDef methods[] = {
    {"open_library", open_library, METH_O, "Load libjpeg-turbo from a path; whether it can decode regions."},
    {"sizes", sizes, METH_VARARGS, "Write heights and widths of baseline JPEGs; 0 for anything else."},
    {"decode_regions", decode_regions, METH_VARARGS, "Decode boxes into scratch; -1, or the first image that needs the full decoder."},
    {NULL, NULL, 0, NULL}};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_region", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__region(void) { return PyModule_Create(&module); }
