"""Joins probed shard by shard: which rows of each shard of the base relation find a match, and which one.

The right side of a join is settled once: its keys, the columns that later conditions look at and the numbers of its
rows lie in one Arrow file, which every process that makes pieces maps. Each chunk of the base's shards is then scanned with
its own conditions, probed by its keys (a hash join whose build side is the right one) and stored as surviving rows, with the
matching right row of each for joins whose columns are used.

Verbs that look at all rows (distinct, sort, limit) store the rows that they choose in the same form.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, ClassVar, Final, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spiral_stream.catalog.relation.reader import OpenRelation
from spiral_stream.derived.derivation import ByRange, Derivation, Piece, ShardRows, Spool
from spiral_stream.derived.kinds import selected_rows as survivors
from spiral_stream.expr import Expr
from spiral_stream.integrity import seal
from spiral_stream.planner.selection.fetched_columns import UInt64, in_memory, leaf_of
from spiral_stream.planner.selection.rewrites import Keep, Match
from spiral_stream.planner.selection.row_frame import Frame
from spiral_stream.planner.selection.whole import Chosen
from spiral_stream.sources.source import ROW

Int64 = NDArray[np.int64]
Found = tuple[UInt64, list[NDArray[Any]], dict[str, int]]  # of one shard: survivors, their matches, counts of the steps


@final
@dataclass(frozen=True, slots=True)
class Probe:
    """Look up the matching row of a settled right side."""

    how: str
    names: tuple[str, ...]  # of the left keys
    kinds: tuple[pa.DataType, ...]
    keys: tuple[Expr, ...]  # over leaves
    right_keys: tuple[str, ...]
    side: Path  # an Arrow file: those keys, columns that later conditions look at, and `ROW`


@final
@dataclass(frozen=True, slots=True)
class Probed(Derivation):
    """The rows that pass conditions and joins, and their matches.

    Args:
        read: columns of the base that steps look at.
        pushed: the condition that the source applies.
        steps: what is done then, in order.
        rights: the joins whose matches are kept, and the type of the matches.
        about: facts that the fingerprint covers.
        width: bytes of one row of the columns that are read, about.
    """

    KIND: ClassVar[str] = "matches"
    read: tuple[str, ...]
    pushed: Expr | None
    steps: tuple[Expr | Probe, ...]
    rights: tuple[tuple[int, np.dtype[Any]], ...]
    about: Mapping[str, object]
    width: int

    @property
    def SUMMARY(self) -> tuple[str, ...]:  # type: ignore[override]  # noqa: N802  one count for each step
        numbers = range(len(self.steps))
        return (*survivors.SUMMARY, "passed", *(f"left{k}" for k in numbers), *(f"missed{k}" for k in numbers))

    @property
    def columns(self) -> tuple[str, ...]:
        return self.read

    @property
    def predicate(self) -> Expr | None:
        return self.pushed

    @property
    def slots(self) -> Mapping[str, np.dtype[Any]]:
        return {**survivors.SLOTS, **{f"right{i}": kind for i, (_, kind) in enumerate(self.rights)}}

    @property
    def row_bytes(self) -> int:
        return self.width

    def facts(self) -> dict[str, object]:
        return {**self.about, "version": survivors.VERSION}

    def piece(self, shard: ShardRows) -> Piece:
        return self.pieces([shard])[0]

    def by_range(self, rows: int, spool: Callable[[str], Spool]) -> ByRange:
        return _ProbedByRange(self, rows, spool)

    def pieces(self, shards: Sequence[ShardRows]) -> list[Piece]:
        found = self.found(shards)
        return [self._piece(shard, *each) for shard, each in zip(shards, found, strict=True)]

    def found(self, shards: Sequence[ShardRows]) -> list[Found]:
        """Return the survivors of each shard as offsets, their matches, and what each step counted there."""
        sizes = np.array([len(shard.offsets) for shard in shards], np.int64)
        ends = np.concatenate([[0], np.cumsum(sizes)])
        shard_of = np.repeat(np.arange(len(shards)), sizes)
        table = pa.concat_tables([shard.table for shard in shards if len(shard.offsets)]) if ends[-1] else None
        counted: dict[str, Int64] = {"passed": sizes}
        rows, matches = np.zeros(0, np.uint64), [np.zeros(0, kind) for _, kind in self.rights]
        if table is not None:
            numbered = pa.table(
                [*table.columns, np.arange(ends[-1], dtype=np.uint64)], names=[*table.column_names, ROW]
            )
            frame = Frame(numbered)
            outcome = self._run(frame, shard_of, len(shards), counted)
            rows = frame.rows
            matches = [outcome[k](frame.rights[k][1]).astype(kind) for k, kind in self.rights]
        out = []
        for i, shard in enumerate(shards):
            first, last = np.searchsorted(rows, ends[i : i + 2].astype(np.uint64)).tolist()
            offsets = shard.offsets[(rows[first:last] - np.uint64(ends[i])).view(np.int64)]
            counts = {name: int(each[i]) for name, each in counted.items()}
            out.append((offsets, [each[first:last] for each in matches], counts))
        return out

    def _run(self, frame: Frame, shard_of: Int64, shards: int, counted: dict[str, Int64]) -> list[Any]:
        """Take every step and count what it leaves; how places of each right side become numbers of its rows."""
        numbers: list[Any] = []
        for k, step in enumerate(self.steps):
            if isinstance(step, Probe):
                side, number = _side(step.side)
                left = frame.values(step.keys, step.kinds).rename_columns(list(step.names))
                index, missed = frame.match(left, side.select(list(step.right_keys)), step.how)
                frame.rights.append((in_memory(side), index))
                numbers.append(number.__getitem__)
                counted[f"missed{k}"] = np.bincount(shard_of[missed.view(np.int64)], minlength=shards)
            else:
                frame.keep(step)
            counted[f"left{k}"] = np.bincount(shard_of[frame.rows.view(np.int64)], minlength=shards)
        return numbers

    def _piece(
        self, shard: ShardRows, offsets: UInt64, matches: Sequence[NDArray[Any]], counted: Mapping[str, int]
    ) -> Piece:
        arrays, summary = survivors.encoded(offsets, shard.rows)
        arrays |= {f"right{i}": each for i, each in enumerate(matches)}
        return Piece(arrays, self.summary(summary, counted))

    def summary(self, survived: Mapping[str, int], counted: Mapping[str, int]) -> dict[str, int]:
        """Return the numbers of a piece: of its survivors, and what each step counted."""
        return {**dict.fromkeys(self.SUMMARY, 0), **survived, **counted}


@final
class _ProbedByRange(ByRange):
    """The survivors and matches of a shard whose rows come a range at a time."""

    def __init__(self, probed: Probed, rows: int, spool: Callable[[str], Spool]) -> None:
        self._probed, self._marks, self._counted = probed, survivors.Marks(rows), Counter[str]()
        self._rights: dict[str, Any] = {f"right{i}": spool(f"right{i}") for i in range(len(probed.rights))}

    def add(self, some: ShardRows) -> None:
        [(offsets, matches, counted)] = self._probed.found([some])
        self._marks.add(offsets)
        for i, each in enumerate(matches):
            self._rights[f"right{i}"].append(each)
        self._counted.update(counted)

    def end(self) -> Piece:
        arrays, summary = self._marks.encoded()
        return Piece({**arrays, **self._rights}, self._probed.summary(summary, self._counted))


@lru_cache(maxsize=16)
def _side(path: Path) -> tuple[pa.Table, Int64]:
    """The columns of a settled right side, and the number of the row at each place; -1 at -1."""
    table = seal.table(path)
    number = np.append(table.column(ROW).to_numpy(), -1)
    return table.drop_columns([ROW]), number


def forget_sides() -> None:
    """Let go of the right sides that were mapped for a build."""
    _side.cache_clear()


def looked_at(steps: Sequence[Keep | Match], k: int) -> list[str]:
    """Return the columns of the k-th joined relation that steps after the join look at."""
    exprs = [each for step in steps for each in ((step.predicate,) if isinstance(step, Keep) else step.keys)]
    return sorted({name for each in exprs for of, name in map(leaf_of, each.columns()) if of == k})


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
