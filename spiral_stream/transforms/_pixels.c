/*
 * Crop, antialiased bilinear resize, window, flip, table, layout: one pass over many images.
 *
 * The resize is ATen's uint8 `upsample_bilinear2d_aa` bit for bit: triangle filter
 * evaluated in float64, normalised, rounded to int16 with as many fraction bits as
 * the largest weight of the axis allows; horizontal pass first, rounded to uint8,
 * then the vertical pass. A pass that keeps its size is the identity.
 *
 * An image is a crop of packed RGB rows. Only the columns and rows that the window
 * needs are computed; a row is resized horizontally just before the first output row
 * that reads it. Flipping reverses the list of columns, so it costs nothing.
 *
 * Two paths give the same bits: portable C, and AVX2 + FMA + F16C chosen at run time.
 * No path reads outside [first byte, last byte] of an image: rows whose vector loads
 * would pass its end are copied to padded scratch first.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__) && defined(__GNUC__)
#define HAVE_X86 1
#include <immintrin.h>
#endif

#ifndef ROWS_AHEAD
#define ROWS_AHEAD 8
#endif
enum { BLOCK = 32, BOX_FIELDS = 9, MAX_SIDE = 1 << 20 };

/* One axis of a resize: which source samples make each sample of the window. */
typedef struct {
    int in_size, out_size, from, count, reversed; /* what it was built for */
    int pairs;                                    /* weight pairs a sample, padded with zeros */
    int precision;                                /* fraction bits of the weights */
    int identity;                                 /* sample i is source i + first[0] */
    int reach;                                    /* 1 + the last source sample that vector loads of quads touch */
    int *first;                                   /* [padded count] */
    int *size;                                    /* [padded count] */
    int16_t *weights;                             /* [padded count][2 * pairs] */
    double *exact;                                /* scratch, [count][taps] */
} Axis;

typedef struct {
    const uint8_t *pixels, *end;
    int64_t stride;
    int top, left, crop_h, crop_w, resized_h, resized_w, window_top, window_left, flip;
} Image;

/* How a finished row leaves: uint8 as it is, or through 256 entries a channel. */
typedef struct {
    int out_h, out_w, item_size, channels_first;
    const uint8_t *table;           /* [3][256] entries of item_size; NULL for uint8 */
    float scale;                    /* the arithmetic that made the table: (v * scale - mean) / std */
    float mean[4][24], std[4][24], inverse[4][24]; /* a plane of channel 0, 1, 2; interleaved pixels */
    int use_arithmetic;             /* set when it reproduces every entry */
} Finish;

typedef struct {
    void (*two_rows)(const uint8_t *, const uint8_t *, uint8_t *, uint8_t *, const Axis *);
    void (*column_sum)(const uint8_t *, int64_t, const int16_t *, int, int, uint8_t *, int);
    void (*split)(const uint8_t *, uint8_t *, int, int);
    void (*arithmetic)(const uint8_t *, uint8_t *, int, int, const Finish *);
} Path;

static int round_up(int value, int to) { return (value + to - 1) / to * to; }

static int64_t max_taps(int in_size, int out_size) {
    double scale = (double)in_size / out_size;
    int64_t taps = (int64_t)ceil(scale >= 1.0 ? scale : 1.0) * 2 + 1;
    return taps < in_size + 1 ? taps : in_size + 1;
}

static uint8_t clamp_byte(int32_t value) { return value < 0 ? 0 : value > 255 ? 255 : (uint8_t)value; }

