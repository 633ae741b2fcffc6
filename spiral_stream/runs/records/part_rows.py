"""What a loop has logged and no part holds yet: one entry per batch, and the table that becomes of them.

Logging appends an entry and computes nothing beyond the reduction of its values. The table is made when a part is written, by
column. Places of samples are stored as they are delivered; which identities they are, the registered version says.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spiral_stream.runs.records.values import PerBatch, PerSample, PerToken, Value
from spiral_stream.runtime.batch.keys import BatchKey

SUM: Final = "_sum"
TOKENS: Final = "_tokens"
COLUMNS: Final = {
    "leg": pa.int32(), "epoch": pa.int32(), "number": pa.int64(), "batch": pa.int64(), "step": pa.int64(),
    "index": pa.int32(), "stream": pa.int16(), "row": pa.int64(), "part": pa.int32(), "applied": pa.bool_(),
}  # fmt: skip


@final
@dataclass(frozen=True, slots=True, eq=False)
class Logged:
    """What was logged of one batch."""

    key: BatchKey
    leg: int
    applied: bool
    values: Mapping[str, Value]


def table_of(entries: list[Logged]) -> pa.Table:
    """Return what was logged as a table of one row per sample: `COLUMNS`, then the values.

    A value per sample is a column of its name; one per token is two, its sum and its count; one per batch is repeated.
    """
    keys = [each.key for each in entries]
    samples = np.array([len(key) for key in keys], dtype=np.int64)
    counts = np.concatenate([key.counts for key in keys])

    def by_entry(pick: Callable[[Logged], Any], kind: Any) -> NDArray[Any]:
        return np.repeat(np.array([pick(each) for each in entries], dtype=kind), samples)

    columns: dict[str, Any] = {
        "leg": by_entry(lambda entry: entry.leg, np.int32),
        "epoch": by_entry(lambda entry: entry.key.epoch, np.int32),
        "number": np.repeat(np.concatenate([np.asarray(key.numbers) for key in keys]), counts),
        "batch": np.repeat(np.concatenate([np.asarray(key.ledger) for key in keys]), counts),
        "step": by_entry(lambda entry: entry.key.step, np.int64),
        "index": np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts),
        "stream": np.concatenate([key.streams for key in keys]),
        "row": np.concatenate([key.rows for key in keys]).view(np.int64),
        "part": np.concatenate([key.parts for key in keys]),
        "applied": by_entry(lambda entry: entry.applied, np.bool_),
    }
    table = pa.table({name: pa.array(columns[name], kind, safe=False) for name, kind in COLUMNS.items()})
    for name in dict.fromkeys(name for each in entries for name in each.values):
        for column, array in _column(name, [each.values.get(name) for each in entries], samples).items():
            table = table.append_column(column, array)
    return table


def value_columns(name: str, value: Value) -> tuple[str, ...]:
    """Return the names of the columns of a value."""
    return (f"{name}{SUM}", f"{name}{TOKENS}") if isinstance(value, PerToken) else (name,)


def _column(name: str, values: list[Value | None], samples: NDArray[np.int64]) -> dict[str, pa.Array]:
    lacking = np.repeat([each is None for each in values], samples)
    if any(isinstance(each, PerToken) for each in values):
        sums = [
            each.sums if isinstance(each, PerToken) else np.zeros(n) for each, n in zip(values, samples, strict=True)
        ]
        counts = [
            each.counts if isinstance(each, PerToken) else np.zeros(n, np.int32)
            for each, n in zip(values, samples, strict=True)
        ]
        return {
            f"{name}{SUM}": pa.array(np.concatenate(sums), pa.float64(), mask=lacking),
            f"{name}{TOKENS}": pa.array(np.concatenate(counts), pa.int32(), mask=lacking),
        }
    found = [
        each.values
        if isinstance(each, PerSample)
        else np.full(n, each.value if isinstance(each, PerBatch) else 0, np.float32)
        for each, n in zip(values, samples, strict=True)
    ]
    return {name: pa.array(np.concatenate(found), pa.float32(), mask=lacking)}
