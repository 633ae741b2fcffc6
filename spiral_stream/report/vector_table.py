"""The table of an index of vectors, by LanceDB: written, brought up to date, searched, and its recall measured.

A table that is there grows: rows are compared by a 64-bit hash of identity and vector, and only those that are new or gone
are written. All vectors are read for it, and 16 bytes per row are held. Of two different rows one in 2**64 is taken for the
same. Old files are linked, so a draft of a large table takes no space, and whoever searches the old one is not disturbed.

Tables of `APPROXIMATE` rows or more get an index of partitions (IVF_FLAT), of which the 32 nearest are searched; smaller ones
are searched in full, so exactly. (With product quantization, IVF_PQ, 10 nearest of 120,000 rows in 200 clusters held 2 of the
true ones; so, 9 or more.) New rows are put into the partitions that there are; once half as many rows were written as the
partitions were made of, they are made anew.
"""

import os
import shutil
import warnings
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, Literal, Self, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spiral_stream.derived.kinds.identities import Identities
from spiral_stream.extras import need
from spiral_stream.integrity.one_look import files_below, size_of
from spiral_stream.sampling.orders.permutation import permute
from spiral_stream.seeding import key

Metric = Literal["cosine", "l2", "dot"]
APPROXIMATE: Final = 100_000  # rows
TABLE: Final = "vectors"
VECTOR: Final = "__vector__"
DISTANCE: Final = "_distance"
_ROW_ID: Final = "_rowid"
_PROBES: Final = 32
_TRAIN_AGAIN: Final = 0.5  # rows written since, as a share of those that the partitions were made of
_DELETED: Final = 10_000  # rows in one statement
_READ: Final = 8_192  # rows
_TIE: Final = 1e-5  # relative: rows as near as the last of the true ones
_COPIED: Final = ("_versions", "_transactions")  # small files; LanceDB writes new ones over some

# N rows, D dimensions, Q queries, K nearest


class RepeatedRowError(Exception):
    """A row is there twice with one vector, so a table cannot grow by comparing rows."""


@final
@dataclass(frozen=True, slots=True)
class TableState:
    """What is known of a table.

    Attributes:
        rows: how many.
        written: rows that the last build wrote.
        removed: rows that it took out.
        trained: rows that the partitions were made of; 0 without any.
        since: rows written since.
        metric: of the partitions.
        files: size of each file, by its path.
    """

    rows: int
    written: int
    removed: int
    trained: int
    since: int
    metric: str
    files: Mapping[str, int]

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    @classmethod
    def of(cls, said: Any) -> Self | None:
        """Return what JSON values say; None if they are of an earlier version."""
        return cls(**said) if isinstance(said, Mapping) and set(said) == set(cls.__dataclass_fields__) else None


def opened(folder: Path) -> Any:
    """Open the table of an index."""
    return _database(folder).open_table(TABLE)


def _database(folder: Path) -> Any:
    need("lancedb", "index", "search the column by hand")
    import lancedb

    return lancedb.connect(folder)


def link(folder: Path, draft: Path, schema: pa.Schema, state: TableState) -> bool:
    """Link the table of an index into a draft; whether it is as it was written, and its rows are of this schema.

    Args:
        folder: of the index.
        draft: of the next one.
        schema: of identities and vectors.
        state: of the table, as it was written.
    """
    source, target = folder / f"{TABLE}.lance", draft / f"{TABLE}.lance"
    if _sizes(source) != dict(state.files):
        return False
    shutil.copytree(source, target, copy_function=_linked)
    return bool(opened(draft).schema.equals(schema))


def _linked(source: str, target: str) -> None:
    """Link a file with rows, since Lance writes none of them again; copy others."""
    if Path(source).parent.name not in _COPIED:
        with suppress(OSError):  # a file system without links
            os.link(source, target)
            return
    shutil.copy2(source, target)


def clear(draft: Path) -> None:
    """Remove what was linked into a draft."""
    shutil.rmtree(draft / f"{TABLE}.lance", ignore_errors=True)


def create(draft: Path, batches: Iterator[pa.RecordBatch], schema: pa.Schema, metric: Metric) -> TableState:
    """Write a table.

    Args:
        draft: folder.
        batches: identities and vectors.
        schema: of them.
        metric: by which rows are near.
    """
    table: Any = _database(draft).create_table(TABLE, pa.RecordBatchReader.from_batches(schema, batches))
    rows = int(table.count_rows())
    trained = _partitioned(table, metric) if rows >= APPROXIMATE else 0
    return TableState(rows, rows, 0, trained, 0, metric, _sizes(draft / f"{TABLE}.lance"))