/* Weights of the window [from, from + count) of an axis resized from in_size to out_size. */
static void build_axis(Axis *a, int in_size, int out_size, int from, int count, int reversed) {
    if (a->in_size == in_size && a->out_size == out_size && a->from == from && a->count == count &&
        a->reversed == reversed)
        return;
    *a = (Axis){in_size, out_size, from, count, reversed, 1, 14, in_size == out_size, 0,
                a->first, a->size, a->weights, a->exact};
    int padded = round_up(count, 4);
    double scale = (double)in_size / out_size;
    double support = scale >= 1.0 ? scale : 1.0, inverse = scale >= 1.0 ? 1.0 / scale : 1.0;
    int64_t limit = (int64_t)ceil(support) * 2 + 1, taps = max_taps(in_size, out_size);
    double largest = 0.0;
    for (int i = 0; i < out_size; i++) {
        int inside = i >= from && i < from + count;
        double center = scale * (i + 0.5);
        int64_t first = (int64_t)(center - support + 0.5);
        if (first < 0) first = 0;
        int64_t last = (int64_t)(center + support + 0.5);
        if (last > in_size) last = in_size;
        int64_t size = last - first;
        size = size < 0 ? 0 : size > limit ? limit : size;
        /* A window's own samples keep their weights; the others only take part in the maximum. */
        double *w = a->exact + (inside ? i - from : count) * taps;
        double total = 0.0;
        for (int64_t j = 0; j < size; j++) {
            double x = fabs((j + first - center + 0.5) * inverse);
            w[j] = x < 1.0 ? 1.0 - x : 0.0;
            total += w[j];
        }
        if (total != 0.0)
            for (int64_t j = 0; j < size; j++) {
                w[j] /= total;
                if (w[j] > largest) largest = w[j];
            }
        if (inside) {
            int at = reversed ? from + count - 1 - i : i - from;
            a->first[at] = (int)first;
            a->size[at] = (int)size;
        }
    }
    int precision = 0;
    for (; precision < 22; precision++)
        if ((int)(0.5 + largest * (1 << (precision + 1))) >= (1 << 15)) break;
    a->precision = precision;

    /* Weights that round to zero at either end are dropped: an enlarging axis then needs one pair. */
    int longest = 1;
    for (int at = 0; at < count; at++) {
        double *w = a->exact + (int64_t)(reversed ? count - 1 - at : at) * taps;
        int begin = 0, end = a->size[at];
        while (end - begin > 1 && (int)(0.5 + w[end - 1] * (1 << precision)) == 0) end--;
        while (end - begin > 1 && (int)(0.5 + w[begin] * (1 << precision)) == 0) begin++;
        for (int j = begin; j < end; j++) w[j - begin] = w[j];
        a->first[at] += begin;
        a->size[at] = end - begin;
        if (end - begin > longest) longest = end - begin;
    }
    a->pairs = (longest + 1) / 2;
    int width = 2 * a->pairs, loaded = round_up(a->pairs, 2) * 2;
    for (int at = 0; at < padded; at++) {
        if (at >= count) a->first[at] = a->size[at] = 0;
        const double *w = a->exact + (int64_t)(at >= count ? count : reversed ? count - 1 - at : at) * taps;
        int16_t *out = a->weights + (int64_t)at * width;
        for (int j = 0; j < width; j++)
            out[j] = j < a->size[at] ? (int16_t)(0.5 + w[j] * (1 << precision)) : 0;
        if (a->first[at] + loaded + 2 > a->reach) a->reach = a->first[at] + loaded + 2;
    }
}

/* ---- portable path ------------------------------------------------------------------ */

static void one_row_c(const uint8_t *row, uint8_t *out, const Axis *a) {
    const int32_t half = 1 << (a->precision - 1);
    for (int x = 0; x < a->count; x++) {
        const int16_t *w = a->weights + (int64_t)x * 2 * a->pairs;
        const uint8_t *pixel = row + 3 * (int64_t)a->first[x];
        int32_t red = half, green = half, blue = half;
        for (int j = 0; j < a->size[x]; j++, pixel += 3) {
            red += w[j] * pixel[0];
            green += w[j] * pixel[1];
            blue += w[j] * pixel[2];
        }
        out[3 * x] = clamp_byte(red >> a->precision);
        out[3 * x + 1] = clamp_byte(green >> a->precision);
        out[3 * x + 2] = clamp_byte(blue >> a->precision);
    }
}

static void two_rows_c(const uint8_t *r0, const uint8_t *r1, uint8_t *d0, uint8_t *d1, const Axis *a) {
    one_row_c(r0, d0, a);
    one_row_c(r1, d1, a);
}

static void column_sum_c(const uint8_t *rows, int64_t stride, const int16_t *w, int pairs, int precision,
                         uint8_t *out, int bytes) {
    for (int x = 0; x < bytes; x++) {
        int32_t sum = 1 << (precision - 1);
        for (int j = 0; j < 2 * pairs; j++) sum += w[j] * rows[j * stride + x];
        out[x] = clamp_byte(sum >> precision);
    }
}

static void split_c(const uint8_t *row, uint8_t *planes, int plane_stride, int count) {
    for (int x = 0; x < count; x++)
        for (int c = 0; c < 3; c++) planes[c * plane_stride + x] = row[3 * x + c];
}

/* Entry by entry through the table: `step` is 1 for a plane of `channel`, 3 for interleaved pixels. */
static void look_up(const uint8_t *values, uint8_t *out, int count, const Finish *f, int channel, int interleaved) {
    for (int x = 0; x < count; x++) {
        int entry = (interleaved ? x % 3 : channel) * 256 + values[x];
        if (f->item_size == 2)
            memcpy(out + 2 * (int64_t)x, f->table + 2 * entry, 2);
        else
            memcpy(out + 4 * (int64_t)x, f->table + 4 * entry, 4);
    }
}

static const Path PORTABLE = {two_rows_c, column_sum_c, split_c, NULL};

/* ---- AVX2 path ---------------------------------------------------------------------- */

#ifdef HAVE_X86
#define FAST __attribute__((target("avx2,fma,f16c")))

