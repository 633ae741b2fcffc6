"""What a kind of cache is: a payload column, what is kept of it, and the fingerprint of that.

A kind is the deterministic, per-row part of a plan that touches one payload column
of one relation. Its fingerprint covers exactly that; filter, join, order and data
never enter it (docs/decisions/0027). What is kept of some rows is one run of bytes and the
size of each, so that no object a row stands between the one who makes payload and
the disk. A row that is not stored goes through the same `keep_rows` on the fly, so
a cache changes only the speed.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spiral_stream.plan.fingerprint import digest
from spiral_stream.sources.reach import Reach


@final
@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """What is kept of P rows, in the order given."""

    payload: Any  # a buffer: the payload of every row, end to end
    sizes: NDArray[np.int64]  # [P] bytes of each; 0 where refused
    refused: Mapping[int, str]  # place -> why the row has no payload
    beside: Mapping[str, NDArray[np.int32]]  # [P] each: what is kept outside the payload
    source_bytes: int  # read to make them


class Kind(ABC):
    """One payload column of one relation, kept in one form."""

    __slots__ = ()

    RUN_BYTES: ClassVar[int]  # source bytes that are fetched and kept in one go, about
    RUN_ROWS: ClassVar[int]  # and at most so many rows
    FIRST_ROWS: ClassVar[int] = 32  # of the first runs, of which nothing is known

    relation: str
    column: str

    @property
    def columns(self) -> tuple[str, ...]:
        """What `keep_rows` reads of the relation, the payload column first."""
        return (self.column,)

    @property
    @abstractmethod
    def form(self) -> str:
        """What is stored per row, in words."""

    @abstractmethod
    def facts(self) -> dict[str, object]:
        """What the fingerprint covers; written beside the cache for people."""

    @abstractmethod
    def keep_rows(self, table: pa.Table, base: Reach | str) -> Rows:
        """What to store for some rows. Thread-safe.

        Args:
            table: P rows of the kind's columns.
            base: where relative references start, and which files they may name.

        Raises:
            SourceError: storage failed. Bad bytes are a refused row, not an error.
        """

    @property
    def fingerprint(self) -> str:
        """32 hex digits: equal when and only when the payload is meant equal."""
        return digest(self.facts())
