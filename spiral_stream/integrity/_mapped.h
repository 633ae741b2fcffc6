/* What other compiled rooms ask of mapped files (`_mapped.c`), by a capsule of this name. With the interpreter's lock. */

#ifndef SPIRAL_MAPPED_H
#define SPIRAL_MAPPED_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

#define MAPPED_FILES "spiral_stream.integrity._mapped.files"

/* Both note that the files are read, for `faulted`. */
typedef struct {
  /* Whether every block that rows touch was verified; rows that lie in no file with sums pass. With `alike` all rows have
     the first size. */
  int (*rows_verified)(const uint64_t *addresses, const int64_t *sizes, int alike, Py_ssize_t count);
  /* Whether every block of all files of a tuple was verified. */
  int (*files_verified)(PyObject *files);
} MappedFiles;

#endif
