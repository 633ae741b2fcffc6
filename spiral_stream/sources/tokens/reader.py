"""Read the token ids of documents: mapped from local files, or by range from objects on a store.

Held of a document are the file, the first id's offset and the count. The first read of a unit turns these into
addresses, 16 bytes per document; from then on a batch is a few NumPy look-ups, and fields copy each id once, from the
mapped file to the batch.

On a store, the ids of a batch are asked for together. An object is looked at when it is first read, and compared with what
was registered; each answer is compared with that look.
"""

import threading
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spiral_stream.errors import SourceError, cut
from spiral_stream.expr import Expr
from spiral_stream.integrity.blocks import Mapped
from spiral_stream.sources.import_source import FILE
from spiral_stream.sources.pins import SeenPins
from spiral_stream.sources.references.objects import NamedObject, read_objects
from spiral_stream.sources.references.policy import Reach
from spiral_stream.sources.row_filter import needed, passing
from spiral_stream.sources.source import ROW, Reader, RowRuns, Spans, Unit, without_columns
from spiral_stream.sources.tokens.layout import TokenLayout
from spiral_stream.storage.file_object import look
from spiral_stream.storage.store import ObjectStat

TOKENS: Final = "tokens"
START: Final = "start"
LENGTH: Final = "length"
HELD_ROWS: Final = 1 << 26  # documents whose addresses are held: 1 GiB; those of more are looked up batch by batch
GATHERED: Final = 1 << 25  # ids that are gathered into one array


class TokenRows(Reader):
    """The kept rows of `Tokens` with the column ``tokens``, which subclasses read.

    Args:
        kept: the rows as they are kept.
        layout: says where the ids of a file lie.
    """

    def __init__(self, rows: Reader, layout: Callable[[str], TokenLayout]) -> None:
        self._rows, self._layout = rows, layout
        self.base, self.allow_outside = rows.base, rows.allow_outside
        self.trusting, self.pinned_by = rows.trusting, rows.pinned_by
        self._units = list(rows.units())
        self._starts = np.concatenate([[0], np.cumsum([unit.rows for unit in self._units])]).astype(np.uint64)
        self._names = rows.fetch(self._starts[:-1], [FILE]).column(FILE).to_pylist()
        self._dtype = np.dtype(layout(self._path(0)).dtype)
        self.schema = pa.schema([(TOKENS, pa.list_(pa.from_numpy_dtype(self._dtype))), *rows.schema])

    @abstractmethod
    def _lengths_of(self, rows: NDArray[np.uint64]) -> NDArray[np.int64]:
        """How many ids rows have, shape [P]."""

    @abstractmethod
    def _gathered(self, rows: NDArray[np.uint64]) -> pa.Array:
        """The ids of rows as one Arrow array."""

    def units(self) -> Sequence[Unit]:
        return self._units

    def row_runs(self) -> RowRuns | None:
        return self._rows.row_runs()

    def scan(
        self, columns: Sequence[str], predicate: Expr | None = None, units: Sequence[int] | None = None
    ) -> Iterator[pa.RecordBatch]:
        read = needed(columns, predicate)
        if TOKENS not in read:
            yield from self._rows.scan(columns, predicate, units)
            return
        late = predicate is not None and TOKENS in predicate.columns()
        others = [name for name in (read if late else columns) if name != TOKENS]
        for batch in self._rows.scan(others, None if late else predicate, units):
            rows = batch.column(batch.num_columns - 1).to_numpy()
            for some in self._parts(rows):
                table = pa.Table.from_batches([batch.slice(some.start, some.stop - some.start)])
                table = table.append_column(TOKENS, self._gathered(rows[some]))
                yield from passing(table, predicate if late else None, [*columns, ROW]).to_batches()

    def fetch(self, rows: NDArray[np.uint64], columns: Sequence[str]) -> pa.Table:
        rows = np.asarray(rows, dtype=np.uint64)
        if not columns:
            return without_columns(len(rows))
        others = [name for name in dict.fromkeys(columns) if name != TOKENS]
        found = dict(zip(others, self._rows.fetch(rows, others).columns, strict=True)) if others else {}
        if TOKENS in columns:
            parts = [self._gathered(rows[some]) for some in self._parts(rows)]
            found[TOKENS] = pa.chunked_array(parts, self.schema.field(TOKENS).type)
        return pa.table([found[name] for name in columns], pa.schema([self.schema.field(name) for name in columns]))

    def close(self) -> None:
        self._rows.close()

    def _path(self, unit: int) -> str:
        return f"{self.base.rstrip('/')}/{self._names[unit]}"

    def _parts(self, rows: NDArray[np.uint64]) -> Iterator[slice]:
        """Runs of rows whose ids are gathered into one array."""
        ends = np.cumsum(self._lengths_of(rows))
        at = 0
        while at < len(rows):
            room = GATHERED + (int(ends[at - 1]) if at else 0)
            stop = max(at + 1, int(np.searchsorted(ends, room, side="right")))
            yield slice(at, stop)
            at = stop


