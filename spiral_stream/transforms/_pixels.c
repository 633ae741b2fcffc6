/*
 * Crop, antialiased resize, window, flip, table, layout: one pass over many images.
 *
 * The resize is ATen's uint8 `upsample_bilinear2d_aa` bit for bit, or `upsample_bicubic2d_aa`:
 * triangle or cubic filter evaluated in float64, normalised, rounded to int16 with as many fraction bits as
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

#include "_kernels.h"

typedef struct {
    const uint8_t *pixels, *end;
    int64_t stride;
    int top, left, crop_h, crop_w, resized_h, resized_w, window_top, window_left, flip;
} Image;

/* ---- one image ---------------------------------------------------------------------- */

typedef struct {
    Axis across, down;
    uint8_t *rows, *row, *planes, *edge[2];
    int64_t row_stride;
    int plane_stride;
} Scratch;

/* Whether the vector arithmetic gives every entry of the table: 768 values, under 1 us a call. */
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

/*
 * Rows of a crop are short streams, which the hardware notices late: ask for two of them early. It must be
 * inlined, GCC 12 takes a function that only prefetches for pure and drops the call.
 */
__attribute__((always_inline)) static inline void prefetch_rows(const Image *image, int row) {
    for (int r = row; r < row + 2 && r < image->crop_h; r++) {
        const uint8_t *at = image->pixels + (image->top + r) * image->stride + 3 * (int64_t)image->left;
        for (int x = 0; x < 3 * image->crop_w; x += 64) __builtin_prefetch(at + x);
    }
}

static void render_image(const Path *path, const Finish *f, const Image *image, Scratch *s, uint8_t *out) {
    build_axis(&s->across, image->crop_w, image->resized_w, image->window_left, f->out_w, image->flip, f->cubic);
    build_axis(&s->down, image->crop_h, image->resized_h, image->window_top, f->out_h, 0, f->cubic);
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
    int64_t tx = max_taps(image->crop_w, image->resized_w, f->cubic);
    int64_t ty = max_taps(image->crop_h, image->resized_h, f->cubic);
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
    f->stream = size * count >= STREAM_BYTES; /* after the check above, whose buffers are not aligned */
    Py_BEGIN_ALLOW_THREADS;
    for (Py_ssize_t i = 0; i < count; i++) {
        Image image = image_of(batch, i);
        render_image(path, f, &image, &scratch, out + i * size);
    }
#ifdef HAVE_X86
    _mm_sfence(); /* streamed stores become visible before the caller hears that they are done */
#endif
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
                            "item_size", "channels_first", "table", "constants", "portable", "cubic", NULL};
    enum { ADDRESSES, STRIDES, HEIGHTS, WIDTHS, BOXES, OUT, TABLE, CONSTANTS, BUFFERS };
    Py_buffer view[BUFFERS];
    memset(view, 0, sizeof view);
    Finish f = {0};
    int portable = 0;
    PyObject *result = NULL;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "y*y*y*y*y*w*iiipy*y*|pp", names, &view[ADDRESSES], &view[STRIDES],
                                     &view[HEIGHTS], &view[WIDTHS], &view[BOXES], &view[OUT], &f.out_h, &f.out_w,
                                     &f.item_size, &f.channels_first, &view[TABLE], &view[CONSTANTS], &portable, &f.cubic))
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
    const Py_ssize_t count = PySequence_Size(images);
    if (view[ADDRESSES].len != 8 * count || view[STRIDES].len != 8 * count || view[HEIGHTS].len != 4 * count ||
        view[WIDTHS].len != 4 * count) {
        PyErr_SetString(PyExc_ValueError, "locate: give B uint64 addresses, B int64 strides, B int32 heights, widths");
        goto done;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *image = PySequence_GetItem(images, i);
        const int failed = !image || locate_one(image, i, (uint64_t *)view[ADDRESSES].buf + i,
                                                (int64_t *)view[STRIDES].buf + i, (int32_t *)view[HEIGHTS].buf + i,
                                                (int32_t *)view[WIDTHS].buf + i) < 0;
        Py_XDECREF(image);
        if (failed) goto done;
    }
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
