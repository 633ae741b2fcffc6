"""SQL over the table of a run, in bounded memory: what outliers, spikes and cards ask of 10^8 rows.

The engine has 512 MiB for samples and steps that stand out, unless ``$SPIRAL_SQL_MEMORY_BYTES`` says more or less, and
spills beyond.

A query names the columns that it reads. They are scanned from storage batch by batch, and the engine groups, sorts and
spills as `relational.engine` does; no more than the answer is ever in Python. The engine takes ``A`` and ``a`` for one
column, so a query has names of its own for the columns, and streams come as numbers.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, final

import pyarrow as pa
import pyarrow.compute as pc

from spiral_stream.catalog.names import suggestions
from spiral_stream.catalog.relation.reader import OpenRelation
from spiral_stream.errors import RunError, shown
from spiral_stream.expr import Expr, col
from spiral_stream.planner.stages import Stages
from spiral_stream.relational import engine

STREAM: Final = "stream"
USUAL_BYTES: Final = 1 << 29  # of a query: with 256 MiB outliers of 10^7 rows take 15 CPU s, with 512 14, with 12 GB 11
FIXED: Final = (
    "stream",
    "shard",
    "row",
    "part",
    "attempt",
    "leg",
    "rank",
    "step",
    "epoch",
    "batch",
    "index",
    "applied",
)
_MADE: Final = frozenset({"storage_shard"})  # which registration adds to every relation

_OURS: Final = frozenset(
    {
        *FIXED,
        "number",
        *(
            "occurrences",
            "score",
            "mean",
            "expected",
            "excess",
            "share",
            "spike",
            "k",
            "not_finite",
            "first_step",
            "last_step",
        ),
    }
)
_NAMED: Final = """
SELECT r.stream, r.row, r.part, {columns} FROM rows r SEMI JOIN top t
ON r.stream = t.stream AND r.row = t.row AND r.part = t.part GROUP BY r.stream, r.row, r.part
"""

Scan = Callable[[Sequence[str], Expr | None], Iterator[pa.RecordBatch]]
Tables = Mapping[str, pa.Table | pa.RecordBatchReader]


@final
@dataclass(frozen=True, slots=True)
class Sources:
    """What the streams of a run read.

    Attributes:
        streams: their names, sorted.
        relations: stream -> relation; a stream that is not there is called like its relation.
        shard_names: stream -> names of the relation's storage shards, by number; unknown ones go by number.
        identity: the identity columns of the run's table; None takes all columns before the stream's name.
        columns: what identity columns are called in the relations, by their names in tables of samples, where these differ.
    """

    streams: tuple[str, ...] = ()
    relations: Mapping[str, str] = field(default_factory=dict)
    shard_names: Mapping[str, pa.StringArray] = field(default_factory=dict)
    identity: tuple[str, ...] | None = None
    columns: Mapping[str, str] = field(default_factory=dict)

    @property
    def mixed(self) -> bool:
        """Whether there are several streams, so that identities begin with the stream's name."""
        return len(self.streams) > 1

    def relation(self, stream: str) -> str:
        """Return the name of a stream's relation."""
        return self.relations.get(stream, stream)

    def shard_name(self, stream: str, number: int) -> str:
        """Return the name of a storage shard; empty where it is not known."""
        names = self.shard_names.get(stream)
        return "" if names is None or not 0 <= number < len(names) else str(names[number])

    def with_streams(self, streams: tuple[str, ...]) -> "Sources":
        """Return the same with the streams that a table has."""
        return replace(self, streams=streams)


def sources_of(plans: Sequence[Stages], renamed: str, reserved: Collection[str]) -> Sources:
    """Return what the streams of some plans read, in the versions that they read.

    Args:
        plans: that a run was trained by.
        renamed: what stands in the run's table before the name of an identity column that is reserved there.
        reserved: these names.
    """
    relations, names, identity = dict[str, str](), dict[str, pa.StringArray](), dict[str, str]()
    for stages in plans:
        identity |= {renamed + name if name in reserved else name: name for name in stages.identity}
        for stream in stages.streams:
            entry = stream.base.entry
            relations[stream.name or entry.name] = entry.name
            names[stream.name or entry.name] = stream.base.manifest.shard_names
    columns = {column_name(each): name for each, name in identity.items() if column_name(each) != name}
    return Sources((), relations, names, tuple(identity), columns)


