"""Columns of samples on their way through the maps: each column is computed once, for many samples at a time.

A column of a sample comes from the relational part, fetched late and by address, or from one of the plan's maps.
`SampleReader.need` asks `planner.columns.lineage` what the wanted columns are computed from, fetches the stored ones in one
call per stream, and runs the maps in order. Token columns are `Ragged` addresses here, never Arrow columns.

Where a plan takes the lengths of its samples from a column (``length=`` of a formation), that column decides who shares a
batch. A wrong length is found when a batch reads the tokens; then the two are compared.
"""

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from spiral_stream import seeding
from spiral_stream.batching.formation import Formation
from spiral_stream.batching.packing import Packed
from spiral_stream.cache.kinds.chats import mask_behind
from spiral_stream.dialects.numpy import to_column
from spiral_stream.errors import DataError
from spiral_stream.expr import Col, Expr, parse
from spiral_stream.fields.ragged import Ragged
from spiral_stream.integrity.blocks import moment, need_sound
from spiral_stream.plan.functions.cached_functions import function_of
from spiral_stream.plan.nodes import Collate, Sample, Sampled
from spiral_stream.plan.tree import need
from spiral_stream.plan.verbs.maps import (
    SampleColumns,
    SampleFilter,
    SampleFlatMap,
    SampleMap,
    SampleRecords,
    SampleTokens,
)
from spiral_stream.plan.verbs.mix import STREAM_ID
from spiral_stream.planner.columns.lineage import (
    REFUSED,
    Key,
    Lengths,
    Lineage,
    Made,
    Refusal,
    Stored,
    identity_keys,
    length_column,
    with_lengths,
)
from spiral_stream.planner.columns.streams import read, split
from spiral_stream.planner.stages import Stages
from spiral_stream.runtime.columns.functions import Calling, called
from spiral_stream.runtime.columns.tokens import TokenColumns, reasons
from spiral_stream.runtime.metrics import Metrics, timed
from spiral_stream.sampling.epoch import StreamRows
from spiral_stream.threads import CLOSE_TIMEOUT_S, StreamThread, Workers, doing
from spiral_stream.transforms.python import INDEX

Int64 = NDArray[np.int64]
_NO_CAP: Final = np.iinfo(np.int64).max


@final
class DeclaredLengths:
    """The lengths that a formation takes from columns, and the token columns that they stand for."""

    def __init__(self, stages: Stages, lineage: Lineage, formation: Formation) -> None:
        self._texts = formation.length_texts
        self.exprs = [parse(text) for text in self._texts]
        self._columns = sorted({stage.field.column for stage in stages.sequences})
        self.tokens: list[Key] = list(lineage.keys(self._columns, lineage.end))
        self.keys = [key for each in self.exprs for key in lineage.expression_keys(each, lineage.end)]
        self._packed = isinstance(formation, Packed)
        self._by_column = bool(formation.widths)  # which are sorted by column too
        self._caps = [_NO_CAP]
        if isinstance(formation, Packed) and formation.oversize == "truncate":
            self._caps = list(formation.row_widths)

    def check(self, stated: Sequence[pa.Array], columns: Mapping[Key, Any], refused: NDArray[np.bool_]) -> None:
        """Refuse samples whose tokens are not as many as stated.

        Args:
            stated: the values of each column, shape [S].
            columns: of S samples, with their tokens.
            refused: shape [S]: samples whose text cannot be read; they have no tokens.

        Raises:
            DataError: says what was stated and what was found; ``row`` is the first such sample.
        """
        values = [np.asarray(each.to_numpy(zero_copy_only=False), dtype=np.int64) for each in stated]
        found = [_lengths(columns[key]) for key in self.tokens]
        if not self._packed:  # which pads every column by itself: the longest decides
            found = [np.maximum.reduce(found)]
        for at, (name, lengths) in enumerate(zip(self._columns, found, strict=False)):
            wanted, text = (each[at if self._by_column else 0] for each in (values, self._texts))
            cap = self._caps[at if len(self._caps) > 1 else 0]
            unlike = (np.minimum(lengths, cap) != np.minimum(wanted, cap)) & ~refused
            if unlike.any():
                row = int(np.flatnonzero(unlike)[0])
                msg = (
                    f"collate: length={text!r} says {int(wanted[row]):,} tokens, and {name!r} has {int(lengths[row]):,}. "
                    "Mend that column, or leave length out"
                )
                raise DataError(msg, row=row)


