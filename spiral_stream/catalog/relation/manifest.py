"""Which storage shards a relation has, and where their rows lie.

Logical ordinals lay the shards end to end in the order of their names; physical
ordinals are the source's own. A run table maps one to the other: run r holds the
logical rows from ``run_start[r]`` on, which lie at ``run_physical[r]`` on. All of
it is arrays whose size grows with shards, runs and row groups, never with rows,
written as an Arrow IPC file. The file is called by its own digest, and is read whole
and checked each time, since a file that is mapped may change under its reader: 100,000
shards are 32 MB, which are read, digested and checked in 0.04 CPU seconds.

Where shards come from a column, its values are read once, batch by batch, as runs of equal values in physical order.
Memory grows with the runs, never with the rows. Units that an earlier registration read are not read again.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Final, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spiral_stream.errors import CatalogError, SourceError, cut
from spiral_stream.semantic import is_text
from spiral_stream.sources.change_detection import content_key
from spiral_stream.sources.source import ROW, Reader, RowRuns, Unit

UInt64 = NDArray[np.uint64]
Runs = tuple[UInt64, pa.StringArray]  # first rows, ascending, and values


@final
class KnownRuns:
    """The runs of units that were read before.

    Args:
        keys: the content keys of the units, in physical order.
        rows: of each unit.
        starts: where runs begin, in physical order.
        names: their values.
    """

    def __init__(self, keys: Sequence[str], rows: UInt64, starts: UInt64, names: pa.StringArray) -> None:
        self._number_of = {key: k for k, key in enumerate(keys)}
        self._ends = np.concatenate([[0], np.cumsum(rows)]).astype(np.uint64)
        self._starts, self._names = starts, names

    def of(self, key: str) -> Runs | None:
        """Return the runs of a unit, counted from its first row; None if nobody read it."""
        if key not in self._number_of:
            return None
        begin, end = self._ends[self._number_of[key]], self._ends[self._number_of[key] + 1]
        low, high = int(np.searchsorted(self._starts, begin, side="right")) - 1, int(np.searchsorted(self._starts, end))
        if begin == end:
            return np.empty(0, np.uint64), self._names[:0]
        return np.maximum(self._starts[low:high], begin) - begin, self._names[low:high]


def shard_runs(reader: Reader, column: str, units: Sequence[Unit], known: KnownRuns | None) -> Runs:
    """Find where runs of equal values begin, in physical order, and their values.

    Raises:
        CatalogError: the column holds nulls, or is no text or integer.
        SourceError: the source cannot be read.
    """
    begins = np.concatenate([[0], np.cumsum([unit.rows for unit in units])]).astype(np.uint64)
    found: list[Runs] = []
    unread: list[int] = []

    def read() -> None:
        if unread:
            found.append(_scanned(reader, column, None if len(unread) == len(units) else unread))
            unread.clear()

    for k, unit in enumerate(units):
        runs = None if known is None else known.of(unit.content_key)
        if runs is None:
            unread.append(k)
        else:
            read()
            found.append((runs[0] + begins[k], runs[1]))
    read()
    names = pa.concat_arrays([each for _, each in found])
    codes = names.dictionary_encode().indices.to_numpy()
    first = np.flatnonzero(np.diff(codes, prepend=-1))  # runs may go on in the next unit
    return np.concatenate([each for each, _ in found])[first], names.take(pa.array(first))


def _scanned(reader: Reader, column: str, units: Sequence[int] | None) -> Runs:
    """Find the runs of some units, or of all of them, by a scan."""
    import pyarrow.compute as pc

    starts, values = [], []
    last: str | None = None
    for batch in reader.scan([column], None, units):
        array = batch.column(column)
        if array.null_count:
            row = batch.column(ROW)[pc.index(array.is_null(), True).as_py()]
            msg = (
                f"storage shard column {column!r} is null at row {row}. "
                "Fill it in, or register with shard=None to take the physical units"
            )
            raise CatalogError(msg)
        begins = _begins(array, column)
        runs = _texts(array.take(pa.array(begins)))
        if last is not None and len(runs) and runs[0].as_py() == last:
            begins, runs = begins[1:], runs[1:]
        starts.append(batch.column(ROW).to_numpy()[begins])
        values.append(runs)
        last = _texts(array[-1:])[0].as_py() if len(array) else last
    return np.concatenate([np.empty(0, np.uint64), *starts]), pa.concat_arrays([pa.array([], pa.utf8()), *values])


def _begins(array: pa.Array, column: str) -> NDArray[np.intp]:
    """Where runs of equal values begin: [R]."""
    import pyarrow.compute as pc

    is_coded = pa.types.is_dictionary(array.type)
    kind = array.type.value_type if is_coded else array.type
    if not (is_text(kind) or pa.types.is_integer(kind)):
        msg = f"storage shard column {column!r} is {kind}; a shard is named by text or an integer. Name another column"
        raise CatalogError(msg)
    codes = array.indices if is_coded else array
    changed = pc.not_equal(codes[1:], codes[: max(0, len(codes) - 1)]).to_numpy(zero_copy_only=False)
    return np.flatnonzero(np.concatenate([[True][: len(codes)], changed]))


def _texts(array: pa.Array) -> pa.StringArray:
    plain = array.dictionary_decode() if pa.types.is_dictionary(array.type) else array
    return plain.cast(pa.utf8())


RUNS_PER_SHARD: Final = 4  # more on average, and the column no longer says where rows lie together
UNKNOWN_BYTES: Final = -1
_VERSION: Final = 1
_RUNS: Final = ("file_keys", "file_rows", "file_firsts")  # how `Manifest.runs` is saved
_PINS: Final = re.compile("[0-9a-f]{32}")
_MOST_ROWS: Final = 2.0**62


@final
@dataclass(frozen=True, eq=False)
class Manifest:
    """The shard table of one relation at one version. S shards, R runs, G groups, U units."""

    shard_names: pa.StringArray  # [S], sorted
    shard_rows: UInt64  # [S]
    shard_bytes: NDArray[np.int64]  # [S], UNKNOWN_BYTES where the source does not say; a share of its units' bytes
    content_keys: pa.StringArray  # [S], 32 hex digits
    run_start: UInt64  # [R], ascending: first logical ordinal
    run_physical: UInt64  # [R]: first physical ordinal
    group_rows: UInt64  # [G]: rows of each piece that is read in one go, in logical order
    group_shards: UInt64  # [G], non-decreasing: the shard it belongs to
    unit_names: pa.StringArray  # [U], in physical order
    unit_rows: UInt64  # [U]
    unit_keys: pa.StringArray  # [U], content keys
    shard_note: str = ""  # why the shard column does not define the shards; "" if it does or none was asked for
    pins: str = ""  # the file next to the manifest that pins the relation's files; "" if nothing is pinned
    runs: RowRuns | None = None  # what identities that are made come from, where the units say something else

    @cached_property
    def starts(self) -> UInt64:
        """Shape [S + 1], uint64: the first logical ordinal of each shard, and the total."""
        return np.concatenate([[0], np.cumsum(self.shard_rows)]).astype(np.uint64)

    @property
    def total(self) -> int:
        """Rows of the relation."""
        return int(self.starts[-1])

    @cached_property
    def data_version(self) -> str:
        """32 hex digits over (name, content key, rows) of every shard, by name."""
        parts = zip(self.shard_names.to_pylist(), self.content_keys.to_pylist(), self.shard_rows.tolist(), strict=True)
        return content_key("data-version", _VERSION, *(part for shard in parts for part in shard))

    @cached_property
    def row_keys(self) -> pa.StringArray:
        """Shape [S]: content keys of the rows alone; `content_keys` also cover the files that the rows name."""
        if not self.pins:
            return self.content_keys
        starts = np.concatenate([[0], np.cumsum(self.unit_rows)]).astype(np.uint64)
        shards = self.shard_of(self.run_start)
        rows, of, first = _pieces(starts[:-1], starts[-1], self.run_physical, self.run_start, shards)
        units = np.searchsorted(starts, first, side="right") - 1
        return _shard_keys(self.unit_keys.to_pylist(), units, first - starts[units], rows, of)

    @cached_property
    def _run_order(self) -> NDArray[np.intp]:
        return np.argsort(self.run_physical, kind="stable")

    def physical(self, ordinals: UInt64) -> UInt64:
        """Shape [P] -> [P], uint64: where the rows at logical ordinals lie in the source."""
        runs = np.searchsorted(self.run_start, ordinals, side="right") - 1
        return self.run_physical[runs] + (ordinals - self.run_start[runs])

    def logical(self, physical: UInt64) -> UInt64:
        """Shape [P] -> [P], uint64: the inverse of `physical`."""
        if len(physical) and bool((physical[1:] > physical[:-1]).all()):  # most often they all lie in one run
            sides = np.searchsorted(self.run_physical, physical[[0, -1]], side="right", sorter=self._run_order) - 1
            if sides[0] == sides[1]:
                run = self._run_order[sides[0]]
                here: UInt64 = physical - self.run_physical[run] + self.run_start[run]
                return here
        runs = self._run_order[np.searchsorted(self.run_physical, physical, side="right", sorter=self._run_order) - 1]
        return self.run_start[runs] + (physical - self.run_physical[runs])

    def shard_of(self, ordinals: UInt64) -> NDArray[np.intp]:
        """Shape [P] -> [P], intp: the shard that each logical ordinal lies in."""
        if len(ordinals) and bool((ordinals[1:] > ordinals[:-1]).all()):  # most often they all lie in one shard
            sides = np.searchsorted(self.starts, ordinals[[0, -1]], side="right") - 1
            if sides[0] == sides[1]:
                return np.full(len(ordinals), sides[0], np.intp)
        return np.searchsorted(self.starts, ordinals, side="right") - 1

    @cached_property
    def _unit_ends(self) -> UInt64:
        return np.cumsum(self.unit_rows)

    def units_of(self, shards: Sequence[int]) -> list[int]:
        """Return the physical units that hold rows of these shards, ascending. Costs the shards asked for, not all."""
        which = np.unique(np.asarray(shards, dtype=np.intp))
        low, high = (
            np.searchsorted(self.run_start, self.starts[which]),
            np.searchsorted(self.run_start, self.starts[which + 1]),
        )
        runs = np.concatenate([np.empty(0, np.intp), *(np.arange(a, b) for a, b in zip(low, high, strict=True))])
        stops = np.full(len(runs), self.total, dtype=np.uint64)
        more = runs + 1 < len(self.run_start)
        stops[more] = self.run_start[runs[more] + 1]
        first = self.run_physical[runs]
        last = first + (stops - self.run_start[runs]) - np.uint64(1)
        spans = zip(
            np.searchsorted(self._unit_ends, first, side="right"),
            np.searchsorted(self._unit_ends, last, side="right"),
            strict=True,
        )
        return sorted({unit for at, to in spans for unit in range(int(at), int(to) + 1) if self.unit_rows[unit]})

    def changed_units(self, units: Sequence[Unit]) -> list[str]:
        """Return the units that are new, gone, or have other rows now; the first one, where only their order differs."""
        then = dict(zip(self.unit_names.to_pylist(), self.unit_keys.to_pylist(), strict=True))
        now = {unit.name: unit.content_key for unit in units}
        if list(then.items()) == list(now.items()):
            return []
        return sorted(name for name in then.keys() | now.keys() if then.get(name) != now.get(name)) or [next(iter(now))]

    def known_runs(self) -> KnownRuns | None:
        """Return the runs of the column that defines the shards, unit by unit; None if none does."""
        if self.shard_note:
            return None
        names = self.shard_names.take(pa.array(self.shard_of(self.run_start[self._run_order])))
        return KnownRuns(self.unit_keys.to_pylist(), self.unit_rows, self.run_physical[self._run_order], names)

    def save(self, path: Path) -> None:
        """Write an Arrow IPC file: one row, one list column per field."""
        columns: dict[str, pa.Array] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name == "runs":
                columns |= {} if value is None else {name: _one_list(each) for name, each in _runs(value)}
                continue
            columns[field.name] = pa.array([value], pa.utf8()) if isinstance(value, str) else _one_list(value)
        table = pa.table(columns).replace_schema_metadata({"spiral:manifest": str(_VERSION)})
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)

    @classmethod
    def load(cls, path: Path, digest: str | None = None) -> "Manifest":
        """Read a saved manifest.

        Args:
            path: its file.
            digest: the content key that its bytes must have; None takes them as they are.

        Raises:
            CatalogError: the file is missing, damaged, or of another version.
        """
        try:
            data = path.read_bytes()
            _need(digest is None or content_key(data) == digest, "its bytes are not those that were written")
            return cls._parsed(data)
        except (OSError, ValueError, TypeError, KeyError, IndexError, AttributeError, pa.ArrowException) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            msg = f"manifest {path}: {cut(reason)}. Write it again with catalog.refresh(<name>)"
            raise CatalogError(msg) from error

    @classmethod
    def _parsed(cls, data: bytes) -> "Manifest":
        table = pa.ipc.open_file(pa.py_buffer(data)).read_all()
        marked = (table.schema.metadata or {}).get(b"spiral:manifest")
        _need(marked == str(_VERSION).encode(), "it is of another version")
        table.validate(full=True)  # offsets beyond a buffer would be read
        values = {}
        for name in table.column_names:
            column = table.column(name).chunk(0)
            if pa.types.is_large_list(column.type):
                items = column.values
                values[name] = items if pa.types.is_string(items.type) else items.to_numpy()
            else:
                values[name] = column[0].as_py()
        if _RUNS[0] in values:
            values["runs"] = RowRuns(*(values.pop(name) for name in _RUNS))
        manifest = cls(**values)
        check(manifest)
        return manifest


def check(manifest: Manifest) -> None:
    """Refuse a shard table that contradicts itself: by it, rows would be read twice, or from nowhere.

    Raises:
        ValueError: says what.
    """
    m = manifest
    kinds = {"shard_bytes": np.int64}
    _need(not m.pins or bool(_PINS.fullmatch(m.pins)), "its pins have no legal name")
    named = [(field.name, getattr(m, field.name)) for field in fields(m) if field.name != "runs"]
    for name, value in [*named, *(_runs(m.runs) if m.runs is not None else ())]:
        text = isinstance(value, pa.StringArray) and not value.null_count
        is_typed = isinstance(value, np.ndarray) and value.dtype == kinds.get(name, np.uint64)
        if not (text or is_typed or isinstance(value, str)):
            msg = f"{name} is of another type, or has gaps"
            raise ValueError(msg)
    import pyarrow.compute as pc

    for sides in (("shard_names", "shard_rows", "shard_bytes", "content_keys"), ("run_start", "run_physical")):
        _need(len({len(getattr(m, name)) for name in sides}) == 1, f"{' and '.join(sides)} are of unequal length")
    _need(len(m.group_rows) == len(m.group_shards), "group_rows and group_shards are of unequal length")
    _need(len(m.unit_names) == len(m.unit_rows) == len(m.unit_keys), "its units are of unequal length")
    counts = [m.shard_rows, m.group_rows, m.unit_rows]
    if m.runs is not None:
        _need(len(m.runs.keys) == len(m.runs.rows) == len(m.runs.firsts), "its files are of unequal length")
        counts.append(m.runs.rows)
    _need(len(m.shard_rows) > 0 and bool(m.shard_rows.all()), "a shard has no rows")
    _need(all(float(each.astype(np.float64).sum()) < _MOST_ROWS for each in counts), "it has too many rows")
    _need(
        len({int(each.sum()) for each in counts}) == 1, "shards, groups, units and files have unequal numbers of rows"
    )
    _need(bool(pc.all(pc.less(m.shard_names[:-1], m.shard_names[1:])).as_py() is not False), "names are not sorted")
    _need(bool((m.shard_bytes >= UNKNOWN_BYTES).all()), "a shard has fewer than no bytes")
    shards = np.zeros(len(m.shard_rows), np.uint64)
    _need(
        int(m.group_shards.max()) < len(shards) and bool((np.diff(m.group_shards.view(np.int64)) >= 0).all()), "groups"
    )
    np.add.at(shards, m.group_shards, m.group_rows)
    _need(bool((shards == m.shard_rows).all()), "groups and shards disagree")
    stops = np.append(m.run_start, np.uint64(m.total)).view(np.int64)
    _need(int(stops[0]) == 0 and bool((np.diff(stops) > 0).all()), "its runs leave rows out")
    order = np.argsort(m.run_physical, kind="stable")
    tiles = np.concatenate([[0], np.cumsum(np.diff(stops)[order])[:-1]])
    _need(bool((m.run_physical[order].view(np.int64) == tiles).all()), "its runs overlap")


def _runs(runs: RowRuns) -> list[tuple[str, pa.Array | NDArray[np.generic]]]:
    return list(zip(_RUNS, (runs.keys, runs.rows, runs.firsts), strict=True))


def _need(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ValueError(otherwise)


def build_manifest(reader: Reader, shard_column: str | None = None, before: Manifest | None = None) -> Manifest:
    """Return the shard table of a source, with or without a column that names the shards.

    The column is scanned once, except in units whose rows are known. It defines the shards if its values lie in up to
    `RUNS_PER_SHARD` runs on average; otherwise the physical units do, and
    ``shard_note`` says so.

    Args:
        reader: of the source.
        shard_column: names the shards; None takes the physical units.
        before: an earlier shard table that the same column defined; units that it has are not read again.

    Raises:
        CatalogError: the column holds nulls, or is no text or integer.
        SourceError: the source is empty or cannot be read.
    """
    units = list(reader.units())
    unit_rows = np.array([unit.rows for unit in units], dtype=np.uint64)
    if not unit_rows.sum():
        msg = "the source has no rows. Register it when it has"
        raise SourceError(msg)
    note = ""
    if shard_column is not None:
        starts, values = shard_runs(reader, shard_column, units, None if before is None else before.known_runs())
        named = values.dictionary_encode()
        if len(starts) <= RUNS_PER_SHARD * len(named.dictionary):
            return _assemble(units, starts, named.indices.to_numpy(), named.dictionary, note)
        note = (
            f"{shard_column!r} has {len(named.dictionary)} values in {len(starts)} runs, so its rows do "
            f"not lie together and the {len(units)} physical units are the storage shards. "
            f"Sort the rows by {shard_column!r} to change that"
        )
    live = np.flatnonzero(unit_rows)
    first = np.concatenate([[0], np.cumsum(unit_rows)])[:-1].astype(np.uint64)
    names = pa.array([units[i].name for i in live], pa.utf8())
    return _assemble(units, first[live], np.arange(len(live)), names, note)


def _assemble(
    units: Sequence[Unit],
    physical: UInt64,
    codes: NDArray[np.integer],
    names: pa.StringArray,
    note: str,
) -> Manifest:
    """Lay runs (ascending in ``physical``) out by the names of their shards."""
    import pyarrow.compute as pc

    unit_rows = np.array([unit.rows for unit in units], dtype=np.uint64)
    unit_starts = np.concatenate([[0], np.cumsum(unit_rows)]).astype(np.uint64)
    total = unit_starts[-1]
    by_name = pc.sort_indices(names).to_numpy().astype(np.int64)
    rank = np.empty(len(by_name), dtype=np.int64)
    rank[by_name] = np.arange(len(by_name))
    shards = rank[codes]
    rows = np.diff(np.append(physical, total))

    order = np.argsort(shards, kind="stable")
    run_physical = physical[order]
    run_start = np.concatenate([[0], np.cumsum(rows[order])[:-1]]).astype(np.uint64)
    shard_rows = np.zeros(len(names), dtype=np.uint64)
    np.add.at(shard_rows, shards, rows)

    piece_rows, piece_shards, _ = _pieces(_group_starts(units), total, run_physical, run_start, shards[order])
    keyed_rows, keyed_shards, keyed_starts = _pieces(unit_starts[:-1], total, run_physical, run_start, shards[order])
    keyed_units = np.searchsorted(unit_starts, keyed_starts, side="right") - 1
    return Manifest(
        shard_names=names.take(pa.array(by_name)),
        shard_rows=shard_rows,
        shard_bytes=_shares(units, keyed_units, keyed_rows, keyed_shards, len(names)),
        content_keys=_shard_keys(
            [unit.content_key for unit in units],
            keyed_units,
            keyed_starts - unit_starts[keyed_units],
            keyed_rows,
            keyed_shards,
        ),
        run_start=run_start,
        run_physical=run_physical,
        group_rows=piece_rows,
        group_shards=piece_shards.astype(np.uint64),
        unit_names=pa.array([unit.name for unit in units], pa.utf8()),
        unit_rows=unit_rows,
        unit_keys=pa.array([unit.content_key for unit in units], pa.utf8()),
        shard_note=note,
    )


def _group_starts(units: Sequence[Unit]) -> UInt64:
    """The first physical ordinal of every group of every unit."""
    rows = np.array([rows for unit in units for rows in unit.groups], dtype=np.uint64)
    return np.concatenate([[0], np.cumsum(rows)])[:-1].astype(np.uint64)


def _pieces(
    cuts: UInt64, total: np.uint64, run_physical: UInt64, run_start: UInt64, run_shards: NDArray[np.int64]
) -> tuple[UInt64, NDArray[np.int64], UInt64]:
    """Cut the runs at physical ordinals ``cuts`` too: rows, shards and physical starts, in logical order."""
    starts = np.unique(np.concatenate([cuts[cuts < total], run_physical]))
    rows = np.diff(np.append(starts, total))
    in_storage = np.argsort(run_physical, kind="stable")
    runs = in_storage[np.searchsorted(run_physical, starts, side="right", sorter=in_storage) - 1]
    order = np.argsort(run_start[runs] + (starts - run_physical[runs]), kind="stable")
    return rows[order], run_shards[runs][order], starts[order]


def _shares(
    units: Sequence[Unit], piece_units: NDArray[np.intp], rows: UInt64, shards: NDArray[np.int64], count: int
) -> NDArray[np.int64]:
    """Bytes of each shard: its rows' share of the bytes of their units."""
    sizes = np.array(
        [UNKNOWN_BYTES if unit.size_bytes is None else unit.size_bytes for unit in units], dtype=np.float64
    )
    unit_rows = np.array([max(unit.rows, 1) for unit in units], dtype=np.float64)
    share = sizes[piece_units] * rows / unit_rows[piece_units]
    total = np.bincount(shards, weights=share, minlength=count)
    unknown = np.bincount(shards, weights=sizes[piece_units] < 0, minlength=count) > 0
    return np.where(unknown, UNKNOWN_BYTES, np.rint(total)).astype(np.int64)


def _shard_keys(
    unit_keys: Sequence[str], piece_units: NDArray[np.intp], offsets: UInt64, rows: UInt64, shards: NDArray[np.int64]
) -> pa.StringArray:
    """Content key of each shard over (unit's key, first offset, rows) of its pieces; 2 us a piece."""
    firsts = np.flatnonzero(np.concatenate([[True], shards[1:] != shards[:-1]])).tolist()
    keys = [unit_keys[i] for i in piece_units]
    facts = list(zip(keys, offsets.tolist(), rows.tolist(), strict=True))
    bounds = zip(firsts, [*firsts[1:], len(facts)], strict=True)
    return pa.array([content_key(*chain.from_iterable(facts[a:b])) for a, b in bounds], pa.utf8())


def _one_list(value: pa.Array | NDArray[np.generic]) -> pa.Array:
    items = value if isinstance(value, pa.Array) else pa.array(value)
    return pa.LargeListArray.from_arrays(pa.array([0, len(items)], pa.int64()), items)
