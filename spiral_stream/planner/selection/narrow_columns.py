"""Which columns batches read from mapped files instead of their source, and how they are read there.

A narrow column is stored for all rows of the relation, one piece per storage shard (`derived.kinds.column`): numbers,
fixed-size lists of them, short texts, and lists of integers. It is made at the first use by one pass over the column and
shared by every plan, whatever its filter. A gather of 1,500 texts takes 0.2 ms here and 3 ms through Lance. What would take
much disk or time (`derived.unasked`) waits for `materialize`; columns of bytes and of long texts stay where they are.

A column of lists that lies in the source's own mapped files is read in the same way, and nothing is stored for it.
"""

import threading
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Final, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from spiral_stream.catalog.relation.reader import OpenRelation
from spiral_stream.derived.build import build, load
from spiral_stream.derived.derivation import Derivation, ShardSource
from spiral_stream.derived.index import Roster, RosterFile, keys_of
from spiral_stream.derived.kinds.column import FIXED, TEXT, Column, ListLengths, form_of
from spiral_stream.derived.kinds.gather import NarrowColumn, located
from spiral_stream.derived.many_sources import together
from spiral_stream.derived.pieces import Pieces
from spiral_stream.derived.shared_parts import meet
from spiral_stream.derived.unasked import LOOKED_AT_ROWS, Cost, cost_of
from spiral_stream.errors import DamageError, warn
from spiral_stream.expr import Col
from spiral_stream.fields.ragged import Ragged
from spiral_stream.integrity.publish import publish_file
from spiral_stream.integrity.seal import MENDED
from spiral_stream.planner.selection.fetched_columns import Columns, Read, UInt64, leaf_of
from spiral_stream.semantic import semantic_of
from spiral_stream.sources.source import Spans

Int64 = NDArray[np.int64]

_LOOKED_AT: Final = 256  # rows, to tell how long lists are


@final
class MappedColumn:
    """One column of an open relation, with the methods of `NarrowColumn` that lists have. Thread-safe.

    Args:
        relation: it is closed by its owner.
        name: one of its `in_place`.
    """

    copies: ClassVar[bool] = False

    def __init__(self, relation: OpenRelation, name: str) -> None:
        self.column = Column(name, relation.schema.field(name).type)
        self._relation, self._starts = relation, relation.manifest.starts

    @property
    def bytes(self) -> int:
        """Bytes of all items, as some rows say."""
        total = self._relation.manifest.total
        some = np.unique(np.linspace(0, total - 1, min(total, _LOOKED_AT)).astype(np.uint64))
        found = self._relation.spans(some, self.column.name)
        return int(found.lengths.mean() * found.item_bytes * total) if len(some) else 0

    def lengths(self, shards: Int64, offsets: UInt64) -> Int64:
        """Return the items of rows; arguments as in `NarrowColumn`."""
        return self._spans(shards, offsets).lengths

    def ragged(self, shards: Int64, offsets: UInt64) -> Ragged:
        """Return rows as addresses of mapped memory; arguments as in `NarrowColumn`."""
        found = self._spans(shards, offsets)
        item_bytes = np.full(len(found.lengths), found.item_bytes, np.uint8)
        return Ragged(found.addresses, found.lengths, item_bytes, found.signed, found.owners)

    def arrow(self, shards: Int64, offsets: UInt64) -> Any:
        """Return rows as an Arrow array of the column's type; arguments as in `NarrowColumn`."""
        name = self.column.name
        found = self._relation.fetch(self._ordinals(shards, offsets), [name]).column(name).combine_chunks()
        return found if isinstance(found, pa.Array) else found.chunk(0)

    def _spans(self, shards: Int64, offsets: UInt64) -> Spans:
        return self._relation.spans(self._ordinals(shards, offsets), self.column.name)

    def _ordinals(self, shards: Int64, offsets: UInt64) -> UInt64:
        return self._starts[shards] + offsets


NARROW_BYTES: Final = 64  # a row of at most as many is kept whatever the number of rows
AUTO_BYTES: Final = 4 << 30  # of a wider column; a larger one is kept by `materialize`
MAPPED_AT_ONCE: Final = 256  # parts of a column; of more, each is mapped when it is first read
RARE: Final = 64  # a column is not made for a selection that reads fewer than one row in as many
ATTEMPTS: Final = 8  # to make what is damaged again: a disk may damage all that it is given
_RUNS: Final = 4  # in which they lie in a large relation


