/* Boxes of decoded video frames, turned upright, from planar YUV to packed RGB.
 *
 * A crop needs a part of the picture, so only the pixels of its box are converted. All arithmetic is in integers,
 * so every machine gives the same bytes. With d bits a sample, s = d - 8 and coefficients of 14 fraction bits
 * (video.py derives them from the matrix and the range):
 *
 *     y = Y - (black << s), u = U - (128 << s), v = V - (128 << s)          black is 16, or 0 in full range
 *     R = clip((luma * y + red_v * v + half) >> (14 + s))
 *     G = clip((luma * y - green_u * u - green_v * v + half) >> (14 + s))   half = 1 << (13 + s)
 *     B = clip((luma * y + blue_u * u + half) >> (14 + s))
 *
 * where >> rounds to minus infinity and clip bounds to 0 .. 255. Chroma is the nearest sample, at (x >> shift_x,
 * y >> shift_y), or of two fields at (y >> 2) * 2 + (y & 1) where shift_y is 1. GBR pictures are shifted to 8 bits with the same rounding.
 *
 * Nothing outside the planes is read whatever the arguments are: plane sizes, boxes and places in `out` are checked
 * before the first pixel. Two paths from one source, AVX2 chosen at run time, give the same bytes.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "../_build.h"

enum { BLOCK = 512, TURNED = 16, FRACTION = 14, MAX_SIDE = 1 << 15, FORM = 7, PLANE = 3, CONSTANTS = 6 };
enum { YUV, GRAY, SEMI, GBR }; /* SEMI: U and V alternate in the second plane */

typedef struct {
  const uint8_t *data[3];
  int64_t line[3];
  int height, width, shift_x, shift_y, bits, kind, fields;
} Picture;

typedef struct { int32_t black, luma, red_v, green_u, green_v, blue_u; } Matrix;

typedef struct { /* one block of columns of one row */
  uint8_t rgb[3][BLOCK];
  int32_t terms[3][BLOCK + 2]; /* what chroma adds to R, G, B, with the rounding; one entry a luma column */
} Lines;

#define ALWAYS __attribute__((always_inline)) static inline

ALWAYS int32_t sample(const uint8_t *row, int x, int wide) {
  return wide ? ((const uint16_t *)(const void *)row)[x] : row[x];
}

ALWAYS uint8_t clip(int32_t value) { return (uint8_t)(value < 0 ? 0 : value > 255 ? 255 : value); }

#ifdef HAVE_X86
/* Halved chroma of 8 bits, 8 samples at a time, each written twice; returns how many samples it has done. */
__attribute__((target("avx2"))) static int chroma_avx2(const Matrix *m, const uint8_t *us, const uint8_t *vs, int count,
                                                       int32_t terms[3][BLOCK + 2]) {
  const __m256i half = _mm256_set1_epi32(1 << (FRACTION - 1)), middle = _mm256_set1_epi32(128);
  const __m256i red_v = _mm256_set1_epi32(m->red_v), green_u = _mm256_set1_epi32(m->green_u);
  const __m256i green_v = _mm256_set1_epi32(m->green_v), blue_u = _mm256_set1_epi32(m->blue_u);
  const __m256i first = _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3), second = _mm256_setr_epi32(4, 4, 5, 5, 6, 6, 7, 7);
  int i = 0;
  for (; i + 8 <= count; i += 8) {
    __m256i u = _mm256_sub_epi32(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const void *)(us + i))), middle);
    __m256i v = _mm256_sub_epi32(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const void *)(vs + i))), middle);
    const __m256i of[3] = {
        _mm256_add_epi32(_mm256_mullo_epi32(v, red_v), half),
        _mm256_sub_epi32(_mm256_sub_epi32(half, _mm256_mullo_epi32(u, green_u)), _mm256_mullo_epi32(v, green_v)),
        _mm256_add_epi32(_mm256_mullo_epi32(u, blue_u), half)};
    for (int c = 0; c < 3; c++) {
      _mm256_storeu_si256((void *)(terms[c] + 2 * i), _mm256_permutevar8x32_epi32(of[c], first));
      _mm256_storeu_si256((void *)(terms[c] + 2 * i + 8), _mm256_permutevar8x32_epi32(of[c], second));
    }
  }
  return i;
}
#endif

