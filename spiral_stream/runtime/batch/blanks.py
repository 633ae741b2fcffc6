"""Padding rows of a batch: `PadPartial` with a value fills them with that value, and with no sample."""

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spiral_stream.batching.tail import PadPartial
from spiral_stream.host_dtypes import BFLOAT16, rounded


def blank(fields: Mapping[str, Any], rows: NDArray[np.int64], last: PadPartial, masks: Collection[str]) -> None:
    """Put values in place of what rows hold: False in arrays of booleans, 0 in masks of numbers, None in lists.

    Args:
        fields: of a batch, changed in place.
        rows: shape [K].
        last: says the value of each field.
        masks: the names of fields that tell values from padding.
    """
    for name, field in fields.items():
        if isinstance(field, list):
            for row in rows.tolist():  # of the epoch's last batch, or step
                field[row] = None
        elif field.dtype == BFLOAT16:
            field[rows] = rounded(np.array([last.value_of(name)])).view(BFLOAT16)
        else:
            field[rows] = 0 if field.dtype == bool or name in masks else last.value_of(name)
