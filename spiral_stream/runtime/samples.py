"""Columns of samples on their way through the maps: what is asked for is computed, once, in whole columns.

A column of a sample comes from the relational part (fetched late, by address), or from
one of the plan's maps. `SampleReader.need` works out which of them the asked ones
rest on, fetches those of the relations in one call a stream, and runs the maps in order.
Token columns are never Arrow columns here but `Ragged` addresses.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod
from typing import Any, Final, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spiral_stream import seeding
from spiral_stream.dialects.numpy import to_column
from spiral_stream.errors import DataError, SourceError
from spiral_stream.expr import Alias, Call, Cast, Col, Expr, bind
from spiral_stream.fields.pad import Pad
from spiral_stream.fields.ragged import Ragged
from spiral_stream.fields.sequence import Placed
from spiral_stream.integrity.blocks import moment, need_sound
from spiral_stream.plan.maps import (
    PART,
    Context,
    SampleAssembly,
    SampleColumns,
    SampleFilter,
    SampleFlatMap,
    SampleMap,
    SampleTokens,
)
from spiral_stream.plan.mix import STREAM_ID
from spiral_stream.plan.nodes import Collate, Sampled
from spiral_stream.plan.tree import need
from spiral_stream.planner.physical import Stages, TokenStage
from spiral_stream.planner.streams import fetch, ordinals, split
from spiral_stream.runtime.assembling import assembled, assembler, called
from spiral_stream.runtime.metrics import Metrics
from spiral_stream.runtime.tokens import TokenFeed
from spiral_stream.runtime.unreadable import encoded, reasons, run_on_readable
from spiral_stream.sampling.epoch import Places
from spiral_stream.threads import CLOSE_TIMEOUT_S, OwnThread, Workers, doing
from spiral_stream.transforms.python import Function

Int64 = NDArray[np.int64]
Key = tuple[str, int]  # a column's name, and the map that makes it: -1 for the relational part
RELATIONAL: Final = -1
REFUSED: Final = "\0refused"  # column beside tokens: why a sample's text cannot be read, null where it can
_LENGTH: Final = "\0len "  # before the name of a token column whose lengths stand for it in an expression


@final
@dataclass(frozen=True, slots=True, eq=False)
class Samples:
    """S samples: where their rows are, and what is known of them so far."""

    places: Places
    parts: Int64  # [S] which of its parent's samples each is, one digit a flat_map; zeros without
    origins: Int64  # [S] at which of the window's positions each, or its parent, stood
    columns: dict[Key, pa.Array | Ragged] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.places)

    def take(self, at: Int64) -> "Samples":
        """Some of them, in this order."""
        wanted = pa.array(at)
        columns = {key: v.take(at) if isinstance(v, Ragged) else v.take(wanted) for key, v in self.columns.items()}
        return Samples(self.places.take(at), self.parts[at], self.origins[at], columns)

    def only(self, keys: Iterable[Key]) -> "Samples":
        """The same samples with fewer columns."""
        kept = {key: self.columns[key] for key in keys if key in self.columns}
        return Samples(self.places, self.parts, self.origins, kept)

    @classmethod
    def at(cls, places: Places) -> "Samples":
        """The samples of a window's positions."""
        return cls(places, np.zeros(len(places), dtype=np.int64), np.arange(len(places)))

    @classmethod
    def concat(cls, some: "Sequence[Samples]") -> "Samples":
        """Several, one after the other; columns that all of them have."""
        if len(some) == 1:
            return some[0]
        shared = [key for key in some[0].columns if all(key in each.columns for each in some)]
        columns: dict[Key, Any] = {}
        for key in shared:
            values = [each.columns[key] for each in some]
            columns[key] = Ragged.concat(values) if isinstance(values[0], Ragged) else pa.concat_arrays(values)
        parts = np.concatenate([each.parts for each in some])
        origins = np.concatenate([each.origins for each in some])
        return cls(Places.concat([each.places for each in some]), parts, origins, columns)


