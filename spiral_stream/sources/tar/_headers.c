/* The headers of a tar in which nothing is unusual, without a call of Python's for each member.

   `walk` goes from header to header, a page at a time: members that are regular files, folders (passed over), and headers of
   pax or GNU that say a member's long name, or what nobody asks for, such as its times. It returns None at anything
   else (links, sparse files, sizes that are no octal digits, a sum that is wrong, a tar that is cut short), and at whatever it
   cannot be sure of: `headers.py` reads such a tar, and says what is wrong with it.

   `gather` joins the bytes of members.  */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BLOCK 512
#define WINDOW 4096            /* bytes of one read: a header, a small member, and the header after it */
#define LONGEST (1 << 16)      /* bytes of a long name, or of the records of one member */
#define END (20 * BLOCK)       /* writers fill the end of a tar with zeros up to a multiple of this */
#define LARGEST (INT64_C(1) << 60)

typedef struct {
    char *bytes;
    Py_ssize_t used, room;
} Grown;

typedef struct {
    int file;
    int64_t at; /* of the window */
    Py_ssize_t count;
    char window[WINDOW];
    char extra[LONGEST]; /* of a header that describes the next */
} Reader;

enum { DONE, ODD, FULL };

static int add(Grown *out, const void *data, Py_ssize_t count) {
    if (out->used + count > out->room) {
        Py_ssize_t room = out->room ? 2 * out->room : 1 << 16;
        while (room < out->used + count) room *= 2;
        char *bytes = realloc(out->bytes, (size_t)room);
        if (bytes == NULL) return 0;
        out->bytes = bytes, out->room = room;
    }
    memcpy(out->bytes + out->used, data, (size_t)count);
    out->used += count;
    return 1;
}

/* As many bytes as there are, up to `count`; negative where the file cannot be read. */
static Py_ssize_t read_all(int file, char *to, Py_ssize_t count, int64_t at) {
    Py_ssize_t got = 0;
    while (got < count) {
        const ssize_t more = pread(file, to + got, (size_t)(count - got), (off_t)(at + got));
        if (more < 0 && errno == EINTR) continue;
        if (more < 0) return -1;
        if (more == 0) break;
        got += more;
    }
    return got;
}

/* A block of the file; NULL where it ends before, or cannot be read. */
static const char *block_at(Reader *reader, int64_t at) {
    if (at < reader->at || at + BLOCK > reader->at + reader->count) {
        reader->count = read_all(reader->file, reader->window, WINDOW, at);
        reader->at = at;
        if (reader->count < BLOCK) return NULL;
    }
    return reader->window + (at - reader->at);
}

/* A number in octal digits, with blanks around it; -1 for anything else. */
static int64_t octal(const char *field, int size) {
    int64_t value = 0;
    int i = 0, digits = 0;
    while (i < size && field[i] == ' ') i++;
    for (; i < size && field[i] >= '0' && field[i] <= '7'; i++, digits++) value = value * 8 + (field[i] - '0');
    for (; i < size; i++)
        if (field[i] != ' ' && field[i] != 0) return -1;
    return digits ? value : -1;
}

static int has_sum(const char *block) {
    int64_t sum = 8 * ' ';
    for (int i = 0; i < BLOCK; i++)
        if (i < 148 || i >= 156) sum += (unsigned char)block[i];
    return octal(block + 148, 8) == sum;
}

/* The name that the records of pax give, if any; ODD where they say more of where the bytes lie. */
static int records(const char *data, Py_ssize_t size, Grown *name) {
    Py_ssize_t at = 0;
    while (at < size && data[at] != 0) {
        Py_ssize_t length = 0, i = at;
        for (; i < size && data[i] >= '0' && data[i] <= '9' && length < LONGEST; i++) length = length * 10 + (data[i] - '0');
        if (i == at || i >= size || data[i] != ' ' || length > size - at || length < i - at + 4) return ODD;
        const char *key = data + i + 1, *last = data + at + length - 1;
        const char *equals = memchr(key, '=', (size_t)(last - key));
        if (*last != '\n' || equals == NULL) return ODD;
        const Py_ssize_t letters = equals - key;
        if ((letters == 4 && memcmp(key, "size", 4) == 0) || (letters >= 11 && memcmp(key, "GNU.sparse.", 11) == 0)) return ODD;
        if (letters == 4 && memcmp(key, "path", 4) == 0) {
            name->used = 0;
            if (equals + 1 == last || memchr(equals, 0, (size_t)(last - equals)) != NULL) return ODD;
            if (!add(name, equals + 1, last - equals - 1)) return FULL;
        }
        at += length;
    }
    for (; at < size; at++)
        if (data[at] != 0) return ODD;
    return DONE;
}

/* The name in a header of GNU tar. */
static int long_name(const char *data, Py_ssize_t size, Grown *name) {
    const Py_ssize_t letters = (Py_ssize_t)strnlen(data, (size_t)size);
    if (letters == 0) return ODD;
    return add(name, data, letters) ? DONE : FULL;
}

static int header_name(const char *block, Grown *name) {
    if (memcmp(block + 257, "ustar", 6) == 0 && block[345] != 0) { /* GNU keeps times where POSIX has a prefix */
        if (!add(name, block + 345, (Py_ssize_t)strnlen(block + 345, 155)) || !add(name, "/", 1)) return FULL;
    }
    return add(name, block, (Py_ssize_t)strnlen(block, 100)) ? DONE : FULL;
}