/* The row of chroma that belongs to row y: of a picture of two fields, where chroma is halved, one of its own field. */
static inline int chroma_row_of(const Picture *p, int y) {
  if (!p->fields || !p->shift_y) return y >> p->shift_y;
  const int row = ((y >> 2) << 1) | (y & 1), last = ((p->height + 1) >> 1) - 1;
  return row < last ? row : last;
}

/* Terms of columns [x, x + n) of picture row y; terms[c][x & 1 ...] belongs to column x where chroma is halved. */
ALWAYS void chroma_terms(const Picture *p, const Matrix *m, int y, int x, int n, int wide, int step, int fast,
                         Lines *lines) {
  const int s = p->bits - 8, half = 1 << (FRACTION - 1 + s), middle = 128 << s;
  const int first = x >> p->shift_x, count = ((x + n - 1) >> p->shift_x) - first + 1, size = 1 + wide;
  const int64_t row = chroma_row_of(p, y);
  const uint8_t *us = p->data[1] + row * p->line[1] + (int64_t)first * size * step;
  const uint8_t *vs = step == 2 ? us + size : p->data[2] + row * p->line[2] + (int64_t)first * size;
  int i = 0;
#ifdef HAVE_X86
  if (fast && !wide && step == 1 && p->shift_x) i = chroma_avx2(m, us, vs, count, lines->terms);
#endif
  (void)fast;
  int32_t *restrict red = lines->terms[0], *restrict green = lines->terms[1], *restrict blue = lines->terms[2];
  if (!p->shift_x) /* a loop of its own, which compilers vectorize */
    for (; i < count; i++) {
      const int32_t u = sample(us, i * step, wide) - middle, v = sample(vs, i * step, wide) - middle;
      red[i] = m->red_v * v + half;
      green[i] = half - m->green_u * u - m->green_v * v;
      blue[i] = m->blue_u * u + half;
    }
  for (; i < count; i++) {
    const int32_t u = sample(us, i * step, wide) - middle, v = sample(vs, i * step, wide) - middle;
    red[2 * i] = red[2 * i + 1] = m->red_v * v + half;
    green[2 * i] = green[2 * i + 1] = half - m->green_u * u - m->green_v * v;
    blue[2 * i] = blue[2 * i + 1] = m->blue_u * u + half;
  }
}

#ifdef HAVE_X86
/* luma_row of 8 bits, 16 columns at a time; returns how many columns it has done. */
__attribute__((target("avx2"))) static int luma_avx2(const Matrix *m, const uint8_t *row, int n,
                                                     const int32_t *const terms[3], Lines *lines) {
  const __m256i black = _mm256_set1_epi32(m->black), luma = _mm256_set1_epi32(m->luma); /* below 2^15: see CONSTANTS */
  int i = 0;
  for (; i + 16 <= n; i += 16) {
    /* a product of 16 bits each is exact in 32, and half the price of one of 32 bits each */
    __m256i low = _mm256_madd_epi16(
        _mm256_sub_epi32(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const void *)(row + i))), black), luma);
    __m256i high = _mm256_madd_epi16(
        _mm256_sub_epi32(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const void *)(row + i + 8))), black), luma);
    for (int c = 0; c < 3; c++) {
      __m256i a = _mm256_add_epi32(low, _mm256_loadu_si256((const void *)(terms[c] + i)));
      __m256i b = _mm256_add_epi32(high, _mm256_loadu_si256((const void *)(terms[c] + i + 8)));
      __m256i both = _mm256_packs_epi32(_mm256_srai_epi32(a, FRACTION), _mm256_srai_epi32(b, FRACTION));
      both = _mm256_permute4x64_epi64(both, 0xD8); /* packing works on halves of a register */
      _mm_storeu_si128((void *)(lines->rgb[c] + i),
                       _mm_packus_epi16(_mm256_castsi256_si128(both), _mm256_extracti128_si256(both, 1)));
    }
  }
  return i;
}
#endif

