/* Files mapped for reading that cannot end the process and know which of their blocks were verified.

   A mapped file that shrinks, or whose disk fails, raises SIGBUS at the next touch of what is gone. The handler
   here looks the address up among the mapped files; on a hit it puts zeros over the rest of that mapping (one mmap
   system call, no lock, no allocation), flags the file and returns, so that the reading instruction goes on. Whoever
   made something of the file asks `faulted` before it is passed on. Any other SIGBUS goes to the handler that was
   there before. The table that the handler reads has a fixed size and holds atomic words only; everything else is
   read and written under the interpreter's lock.

   What lies between the end of a file that shrank and the end of that page reads as zeros without any signal, so
   `faulted` also looks at the last byte that was not zero when the file was mapped: one read per file.

   A mapping may carry sums, one per block. `unverified` finds the blocks that rows touch and that nobody has
   verified yet: 10 to 20 ns per row, and none of the payload is read. Compiled rooms ask the same through `_mapped.h`.  */

#define _GNU_SOURCE
#include "_mapped.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define SLOTS 65536 /* the kernel's own limit of mappings is 65,530 */

typedef struct {
    _Atomic uintptr_t start; /* 0: free */
    _Atomic size_t length;   /* whole pages */
    _Atomic int faulted;
} Slot;

typedef struct {
    PyObject_HEAD
    uintptr_t address;
    Py_ssize_t size; /* of the file when it was mapped */
    int slot;        /* -1: none was free, so nothing guards this one */
    PyObject *path;
    uint64_t *sums; /* of each block; NULL: none are known */
    uint8_t *done;  /* of each block: 1 verified, 2 listed in this call */
    Py_ssize_t blocks, left;
    int shift; /* a block has 1 << shift bytes */
    Py_ssize_t tail;    /* the last byte that was not zero, or any of the last page */
    uint8_t tail_value; /* what it was */
    uint64_t touched;   /* when rows of it were last looked up; a file without sums always counts as touched */
} Mapped;

static Slot slots[SLOTS];
static _Atomic int used;   /* slots from here on were never taken */
static int next_free;
static size_t page;
static uint64_t moment; /* counted up by `now` */
static struct sigaction before;
#ifdef __linux__ /* so that the handler's look at it allocates nothing */
static __thread volatile int chaining __attribute__((tls_model("initial-exec"))); /* this thread is in `before` */
#else
static __thread volatile int chaining;
#endif

static PyTypeObject *mapped_type;
static Mapped **sorted; /* live files by address */
static Py_ssize_t sorted_count, sorted_room;

/* ---- the handler */

static void chain(int number, siginfo_t *info, void *context) {
    const int detailed = (before.sa_flags & SA_SIGINFO) != 0;
    if (!chaining && (detailed || (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN))) {
        chaining = 1;
        if (detailed)
            before.sa_sigaction(number, info, context);
        else
            before.sa_handler(number);
        chaining = 0;
        return;
    }
    signal(number, SIG_DFL); /* what faulted faults again when this returns, and ends the process as it would have */
    if (info->si_code <= 0) raise(number);
}

static void on_bus(int number, siginfo_t *info, void *context) {
    const int error = errno;
    const uintptr_t at = (uintptr_t)info->si_addr;
    const int count = info->si_code > 0 ? atomic_load(&used) : 0; /* else a process sent it: no address */
    for (int i = 0; i < count; i++) {
        const uintptr_t start = atomic_load(&slots[i].start);
        const size_t length = atomic_load(&slots[i].length);
        if (start == 0 || at < start || at - start >= length) continue;
        const uintptr_t from = at & ~(uintptr_t)(page - 1);
        const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE;
        if (mmap((void *)from, start + length - from, PROT_READ, flags, -1, 0) == MAP_FAILED) break;
        atomic_store(&slots[i].faulted, 1);
        errno = error;
        return;
    }
    errno = error;
    chain(number, info, context);
}

static int install(void) {
    struct sigaction now;
    if (sigaction(SIGBUS, NULL, &now) != 0) return -1;
    if ((now.sa_flags & SA_SIGINFO) && now.sa_sigaction == on_bus) return 0;
    struct sigaction ours;
    memset(&ours, 0, sizeof ours);
    ours.sa_sigaction = on_bus;
    ours.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    sigemptyset(&ours.sa_mask);
    before = now; /* somebody came after us, or this is the first time: faults that are not ours are theirs */
    return sigaction(SIGBUS, &ours, NULL);
}

/* ---- the tables */

static int take_slot(uintptr_t start, size_t length) {
    for (int tried = 0; tried < SLOTS; tried++) {
        const int i = (next_free + tried) % SLOTS;
        if (atomic_load(&slots[i].start) != 0) continue;
        atomic_store(&slots[i].faulted, 0);
        atomic_store(&slots[i].length, length);
        atomic_store(&slots[i].start, start);
        if (i >= atomic_load(&used)) atomic_store(&used, i + 1);
        next_free = i + 1;
        return i;
    }
    return -1;
}

