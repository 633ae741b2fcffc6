/* The kernels of _pixels.c: weights of a resize, rows in two paths of equal bits, and how a row leaves. */

#ifndef SPIRAL_KERNELS_H
#define SPIRAL_KERNELS_H

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "../_build.h"

enum {
    BLOCK = 32,            /* pixels; rows of scratch are padded to it */
    BOX_FIELDS = 9,
    MAX_SIDE = 1 << 20,
    ROWS_AHEAD = 8,        /* rows prefetched: 2 us, several memory latencies */
    STREAM_BYTES = 4 << 20 /* outputs smaller than this stay in the caches for whoever reads them */
};

/* One axis of a resize: which source samples make each sample of the window. */
typedef struct {
    int in_size, out_size, from, count, reversed, cubic; /* what it was built for */
    int pairs;                                    /* weight pairs a sample, padded with zeros */
    int precision;                                /* fraction bits of the weights */
    int identity;                                 /* sample i is source i + first[0] */
    int reach;                                    /* 1 + the last source sample that vector loads of quads touch */
    int *first;                                   /* [padded count] */
    int *size;                                    /* [padded count] */
    int16_t *weights;                             /* [padded count][2 * pairs] */
    double *exact;                                /* scratch, [count][taps] */
} Axis;

/* How a finished row leaves: uint8 as it is, or through 256 entries a channel. */
typedef struct {
    int out_h, out_w, item_size, channels_first, cubic;
    const uint8_t *table;           /* [3][256] entries of item_size; NULL for uint8 */
    float scale;                    /* the arithmetic that made the table: (v * scale - mean) / std */
    float mean[4][24], std[4][24], inverse[4][24]; /* a plane of channel 0, 1, 2; interleaved pixels */
    int use_arithmetic;             /* set when it reproduces every entry */
    int stream;                     /* write past the caches */
} Finish;

typedef struct {
    void (*two_rows)(const uint8_t *, const uint8_t *, uint8_t *, uint8_t *, const Axis *);
    void (*column_sum)(const uint8_t *, int64_t, const int16_t *, int, int, uint8_t *, int);
    void (*split)(const uint8_t *, uint8_t *, int, int);
    void (*arithmetic)(const uint8_t *, uint8_t *, int, int, const Finish *);
} Path;

static int round_up(int value, int to) { return (value + to - 1) / to * to; }

/* How far a filter reaches from the centre of a sample. */
static double reach_of(double scale, int cubic) { return (cubic ? 2.0 : 1.0) * (scale >= 1.0 ? scale : 1.0); }

static int64_t max_taps(int in_size, int out_size, int cubic) {
    int64_t taps = (int64_t)ceil(reach_of((double)in_size / out_size, cubic)) * 2 + 1;
    return taps < in_size + 1 ? taps : in_size + 1;
}

/* The triangle, or Keys' cubic with a = -1/2, as ATen and Pillow take it to make images smaller. */
static double filter(double x, int cubic) {
    if (!cubic) return x < 1.0 ? 1.0 - x : 0.0;
    const double a = -0.5;
    if (x < 1.0) return ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0;
    return x < 2.0 ? ((a * x - 5.0 * a) * x + 8.0 * a) * x - 4.0 * a : 0.0;
}

static int fixed_point(double weight, int precision) {
    return (int)((weight < 0.0 ? -0.5 : 0.5) + weight * (1 << precision));
}

static uint8_t clamp_byte(int32_t value) { return value < 0 ? 0 : value > 255 ? 255 : (uint8_t)value; }

/* Weights of the window [from, from + count) of an axis resized from in_size to out_size. */
static void build_axis(Axis *a, int in_size, int out_size, int from, int count, int reversed, int cubic) {
    if (a->in_size == in_size && a->out_size == out_size && a->from == from && a->count == count &&
        a->reversed == reversed && a->cubic == cubic)
        return;
    *a = (Axis){in_size, out_size, from, count, reversed, cubic, 1, 14, in_size == out_size, 0,
                a->first, a->size, a->weights, a->exact};
    int padded = round_up(count, 4);
    double scale = (double)in_size / out_size;
    double support = reach_of(scale, cubic), inverse = scale >= 1.0 ? 1.0 / scale : 1.0;
    int64_t limit = (int64_t)ceil(support) * 2 + 1, taps = max_taps(in_size, out_size, cubic);
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
            w[j] = filter(fabs((j + first - center + 0.5) * inverse), cubic);
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
        while (end - begin > 1 && fixed_point(w[end - 1], precision) == 0) end--;
        while (end - begin > 1 && fixed_point(w[begin], precision) == 0) begin++;
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
            out[j] = j < a->size[at] ? (int16_t)fixed_point(w[j], precision) : 0;
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

FAST static inline __attribute__((always_inline)) void store8(uint8_t *out, __m256 value, int item, int stream) {
    __m128i halves = _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT);
    if (item == 2 && stream)
        _mm_stream_si128((__m128i *)out, halves);
    else if (item == 2)
        _mm_storeu_si128((__m128i *)out, halves);
    else if (stream)
        _mm256_stream_ps((float *)out, value);
    else
        _mm256_storeu_ps((float *)out, value);
}

FAST static inline __attribute__((always_inline)) void arithmetic_of(const uint8_t *values, uint8_t *out, int count,
                                                                     int kind, const Finish *f, int item,
                                                                     int stream) {
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
                   affine8(values + x + 8 * phase, scale, mean[phase], std[phase], inverse[phase]), item, stream);
    for (int phase = 0; x < count; phase++, x += 8) {
        __m256 value = affine8(values + x, scale, mean[phase], std[phase], inverse[phase]);
        if (x + 8 <= count)
            store8(out + (int64_t)x * item, value, item, stream);
        else {
            uint8_t rest[8 * 4];
            store8(rest, value, item, 0);
            memcpy(out + (int64_t)x * item, rest, (size_t)(count - x) * item);
        }
    }
}

/*
 * `kind` 0 to 2 converts a plane of that channel, 3 interleaved pixels. Reads up to 7 values past `count`.
 * Rows made of whole cache lines are streamed: the batch is far larger than the caches, and a plain store
 * would read each line first (measured: 12 to 15 % of the whole call).
 */
FAST static void arithmetic_avx2(const uint8_t *values, uint8_t *out, int count, int kind, const Finish *f) {
    const int whole_lines = (((uintptr_t)out | (uintptr_t)count * f->item_size) & 63) == 0;
    if (f->stream && whole_lines && f->item_size == 2)
        arithmetic_of(values, out, count, kind, f, 2, 1);
    else if (f->stream && whole_lines)
        arithmetic_of(values, out, count, kind, f, 4, 1);
    else if (f->item_size == 2)
        arithmetic_of(values, out, count, kind, f, 2, 0);
    else
        arithmetic_of(values, out, count, kind, f, 4, 0);
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

#endif
