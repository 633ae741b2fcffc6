"""Rows like these: an index over a column of vectors, by LanceDB. No training process asks for it.

The vectors are a stored column, or values of a function that a plan names after `sample`, as its stream computes or has
stored them. They are copied into a table of LanceDB in the catalog's folder, with the identities of their rows; `vector_table`
writes, grows and searches it.
"""

import errno
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spiral_stream.batching.tail import KeepPartial
from spiral_stream.catalog.names import suggestions
from spiral_stream.catalog.registry import AnyCatalog
from spiral_stream.catalog.relation.reader import OpenRelation
from spiral_stream.catalog.vector_indexes import FACTS, index_facts, index_folder, remove_index, searching
from spiral_stream.display.progress import working
from spiral_stream.errors import CacheError, PlanError, SpiralError, cut, shown
from spiral_stream.expr import col
from spiral_stream.extras import need
from spiral_stream.fields.list import List
from spiral_stream.fields.stack import Stack
from spiral_stream.integrity.faults import failed
from spiral_stream.integrity.locks import DEADLINE_S, Wait
from spiral_stream.integrity.publish import new_draft, remove, sweep_drafts, write_file
from spiral_stream.integrity.seal import sealed_json
from spiral_stream.plan import nodes
from spiral_stream.plan.saving.fingerprint import fingerprint
from spiral_stream.plan.tree import relations_of
from spiral_stream.planner.defaults import settled
from spiral_stream.planner.selection.some_rows import batches as rows_of_plan
from spiral_stream.prepared import PreparedStream
from spiral_stream.report import vector_table
from spiral_stream.report.vector_table import DISTANCE, VECTOR, Metric, RepeatedRowError, TableState
from spiral_stream.sources.source import ROW, SCAN_ROWS

_BATCH: Final = 256
_NAMED: Final = 10_000  # identities in one call


@final
@dataclass(frozen=True, slots=True)
class VectorIndex:
    """Vectors of the rows of a relation, to be searched by `Relation.nearest`.

    Attributes:
        relation: its name.
        column: of the vectors.
        data_version: of the relation.
        plan: fingerprint of the plan that gave them.
        metric: by which rows are near.
        rows: how many.
        dimensions: of a vector.
        identity: columns that name a row.
        approximate: whether a search may miss some of the nearest.
        path: where the table lies.
        written: rows that the last build wrote: those that were new or had changed.
        removed: rows that it took out.

    Examples:
        >>> table = pa.table({"id": range(4), "embedding": pa.array([[0.0, 1.0], [1.0, 0.0], [0.1, 1.0], [1.0, 0.1]])})
        >>> entry = catalog.register("vectors", spiral.Arrow(table), identity="id")
        >>> index = catalog.table("vectors").index("embedding")
        >>> index.rows, index.dimensions, index.approximate
        (4, 2, False)
    """

    relation: str
    column: str
    data_version: str
    plan: str
    metric: str
    rows: int
    dimensions: int
    identity: tuple[str, ...]
    approximate: bool
    path: Path
    written: int = 0
    removed: int = 0

    def recall(self, count: int = 10, *, queries: int = 200, seed: int = 0) -> float:
        """Measure which share of the truly nearest rows a search finds; 1.0 where rows are searched exactly.

        Rows are drawn from the index, and their nearest are found by brute force, in one scan of all vectors.

        Args:
            count: nearest rows of each.
            queries: rows that are drawn.
            seed: of the draw.

        Raises:
            PlanError: the index is not there any more, or damaged.

        Examples:
            >>> table = pa.table({"id": range(3), "embedding": pa.array([[0.0, 1.0], [1.0, 0.0], [0.1, 1.0]])})
            >>> entry = catalog.register("three", spiral.Arrow(table), identity="id")
            >>> catalog.table("three").index("embedding").recall(count=2)
            1.0
        """
        for name, value in (("count", count), ("queries", queries)):
            if type(value) is not int or value < 1:
                msg = f"recall: {name}={shown(value)}. Give a number from 1 up"
                raise PlanError(msg)
        with _searched(self.path, self.relation, self.column, "recall") as table:
            return vector_table.recall(table, self.metric, count, queries, seed, approximate=self.approximate)