static void drop_slot(int i) {
    atomic_store(&slots[i].start, 0);
    if (i < next_free) next_free = i;
}

/* The place of the first live file that begins after an address. */
static Py_ssize_t place_after(uintptr_t at) {
    Py_ssize_t low = 0, high = sorted_count;
    while (low < high) {
        const Py_ssize_t middle = low + (high - low) / 2;
        if (sorted[middle]->address <= at)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static int enter(Mapped *self) {
    if (sorted_count == sorted_room) {
        const Py_ssize_t room = sorted_room ? 2 * sorted_room : 64;
        Mapped **grown = PyMem_Realloc(sorted, room * sizeof *sorted);
        if (grown == NULL) {
            PyErr_NoMemory();
            return -1;
        }
        sorted = grown, sorted_room = room;
    }
    const Py_ssize_t at = place_after(self->address);
    memmove(sorted + at + 1, sorted + at, (sorted_count - at) * sizeof *sorted);
    sorted[at] = self, sorted_count++;
    return 0;
}

static void leave(Mapped *self) {
    const Py_ssize_t at = place_after(self->address) - 1;
    if (at < 0 || sorted[at] != self) return;
    memmove(sorted + at, sorted + at + 1, (sorted_count - at - 1) * sizeof *sorted);
    sorted_count--;
}

/* ---- Mapped */

static PyObject *mapped_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"path", NULL};
    PyObject *path = NULL;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "U", names, &path)) return NULL;
    PyObject *encoded = PyUnicode_EncodeFSDefault(path);
    if (encoded == NULL) return NULL;
    const char *name = PyBytes_AsString(encoded);
    struct stat facts;
    void *memory = NULL;
    int failed = 0;
    Py_BEGIN_ALLOW_THREADS
    const int handle = open(name, O_RDONLY | O_CLOEXEC);
    failed = handle < 0 || fstat(handle, &facts) != 0 ? errno : 0;
    if (!failed && facts.st_size > 0) {
        memory = mmap(NULL, (size_t)facts.st_size, PROT_READ, MAP_SHARED, handle, 0);
        if (memory == MAP_FAILED) failed = errno;
    }
    if (handle >= 0) close(handle); /* the mapping stays; descriptors are few */
    Py_END_ALLOW_THREADS
    Py_DECREF(encoded);
    if (failed) {
        errno = failed;
        return PyErr_SetFromErrnoWithFilenameObject(PyExc_OSError, path);
    }
    Mapped *self = (Mapped *)PyType_GenericAlloc(type, 0);
    if (self == NULL) {
        if (memory != NULL) munmap(memory, (size_t)facts.st_size);
        return NULL;
    }
    self->address = (uintptr_t)memory;
    self->size = (Py_ssize_t)facts.st_size;
    self->slot = -1;
    self->path = Py_NewRef(path);
    self->touched = UINT64_MAX;
    if (memory != NULL) {
        const uint8_t *bytes = memory;
        const Py_ssize_t last = (self->size - 1) & ~(Py_ssize_t)(page - 1);
        self->tail = self->size - 1;
        if (install() == 0) self->slot = take_slot(self->address, ((size_t)self->size + page - 1) / page * page);
        if (enter(self) != 0) {
            Py_DECREF(self);
            return NULL;
        }
        while (self->tail > last && bytes[self->tail] == 0) self->tail--;
        self->tail_value = bytes[self->tail];
    }
    return (PyObject *)self;
}

static void mapped_dealloc(Mapped *self) {
    if (self->address != 0) {
        leave(self);
        if (self->slot >= 0) drop_slot(self->slot);
        munmap((void *)self->address, (size_t)self->size);
    }
    PyMem_Free(self->sums);
    PyMem_Free(self->done);
    Py_XDECREF(self->path);
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    PyObject_Free(self);
    Py_DECREF(type); /* an instance holds its type */
}

static int mapped_buffer(Mapped *self, Py_buffer *view, int flags) {
    static char nothing;
    void *data = self->address ? (void *)self->address : &nothing;
    return PyBuffer_FillInfo(view, (PyObject *)self, data, self->size, 1, flags);
}