@final
class SampleReader:
    """Reads columns of samples. Thread-safe."""

    def __init__(self, stages: Stages, run_seed: int, metrics: Metrics, threads: int = 1) -> None:
        self._stages = stages
        self.run_seed = run_seed
        self.metrics = metrics
        self._pool = Workers(threads, "spiral-encode")  # starts no thread before its first task
        self.end = len(stages.maps)
        self._tolerant = need(stages.plan, Collate).on_error != "raise"
        self._relational = stages.streams[0].node.schema()
        made = [at for at, step in enumerate(stages.maps) if isinstance(step, SampleTokens)]
        self._tokens = dict(zip(made, stages.tokens, strict=True))  # by the map, for two may give one name
        pool = self._pool if threads > 1 else None  # one thread is the caller's own
        self._feeds = {at: _feeds(stages, stage, metrics, pool) for at, stage in self._tokens.items()}
        self._counts = {i: self._same_before(i) for i in range(self.end)}

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> list[OwnThread]:
        """End the threads; returns those that still run at the deadline."""
        return self._pool.end(timeout_s)

    def key(self, name: str, upto: int) -> Key:
        """Which map's column a name means to what follows the first ``upto`` maps."""
        for at in range(upto - 1, -1, -1):
            if name in _made(self._stages.maps[at]):
                return name, at
        return name, RELATIONAL

    def length_key(self, name: str) -> Key:
        """What tells the lengths of a sequence column: its tokens, or for a stored list the lengths kept of it."""
        return self._leaf(name, self.end)

    def rests_on(self, keys: Iterable[Key]) -> set[Key]:
        """These columns and all that they are computed from."""
        found: set[Key] = set()
        todo = list(keys)
        while todo:
            key = todo.pop()
            if key not in found:
                found.add(key)
                todo += self._inputs(key)
        return found

    def _inputs(self, key: Key) -> list[Key]:
        name, at = key
        if at == RELATIONAL:
            return []
        step = self._stages.maps[at]
        if isinstance(step, SampleTokens):
            return [] if self._feeds[at] else [self.key(step.transform.column, at)]
        if isinstance(step, SampleColumns):
            return self.expression_keys(step.exprs[step.names.index(name)], at)
        if isinstance(step, SampleMap):
            return [self.key(column, at) for column in step.function.columns]
        assert isinstance(step, SampleFlatMap | SampleAssembly), step
        return []  # made when the samples are

    def expression_keys(self, expr: Expr, upto: int) -> list[Key]:
        """The columns that an expression after ``upto`` maps looks at."""
        return [self._leaf(name, upto) for name in sorted(expr.columns())]

    def test_keys(self, step: SampleFilter, upto: int) -> list[Key]:
        """The columns that a filter looks at."""
        if isinstance(step.predicate, Expr):
            return self.expression_keys(step.predicate, upto)
        return [self.key(name, upto) for name in step.predicate.columns]

    def _leaf(self, name: str, upto: int) -> Key:
        """What stands for a column in an expression: of a stored list only its lengths are looked at."""
        found = self.key(name, upto)
        if found[1] != RELATIONAL or not pa.types.is_list(self._relational.field(name).type):
            return found
        return _LENGTH + name, RELATIONAL

    def need(self, epoch: int, samples: Samples, keys: Iterable[Key]) -> None:
        """Add columns to samples, with whatever they rest on.

        Raises:
            DataError: a value is bad; ``row`` is the sample's place where it is known.
            SourceError: storage failed.
        """
        begun = moment()
        missing = [key for key in self._missing(samples, keys) if key not in samples.columns]
        lengths = {key for key in missing if key[1] == RELATIONAL and key[0].startswith(_LENGTH)}
        names = [name for name, at in missing if at == RELATIONAL and (name, at) not in lengths]
        if names:
            samples.columns.update({(name, RELATIONAL): column for name, column in self._read(samples, names).items()})
        for name, _ in lengths:
            samples.columns[name, RELATIONAL] = self._stored_lengths(samples, name)
        for name, at in sorted((key for key in missing if key[1] != RELATIONAL), key=lambda key: key[1]):
            samples.columns[name, at] = self._computed(epoch, samples, name, at)
        need_sound(begun)

    def _read(self, samples: Samples, names: Sequence[str]) -> dict[str, pa.Array]:
        """Columns of the relational part; counted, as far as they are not kept beside the selection."""
        streams = self._stages.streams
        relations = ", ".join(dict.fromkeys(stream.base.entry.name for stream in streams))
        with self.metrics.timed("fetch_s"), doing(f"reading column {', '.join(names)} of relation {relations}"):
            table = fetch(streams, samples.places, names)
        columns = {name: table[name].combine_chunks() for name in names}
        late = [name for name in names if name != STREAM_ID and any(name not in s.selected.narrow for s in streams)]
        if late:
            self.metrics.add(source_rows=len(samples), source_bytes=sum(columns[name].nbytes for name in late))
        return columns

    def _missing(self, samples: Samples, keys: Iterable[Key]) -> list[Key]:
        found: dict[Key, None] = {}
        todo = [key for key in keys if key not in samples.columns]
        while todo:
            key = todo.pop()
            if key not in found:
                found[key] = None
                todo += [each for each in self._inputs(key) if each not in samples.columns]
        return list(found)

    def _computed(self, epoch: int, samples: Samples, name: str, at: int) -> pa.Array | Ragged:
        step = self._stages.maps[at]
        if isinstance(step, SampleTokens):
            refused: dict[int, str] | None = {} if self._tolerant else None
            tokens = self._tokenized(samples, step, at, refused)
            if refused is not None:
                samples.columns[REFUSED, at] = reasons(refused, len(samples))
            return tokens
        if isinstance(step, SampleColumns):
            value = step.exprs[step.names.index(name)]
            return self.value(samples, value, step.source, at).cast(step.schema().field(name).type)
        assert isinstance(step, SampleMap), step
        return self._called(epoch, samples, step, at)

    def _called(
        self, epoch: int, samples: Samples, step: SampleMap | SampleFilter | SampleFlatMap, at: int
    ) -> pa.Array:
        function = step.predicate if isinstance(step, SampleFilter) else step.function
        assert not isinstance(function, Expr)
        columns = [as_lists(samples.columns[key]) for key in self._inputs_of(function, at)]
        keys = np.zeros(len(samples), dtype=np.uint64)
        if function.random:
            named = np.uint64(seeding.key("map", function.name, self._counts[at]))
            keys = seeding.combine(self.random_keys(epoch, samples, at), named)
        with self.metrics.timed("transform_s"), doing(called(function)):
            table = pa.table(columns, names=[*function.columns])
            return run_on_readable(function, table, keys, self.refused(samples, self._inputs_of(function, at)))

    def _inputs_of(self, function: Function, at: int) -> list[Key]:
        return [self.key(column, at) for column in function.columns]

    def refused(self, samples: Samples, keys: Iterable[Key]) -> NDArray[np.bool_]:
        """Which samples have no text that can be read for one of these columns, shape [S]."""
        out = np.zeros(len(samples), dtype=np.bool_)
        for at in {at for _, at in self.rests_on(keys)} if self._tolerant else ():
            if (REFUSED, at) in samples.columns:
                out |= samples.columns[REFUSED, at].is_valid().to_numpy(zero_copy_only=False)  # type: ignore[union-attr]  # no tokens
        return out

    def _same_before(self, at: int) -> int:
        """How many maps before this one call a function of the same name."""
        name = _called_name(self._stages.maps[at])
        return sum(name is not None and _called_name(each) == name for each in self._stages.maps[:at])

    def _tokenized(self, samples: Samples, step: SampleTokens, at: int, refused: dict[int, str] | None) -> Ragged:
        feeds = self._feeds[at]
        if not feeds:
            texts = samples.columns[self.key(step.transform.column, at)]
            with self.metrics.timed("transform_s"):
                return encoded(self._tokens[at].encoder, step.transform.column, texts, refused)
        if len(feeds) == 1:
            rows = samples.places.rows
            return _at_rows(feeds[0], ordinals(self._stages.streams, 0, rows), np.arange(len(rows)), refused)
        found, places = [], []
        for stream, where in split(samples.places):
            own = ordinals(self._stages.streams, stream, samples.places.rows[where])
            found.append(_at_rows(feeds[stream], own, where, refused))
            places.append(where)
        if not found:
            return Ragged.of_flat(np.empty(0, dtype=np.uint16), np.zeros(1, dtype=np.int64))
        return Ragged.concat(found).take(np.argsort(np.concatenate(places), kind="stable"))

    def random_keys(self, epoch: int, samples: Samples, upto: int | None = None) -> NDArray[np.uint64]:
        """The samples' own random keys (docs/decisions/0032), as they are after ``upto`` maps; identity is fetched if missing.

        Samples that a later flat_map makes of one share its keys, so that it does not matter when a column is computed.
        """
        stages, at = self._stages, self.end if upto is None else upto
        identity = identity_keys(stages, at)
        self.need(epoch, samples, identity)
        columns = [as_lists(samples.columns[key]).to_pylist() for key in identity]
        values = columns[0] if len(columns) == 1 else [repr(row) for row in zip(*columns, strict=True)]
        hashes = np.empty((len(values), 2), dtype=np.uint64)
        for stream, where in split(samples.places):
            own = values if len(where) == len(values) else [values[at] for at in where.tolist()]
            hashes[where] = seeding.identity_hashes(stages.streams[stream].name, own)
        keys = seeding.sample_keys(self.run_seed, epoch, hashes, samples.places.passes)
        parts = samples.parts // self._fan_out(at)
        return np.where(parts > 0, seeding.combine(keys, parts.astype(np.uint64)), keys) if parts.any() else keys

    def _fan_out(self, start: int) -> int:
        """Most samples that one becomes by the maps from ``start`` on."""
        return prod(step.fan_out for step in self._stages.maps[start:] if isinstance(step, SampleFlatMap))

    # ---- expressions

    def value(self, samples: Samples, expr: Expr, source: Sampled | Any, upto: int) -> pa.Array:
        """An expression's values for samples that have its columns."""
        schema = source.schema()
        lists = {n for n in expr.columns() if pa.types.is_list(schema.field(n).type)}
        columns = {n: samples.columns[self._leaf(n, upto)] for n in sorted(expr.columns())}
        plain: dict[str, Any] = {n: v for n, v in columns.items() if n not in lists}
        plain |= {_LENGTH + n: pa.array(lengths_of(columns[n])) for n in lists}
        swapped = _with_lengths(expr, lists)
        fields = [pa.field(n, v.type) for n, v in plain.items()]
        return to_column(bind(swapped, pa.schema(fields)), plain, len(samples))

    def _stored_lengths(self, samples: Samples, name: str) -> pa.Array:
        out = np.empty(len(samples), dtype=np.int64)
        for stream, where in split(samples.places):
            out[where] = self._stages.streams[stream].selected.lengths(name[len(_LENGTH) :])[samples.places.rows[where]]
        return pa.array(out)

    # ---- maps that change which samples there are

    def assemblers(self, context: Context) -> dict[int, Any]:
        """A fresh object for each `assemble` of the plan, by its place among the maps.

        Raises:
            DataError: it cannot be made, or cannot be pushed to.
        """
        return {
            at: assembler(step, context)
            for at, step in enumerate(self._stages.maps)
            if isinstance(step, SampleAssembly)
        }

    def run(self, epoch: int, samples: Samples, assemblers: Mapping[int, Any], *, final: bool) -> tuple[Samples, int]:
        """Samples after every filter, flat_map and assemble; and how many were filtered out.

        Args:
            epoch: the epoch.
            samples: those of a window.
            assemblers: of the chapter.
            final: whether it is the chapter's last window.
        """
        dropped = 0
        for at, step in enumerate(self._stages.maps):
            if isinstance(step, SampleFilter):
                with remembering_sample(samples):
                    self.need(epoch, samples, self.test_keys(step, at))
                    if isinstance(step.predicate, Expr):
                        mask = self.value(samples, step.predicate, step.source, at)
                    else:
                        mask = self._called(epoch, samples, step, at)
                passed = mask.fill_null(fill_value=False).to_numpy(zero_copy_only=False)
                refused = self.refused(samples, self.test_keys(step, at))  # they stay: their batch counts them
                kept = np.flatnonzero(passed | refused)
                dropped += len(samples) - len(kept)
                samples = samples if len(kept) == len(samples) else samples.take(kept)
            elif isinstance(step, SampleFlatMap):
                with remembering_sample(samples):
                    samples = self._fanned(epoch, samples, step, at)
            elif isinstance(step, SampleAssembly):
                with remembering_sample(samples):
                    samples = self._assembled(epoch, samples, step, at, assemblers[at], final=final)
        return samples, dropped

    def _assembled(
        self, epoch: int, samples: Samples, step: SampleAssembly, at: int, made_by: Any, *, final: bool
    ) -> Samples:
        names = step.function.columns
        self.need(epoch, samples, [self.key(name, at) for name in names])
        given = pa.table([as_lists(samples.columns[self.key(name, at)]) for name in names], names=list(names))
        with doing(called(step.function)):
            made = [assembled(step, made_by.push, given)] if len(samples) else []
            made += [assembled(step, made_by.finish)] if final else []
        table = pa.concat_tables([step.schema().empty_table(), *made])
        count = len(table)
        nowhere = np.zeros(count, dtype=np.uint64)
        places = Places(np.zeros(count, dtype=np.int32), nowhere, nowhere)
        columns: dict[Key, Any] = {(name, at): table[name].combine_chunks() for name in table.column_names}
        return Samples(places, np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64), columns)

    def _fanned(self, epoch: int, samples: Samples, step: SampleFlatMap, at: int) -> Samples:
        self.need(epoch, samples, [self.key(n, at) for n in step.function.columns])
        lists = self._called(epoch, samples, step, at)
        counts = lists.value_lengths().fill_null(0).to_numpy().astype(np.int64)
        if counts.size and counts.max() > step.fan_out:
            row = int(counts.argmax())
            error = DataError(
                f"flat_map ({step.function.name}): a sample became {counts[row]:,} samples, fan_out is {step.fan_out}; "
                "raise fan_out, or return fewer"
            )
            error.row = row  # type: ignore[attr-defined]  # read by whoever knows the identities
            raise error
        parents = np.repeat(np.arange(len(counts)), counts)
        parts = (np.arange(len(parents)) - np.repeat(np.cumsum(counts) - counts, counts)).astype(np.int32)
        out = samples.take(parents)
        again = out.parts + parts.astype(np.int64) * self._fan_out(at + 1)
        made = Samples(out.places, again, out.origins, out.columns)
        made.columns[step.name, at] = lists.flatten()
        made.columns[PART, at] = pa.array(parts)
        return made


