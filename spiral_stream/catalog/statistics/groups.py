"""Facts of columns, merged over groups of neighbouring shards. A group is kept, so a changed shard costs its group only.

Shards are neighbours in the order of their names. A group ends where the hash of a name says so, after about 64 shards:
a shard that comes, goes or changes leaves all other groups as they are. The key of a group covers the names and keys of
its shards and the columns, so what is kept under it never changes. It keeps two tables: a row per column with what merges
further, and the rows of each value in each shard.
"""

import json
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from spiral_stream.derived import _runs
from spiral_stream.derived.index import Keys
from spiral_stream.derived.kinds.column_facts import REGISTERS, ColumnFacts, is_word, restored
from spiral_stream.derived.pieces import FactsInMemory, Pieces
from spiral_stream.errors import CacheError, CatalogError, cut
from spiral_stream.integrity import seal
from spiral_stream.integrity.publish import publish_table
from spiral_stream.sources.change_detection import content_key

HISTOGRAMS: Final = pa.schema(
    [("shard", pa.utf8()), ("column", pa.utf8()), ("value", pa.utf8()), ("count", pa.int64())]
)
FACTS: Final = pa.schema(
    [
        ("column", pa.utf8()),
        ("least", pa.list_(pa.utf8())),  # of each shard
        ("greatest", pa.list_(pa.utf8())),
        ("words", pa.list_(pa.uint64())),  # the different values, sorted, of a column of words
        ("texts", pa.list_(pa.utf8())),  # and of any other
        ("counts", pa.list_(pa.int64())),  # rows of each value
        ("points", pa.list_(pa.uint64())),  # quantiles of all shards, sorted
        ("weights", pa.list_(pa.float64())),  # rows that each point stands for
        ("registers", pa.list_(pa.uint8())),  # of the shards that have registers
        ("hashes", pa.list_(pa.uint64())),  # of the shards that have none
        ("rows", pa.int64()),  # of its histogram; null if some values are not kept, or there are too many
    ]
)
SHARDS_EACH: Final = 64  # on average
_MOST_SHARDS: Final = 256
_VERSION: Final = 1

Int64 = NDArray[np.int64]


@final
@dataclass(frozen=True, slots=True, eq=False)
class Members:
    """The shards of one group."""

    names: pa.Array  # [M], ascending
    shards: Int64  # [M] their places in the pieces
    rows: Int64  # [M]
    key: str


@final
class ShardGroup:
    """What is kept of one group."""

    def __init__(self, key: str, facts: pa.Table, histogram: pa.Table | Path) -> None:
        """Hold it.

        Args:
            key: 32 hex digits.
            facts: schema `FACTS`.
            histogram: schema `HISTOGRAMS`, or the file that has it.
        """
        self.key, self.facts, self._found = key, facts, histogram

    @cached_property
    def histogram(self) -> pa.Table:
        """The rows of each value in each shard, column by column.

        Raises:
            CatalogError: they are damaged; they are made again when they are needed next.
        """
        return _histogram(self._found) if isinstance(self._found, Path) else self._found

    def spans(self) -> Iterator[tuple[str, int, int]]:
        """Yield the columns that have a histogram, the first row of each, and how many there are."""
        at = 0
        for name, rows in zip(self.facts["column"].to_pylist(), self.facts["rows"].to_pylist(), strict=True):
            if rows is not None:
                yield name, at, rows
                at += rows

    def save(self, folder: Path) -> None:
        """Keep it.

        Raises:
            OSError: the folder cannot be written.
        """
        if not isinstance(self._found, Path):
            publish_table(histogram_path(folder, self.key), self._found)
            publish_table(facts_path(folder, self.key), self.facts)  # last: its presence says that both are there


def histogram_path(folder: Path, key: str) -> Path:
    """Return where the rows of each value in each shard of a group lie."""
    return folder / f"{key}.values"


def facts_path(folder: Path, key: str) -> Path:
    """Return where the facts of a group lie."""
    return folder / f"{key}.facts"


def kept_group(folder: Path, key: str) -> ShardGroup | None:
    """Return a group that is kept, or None; one that is damaged is not."""
    path, histogram = facts_path(folder, key), histogram_path(folder, key)
    if not (path.exists() and histogram.exists()):
        return None
    try:
        facts = seal.table(path)
    except CacheError:
        return None
    return ShardGroup(key, facts, histogram) if facts.schema.equals(FACTS) else None