static PyObject *mapped_expect(Mapped *self, PyObject *args) {
    Py_buffer sums;
    int shift;
    if (!PyArg_ParseTuple(args, "y*i", &sums, &shift)) return NULL;
    const Py_ssize_t blocks = sums.len / (Py_ssize_t)sizeof(uint64_t);
    if (shift < 9 || shift > 30 || sums.len % sizeof(uint64_t) || self->sums != NULL ||
        blocks != (self->size >> shift) + ((self->size & (((Py_ssize_t)1 << shift) - 1)) != 0)) {
        PyBuffer_Release(&sums);
        return PyErr_Format(PyExc_ValueError, "%zd sums for %zd bytes", blocks, self->size);
    }
    uint64_t *copied = PyMem_Malloc(sums.len + 1);
    uint8_t *done = PyMem_Calloc(blocks + 1, 1);
    if (copied == NULL || done == NULL) {
        PyMem_Free(copied);
        PyMem_Free(done);
        PyBuffer_Release(&sums);
        return PyErr_NoMemory();
    }
    memcpy(copied, sums.buf, sums.len);
    PyBuffer_Release(&sums);
    self->sums = copied, self->done = done, self->blocks = self->left = blocks, self->shift = shift;
    self->touched = 0;
    Py_RETURN_NONE;
}

static int good_block(Mapped *self, Py_ssize_t block) {
    if (block >= 0 && block < self->blocks) return 1;
    PyErr_Format(PyExc_IndexError, "block %zd of %zd", block, self->blocks);
    return 0;
}

static PyObject *mapped_block(Mapped *self, PyObject *arg) {
    const Py_ssize_t block = PyLong_AsSsize_t(arg);
    if ((block == -1 && PyErr_Occurred()) || !good_block(self, block)) return NULL;
    const Py_ssize_t start = block << self->shift, stop = start + ((Py_ssize_t)1 << self->shift);
    return Py_BuildValue("nnK", start, stop < self->size ? stop : self->size, (unsigned long long)self->sums[block]);
}

static PyObject *mapped_mark(Mapped *self, PyObject *arg) {
    const Py_ssize_t block = PyLong_AsSsize_t(arg);
    if ((block == -1 && PyErr_Occurred()) || !good_block(self, block)) return NULL;
    if (self->done[block] != 1) self->done[block] = 1, self->left--;
    Py_RETURN_NONE;
}

static PyObject *mapped_address(Mapped *self, void *unused) { return PyLong_FromSize_t(self->address); }
static PyObject *mapped_size(Mapped *self, void *unused) { return PyLong_FromSsize_t(self->size); }
static PyObject *mapped_left(Mapped *self, void *unused) { return PyLong_FromSsize_t(self->left); }
static PyObject *mapped_path(Mapped *self, void *unused) { return Py_NewRef(self->path); }

