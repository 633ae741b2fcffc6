/* Where the records of a CSV file end, and whether its fields may begin as numbers that a number would not say; and
   how many lines there are, and whether those of JSON are an object each, as far as their ends tell (pyarrow 26 crashes
   on a null that stands for a row).

   All look at few bytes. Of CSV those end or enclose a field: `marks` finds them a window at a time, bytes are compared
   sixteen or more together, and then eight are passed over in a step.  */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define WINDOW 4096 /* bytes whose marks lie in the cache; a multiple of 8 */
#define NO_QUOTE -1

typedef struct {
    int64_t *items;
    Py_ssize_t used, room;
} Grown;

static int add(Grown *out, int64_t item) {
    if (out->used == out->room) {
        const Py_ssize_t room = out->room ? 2 * out->room : 1 << 12;
        int64_t *items = realloc(out->items, (size_t)room * sizeof(*items));
        if (items == NULL) return 0;
        out->items = items, out->room = room;
    }
    out->items[out->used++] = item;
    return 1;
}

/* Mark the bytes that are one of four; places behind the end are not marked. */
static void marks(const uint8_t *at, Py_ssize_t count, const uint8_t one_of[4], uint8_t *out) {
    const uint8_t a = one_of[0], b = one_of[1], c = one_of[2], d = one_of[3];
    for (Py_ssize_t i = 0; i < count; i++) out[i] = (at[i] == a) | (at[i] == b) | (at[i] == c) | (at[i] == d);
    for (Py_ssize_t i = count; i % 8; i++) out[i] = 0;
}

/* The first of eight marks that is set; they are not all clear. */
static inline int first_of(const uint8_t *eight) {
    int k = 0;
    while (!eight[k]) k++;
    return k;
}

static inline int any_of(const uint8_t *eight) {
    uint64_t word;
    memcpy(&word, eight, 8);
    return word != 0;
}

static inline int begins(const uint8_t *data, Py_ssize_t at, int delimiter) {
    return at == 0 || data[at - 1] == delimiter || data[at - 1] == '\n' || data[at - 1] == '\r';
}

/* A quote opens where a field begins; inside, two quotes stand for one. Any other quote is a letter. */
static int ends_of(
    const uint8_t *data, Py_ssize_t count, int delimiter, int quote, Grown *ends, Grown *lines, Py_ssize_t *open_at
) {
    const uint8_t mark = quote == NO_QUOTE ? '\n' : (uint8_t)quote, looked_for[4] = {'\n', mark, '\n', mark};
    uint8_t found[WINDOW];
    Py_ssize_t open = -1, second = -1; /* the quote that is open; the second of two, which was looked at already */
    for (Py_ssize_t window = 0; window < count; window += WINDOW) {
        const Py_ssize_t here = count - window < WINDOW ? count - window : WINDOW;
        marks(data + window, here, looked_for, found);
        for (Py_ssize_t eight = 0; eight < here; eight += 8) {
            while (any_of(found + eight)) {
                const int k = first_of(found + eight);
                const Py_ssize_t at = window + eight + k;
                found[eight + k] = 0;
                if (data[at] == '\n') {
                    if (!add(lines, at) || (open < 0 && !add(ends, at + 1))) return 0;
                } else if (at == second) {
                    continue;
                } else if (open < 0) {
                    if (begins(data, at, delimiter)) open = at;
                } else if (at + 1 < count && data[at + 1] == quote) {
                    second = at + 1;
                } else {
                    open = -1;
                }
            }
        }
    }
    *open_at = open;
    return 1;
}

static PyObject *ends(PyObject *module, PyObject *args) {
    Py_buffer data;
    int delimiter, quote;
    if (!PyArg_ParseTuple(args, "y*ii", &data, &delimiter, &quote)) return NULL;
    Grown records = {0}, lines = {0};
    Py_ssize_t open_at = -1;
    int made;
    Py_BEGIN_ALLOW_THREADS
    made = ends_of(data.buf, data.len, delimiter, quote, &records, &lines, &open_at);
    Py_END_ALLOW_THREADS
    PyObject *out = NULL;
    if (made) {
        const Py_ssize_t size = (Py_ssize_t)sizeof(int64_t);
        out = Py_BuildValue(
            "y#y#n", records.used ? (const char *)records.items : "", records.used * size,
            lines.used ? (const char *)lines.items : "", lines.used * size, open_at
        );
    } else {
        PyErr_NoMemory();
    }
    free(records.items), free(lines.items);
    PyBuffer_Release(&data);
    return out;
}

/* Look at the first letters of a field, behind blanks: bit 0 is set at `00`, `0x` and `-0`, bit 1 at a plus. */
static int odd_at(const uint8_t *data, Py_ssize_t at, Py_ssize_t count) {
    int out = 0;
    while (at < count && (data[at] == ' ' || data[at] == '\t')) at++;
    if (at == count) return 0;
    const int minus = data[at] == '-';
    if (data[at] == '+') out |= 2;
    if (data[at] == '+' || minus) at++;
    if (at == count || data[at] != '0') return out;
    const uint8_t after = at + 1 < count ? data[at + 1] : '\n';
    if ((after >= '0' && after <= '9') || (after | 32) == 'x' || (minus && after != '.')) out |= 1;
    return out;
}

