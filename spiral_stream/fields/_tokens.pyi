import numpy as np
from numpy.typing import NDArray

def fill(
    specs: tuple[int, ...],  # of each of F fields: what it writes (`TokenFill`), its padding, bytes of its items
    outs_BT: tuple[NDArray[np.generic], ...],  # F
    signed: bool,
    near: bool,
    rows_B: int,
    width_T: int,
    addresses: NDArray[np.uint64],
    sizes: NDArray[np.int64],
    items: NDArray[np.uint8],
    rows: NDArray[np.int64] | None,  # None: piece i begins row i
    starts: NDArray[np.int64] | None,
    offsets: NDArray[np.int64] | None,  # None: every piece begins with its sequence
    lengths: NDArray[np.int64],
    numbers: NDArray[np.int64] | None,  # [S] of each piece, for segments; None counts them
    /,
) -> int: ...
def touch(
    addresses: NDArray[np.uint64], sizes: NDArray[np.int64], items: NDArray[np.uint8], most_bytes: int, /
) -> bool: ...