static int64_t padded(int64_t size) { return (size + BLOCK - 1) / BLOCK * BLOCK; }

static int walked(Reader *reader, int64_t size, int64_t most, Grown *names, Grown *ends, Grown *starts, Grown *sizes) {
    static const char zeros[BLOCK];
    Grown name = {0};
    int found = DONE, described = 0;
    for (int64_t at = 0; found == DONE && sizes->used / 8 != most;) {
        const char *block = block_at(reader, at);
        if (block == NULL) {
            found = ODD;
            break;
        }
        if (memcmp(block, zeros, BLOCK) == 0) {
            char rest[END];
            const Py_ssize_t count = read_all(reader->file, rest, END, at + BLOCK);
            if (count < 0 || described) found = ODD;
            for (Py_ssize_t i = 0; i < count; i++)
                if (rest[i] != 0) found = ODD; /* it goes on after its end */
            break;
        }
        const char kind = block[156];
        const int64_t bytes = octal(block + 124, 12);
        const int is_file = kind == '0' || kind == 0 || kind == '7';
        if (bytes < 0 || bytes > LARGEST || !has_sum(block)) {
            found = ODD;
        } else if (kind == 'x' || kind == 'X' || kind == 'L') {
            if (described || bytes > LONGEST || read_all(reader->file, reader->extra, bytes, at + BLOCK) < bytes)
                found = ODD;
            else
                found = (kind == 'L' ? long_name : records)(reader->extra, bytes, &name);
            described = 1;
            at += BLOCK + padded(bytes);
            continue;
        }
        if (found == DONE && name.used == 0) found = header_name(block, &name);
        if (found != DONE) break;
        described = 0;
        if (kind == '5' || (is_file && name.used && name.bytes[name.used - 1] == '/')) {
            name.used = 0;
            at += BLOCK;
            continue;
        }
        const int64_t start = at + BLOCK, end = names->used + name.used;
        if (!is_file || start + bytes > size) {
            found = ODD;
            break;
        }
        if (!add(names, name.bytes, name.used) || !add(ends, &end, 8) || !add(starts, &start, 8) || !add(sizes, &bytes, 8)) found = FULL;
        name.used = 0;
        at = start + padded(bytes);
    }
    free(name.bytes);
    return found;
}

static PyObject *walk(PyObject *module, PyObject *args) {
    int file, found;
    long long size, most = -1;
    if (!PyArg_ParseTuple(args, "iL|L", &file, &size, &most)) return NULL;
    Grown names = {0}, ends = {0}, starts = {0}, sizes = {0};
    Reader *reader = calloc(1, sizeof *reader);
    Py_BEGIN_ALLOW_THREADS
    found = FULL;
    if (reader != NULL) {
        reader->file = file;
        found = walked(reader, size, most, &names, &ends, &starts, &sizes);
    }
    Py_END_ALLOW_THREADS
    PyObject *out = NULL;
    if (found == DONE)
        out = Py_BuildValue("y#y#y#y#", names.bytes ? names.bytes : "", names.used, ends.bytes ? ends.bytes : "", ends.used,
                            starts.bytes ? starts.bytes : "", starts.used, sizes.bytes ? sizes.bytes : "", sizes.used);
    else if (found == FULL)
        out = PyErr_NoMemory();
    else
        out = Py_NewRef(Py_None);
    free(reader);
    free(names.bytes);
    free(ends.bytes);
    free(starts.bytes);
    free(sizes.bytes);
    return out;
}

static PyObject *gather(PyObject *module, PyObject *args) {
    int file, failed = 0;
    Py_buffer starts, sizes;
    if (!PyArg_ParseTuple(args, "iy*y*", &file, &starts, &sizes)) return NULL;
    const int64_t *start = starts.buf, *size = sizes.buf;
    const Py_ssize_t count = starts.len / 8;
    int64_t total = 0;
    int legal = starts.len == sizes.len && starts.len % 8 == 0;
    for (Py_ssize_t i = 0; legal && i < count; i++) {
        legal = size[i] >= 0 && start[i] >= 0 && size[i] <= LARGEST - total;
        if (legal) total += size[i];
    }
    PyObject *out = legal ? PyBytes_FromStringAndSize(NULL, (Py_ssize_t)total) : NULL;
    if (!legal) PyErr_SetString(PyExc_ValueError, "starts and sizes of members, 8 bytes each");
    if (out != NULL) {
        char *to = PyBytes_AsString(out);
        Py_BEGIN_ALLOW_THREADS
        for (Py_ssize_t i = 0; i < count && !failed; i++) {
            failed = read_all(file, to, (Py_ssize_t)size[i], start[i]) < size[i];
            to += size[i];
        }
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&starts);
    PyBuffer_Release(&sizes);
    if (failed) {
        Py_DECREF(out);
        Py_RETURN_NONE;
    }
    return out;
}

static PyMethodDef functions[] = {
    {"walk", walk, METH_VARARGS, "Names, their ends, starts and sizes of the first members, or of all; None where something is unusual."},
    {"gather", gather, METH_VARARGS, "The bytes of members, one after the other; None where they cannot be read."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_headers", NULL, -1, functions, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__headers(void) { return PyModule_Create(&definition); }