def _lengths(column: pa.Array | Ragged) -> Int64:
    if isinstance(column, Ragged):
        return column.lengths
    found: Int64 = column.value_lengths().fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    return found


@final
@dataclass(frozen=True, slots=True, eq=False)
class Samples:
    """S samples: the places of their rows, and the columns computed so far."""

    stream_rows: StreamRows
    parts: Int64  # [S] which part of its parent each sample is, one digit per flat_map; zeros without flat_map
    origins: Int64  # [S] the place in the window of each sample, or of its parent
    columns: dict[Key, pa.Array | Ragged] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.stream_rows.rows)

    def take(self, at: Int64) -> "Samples":
        """Return the samples at these places, in this order."""
        columns = {key: v.take(at if isinstance(v, Ragged) else pa.array(at)) for key, v in self.columns.items()}
        return Samples(self.stream_rows.take(at), self.parts[at], self.origins[at], columns)

    def cut(self, counts: Iterable[int]) -> "list[Samples]":
        """Cut the samples into runs of so many each, as views."""
        out: list[Samples] = []
        first = 0
        for count in counts:
            last = first + count
            columns = {
                key: v.run(first, last) if isinstance(v, Ragged) else v.slice(first, count)
                for key, v in self.columns.items()
            }
            part = slice(first, last)
            out.append(Samples(self.stream_rows.run(first, last), self.parts[part], self.origins[part], columns))
            first = last
        return out

    def only(self, keys: Iterable[Key]) -> "Samples":
        """Return the same samples with these columns only."""
        columns = {key: self.columns[key] for key in keys if key in self.columns}
        return Samples(self.stream_rows, self.parts, self.origins, columns)

    @classmethod
    def at(cls, stream_rows: StreamRows) -> "Samples":
        """Return the samples at a window's positions, with no columns yet."""
        count = len(stream_rows)
        return cls(stream_rows, np.zeros(count, dtype=np.int64), np.arange(count))

    @classmethod
    def concat(cls, some: "Sequence[Samples]") -> "Samples":
        """Join several, in order, with the columns that all of them have."""
        if len(some) == 1:
            return some[0]
        shared = [key for key in some[0].columns if all(key in each.columns for each in some)]
        columns: dict[Key, Any] = {}
        for key in shared:
            values = [each.columns[key] for each in some]
            columns[key] = Ragged.concat(values) if isinstance(values[0], Ragged) else pa.concat_arrays(values)
        parts = np.concatenate([each.parts for each in some])
        origins = np.concatenate([each.origins for each in some])
        return cls(StreamRows.concat([each.stream_rows for each in some]), parts, origins, columns)


@final
@dataclass(frozen=True, slots=True, eq=False)
class Lost:
    """Samples that became no sample of a batch, because a map before it refused them, and why; a batch counts them."""

    samples: Samples
    reasons: Sequence[str]
    field: str