@final
class TokenReader(TokenRows):
    """Reads ids from mapped files.

    Args:
        kept: the rows as they are kept.
        layout: says where the ids of a file lie.
    """

    def __init__(self, rows: Reader, layout: Callable[[str], TokenLayout]) -> None:
        super().__init__(rows, layout)
        self.mapped_lists = frozenset([TOKENS])
        total = int(self._starts[-1])
        self._bases = np.zeros(len(self._units), np.uint64)  # [U] address of the first id of each unit's file
        self._sizes = np.zeros(len(self._units), np.int64)  # [U] ids of that file; 0: it is not mapped yet
        self._left = len(self._units)  # that are not mapped yet
        self._held = total <= HELD_ROWS
        self._addresses = np.zeros(total if self._held else 0, np.uint64)  # [N], of units that are mapped
        self._lengths = np.zeros(total if self._held else 0, np.int64)
        self._maps: dict[str, tuple[Any, int, int]] = {}  # by file: the map, address of the first id, ids
        self._owners: tuple[Any, ...] = ()
        self._lock = threading.Lock()

    def files(self, units: Sequence[int] | None = None) -> Mapping[str, str]:
        paths = [self._path(unit) for unit in (range(len(self._units)) if units is None else units)]
        return {**self._rows.files(units), **{f"tokens/{path}": path for path in paths}}

    def _lengths_of(self, rows: NDArray[np.uint64]) -> NDArray[np.int64]:
        return self._located(rows)[1]

    def spans(self, rows: NDArray[np.uint64], column: str) -> Spans:
        assert column == TOKENS, column
        addresses, lengths = self._located(np.asarray(rows, dtype=np.uint64))
        return Spans(addresses, lengths, self._dtype.itemsize, self._dtype.kind == "i", self._owners)

    def _located(self, rows: NDArray[np.uint64]) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
        """Addresses of the first ids of rows, and how many ids there are; shape [P] each."""
        if len(rows) and int(rows.max()) >= int(self._starts[-1]):
            msg = f"token files at {cut(self.base)}: row {int(rows.max())} of {int(self._starts[-1])} was asked for"
            raise SourceError(msg)
        if self._held and not self._left:
            return self._addresses[rows], self._lengths[rows]
        units = np.searchsorted(self._starts, rows, side="right") - 1
        new = np.unique(units[self._sizes[units] == 0])
        if len(new):
            with self._lock:
                for unit in new.tolist():
                    self._open(unit)
        if self._held:
            return self._addresses[rows], self._lengths[rows]
        table = self._rows.fetch(rows, [START, LENGTH])
        starts, lengths = table.column(START).to_numpy(), table.column(LENGTH).to_numpy()
        return self._checked(units, self._sizes[units], starts, lengths)

    def _open(self, unit: int) -> None:
        """Map the file of a unit, and hold the addresses of its documents."""
        if self._sizes[unit]:
            return
        path = self._path(unit)
        if path not in self._maps:
            self._maps[path] = _mapped(path, self._layout(path), self._dtype)
            self._owners = tuple(mapped for mapped, _, _ in self._maps.values())
        _, address, count = self._maps[path]
        self._bases[unit] = address
        if self._held:
            at = int(self._starts[unit])
            for batch in self._rows.scan([START, LENGTH], None, [unit]):
                some = slice(at, at + len(batch))
                starts, lengths = batch.column(0).to_numpy(), batch.column(1).to_numpy()
                units = np.full(len(batch), unit)
                self._addresses[some], self._lengths[some] = self._checked(units, count, starts, lengths)
                at += len(batch)
        self._sizes[unit] = count  # last: others look at these two without the lock
        self._left -= 1

    def _checked(
        self,
        units: NDArray[np.int64],
        sizes: NDArray[np.int64] | int,
        starts: NDArray[np.int64],
        lengths: NDArray[np.int64],
    ) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
        """Addresses and lengths of documents that lie in their files, which have so many ids."""
        beyond = np.flatnonzero(starts + lengths > sizes)
        if len(beyond):
            raise _changed(self._path(int(units[beyond[0]])))
        return self._bases[units] + starts.astype(np.uint64) * np.uint64(self._dtype.itemsize), lengths

    def _gathered(self, rows: NDArray[np.uint64]) -> pa.Array:
        """The ids of rows as one Arrow array."""
        addresses, lengths = self._located(rows)
        ends = np.concatenate([[0], np.cumsum(lengths)])
        out = np.empty(int(ends[-1]), self._dtype)
        units = np.unique(np.searchsorted(self._starts, rows, side="right") - 1).tolist()
        item = self._dtype.itemsize
        for mapped, address, count in (self._maps[path] for path in dict.fromkeys(map(self._path, units))):
            here = np.flatnonzero((addresses >= address) & (addresses < address + count * item) & (lengths > 0))
            if len(here):
                ids = np.frombuffer(mapped, self._dtype, count, address - mapped.address)
                begins = (addresses[here] - np.uint64(address)).astype(np.int64) // item
                if len(here) == len(rows):
                    ids.take(_ranges(begins, lengths), out=out, mode="clip")
                else:
                    out[_ranges(ends[:-1][here], lengths[here])] = ids[_ranges(begins, lengths[here])]
        kind = self.schema.field(TOKENS).type
        return pa.ListArray.from_arrays(pa.array(ends.astype(np.int32)), pa.array(out), type=kind)


