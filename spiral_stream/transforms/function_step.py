"""A user's function in a chain of image transforms: how it is recognized, called and checked."""

from collections.abc import Callable
from inspect import Parameter, signature
from typing import Any, Final

import numpy as np
import pyarrow as pa

from spiral_stream.errors import DataError, PlanError, shown
from spiral_stream.transforms.image.pixel_transform import Pixels
from spiral_stream.transforms.python import Function

NAME: Final = "function"  # of the random numbers
_PIXELS: Final = "pixels"
_TWO: Final = 2


def wrapped(function: Callable[..., Any]) -> Function:
    """Return a function of one image as a value of a plan. With a second parameter it is random.

    Raises:
        PlanError: it takes no array, or more than an array and a generator.
    """
    try:
        given = signature(function).parameters.values()
    except (TypeError, ValueError) as error:
        msg = f"images: the parameters of {shown(function)} cannot be read. Give a Python function of a uint8 [H, W, 3] array"
        raise PlanError(msg) from error
    needed = [
        each
        for each in given
        if each.default is Parameter.empty and each.kind in (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    ]
    if len(needed) not in (1, _TWO):
        msg = (
            f"images: {shown(function)} has {len(needed)} parameters without a default. Give a function of a uint8 [H, W, 3] "
            "array, or of that and a NumPy generator"
        )
        raise PlanError(msg)
    return Function(function, (_PIXELS,), pa.uint8(), batched=False, random=len(needed) == _TWO)


def call(function: Function, pixels: Pixels, key: np.uint64) -> Pixels:
    """Call a user's function with one image and, if it is random, a generator that belongs to the sample.

    Raises:
        DataError: it fails, or returns something else than an array of this type and number of channels.
    """
    drawn = (np.random.Generator(np.random.Philox(key=int(key))),) if function.random else ()
    try:
        out = function.function(pixels, *drawn)
    except Exception as error:
        msg = f"images: function {function.name} failed: {type(error).__name__}: {error!s:.300}"
        raise DataError(msg) from error
    wanted = pixels.shape[2]
    if not isinstance(out, np.ndarray) or out.dtype != pixels.dtype or out.shape[2:] != (wanted,) or 0 in out.shape:
        found = f"{out.dtype} {out.shape}" if isinstance(out, np.ndarray) else type(out).__name__
        msg = f"images: function {function.name} returned {found}. Return an array {pixels.dtype} [H, W, {wanted}]"
        raise DataError(msg)
    return np.ascontiguousarray(out)
