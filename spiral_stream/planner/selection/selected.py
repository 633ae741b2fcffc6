"""The rows that a sampled plan reads: computed once, stored on disk, mapped by every rank.

A selection lies under the digest of the relational part and the data versions. It
stores the surviving row addresses (`relational.selection`), the matching row of each
joined relation that contributes columns, and a small JSON file mapping each column to
its origin.

A shard key groups surviving rows that are equal in its columns: runs of neighbours, and the group of each run. The columns
are read once, some rows at a time; memory grows with the runs, never with the rows. Columns whose values do not lie
together are refused, as registration does with a ``shard=`` column: groups that are scattered over storage have no locality.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from functools import partial, reduce
from operator import and_
from pathlib import Path
from typing import Any, Final, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from spiral_stream import expr
from spiral_stream.catalog.lookup import IdentityLookup, RowIdLookup, has_kind, lookup
from spiral_stream.catalog.relation.manifest import RUNS_PER_SHARD
from spiral_stream.catalog.relation.reader import OpenRelation
from spiral_stream.dialects.numpy import passes, to_column
from spiral_stream.errors import DataError, PlanError, shown
from spiral_stream.integrity import seal
from spiral_stream.integrity.publish import mended, publish_file
from spiral_stream.keeping.in_use import Reading, reading, used
from spiral_stream.plan import nodes
from spiral_stream.plan.saving.fingerprint import digest
from spiral_stream.planner.selection.fetched_columns import Columns, Right, UInt64, in_memory, leaf_of
from spiral_stream.planner.selection.find import SETTLED, Provenance, Workplace, find_rows, selection_folder
from spiral_stream.planner.selection.narrow_columns import NarrowColumns
from spiral_stream.relational.identity_index import IdentityIndex, build_index
from spiral_stream.relational.selection import Selection
from spiral_stream.sampling.order import Runs
from spiral_stream.sources.arrow.table import MemoryReader, without_dictionaries
from spiral_stream.sources.source import ROW

MOST_RUNS: Final = 1 << 20  # 16 MB, and about 1 us each where they are found


def key_runs(pieces: Iterable[tuple[UInt64, pa.Table]], key: Sequence[str]) -> UInt64:
    """Return the runs of equal rows.

    Args:
        pieces: all rows in order, some at a time, with the columns of the key.
        key: its names, for messages.

    Returns:
        shape [R, 2], uint64: the first row and the group of each run; groups are numbered by where they come first.

    Raises:
        PlanError: the rows of a value do not lie together.
    """
    starts: list[int] = []
    groups: list[int] = []
    numbers: dict[tuple[Any, ...], int] = {}
    for rows, table in pieces:
        codes = [_codes(column.combine_chunks()) for column in table.columns]
        changes = np.any([code[1:] != code[:-1] for code in codes], axis=0)
        at = np.flatnonzero(np.concatenate(([True], changes)))
        values = [map(_plain, column.take(pa.array(at)).to_pylist()) for column in table.columns]
        for row, value in zip(rows[at].tolist(), zip(*values, strict=True), strict=True):
            number = numbers.setdefault(value, len(numbers))
            if not groups or groups[-1] != number:
                starts.append(row)
                groups.append(number)
        if len(starts) > MOST_RUNS:
            break
    if len(starts) > RUNS_PER_SHARD * len(numbers) or len(starts) > MOST_RUNS:
        named = ", ".join(map(repr, key))
        found = f"{len(numbers):,} different values of {named} lie in {len(starts):,} runs of rows"
        if len(starts) > MOST_RUNS:
            found = f"values of {named} lie in more than {MOST_RUNS:,} runs of rows"
        msg = (
            f"sample (shard_key): {found}, so rows of one value do not move as one unit. Store the rows sorted by {named} and "
            "register them again, name columns whose values lie together, or leave shard_key out: units are storage shards then"
        )
        raise PlanError(msg)
    return np.column_stack((np.array(starts, dtype=np.uint64), np.array(groups, dtype=np.uint64)))


def _codes(column: pa.Array) -> NDArray[np.int64]:
    """Numbers that are equal where values are; null equals null, NaN equals NaN."""
    encoded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode(null_encoding="encode")
    return np.asarray(pc.fill_null(encoded.indices, -1).to_numpy(zero_copy_only=False), dtype=np.int64)


def _plain(value: Any) -> Any:
    """A value that equals itself in a dict."""
    return "NaN" if isinstance(value, float) and value != value else value  # noqa: PLR0124  only NaN is not itself


INDEX_ROWS: Final = 1 << 16  # identities looked at at a time
EXAMPLES: Final = 5
_SHARD: Final = "storage_shard"


@final
class Selected:
    """The surviving rows of a plan over an open base relation."""

    def __init__(
        self,
        base: OpenRelation,
        rows: Selection,
        provenance: Provenance,
        folder: Path,
        workplace: Workplace,
        reading: Reading | None = None,
    ) -> None:
        self._reading = reading  # so that nobody removes the folder
        self._base, self.rows, self.folder = base, rows, folder
        self._root, self._lookups = workplace.root, dict[tuple[str, ...], IdentityLookup | RowIdLookup]()
        self.total = rows.total
        self.counts, self.pushed = tuple(provenance.counts), provenance.pushed
        self._firsts = np.concatenate([[0], np.cumsum(rows.counts)]).astype(np.uint64)
        self._joined = [_right(spec, folder / SETTLED, workplace) for spec in provenance.rights]
        narrow = {
            k: workplace.narrow(each.entry.name)
            for k, each in enumerate([base, *self._joined])
            if isinstance(each, OpenRelation)
        }
        rights = [Right(narrow.get(k + 1, matches), partial(rows.right, k)) for k, matches in enumerate(self._joined)]
        self.columns = Columns(narrow[0], rows.ordinals, rights, provenance.env, provenance.schema)
        self.narrow = NarrowColumns(narrow, self.columns)

    def close(self) -> None:
        """Release the base relation and the joined ones."""
        for each in [self._base, *self._joined]:
            each.close()

    @property
    def firsts(self) -> UInt64:
        """Shape [S + 1], uint64: the first surviving row of each storage shard, and the total."""
        return self._firsts

    def offsets_of_shard(self, shard: int) -> UInt64:
        """Return the surviving rows of one storage shard, as offsets in it, ascending."""
        rows = np.arange(self._firsts[shard], self._firsts[shard + 1], dtype=np.uint64)
        offsets: UInt64 = self.rows.ordinals(rows) - self._base.manifest.starts[shard]
        return offsets

    def owner(self, name: str) -> tuple[int | None, str] | None:
        """Return the relation that a column is copied from (None: the base), and its name there; None if it is computed."""
        leaf = self.columns.env[name]
        return leaf_of(leaf.name) if isinstance(leaf, expr.Col) else None

    def joined(self, k: int) -> OpenRelation | MemoryReader:
        """Return the k-th joined relation."""
        return self._joined[k]

    def joined_ordinals(self, k: int, rows: UInt64) -> UInt64:
        """Shape [P] -> [P], uint64: the rows of the k-th joined relation that match surviving rows.

        Raises:
            DataError: a row has none there, as a left join may leave it.
        """
        found = self.rows.right(k, rows)
        if len(found) and found.min() < 0:
            msg = "the row has no match in the joined relation, so there is nothing to read. Take how='inner'"
            raise DataError(msg, row=int(np.argmin(found)))
        return found.astype(np.uint64)

    def find(self, values: Mapping[str, Any]) -> UInt64:
        """Return the surviving rows whose columns have these values: by their identities where they are the base's own."""
        expressions = {name: self.columns.env[name] for name in values}
        at_base = all(
            isinstance(leaf, expr.Col) and leaf.name in self._base.schema.names for leaf in expressions.values()
        )
        if at_base and not self._base.gone:
            known = self._lookup(
                {leaf.name: values[name] for name, leaf in expressions.items() if isinstance(leaf, expr.Col)}
            )
            if known is not None:
                rows, survives = self.rows.rows(known)
                return rows[survives]
            test = _equal([(expressions[name], value) for name, value in values.items()])
            found = [batch.column(ROW).to_numpy() for batch in self._base.scan([], test)]
            rows, survives = self.rows.rows(np.concatenate([np.empty(0, dtype=np.uint64), *found]))
            surviving: UInt64 = rows[survives]
            return surviving
        test = _equal([(expr.col(name), value) for name, value in values.items()])
        pieces = self._chunks(tuple(values))
        hits = [at[passes(test, {n: table[n].combine_chunks() for n in values})] for at, table in pieces]
        return np.concatenate([np.empty(0, dtype=np.uint64), *hits])

    def _lookup(self, values: Mapping[str, Any]) -> UInt64 | None:
        """The rows of the base whose columns have these values; None where only a scan finds them."""
        names = tuple(values)
        if names not in self._lookups:
            found = lookup(self._base, values, self._root)
            if found is None:
                return None
            self._lookups[names] = found
        if not all(has_kind(value, self._base.schema.field(name).type) for name, value in values.items()):
            return None
        return self._lookups[names].find(values)

    def require_unique(self, identity: tuple[str, ...]) -> None:
        """Refuse an identity that does not tell the surviving rows apart; looked at once.

        Raises:
            PlanError: five values that repeat, and the ways out.
        """
        seen = self.folder / f"unique-{digest(list(identity))[:16]}"
        if seen.exists():
            return
        all_rows = pa.concat_tables([without_dictionaries(table) for _, table in self._chunks(identity)])
        counts = all_rows.group_by(list(identity)).aggregate([([], "count_all")])
        if len(counts) < self.total:
            repeated = counts.filter(pc.field("count_all") > 1).slice(0, EXAMPLES).to_pylist()
            examples = "; ".join(", ".join(f"{name}={shown(row[name])}" for name in identity) for row in repeated)
            msg = (
                f"sample: identity {', '.join(identity)} repeats in {self.total - len(counts):,} of {self.total:,} rows "
                f"({examples}). Name a column that tells rows apart, several as identity=[...], or keep one row each "
                "with .distinct(...)"
            )
            raise PlanError(msg)
        with publish_file(seen):
            pass

    def units(self, *, of_storage: bool = True) -> tuple[UInt64, UInt64]:
        """Surviving rows of each row group in logical order, and the shard each belongs to.

        Args:
            of_storage: False counts whole shards, for which nothing is mapped.
        """
        if not of_storage:
            return self.rows.counts, np.arange(len(self.rows.counts), dtype=np.uint64)
        manifest = self._base.manifest
        starts = np.concatenate([[0], np.cumsum(manifest.group_rows)]).astype(np.uint64)
        return self.rows.unit_counts(starts), manifest.group_shards

    def index(self, identity: tuple[str, ...], stream: str = "") -> IdentityIndex:
        """Return rows sorted by the hash of (stream, identity); built at the first use."""
        folder = self.folder / f"index-{digest([stream, *identity] if stream else list(identity))[:16]}"
        return build_index(folder, stream, self._identities(identity))

    def runs(self, key: tuple[str, ...]) -> Runs:
        """Return runs of surviving rows with equal values (``storage_shard`` is the shard itself); found at the first use.

        Raises:
            PlanError: the rows of a value do not lie together.
        """
        file = self.folder / f"runs-{digest(list(key))[:16]}.npy"

        def build() -> None:
            names = tuple(name for name in key if name != _SHARD)
            pieces = (
                (rows, self._with_shard(rows, table) if _SHARD in key else table) for rows, table in self._chunks(names)
            )
            found = key_runs(pieces, key)
            with publish_file(file) as draft, draft.open("wb") as out:
                np.save(out, found.ravel("F"))  # all starts, then all groups

        def opened() -> Runs:
            found = seal.array(file)
            if (
                found.dtype != np.uint64
                or not len(found)
                or len(found) % 2
                or found[0]
                or found[len(found) // 2 - 1] >= self.total
            ):
                raise seal.damaged(
                    file, f"it has {len(found):,} values of {found.dtype} for runs of {self.total:,} rows"
                )
            return Runs(*np.split(found, 2))

        return mended(file, opened, build)

    def _with_shard(self, rows: UInt64, table: pa.Table) -> pa.Table:
        shards = np.searchsorted(self._firsts, rows, side="right") - 1
        return table.append_column(_SHARD, pa.array(shards))

    def lengths(self, name: str, rows: UInt64) -> NDArray[np.int64]:
        """Return the items of a list column for surviving rows: shape [P], int64.

        From the kept column; else from a file that is made by reading the column once, when first asked for.
        """
        found = self.narrow.lengths(name, rows)
        return self._stored_lengths(name)[rows].astype(np.int64) if found is None else found

    def _stored_lengths(self, name: str) -> NDArray[np.uint32]:
        file = self.folder / f"lengths-{digest(name)[:16]}.sealed.npy"

        def build() -> None:
            found = [pc.list_value_length(table[name]).fill_null(0).to_numpy() for _, table in self._chunks((name,))]
            with publish_file(file) as draft, draft.open("wb") as out:
                np.save(out, np.concatenate([np.empty(0, dtype=np.uint32), *found]).astype(np.uint32))

        def opened() -> NDArray[np.uint32]:
            found = seal.array(file)
            if found.dtype != np.uint32 or len(found) != self.total:
                raise seal.damaged(file, f"it has {len(found):,} lengths of {found.dtype}, for {self.total:,} rows")
            return found

        return mended(file, opened, build)

    def mean(self, text: str) -> Fraction:
        """The mean of an expression over the surviving rows, exact for integers; computed once. Nulls count as 0.

        Args:
            text: as in a bucket key, for example ``token_count_estimate``.
        """
        file = self.folder / f"mean-{digest(text)[:16]}.sealed.json"
        return mended(file, lambda: _read_mean(file), lambda: self._keep_mean(file, text))

    def _keep_mean(self, file: Path, text: str) -> None:
        value = expr.bind(expr.parse(text), self.columns.schema)
        found = Fraction(0)
        for _, table in self._chunks(tuple(sorted(value.columns()))):
            values = to_column(value, {n: table[n].combine_chunks() for n in table.column_names}, len(table))
            found += Fraction(pc.sum(values).as_py() or 0)
        found /= self.total
        with publish_file(file) as draft:
            draft.write_text(json.dumps({"mean": [found.numerator, found.denominator]}))

    def _identities(self, identity: tuple[str, ...]) -> Any:
        for rows, table in self._chunks(identity):
            values = [column.to_pylist() for column in table.columns]
            yield rows, values[0] if len(values) == 1 else [repr(row) for row in zip(*values, strict=True)]

    def _chunks(self, names: tuple[str, ...]) -> Iterator[tuple[UInt64, pa.Table]]:
        """All surviving rows and columns of theirs, some at a time."""
        for start in range(0, self.total, INDEX_ROWS):
            rows = np.arange(start, min(start + INDEX_ROWS, self.total), dtype=np.uint64)
            yield rows, self.columns.fetch(rows, names)


def _read_mean(file: Path) -> Fraction:
    facts = seal.read_json(file)
    with seal.reading(file):
        return Fraction(*facts["mean"])


def _equal(pairs: list[tuple[expr.Expr, Any]]) -> expr.Expr:
    """All of the expressions have their values."""
    tests = [column == value for column, value in pairs]
    condition: expr.Expr = reduce(and_, tests)
    return condition


def select(node: nodes.Node, base: OpenRelation, workplace: Workplace) -> Selected:
    """Return the surviving rows of a stream's relational plan: from disk where they were found before.

    Raises:
        PlanError: a join finds several right rows for one left row.
        CacheError: the prepared folder cannot be written.
    """
    folder = selection_folder(node, workplace.root, workplace.versions)
    held = reading(workplace.root, folder.name)
    used(folder)
    with held.or_released():
        rows, provenance = find_rows(node, base, workplace, folder)
    return Selected(base, rows, provenance, folder, workplace, held)


def _right(spec: Mapping[str, str], folder: Path, workplace: Workplace) -> OpenRelation | MemoryReader:
    if "relation" in spec:
        return workplace.open_relation(spec["relation"])
    return in_memory(seal.table(folder / spec["table"]))
