import numpy as np
from numpy.typing import NDArray

# Write the row and the first place of each sample, taken in turn; gives the number of rows.
def fit(
    lengths: NDArray[np.int64],  # [S], each in [0, width]
    width: int,  # places of a row, below 2**24
    segments: int,  # samples that a row takes; 0: any number
    best: bool,  # into the fullest row where it fits, else into the first
    rows: NDArray[np.int64],  # [S]
    starts: NDArray[np.int64],  # [S]
    /,
) -> int: ...

# Lay the samples end to end and write the pieces that the ends of rows cut; gives the number of pieces.
def cut(
    lengths: NDArray[np.int64],  # [S], each in [0, 2**40]
    width: int,
    segments: int,  # pieces that a row takes; 0: any number
    samples: NDArray[np.int64],  # [P] each, P at least S + lengths.sum() // width: index of the sample
    rows: NDArray[np.int64],
    starts: NDArray[np.int64],
    offsets: NDArray[np.int64],
    sizes: NDArray[np.int64],
    /,
) -> int: ...
