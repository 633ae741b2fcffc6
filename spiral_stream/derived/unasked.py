"""Limits for derived data that nobody asked for: its cost is estimated from the first rows, and stated before it is built.

Opening a stream makes what it reads most: narrow columns, the rows that pass a filter, lengths. Over 10^7 rows that takes
under a second. Over more, some rows are scanned and made first, which takes some 10 ms, and say what all of them will take.
"""

from collections.abc import Sequence
from time import process_time
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from spiral_stream.derived.derivation import Derivation, ShardRows, ShardSource
from spiral_stream.errors import warn

LOOKED_AT_ROWS: Final = 1 << 24  # fewer are made without a look
WARN_BYTES: Final = 1 << 30
WARN_CPU_S: Final = 10.0
MOST_BYTES: Final = 16 << 30  # of what a stream can be read without
MOST_CPU_S: Final = 300.0  # of the same
_PROBED_ROWS: Final = 1 << 18
_PROBED_CPU_S: Final = 0.3
_MARK_BYTES: Final = 9 / 64  # of a row in the bitmap of survivors, with its directory
_WRITTEN_S: Final = 1.5e-9  # CPU time of a byte that is written and summed
_UNITS: Final = (("TB", 1e12), ("GB", 1e9), ("MB", 1e6))


class Cost(NamedTuple):
    """What is made, about; nothing where there are so few rows that nobody looked."""

    rows: int
    bytes: float
    cpu_s: float

    @property
    def worth_telling(self) -> bool:
        """Whether somebody who waits wants to know."""
        return self.bytes >= WARN_BYTES or self.cpu_s >= WARN_CPU_S

    @property
    def too_much(self) -> bool:
        """Whether it is not begun unasked, if a stream can be read without it."""
        return self.bytes > MOST_BYTES or self.cpu_s > MOST_CPU_S

    def __str__(self) -> str:
        return f"{self.rows:,} rows, about {in_bytes(self.bytes)} on disk and {self.cpu_s:,.0f} s of CPU time"


def in_bytes(size: float) -> str:
    """Format bytes with two digits, for example ``3.2 GB``."""
    unit, of = next((each for each in _UNITS if size >= each[1]), _UNITS[-1])
    return f"{size / of:,.0f} {unit}" if size / of >= 10 else f"{size / of:.1f} {unit}"  # noqa: PLR2004  two digits


def cost_of(source: ShardSource, derivations: Sequence[Derivation], rows: int) -> Cost:
    """Say what it takes to make derivations for so many rows of a relation, from its first rows.

    Raises:
        SourceError: the relation cannot be read.
    """
    if rows < LOOKED_AT_ROWS or not derivations:
        return Cost(rows, 0.0, 0.0)
    predicates = [each.predicate for each in derivations if each.predicate is not None]
    read = {name for each in derivations for name in each.columns}.union(*(each.columns() for each in predicates))
    held, since, seen = list[pa.RecordBatch](), process_time(), 0
    first = int(np.argmax(np.diff(source.manifest.starts)))
    for batch in source.scan(sorted(read), None, [first]):
        if held:
            seen += len(batch)
        else:  # the first one opens files, which says nothing about the others
            since = process_time()
        held.append(batch)
        if seen >= _PROBED_ROWS or process_time() - since >= _PROBED_CPU_S:
            break
    table = pa.Table.from_batches(held[1:] or held)
    size = _size(derivations, table) / max(1, len(table))
    row_s = (process_time() - since) / max(1, len(table)) + size * _WRITTEN_S
    return Cost(rows, size * rows, row_s * rows)


def tell(derivations: Sequence[Derivation], cost: Cost) -> None:
    """Warn that much is made now, before it begins."""
    if not cost.worth_telling:
        return
    kinds: dict[str, set[str]] = {}
    for each in derivations:
        kinds.setdefault(each.KIND, set()).update(each.columns)
    what = ", ".join(f"{kind} of {', '.join(sorted(names))}" if names else kind for kind, names in kinds.items())
    msg = (
        f"open: the first stream over these rows makes {what} now, which later ones read: {cost}. To make them with several "
        'processes or on a cluster, call stream.materialize(executor="processes") or "ray" before the loop'
    )
    warn(msg)


def _size(derivations: Sequence[Derivation], table: pa.Table) -> float:
    """Bytes of what is kept of some rows."""
    out, offsets = 0.0, np.arange(len(table), dtype=np.uint64)
    for each in derivations:
        if each.predicate is not None:
            out += len(table) * _MARK_BYTES
            continue
        piece = each.piece(ShardRows(len(table), offsets, table.select(list(each.columns))))
        out += sum(array.nbytes for array in piece.arrays.values() if isinstance(array, np.ndarray))
    return out
