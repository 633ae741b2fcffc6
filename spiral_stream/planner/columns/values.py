"""Cached values of functions: which maps a `.cache()` after `sample` covers, and how values are read by sample.

A boundary keeps what the functions since the boundary before it give. Its fingerprint covers the code of those functions
and of all that they rest on, what their inputs are made of, and which rows of the relation the plan keeps. So a changed
function has another fingerprint, and the values of a changed shard are made again, those of the others not. Until every
shard has its values, batches call the functions.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

import numpy as np
import pyarrow as pa

from spiral_stream.derived.build import load
from spiral_stream.derived.index import RosterFile, keys_of
from spiral_stream.derived.kinds.gather import located
from spiral_stream.derived.kinds.values import ValueRows, Values
from spiral_stream.derived.pieces import Pieces
from spiral_stream.derived.shared_parts import meet
from spiral_stream.errors import DamageError
from spiral_stream.expr import Expr, to_json
from spiral_stream.fields.ragged import Ragged
from spiral_stream.plan import nodes
from spiral_stream.plan.functions.cached_functions import SampleKept, function_of
from spiral_stream.plan.saving.fingerprint import canonical, digest
from spiral_stream.plan.tree import need, relations_of, spine, walk
from spiral_stream.plan.verbs.extents import Extends
from spiral_stream.plan.verbs.maps import (
    SampleAssembly,
    SampleFilter,
    SampleFlatMap,
    SampleMap,
    SampleRecords,
    SampleTokens,
)
from spiral_stream.plan.verbs.mix import STREAM_ID
from spiral_stream.planner.columns.lineage import LISTS, MASK, REFUSED, Key, Lengths, Lineage, Made, Stored
from spiral_stream.planner.columns.streams import StreamStage, joined, split
from spiral_stream.planner.selection.fetched_columns import leaf_of
from spiral_stream.planner.selection.find import Workplace, derived_name
from spiral_stream.sampling.epoch import StreamRows

_BY_SHARD: Final = (nodes.Scan, nodes.Filter, nodes.Project, nodes.WithColumns, nodes.Cache)


@final
@dataclass(frozen=True, slots=True, eq=False)
class Boundary:
    """What one `.cache()` keeps.

    Attributes:
        end: how many maps come before it.
        outputs: the columns, and the type of each; answers of filters and lists of flat_maps too.
        steps: a digest of the functions, their code, and all that they rest on.
        names: the functions, for people.
        stored: the relation's columns that they take.
        filters: the maps before it that leave out rows, whatever the epoch.
    """

    end: int
    outputs: tuple[tuple[Made, pa.DataType], ...]
    steps: str
    names: tuple[str, ...]
    stored: tuple[str, ...]
    filters: tuple[int, ...]
    draws: bool = False  # whether a function draws random numbers of the row, which its identity and its stream decide


def boundaries(collate: nodes.Collate) -> list[Boundary]:
    """Return what each `.cache()` after `sample` keeps, in order.

    Args:
        collate: the plan's. If it goes on after bad samples, why a function refuses a row is kept too.
    """
    collated, tolerant = collate.source, collate.on_error != "raise"
    steps = [
        each for each in spine(collated)[::-1] if isinstance(each, nodes.Sampled) and not isinstance(each, Extends)
    ]
    sample, maps = steps[0], [each for each in steps[1:] if not isinstance(each, SampleKept)]
    lineage, identity = Lineage(maps, sample.schema()), need(collated, nodes.Sample).identity
    out, begin, seen = [], 0, 0
    for each in steps[1:]:
        if isinstance(each, SampleKept):
            out.append(_boundary(maps, lineage, begin, seen, identity, tolerant=tolerant))
            begin = seen
        else:
            seen += 1
    return out


def _boundary(
    maps: Sequence[nodes.Sampled], lineage: Lineage, begin: int, end: int, identity: Sequence[str], *, tolerant: bool
) -> Boundary:
    found = [list(_outputs(maps[at], at, lineage)) for at in range(begin, end)]
    why = [
        [(Made(REFUSED, at), pa.utf8())] if tolerant and refusable else [] for at, refusable in enumerate(found, begin)
    ]
    outputs = tuple(each for pair in zip(found, why, strict=True) for refusable in pair for each in refusable)
    filters = tuple(at for at in range(end) if _leaves_out(maps, lineage, at))
    keys: list[Key] = [key for key, _ in outputs if key.name not in (MASK, LISTS, REFUSED)]
    for at in range(end):
        step = maps[at]
        if isinstance(step, SampleFilter) and (at in filters or (Made(MASK, at), pa.bool_()) in outputs):
            keys += lineage.test_keys(step, at)
        elif isinstance(step, SampleFlatMap) and at in filters:
            keys += lineage.keys(step.function.columns, at)
    draws = any(each is not None and each.draws is not None for each in map(function_of, maps[:end]))
    keys += lineage.keys(identity, 0) if draws else []
    needed = lineage.rests_on(keys)
    used = sorted({key.at for key in needed if isinstance(key, Made)} | set(filters))
    facts = [{k: v for k, v in canonical(maps[at]).items() if k != "source"} for at in used]
    made = [(key.name, used.index(key.at)) for key, _ in outputs]
    functions = [function_of(maps[at]) for at in range(begin, end)]
    names = [each.name for each in functions if each is not None]
    names += [f"tokens of {step.transform.column}" for step in maps[begin:end] if isinstance(step, SampleTokens)]
    stored = sorted({key.name for key in needed if isinstance(key, Stored | Lengths)})
    return Boundary(end, outputs, digest([facts, made]), tuple(names), tuple(stored), filters, draws)


def _outputs(step: nodes.Sampled, at: int, lineage: Lineage) -> Iterator[tuple[Made, pa.DataType]]:
    if isinstance(step, SampleMap):
        yield Made(step.name, at), step.function.kind
    elif isinstance(step, SampleRecords):
        for field in step.function.kind:
            yield Made(field.name, at), field.type
    elif isinstance(step, SampleFilter) and not isinstance(step.predicate, Expr):
        yield Made(MASK, at), pa.bool_()
    elif isinstance(step, SampleFlatMap):
        yield Made(LISTS, at), step.function.kind
    elif isinstance(step, SampleTokens) and any(
        isinstance(key, Made) for key in lineage.keys(step.transform.columns, at)
    ):
        for name in step.names:
            yield Made(name, at), step.schema().field(name).type


def _leaves_out(maps: Sequence[nodes.Sampled], lineage: Lineage, at: int) -> bool:
    """Whether a map leaves out the same rows in every epoch."""
    step = maps[at]
    if isinstance(step, SampleFilter):
        return all(_of_the_row(maps, key) for key in lineage.rests_on(lineage.test_keys(step, at)))
    return isinstance(step, SampleFlatMap) and step.function.of_the_row


def _of_the_row(maps: Sequence[nodes.Sampled], key: Key) -> bool:
    if not isinstance(key, Made):
        return True
    step = maps[key.at]
    function = function_of(step)
    return not isinstance(step, SampleFlatMap | SampleAssembly) and (function is None or function.of_the_row)


def values_of(boundary: Boundary, stream: StreamStage, workplace: Workplace) -> Values:
    """Return the derivation that keeps a boundary's values for one stream of the plan."""
    selected = stream.selected
    env = {name: selected.columns.env[name] for name in boundary.stored if name != STREAM_ID}
    by_shard = all(isinstance(each, _BY_SHARD) for each in walk(stream.node))
    leaves = {leaf for each in env.values() for leaf in each.columns()}
    if by_shard and all(leaf_of(leaf)[0] is None for leaf in leaves):
        rows: Any = derived_name(stream.node, stream.base, workplace)
    else:  # what it depends on lies elsewhere too
        versions = {name: workplace.versions.get(name) for name in sorted(relations_of(stream.node))}
        rows = digest([canonical(stream.node), versions])
    facts = {
        "steps": boundary.steps,
        "functions": list(boundary.names),
        "columns": sorted(leaves),
        "inputs": {name: to_json(each) for name, each in env.items()},
        "stream": stream.name if STREAM_ID in boundary.stored or boundary.draws else "",
        "rows": rows,
    }
    return Values(tuple(kind for _, kind in boundary.outputs), json.dumps(facts, sort_keys=True))