@final
class SampleReader:
    """Reads columns of samples. Thread-safe."""

    def __init__(
        self, stages: Stages, run_seed: int, metrics: Metrics, threads: int = 1, *, processes: bool = True
    ) -> None:
        """Read columns of a plan's samples.

        Args:
            stages: the lowered plan.
            run_seed: the seed of everything random.
            metrics: where reads are counted.
            threads: of each pool.
            processes: whether functions with ``workers`` may start processes; else threads run them.
        """
        self.stages = stages
        self.run_seed = run_seed
        self.metrics = metrics
        self._calling = Calling(stages.maps, processes=processes)
        threads = max(threads, self._calling.workers)  # those that wait for a process do no work
        self.threads = threads
        self._pool = Workers(threads, "spiral-encode")  # starts no thread before its first task
        self.lineage = Lineage.of(stages)
        self.end = self.lineage.end
        self._tolerant = need(stages.plan, Collate).on_error != "raise"
        pool = self._pool if threads > 1 else None  # one thread is the caller's own
        self._calling.pool = pool
        self.cached_by = {key: each for each in stages.values for key in each.keys}
        self._tokens = TokenColumns(stages, metrics, pool)
        self._lengths_only: frozenset[int] = frozenset()  # maps whose tokens are wanted as lengths alone
        self._counting = False
        self._counts = {i: self.lineage.same_before(i) for i in range(self.end)}
        self._named = names_of(stages.maps)
        self._of_new: dict[tuple[Key, ...], list[Key]] = {}
        self._ragged = self.lineage.sequences_only(stages)
        formation = stages.formation
        declares = formation is not None and formation.length_texts
        self._declared = (
            DeclaredLengths(stages, self.lineage, formation) if formation is not None and declares else None
        )
        self._mixed = stages.mixed_columns
        self._relations = ", ".join(dict.fromkeys(stream.base.entry.name for stream in stages.streams))
        stored = need(stages.plan, Sample).schema().names
        self._cached = {
            name for name in stored if name != STREAM_ID and all(name in s.selected.narrow for s in stages.streams)
        }

    def for_counting(self) -> "SampleReader":
        """Return this reader as counting wants it: of tokens that no function is given, it reads the lengths alone.

        What it reads is not in the stream's metrics, which are about the batches of a loop.
        """
        out = copy(self)
        out.metrics = Metrics()
        out._lengths_only, out._counting = self.lineage.measured_only, True  # noqa: SLF001  a reader of our own
        return out

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> list[StreamThread]:
        """End the threads and processes. Returns the threads that still run at the deadline."""
        self._calling.close()
        return self._pool.end(timeout_s)

    def need(self, epoch: int, samples: Samples, keys: Iterable[Key]) -> None:
        """Add columns to samples, and the columns that they are computed from.

        Raises:
            DataError: a value is bad; ``row`` is the place of its sample, if known.
            SourceError: storage failed.
        """
        begun = moment()
        missing = self._missing(tuple(keys), samples.columns)
        if not missing:
            return
        names = [key.name for key in missing if isinstance(key, Stored)]
        if names:
            samples.columns.update({Stored(name): column for name, column in self._read(samples, names).items()})
        for key in missing:
            if isinstance(key, Lengths):
                samples.columns[key] = self._stored_lengths(samples, key.name)
        made = [key for key in missing if isinstance(key, Made)]
        for column in sorted(made, key=lambda key: key.at):
            if column not in samples.columns:  # a function may give several
                samples.columns.update(self.made(epoch, samples, column))
        need_sound(begun)
        if self._declared is not None and not self._counting and set(missing) & set(self._declared.tokens):
            self._check_declared(epoch, samples, self._declared)

    def _check_declared(self, epoch: int, samples: Samples, declared: DeclaredLengths) -> None:
        if all(key in samples.columns for key in declared.tokens):
            self.need(epoch, samples, declared.keys)
            source = need(self.stages.plan, Collate).source
            stated = [self.value(samples, each, source, self.end) for each in declared.exprs]
            declared.check(stated, samples.columns, self.refused(samples, declared.tokens))

    def _missing(self, keys: tuple[Key, ...], have: Mapping[Key, Any]) -> list[Key]:
        """`Lineage.missing`; batches ask for the same columns again and again, of samples that have none."""
        if have:
            return self.lineage.missing(keys, have)
        if keys not in self._of_new:
            self._of_new[keys] = self.lineage.missing(keys, have)
        return self._of_new[keys]

    def need_identity(self, epoch: int, samples: Samples, upto: int | None = None) -> list[Stored | Made]:
        """Add the columns that identify the samples after ``upto`` maps (all maps if not given); returns their keys."""
        keys = identity_keys(self.stages, upto)
        self.need(epoch, samples, keys)
        return keys

    def _read(self, samples: Samples, names: Sequence[str]) -> dict[str, pa.Array]:
        """Fetch columns of the relational part. Those that the selection does not hold count as read from the source."""
        streams = self.stages.streams
        with timed(self.metrics, "fetch_s"), doing(f"reading column {', '.join(names)} of relation {self._relations}"):
            found = self._mixed.read(samples.stream_rows, names, self._ragged) if self._mixed is not None else {}
            rest = [name for name in names if name not in found]
            if rest:
                found |= read(streams, samples.stream_rows, rest, self._ragged)
        columns: dict[str, Any] = {name: _one_array(column) for name, column in found.items()}
        late = [name for name in names if name != STREAM_ID and name not in self._cached]
        if late:
            self.metrics.read(len(samples), {name: columns[name].nbytes for name in late})
        sizes = {name: columns[name].nbytes for name in names if name in self._cached}
        if sizes:
            self.metrics.read_table(len(samples), sizes)
        return columns

    def made(self, epoch: int, samples: Samples, key: Made) -> dict[Key, pa.Array | Ragged]:
        name, at = key.name, key.at
        step = self.stages.maps[at]
        cached = self.cached_by.get(key)
        if cached is not None:
            with timed(self.metrics, "fetch_s"):
                found: dict[Key, pa.Array | Ragged] = {}
                found[key] = cached.read(key, samples.stream_rows, ragged=isinstance(step, SampleTokens))
                why = Made(REFUSED, at)
                if self._tolerant and why in self.cached_by:
                    found[Refusal(at)] = as_lists(cached.read(why, samples.stream_rows, ragged=False))
            return found
        if isinstance(step, SampleTokens):
            return self._tokenized(samples, step, at)
        if isinstance(step, SampleColumns):
            value = step.exprs[step.names.index(name)]
            return {key: self.value(samples, value, step.source, at).cast(step.schema().field(name).type)}
        if isinstance(step, SampleRecords):
            records = self.called(epoch, samples, step, at)
            return {Made(each, at): records.field(each) for each in step.names}
        assert isinstance(step, SampleMap | SampleFlatMap | SampleFilter), step
        return {key: self.called(epoch, samples, step, at)}

    def called(
        self, epoch: int, samples: Samples, step: SampleMap | SampleRecords | SampleFilter | SampleFlatMap, at: int
    ) -> pa.Array:
        function = step.predicate if isinstance(step, SampleFilter) else step.function
        assert not isinstance(function, Expr)
        inputs = self.lineage.keys(function.columns, at)
        columns = [as_lists(samples.columns[key]) for key in inputs]
        keys = np.zeros(len(samples), dtype=np.uint64)
        if function.random:
            named = np.uint64(seeding.key("map", function.name, self._counts[at]))
            keys = seeding.combine(self.random_keys(epoch, samples, at), named)
        elif function.draws is not None:
            named = np.uint64(seeding.key("rows", function.name, self._counts[at]))
            keys = seeding.combine(self.row_keys(epoch, samples, at), named)
        with timed(self.metrics, "map_s", self._named[at]), doing(called(function)):
            table = pa.table(columns, names=[*function.columns])
            if function.with_index:
                assert samples.stream_rows.positions is not None, function.name  # only rows that are kept have no place
                table = table.append_column(INDEX, pa.array(samples.stream_rows.positions.astype(np.int64)))
            if not self._tolerant:
                return self._calling.run(at, function, table, keys, self.refused(samples, inputs))
            failed: dict[int, str] = {}
            values = self._calling.run(at, function, table, keys, self.refused(samples, inputs), failed)
        samples.columns[Refusal(at)] = reasons(failed, len(samples))
        return values

    @property
    def tolerant(self) -> bool:
        """Whether samples for which a function fails are left to their batch."""
        return self._tolerant

    def refused_by(self, samples: Samples, keys: Iterable[Key], at: int) -> NDArray[np.bool_]:
        """Return which samples a map refuses, or what it reads: shape [S], bool. The map has been made."""
        out = self.refused(samples, keys)
        reasons = samples.columns.get(Refusal(at)) if self._tolerant else None
        return out if reasons is None else out | as_lists(reasons).is_valid().to_numpy(zero_copy_only=False)

    def reasons(self, samples: Samples, keys: Iterable[Key], at: int) -> pa.Array:
        """Return why a map, or what it reads, refuses each sample, as text: null where nothing does."""
        made = {key.at for key in self.lineage.rests_on(keys) if isinstance(key, Made)}
        found = [samples.columns.get(Refusal(each)) for each in (at, *sorted(made - {at}))]
        texts = [as_lists(each) for each in found if each is not None]
        return pc.coalesce(*texts) if texts else pa.nulls(len(samples), pa.utf8())

    def refused(self, samples: Samples, keys: Iterable[Key]) -> NDArray[np.bool_]:
        """Return which samples cannot be read, because a text that one of these columns rests on cannot: shape [S], bool."""
        out = np.zeros(len(samples), dtype=np.bool_)
        for key in self.lineage.rests_on(keys) if self._tolerant else ():
            reason = samples.columns.get(Refusal(key.at)) if isinstance(key, Made) else None
            if isinstance(reason, pa.Array):
                out |= reason.is_valid().to_numpy(zero_copy_only=False)
        return out

    def _tokenized(self, samples: Samples, step: SampleTokens, at: int) -> dict[Key, pa.Array | Ragged]:
        refused: dict[int, str] | None = {} if self._tolerant else None
        found: pa.Array | Ragged
        if self._tokens.computed(at):
            names = step.transform.columns
            texts = [as_lists(samples.columns[key]) for key in self.lineage.keys(names, at)]
            found = self._tokens.of_texts(at, pa.table(texts, names=list(names)), refused)
        else:
            ask = self._tokens.lengths if at in self._lengths_only else self._tokens.tokens
            found = ask(at, samples.stream_rows, refused)
        if refused is not None:
            samples.columns[Refusal(at)] = reasons(refused, len(samples))
        out: dict[Key, pa.Array | Ragged] = {Made(step.name, at): found}
        if step.mask is not None:
            out[Made(step.mask, at)] = mask_behind(found) if isinstance(found, Ragged) else found
        return out

    def random_keys(self, epoch: int, samples: Samples, upto: int | None = None) -> NDArray[np.uint64]:
        """Return the samples' own random keys (docs/decisions/0032), as they are after ``upto`` maps: shape [S], uint64.

        The identity is fetched if it is missing. The parts that a later flat_map makes of a sample share its key, so
        that it does not matter when a column is computed.
        """
        at = self.end if upto is None else upto
        hashes = self._identity_hashes(epoch, samples, at)
        keys = seeding.sample_keys(self.run_seed, epoch, hashes, samples.stream_rows.passes)
        return self._of_parts(keys, samples, at)

    def row_keys(self, epoch: int, samples: Samples, upto: int) -> NDArray[np.uint64]:
        """Return random keys of the samples' rows, the same for every run seed, epoch and pass: shape [S], uint64."""
        hashes = self._identity_hashes(epoch, samples, upto)
        keys = seeding.sample_keys(0, 0, hashes, np.zeros(len(samples), dtype=np.uint64))
        return self._of_parts(keys, samples, upto)

    def _identity_hashes(self, epoch: int, samples: Samples, at: int) -> NDArray[np.uint64]:
        """The hashes of the samples' identities, shape [S, 2], after a number of maps."""
        identity = self.need_identity(epoch, samples, at)
        columns = [as_lists(samples.columns[key]).to_pylist() for key in identity]
        values = columns[0] if len(columns) == 1 else [repr(row) for row in zip(*columns, strict=True)]
        hashes = np.empty((len(values), 2), dtype=np.uint64)
        for stream, where in split(samples.stream_rows):
            row_keys = values if len(where) == len(values) else [values[at] for at in where.tolist()]
            hashes[where] = seeding.identity_hashes(self.stages.streams[stream].name, row_keys)
        return hashes

    def _of_parts(self, keys: NDArray[np.uint64], samples: Samples, at: int) -> NDArray[np.uint64]:
        """The keys of the parts that flat_maps made of samples."""
        parts = samples.parts // self.lineage.fan_out(at)
        return np.where(parts > 0, seeding.combine(keys, parts.astype(np.uint64)), keys) if parts.any() else keys

    # ---- expressions

    def value(
        self,
        samples: Samples,
        expr: Expr,
        source: Sampled | Any,
        upto: int,
        delivered: Mapping[str, Int64] = MappingProxyType({}),
    ) -> pa.Array:
        """Evaluate an expression, after ``upto`` maps, for samples that have its columns.

        Args:
            samples: S samples.
            expr: the expression.
            source: the last of the maps.
            upto: how many maps.
            delivered: the lengths, shape [S], of columns of which samples are delivered in part, and of columns of lengths.
        """
        schema = source.schema()
        kinds = {n: schema.field(n).type for n in expr.columns()}
        lists = {n for n, kind in kinds.items() if pa.types.is_list(kind) or pa.types.is_large_list(kind)}
        columns = {n: samples.columns[self.lineage.length_key(n, upto)] for n in sorted(expr.columns())}
        plain: dict[str, Any] = {n: v for n, v in columns.items() if n not in lists}
        plain |= {length_column(n): pa.array(delivered.get(n, lengths_of(columns[n]))) for n in lists}
        plain |= {n: pa.array(lengths).cast(plain[n].type) for n, lengths in delivered.items() if n in plain}
        measured = with_lengths(expr, lists)
        if isinstance(measured, Col) and measured.name not in kinds:  # a length alone: nothing is to be computed
            return plain[measured.name]
        return to_column(measured, plain, len(samples))

    def _stored_lengths(self, samples: Samples, name: str) -> pa.Array:
        together = None if self._mixed is None else self._mixed.lengths(samples.stream_rows, name)
        if together is not None:
            return pa.array(together)
        rows, parts = samples.stream_rows.rows, split(samples.stream_rows)
        selected = [self.stages.streams[stream].selected for stream, _ in parts]
        if len(parts) == 1:
            return pa.array(selected[0].lengths(name, rows))
        out = np.empty(len(samples), dtype=np.int64)
        for (_, where), each in zip(parts, selected, strict=True):
            out[where] = each.lengths(name, rows[where])
        return pa.array(out)


