from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

ACCELERATED: Final[bool]  # whether this CPU runs the AVX2 path

# Crop, resize, cut, flip and convert; ValueError names the first image that does not fit.
def render(
    addresses: NDArray[np.uint64],  # [B] where each image begins
    strides: NDArray[np.int64],  # [B] bytes from row to row
    heights: NDArray[np.int32],  # [B]
    widths: NDArray[np.int32],  # [B]
    boxes: NDArray[np.int32],  # [B, 9] top left crop_h crop_w resized_h resized_w window_top window_left flip
    out: NDArray[np.generic],  # [B, 3, out_h, out_w] or [B, out_h, out_w, 3]
    out_h: int,
    out_w: int,
    item_size: int,  # 1 writes bytes, 2 and 4 write entries of the table
    channels_first: bool,
    table: NDArray[np.generic],  # [3, 256] entries of item_size; empty for item_size 1
    constants: NDArray[np.float32],  # [7] scale, mean, std: the arithmetic that made the table
    portable: bool = False,  # do not use AVX2
    cubic: bool = False,  # resize by the cubic filter, not by the triangle
) -> None: ...

# Write where the pixels of each [H, W, 3] image lie; ValueError if they are not packed uint8.
def locate(
    images: Sequence[NDArray[np.uint8]],
    addresses: NDArray[np.uint64],
    strides: NDArray[np.int64],
    heights: NDArray[np.int32],
    widths: NDArray[np.int32],
) -> None: ...

# Resize a whole [H, W, 3] image into another, bilinear and antialiased.
def resize(source: NDArray[np.uint8], target: NDArray[np.uint8]) -> None: ...