@final
@dataclass(slots=True, eq=False)
class _Read:
    """The roster of a column as it was last read."""

    file: RosterFile
    stamp: tuple[int, ...] | None = None
    roster: Roster | None = None


Rosters = dict[Derivation, _Read]  # of all relations of one opening


@final
class NarrowSource:
    """An open relation some of whose columns are kept. Thread-safe once `keep` was called."""

    def __init__(self, relation: OpenRelation, root: Path, rosters: Rosters | None = None) -> None:
        """Wrap a relation; nothing is kept yet.

        Args:
            relation: it is closed by its owner.
            root: of derived data.
            rosters: those that were read for other relations; equal columns of all relations have one roster.
        """
        self.relation, self.schema = relation, relation.schema
        self.root, self._rosters = root, {} if rosters is None else rosters
        self._keys = keys_of(relation.manifest.content_keys)
        self._like: Roster | None = None  # the last one that was asked for these keys
        self._starts = relation.manifest.starts
        self._columns_open: dict[str, NarrowColumn | MappedColumn] = {
            name: MappedColumn(relation, name) for name in relation.mapped_lists
        }
        self._lengths: dict[str, NarrowColumn] = {}  # of lists that are not kept themselves
        self.too_large: dict[str, Cost] = {}  # columns that are not made unasked
        self._lock = threading.Lock()  # threads that count chapters ask for lengths at the same time

    def __contains__(self, name: object) -> bool:
        return name in self._columns_open

    def mean_bytes(self, name: str) -> float | None:
        """Mean bytes of a kept column's values; None where it is not kept."""
        return (
            self._columns_open[name].bytes / max(1, self.relation.manifest.total)
            if name in self._columns_open
            else None
        )

    def keep(self, names: Sequence[str], read_rows: int) -> None:
        """Keep those of these columns that are narrow; makes the pieces that are missing.

        Args:
            names: columns of the relation.
            read_rows: how many of its rows are read.

        Raises:
            CacheError: the pieces cannot be written.
            SourceError: the relation cannot be read.
        """
        self.keep_together([(self, names)], read_rows)

    @staticmethod
    def keep_together(wanted: Sequence[tuple["NarrowSource", Sequence[str]]], read_rows: int) -> None:
        """Keep narrow columns of several relations; what relations lack that have the same columns is made in one build.

        Args:
            wanted: relations, and columns of each; one may come several times.
            read_rows: how many rows are read, of all of them together.

        Raises:
            CacheError: the pieces cannot be written.
            SourceError: a relation cannot be read.
        """
        names: dict[NarrowSource, dict[str, None]] = {}
        for relation, columns in wanted:
            names.setdefault(relation, {}).update(dict.fromkeys(columns))
        found = {relation: relation.found(list(columns), read_rows) for relation, columns in names.items()}
        lacking: dict[tuple[Path, tuple[Column, ...]], list[NarrowSource]] = {}
        for relation, (_, new) in found.items():
            if new:
                lacking.setdefault((relation.root, tuple(new)), []).append(relation)
        for (root, lacked), relations in lacking.items():
            source = together([each.relation for each in relations])
            able, costs = _within_bound(source, lacked)
            rosters = build(source, able, root, unasked=True) if able else []
            for relation in relations:
                relation.too_large.update(costs)
                found[relation][0].update(zip(able, rosters, strict=True))
        for relation, (built, _) in found.items():
            relation.open(list(built), built, unasked=True)

    def found(self, names: Sequence[str], read_rows: int) -> tuple[dict[Column, Roster], list[Column]]:
        """Return the rosters of those columns that are built, and the narrow ones that are not."""
        columns = [self._column(name) for name in names if name not in self._columns_open and self._is_kind(name)]
        found = {column: self._built(column) for column in columns}
        built = {column: each for column, each in found.items() if each is not None}
        new = [column for column in columns if column not in built] if self.worth(read_rows) else []
        narrow = self._narrow([column for column in new if column.name not in self.too_large])
        return built, [column for column in new if column in narrow]

    def build(self, names: Sequence[str]) -> list[str]:
        """Keep all of these columns that can be kept, whatever their size; returns which."""
        columns = [self._column(name) for name in names if self._is_kind(name) and not self._is_long_text(name)]
        self.open(columns)
        return [column.name for column in columns if column.name in self._columns_open]

    def pieces(self) -> Iterator[Pieces]:
        """Yield the pieces of the kept columns."""
        for column in [*self._columns_open.values(), *self._lengths.values()]:
            if isinstance(column, NarrowColumn):
                assert isinstance(column.pieces, Pieces)
                yield column.pieces

    def fetch(self, ordinals: UInt64, columns: Sequence[str]) -> pa.Table:
        """Return rows by logical ordinal, in the order asked: kept columns from their pieces, the others late."""
        found = self.read(ordinals, columns, frozenset())
        return pa.table({name: found[name] for name in columns}) if columns else self.relation.fetch(ordinals, columns)

    def read(self, ordinals: UInt64, columns: Sequence[str], ragged: AbstractSet[str]) -> dict[str, Read]:
        """Return rows by logical ordinal, column by column.

        Args:
            ordinals: shape [P], uint64, in any order, repeats allowed.
            columns: which to read.
            ragged: columns of lists that are wanted as addresses, if they are kept.
        """
        late = [name for name in columns if name not in self._columns_open]
        found: dict[str, Read] = {}
        if len(late) < len(columns):
            shards, offsets = self.located(np.asarray(ordinals, dtype=np.uint64))
            for name in columns:
                column = self._columns_open.get(name)
                if column is not None:
                    found[name] = column.ragged(shards, offsets) if name in ragged else column.arrow(shards, offsets)
        if late:
            table = self.relation.fetch(ordinals, late)
            found |= {name: table[name] for name in late}
        return found

    def lengths(self, name: str, ordinals: UInt64) -> NDArray[np.int64]:
        """Shape [P] -> [P], int64: items of a list column's rows; they are kept at the first use, where the lists are not."""
        at = self.located(ordinals)
        if name in self._columns_open:
            return self._columns_open[name].lengths(*at)
        with self._lock:
            if name not in self._lengths:
                wanted = ListLengths(name, self.schema.field(name).type)
                (pieces,) = self._pieces([wanted], {}, unasked=True)
                self._lengths[name] = NarrowColumn(wanted.numbers, pieces)
        return np.asarray(self._lengths[name].arrow(*at).to_numpy(), dtype=np.int64)

    def measures(self, name: str, read_rows: int) -> bool:
        """Whether `lengths` answers for a column: the lists are kept, or enough of its rows are read to keep the lengths."""
        kind = self.schema.field(name).type
        lists = pa.types.is_list(kind) or pa.types.is_large_list(kind)
        return name in self._columns_open or (lists and name not in self.relation.synthesised and self.worth(read_rows))

    def located(self, ordinals: UInt64) -> tuple[NDArray[np.int64], UInt64]:
        """Return where rows lie, for `column`: the shard of each, and its offset there; shape [P] each."""
        return located(self._starts, ordinals)

    def column(self, name: str) -> NarrowColumn | MappedColumn:
        """Return a column that is kept."""
        return self._columns_open[name]

    def open(
        self,
        columns: Sequence[Column],
        built: Mapping[Any, Roster] = MappingProxyType({}),
        *,
        unasked: bool = False,
    ) -> None:
        """Keep columns: map their pieces, which are made where they are missing; ``built`` are their rosters, as far as known."""
        if not columns:
            return
        for column, pieces in zip(columns, self._pieces(columns, built, unasked=unasked), strict=True):
            opened = NarrowColumn(column, pieces)
            if opened.is_lossless:
                self._columns_open[column.name] = opened

    def _pieces(
        self, columns: Sequence[Derivation], built: Mapping[Any, Roster], *, unasked: bool = False
    ) -> list[Pieces]:
        """The pieces of columns, made where they are missing; a damaged part is made again with a warning.

        ``built`` has rosters that were read already, with a piece for every shard.
        """
        for left in reversed(range(ATTEMPTS)):
            missing = [column for column in columns if column not in built]
            made = build(self.relation, missing, self.root, unasked=unasked) if missing else []
            rosters = {**built, **dict(zip(missing, made, strict=True))}
            found = [Pieces(self._file(column).file, rosters[column], self._keys) for column in columns]
            built = {}
            try:
                for each in found:
                    if each.parts <= MAPPED_AT_ONCE:
                        each.map_all()
            except DamageError as error:  # the part is out of the roster now
                if not left:
                    raise
                warn(f"{str(error).removesuffix(MENDED)}It is built again now")
            else:
                break
        return found

    def _column(self, name: str) -> Column:
        return Column(name, self.schema.field(name).type)

    def _is_kind(self, name: str) -> bool:
        """Whether values of this type can be kept, are no payload, and do not lie in mapped files already."""
        field = self.schema.field(name)
        elsewhere = name in self.relation.synthesised or name in self.relation.mapped_lists
        return form_of(field.type) is not None and not elsewhere and semantic_of(field) is None

    def worth(self, read_rows: int) -> bool:
        """Whether enough of its rows are read that a column is made for all of them."""
        return read_rows * RARE >= self.relation.manifest.total

    def _built(self, column: Column) -> Roster | None:
        """The roster of a column that has a piece for every shard."""
        known = self._file(column)
        meet(known.file, self._keys)
        stamp = known.file.stamp()
        if stamp is None:
            return None
        if known.roster is None or known.stamp != stamp:  # it has a row for every relation: read once for all of them
            known.stamp, known.roster = stamp, load(known.file)
        there = bool((known.roster.all_of(self._keys, self._like) >= 0).all())
        self._like = known.roster
        return known.roster if there else None

    def _file(self, column: Derivation) -> _Read:
        """The file of a column's roster, which all relations of this opening share."""
        if column not in self._rosters:
            self._rosters[column] = _Read(RosterFile(self.root, column))
        return self._rosters[column]

    def _narrow(self, columns: Sequence[Column]) -> set[Column]:
        """Those that are made without being asked for."""
        total = self.relation.manifest.total
        out = {c for c in columns if c.row_bytes is not None and max(c.row_bytes, 1) * total <= self._room(c.row_bytes)}
        unsized = [column for column in columns if column.form != FIXED and not self._wide(column).exists()]
        if unsized:
            looked = self.relation.fetch(_some(total), [column.name for column in unsized])
            for column in unsized:
                mean = _mean_bytes(looked[column.name], column)
                if mean <= NARROW_BYTES or (column.form != TEXT and mean * total <= AUTO_BYTES):
                    out.add(column)
                else:  # noted once, so that no later start looks again
                    with publish_file(self._wide(column)):
                        pass
        return out

    def _room(self, row_bytes: int) -> int:
        return row_bytes * self.relation.manifest.total if row_bytes <= NARROW_BYTES else AUTO_BYTES

    def _is_long_text(self, name: str) -> bool:
        column = self._column(name)
        return column.form == TEXT and not self._narrow([column])

    def _wide(self, column: Column) -> Path:
        return self._file(column).file.folder / f"wide-{self.relation.entry.data_version}"