def grow(
    draft: Path, batches: Iterator[pa.RecordBatch], schema: pa.Schema, metric: Metric, state: TableState
) -> TableState:
    """Write what differs from the table that was linked.

    Args:
        draft: folder with it.
        batches: identities and vectors, all of them.
        schema: of them.
        metric: by which rows are near.
        state: of the table.

    Raises:
        RepeatedRowError: a row is there twice.
    """
    table = opened(draft)
    known = _Known(table, schema)
    fresh = known.fresh(batches)
    first = next(fresh, None)
    if first is not None:
        table.add(pa.RecordBatchReader.from_batches(schema, chained(first, fresh)))
    known.need_no_repeats()
    removed = known.gone()
    for at in range(0, len(removed), _DELETED):
        table.delete(f"{_ROW_ID} IN ({', '.join(map(str, removed[at : at + _DELETED].tolist()))})")
    rows = int(table.count_rows())
    trained, since = _tidied(table, rows, state.since + known.written, metric, state)
    sizes = _sizes(draft / f"{TABLE}.lance")
    return TableState(rows, known.written, len(removed), trained, since, metric, sizes)


def chained(first: pa.RecordBatch, rest: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield a batch, and those after it."""
    yield first
    yield from rest


def search(table: Any, vector: NDArray[Any], metric: str, count: int, *, approximate: bool) -> Any:
    """Return the search for the rows that are nearest to a vector.

    Args:
        table: of an index.
        vector: shape [D].
        metric: by which rows are near.
        count: how many.
        approximate: whether it has partitions.
    """
    query: Any = table.search(vector, vector_column_name=VECTOR).distance_type(metric)
    return (query.nprobes(_PROBES) if approximate else query).limit(count)


def recall(table: Any, metric: str, count: int, queries: int, seed: int, *, approximate: bool) -> float:
    """Return which share of the truly nearest rows a search finds, for rows that are drawn from the table.

    The nearest rows are found by NumPy from all vectors, in one scan. A row that is as near as the last of them counts, too.

    Args:
        table: of an index.
        metric: by which rows are near.
        count: how many nearest rows; fewer if there are fewer.
        queries: rows that are drawn.
        seed: of the draw.
        approximate: whether it has partitions.
    """
    dataset, rows = table.to_lance(), int(table.count_rows())
    count, queries = min(count, rows - 1), min(queries, rows)
    if count < 1:
        return 1.0
    drawn = permute(np.arange(queries, dtype=np.uint64), rows, key("recall", seed))
    ids_Q, vectors_QD = _with_ids(dataset, drawn)
    true_ids, last = _brute_force(dataset, ids_Q, vectors_QD, metric, count)
    found = 0
    for k, (mine, vector) in enumerate(zip(ids_Q, vectors_QD, strict=True)):  # one search takes 1 ms and more
        hits = search(table, vector.astype(np.float32), metric, count + 1, approximate=approximate)
        near = hits.with_row_id(True).select([DISTANCE]).to_arrow()
        ids, distances = near.column(_ROW_ID).to_numpy(), near.column(DISTANCE).to_numpy().astype(np.float64)
        others = ids != mine
        ids, distances = ids[others][:count], distances[others][:count]
        ties = distances <= last[k] + _TIE * max(1.0, abs(last[k]))
        found += int((np.isin(ids, true_ids[k]) | ties).sum())
    return found / (queries * count)


def _with_ids(dataset: Any, rows: NDArray[np.uint64]) -> tuple[NDArray[np.uint64], NDArray[np.float64]]:
    """Return row ids and vectors of rows by their number: shapes [Q] and [Q, D]."""
    ids = np.concatenate(
        [batch.column(_ROW_ID).to_numpy() for batch in dataset.scanner([], with_row_id=True).to_batches()]
    )
    vectors = dataset.take(rows.tolist(), columns=[VECTOR]).column(VECTOR).combine_chunks()
    return ids[rows.astype(np.int64)].astype(np.uint64), _matrix(vectors).astype(np.float64)


def _brute_force(
    dataset: Any, ids_Q: NDArray[np.uint64], queries_QD: NDArray[np.float64], metric: str, count: int
) -> tuple[NDArray[np.uint64], NDArray[np.float64]]:
    """Return the ids of the nearest rows of each query, shape [Q, K], and the distance of the last of them, shape [Q]."""
    nearest = np.full((len(ids_Q), count), np.inf)
    names = np.zeros((len(ids_Q), count), np.uint64)
    for batch in dataset.scanner([VECTOR], with_row_id=True, batch_size=_READ).to_batches():
        ids_N = batch.column(_ROW_ID).to_numpy().astype(np.uint64)
        distances_QN = _distances(queries_QD, _matrix(batch.column(VECTOR)).astype(np.float64), metric)
        distances_QN[ids_Q[:, None] == ids_N[None, :]] = np.inf  # a row is not near itself
        both = np.concatenate([nearest, distances_QN], axis=1)
        both_names = np.concatenate([names, np.broadcast_to(ids_N, distances_QN.shape)], axis=1)
        at = np.argpartition(both, count - 1, axis=1)[:, :count]
        nearest, names = np.take_along_axis(both, at, 1), np.take_along_axis(both_names, at, 1)
    return names, nearest.max(axis=1)


def _distances(queries_QD: NDArray[np.float64], vectors_ND: NDArray[np.float64], metric: str) -> NDArray[np.float64]:
    products_QN: NDArray[np.float64] = queries_QD @ vectors_ND.T
    if metric == "dot":
        return np.subtract(1, products_QN)
    squares_Q: NDArray[np.float64] = (queries_QD**2).sum(axis=1)
    squares_N: NDArray[np.float64] = (vectors_ND**2).sum(axis=1)
    if metric == "l2":
        return np.subtract(squares_Q[:, None] + squares_N[None, :], 2 * products_QN)
    with np.errstate(invalid="ignore", divide="ignore"):  # a vector of zeros is near nothing
        cosines = products_QN / np.sqrt(squares_Q[:, None] * squares_N[None, :])
    return np.nan_to_num(1 - cosines, nan=np.inf)


@final
class _Known:
    """The rows of a table, by their hashes, and which of them were met again.

    Args:
        table: that is there.
        schema: of identities and vectors.
    """

    def __init__(self, table: Any, schema: pa.Schema) -> None:
        names = [name for name in schema.names if name != VECTOR]
        self._hash = Identities((*names, VECTOR), (*(schema.field(name).type for name in names), pa.large_binary()))
        self._names, self.written = names, 0
        hashes, ids = [np.empty(0, np.uint64)], [np.empty(0, np.uint64)]
        for batch in table.to_lance().scanner([*names, VECTOR], with_row_id=True, batch_size=_READ).to_batches():
            hashes.append(self._hashes(batch))
            ids.append(batch.column(_ROW_ID).to_numpy().astype(np.uint64))
        found = np.concatenate(hashes)
        order = np.argsort(found, kind="stable")
        self._sorted, self._ids = found[order], np.concatenate(ids)[order]
        self._met = np.zeros(len(found), np.int64)

    def fresh(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows that the table does not have, and note the others."""
        for batch in batches:
            hashes = self._hashes(batch)
            at = np.searchsorted(self._sorted, hashes)
            near = np.minimum(at, max(0, len(self._sorted) - 1))
            there = self._sorted[near] == hashes if len(self._sorted) else np.zeros(len(hashes), bool)
            np.add.at(self._met, near[there], 1)
            if not there.all():
                new = batch.filter(pa.array(~there))
                self.written += len(new)
                yield new

    def need_no_repeats(self) -> None:
        """Refuse rows that are there twice.

        Raises:
            RepeatedRowError: one is.
        """
        if (self._met > 1).any() or (self._sorted[1:] == self._sorted[:-1]).any():
            raise RepeatedRowError

    def gone(self) -> NDArray[np.uint64]:
        """Return the ids of the rows that were not met."""
        return np.sort(self._ids[self._met == 0])

    def _hashes(self, batch: pa.RecordBatch) -> NDArray[np.uint64]:
        vectors = np.ascontiguousarray(_matrix(batch.column(VECTOR)))
        ends = np.arange(len(batch) + 1, dtype=np.int64) * (vectors.shape[1] * vectors.itemsize)
        data = pa.Array.from_buffers(pa.large_binary(), len(batch), [None, pa.py_buffer(ends), pa.py_buffer(vectors)])
        columns = [*(batch.column(name) for name in self._names), data]
        return self._hash.hashes([pa.chunked_array([column]) for column in columns])


def _matrix(vectors: pa.FixedSizeListArray) -> NDArray[np.float32]:
    """Return vectors as an array of shape [N, D]."""
    size = vectors.type.list_size
    found: NDArray[np.float32] = vectors.flatten().to_numpy(zero_copy_only=False).reshape(-1, size)
    return found


def _partitioned(table: Any, metric: Metric) -> int:
    """Put the rows into partitions; returns how many rows."""
    from lancedb.index import IvfFlat

    table.create_index(VECTOR, config=IvfFlat(distance_type=metric))
    return int(table.count_rows())


def _tidied(table: Any, rows: int, since: int, metric: Metric, state: TableState) -> tuple[int, int]:
    """Bring partitions and files up to date; returns of how many rows the partitions were made, and rows written since."""
    stale = not state.trained or state.metric != metric or since > _TRAIN_AGAIN * state.trained
    wanted = rows >= APPROXIMATE
    if stale or not wanted:
        for index in table.list_indices():
            table.drop_index(index.name)
    _compacted(table)
    if not wanted:
        return 0, 0
    if not stale:
        return state.trained, since
    trained = _partitioned(table, metric)
    _compacted(table)
    return trained, 0


def _compacted(table: Any) -> None:
    """Put new rows into the partitions that there are, small files together, and remove those of former versions."""
    with warnings.catch_warnings():  # nobody else has this draft
        warnings.filterwarnings("ignore", message="optimize.cleanup_older_than=0", category=UserWarning)
        table.optimize(cleanup_older_than=timedelta(0))


def _sizes(folder: Path) -> dict[str, int]:
    return {str(path.relative_to(folder)): size_of(path) for path in files_below(folder)}