/* Bytes of pixels (0, 1) or (2, 3) of a 16-byte load as int16 pairs, channel by channel. */
#define PAIR(a, b)                                                                                       \
    _mm256_setr_epi8(a, -1, b, -1, a + 1, -1, b + 1, -1, a + 2, -1, b + 2, -1, -1, -1, -1, -1, a, -1, b, \
                     -1, a + 1, -1, b + 1, -1, a + 2, -1, b + 2, -1, -1, -1, -1, -1)

FAST static inline __m256i load_two(const uint8_t *low, const uint8_t *high) {
    return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)low)),
                                   _mm_loadu_si128((const __m128i *)high), 1);
}

FAST static inline __m256i weight_pair(const int16_t *w) {
    int32_t both;
    memcpy(&both, w, 4);
    return _mm256_set1_epi32(both);
}

/* Sums of one output pixel for two rows: lanes (R G B -) of row 0, then of row 1. */
FAST static inline __attribute__((always_inline)) __m256i pixel_sums(const uint8_t *r0, const uint8_t *r1,
                                                                     const int16_t *w, int pairs, __m256i half) {
    __m256i sum = half;
    for (int p = 0; p < pairs; p += 2) {
        __m256i four = load_two(r0 + 6 * p, r1 + 6 * p);
        sum = _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_shuffle_epi8(four, PAIR(0, 3)), weight_pair(w + 2 * p)));
        if (p + 1 < pairs)
            sum = _mm256_add_epi32(
                sum, _mm256_madd_epi16(_mm256_shuffle_epi8(four, PAIR(6, 9)), weight_pair(w + 2 * p + 2)));
    }
    return sum;
}

FAST static inline __attribute__((always_inline)) void two_rows_of(const uint8_t *r0, const uint8_t *r1, uint8_t *d0,
                                                                   uint8_t *d1, const Axis *a, int pairs) {
    const __m256i half = _mm256_set1_epi32(1 << (a->precision - 1));
    const __m128i shift = _mm_cvtsi32_si128(a->precision);
    const __m256i pack = _mm256_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1, 0, 1, 2, 4, 5, 6,
                                          8, 9, 10, 12, 13, 14, -1, -1, -1, -1);
    const int *first = a->first, count = a->count; /* the stores below could alias *a */
    const int16_t *w = a->weights;
    for (int x = 0; x < count; x += 4, w += 8 * pairs) {
        __m256i s[4];
        for (int i = 0; i < 4; i++) {
            const int64_t at = 3 * (int64_t)first[x + i];
            s[i] = _mm256_sra_epi32(pixel_sums(r0 + at, r1 + at, w + 2 * i * pairs, pairs, half), shift);
        }
        __m256i bytes = _mm256_packus_epi16(_mm256_packs_epi32(s[0], s[1]), _mm256_packs_epi32(s[2], s[3]));
        bytes = _mm256_shuffle_epi8(bytes, pack);
        _mm_storeu_si128((__m128i *)(d0 + 3 * x), _mm256_castsi256_si128(bytes));
        _mm_storeu_si128((__m128i *)(d1 + 3 * x), _mm256_extracti128_si256(bytes, 1));
    }
}

FAST static void two_rows_avx2(const uint8_t *r0, const uint8_t *r1, uint8_t *d0, uint8_t *d1, const Axis *a) {
    switch (a->pairs) { /* constant trip counts: 1 pair when enlarging, 2 up to a factor of about 1.5 */
    case 1: two_rows_of(r0, r1, d0, d1, a, 1); break;
    case 2: two_rows_of(r0, r1, d0, d1, a, 2); break;
    case 3: two_rows_of(r0, r1, d0, d1, a, 3); break;
    default: two_rows_of(r0, r1, d0, d1, a, a->pairs);
    }
}

FAST static void column_sum_avx2(const uint8_t *rows, int64_t stride, const int16_t *w, int pairs, int precision,
                                 uint8_t *out, int bytes) {
    const __m256i half = _mm256_set1_epi32(1 << (precision - 1)), zero = _mm256_setzero_si256();
    const __m128i shift = _mm_cvtsi32_si128(precision);
    for (int x = 0; x < bytes; x += 32) {
        __m256i s0 = half, s1 = half, s2 = half, s3 = half;
        const uint8_t *at = rows + x;
        for (int p = 0; p < pairs; p++, at += 2 * stride) {
            __m256i upper = _mm256_loadu_si256((const __m256i *)at);
            __m256i lower = _mm256_loadu_si256((const __m256i *)(at + stride));
            __m256i weight = weight_pair(w + 2 * p);
            __m256i low = _mm256_unpacklo_epi8(upper, lower), high = _mm256_unpackhi_epi8(upper, lower);
            s0 = _mm256_add_epi32(s0, _mm256_madd_epi16(_mm256_unpacklo_epi8(low, zero), weight));
            s1 = _mm256_add_epi32(s1, _mm256_madd_epi16(_mm256_unpackhi_epi8(low, zero), weight));
            s2 = _mm256_add_epi32(s2, _mm256_madd_epi16(_mm256_unpacklo_epi8(high, zero), weight));
            s3 = _mm256_add_epi32(s3, _mm256_madd_epi16(_mm256_unpackhi_epi8(high, zero), weight));
        }
        __m256i a = _mm256_packs_epi32(_mm256_sra_epi32(s0, shift), _mm256_sra_epi32(s1, shift));
        __m256i b = _mm256_packs_epi32(_mm256_sra_epi32(s2, shift), _mm256_sra_epi32(s3, shift));
        _mm256_storeu_si256((__m256i *)(out + x), _mm256_packus_epi16(a, b));
    }
}

