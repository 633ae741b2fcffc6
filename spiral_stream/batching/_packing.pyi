import numpy as np
from numpy.typing import NDArray

# Write the row and the first places of each sample, taken in turn; gives the number of rows.
def fit(
    lengths: NDArray[np.int64],  # [C, S], each in [0, width]
    widths: NDArray[np.int64],  # [C], at most 16: places of a row, below 2**24
    rows: NDArray[np.int64],  # [S]
    starts: NDArray[np.int64],  # [C, S]
    segments: int,  # samples that a row takes; 0: any number
    best: bool,  # into the fullest row where it fits, else into the first
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

# Write the ends of the longest runs of samples that keep to every limit; gives the number of runs.
def run_ends(
    lengths: NDArray[np.int64],  # [S]
    costs: NDArray[np.int64],  # [A, S]
    limits: NDArray[np.int64],  # [A]: most of each cost
    ends: NDArray[np.int64],  # [S]
    batch_size: int,  # most samples; -1: any number
    multiple: int,  # a row's width is a multiple of it
    max_tokens: int,  # -1: any number
    padded: bool,  # whether tokens are rows times width, or the sum of lengths
    /,
) -> int: ...

# Write the ends of the runs within every limit that cost least: rows times width, and a price per run; gives their number.
def least_ends(
    lengths: NDArray[np.int64],  # [S], at most 2**22 samples
    costs: NDArray[np.int64],  # [A, S]
    limits: NDArray[np.int64],  # [A]
    ends: NDArray[np.int64],  # [S]
    batch_size: int,  # this and what follows: as `run_ends`
    multiple: int,
    max_tokens: int,
    padded: bool,
    price: int,  # tokens, at most 2**39
    /,
) -> int: ...