def build_index(node: nodes.Node, catalog: AnyCatalog, column: str, metric: Metric) -> VectorIndex:
    """Make the index of a column of vectors; of one that is there, only what differs is written.

    Args:
        node: a plan of rows, or of samples.
        catalog: where its relation is registered.
        column: of lists of numbers, all of one length.
        metric: by which rows are near.

    Raises:
        MissingExtraError: LanceDB is not installed.
        PlanError: the plan reads several relations, or the column holds no vectors.
    """
    need("lancedb", "index", "search the column by hand")
    if metric not in get_args(Metric):
        msg = f"index: metric={shown(metric)}. Give one of {', '.join(get_args(Metric))}"
        raise PlanError(msg)
    name = relation_of(node, "index")
    entry = catalog.entry(name)
    _need_vectors(node, column)
    schema = node.schema()
    identity = tuple(each for each in entry.identity if each in schema.names)
    if not identity:
        msg = f"index: the plan has dropped {', '.join(entry.identity)}, which names the rows of {name}. Keep it in the plan"
        raise PlanError(msg)
    folder = index_folder(catalog.root, name, column)
    facts = {
        "relation": name,
        "column": column,
        "data_version": entry.data_version,
        "plan": fingerprint(node),
        "metric": metric,
        "identity": list(identity),
    }
    with working(f"index of {name}.{column}"):
        try:
            return _built(folder, _vectors(node, catalog, identity, column), facts, grows=True)
        except RepeatedRowError:
            return _built(folder, _vectors(node, catalog, identity, column), facts, grows=False)


def _built(folder: Path, found: Iterator[pa.RecordBatch], facts: Mapping[str, Any], *, grows: bool) -> VectorIndex:
    """Put an index of these rows in place of the one that is there, whose table it takes over if it can."""
    first = next(found, None)
    if first is None:
        msg = f"index: {facts['relation']} has no rows with a vector in {facts['column']}. Filter less"
        raise PlanError(msg)
    with _made(folder) as draft:
        rows = vector_table.chained(first, found)
        former = _linked(folder, draft, first.schema) if grows else None
        if former is None:
            state = vector_table.create(draft, rows, first.schema, facts["metric"])
        else:
            state = vector_table.grow(draft, rows, first.schema, facts["metric"], former)
        made = {
            **facts,
            "rows": state.rows,
            "dimensions": first.schema.field(VECTOR).type.list_size,
            "approximate": state.trained > 0,
            "written": state.written,
            "removed": state.removed,
            "table": state.to_json(),
        }
        write_file(draft / FACTS, sealed_json(made))
    return _index(folder, made)


def _linked(folder: Path, draft: Path, schema: pa.Schema) -> TableState | None:
    """Link the table that is there into a draft; None where it cannot grow to one of this schema."""
    shared = searching(folder)
    try:
        state = TableState.of(index_facts(folder).get("table"))
        if state is not None and vector_table.link(folder, draft, schema, state):
            return state
    except (SpiralError, OSError, RuntimeError, ValueError):  # it is not there, or damaged
        pass
    finally:
        shared.release()
    vector_table.clear(draft)
    return None


