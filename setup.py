"""The compiled rooms: pixel kernels, region decode, packing, guarded files, headers of tars. The rest is in pyproject.toml.

They use CPython's stable ABI of 3.11, so one wheel serves every later version. ``SPIRAL_PORTABLE=1`` in the
environment builds them in plain C: no AVX2 path, and no libjpeg-turbo to load. Batches are the same bits.
"""

import os

from setuptools import Extension, setup

ABI = "0x030B0000"  # CPython 3.11
PORTABLE = os.environ.get("SPIRAL_PORTABLE", "0") not in {"", "0"}


def room(name: str, *flags: str, depends: tuple[str, ...] = (), libraries: tuple[str, ...] = ()) -> Extension:
    """One compiled room, named as it is imported."""
    return Extension(
        name,
        sources=[f"{name.replace('.', '/')}.c"],
        depends=["spiral_stream/_build.h", *depends],
        define_macros=[("Py_LIMITED_API", ABI), *([("SPIRAL_PORTABLE", "1")] if PORTABLE else [])],
        extra_compile_args=list(flags),
        libraries=[] if PORTABLE else list(libraries),
        py_limited_api=True,
    )


setup(
    ext_modules=[
        room(
            "spiral_stream.transforms._pixels",
            # contracting a * b + c into one rounding would change weights and pixels between machines
            *("-O3", "-std=c11", "-fno-strict-aliasing", "-ffp-contract=off"),
            depends=("spiral_stream/transforms/_kernels.h",),
        ),
        room(
            "spiral_stream.transforms._augment",
            # without trapping comparisons, selections become blends; no value changes
            *("-O3", "-std=c11", "-fno-strict-aliasing", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math"),
        ),
        room("spiral_stream.decoders._region", "-O2", "-std=gnu11", libraries=("dl",)),
        room("spiral_stream.decoders._entropy", "-O3", "-std=gnu11"),
        room("spiral_stream.decoders._frames", "-O3", "-std=gnu11", "-fno-strict-aliasing"),
        room("spiral_stream.batching._packing", "-O3", "-std=gnu11"),
        room("spiral_stream.fields._tokens", "-O3", "-std=c11"),
        room("spiral_stream.runtime._slots", "-O2", "-std=gnu11"),
        room("spiral_stream.sampling._permutation", "-O3", "-std=gnu11"),
        room("spiral_stream.derived._gather", "-O3", "-std=gnu11"),
        room("spiral_stream.derived._rows", "-O3", "-std=gnu11", depends=("spiral_stream/integrity/_mapped.h",)),
        room("spiral_stream.relational._select", "-O3", "-std=gnu11"),
        room("spiral_stream.derived._runs", "-O3", "-std=gnu11"),
        room("spiral_stream.sources.tar._headers", "-O2", "-std=gnu11"),
        room("spiral_stream.sources.text._records", "-O3", "-std=gnu11"),
        room("spiral_stream.integrity._mapped", "-O2", "-std=gnu11", depends=("spiral_stream/integrity/_mapped.h",)),
        room("spiral_stream.transforms.text._encode", "-O3", "-std=gnu11"),
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
