"""Which surviving rows are equal in the columns of a shard key: runs of neighbours, and the group that each is of.

The columns are read once, some rows at a time; what is kept grows with the runs, never
with the rows. Columns whose values do not lie together are refused, as registration does
with a ``shard=`` column: units that are scattered over storage have no locality to keep.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from spiral_stream.catalog.relation.manifest import RUNS_PER_SHARD
from spiral_stream.errors import PlanError
from spiral_stream.planner.selection.late_columns import UInt64

MOST_RUNS: Final = 1 << 20  # 16 MB, and about 1 us each where they are found


def key_runs(pieces: Iterable[tuple[UInt64, pa.Table]], key: Sequence[str]) -> UInt64:
    """Return the runs of equal rows.

    Args:
        pieces: all rows in order, some at a time, with the columns of the key.
        key: its names, for messages.

    Returns:
        shape [R, 2], uint64: the first row and the group of each run; groups are numbered by where they come first.

    Raises:
        PlanError: the rows of a value do not lie together.
    """
    starts: list[int] = []
    groups: list[int] = []
    numbers: dict[tuple[Any, ...], int] = {}
    for rows, table in pieces:
        codes = [_codes(column.combine_chunks()) for column in table.columns]
        changes = np.any([code[1:] != code[:-1] for code in codes], axis=0)
        at = np.flatnonzero(np.concatenate(([True], changes)))
        values = [map(_plain, column.take(pa.array(at)).to_pylist()) for column in table.columns]
        for row, value in zip(rows[at].tolist(), zip(*values, strict=True), strict=True):
            number = numbers.setdefault(value, len(numbers))
            if not groups or groups[-1] != number:
                starts.append(row)
                groups.append(number)
        if len(starts) > MOST_RUNS:
            break
    if len(starts) > RUNS_PER_SHARD * len(numbers) or len(starts) > MOST_RUNS:
        named = ", ".join(map(repr, key))
        found = f"{len(numbers):,} different values of {named} lie in {len(starts):,} runs of rows"
        if len(starts) > MOST_RUNS:
            found = f"values of {named} lie in more than {MOST_RUNS:,} runs of rows"
        msg = (
            f"sample (shard_key): {found}, so rows of one value do not move as one unit. Store the rows sorted by {named} and "
            "register them again, name columns whose values lie together, or leave shard_key out: units are storage shards then"
        )
        raise PlanError(msg)
    return np.column_stack((np.array(starts, dtype=np.uint64), np.array(groups, dtype=np.uint64)))


def _codes(column: pa.Array) -> NDArray[np.int64]:
    """Numbers that are equal where values are; null equals null, NaN equals NaN."""
    encoded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode(null_encoding="encode")
    return np.asarray(pc.fill_null(encoded.indices, -1).to_numpy(zero_copy_only=False), dtype=np.int64)


def _plain(value: Any) -> Any:
    """A value that equals itself in a dict."""
    return "NaN" if isinstance(value, float) and value != value else value  # noqa: PLR0124  only NaN is not itself