@final
class NarrowColumns:
    """Which columns of a plan's surviving rows come from kept columns, of whichever relation."""

    def __init__(self, relations: Mapping[int, NarrowSource], columns: Columns) -> None:
        """Wrap the relations of a selection; nothing is kept yet.

        Args:
            relations: 0 is the base, k + 1 the k-th joined relation; tables in memory are left out.
            columns: of the surviving rows.
        """
        self._relations, self._columns = relations, columns
        self.read_rows = 0

    def keep(self, names: Sequence[str], read_rows: int) -> None:
        """Keep what these columns are made of where it is narrow, so that batches read mapped pieces.

        Args:
            names: columns of the plan.
            read_rows: how many rows the plan reads, all streams together.

        Raises:
            CacheError: the pieces cannot be written.
            SourceError: a relation cannot be read.
        """
        NarrowColumns.keep_together([(self, names)], read_rows)

    @staticmethod
    def keep_together(wanted: Sequence[tuple["NarrowColumns", Sequence[str]]], read_rows: int) -> None:
        """Keep columns of several streams, as `keep` does for one; what several of them lack is made once for all.

        Args:
            wanted: the columns of each stream.
            read_rows: how many rows the plan reads, all streams together.

        Raises:
            CacheError: the pieces cannot be written.
            SourceError: a relation cannot be read.
        """
        for columns, _ in wanted:
            columns.read_rows = read_rows
        NarrowSource.keep_together([each for columns, names in wanted for each in columns.leaves(names)], read_rows)

    def build(self, names: Sequence[str]) -> list[str]:
        """Keep what these columns are made of, whatever its size; returns which columns are new, of which relation."""
        out: list[str] = []
        for relation, leaves in self.leaves(names):
            new = relation.build([leaf for leaf in leaves if leaf not in relation])
            out += [f"{relation.relation.entry.name}.{leaf}" for leaf in new]
        return out

    def pieces(self) -> Iterator[Pieces]:
        """Yield all pieces that batches read."""
        for relation in self._relations.values():
            yield from relation.pieces()

    def too_large(self) -> Iterator[tuple[str, str, Cost]]:
        """Yield the columns that are not made unasked: relation, column and what making it would take."""
        for relation in self._relations.values():
            for name, cost in relation.too_large.items():
                if name not in relation:
                    yield relation.relation.entry.name, name, cost

    def __contains__(self, name: object) -> bool:
        """Whether a column is read from mapped pieces alone."""
        return name in self._columns.env and all(self._keeper(leaf) for leaf in self._columns.env[str(name)].columns())

    def mean_bytes(self, name: str) -> float | None:
        """Mean bytes of a kept column's values, over all rows of its relation; None where it is not kept or computed."""
        leaf = self._columns.env[name]
        found = self._keeper(leaf.name) if isinstance(leaf, Col) else None
        return None if found is None else found[0].mean_bytes(found[1])

    def lengths(self, name: str, rows: UInt64) -> NDArray[np.int64] | None:
        """Shape [P] -> [P], int64: items of a list column for surviving rows; None where it is not the base's."""
        leaf, base = self._columns.env[name], self._relations.get(0)
        k, column_name = leaf_of(leaf.name) if isinstance(leaf, Col) else (None, "")
        if base is None or not column_name or k is not None or not base.measures(column_name, self.read_rows):
            return None
        return base.lengths(column_name, self._columns.ordinals(rows))

    def base_column(self, name: str) -> NarrowColumn | MappedColumn | None:
        """Return the kept column of the base that a column is a copy of; None where there is none."""
        leaf = self._columns.env[name]
        found = self._keeper(leaf.name) if isinstance(leaf, Col) else None
        return found[0].column(found[1]) if found is not None and found[0] is self._relations.get(0) else None

    def located(self, rows: UInt64) -> tuple[NDArray[np.int64], UInt64]:
        """Return where surviving rows lie in the base, for the columns that `own` returns; shape [P] each."""
        return self._relations[0].located(self._columns.ordinals(rows))

    def _keeper(self, leaf: str) -> tuple[NarrowSource, str] | None:
        """The relation that keeps a leaf, and the column's name there."""
        k, name = leaf_of(leaf)
        relation = self._relations.get(0 if k is None else k + 1)
        return None if relation is None or name not in relation else (relation, name)

    def leaves(self, names: Sequence[str]) -> Iterator[tuple[NarrowSource, list[str]]]:
        """Yield the columns of each relation that these columns are made of."""
        columns = [
            leaf_of(leaf) for leaf in sorted({leaf for name in names for leaf in self._columns.env[name].columns()})
        ]
        for at, relation in self._relations.items():
            leaf_names = [name for k, name in columns if at == (0 if k is None else k + 1)]
            if leaf_names:
                yield relation, leaf_names