static PyObject *odd(PyObject *module, PyObject *args) {
    Py_buffer data;
    int delimiter, quote, out = 0;
    if (!PyArg_ParseTuple(args, "y*ii", &data, &delimiter, &quote)) return NULL;
    const uint8_t *bytes = data.buf;
    const Py_ssize_t count = data.len;
    Py_BEGIN_ALLOW_THREADS
    const uint8_t looked_for[4] = {'\n', '\r', (uint8_t)delimiter, quote == NO_QUOTE ? '\n' : (uint8_t)quote};
    uint8_t found[WINDOW];
    out = odd_at(bytes, 0, count);
    for (Py_ssize_t window = 0; window < count && out != 3; window += WINDOW) {
        const Py_ssize_t here = count - window < WINDOW ? count - window : WINDOW;
        marks(bytes + window, here, looked_for, found);
        for (Py_ssize_t eight = 0; eight < here; eight += 8) {
            while (any_of(found + eight)) {
                const int k = first_of(found + eight);
                found[eight + k] = 0;
                out |= odd_at(bytes, window + eight + k + 1, count);
            }
        }
    }
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&data);
    return PyLong_FromLong(out);
}

static PyObject *line_ends(PyObject *module, PyObject *data_given) {
    Py_buffer data;
    if (PyObject_GetBuffer(data_given, &data, PyBUF_SIMPLE) < 0) return NULL;
    const uint8_t *at = data.buf, *end = at + data.len;
    Py_ssize_t out = 0;
    while (at < end) { /* counts of a byte are added sixteen or more together */
        const uint8_t *stop = end - at < 255 * 64 ? end : at + 255 * 64;
        uint8_t counts[64] = {0};
        for (; stop - at >= 64; at += 64)
            for (int k = 0; k < 64; k++) counts[k] += at[k] == '\n';
        for (int k = 0; k < 64; k++) out += counts[k];
        for (; stop - at < 64 && at < stop; at++) out += *at == '\n';
    }
    PyBuffer_Release(&data);
    return PyLong_FromSsize_t(out);
}

static inline const uint8_t *behind_blanks(const uint8_t *at, const uint8_t *end) {
    while (at < end && (*at == ' ' || *at == '\t')) at++;
    return at;
}

static inline const uint8_t *behind_any_blanks(const uint8_t *at, const uint8_t *end) {
    while (at < end && (*at == ' ' || *at == '\t' || *at == '\r')) at++;
    return at;
}

/* How many lines are not blank, and whether all begin with a brace, which up to 63 blanks may precede. */
static Py_ssize_t objects_of(const uint8_t *at, const uint8_t *end, int *plain) {
    Py_ssize_t out = 0;
    while (at < end) {
        const uint8_t *found = memchr(at, '\n', (size_t)(end - at)), *stop = found == NULL ? end : found;
        if (*at == '{') {
            out++;
        } else if (behind_any_blanks(at, stop) < stop) {
            const uint8_t *near = end - at < 64 ? end : at + 64, *first = behind_blanks(at, near);
            if (first == near || *first != '{') *plain = 0;
            out++;
        }
        at = stop + 1;
    }
    return out;
}

/* Whether an n follows a closing brace, as a null does that stands between two objects. */
static int stray_null(const uint8_t *at, const uint8_t *end) {
    while (at < end && (at = memchr(at, '}', (size_t)(end - at))) != NULL) {
        at = behind_any_blanks(at + 1, end);
        if (at < end && *at == 'n') return 1;
    }
    return 0;
}

static PyObject *objects(PyObject *module, PyObject *data_given) {
    Py_buffer data;
    if (PyObject_GetBuffer(data_given, &data, PyBUF_SIMPLE) < 0) return NULL;
    const uint8_t *begin = data.buf, *end = begin + data.len;
    int plain = 1;
    Py_ssize_t lines;
    Py_BEGIN_ALLOW_THREADS
    lines = objects_of(begin, end, &plain);
    plain = plain && !stray_null(begin, end);
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&data);
    return Py_BuildValue("nO", lines, plain ? Py_True : Py_False);
}

static PyMethodDef functions[] = {
    {"ends", ends, METH_VARARGS, "Where records end, where lines do, and the quote that is open at the end, or -1."},
    {"odd", odd, METH_VARARGS, "1 if a field may begin as `00`, `0x` or `-0` does, 2 if one may begin with a plus, 3 if both."},
    {"line_ends", line_ends, METH_O, "How many line ends there are."},
    {"objects", objects, METH_O, "How many lines are not blank; whether each begins as an object, and no null follows one."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_records", NULL, -1, functions, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__records(void) { return PyModule_Create(&definition); }
