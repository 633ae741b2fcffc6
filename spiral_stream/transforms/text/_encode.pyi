from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

# Held for the compiled room: `engine` the tables of a tokenizer, `memo` room for the ids of words.
Engine: TypeAlias = Any
Memo: TypeAlias = Any

def engine(
    width: int,
    start: int,
    kinds: NDArray[np.uint8],
    steps: NDArray[np.uint32],
    of_byte: NDArray[np.uint32],
    left: NDArray[np.uint32],
    right: NDArray[np.uint32],
    made: NDArray[np.uint32],
    token_bytes: bytes,
    token_ends: NDArray[np.int64],
    token_ids: NDArray[np.uint32],
    texts: bytes,
    text_ends: NDArray[np.int64],
    characters: NDArray[np.uint32],
    unknown: int,
    fused: bool,
    before: int,
    /,
) -> Engine: ...
def memo(short_bits: int, long_bits: int, /) -> Memo: ...
def encode(
    engine: Engine,
    memo: Memo,
    text: Any,
    offsets: NDArray[np.int64],
    out: NDArray[np.uint32],
    counts: NDArray[np.int64],
    /,
) -> tuple[int, int]: ...
def met(memo: Memo, /) -> tuple[int, int]: ...
