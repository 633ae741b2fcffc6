import numpy as np
from numpy.typing import NDArray

# Images are packed uint8 RGB, C-contiguous. Each function raises ValueError for what does not fit.

# Adjust colours in place, one after another.
def adjust(
    pixels: NDArray[np.uint8],  # [H, W, 3]
    kinds: NDArray[np.int32],  # [N] 0 brightness, 1 contrast, 2 saturation, 3 hue, 4 gray; N at most 8
    factors: NDArray[np.float32],  # [N] as torchvision's; hue from -0.5 to 0.5, of gray unused
) -> None: ...

# Blur with mirrored borders, across and then down.
def blur(
    source: NDArray[np.uint8],  # [H, W, 3]
    target: NDArray[np.uint8],  # [H, W, 3]
    height: int,
    width: int,
    across: NDArray[np.float32],  # [X] symmetric weights, X odd and below 2 * W
    down: NDArray[np.float32],  # [Y] likewise
) -> None: ...

# Count how often each byte stands in each channel.
def count(
    pixels: NDArray[np.uint8],  # [H, W, 3]
    counts: NDArray[np.int64],  # [3, 256]
) -> None: ...

# Replace each byte by the entry of its channel's table, in place.
def look_up(
    pixels: NDArray[np.uint8],  # [H, W, 3]
    table: NDArray[np.uint8],  # [3, 256]
) -> None: ...

# Blend with the 3 x 3 neighbourhood; the border stays.
def sharpen(
    source: NDArray[np.uint8],  # [H, W, 3]
    target: NDArray[np.uint8],  # [H, W, 3]
    height: int,
    width: int,
    factor: float,  # 1 changes nothing, above it sharpens
) -> None: ...

# Sample the source, for each place of the target at (matrix @ place), both counted from the image's centre.
def warp(
    source: NDArray[np.generic],  # [H, W, C] of any type
    target: NDArray[np.generic],  # likewise
    height: int,
    width: int,
    matrix: NDArray[np.float32],  # [6] rows of (x, y, 1)
    fill: bytes,  # of one pixel, for places outside
    linear: bool,  # bilinear, for uint8 RGB; else the nearest pixel
) -> None: ...