ALWAYS void luma_row(const Picture *p, const Matrix *m, int y, int x, int n, int wide, int fast, Lines *lines) {
  const int s = p->bits - 8, shift = FRACTION + s, black = m->black << s, at = p->kind == GRAY ? 0 : x & p->shift_x;
  const uint8_t *row = p->data[0] + (int64_t)y * p->line[0] + (int64_t)x * (1 + wide);
  uint8_t *restrict red = lines->rgb[0], *restrict green = lines->rgb[1], *restrict blue = lines->rgb[2];
  const int32_t *restrict to_r = lines->terms[0] + at, *restrict to_g = lines->terms[1] + at;
  const int32_t *restrict to_b = lines->terms[2] + at;
  int i = 0;
#ifdef HAVE_X86
  if (fast && !wide) i = luma_avx2(m, row, n, (const int32_t *const[3]){to_r, to_g, to_b}, lines);
#endif
  (void)fast;
  for (; i < n; i++) {
    int32_t light = m->luma * (sample(row, i, wide) - black);
    red[i] = clip((light + to_r[i]) >> shift);
    green[i] = clip((light + to_g[i]) >> shift);
    blue[i] = clip((light + to_b[i]) >> shift);
  }
}

ALWAYS void gbr_row(const Picture *p, int y, int x, int n, int wide, Lines *lines) {
  static const int plane_of[3] = {2, 0, 1};
  const int s = p->bits - 8, half = s ? 1 << (s - 1) : 0;
  for (int c = 0; c < 3; c++) {
    const int k = plane_of[c];
    const uint8_t *row = p->data[k] + (int64_t)y * p->line[k] + (int64_t)x * (1 + wide);
    uint8_t *restrict to = lines->rgb[c];
    for (int i = 0; i < n; i++) to[i] = clip((sample(row, i, wide) + half) >> s);
  }
}

ALWAYS void fill_lines(const Picture *p, const Matrix *m, int y, int x, int n, int fast, int *chroma_row, Lines *lines) {
  const int wide = p->bits > 8;
  if (p->kind == GBR) {
    if (wide) gbr_row(p, y, x, n, 1, lines);
    else gbr_row(p, y, x, n, 0, lines);
    return;
  }
  if (p->kind == GRAY) {
    if (*chroma_row < 0)
      for (int c = 0; c < 3; c++)
        for (int i = 0; i < n; i++) lines->terms[c][i] = 1 << (FRACTION - 1 + p->bits - 8);
    *chroma_row = 0;
  } else if (*chroma_row != chroma_row_of(p, y)) {
    *chroma_row = chroma_row_of(p, y);
    if (p->kind == SEMI) chroma_terms(p, m, y, x, n, 0, 2, fast, lines);
    else if (wide) chroma_terms(p, m, y, x, n, 1, 1, fast, lines);
    else chroma_terms(p, m, y, x, n, 0, 1, fast, lines);
  }
  if (wide) luma_row(p, m, y, x, n, 1, fast, lines);
  else luma_row(p, m, y, x, n, 0, fast, lines);
}

ALWAYS void pack(const Lines *lines, int n, uint8_t *restrict out) {
  for (int i = 0; i < n; i++)
    for (int c = 0; c < 3; c++) out[3 * i + c] = lines->rgb[c][i];
}

static void reverse(Lines *lines, int n) {
  for (int c = 0; c < 3; c++)
    for (int i = 0; i < n / 2; i++) {
      const uint8_t other = lines->rgb[c][i];
      lines->rgb[c][i] = lines->rgb[c][n - 1 - i];
      lines->rgb[c][n - 1 - i] = other;
    }
}