static PyMethodDef mapped_methods[] = {
    {"expect", (PyCFunction)mapped_expect, METH_VARARGS, "Say what each block has to sum to: uint64 sums, and log2 of a block's bytes."},
    {"block", (PyCFunction)mapped_block, METH_O, "Where a block begins and ends, and its sum."},
    {"mark", (PyCFunction)mapped_mark, METH_O, "Enter that a block was verified."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef mapped_getset[] = {
    {"address", (getter)mapped_address, NULL, "Of the first byte; 0 of an empty file.", NULL},
    {"size", (getter)mapped_size, NULL, "Bytes of the file when it was mapped.", NULL},
    {"left", (getter)mapped_left, NULL, "Blocks that have a sum and were not verified yet.", NULL},
    {"path", (getter)mapped_path, NULL, "Of the file.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot mapped_slots[] = {
    {Py_tp_doc, "A file mapped for reading, for as long as anything refers to it."},
    {Py_tp_new, mapped_new},
    {Py_tp_dealloc, mapped_dealloc},
    {Py_bf_getbuffer, mapped_buffer},
    {Py_tp_methods, mapped_methods},
    {Py_tp_getset, mapped_getset},
    {0, NULL},
};

static PyType_Spec mapped_spec = {
    .name = "spiral_stream.integrity._mapped.Mapped",
    .basicsize = sizeof(Mapped),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = mapped_slots,
};

/* ---- the functions */

static Mapped *holding(uintptr_t at) {
    const Py_ssize_t place = place_after(at) - 1;
    if (place < 0) return NULL;
    Mapped *found = sorted[place];
    return at - found->address < (size_t)found->size ? found : NULL;
}

/* The blocks that a row touches, as [first, past the last); empty where its file has nothing left to verify. `file` is that
   of the row before. */
static Mapped *blocks_of(Mapped *file, uint64_t at, int64_t bytes, Py_ssize_t *first, Py_ssize_t *end) {
    *first = *end = 0;
    if (bytes <= 0) return file;
    if (file == NULL || at - file->address >= (size_t)file->size) {
        file = holding(at);
        if (file != NULL && file->touched != UINT64_MAX) file->touched = moment;
    }
    if (file == NULL || file->left == 0) return file;
    const size_t from = at - file->address;
    *first = (Py_ssize_t)(from >> file->shift);
    *end = (Py_ssize_t)((from + (size_t)bytes - 1) >> file->shift) + 1;
    if (*end > file->blocks) *end = file->blocks;
    return file;
}

static PyObject *unverified(PyObject *module, PyObject *args) {
    Py_buffer addresses, sizes;
    if (!PyArg_ParseTuple(args, "y*y*", &addresses, &sizes)) return NULL;
    PyObject *out = PyList_New(0);
    const Py_ssize_t count = addresses.len / 8;
    const int alike = sizes.len == 8; /* one size for all */
    if (out != NULL && ((!alike && addresses.len != sizes.len) || addresses.len % 8)) {
        PyErr_SetString(PyExc_ValueError, "one size, or as many as addresses, 8 bytes each");
        Py_CLEAR(out);
    }
    const uint64_t *at = addresses.buf;
    const int64_t *size = sizes.buf;
    Mapped *file = NULL;
    for (Py_ssize_t i = 0; out != NULL && i < count; i++) {
        Py_ssize_t block, end;
        file = blocks_of(file, at[i], size[alike ? 0 : i], &block, &end);
        for (; block < end; block++) {
            if (file->done[block]) continue;
            PyObject *pair = Py_BuildValue("On", (PyObject *)file, block);
            const int failed = pair == NULL || PyList_Append(out, pair) != 0;
            Py_XDECREF(pair);
            if (failed) break;
            file->done[block] = 2;
        }
        if (PyErr_Occurred()) break;
    }
    for (Py_ssize_t i = 0; out != NULL && i < PyList_Size(out); i++) { /* verified is what `mark` says */
        PyObject *pair = PyList_GetItem(out, i);
        Mapped *listed = (Mapped *)PyTuple_GetItem(pair, 0);
        listed->done[PyLong_AsSsize_t(PyTuple_GetItem(pair, 1))] = 0;
    }
    if (PyErr_Occurred()) Py_CLEAR(out);
    PyBuffer_Release(&addresses);
    PyBuffer_Release(&sizes);
    return out;
}

/* ---- for other compiled rooms, as `_mapped.h` says */

static int rows_verified(const uint64_t *addresses, const int64_t *sizes, int alike, Py_ssize_t count) {
    Mapped *file = NULL;
    for (Py_ssize_t i = 0; i < count; i++) {
        Py_ssize_t block, end;
        file = blocks_of(file, addresses[i], sizes[alike ? 0 : i], &block, &end);
        for (; block < end; block++)
            if (file->done[block] != 1) return 0;
    }
    return 1;
}

static int files_verified(PyObject *files) {
    const Py_ssize_t count = PyTuple_Size(files);
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *each = PyTuple_GetItem(files, i);
        if (!Py_IS_TYPE(each, mapped_type)) return 0;
        Mapped *file = (Mapped *)each;
        if (file->left != 0) return 0;
        if (file->touched != UINT64_MAX) file->touched = moment;
    }
    return 1;
}

static const MappedFiles shared = {rows_verified, files_verified};

static PyObject *now(PyObject *module, PyObject *unused) { return PyLong_FromUnsignedLongLong(++moment); }

static PyObject *faulted(PyObject *module, PyObject *arg) {
    const uint64_t since = PyLong_AsUnsignedLongLong(arg);
    if (PyErr_Occurred()) return NULL;
    PyObject *out = PyList_New(0);
    for (Py_ssize_t i = 0; out != NULL && i < sorted_count; i++) {
        const Mapped *file = sorted[i];
        const int changed = file->touched >= since && /* this read comes first: it may be what faults */
                            ((const volatile uint8_t *)file->address)[file->tail] != file->tail_value;
        const int gone = file->slot >= 0 && atomic_load(&slots[file->slot].faulted);
        if (!changed && !gone) continue;
        if (PyList_Append(out, file->path) != 0) {
            Py_DECREF(out);
            return NULL;
        }
    }
    return out;
}

static PyMethodDef functions[] = {
    {"unverified", unverified, METH_VARARGS, "The blocks that rows touch and that were not verified yet, as (file, block)."},
    {"now", now, METH_NOARGS, "A moment, for `faulted`."},
    {"faulted", faulted, METH_O, "Paths of mapped files that could not be read wholly, of those touched since a moment."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_mapped", NULL, -1, functions, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__mapped(void) {
    page = (size_t)sysconf(_SC_PAGESIZE);
    PyObject *module = PyModule_Create(&definition), *type = PyType_FromSpec(&mapped_spec);
    PyObject *files = PyCapsule_New((void *)&shared, MAPPED_FILES, NULL);
    mapped_type = (PyTypeObject *)type;
    if (module == NULL || type == NULL || files == NULL || PyModule_AddType(module, mapped_type) != 0 ||
        PyModule_AddObjectRef(module, "files", files) != 0)
        Py_CLEAR(module);
    Py_XDECREF(files);
    return module; /* the type stays with `mapped_type` */
}