/* Which byte of the n-th 16 of 48 interleaved bytes is channel c of pixel i; -1 if none. */
#define AT(n, c, i) ((3 * (i) + (c)) / 16 == (n) ? (char)((3 * (i) + (c)) % 16) : (char)-1)
#define PICK(n, c)                                                                                       \
    _mm256_broadcastsi128_si256(_mm_setr_epi8(                                                           \
        AT(n, c, 0), AT(n, c, 1), AT(n, c, 2), AT(n, c, 3), AT(n, c, 4), AT(n, c, 5), AT(n, c, 6),       \
        AT(n, c, 7), AT(n, c, 8), AT(n, c, 9), AT(n, c, 10), AT(n, c, 11), AT(n, c, 12), AT(n, c, 13),   \
        AT(n, c, 14), AT(n, c, 15)))
#define CHANNEL(c)                                                                                       \
    _mm256_or_si256(_mm256_or_si256(_mm256_shuffle_epi8(a, PICK(0, c)), _mm256_shuffle_epi8(b, PICK(1, c))), \
                    _mm256_shuffle_epi8(d, PICK(2, c)))

FAST static void split_avx2(const uint8_t *row, uint8_t *planes, int plane_stride, int count) {
    for (int x = 0; x < count; x += 32, row += 96, planes += 32) {
        __m256i a = load_two(row, row + 48), b = load_two(row + 16, row + 64), d = load_two(row + 32, row + 80);
        _mm256_storeu_si256((__m256i *)planes, CHANNEL(0));
        _mm256_storeu_si256((__m256i *)(planes + plane_stride), CHANNEL(1));
        _mm256_storeu_si256((__m256i *)(planes + 2 * plane_stride), CHANNEL(2));
    }
}

/*
 * (v * scale - mean) / std in float32. The division is a product with the reciprocal and one
 * correction by the exact remainder (Markstein 1990), three times as fast as vdivps; that it
 * is the division for these constants is checked against the table before it is used.
 */
FAST static inline __m256 affine8(const uint8_t *values, __m256 scale, __m256 mean, __m256 std, __m256 inverse) {
    __m256 v = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)values)));
    __m256 difference = _mm256_sub_ps(_mm256_mul_ps(v, scale), mean);
    __m256 quotient = _mm256_mul_ps(difference, inverse);
    return _mm256_fmadd_ps(_mm256_fnmadd_ps(quotient, std, difference), inverse, quotient);
}

FAST static inline __attribute__((always_inline)) void store8(uint8_t *out, __m256 value, int item) {
    if (item == 2)
        _mm_storeu_si128((__m128i *)out, _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT));
    else
        _mm256_storeu_ps((float *)out, value);
}

FAST static inline __attribute__((always_inline)) void arithmetic_of(const uint8_t *values, uint8_t *out, int count,
                                                                     int kind, const Finish *f, int item) {
    const __m256 scale = _mm256_set1_ps(f->scale);
    __m256 mean[3], std[3], inverse[3];
    for (int phase = 0; phase < 3; phase++) {
        mean[phase] = _mm256_loadu_ps(f->mean[kind] + 8 * phase);
        std[phase] = _mm256_loadu_ps(f->std[kind] + 8 * phase);
        inverse[phase] = _mm256_loadu_ps(f->inverse[kind] + 8 * phase);
    }
    int x = 0;
    for (; x + 24 <= count; x += 24)
        for (int phase = 0; phase < 3; phase++)
            store8(out + (int64_t)(x + 8 * phase) * item,
                   affine8(values + x + 8 * phase, scale, mean[phase], std[phase], inverse[phase]), item);
    for (int phase = 0; x < count; phase++, x += 8) {
        __m256 value = affine8(values + x, scale, mean[phase], std[phase], inverse[phase]);
        if (x + 8 <= count)
            store8(out + (int64_t)x * item, value, item);
        else {
            uint8_t rest[8 * 4];
            store8(rest, value, item);
            memcpy(out + (int64_t)x * item, rest, (size_t)(count - x) * item);
        }
    }
}

/* `kind` 0 to 2 converts a plane of that channel, 3 interleaved pixels. Reads up to 7 values past `count`. */
FAST static void arithmetic_avx2(const uint8_t *values, uint8_t *out, int count, int kind, const Finish *f) {
    if (f->item_size == 2)
        arithmetic_of(values, out, count, kind, f, 2);
    else
        arithmetic_of(values, out, count, kind, f, 4);
}