#ifdef HAVE_X86
/* 16 pixels at a time: byte 3 i + c of the output comes from byte i of plane c. */
__attribute__((target("avx2"))) static void pack_avx2(const Lines *lines, int n, uint8_t *out) {
  static const int8_t X = -1;
  const __m128i from[3][3] = {
      {_mm_setr_epi8(0, X, X, 1, X, X, 2, X, X, 3, X, X, 4, X, X, 5),
       _mm_setr_epi8(X, 0, X, X, 1, X, X, 2, X, X, 3, X, X, 4, X, X),
       _mm_setr_epi8(X, X, 0, X, X, 1, X, X, 2, X, X, 3, X, X, 4, X)},
      {_mm_setr_epi8(X, X, 6, X, X, 7, X, X, 8, X, X, 9, X, X, 10, X),
       _mm_setr_epi8(5, X, X, 6, X, X, 7, X, X, 8, X, X, 9, X, X, 10),
       _mm_setr_epi8(X, 5, X, X, 6, X, X, 7, X, X, 8, X, X, 9, X, X)},
      {_mm_setr_epi8(X, 11, X, X, 12, X, X, 13, X, X, 14, X, X, 15, X, X),
       _mm_setr_epi8(X, X, 11, X, X, 12, X, X, 13, X, X, 14, X, X, 15, X),
       _mm_setr_epi8(10, X, X, 11, X, X, 12, X, X, 13, X, X, 14, X, X, 15)}};
  int i = 0;
  for (; i + 16 <= n; i += 16) {
    __m128i r = _mm_loadu_si128((const void *)(lines->rgb[0] + i)), g = _mm_loadu_si128((const void *)(lines->rgb[1] + i));
    __m128i b = _mm_loadu_si128((const void *)(lines->rgb[2] + i));
    for (int k = 0; k < 3; k++)
      _mm_storeu_si128((void *)(out + 3 * i + 16 * k),
                       _mm_or_si128(_mm_or_si128(_mm_shuffle_epi8(r, from[k][0]), _mm_shuffle_epi8(g, from[k][1])),
                                    _mm_shuffle_epi8(b, from[k][2])));
  }
  for (; i < n; i++)
    for (int c = 0; c < 3; c++) out[3 * i + c] = lines->rgb[c][i];
}
#endif

typedef void Fill(const Picture *, const Matrix *, int, int, int, int *, Lines *);
typedef void Pack(const Lines *, int, uint8_t *);

static void fill_portable(const Picture *p, const Matrix *m, int y, int x, int n, int *chroma_row, Lines *lines) {
  fill_lines(p, m, y, x, n, 0, chroma_row, lines);
}
static void pack_portable(const Lines *lines, int n, uint8_t *out) { pack(lines, n, out); }
#ifdef HAVE_X86
__attribute__((target("avx2"))) static void fill_avx2(const Picture *p, const Matrix *m, int y, int x, int n,
                                                       int *chroma_row, Lines *lines) {
  fill_lines(p, m, y, x, n, 1, chroma_row, lines);
}
#endif

typedef struct {
  Fill *fill;
  Pack *pack;
} Path;

static Path choose_path(int portable) {
#ifdef HAVE_X86
  if (!portable && __builtin_cpu_supports("avx2")) return (Path){fill_avx2, pack_avx2};
#endif
  return (Path){fill_portable, pack_portable};
}

/* Rows [top, top + height), columns [left, left + width) as decoded; upright when rotation is 0 or 180. */
static void convert_level(Path path, const Picture *p, const Matrix *m, int top, int left, int height, int width, int turn,
                          Lines *lines, uint8_t *out) {
  const int64_t pitch = 3 * (int64_t)width;
  for (int x = 0; x < width; x += BLOCK) {
    const int n = width - x < BLOCK ? width - x : BLOCK;
    int chroma_row = -1;
    for (int y = 0; y < height; y++) {
      path.fill(p, m, top + y, left + x, n, &chroma_row, lines);
      if (turn) reverse(lines, n);
      const int64_t row = turn ? height - 1 - y : y, column = turn ? width - x - n : x;
      path.pack(lines, n, out + row * pitch + 3 * column);
    }
  }
}