@final
@dataclass(frozen=True, slots=True)
class RunRows:
    """The rows of a run's table, as queries read them.

    Attributes:
        name: of the run.
        schema: of the table: identity columns, then `FIXED`, then values.
        scan: reads columns of the rows for which a predicate is true, as `OpenRelation.scan` does.
        sources: of its streams.
        table: the name of its relation.
    """

    name: str
    schema: pa.Schema
    scan: Scan
    sources: Sources = Sources()
    table: str = ""

    @classmethod
    def of(cls, name: str, opened: OpenRelation, sources: Sources) -> "RunRows":
        """Return the rows of an open relation, which the caller closes."""
        return cls(name, opened.schema, opened.scan, sources, opened.entry.name)

    @property
    def identity(self) -> tuple[str, ...]:
        """The identity columns of the sources."""
        names = self.schema.names
        before = names[: names.index(STREAM)]
        wanted = self.sources.identity
        return tuple(name for name in before if wanted is None or name in wanted)

    @property
    def values(self) -> tuple[str, ...]:
        """The columns of numbers that were logged."""
        names = self.schema.names
        others = {*names[: names.index(STREAM)], *FIXED, *_MADE}
        return tuple(
            field.name
            for field in self.schema
            if field.name not in others and (pa.types.is_floating(field.type) or pa.types.is_integer(field.type))
        )

    def need_value(self, verb: str, value: object) -> str:
        """Return the name of a value that was logged.

        Raises:
            RunError: there is none of this name.
        """
        if isinstance(value, str) and value in self.values:
            return value
        if not self.values:
            msg = f"{verb}: run {self.name} logged no value. Give one to run.log(batch=batch, loss=losses)"
            raise RunError(msg)
        near = suggestions(str(value), self.values)
        msg = f"{verb}: value={shown(value)} was not logged by run {self.name}; {near} Name one of them"
        raise RunError(msg)

    def reader(
        self, columns: Mapping[str, str], streams: Sequence[str] = (), where: Expr | None = None
    ) -> pa.RecordBatchReader:
        """Return the rows as a reader, which an engine reads once.

        Args:
            columns: name in the query -> column.
            streams: the names of all streams: the column of streams is then the number of the name, as int32.
            where: reads no other rows.
        """
        names = list(dict.fromkeys(columns.values()))
        kinds = {name: self.schema.field(name).type for name in names}
        if STREAM in kinds:
            kinds[STREAM] = pa.int32() if streams else pa.utf8()
        schema = pa.schema([pa.field(short, kinds[name]) for short, name in columns.items()])
        known = pa.array(streams, pa.utf8())

        def batches() -> Iterator[pa.RecordBatch]:
            for batch in self.scan(names, where):
                arrays = {name: batch.column(name) for name in names}
                if STREAM in arrays:
                    texts = arrays[STREAM].cast(pa.utf8())
                    arrays[STREAM] = pc.index_in(texts, known) if streams else texts
                yield pa.record_batch([arrays[name] for name in columns.values()], schema=schema)

        return pa.RecordBatchReader.from_batches(schema, batches())

    def answer(self, text: str, rows: pa.RecordBatchReader, **tables: pa.Table) -> pa.Table:
        """Run a SELECT over the rows, which it calls ``rows``, and small tables."""
        return engine.answer(text, {"rows": rows, **tables}, f"run {self.name}", USUAL_BYTES)

    def answer_named(self, text: str, name: str, rows: pa.RecordBatchReader) -> pa.Table:
        """Run a SELECT over the rows, which it calls by a name. Counts of distinct values do not spill, so it may have more."""
        return engine.answer(text, {name: rows}, f"run {self.name}")

    def answer_in_parts(self, text: str, rows: pa.RecordBatchReader, **tables: pa.Table) -> Iterator[pa.RecordBatch]:
        """Run a SELECT over the rows, and yield its answer batch by batch."""
        return engine.answer_in_parts(text, {"rows": rows, **tables}, f"run {self.name}", USUAL_BYTES)


def column_name(identity: str) -> str:
    """Return the name of an identity column in a table of samples, where columns of ours have names too."""
    return f"sample_{identity}" if identity in _OURS else identity


def identity_of(rows: RunRows, streams: Sequence[str], samples: pa.Table) -> pa.Table:
    """Put the identity columns of samples before the others, which a scan looks up, and name their streams.

    Args:
        rows: of the run.
        streams: all of them, which ``samples`` numbers.
        samples: a few, with ``stream``, ``row`` and ``part``.
    """
    keys = ["stream", "row", "part"]
    top = samples.select(keys).group_by(keys, use_threads=False).aggregate([])
    short = {f"i{k}": name for k, name in enumerate(rows.identity)}
    columns = {column_name(name): pa.nulls(len(samples), rows.schema.field(name).type) for name in rows.identity}
    if short and len(samples):
        wanted = {**{key: key for key in keys}, **short}
        reader = rows.reader(wanted, streams, col("row").is_in(top.column("row").unique().to_pylist()))
        text = _NAMED.format(columns=", ".join(f"min(r.{name}) AS {name}" for name in short))
        named = rows.answer(text, reader, top=top)
        at = pc.index_in(_joined(samples, keys), _joined(named, keys).combine_chunks())
        columns = {column_name(name): named.column(each).take(at) for each, name in short.items()}
    rest = with_stream_names(samples, streams)
    return pa.table({**columns, **{name: rest.column(name) for name in rest.column_names}})


def with_stream_names(table: pa.Table, streams: Sequence[str]) -> pa.Table:
    """Write the streams of a table by name, which it has by number."""
    names = pc.take(pa.array(streams, pa.utf8()), table.column(STREAM))
    return table.set_column(table.column_names.index(STREAM), STREAM, names)


def _joined(table: pa.Table, keys: Sequence[str]) -> pa.ChunkedArray:
    return pc.binary_join_element_wise(*(table.column(key).cast(pa.utf8()) for key in keys), " ")