static const Path AVX2 = {two_rows_avx2, column_sum_avx2, split_avx2, arithmetic_avx2};
#endif

static int accelerated(void) {
#ifdef HAVE_X86
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
#else
    return 0;
#endif
}

static const Path *choose_path(int portable) {
#ifdef HAVE_X86
    if (!portable && accelerated()) return &AVX2;
#endif
    (void)portable;
    return &PORTABLE;
}

/* ---- one image ---------------------------------------------------------------------- */

typedef struct {
    Axis across, down;
    uint8_t *rows, *row, *planes, *edge[2];
    int64_t row_stride;
    int plane_stride;
} Scratch;

/* Whether the vector arithmetic gives every entry of the table: 768 values, about 1 us a call. */
static int arithmetic_matches(const Path *path, const Finish *f) {
    if (!path->arithmetic || !f->table) return 0;
    uint8_t ramp[256 + 24] = {0}, got[256 * 4];
    for (int v = 0; v < 256; v++) ramp[v] = (uint8_t)v;
    for (int c = 0; c < 3; c++) {
        path->arithmetic(ramp, got, 256, c, f);
        if (memcmp(got, f->table + (int64_t)c * 256 * f->item_size, 256 * (size_t)f->item_size)) return 0;
    }
    return 1;
}

static void finish_row(const Path *path, const Finish *f, Scratch *s, const uint8_t *row, uint8_t *out, int y) {
    const int64_t width = f->out_w, item = f->item_size;
    if (!f->channels_first) {
        out += y * width * 3 * item;
        if (!f->table)
            memcpy(out, row, (size_t)width * 3);
        else if (f->use_arithmetic)
            path->arithmetic(row, out, (int)width * 3, 3, f);
        else
            look_up(row, out, (int)width * 3, f, 0, 1);
        return;
    }
    path->split(row, s->planes, s->plane_stride, f->out_w);
    for (int c = 0; c < 3; c++) {
        const uint8_t *plane = s->planes + (int64_t)c * s->plane_stride;
        uint8_t *to = out + (c * (int64_t)f->out_h + y) * width * item;
        if (!f->table)
            memcpy(to, plane, (size_t)width);
        else if (f->use_arithmetic)
            path->arithmetic(plane, to, (int)width, c, f);
        else
            look_up(plane, to, (int)width, f, c, 0);
    }
}

/* A row of the crop that vector loads may read to `reach`, copied when it lies at the image's end. */
static const uint8_t *safe_row(const Image *image, int row, const Axis *across, uint8_t *edge) {
    const uint8_t *at = image->pixels + (image->top + row) * image->stride + 3 * (int64_t)image->left;
    if (image->end - at >= 3 * (int64_t)across->reach) return at;
    memcpy(edge, at, 3 * (size_t)image->crop_w);
    return edge;
}

/* Rows of a crop are short streams, which the hardware notices late: ask for two of them early. */
static void prefetch_rows(const Image *image, int row) {
    for (int r = row; r < row + 2 && r < image->crop_h; r++) {
        const uint8_t *at = image->pixels + (image->top + r) * image->stride + 3 * (int64_t)image->left;
        for (int x = 0; x < 3 * image->crop_w; x += 64) __builtin_prefetch(at + x);
    }
}

static void render_image(const Path *path, const Finish *f, const Image *image, Scratch *s, uint8_t *out) {
    build_axis(&s->across, image->crop_w, image->resized_w, image->window_left, f->out_w, image->flip);
    build_axis(&s->down, image->crop_h, image->resized_h, image->window_top, f->out_h, 0);
    const Axis *down = &s->down;
    const int copy = s->across.identity && !image->flip, base = down->first[0];
    int done = base; /* rows of the crop that have been resized horizontally */

    for (int y = 0; y < f->out_h; y++) {
        while (done < down->first[y] + down->size[y]) {
            int second = done + 1 < image->crop_h ? done + 1 : done;
            prefetch_rows(image, done + ROWS_AHEAD);
            uint8_t *to = s->rows + (done - base) * s->row_stride;
            if (copy) {
                const uint8_t *at =
                    image->pixels + (image->top + done) * image->stride + 3 * ((int64_t)image->left + image->window_left);
                memcpy(to, at, 3 * (size_t)f->out_w);
                done += 1;
            } else {
                path->two_rows(safe_row(image, done, &s->across, s->edge[0]),
                               safe_row(image, second, &s->across, s->edge[1]), to, to + s->row_stride, &s->across);
                done += 2;
            }
        }
        const uint8_t *rows = s->rows + (down->first[y] - base) * s->row_stride;
        if (!down->identity) {
            path->column_sum(rows, s->row_stride, down->weights + (int64_t)y * 2 * down->pairs, down->pairs,
                             down->precision, s->row, f->out_w * 3);
            rows = s->row;
        }
        finish_row(path, f, s, rows, out, y);
    }
}

