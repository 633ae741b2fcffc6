/*
 * Colour, blur and warps of packed uint8 pixels, in float32, without the GIL.
 *
 * The arithmetic is that of torchvision.transforms.v2.functional on uint8 tensors: float32, cut to uint8 after each
 * adjustment, rounded after blur, sharpening and warps. Sums are taken in another order, so a value may differ by 1.
 *
 * Each loop is compiled twice, plainly and for AVX2. Neither contracts a * b + c, so both give the same bits.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "../_build.h"

#define INLINE static inline __attribute__((always_inline))

#ifdef HAVE_X86
#define FAST __attribute__((target("avx2")))
static int accelerated(void) { return __builtin_cpu_supports("avx2"); }
/* Defines NAME, which runs NAME##_of compiled plainly or for AVX2. */
#define BOTH(NAME, PARAMETERS, ARGUMENTS)                        \
    static void NAME##_plain PARAMETERS { NAME##_of ARGUMENTS; } \
    FAST static void NAME##_fast PARAMETERS { NAME##_of ARGUMENTS; } \
    static void NAME PARAMETERS { accelerated() ? NAME##_fast ARGUMENTS : NAME##_plain ARGUMENTS; }
#else
#define BOTH(NAME, PARAMETERS, ARGUMENTS) \
    static void NAME PARAMETERS { NAME##_of ARGUMENTS; }
#endif

enum { CHUNK = 128, BRIGHTNESS = 0, CONTRAST, SATURATION, HUE, GRAY, OPERATIONS };

/* ---- colour ------------------------------------------------------------------------- */

/* One comparison per selection, and no && or ||: the compiler makes blends of these, and 8 pixels go at once. */
INLINE float pick(int test, float yes, float no) { return test ? yes : no; }
INLINE float larger(float a, float b) { return a > b ? a : b; }
INLINE float smaller(float a, float b) { return a < b ? a : b; }
INLINE float bound(float value) { return smaller(larger(value, 0.0f), 255.0f); }
INLINE float unit(float value) { return smaller(larger(value, 0.0f), 1.0f); }
INLINE float cut(float value) { return (float)(int32_t)value; }
/* cut(bound(value)), as integers: of floats, the compiler makes jumps where nothing else stands in the loop. */
INLINE float byte_of(float value) {
    int32_t whole = (int32_t)value;
    whole = whole < 0 ? 0 : whole;
    return (float)(whole > 255 ? 255 : whole);
}
INLINE float gray_of(float r, float g, float b) { return cut(r * 0.2989f + g * 0.587f + b * 0.114f); }

/* One pixel's hue turned by `turn` of a circle; bytes in, bytes out. */
INLINE void turn_hue(float *R, float *G, float *B, float turn) {
    const float r = *R * (1.0f / 255.0f), g = *G * (1.0f / 255.0f), b = *B * (1.0f / 255.0f);
    const float most = larger(larger(r, g), b), least = smaller(smaller(r, g), b);
    const float range = most - least, divisor = pick(range == 0.0f, 1.0f, range);
    const float s = range / pick(range == 0.0f, 1.0f, most);
    const float rc = (most - r) / divisor, gc = (most - g) / divisor, bc = (most - b) / divisor;
    const float of_green = pick(most == g, rc + 2.0f - bc, gc + 4.0f - rc);
    float h = pick(most == r, bc - gc, of_green);
    h = h * (1.0f / 6.0f) + 1.0f;
    h = h - pick(h >= 1.0f, 1.0f, 0.0f);
    h = h + turn;
    h = h + pick(h < 0.0f, 1.0f, 0.0f);
    h = h - pick(h >= 1.0f, 1.0f, 0.0f);
    const float h6 = h * 6.0f, whole = cut(h6), f = h6 - whole, rest = 1.0f - s, sf = s * f;
    const float p = unit(rest * most), q = unit((1.0f - sf) * most), t = unit((sf + rest) * most), v = most;
    const float sector = pick(whole >= 6.0f, 0.0f, whole);
    float red = p, green = p, blue = p;
    red = pick(sector == 1.0f, q, red), red = pick(sector == 4.0f, t, red);
    red = pick(sector == 0.0f, v, red), red = pick(sector == 5.0f, v, red);
    green = pick(sector == 0.0f, t, green), green = pick(sector == 3.0f, q, green);
    green = pick(sector == 1.0f, v, green), green = pick(sector == 2.0f, v, green);
    blue = pick(sector == 2.0f, t, blue), blue = pick(sector == 5.0f, q, blue);
    blue = pick(sector == 3.0f, v, blue), blue = pick(sector == 4.0f, v, blue);
    *R = cut(red * 255.999f);
    *G = cut(green * 255.999f);
    *B = cut(blue * 255.999f);
}

INLINE void blend(float *R, float *G, float *B, float other, float ratio) {
    const float added = other * (1.0f - ratio);
    *R = byte_of(*R * ratio + added);
    *G = byte_of(*G * ratio + added);
    *B = byte_of(*B * ratio + added);
}

typedef struct { int count; int32_t kind[8]; float factor[8], mean[8]; } Adjustments;

/* Adjusts `count` pixels, and adds up the gray values of what they become. */
INLINE void adjust_pixels_of(uint8_t *pixels, int64_t count, const Adjustments *todo, int from, int to, int64_t *gray) {
    float r[CHUNK] = {0}, g[CHUNK] = {0}, b[CHUNK] = {0}; /* what lies past `n` is adjusted too */
    for (int64_t at = 0; at < count; at += CHUNK, pixels += 3 * CHUNK) {
        const int n = count - at < CHUNK ? (int)(count - at) : CHUNK;
        for (int i = 0; i < n; i++) r[i] = pixels[3 * i], g[i] = pixels[3 * i + 1], b[i] = pixels[3 * i + 2];
        for (int step = from; step < to; step++) {
            const float factor = todo->factor[step], mean = todo->mean[step];
            switch (todo->kind[step]) {
            case BRIGHTNESS:
                for (int i = 0; i < CHUNK; i++)
                    r[i] = byte_of(r[i] * factor), g[i] = byte_of(g[i] * factor), b[i] = byte_of(b[i] * factor);
                break;
            case CONTRAST:
                for (int i = 0; i < CHUNK; i++) blend(r + i, g + i, b + i, mean, factor);
                break;
            case SATURATION:
                for (int i = 0; i < CHUNK; i++) blend(r + i, g + i, b + i, gray_of(r[i], g[i], b[i]), factor);
                break;
            case HUE:
                for (int i = 0; i < CHUNK; i++) turn_hue(r + i, g + i, b + i, factor);
                break;
            default:
                for (int i = 0; i < CHUNK; i++) r[i] = g[i] = b[i] = gray_of(r[i], g[i], b[i]);
            }
        }
        if (gray) {
            int32_t sum = 0;
            for (int i = 0; i < n; i++) sum += (int32_t)gray_of(r[i], g[i], b[i]);
            *gray += sum;
        }
        for (int i = 0; i < n; i++)
            pixels[3 * i] = (uint8_t)(int32_t)r[i], pixels[3 * i + 1] = (uint8_t)(int32_t)g[i],
                       pixels[3 * i + 2] = (uint8_t)(int32_t)b[i];
    }
}

BOTH(adjust_pixels, (uint8_t * pixels, int64_t count, const Adjustments *todo, int from, int to, int64_t *gray),
     (pixels, count, todo, from, to, gray))

PyDoc_STRVAR(adjust_doc, "Adjust colours in place, one adjustment after another; see _augment.pyi.");

static PyObject *adjust(PyObject *module, PyObject *args) {
    Py_buffer pixels, kinds, factors;
    if (!PyArg_ParseTuple(args, "w*y*y*:adjust", &pixels, &kinds, &factors)) return NULL;
    PyObject *result = NULL;
    Adjustments todo = {.count = (int)(kinds.len / 4)};
    int known = kinds.len % 4 == 0 && todo.count <= 8 && factors.len == kinds.len && pixels.len % 3 == 0 && pixels.len;
    for (int i = 0; known && i < todo.count; i++) {
        todo.kind[i] = ((const int32_t *)kinds.buf)[i];
        todo.factor[i] = ((const float *)factors.buf)[i];
        known = todo.kind[i] >= 0 && todo.kind[i] < OPERATIONS && isfinite(todo.factor[i]);
    }
    if (!known) {
        PyErr_SetString(PyExc_ValueError, "adjust: give packed RGB bytes, and up to 8 int32 kinds with float32 factors");
        goto done;
    }
    Py_BEGIN_ALLOW_THREADS;
    const int64_t count = pixels.len / 3;
    for (int from = 0, to; from < todo.count; from = to) {
        for (to = from + 1; to < todo.count && todo.kind[to] != CONTRAST; to++);
        int64_t gray = 0;
        if (from == 0 && todo.kind[0] == CONTRAST) { /* nothing stands before it: only its mean is wanted */
            adjust_pixels(pixels.buf, count, &todo, 0, 0, &gray);
            todo.mean[0] = (float)((double)gray / (double)count);
            gray = 0;
        }
        adjust_pixels(pixels.buf, count, &todo, from, to, to < todo.count ? &gray : NULL);
        if (to < todo.count) todo.mean[to] = (float)((double)gray / (double)count);
    }
    Py_END_ALLOW_THREADS;
    result = Py_NewRef(Py_None);
done:
    PyBuffer_Release(&pixels);
    PyBuffer_Release(&kinds);
    PyBuffer_Release(&factors);
    return result;
}

/* ---- blur and sharpness ------------------------------------------------------------- */

static int mirrored(int at, int size) { return at < 0 ? -at : at >= size ? 2 * size - 2 - at : at; }

/* Sums of `taps` neighbours with symmetric weights. `at[j]` is where the values of tap j begin. */
INLINE void weigh_of(const float *const *at, const float *weights, int taps, float *out, int count) {
    const int half = taps / 2;
    const float *middle = at[half];
    for (int i = 0; i < count; i++) out[i] = middle[i] * weights[half];
    for (int j = 0; j < half; j++) {
        const float *low = at[j], *high = at[taps - 1 - j], weight = weights[j];
        for (int i = 0; i < count; i++) out[i] += (low[i] + high[i]) * weight;
    }
}

BOTH(weigh, (const float *const *at, const float *weights, int taps, float *out, int count),
     (at, weights, taps, out, count))

INLINE void to_bytes_of(const float *from, uint8_t *to, int count) {
    for (int i = 0; i < count; i++) to[i] = (uint8_t)(int32_t)rintf(bound(from[i]));
}

BOTH(to_bytes, (const float *from, uint8_t *to, int count), (from, to, count))

/* Blurs rows, then columns, with mirrored borders; 0, or -1 without memory. */
static int blur_image(const uint8_t *from, uint8_t *to, int height, int width, const float *across, int taps_x,
                      const float *down, int taps_y) {
    const int wide = 3 * width, half = taps_x / 2, padded = 3 * (width + taps_x);
    float *rows = malloc(sizeof(float) * ((size_t)wide * height + padded + wide));
    const float **at = malloc(sizeof(float *) * (size_t)(taps_x > taps_y ? taps_x : taps_y));
    if (!rows || !at) {
        free(rows);
        free(at);
        return -1;
    }
    float *line = rows + (size_t)wide * height, *sum = line + padded;
    for (int y = 0; y < height; y++) {
        const uint8_t *row = from + (size_t)y * wide;
        for (int x = -half; x < width + half; x++)
            for (int c = 0; c < 3; c++) line[3 * (x + half) + c] = row[3 * mirrored(x, width) + c];
        for (int j = 0; j < taps_x; j++) at[j] = line + 3 * j;
        weigh(at, across, taps_x, rows + (size_t)y * wide, wide);
    }
    for (int y = 0; y < height; y++) {
        for (int j = 0; j < taps_y; j++) at[j] = rows + (size_t)mirrored(y + j - taps_y / 2, height) * wide;
        weigh(at, down, taps_y, sum, wide);
        to_bytes(sum, to + (size_t)y * wide, wide);
    }
    free(rows);
    free(at);
    return 0;
}

/* Whether two buffers hold one packed RGB image of this size. */
static int same_image(const Py_buffer *from, const Py_buffer *to, int height, int width) {
    return height >= 1 && width >= 1 && height <= 1 << 20 && width <= 1 << 20 && from->len == 3LL * height * width &&
           to->len == from->len && from->buf != to->buf;
}

PyDoc_STRVAR(blur_doc, "Blur by symmetric weights across and down; see _augment.pyi.");

static PyObject *blur(PyObject *module, PyObject *args) {
    Py_buffer from, to, across, down;
    int height, width, done = 0;
    if (!PyArg_ParseTuple(args, "y*w*iiy*y*:blur", &from, &to, &height, &width, &across, &down)) return NULL;
    const int x = (int)(across.len / 4), y = (int)(down.len / 4);
    if (!same_image(&from, &to, height, width) || x % 2 == 0 || y % 2 == 0 || x / 2 >= width || y / 2 >= height) {
        PyErr_SetString(PyExc_ValueError, "blur: give two packed RGB images and an odd number of weights, of which "
                                          "half are fewer than the image's side");
    } else {
        Py_BEGIN_ALLOW_THREADS;
        done = blur_image(from.buf, to.buf, height, width, across.buf, x, down.buf, y) == 0;
        Py_END_ALLOW_THREADS;
        if (!done) PyErr_NoMemory();
    }
    PyBuffer_Release(&from);
    PyBuffer_Release(&to);
    PyBuffer_Release(&across);
    PyBuffer_Release(&down);
    return done ? Py_NewRef(Py_None) : NULL;
}

/* A row blended with its 3 x 3 neighbourhood: 1 at the edges, 5 in the middle, of 13. */
INLINE void sharpen_row_of(const uint8_t *above, const uint8_t *row, const uint8_t *below, uint8_t *to, int count,
                           float factor) {
    for (int i = 0; i < count; i++) {
        const int32_t around = above[i - 3] + above[i] + above[i + 3] + row[i - 3] + row[i + 3] + below[i - 3] +
                               below[i] + below[i + 3];
        const float value = row[i], smooth = rintf((float)(around + 5 * row[i]) * (1.0f / 13.0f));
        to[i] = (uint8_t)(int32_t)bound(value + (smooth - value) * (1.0f - factor));
    }
}

BOTH(sharpen_row,
     (const uint8_t *above, const uint8_t *row, const uint8_t *below, uint8_t *to, int count, float factor),
     (above, row, below, to, count, factor))

PyDoc_STRVAR(sharpen_doc, "Adjust sharpness; see _augment.pyi.");

static PyObject *sharpen(PyObject *module, PyObject *args) {
    Py_buffer from, to;
    int height, width;
    float factor;
    if (!PyArg_ParseTuple(args, "y*w*iif:sharpen", &from, &to, &height, &width, &factor)) return NULL;
    const int fits = same_image(&from, &to, height, width) && isfinite(factor);
    if (!fits) {
        PyErr_SetString(PyExc_ValueError, "sharpen: give two packed RGB images and a finite factor");
    } else {
        Py_BEGIN_ALLOW_THREADS;
        const int64_t wide = 3 * (int64_t)width;
        memcpy(to.buf, from.buf, (size_t)from.len); /* the border stays */
        for (int y = 1; height > 2 && width > 2 && y < height - 1; y++) {
            const uint8_t *row = (const uint8_t *)from.buf + y * wide + 3;
            sharpen_row(row - wide, row, row + wide, (uint8_t *)to.buf + y * wide + 3, (int)wide - 6, factor);
        }
        Py_END_ALLOW_THREADS;
    }
    PyBuffer_Release(&from);
    PyBuffer_Release(&to);
    return fits ? Py_NewRef(Py_None) : NULL;
}

/* ---- warps -------------------------------------------------------------------------- */

typedef struct {
    const uint8_t *from;
    uint8_t *to;
    int height, width, bytes; /* a pixel has so many bytes */
    float matrix[6];
    const uint8_t *fill;
} Warp;

INLINE void warp_nearest_of(const Warp *w) {
    const float mid_x = 0.5f * (float)(w->width - 1), mid_y = 0.5f * (float)(w->height - 1), *m = w->matrix;
    uint8_t *to = w->to;
    for (int y = 0; y < w->height; y++) {
        const float dy = (float)y - mid_y, base_x = m[1] * dy + m[2] + mid_x, base_y = m[4] * dy + m[5] + mid_y;
        for (int x = 0; x < w->width; x++, to += w->bytes) {
            const float dx = (float)x - mid_x;
            const float sx = rintf(m[0] * dx + base_x), sy = rintf(m[3] * dx + base_y);
            const int inside = sx >= 0.0f && sy >= 0.0f && sx < (float)w->width && sy < (float)w->height;
            const uint8_t *at = inside ? w->from + ((int64_t)sy * w->width + (int64_t)sx) * w->bytes : w->fill;
            for (int c = 0; c < w->bytes; c++) to[c] = at[c];
        }
    }
}

INLINE void add_corner(const Warp *w, int x, int y, float weight, float *sum, float *inside) {
    if (x < 0 || y < 0 || x >= w->width || y >= w->height) return;
    const uint8_t *at = w->from + ((int64_t)y * w->width + x) * 3;
    for (int c = 0; c < 3; c++) sum[c] += (float)at[c] * weight;
    *inside += weight;
}

/* A pixel and the byte after it. */
typedef float Four __attribute__((vector_size(16)));
typedef int32_t Whole __attribute__((vector_size(16)));
typedef uint32_t Words __attribute__((vector_size(16)));

#define FIRST_BYTE_LOW (__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__)
#define ROUND 8388608.0f /* 2**23: what is added to it is rounded to the nearest whole number, ties to even */

INLINE Four four_at(const uint8_t *at) {
    uint32_t bytes;
    memcpy(&bytes, at, 4);
    const Words all = {bytes, bytes, bytes, bytes}, shifts = FIRST_BYTE_LOW ? (Words){0, 8, 16, 24} : (Words){24, 16, 8, 0};
    return __builtin_convertvector((Whole)((all >> shifts) & 255u), Four);
}

INLINE void warp_linear_of(const Warp *w) {
    const float last_x = (float)(w->width - 2), last_y = (float)(w->height - 1);
    const Four fill = {w->fill[0], w->fill[1], w->fill[2], 0.0f};
    const float mid_x = 0.5f * (float)(w->width - 1), mid_y = 0.5f * (float)(w->height - 1), *m = w->matrix;
    uint8_t *to = w->to;
    for (int y = 0; y < w->height; y++) {
        const float dy = (float)y - mid_y, base_x = m[1] * dy + m[2] + mid_x, base_y = m[4] * dy + m[5] + mid_y;
        for (int x = 0; x < w->width; x++, to += 3) {
            const float dx = (float)x - mid_x, sx = m[0] * dx + base_x, sy = m[3] * dx + base_y;
            float sum[3] = {0}, inside = 0.0f;
            if (sx >= 0.0f && sy >= 0.0f && sx < last_x && sy < last_y) { /* four corners and a byte after them are inside */
                const int left = (int)sx, top = (int)sy;
                const float ax = sx - (float)left, ay = sy - (float)top;
                const float a = (1.0f - ax) * (1.0f - ay), b = ax * (1.0f - ay), c = (1.0f - ax) * ay, d = ax * ay;
                const uint8_t *at = w->from + ((int64_t)top * w->width + left) * 3, *under = at + 3 * (int64_t)w->width;
                const Four all = four_at(at) * a + four_at(at + 3) * b + four_at(under) * c + four_at(under + 3) * d;
                const Four value = (all - fill) * (a + b + c + d) + fill;
                const Whole done = __builtin_convertvector((value + ROUND) - ROUND, Whole);
                to[0] = (uint8_t)done[0], to[1] = (uint8_t)done[1], to[2] = (uint8_t)done[2];
                continue;
            }
            if (sx > -1.0f && sy > -1.0f && sx < (float)w->width && sy < (float)w->height) {
                const float fx = floorf(sx), fy = floorf(sy), ax = sx - fx, ay = sy - fy;
                const int left = (int)fx, top = (int)fy;
                add_corner(w, left, top, (1.0f - ax) * (1.0f - ay), sum, &inside);
                add_corner(w, left + 1, top, ax * (1.0f - ay), sum, &inside);
                add_corner(w, left, top + 1, (1.0f - ax) * ay, sum, &inside);
                add_corner(w, left + 1, top + 1, ax * ay, sum, &inside);
            }
            for (int c = 0; c < 3; c++) {
                const float value = (sum[c] - fill[c]) * inside + fill[c];
                to[c] = (uint8_t)(int32_t)rintf(bound(value));
            }
        }
    }
}

BOTH(warp_nearest, (const Warp *w), (w))
BOTH(warp_linear, (const Warp *w), (w))

PyDoc_STRVAR(warp_doc, "Sample an image at places that a matrix says; see _augment.pyi.");

static PyObject *warp(PyObject *module, PyObject *args) {
    Py_buffer from, to, matrix, fill;
    Warp w = {0};
    int linear;
    if (!PyArg_ParseTuple(args, "y*w*iiy*y*p:warp", &from, &to, &w.height, &w.width, &matrix, &fill, &linear))
        return NULL;
    w.from = from.buf, w.to = to.buf, w.fill = fill.buf, w.bytes = (int)fill.len;
    int fits = w.height >= 1 && w.width >= 1 && w.height <= 1 << 20 && w.width <= 1 << 20 && w.bytes >= 1 &&
               w.bytes <= 8 && from.len == (int64_t)w.height * w.width * w.bytes && to.len == from.len &&
               from.buf != to.buf && matrix.len == 6 * 4 && (!linear || w.bytes == 3);
    for (int i = 0; fits && i < 6; i++) {
        w.matrix[i] = ((const float *)matrix.buf)[i];
        fits = isfinite(w.matrix[i]);
    }
    if (!fits) {
        PyErr_SetString(PyExc_ValueError, "warp: give two packed images, 6 finite float32 and the bytes of a pixel");
    } else {
        Py_BEGIN_ALLOW_THREADS;
        linear ? warp_linear(&w) : warp_nearest(&w);
        Py_END_ALLOW_THREADS;
    }
    PyBuffer_Release(&from);
    PyBuffer_Release(&to);
    PyBuffer_Release(&matrix);
    PyBuffer_Release(&fill);
    return fits ? Py_NewRef(Py_None) : NULL;
}

/* ---- tables ------------------------------------------------------------------------- */

PyDoc_STRVAR(look_up_doc, "Replace each byte by the entry of its channel's table, in place; see _augment.pyi.");

static PyObject *look_up(PyObject *module, PyObject *args) {
    Py_buffer pixels, table;
    if (!PyArg_ParseTuple(args, "w*y*:look_up", &pixels, &table)) return NULL;
    const int fits = pixels.len % 3 == 0 && table.len == 3 * 256;
    if (!fits) {
        PyErr_SetString(PyExc_ValueError, "look_up: give packed RGB bytes and a uint8 [3, 256] table");
    } else {
        Py_BEGIN_ALLOW_THREADS;
        uint8_t *at = pixels.buf;
        const uint8_t *entries = table.buf;
        for (int64_t i = 0; i < pixels.len; i += 3)
            at[i] = entries[at[i]], at[i + 1] = entries[256 + at[i + 1]], at[i + 2] = entries[512 + at[i + 2]];
        Py_END_ALLOW_THREADS;
    }
    PyBuffer_Release(&pixels);
    PyBuffer_Release(&table);
    return fits ? Py_NewRef(Py_None) : NULL;
}

PyDoc_STRVAR(count_doc, "Count how often each byte stands in each channel; see _augment.pyi.");

static PyObject *count(PyObject *module, PyObject *args) {
    Py_buffer pixels, counts;
    if (!PyArg_ParseTuple(args, "y*w*:count", &pixels, &counts)) return NULL;
    const int fits = pixels.len % 3 == 0 && counts.len == 3 * 256 * 8;
    if (!fits) {
        PyErr_SetString(PyExc_ValueError, "count: give packed RGB bytes and int64 [3, 256] counts");
    } else {
        Py_BEGIN_ALLOW_THREADS;
        const uint8_t *at = pixels.buf;
        int64_t *of = counts.buf;
        memset(of, 0, (size_t)counts.len);
        for (int64_t i = 0; i < pixels.len; i += 3) of[at[i]]++, of[256 + at[i + 1]]++, of[512 + at[i + 2]]++;
        Py_END_ALLOW_THREADS;
    }
    PyBuffer_Release(&pixels);
    PyBuffer_Release(&counts);
    return fits ? Py_NewRef(Py_None) : NULL;
}

static PyMethodDef methods[] = {
    {"adjust", adjust, METH_VARARGS, adjust_doc},    {"blur", blur, METH_VARARGS, blur_doc},
    {"count", count, METH_VARARGS, count_doc},       {"look_up", look_up, METH_VARARGS, look_up_doc},
    {"sharpen", sharpen, METH_VARARGS, sharpen_doc}, {"warp", warp, METH_VARARGS, warp_doc},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_augment", "Colour, blur and warps, without the GIL.",
                                        0, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__augment(void) { return PyModuleDef_Init(&definition); }
