import numpy as np
from numpy.typing import NDArray

def fill(
    kind: int,
    signed: bool,
    padding: int,
    rows_B: int,
    width_T: int,
    item_bytes: int,
    out_BT: NDArray[np.generic],
    addresses: NDArray[np.uint64],
    sizes: NDArray[np.int64],
    items: NDArray[np.uint8],
    rows: NDArray[np.int64],
    starts: NDArray[np.int64],
    offsets: NDArray[np.int64],
    lengths: NDArray[np.int64],
    near: bool = False,
    numbers: NDArray[np.int64] | None = None,  # [S] of each piece, for segments; None counts them
    /,
) -> int: ...
def touch(addresses: NDArray[np.uint64], sizes: NDArray[np.int64], items: NDArray[np.uint8], /) -> None: ...
