/* What a compiled room may use on the machine that it is built for.

   HAVE_X86 means that the AVX2 paths are compiled; each is still chosen at run time, by the CPU. A build with
   SPIRAL_PORTABLE leaves out everything that is not plain C: the AVX2 paths, and the libjpeg-turbo that region decode
   loads. Its pixels are the same bits (tests/stream/test_portable_build.py).  */

#ifndef SPIRAL_BUILD_H
#define SPIRAL_BUILD_H

#if defined(__x86_64__) && defined(__GNUC__) && !defined(SPIRAL_PORTABLE)
#define HAVE_X86 1
#include <immintrin.h>
#endif

#endif
