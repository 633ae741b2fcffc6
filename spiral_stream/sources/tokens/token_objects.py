"""The ids of documents in files on an object store, read by range: those of a batch are asked for together.

A file is looked at when it is first read, and compared with what was registered; each answer is compared with that look.
"""

import threading
from collections.abc import Callable
from typing import final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spiral_stream.errors import SourceError, cut
from spiral_stream.sources.pins import FileFacts, ObjectFacts, Pin, pin_of
from spiral_stream.sources.references.objects import NamedObject, read_objects
from spiral_stream.sources.references.policy import Reach
from spiral_stream.sources.source import Reader
from spiral_stream.sources.tokens.layout import TokenLayout
from spiral_stream.sources.tokens.reader import LENGTH, START, TOKENS, TokenRows
from spiral_stream.storage.file_object import look
from spiral_stream.storage.store import Facts

KeyOf = Callable[[str, Facts], str]


@final
class RemoteTokenReader(TokenRows):
    """Reads ids by range.

    Args:
        kept: the rows as they are kept.
        layout: says where the ids of a file lie.
        key_of: gives the content key of a file by its name and what it is like.
    """

    remote = True

    def __init__(self, kept: Reader, layout: Callable[[str], TokenLayout], key_of: KeyOf) -> None:
        super().__init__(kept, layout)
        runs = kept.row_runs()
        self._keys = frozenset() if runs is None else frozenset(runs.keys.to_pylist())
        self._key_of = key_of
        self._seen = _Seen({})
        self._reach = Reach(self.base, pins=self._seen)
        self._layouts: dict[int, TokenLayout] = {}
        self._lock = threading.Lock()

    def _lengths_of(self, rows: NDArray[np.uint64]) -> NDArray[np.int64]:
        found: NDArray[np.int64] = self._kept.fetch(rows, [LENGTH]).column(LENGTH).to_numpy()
        return found

    def _gathered(self, rows: NDArray[np.uint64]) -> pa.Array:
        table = self._kept.fetch(rows, [START, LENGTH])
        starts, lengths = (table.column(name).to_numpy().tolist() for name in (START, LENGTH))
        ends = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        out, item = np.empty(int(ends[-1]), self._dtype), self._dtype.itemsize
        units = (np.searchsorted(self._starts, rows, side="right") - 1).tolist()
        asked: list[NamedObject] = []
        for row, unit in enumerate(units):  # 2 us per row
            if lengths[row]:
                uri, layout = self._path(unit), self._layout_of(unit)
                asked.append(NamedObject(row, uri, uri, layout.offset + starts[row] * item, lengths[row] * item))
        for each, data in read_objects(asked, self._reach, None):
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
        if self._kept.key_of(self._key_of(name, facts)) not in self._keys:
            msg = (
                f"{cut(uri)} changed since registration. Take it as it is now with catalog.refresh(...), or restore it"
            )
            raise SourceError(msg)
        self._seen.pins[uri] = pin_of(ObjectFacts(facts.size, facts.modified_ns, facts.mark, facts.etag))
        layout = self._layout(uri)
        if layout.dtype != self._dtype.name:
            msg = f"{cut(uri)} holds {layout.dtype} now, and other files {self._dtype.name}. Restore it"
            raise SourceError(msg)
        return layout


@final
class _Seen:
    """Pins the files that were looked at."""

    def __init__(self, pins: dict[str, Pin]) -> None:
        self.pins = pins

    def fault(self, name: str, facts: FileFacts) -> str | None:
        """Say how a file differs from what was seen, and the way out; None if it does not."""
        if pin_of(facts) == self.pins.get(name):
            return None
        return "changed while it is being read. Take it as it is now with catalog.refresh(...), or restore it"

    def object_of(self, name: str) -> Facts | None:
        """Return what a file was like when it was looked at."""
        pin = self.pins.get(name)
        return None if pin is None else Facts(pin.size, marked=pin.mtime_ns % 2**64)
