"""The compiled rooms: pixel kernels, region decode, packing, guarded files. Everything else is in pyproject.toml."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "spiral_stream.transforms._pixels",
            sources=["spiral_stream/transforms/_pixels.c"],
            depends=["spiral_stream/transforms/_kernels.h"],
            # contracting a * b + c into one rounding would change weights and pixels between machines
            extra_compile_args=["-O3", "-std=c11", "-fno-strict-aliasing", "-ffp-contract=off"],
        ),
        Extension(
            "spiral_stream.decoders._region",
            sources=["spiral_stream/decoders/_region.c"],
            extra_compile_args=["-O2", "-std=gnu11"],
            libraries=["dl"],
        ),
        Extension(
            "spiral_stream.decoders._frames",
            sources=["spiral_stream/decoders/_frames.c"],
            extra_compile_args=["-O3", "-std=gnu11", "-fno-strict-aliasing"],
        ),
        Extension(
            "spiral_stream.batching._packing",
            sources=["spiral_stream/batching/_packing.c"],
            extra_compile_args=["-O2", "-std=gnu11"],
        ),
        Extension(
            "spiral_stream.fields._tokens",
            sources=["spiral_stream/fields/_tokens.c"],
            extra_compile_args=["-O3", "-std=c11"],
        ),
        Extension(
            "spiral_stream.integrity._mapped",
            sources=["spiral_stream/integrity/_mapped.c"],
            extra_compile_args=["-O2", "-std=gnu11"],
        ),
    ]
)
