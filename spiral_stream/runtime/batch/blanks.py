"""Padding rows of a batch: `PadPartial` with a value fills them with that value, and with no sample."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spiral_stream.batching.tail import PadPartial
from spiral_stream.host_dtypes import BFLOAT16, rounded


def blank(fields: Mapping[str, Any], rows: NDArray[np.int64], last: PadPartial) -> None:
    """Put values in place of what rows hold: False in arrays of booleans, None in lists.

    Args:
        fields: of a batch, changed in place.
        rows: shape [K].
        last: says the value of each field.
    """
    for name, field in fields.items():
        if isinstance(field, list):
            for row in rows.tolist():  # of the epoch's last batch, or step
                field[row] = None
        elif field.dtype == BFLOAT16:
            field[rows] = rounded(np.array([last.value_of(name)])).view(BFLOAT16)
        else:
            field[rows] = False if field.dtype == bool else last.value_of(name)
