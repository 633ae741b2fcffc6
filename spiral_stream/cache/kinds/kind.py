"""The interface of cache kinds: a payload column, the form it is stored in, and the fingerprint of both.

There is one room per kind: `images`, `tokens`, `clips` and `video_index`. Each has a frozen
`Kind` with the same members: run sizes, the column, `form`, `facts` and `keep_rows`.

A kind is the deterministic, per-row part of a plan that touches one payload column
of one relation. Its fingerprint covers exactly that; filter, join, order and data
never enter it (docs/decisions/0027). Payload for many rows is one byte buffer plus a size
per row; no per-row Python object is created on the way to disk. A row that is not
stored goes through the same `keep_rows` on the fly, so a cache changes only the speed.

A cache is never stale: another fingerprint is another cache, and `materialize` finds the shards whose content has no
finished part. `fingerprint` lists the facts of each kind.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spiral_stream.plan.saving.fingerprint import digest
from spiral_stream.sources.references.policy import Reach


@final
@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """The payload of P rows, in the order given."""

    payload: Any  # a buffer: the payload of every row, end to end
    sizes: NDArray[np.int64]  # [P] bytes of each; 0 where refused
    refused: Mapping[int, str]  # place -> why the row has no payload
    narrow: Mapping[str, NDArray[np.int32]]  # [P] each: columns stored next to the payload
    source_bytes: int  # read to make them


class Kind(ABC):
    """One payload column of one relation, kept in one form."""

    __slots__ = ()

    RUN_BYTES: ClassVar[int]  # source bytes per run, about: a run is fetched and stored at once
    RUN_ROWS: ClassVar[int]  # rows per run at most
    FIRST_ROWS: ClassVar[int] = 32  # rows of the first runs, whose size is not known yet

    relation: str
    column: str

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that `keep_rows` reads, the payload column first."""
        return (self.column,)

    @property
    @abstractmethod
    def form(self) -> str:
        """The form in which a row is stored, in words."""

    @property
    def title(self) -> str:
        """The form as EXPLAIN names it, before the fingerprint."""
        return self.form

    @abstractmethod
    def facts(self) -> dict[str, object]:
        """Return what the fingerprint covers; also written to the cache folder for people."""

    @abstractmethod
    def keep_rows(self, table: pa.Table, base: Reach | str) -> Rows:
        """Make the payload of some rows. Thread-safe.

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
