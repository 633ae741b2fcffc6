import numpy as np
from numpy.typing import NDArray

def open_library(path: str, /) -> bool: ...
def sizes(
    addresses: NDArray[np.uint64], lengths: NDArray[np.int64], heights: NDArray[np.int32], widths: NDArray[np.int32], /
) -> None: ...
def decode_regions(
    addresses: NDArray[np.uint64],
    lengths: NDArray[np.int64],
    boxes_B4: NDArray[np.int32],
    places: NDArray[np.int64],
    scratch: NDArray[np.uint8],
    origins: NDArray[np.uint64],
    strides: NDArray[np.int64],
    /,
) -> int: ...
