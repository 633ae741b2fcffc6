"""Selected rows in the order of the last sort before `sample`: a permutation on disk, made once.

Sorting looks at all rows, so one process does it, in memory: the columns of the sort and 16 bytes per row. What is kept
are two arrays, 8 bytes per row together (16 beyond 2^32 rows), which every rank maps.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, final

import numpy as np
from numpy.typing import NDArray

from spiral_stream.catalog.relation.reader import OpenRelation
from spiral_stream.derived.work.cooperative_build import one_at_a_time
from spiral_stream.integrity import seal
from spiral_stream.integrity.publish import mended, publish
from spiral_stream.plan import nodes
from spiral_stream.planner.selection.fetched_columns import UInt64
from spiral_stream.planner.selection.selected import Selected
from spiral_stream.planner.selection.whole import sorted_ordinals

_LOCK: Final = ".sorting"


@final
class SortedSelection:
    """A permutation of surviving rows, mapped. Thread-safe; pickling passes the path."""

    def __init__(self, folder: Path, total: int) -> None:
        """Map what `sorted_rows` made.

        Raises:
            DamageError: it is missing, or not what was written.
        """
        self._folder, self._total = folder, total
        self._rows, self._ranks = (seal.array(folder / f"{name}.npy") for name in ("rows", "ranks"))
        if {len(self._rows), len(self._ranks)} != {total}:
            raise seal.damaged(folder, f"it has {len(self._rows):,} rows of {total:,}")

    def __reduce__(self) -> tuple[Any, ...]:
        return (SortedSelection, (self._folder, self._total))

    def rows(self, ranks: UInt64) -> UInt64:
        """Shape [P] -> [P], uint64: the surviving row at each place of the sort."""
        return np.asarray(self._rows[ranks], dtype=np.uint64)

    def ranks(self, rows: UInt64) -> UInt64:
        """Shape [P] -> [P], uint64: the inverse of `rows`."""
        return np.asarray(self._ranks[rows], dtype=np.uint64)


def sorted_rows(selected: Selected, node: nodes.Node, opened: Callable[[str], OpenRelation]) -> SortedSelection:
    """Return surviving rows in the order of the last sort of their plan; one process sorts them, and others wait.

    Args:
        selected: the rows.
        node: the plan that they are of.
        opened: gives its relations by name.

    Raises:
        CacheError: the folder cannot be written.
    """
    folder, total = selected.folder / "sorted", selected.total

    def make() -> None:
        with one_at_a_time(folder.with_name(_LOCK), folder.exists):
            if not folder.exists():
                _keep(folder, selected.rows.rows(sorted_ordinals(node, opened))[0])

    return mended(folder, lambda: SortedSelection(folder, total), make)


def _keep(folder: Path, rows: UInt64) -> None:
    kind = np.uint32 if len(rows) <= np.iinfo(np.uint32).max else np.uint64
    ranks: NDArray[Any] = np.empty(len(rows), kind)
    ranks[rows] = np.arange(len(rows), dtype=kind)
    with publish(folder) as draft:
        np.save(draft / "rows.npy", rows.astype(kind))
        np.save(draft / "ranks.npy", ranks)