/* The same for a quarter turn: decoded rows become columns. TURNED of them are held, so that writes are runs. */
static void convert_turned(Path path, const Picture *p, const Matrix *m, int top, int left, int height, int width,
                           int rotation, Lines *lines, uint8_t (*held)[3 * BLOCK], uint8_t *out) {
  const int64_t pitch = 3 * (int64_t)height; /* the upright box is width rows of height pixels */
  for (int x = 0; x < width; x += BLOCK) {
    const int n = width - x < BLOCK ? width - x : BLOCK;
    int chroma_row = -1;
    for (int y = 0; y < height; y += TURNED) {
      const int rows = height - y < TURNED ? height - y : TURNED;
      for (int k = 0; k < rows; k++) { /* 90 degrees: the last decoded row is the first column */
        path.fill(p, m, top + y + k, left + x, n, &chroma_row, lines);
        path.pack(lines, n, held[rotation == 90 ? rows - 1 - k : k]);
      }
      const int column = rotation == 90 ? height - y - rows : y;
      for (int i = 0; i < n; i++) {
        const int row = rotation == 90 ? x + i : width - 1 - x - i;
        uint8_t *to = out + row * pitch + 3 * (int64_t)column;
        for (int k = 0; k < rows; k++)
          for (int c = 0; c < 3; c++) to[3 * k + c] = held[k][3 * i + c];
      }
    }
  }
}

static void convert(Path path, const Picture *p, const Matrix *m, const int32_t *box, int rotation, Lines *lines,
                    uint8_t (*held)[3 * BLOCK], uint8_t *out) {
  const int top = box[0], left = box[1], high = box[2], wide = box[3], H = p->height, W = p->width;
  if (rotation == 0) convert_level(path, p, m, top, left, high, wide, 0, lines, out);
  else if (rotation == 180) convert_level(path, p, m, H - top - high, W - left - wide, high, wide, 1, lines, out);
  else if (rotation == 90) convert_turned(path, p, m, H - left - wide, top, wide, high, 90, lines, held, out);
  else convert_turned(path, p, m, left, W - top - high, wide, high, 270, lines, held, out);
}

/* ---- the module ---- */

/* planes: address, bytes a row, bytes of the plane; NULL if the picture is sound, else what is not */
static const char *read_picture(const int64_t *planes, const int32_t *form, Picture *p) {
  *p = (Picture){{0}, {0}, form[0], form[1], form[2], form[3], form[4], form[5], form[6]};
  if (p->height < 1 || p->width < 1 || p->height > MAX_SIDE || p->width > MAX_SIDE) return "its sides must be 1 to 32768";
  if ((p->shift_x | p->shift_y) & ~1 || p->bits < 8 || p->bits > 14 || p->kind < YUV || p->kind > GBR)
    return "its form is not one that the kernel reads";
  if ((p->kind == GBR && (p->shift_x || p->shift_y)) || (p->kind == SEMI && (p->bits != 8 || !p->shift_x)))
    return "its form is not one that the kernel reads";
  const int count = p->kind == GRAY ? 1 : p->kind == SEMI ? 2 : 3;
  for (int k = 0; k < count; k++) {
    const int64_t wide = k ? (p->width + p->shift_x) >> p->shift_x : p->width;
    const int64_t high = k ? (p->height + p->shift_y) >> p->shift_y : p->height;
    const int64_t row = wide * (p->bits > 8 ? 2 : 1) * (k && p->kind == SEMI ? 2 : 1);
    const int64_t line = planes[PLANE * k + 1], size = planes[PLANE * k + 2];
    if (!planes[PLANE * k] || line < row || line > INT32_MAX || size < (high - 1) * line + row)
      return "a plane is too small";
    if (p->bits > 8 && (planes[PLANE * k] | line) & 1) return "a plane of 2-byte samples is not aligned";
    p->data[k] = (const uint8_t *)(uintptr_t)planes[PLANE * k];
    p->line[k] = line;
  }
  return NULL;
}