def _histogram(path: Path) -> pa.Table:
    try:
        found = seal.table(path)
        if not found.schema.equals(HISTOGRAMS):
            raise seal.damaged(path, "its columns are not those of a histogram")
    except CacheError as error:
        with suppress(OSError):
            path.unlink()
        name = path.parent.parent.name
        msg = f'statistics of {name}: {path}: {cut(str(error))}. It is removed. Count again with catalog.measure("{name}")'
        raise CatalogError(msg) from error
    return found


def members_of(
    names: pa.Array, shards: Int64, rows: Int64, keys: Keys, facts: Sequence[ColumnFacts], *about: object
) -> list[Members]:
    """Cut shards into groups.

    Args:
        names: shape [S], ascending.
        shards: shape [S]: their places in the pieces.
        rows: shape [S].
        keys: shape [S, 2], uint64.
        facts: of the columns.
        about: what else the groups depend on, as JSON values.
    """
    large = names.cast(pa.large_utf8())
    ends = np.frombuffer(large.buffers()[1], np.int64)[large.offset :][: len(large) + 1]
    data = large.buffers()[2] or b""
    borders = _borders(ends, data)
    columns = json.dumps([_VERSION, [each.facts() for each in facts], *about], sort_keys=True)
    return [
        Members(
            names.slice(a, b - a),
            shards[a:b],
            rows[a:b],
            content_key(
                columns,
                np.diff(ends[a : b + 1]).tobytes(),
                bytes(memoryview(data)[ends[a] : ends[b]]),
                keys[a:b].tobytes(),
            ),
        )
        for a, b in pairwise(borders)
    ]


def _borders(ends: Int64, data: Any) -> list[int]:
    """Where groups begin, and the end."""
    count = len(ends) - 1
    hashes = np.zeros(count, np.uint64)
    _runs.hash_spans(ends, data, hashes, 0)
    found = [0, *(np.flatnonzero(hashes % np.uint64(SHARDS_EACH) == 0) + 1).tolist(), count]
    pairs = pairwise(found)
    return [*(at for a, b in pairs for at in range(a, b, _MOST_SHARDS)), count]


def made_group(
    members: Members,
    counted: Sequence[tuple[ColumnFacts, Pieces | FactsInMemory]],
    candidates: Collection[str],
    most: int,
) -> ShardGroup:
    """Merge the facts of one group.

    Args:
        members: its shards.
        counted: the columns.
        candidates: those that have a histogram, if they have few values.
        most: values of a column that has a histogram.

    Raises:
        DamageError: a piece is not what was written.
    """
    facts, histograms = [], [HISTOGRAMS.empty_table()]
    for each, pieces in counted:
        column = _Column(each, pieces, members)
        row = column.facts()
        if each.name in candidates and column.is_whole and len(column.values) <= most:
            histograms.append(column.histogram(members.names))
            row["rows"] = len(histograms[-1])
        facts.append(row)
    return ShardGroup(members.key, _table(facts), pa.concat_tables(histograms))


def _table(rows: Sequence[dict[str, Any]]) -> pa.Table:
    """Rows of facts as a table; arrays become lists."""
    columns = []
    for each in FACTS:
        found = [row.get(each.name) for row in rows]
        if pa.types.is_list(each.type):
            arrays = [pa.array([] if items is None else items, each.type.value_type) for items in found]
            ends = pa.array(np.cumsum([0, *map(len, arrays)]), pa.int32())
            items = pa.concat_arrays([pa.array([], each.type.value_type), *arrays])
            columns.append(pa.ListArray.from_arrays(ends, items, type=each.type))
        else:
            columns.append(pa.array(found, each.type))
    return pa.table(columns, schema=FACTS)


