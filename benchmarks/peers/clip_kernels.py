"""The ways to decode one clip that the loaders may be given, by name."""

from collections.abc import Callable
from functools import partial

import numpy as np

from benchmarks.peers.segments import Segment

Kernel = Callable[[Segment, np.ndarray], object]
PACKAGES = {
    "pyav": ("av", "opencv-python-headless"),
    "torchcodec": ("torchcodec", "opencv-python-headless"),
    "spdl": ("spdl_io",),
}


def of_kernel(name: str) -> tuple[str, ...]:
    """The packages whose versions a report names."""
    return PACKAGES[name.partition("-")[0]]


def kernel(name: str) -> Kernel:
    """``pyav-<swscale|opencv>``, ``torchcodec-<exact|approximate|mappings>-<decoder|opencv>`` or ``spdl``."""
    library, *how = name.split("-")
    if library == "pyav":
        from benchmarks.peers.pyav_clip import INTO

        return INTO[how[0]]
    if library == "torchcodec":
        from benchmarks.peers import torchcodec_clip

        return partial(torchcodec_clip.into, mode=how[0], resize=how[1])
    from benchmarks.peers import spdl_clip

    return spdl_clip.into
