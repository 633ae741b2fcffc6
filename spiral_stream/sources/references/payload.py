"""The bytes of payload columns as Python values: one per row, or a list of them per row."""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from spiral_stream.errors import renumbered
from spiral_stream.semantic import is_list
from spiral_stream.sources.references.policy import Reach
from spiral_stream.sources.references.resolve import resolve


def payload(values: pa.Array, base: Reach | str, most_bytes: int | None = None) -> list[Any]:
    """Return the bytes that each row names.

    Args:
        values: P references, or lists of them.
        base: where relative paths start, and which files may be named.
        most_bytes: of one reference; None reads any.

    Returns:
        P values: bytes, or a list of bytes for a list of references. None where the row, or a reference of a list, is null.

    Raises:
        ReferenceDataError: see `reference.resolve`; ``row`` says which.
        ReferenceSourceError: likewise.
    """
    if is_list(values.type):
        flat, owners = flattened(values)
        with renumbered(owners):
            found = payload(flat, base, most_bytes)
        borders = np.searchsorted(owners, np.arange(len(values) + 1)).tolist()
        nulls = values.is_null().to_pylist()
        return [None if nulls[row] else found[borders[row] : borders[row + 1]] for row in range(len(values))]
    there = np.flatnonzero(values.is_valid().to_numpy(zero_copy_only=False))
    out: list[Any] = [None] * len(values)
    if len(there):
        with renumbered(there):
            some = resolve(values if len(there) == len(values) else values.take(pa.array(there)), base, most_bytes)
        for row, data in zip(there.tolist(), some, strict=True):
            out[row] = bytes(data)
    return out


def flattened(values: pa.Array) -> tuple[pa.Array, NDArray[np.int64]]:
    """Return the references of a column of lists one after the other, and the row of each."""
    owners: NDArray[np.int64] = pc.list_parent_indices(values).to_numpy(zero_copy_only=False).astype(np.int64)
    return pc.list_flatten(values), owners