/* ---- scratch ------------------------------------------------------------------------ */

typedef struct { int64_t rows, exact_x, exact_y, weights_x, weights_y, edge; } Need;

static void raise_to(int64_t *most, int64_t value) {
    if (value > *most) *most = value;
}

static void add_need(Need *need, const Image *image, const Finish *f) {
    int64_t tx = max_taps(image->crop_w, image->resized_w), ty = max_taps(image->crop_h, image->resized_h);
    raise_to(&need->rows, image->crop_h + ty + 4); /* zero weights may stand past the last row */
    raise_to(&need->exact_x, (f->out_w + 1) * tx);
    raise_to(&need->exact_y, (f->out_h + 1) * ty);
    raise_to(&need->weights_x, (f->out_w + 4) * (tx + 2));
    raise_to(&need->weights_y, (f->out_h + 4) * (ty + 2));
    raise_to(&need->edge, 3 * (image->crop_w + tx + 16));
}

/* Lays every buffer out in one allocation, 64-byte aligned; NULL if there is no memory. */
static uint8_t *open_scratch(Scratch *s, const Need *need, const Finish *f) {
    enum { PARTS = 13 };
    const int64_t wide = round_up(f->out_w, BLOCK);
    memset(s, 0, sizeof *s);
    s->plane_stride = (int)wide + BLOCK;
    s->row_stride = 3 * wide + BLOCK;
    const int64_t bytes[PARTS] = {
        need->rows * s->row_stride, s->row_stride, 3 * (int64_t)s->plane_stride, need->edge, need->edge,
        need->exact_x * 8, need->exact_y * 8, need->weights_x * 2, need->weights_y * 2,
        (f->out_w + 4) * 4LL, (f->out_w + 4) * 4LL, (f->out_h + 4) * 4LL, (f->out_h + 4) * 4LL,
    };
    int64_t total = 64;
    for (int i = 0; i < PARTS; i++) total += (bytes[i] + 127) / 64 * 64;
    uint8_t *base = calloc((size_t)total, 1), *part[PARTS];
    if (!base) return NULL;
    uint8_t *at = base + (64 - (uintptr_t)base % 64) % 64;
    for (int i = 0; i < PARTS; i++) {
        part[i] = at;
        at += (bytes[i] + 127) / 64 * 64;
    }
    s->rows = part[0];
    s->row = part[1];
    s->planes = part[2];
    s->edge[0] = part[3];
    s->edge[1] = part[4];
    s->across.exact = (double *)part[5];
    s->down.exact = (double *)part[6];
    s->across.weights = (int16_t *)part[7];
    s->down.weights = (int16_t *)part[8];
    s->across.first = (int *)part[9];
    s->across.size = (int *)part[10];
    s->down.first = (int *)part[11];
    s->down.size = (int *)part[12];
    return base;
}

/* ---- the module --------------------------------------------------------------------- */

/* NULL if box `b` of an image of height x width fits, else what does not. */
static const char *box_fault(const int32_t *b, int height, int width, const Finish *f) {
    if (height < 1 || width < 1 || height > MAX_SIDE || width > MAX_SIDE) return "image sides must be 1 to 1048576";
    if (b[0] < 0 || b[1] < 0 || b[2] < 1 || b[3] < 1 || b[2] > height - b[0] || b[3] > width - b[1])
        return "the crop box leaves the image";
    if (b[4] < 1 || b[5] < 1 || b[4] > MAX_SIDE || b[5] > MAX_SIDE) return "resized sides must be 1 to 1048576";
    if (b[6] < 0 || b[7] < 0 || f->out_h > b[4] - b[6] || f->out_w > b[5] - b[7])
        return "the window leaves the resized image";
    return NULL;
}

typedef struct {
    const uint64_t *addresses;
    const int64_t *strides;
    const int32_t *heights, *widths, *boxes;
} Batch;

static Image image_of(const Batch *batch, Py_ssize_t i) {
    const int32_t *b = batch->boxes + BOX_FIELDS * i;
    const uint8_t *pixels = (const uint8_t *)(uintptr_t)batch->addresses[i];
    const int64_t last = (batch->heights[i] - 1) * batch->strides[i] + 3 * (int64_t)batch->widths[i];
    return (Image){pixels, pixels + last, batch->strides[i], b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7], b[8] != 0};
}

