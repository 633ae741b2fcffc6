"""The interface of derivations: what is computed from the rows of one relation, and stored per storage shard.

A `Derivation` is a frozen value with a fingerprint. A `Piece` is what it keeps for one storage shard: a few arrays
and a few numbers (the summary). The key of a piece is (fingerprint of the derivation, content key of the shard), so
a piece never changes: another threshold is another derivation, and a changed shard has another content key.
Everything about the whole relation is either its pieces side by side or a cheap merge of their summaries.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spiral_stream.expr import Expr
from spiral_stream.sources.change_detection import content_key

UInt64 = NDArray[np.uint64]


@final
@dataclass(frozen=True, slots=True, eq=False)
class ShardRows:
    """The rows of one storage shard that a derivation looks at, in the order of the shard."""

    rows: int  # of the whole shard
    offsets: UInt64  # [N] where the rows below stand in the shard, ascending; all of them without a predicate
    table: pa.Table  # [N] rows of the derivation's columns


class Spool(ABC):
    """An array of a piece that is too large for memory: it is written end to end, and read back in the same parts."""

    @abstractmethod
    def append(self, array: NDArray[Any]) -> None:
        """Write more of it."""

    @abstractmethod
    def parts(self) -> Iterator[NDArray[Any]]:
        """Yield what was appended, one array at a time."""


@final
class Changed(Spool):
    """What another spool holds, each of its parts changed on the way to its place.

    Args:
        spool: what was written.
        change: what becomes of its k-th part.
    """

    def __init__(self, spool: Spool, change: Callable[[int, NDArray[Any]], NDArray[Any]]) -> None:
        self._spool, self._change = spool, change

    def append(self, array: NDArray[Any]) -> None:
        self._spool.append(array)

    def parts(self) -> Iterator[NDArray[Any]]:
        for k, part in enumerate(self._spool.parts()):
            yield self._change(k, part)


@final
@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """What a derivation keeps for one storage shard."""

    arrays: Mapping[str, NDArray[Any] | Spool]  # of the dtypes of `Derivation.slots`; absent ones are empty
    summary: Mapping[str, int] = field(default_factory=dict)  # one value per name of `Derivation.SUMMARY`


class ByRange(ABC):
    """Makes the piece of one large shard from its rows, a range at a time: the same bytes as from all rows together."""

    @abstractmethod
    def add(self, some: ShardRows) -> None:
        """Take the next rows; their offsets are those in the shard."""

    @abstractmethod
    def end(self) -> Piece:
        """Return the piece of all rows that were taken."""


class Derivation(ABC):
    """Something that is computed shard by shard. Subclasses are frozen dataclasses that pickle."""

    KIND: ClassVar[str]
    SUMMARY: ClassVar[tuple[str, ...]] = ()

    @property
    @abstractmethod
    def columns(self) -> tuple[str, ...]:
        """The columns that `piece` reads."""

    @property
    def predicate(self) -> Expr | None:
        """Which rows `piece` is given, as the source evaluates it; None: all of them."""
        return None

    @property
    @abstractmethod
    def slots(self) -> Mapping[str, np.dtype[Any]]:
        """The arrays of a piece, in the order in which they are stored, and their types."""

    @property
    def row_bytes(self) -> int | None:
        """Bytes of one row of the columns that are read; None where values have no fixed width."""
        return None

    @property
    def chunk_rows(self) -> int | None:
        """The most rows that are made at a time, where making them takes long; None where it does not."""
        return None

    @abstractmethod
    def facts(self) -> dict[str, object]:
        """Return what the fingerprint covers, as JSON values; also written to disk for people."""

    @abstractmethod
    def piece(self, shard: ShardRows) -> Piece:
        """Make the piece of one shard: a pure function. Thread-safe."""

    def pieces(self, shards: Sequence[ShardRows]) -> list[Piece]:
        """Make the pieces of several shards, where what is needed for one serves all of them."""
        return [self.piece(shard) for shard in shards]

    def by_range(self, rows: int, spool: Callable[[str], Spool]) -> ByRange | None:
        """Return what makes the piece of a shard of so many rows without holding them; None if there is no such way.

        Args:
            rows: of the shard.
            spool: begins the array of a slot; that of the first slot goes to its place at once, so it is never changed.
        """
        del rows, spool
        return None

    @property
    def fingerprint(self) -> str:
        """32 hex digits: equal when and only when the pieces are meant equal."""
        return content_key(json.dumps({"kind": self.KIND, **self.facts()}, sort_keys=True))


class ShardTable(Protocol):
    """Where the rows of a relation lie."""

    @property
    def starts(self) -> UInt64:
        """Shape [S + 1]: the first logical ordinal of each shard, and the end."""
        ...

    @property
    def content_keys(self) -> pa.StringArray:
        """Shape [S]: 32 hex digits each."""
        ...

    @property
    def shard_bytes(self) -> NDArray[np.int64]:
        """Shape [S]: bytes of each shard, -1 where nobody knows."""
        ...


class ShardSource(Protocol):
    """What pieces are made from: an open relation, which pickles if other processes are to read it."""

    @property
    def schema(self) -> pa.Schema:
        """The types of its columns."""
        ...

    @property
    def manifest(self) -> ShardTable:
        """Its shards."""
        ...

    def scan(
        self, columns: Sequence[str], predicate: Expr | None = None, shards: Sequence[int] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Batches of the columns, with logical ordinals in ``ROW``."""
        ...