static const char *check_box(const Picture *p, const int32_t *box, int rotation, int64_t place, Py_ssize_t room) {
  const int turned = rotation == 90 || rotation == 270;
  const int high = turned ? p->width : p->height, wide = turned ? p->height : p->width;
  if (box[0] < 0 || box[1] < 0 || box[2] < 1 || box[3] < 1 || box[2] > high - box[0] || box[3] > wide - box[1])
    return "its box leaves the upright picture";
  if (place < 0 || place > room || room - place < 3 * (int64_t)box[2] * box[3]) return "its place in out is too small";
  return NULL;
}

typedef struct { const int64_t *planes; const int32_t *forms, *boxes; const int64_t *places; } Batch;

static const char *check_batch(const Batch *b, Py_ssize_t count, int rotation, Py_ssize_t room, Py_ssize_t *at) {
  Picture p;
  for (*at = 0; *at < count; ++*at) {
    const char *fault = read_picture(b->planes + 3 * PLANE * *at, b->forms + FORM * *at, &p);
    if (!fault) fault = check_box(&p, b->boxes + 4 * *at, rotation, b->places[*at], room);
    if (fault) return fault;
  }
  return NULL;
}

typedef struct {
  Lines lines;
  uint8_t held[TURNED][3 * BLOCK];
} Work;

static PyObject *convert_batch(const Batch *b, Py_ssize_t count, int rotation, const Matrix *m, int portable, uint8_t *out) {
  Work *work = malloc(sizeof *work);
  if (!work) return PyErr_NoMemory();
  const Path path = choose_path(portable);
  Py_BEGIN_ALLOW_THREADS;
  for (Py_ssize_t i = 0; i < count; i++) {
    Picture p;
    read_picture(b->planes + 3 * PLANE * i, b->forms + FORM * i, &p);
    convert(path, &p, m, b->boxes + 4 * i, rotation, &work->lines, work->held, out + b->places[i]);
  }
  Py_END_ALLOW_THREADS;
  free(work);
  Py_RETURN_NONE;
}

static PyObject *to_rgb(PyObject *module, PyObject *args) {
  enum { PLANES, FORMS, BOXES, PLACES, NUMBERS, OUT, BUFFERS };
  Py_buffer view[BUFFERS];
  PyObject *result = NULL;
  int rotation, portable = 0;
  if (!PyArg_ParseTuple(args, "y*y*y*y*y*w*i|p", &view[PLANES], &view[FORMS], &view[BOXES], &view[PLACES], &view[NUMBERS],
                        &view[OUT], &rotation, &portable))
    return NULL;
  const Py_ssize_t count = view[PLACES].len / 8;
  Py_ssize_t at = 0;
  const Batch batch = {view[PLANES].buf, view[FORMS].buf, view[BOXES].buf, view[PLACES].buf};
  if (view[PLACES].len != 8 * count || view[PLANES].len != 8 * 3 * PLANE * count || view[FORMS].len != 4 * FORM * count ||
      view[BOXES].len != 16 * count || view[NUMBERS].len != 4 * CONSTANTS) {
    PyErr_SetString(PyExc_ValueError, "to_rgb: give planes [U, 3, 3] int64, forms [U, 6] and boxes [U, 4] int32, places [U] "
                                      "int64, 6 int32 constants");
    goto done;
  }
  if (rotation != 0 && rotation != 90 && rotation != 180 && rotation != 270) {
    PyErr_Format(PyExc_ValueError, "to_rgb: rotation is %d; it must be 0, 90, 180 or 270", rotation);
    goto done;
  }
  Matrix matrix;
  memcpy(&matrix, view[NUMBERS].buf, sizeof matrix);
  const int32_t *number = view[NUMBERS].buf;
  for (int i = 0; i < CONSTANTS; i++)
    if (number[i] < 0 || number[i] > (i < 2 ? INT16_MAX : 3 << FRACTION)) { /* sums stay below 2^31 at 14 bits a sample */
      PyErr_SetString(PyExc_ValueError, "to_rgb: a constant is out of range");
      goto done;
    }
  const char *fault = check_batch(&batch, count, rotation, view[OUT].len, &at);
  if (fault)
    PyErr_Format(PyExc_ValueError, "to_rgb: frame %zd: %s", at, fault);
  else
    result = convert_batch(&batch, count, rotation, &matrix, portable, view[OUT].buf);
done:
  for (int i = 0; i < BUFFERS; i++) PyBuffer_Release(&view[i]);
  return result;
}

