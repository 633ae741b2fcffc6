import numpy as np
from numpy.typing import NDArray

# Convert one box of each frame to packed RGB, without the GIL; ValueError names the first frame that does not fit.
def to_rgb(
    planes: NDArray[np.int64],  # [U, 3, 3] address, bytes from row to row, bytes of the plane
    forms: NDArray[
        np.int32
    ],  # [U, 7] height width shift_x shift_y bits kind (0 YUV, 1 gray, 2 NV12, 3 GBR) fields (0, 1)
    boxes: NDArray[np.int32],  # [U, 4] top left height width in the upright picture
    places: NDArray[np.int64],  # [U] where each box goes in out
    constants: NDArray[np.int32],  # [6] black luma red_v green_u green_v blue_u, the last five times 2^14
    out: NDArray[np.uint8],  # [n] rows of 3 * width bytes, box after box
    rotation: int,  # degrees clockwise that show the frames upright
    portable: bool = False,  # do not use AVX2
    /,
) -> None: ...

# What the units of a packet say: 1 it leaves something in a decoder that a flush does not remove, 2 it begins an IDR
# picture, before which nothing is referred to. length_size: bytes of a unit's length, 0 where there are start codes.
def look(packet: bytes | memoryview, length_size: int, /) -> int: ...
