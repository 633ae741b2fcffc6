"""Identities of samples as texts: one form for sets, comparisons, examples and roots.

A text lists the values of the identity's columns: texts in quotes, integers as they are, bytes in hexadecimal. Two identities
have the same text exactly if they have the same values.
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spiral_stream.planner.stages import Stages
from spiral_stream.runs.opened_leg import OpenedLeg
from spiral_stream.runtime.columns.samples import Samples

PART: Final = "part"


def texts(columns: Sequence[pa.Array | pa.ChunkedArray]) -> pa.Array:
    """Return the identity of each row as one text: shape [S] of the columns -> [S]."""
    parts = [_text(column) for column in columns]
    return parts[0] if len(parts) == 1 else joined(parts, ", ")


def joined(parts: Sequence[pa.Array | str], separator: str) -> pa.Array:
    """Return texts of several columns as one per row; a text alone is the same in every row."""
    large = [each if isinstance(each, pa.Array) else pa.scalar(each, pa.large_string()) for each in (*parts, separator)]
    return pc.binary_join_element_wise(*large)


def _text(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    values = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(values, pa.DictionaryArray):
        values = values.dictionary_decode()
    kind = values.type
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        found = pa.array([None if each is None else each.hex() for each in values.to_pylist()], pa.large_string())
        return joined(["x'", found, "'"], "")
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        escaped = pc.replace_substring(values.cast(pa.large_string()), "\\", "\\\\")
        return joined(['"', pc.replace_substring(escaped, '"', '\\"'), '"'], "")
    return values.cast(pa.large_string())


def sample_texts(opened: OpenedLeg, samples: Samples) -> tuple[pa.Array, pa.Array]:
    """Return the relation and the identity of each sample, as texts: shape [S] each. Parts of a row are told apart."""
    table = opened.identity(samples)
    stages = opened.stages
    names = [name for name in table.column_names if name in stages.identity or name == PART]
    return sources_of(stages).take(pa.array(samples.stream_rows.streams)), texts([table[name] for name in names])


def sources_of(stages: Stages) -> pa.Array:
    """Return the relation that each stream's rows are of: shape [K], text."""
    return pa.array([stream.base.entry.name for stream in stages.streams], pa.large_string())


def row_texts(stages: Stages, stream: int, rows: np.ndarray[Any, np.dtype[np.uint64]]) -> pa.Array:
    """Return the identities of surviving rows of a stream, as texts: shape [R] -> [R]."""
    found = stages.streams[stream].selected.columns.read(rows, list(stages.identity))
    return texts([found[name] for name in stages.identity])