/* Renders every image into consecutive places of `out`; 0, or -1 with MemoryError set. */
static int render_batch(const Batch *batch, Py_ssize_t count, Finish *f, uint8_t *out, int portable) {
    Need need = {0};
    Scratch scratch;
    for (Py_ssize_t i = 0; i < count; i++) {
        Image image = image_of(batch, i);
        add_need(&need, &image, f);
    }
    uint8_t *memory = open_scratch(&scratch, &need, f);
    if (!memory) {
        PyErr_NoMemory();
        return -1;
    }
    const Path *path = choose_path(portable);
    f->use_arithmetic = arithmetic_matches(path, f);
    const int64_t size = 3 * (int64_t)f->out_h * f->out_w * f->item_size;
    Py_BEGIN_ALLOW_THREADS;
    for (Py_ssize_t i = 0; i < count; i++) {
        Image image = image_of(batch, i);
        render_image(path, f, &image, &scratch, out + i * size);
    }
    Py_END_ALLOW_THREADS;
    free(memory);
    return 0;
}

static void set_constants(Finish *f, const float *seven) {
    f->scale = seven[0];
    for (int kind = 0; kind < 4; kind++)
        for (int at = 0; at < 24; at++) {
            int channel = kind < 3 ? kind : at % 3;
            f->mean[kind][at] = seven[1 + channel];
            f->std[kind][at] = seven[4 + channel];
            f->inverse[kind][at] = 1.0f / seven[4 + channel];
        }
}

PyDoc_STRVAR(render_doc, "Crop, resize, cut, flip and convert packed RGB images into one array; see _pixels.pyi.");

static PyObject *render(PyObject *module, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"addresses", "strides", "heights", "widths", "boxes", "out", "out_h", "out_w",
                            "item_size", "channels_first", "table", "constants", "portable", NULL};
    enum { ADDRESSES, STRIDES, HEIGHTS, WIDTHS, BOXES, OUT, TABLE, CONSTANTS, BUFFERS };
    Py_buffer view[BUFFERS];
    memset(view, 0, sizeof view);
    Finish f = {0};
    int portable = 0;
    PyObject *result = NULL;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "y*y*y*y*y*w*iiipy*y*|p", names, &view[ADDRESSES], &view[STRIDES],
                                     &view[HEIGHTS], &view[WIDTHS], &view[BOXES], &view[OUT], &f.out_h, &f.out_w,
                                     &f.item_size, &f.channels_first, &view[TABLE], &view[CONSTANTS], &portable))
        return NULL; /* the parser has released what it had taken */

    const Py_ssize_t count = view[ADDRESSES].len / 8;
    const int sides_fit = f.out_h >= 1 && f.out_w >= 1 && f.out_h <= MAX_SIDE && f.out_w <= MAX_SIDE;
    if (!sides_fit || (f.item_size != 1 && f.item_size != 2 && f.item_size != 4)) {
        PyErr_SetString(PyExc_ValueError, "render: out_h and out_w must be 1 to 1048576, item_size 1, 2 or 4");
        goto done;
    }
    const Py_ssize_t table_bytes = f.item_size == 1 ? 0 : 3 * 256 * f.item_size;
    if (view[ADDRESSES].len != 8 * count || view[STRIDES].len != 8 * count || view[HEIGHTS].len != 4 * count ||
        view[WIDTHS].len != 4 * count || view[BOXES].len != 4 * BOX_FIELDS * count ||
        view[TABLE].len != table_bytes || view[CONSTANTS].len != 7 * 4 ||
        view[OUT].len != (Py_ssize_t)(3 * (int64_t)f.out_h * f.out_w * f.item_size * count)) {
        PyErr_SetString(PyExc_ValueError,
                        "render: buffer lengths differ; give B uint64 addresses, B int64 strides, B int32 heights and "
                        "widths, [B, 9] int32 boxes, a [3, 256] table, 7 float32 constants, out for B images");
        goto done;
    }
    Batch batch = {view[ADDRESSES].buf, view[STRIDES].buf, view[HEIGHTS].buf, view[WIDTHS].buf, view[BOXES].buf};
    for (Py_ssize_t i = 0; i < count; i++) {
        const char *fault = box_fault(batch.boxes + BOX_FIELDS * i, batch.heights[i], batch.widths[i], &f);
        if (!fault && batch.strides[i] < 3 * (int64_t)batch.widths[i]) fault = "its stride is shorter than its rows";
        if (fault) {
            PyErr_Format(PyExc_ValueError, "render: image %zd: %s", i, fault);
            goto done;
        }
    }
    f.table = table_bytes ? view[TABLE].buf : NULL;
    set_constants(&f, view[CONSTANTS].buf);
    if (render_batch(&batch, count, &f, view[OUT].buf, portable) == 0) result = Py_NewRef(Py_None);
done:
    for (int i = 0; i < BUFFERS; i++) PyBuffer_Release(&view[i]);
    return result;
}

PyDoc_STRVAR(locate_doc, "Write address, row stride, height and width of each image; see _pixels.pyi.");