@contextmanager
def remembering_sample(samples: Samples) -> Iterator[None]:
    """Let an error that carries a place in these samples carry the sample itself, for they change on their way."""
    try:
        yield
    except SourceError as error:
        row = getattr(error, "row", None)
        if row is not None and not hasattr(error, "samples"):
            error.samples = samples.take(np.array([row]))  # type: ignore[attr-defined]  # read by whoever names it
        raise


def _feeds(stages: Stages, stage: TokenStage, metrics: Metrics, pool: Executor | None) -> list[TokenFeed]:
    return [
        TokenFeed(stream.base, kind, store.open(), metrics, pool)
        for stream, kind, store in zip(stages.streams, stage.kinds, stage.stores, strict=False)
    ]


def _at_rows(feed: TokenFeed, own: NDArray[np.uint64], where: Int64, refused: dict[int, str] | None = None) -> Ragged:
    """Tokens of one stream's rows; an error's row, or a refused one, counts among all samples."""
    found: dict[int, str] | None = None if refused is None else {}
    try:
        tokens = feed.tokens(own, found)
    except DataError as error:
        row = getattr(error, "row", None)
        if row is not None:
            error.row = int(where[row])  # type: ignore[attr-defined]  # read by whoever knows the identities
        raise
    if refused is not None and found:
        refused.update({int(where[row]): reason for row, reason in found.items()})
    return tokens