def _ranges(begins: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """``range(begin, begin + length)`` of each, end to end."""
    ends = np.cumsum(lengths)
    found: NDArray[np.int64] = np.repeat(begins - (ends - lengths), lengths)
    found += np.arange(len(found))
    return found


def _mapped(path: str, layout: TokenLayout, dtype: np.dtype[Any]) -> tuple[Any, int, int]:
    """Map a file: the map, the address of its first id, and how many it has."""
    if layout.dtype != dtype.name:
        msg = f"{cut(path)} holds {layout.dtype} now, and other files {dtype.name}. Restore it, or register the files separately"
        raise SourceError(msg)
    try:
        mapped = Mapped(path)
    except OSError as error:
        msg = f"{cut(path)}: {error.strerror}. Restore it, or take the files as they are now with catalog.refresh(...)"
        raise SourceError(msg) from error
    if mapped.size < layout.offset + layout.count * dtype.itemsize:
        raise _changed(path)
    return mapped, mapped.address + layout.offset, layout.count


def _changed(path: str) -> SourceError:
    msg = f"{cut(path)} is shorter than when it was registered. Restore it, or take it as it is now with catalog.refresh(...)"
    return SourceError(msg)


KeyOf = Callable[[str, ObjectStat], str]


@final
class RemoteTokenReader(TokenRows):
    """Reads ids by range.

    Args:
        kept: the rows as they are kept.
        layout: says where the ids of a file lie.
        key_of: gives the content key of a file by its name and what it is like.
    """

    remote = True

    def __init__(self, rows: Reader, layout: Callable[[str], TokenLayout], key_of: KeyOf) -> None:
        super().__init__(rows, layout)
        runs = rows.row_runs()
        self._keys = frozenset() if runs is None else frozenset(runs.keys.to_pylist())
        self._key_of = key_of
        self._seen = SeenPins("Take it as it is now with catalog.refresh(...), or restore it")
        self._reach = Reach(self.base, pins=self._seen)
        self._layouts: dict[int, TokenLayout] = {}
        self._lock = threading.Lock()

    def _lengths_of(self, rows: NDArray[np.uint64]) -> NDArray[np.int64]:
        found: NDArray[np.int64] = self._rows.fetch(rows, [LENGTH]).column(LENGTH).to_numpy()
        return found

    def _gathered(self, rows: NDArray[np.uint64]) -> pa.Array:
        table = self._rows.fetch(rows, [START, LENGTH])
        starts, lengths = (table.column(name).to_numpy().tolist() for name in (START, LENGTH))
        ends = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        out, item = np.empty(int(ends[-1]), self._dtype), self._dtype.itemsize
        units = (np.searchsorted(self._starts, rows, side="right") - 1).tolist()
        requests: list[NamedObject] = []
        for row, unit in enumerate(units):  # 2 us per row
            if lengths[row]:
                uri, layout = self._path(unit), self._layout_of(unit)
                requests.append(NamedObject(row, uri, uri, layout.offset + starts[row] * item, lengths[row] * item))
        for each, data in read_objects(requests, self._reach, None):
            out[ends[each.row] : ends[each.row + 1]] = np.frombuffer(data, self._dtype)
        kind = self.schema.field(TOKENS).type
        return pa.ListArray.from_arrays(pa.array(ends.astype(np.int32)), pa.array(out), type=kind)

    def _layout_of(self, unit: int) -> TokenLayout:
        """Where the ids of a unit's file lie; the file is looked at once."""
        with self._lock:
            if unit not in self._layouts:
                self._layouts[unit] = self._looked_at(self._path(unit), self._names[unit])
            return self._layouts[unit]

    def _looked_at(self, uri: str, name: str) -> TokenLayout:
        facts = look(uri)
        if self._rows.key_of(self._key_of(name, facts)) not in self._keys:
            msg = (
                f"{cut(uri)} changed since registration. Take it as it is now with catalog.refresh(...), or restore it"
            )
            raise SourceError(msg)
        self._seen.seen[uri] = facts
        layout = self._layout(uri)
        if layout.dtype != self._dtype.name:
            msg = f"{cut(uri)} holds {layout.dtype} now, and other files {self._dtype.name}. Restore it"
            raise SourceError(msg)
        return layout
