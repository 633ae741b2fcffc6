"""What verbs that look at all rows have chosen (distinct, sort, limit), in the stored form of survivors."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Final, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spiral_stream.catalog.relation.reader import OpenRelation
from spiral_stream.derived.derivation import Derivation, Piece, ShardRows
from spiral_stream.derived.kinds import selected_rows as survivors
from spiral_stream.expr import Expr
from spiral_stream.planner.selection.late_columns import UInt64
from spiral_stream.planner.selection.whole import Chosen
from spiral_stream.sources.source import ROW

INT64: Final = np.dtype("<i8")


@final
@dataclass(frozen=True, slots=True)
class Outcome(Derivation):
    """The rows that verbs which look at all rows have chosen.

    Args:
        plan: a digest of the plan and of the versions of its data.
        joined: relations whose matching rows are kept.
    """

    KIND: ClassVar[str] = "outcomes"
    SUMMARY: ClassVar[tuple[str, ...]] = survivors.SUMMARY
    plan: str
    joined: int

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(f"right{k}" for k in range(self.joined))

    @property
    def slots(self) -> Mapping[str, np.dtype[Any]]:
        return {**survivors.SLOTS, **dict.fromkeys(self.columns, INT64)}

    @property
    def row_bytes(self) -> int:
        return 8 * (1 + self.joined)

    def facts(self) -> dict[str, object]:
        return {"plan": self.plan, "joined": self.joined, "version": survivors.VERSION}

    def piece(self, shard: ShardRows) -> Piece:
        arrays, summary = survivors.encoded(shard.offsets, shard.rows)
        return Piece(arrays | {name: shard.table.column(name).to_numpy() for name in self.columns}, summary)


@final
@dataclass(frozen=True, eq=False)
class _Shards:
    """The shards of an outcome: keyed by their number, since what is chosen of a shard depends on all others."""

    starts: UInt64
    content_keys: pa.StringArray
    shard_bytes: NDArray[np.int64]


@final
class OutcomeRows:
    """What was chosen, as a source of pieces; chosen when a row of it is first asked for."""

    def __init__(self, base: OpenRelation, choose: Callable[[], Chosen]) -> None:
        self._choose = choose
        numbers = range(len(base.manifest.shard_names))
        keys = pa.array([f"{number:032x}" for number in numbers], pa.utf8())
        self.schema = pa.schema([])  # asked for only where a scan gives no batch, and this one always does
        self.manifest = _Shards(base.manifest.starts, keys, base.manifest.shard_bytes)

    @cached_property
    def chosen(self) -> Chosen:
        """The rows, ascending."""
        return self._choose()

    def scan(
        self, columns: Sequence[str], predicate: Expr | None = None, shards: Sequence[int] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Batches of matching rows, with the ordinals of survivors in ``ROW``."""
        assert predicate is None
        assert shards is not None
        assert self.chosen.ordinals is not None
        ordinals = self.chosen.ordinals
        for shard in shards:
            first, last = np.searchsorted(ordinals, self.manifest.starts[shard : shard + 2]).tolist()
            matches = [index[first:last] for _, index in self.chosen.rights]
            arrays = [pa.array(each) for each in (*matches, ordinals[first:last])]
            yield pa.record_batch(arrays, names=[*columns, ROW])