def _made(step: Sampled) -> tuple[str, ...]:
    """The columns that a map makes."""
    if isinstance(step, SampleColumns):
        return step.names
    if isinstance(step, SampleFlatMap):
        return (step.name, PART)
    if isinstance(step, SampleAssembly):
        return tuple(step.schema().names)
    return (step.name,) if isinstance(step, SampleTokens | SampleMap) else ()


def _called_name(step: Sampled) -> str | None:
    if isinstance(step, SampleMap | SampleFlatMap):
        return step.function.name
    return step.predicate.name if isinstance(step, SampleFilter) and not isinstance(step.predicate, Expr) else None


def lengths_of(column: pa.Array | Ragged) -> Int64:
    """Items of each sample's list: of tokens, of a list column, or as stored; shape [S]."""
    if isinstance(column, Ragged):
        return column.lengths
    if pa.types.is_integer(column.type):
        return np.asarray(column.to_numpy(zero_copy_only=False), dtype=np.int64)
    found: Int64 = column.value_lengths().fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    return found


def identity_keys(stages: Stages, upto: int | None = None) -> list[Key]:
    """The columns that tell samples apart after ``upto`` maps: the relation's own, or those that an assembler gave them."""
    made = [at for at, step in enumerate(stages.maps[:upto]) if isinstance(step, SampleAssembly)]
    return [(name, made[-1] if made else RELATIONAL) for name in stages.identity]


def as_lists(column: pa.Array | Ragged) -> pa.Array:
    """Tokens as a list column, for a user's function."""
    if not isinstance(column, Ragged):
        return column
    ends = np.concatenate([[0], np.cumsum(column.lengths)])
    flat = np.empty((1, int(ends[-1])), dtype=np.int64)
    zeros = np.zeros(len(column), dtype=np.int64)
    placed = Placed(zeros, ends[:-1], zeros, column.lengths, 1, flat.shape[1])
    Pad("tokens").fill_tokens(column, placed, flat)
    return pa.LargeListArray.from_arrays(pa.array(ends), pa.array(flat[0]))


def _with_lengths(expr: Expr, lists: set[str]) -> Expr:
    """The expression with ``len(tokens)`` replaced by a column of lengths."""
    if isinstance(expr, Call):
        first = expr.args[0]
        if expr.op == "len" and isinstance(first, Col) and first.name in lists:
            return Col(_LENGTH + first.name)
        return Call(expr.op, tuple(_with_lengths(arg, lists) for arg in expr.args))
    if isinstance(expr, Cast):
        return Cast(_with_lengths(expr.source, lists), expr.type)
    return _with_lengths(expr.source, lists) if isinstance(expr, Alias) else expr