def _one_array(column: Any) -> pa.Array | Ragged:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def lengths_of(column: pa.Array | Ragged) -> Int64:
    """Return the number of items of each sample's list, shape [S]. A column of integers holds lengths already."""
    if isinstance(column, Ragged):
        return column.lengths
    if pa.types.is_integer(column.type):
        return np.asarray(column.to_numpy(zero_copy_only=False), dtype=np.int64)
    found: Int64 = column.value_lengths().fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    return found


def names_of(maps: Sequence[Sampled]) -> list[str]:
    """Return what each map's function is called in metrics; two functions of one name are told apart by their places."""
    functions = [function_of(step) for step in maps]
    names = ["" if each is None else each.name for each in functions]
    return [name if names.count(name) == 1 else f"{name} (map {at + 1})" for at, name in enumerate(names)]


def calls_function(step: Sampled) -> bool:
    """Whether a map calls a function of the user's."""
    return isinstance(step, SampleMap | SampleRecords | SampleFlatMap) or (
        isinstance(step, SampleFilter) and not isinstance(step.predicate, Expr)
    )


def as_lists(column: pa.Array | Ragged) -> pa.Array:
    """Turn tokens into a list column, for a user's function. Other columns are returned as they are."""
    return column.arrow() if isinstance(column, Ragged) else column
