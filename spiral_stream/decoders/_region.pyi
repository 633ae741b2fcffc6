import numpy as np
from numpy.typing import NDArray

def open_library(path: str, /) -> bool: ...
def sizes(images: list[memoryview], heights_B: NDArray[np.int32], widths_B: NDArray[np.int32], /) -> None: ...
def decode_regions(
    images: list[memoryview],
    boxes_B4: NDArray[np.int32],
    places: NDArray[np.int64],
    scratch: NDArray[np.uint8],
    origins_B: NDArray[np.uint64],
    strides_B: NDArray[np.int64],
    /,
) -> int: ...
