from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

PAD: Final[int]  # bytes of scratch that stand behind what `cut` writes

def index(data: Any, k: int, /) -> bytes | None: ...
def cut(
    addresses: NDArray[np.uint64],
    lengths: NDArray[np.int64],
    boxes_B4: NDArray[np.int32],
    scratch: NDArray[np.uint8],
    places: NDArray[np.int64],
    ours: NDArray[np.bool_],
    /,
) -> int: ...