def _within_bound(source: ShardSource, new: Sequence[Column]) -> tuple[list[Column], dict[str, Cost]]:
    """Those columns that are made unasked: the smallest ones, while together they are below the bound. Also the others."""
    total = int(source.manifest.starts[-1])
    if total < LOOKED_AT_ROWS:
        return list(new), {}
    costs = {column: cost_of(source, [column], total) for column in new}
    out, too_large = list[Column](), dict[str, Cost]()
    for column in sorted(new, key=lambda each: costs[each].bytes):
        sum_of = Cost(0, *(sum(costs[each][k] for each in [*out, column]) for k in (1, 2)))
        if sum_of.too_much:
            too_large[column.name] = costs[column]
        else:
            out.append(column)
    return out, too_large


def _some(total: int) -> UInt64:
    """Some rows of a relation: of a large one, a few runs of them, since a row costs as much as its row group."""
    runs = _LOOKED_AT if total <= LOOKED_AT_ROWS else _RUNS
    firsts = np.linspace(0, max(0, total - _LOOKED_AT // runs), min(total, runs)).astype(np.uint64)
    return np.unique(firsts[:, None] + np.arange(_LOOKED_AT // runs, dtype=np.uint64))


def _mean_bytes(values: pa.ChunkedArray, column: Column) -> float:
    if column.form == TEXT:
        return float(pc.mean(pc.binary_length(values)).as_py() or 0.0)
    items = float(pc.mean(pc.list_value_length(values)).as_py() or 0.0)
    return float(items * column.kind.value_type.bit_width / 8)