@final
class CachedValues:
    """The values that one boundary keeps, of every stream of a plan. Reading is thread-safe.

    Args:
        boundary: which.
        streams: of the plan.
        values: the derivation of each stream.
        root: of derived data.
    """

    def __init__(
        self, boundary: Boundary, streams: Sequence[StreamStage], values: Sequence[Values], root: Path
    ) -> None:
        self.boundary, self.values = boundary, tuple(values)
        self._streams, self.root = tuple(streams), root
        self.files = [RosterFile(root, each) for each in values]
        self._columns = {key: k for k, (key, _) in enumerate(boundary.outputs)}
        self.unkept: tuple[Made, ...] = ()  # whose values cannot be given back
        self._rows = self._opened()

    @property
    def keys(self) -> tuple[Made, ...]:
        """The columns that are read here: none before every shard has its values."""
        return () if self._rows is None else tuple(key for key in self._columns if key not in self.unkept)

    def pieces(self) -> Iterator[Pieces]:
        """Yield all pieces that are read."""
        for each in self._rows or ():
            yield each.pieces

    def built(self, stream: int) -> tuple[int, int, int]:
        """Return how many rows of a stream have values, how many need them, and the bytes of all values."""
        file, selected = self.files[stream], self._streams[stream].selected
        keys = keys_of(self._streams[stream].base.manifest.content_keys)
        meet(file, keys)
        if not file.path.exists():
            return 0, selected.total, 0
        roster = load(file)
        has = roster.find(keys) >= 0
        rows = int(np.diff(selected.firsts)[has].sum())
        return rows, selected.total, sum(part.size for part in roster.parts)

    def read(self, key: Made, stream_rows: StreamRows, *, ragged: bool) -> pa.Array | Ragged:
        """Return a column for samples, in their order.

        Args:
            key: one of `keys`.
            stream_rows: S samples.
            ragged: whether lists of integers are wanted as addresses.

        Raises:
            DamageError: a piece is not what was written.
        """
        assert self._rows is not None
        k, rows = self._columns[key], self._rows
        if len(rows) == 1:
            return rows[0].read(k, *located(rows[0].firsts, stream_rows.rows), ragged=ragged)
        groups = split(stream_rows)
        parts = [rows[s].read(k, *located(rows[s].firsts, stream_rows.rows[at]), ragged=ragged) for s, at in groups]
        if not parts:
            return rows[0].read(k, *located(rows[0].firsts, stream_rows.rows), ragged=ragged)
        back = np.empty(len(stream_rows), np.int64)
        back[np.concatenate([at for _, at in groups])] = np.arange(len(stream_rows))
        return joined(parts, back)

    def _opened(self) -> list[ValueRows] | None:
        """Open the pieces; None where a shard of a stream has none."""
        out = []
        for file, stream, values in zip(self.files, self._streams, self.values, strict=True):
            keys = keys_of(stream.base.manifest.content_keys)
            meet(file, keys)
            if not file.path.exists():
                return None
            roster = load(file)
            if not bool((roster.find(keys) >= 0).all()):
                return None
            try:
                pieces = Pieces(file, roster, keys)
                pieces.map_all()
            except DamageError:  # it is out of the roster now, and is made again by the next `materialize`
                return None
            rows = ValueRows(values, pieces)
            if not np.array_equal(rows.firsts, stream.selected.firsts):
                return None
            out.append(rows)
        outputs = [key for key, _ in self.boundary.outputs]
        self.unkept = tuple(key for k, key in enumerate(outputs) if not all(each.is_lossless[k] for each in out))
        return out


def open_cached_values(
    collate: nodes.Collate, streams: Sequence[StreamStage], workplace: Workplace
) -> tuple[CachedValues, ...]:
    """Open the values that a plan keeps, boundary by boundary."""
    return tuple(
        CachedValues(each, streams, [values_of(each, stream, workplace) for stream in streams], workplace.root)
        for each in boundaries(collate)
    )