@contextmanager
def _made(folder: Path) -> Iterator[Path]:
    """A draft that takes the place of an index, once nobody searches the one that is there.

    Raises:
        CacheError: the folder cannot be written, or somebody searches the index for longer than the deadline.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        sweep_drafts(folder.parent, folder.name)
        work, held = new_draft(folder, lambda draft: draft.mkdir())
        try:
            yield work
            wait = Wait(DEADLINE_S)
            while not _put(work, folder):
                if not wait.pause():
                    msg = f"index: {folder}: others search or make it for {DEADLINE_S:g} s. Try again when they have ended"
                    raise CacheError(msg)
        finally:
            held.release()
            remove(work)
    except OSError as error:
        raise failed(error, "Make it writable", folder, "cannot be written") from error


def _put(work: Path, folder: Path) -> bool:
    """Put a draft in place of an index; whether nobody was in the way."""
    if not remove_index(folder):
        return False
    try:
        work.rename(folder)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):  # another builder has put one meanwhile
            return False
        raise
    return True


def nearest(name: str, catalog: AnyCatalog, to: Any, column: str, count: int, verb: str = "nearest") -> pa.Table:
    """Return the rows that are nearest to some.

    Args:
        name: of their relation.
        catalog: where it is registered.
        to: an identity, a list of identities, or vectors: shape [D] or [N, D].
        column: whose index is searched.
        count: how many for each.
        verb: begins messages.

    Returns:
        a row for each: ``query``, from 0, the identity columns, ``distance``; by query, the nearest first. A row is not
        near itself.

    Raises:
        MissingExtraError: LanceDB is not installed.
        PlanError: there is no index, or it is of other data; or no row has such an identity.
    """
    need("lancedb", verb, "search the column by hand")

    if type(count) is not int or count < 1:
        msg = f"{verb}: count={shown(count)}. Give how many rows, from 1 up"
        raise PlanError(msg)
    index = opened_index(name, catalog, column, verb)
    with _searched(index.path, name, column, verb) as table:
        return _nearest(table, index, to, count, verb)


@contextmanager
def _searched(folder: Path, name: str, column: str, verb: str) -> Iterator[Any]:
    """The table of an index, which nobody removes meanwhile.

    Raises:
        PlanError: it cannot be read.
    """
    shared = searching(folder)
    try:
        yield vector_table.opened(folder)
    except (OSError, RuntimeError, ValueError) as error:  # LanceDB's, of files that are damaged or not there
        msg = f"{verb}: the index of {name}.{column} cannot be read ({cut(str(error))}). {_again(name, column)}"
        raise PlanError(msg) from error
    finally:
        shared.release()


def _nearest(table: Any, index: VectorIndex, to: Any, count: int, verb: str) -> pa.Table:
    vectors, identities = _queries(table, index, to, verb)
    out = []
    for k, vector in enumerate(vectors):
        query = identities[k] if identities else None
        wanted = count + (query is not None)
        search = vector_table.search(table, vector, index.metric, wanted, approximate=index.approximate)
        found = search.select([*index.identity, DISTANCE]).to_arrow()
        if query is not None:
            found = found.filter(pc.invert(_is(found, index.identity, query)))
        found = found.slice(0, count)
        columns = [
            pa.array(np.full(len(found), k, np.int64)),
            *(found.column(name) for name in [*index.identity, DISTANCE]),
        ]
        out.append(pa.table(columns, names=["query", *index.identity, "distance"]))
    return pa.concat_tables(out)


def opened_index(name: str, catalog: AnyCatalog, column: str, verb: str = "nearest") -> VectorIndex:
    """Return the index of a column, as it was made.

    Raises:
        PlanError: there is none, or it is of other data.
    """
    folder = index_folder(catalog.root, name, str(column))
    again = _again(name, column)
    try:
        made = index_facts(folder)
    except (SpiralError, OSError) as error:
        msg = f"{verb}: column {shown(column)} of {name} has no index. {again}"
        raise PlanError(msg) from error
    if made["data_version"] != catalog.entry(name).data_version:
        then = made["data_version"][:12]
        msg = f"{verb}: the index of {name}.{column} is of data version {then}, and {name} has changed since. {again}"
        raise PlanError(msg)
    return _index(folder, made)


def _index(folder: Path, made: Mapping[str, Any]) -> VectorIndex:
    known = {name: made[name] for name in VectorIndex.__dataclass_fields__ if name in made}
    return VectorIndex(**{**known, "identity": tuple(made["identity"]), "path": folder})


def _again(name: str, column: str) -> str:
    return f'Make one: catalog.table("{name}").index("{column}")'


def relation_of(node: nodes.Node, verb: str) -> str:
    """Return the relation that a plan reads.

    Raises:
        PlanError: it reads several.
    """
    names = list(dict.fromkeys(relations_of(node)))
    if len(names) != 1:
        msg = f"{verb}: the plan reads {', '.join(names)}. Index one relation, before it is joined or mixed"
        raise PlanError(msg)
    return names[0]


def _need_vectors(node: nodes.Node, column: object) -> None:
    schema = node.schema()
    if not isinstance(column, str) or column not in schema.names:
        msg = f"index: {shown(column)} is not a column; {suggestions(str(column), schema.names)} Name one of them"
        raise PlanError(msg)
    kind = schema.field(column).type
    lists = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    if not lists or not (pa.types.is_floating(kind.value_type) or pa.types.is_integer(kind.value_type)):
        msg = f"index: {column!r} is {kind}, and no vector. Name a column of lists of numbers, all of one length"
        raise PlanError(msg)


def _vectors(node: nodes.Node, catalog: AnyCatalog, identity: Sequence[str], column: str) -> Iterator[pa.RecordBatch]:
    """Yield identities and vectors; rows without a vector are left out."""
    if isinstance(node, nodes.Relational):
        opened: dict[str, OpenRelation] = {}

        def open_relation(name: str) -> OpenRelation:
            if name not in opened:
                opened[name] = OpenRelation(catalog.entry(name))
            return opened[name]

        try:
            size = 0
            for batch in rows_of_plan(node, open_relation, SCAN_ROWS, [*identity, column]):
                size = size or _size(batch.column(column))
                yield from _fixed(batch.filter(batch.column(column).is_valid()), identity, column, size)
        finally:
            for each in opened.values():
                each.close()
        return
    fields = {**{name: List(name) for name in identity}, column: Stack(column, dtype="float32")}
    formed = settled(node, None, None, _BATCH)  # samples that a function makes several of need windows
    plan = nodes.Collate(node, _BATCH, KeepPartial(), tuple(fields.items()), formed)
    with PreparedStream(nodes.Deliver(plan, "numpy"), catalog) as stream:
        size = 0
        for batch in stream.to_batches():
            size = size or _size(batch.column(column))
            yield from _fixed(batch, identity, column, size)


def _size(vectors: pa.Array) -> int:
    if pa.types.is_fixed_size_list(vectors.type):
        return int(vectors.type.list_size)
    lengths = pc.list_value_length(vectors.drop_null())
    return int(lengths[0].as_py()) if len(lengths) else 0


def _fixed(batch: pa.RecordBatch, identity: Sequence[str], column: str, size: int) -> Iterator[pa.RecordBatch]:
    if not len(batch):
        return
    try:
        vectors = batch.column(column).cast(pa.list_(pa.float32(), size))
    except pa.ArrowInvalid as error:
        msg = f"index: the lists of {column!r} are not all of {size} numbers. Filter the others, or pad them"
        raise PlanError(msg) from error
    yield pa.record_batch([*(batch.column(name) for name in identity), vectors], names=[*identity, VECTOR])


def _queries(table: Any, index: VectorIndex, to: Any, verb: str) -> tuple[np.ndarray[Any, Any], list[tuple[Any, ...]]]:
    """The vectors to search for, and the identities that they are of; none where vectors are given."""
    if isinstance(to, np.ndarray) and to.dtype.kind == "f":
        vectors = np.atleast_2d(to).astype(np.float32)
        if vectors.ndim != 2 or vectors.shape[1] != index.dimensions:  # noqa: PLR2004
            found = f"the vectors have the shape {to.shape}; those of {index.column} have {index.dimensions} numbers"
            msg = f"{verb}: {found}. Give an array [N, D]"
            raise PlanError(msg)
        return vectors, []
    listed = to if isinstance(to, list) else [to]
    if not listed or len(listed) > _NAMED:
        msg = f"{verb}: {len(listed):,} identities. Give 1 to {_NAMED:,}, or vectors as an array of floats"
        raise PlanError(msg)
    identities = [each if isinstance(each, tuple) else (each,) for each in listed]
    for each in identities:
        if len(each) != len(index.identity) or not all(type(value) in (str, int) for value in each):
            found = f"{shown(each)} is no identity of {index.relation}, which has {', '.join(index.identity)}"
            msg = f"{verb}: {found}. Give a text or an integer for each"
            raise PlanError(msg)
    where = " OR ".join(
        "("
        + " AND ".join(f"`{name}` = {_literal(value)}" for name, value in zip(index.identity, each, strict=True))
        + ")"
        for each in identities
    )
    found = table.search().where(where).limit(len(identities)).to_arrow()
    rows = {tuple(row[name] for name in index.identity): row[VECTOR] for row in found.to_pylist()}
    for each in identities:
        if each not in rows:
            named = shown(each[0] if len(each) == 1 else each)
            msg = f"{verb}: no row of the index of {index.relation} has the identity {named}. Name another row"
            raise PlanError(msg)
    return np.array([rows[each] for each in identities], np.float32), identities


def _literal(value: str | int) -> str:
    return str(value) if isinstance(value, int) else "'" + value.replace("'", "''") + "'"


def _is(table: pa.Table, identity: Sequence[str], values: Sequence[Any]) -> pa.ChunkedArray:
    first, *others = (pc.equal(table.column(name), value) for name, value in zip(identity, values, strict=True))
    for each in others:
        first = pc.and_(first, each)
    return first


def rows_with(catalog: AnyCatalog, name: str, identities: pa.Table) -> pa.Table:
    """Add ``row``, the number in its relation, to a table with identity columns; rows that are gone are left out.

    Args:
        catalog: where the relation is registered.
        name: of it.
        identities: a few, with the identity columns.
    """
    entry = catalog.entry(name)
    first = entry.identity[0]
    predicate = col(first).is_in(identities.column(first).unique().to_pylist())
    with OpenRelation(entry) as opened:
        found = pa.Table.from_batches(
            list(opened.scan(list(entry.identity), predicate)),
            pa.schema([*(opened.schema.field(each) for each in entry.identity), pa.field(ROW, pa.uint64())]),
        )
    numbers = {tuple(row[each] for each in entry.identity): row[ROW] for row in found.to_pylist()}
    rows = [numbers.get(tuple(row[each] for each in entry.identity)) for row in identities.to_pylist()]
    known = pa.array([each is not None for each in rows])
    return identities.append_column("row", pa.array(rows, pa.int64())).filter(known)