@final
class _Column:
    """The facts of one column in the shards of one group, in the order of their names."""

    def __init__(self, facts: ColumnFacts, pieces: Pieces | FactsInMemory, members: Members) -> None:
        self.name, self._kind = facts.name, facts.kind
        self._pieces, self._shards = pieces, members.shards
        self._nulls = self._summary("nulls")
        self._valid = members.rows - self._nulls - self._summary("nans")
        self._counts = self._joined("counts").astype(np.int64)
        self._of_shard = np.repeat(np.arange(len(members.shards)), self._items("counts"))
        self.is_whole = bool(self._summary("whole").all())
        if is_word(self._kind):
            self._bits, self._codes = np.unique(self._joined("values"), return_inverse=True)
            self.values = restored(self._bits, self._kind).cast(pa.utf8())
            self._least, self._greatest = self._word_ends()
        else:
            self._least, self._greatest, named = self._texts()
            self.values, self._codes = coded(named)
            self._sort()

    def facts(self) -> dict[str, Any]:
        """Return its row of `FACTS`, without the rows of its histogram."""
        counts = np.bincount(self._codes, weights=self._counts, minlength=len(self.values)).astype(np.int64)
        held = self._joined("registers").reshape(-1, REGISTERS)
        found = {
            "column": self.name,
            "least": self._least,
            "greatest": self._greatest,
            "counts": counts,
            "registers": held.max(axis=0) if len(held) else None,
            "hashes": np.unique(self._joined("hashes")),
        }
        if not is_word(self._kind):
            return {**found, "texts": self.values}
        points, items = self._joined("points"), self._items("points")
        order = np.argsort(numbers(points, self._kind), kind="stable")
        weights = np.repeat(self._valid / np.maximum(items, 1), items)
        return {**found, "words": self._bits, "points": points[order], "weights": weights[order]}

    def histogram(self, names: pa.Array) -> pa.Table:
        """Return the rows of each value in each shard; null comes last."""
        without = np.flatnonzero(self._nulls)
        shards = np.concatenate([self._of_shard, without])
        order = np.argsort(shards, kind="stable")
        values = pa.concat_arrays([self.values.take(pa.array(self._codes)), pa.nulls(len(without), pa.utf8())])
        return pa.table(
            {
                "shard": names.take(pa.array(shards[order])),
                "column": pa.repeat(self.name, len(order)),
                "value": values.take(pa.array(order)),
                "count": np.concatenate([self._counts, self._nulls[without]])[order],
            },
            schema=HISTOGRAMS,
        )

    def _sort(self) -> None:
        """Put the values of each shard in order; those of words are."""
        order = np.argsort(self._of_shard * (len(self.values) + 1) + self._codes, kind="stable")
        self._codes, self._counts = self._codes[order], self._counts[order]

    def _word_ends(self) -> tuple[pa.Array, pa.Array]:
        points, items = self._joined("points"), self._items("points")
        ends = np.cumsum(items)
        if not len(points):
            return (pa.nulls(len(ends), pa.utf8()),) * 2
        last = np.maximum(ends - 1, 0)
        first = np.minimum(ends - items, len(points) - 1)
        least, greatest = (restored(points[at], self._kind).cast(pa.utf8()) for at in (first, last))
        return least, greatest

    def _texts(self) -> tuple[pa.Array, pa.Array, pa.Array]:
        """The least and the greatest of each shard, and the values that are kept of all of them."""
        lengths = self._joined("lengths").astype(np.int64)
        ends = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        data = pa.py_buffer(self._joined("text"))
        text = pa.Array.from_buffers(pa.large_utf8(), len(lengths), [None, pa.py_buffer(ends), data])
        items = self._items("lengths")
        first = np.cumsum(items) - items
        other = np.ones(len(lengths), np.bool_)
        other[first] = other[first + 1] = False
        found = (text.take(pa.array(first)), text.take(pa.array(first + 1)), text.filter(pa.array(other)))
        least, greatest, named = (each.cast(pa.utf8()) for each in found)
        return least, greatest, named

    def _summary(self, name: str) -> Int64:
        return self._pieces.summary[name][self._shards]

    def _joined(self, slot: str) -> NDArray[Any]:
        return self._pieces.joined(slot, self._shards)

    def _items(self, slot: str) -> Int64:
        return self._pieces.counts[slot][self._shards].astype(np.int64)


def coded(texts: pa.Array) -> tuple[pa.Array, Int64]:
    """Return the different texts, sorted, and the place of each text among them."""
    encoded = texts.dictionary_encode()
    values = encoded.dictionary.take(pc.sort_indices(encoded.dictionary))
    places = np.asarray(pc.index_in(encoded.dictionary, values).to_numpy(zero_copy_only=False), np.int64)
    return values, places[encoded.indices.to_numpy()]


def numbers(bits: NDArray[np.uint64], kind: pa.DataType) -> NDArray[Any]:
    """Return words as NumPy's numbers, which sort as the values do."""
    if pa.types.is_floating(kind):
        return bits.view("<f8")
    return bits if pa.types.is_unsigned_integer(kind) else bits.view("<i8")