/* ---- packets ---- */

/* Version of x264 in a user data message, or a large number. */
static long x264_version(const uint8_t *nal, Py_ssize_t size) {
  static const char mark[] = "x264 - core ";
  const Py_ssize_t length = sizeof mark - 1;
  for (Py_ssize_t i = 0; i + length < size; i++)
    if (nal[i] == 'x' && !memcmp(nal + i, mark, (size_t)length)) {
      long version = 0;
      for (i += length; i < size && nal[i] >= '0' && nal[i] <= '9' && version < 100000; i++)
        version = 10 * version + nal[i] - '0';
      return version;
    }
  return LONG_MAX;
}

enum { TRACES = 1, IDR = 2 };

/* TRACES: the packet leaves something in a decoder that a flush does not remove: parameter sets, the version of an
 * x264 whose errors the decoder repeats, or bytes that are not exactly units with their lengths before them.
 * IDR: its first slice is of a picture before which nothing is referred to. */
static int look_at_units(const uint8_t *data, Py_ssize_t size, int length_size) {
  enum { SLICE = 1, SLICE_IDR = 5, MESSAGE = 6, SPS = 7, PPS = 8, SPS_EXTENSION = 13, SUBSET_SPS = 15, WORKED_AROUND = 33 };
  int found = 0, slices = 0;
  Py_ssize_t at = 0;
  while (at < size) {
    uint64_t length = 0;
    if (size - at < length_size) return found | TRACES;
    for (int i = 0; i < length_size; i++) length = length << 8 | data[at + i];
    at += length_size;
    if (length == 0 || length > (uint64_t)(size - at)) return found | TRACES;
    const int kind = data[at] & 31;
    if (kind >= SLICE && kind <= SLICE_IDR && !slices++ && kind == SLICE_IDR) found |= IDR;
    if (kind == SPS || kind == PPS || kind == SPS_EXTENSION || kind == SUBSET_SPS) found |= TRACES;
    if (kind == MESSAGE && x264_version(data + at, (Py_ssize_t)length) <= WORKED_AROUND) found |= TRACES;
    at += (Py_ssize_t)length;
  }
  return found;
}

/* The same where units are found by start codes; such streams carry their parameter sets. */
static int look_at_stream(const uint8_t *data, Py_ssize_t size) {
  for (Py_ssize_t at = 0; at + 3 < size; at++)
    if (!data[at] && !data[at + 1] && data[at + 2] == 1) {
      const int kind = data[at + 3] & 31;
      if (kind >= 1 && kind <= 5) return kind == 5 ? TRACES | IDR : TRACES;
    }
  return TRACES;
}

static PyObject *look(PyObject *module, PyObject *args) {
  Py_buffer packet;
  int length_size;
  if (!PyArg_ParseTuple(args, "y*i", &packet, &length_size)) return NULL;
  const int found = length_size < 1 || length_size > 4 ? look_at_stream(packet.buf, packet.len)
                                                       : look_at_units(packet.buf, packet.len, length_size);
  PyBuffer_Release(&packet);
  return PyLong_FromLong(found);
}

static PyMethodDef methods[] = {
    {"to_rgb", to_rgb, METH_VARARGS, "Convert boxes of planar frames to packed RGB; see _frames.pyi."},
    {"look", look, METH_VARARGS, "What a packet's units say of it; see _frames.pyi."},
    {NULL, NULL, 0, NULL}};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_frames", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__frames(void) { return PyModule_Create(&module); }