/* Takes and gives back each image's buffer: the caller keeps the images alive and unresized. */
static int locate_one(PyObject *image, Py_ssize_t i, uint64_t *address, int64_t *stride, int32_t *height,
                      int32_t *width) {
    Py_buffer view;
    if (PyObject_GetBuffer(image, &view, PyBUF_STRIDED_RO | PyBUF_FORMAT) < 0) return -1;
    const int bytes = view.itemsize == 1 && (!view.format || !strcmp(view.format, "B"));
    const int packed = view.ndim == 3 && view.shape[2] == 3 && view.strides[2] == 1 && view.strides[1] == 3 &&
                       view.strides[0] >= 3 * view.shape[1] && view.shape[0] <= MAX_SIDE && view.shape[1] <= MAX_SIDE;
    if (bytes && packed) {
        *address = (uint64_t)(uintptr_t)view.buf;
        *stride = view.strides[0];
        *height = (int32_t)view.shape[0];
        *width = (int32_t)view.shape[1];
    } else
        PyErr_Format(PyExc_ValueError,
                     "image %zd is not uint8 [H, W, 3] with packed pixels; convert it with numpy.ascontiguousarray", i);
    PyBuffer_Release(&view);
    return bytes && packed ? 0 : -1;
}

static PyObject *locate(PyObject *module, PyObject *args) {
    enum { ADDRESSES, STRIDES, HEIGHTS, WIDTHS, BUFFERS };
    Py_buffer view[BUFFERS];
    PyObject *given, *images, *result = NULL;
    if (!PyArg_ParseTuple(args, "Ow*w*w*w*", &given, &view[ADDRESSES], &view[STRIDES], &view[HEIGHTS], &view[WIDTHS]))
        return NULL;
    images = PySequence_Fast(given, "locate: images must be a sequence");
    if (!images) goto done;
    const Py_ssize_t count = PySequence_Fast_GET_SIZE(images);
    if (view[ADDRESSES].len != 8 * count || view[STRIDES].len != 8 * count || view[HEIGHTS].len != 4 * count ||
        view[WIDTHS].len != 4 * count) {
        PyErr_SetString(PyExc_ValueError, "locate: give B uint64 addresses, B int64 strides, B int32 heights, widths");
        goto done;
    }
    for (Py_ssize_t i = 0; i < count; i++)
        if (locate_one(PySequence_Fast_GET_ITEM(images, i), i, (uint64_t *)view[ADDRESSES].buf + i,
                       (int64_t *)view[STRIDES].buf + i, (int32_t *)view[HEIGHTS].buf + i,
                       (int32_t *)view[WIDTHS].buf + i) < 0)
            goto done;
    result = Py_NewRef(Py_None);
done:
    Py_XDECREF(images);
    for (int i = 0; i < BUFFERS; i++) PyBuffer_Release(&view[i]);
    return result;
}

PyDoc_STRVAR(resize_doc, "Resize one uint8 [H, W, 3] image into another; see _pixels.pyi.");

static PyObject *resize(PyObject *module, PyObject *args) {
    PyObject *source, *target;
    Py_buffer to;
    uint64_t address;
    int64_t stride;
    int32_t height, width;
    if (!PyArg_ParseTuple(args, "OO:resize", &source, &target)) return NULL;
    if (locate_one(source, 0, &address, &stride, &height, &width) < 0) return NULL;
    if (PyObject_GetBuffer(target, &to, PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE) < 0) return NULL;
    PyObject *result = NULL;
    if (to.ndim != 3 || to.itemsize != 1 || to.shape[2] != 3 || to.shape[0] > MAX_SIDE || to.shape[1] > MAX_SIDE) {
        PyErr_SetString(PyExc_ValueError, "resize: the target must be a contiguous uint8 [H, W, 3]");
        goto done;
    }
    Finish f = {.out_h = (int)to.shape[0], .out_w = (int)to.shape[1], .item_size = 1};
    const int32_t box[BOX_FIELDS] = {0, 0, height, width, f.out_h, f.out_w, 0, 0, 0};
    const char *fault = box_fault(box, height, width, &f);
    if (fault) {
        PyErr_Format(PyExc_ValueError, "resize: %s", fault);
        goto done;
    }
    Batch batch = {&address, &stride, &height, &width, box};
    if (render_batch(&batch, 1, &f, to.buf, 0) == 0) result = Py_NewRef(Py_None);
done:
    PyBuffer_Release(&to);
    return result;
}

static PyMethodDef methods[] = {
    {"render", (PyCFunction)(void (*)(void))render, METH_VARARGS | METH_KEYWORDS, render_doc},
    {"locate", locate, METH_VARARGS, locate_doc},
    {"resize", resize, METH_VARARGS, resize_doc},
    {NULL, NULL, 0, NULL},
};

static int fill_module(PyObject *module) {
    return PyModule_AddObjectRef(module, "ACCELERATED", accelerated() ? Py_True : Py_False);
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, fill_module}, {0, NULL}};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_pixels", "Pixel kernels, without the GIL.", 0,
                                        methods, slots, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__pixels(void) { return PyModuleDef_Init(&definition); }
