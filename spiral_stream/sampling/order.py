"""What an order must do: say which row stands at which position of an epoch.

An `Order` is the frozen value the plan holds. `Order.arrange` gives it a
`Population` (how many rows pass, shard by shard) and a pass number, and returns
an `Arrangement`: a pure function between positions and rows, evaluated on
arrays, whose memory grows with the number of shards or buckets, never of rows.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from spiral_stream.errors import PlanError, shown

UInt64 = NDArray[np.uint64]
LARGEST: Final = 2**62  # of counts, such as positions of an epoch, samples of a run, uses of a stream


class BucketIndex(Protocol):
    """Rows sorted by the 128-bit hash of their identity; on disk, mapped in pieces."""

    def starts(self, bucket_count: int) -> UInt64:
        """Shape [bucket_count + 1], uint64: where each bucket begins in the sorted rows."""
        ...

    def rows(self, ranks: UInt64) -> UInt64:
        """Shape [P] -> [P], uint64: the row at each place of the sorted rows."""
        ...

    def ranks(self, rows: UInt64) -> UInt64:
        """Shape [P] -> [P], uint64: the inverse of `rows`."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Runs:
    """Which rows are equal in some columns: R runs of neighbours, of G groups."""

    starts: UInt64  # [R], ascending from 0: the first row of each run
    groups: UInt64  # [R], each in [0, G), numbered by where a group comes first


@dataclass(frozen=True, slots=True, eq=False)
class Population:
    """The rows that an order orders: ``range(total)``, contiguous within each shard.

    ``unit_rows`` counts the surviving rows of each smallest piece of storage (a row
    group, a fragment page run), in row order; ``unit_shards`` says which shard each
    belongs to. Without finer facts, units are the shards. ``runs`` are of the order's
    `Order.grouped_by`.
    """

    unit_rows: UInt64  # [U]
    unit_shards: UInt64  # [U], non-decreasing, 0-based
    stream: str = ""
    index: BucketIndex | None = None
    runs: Runs | None = None

    @property
    def total(self) -> int:
        return int(self.unit_rows.sum())


class Arrangement(ABC):
    """One pass of an order over a population."""

    size: int  # number of positions

    @abstractmethod
    def rows(self, positions: UInt64) -> UInt64:
        """Shape [P] -> [P], uint64: the row read at each position; positions in [0, size)."""

    @abstractmethod
    def positions(self, rows: UInt64) -> UInt64:
        """Shape [P] -> [P], uint64: the position at which each row is read."""


class Order(ABC):
    """A policy of the plan: frozen, JSON-able, without data."""

    VERSION: ClassVar[int] = 1  # part of the fingerprint; a change of any output raises it

    @abstractmethod
    def arrange(self, population: Population, pass_number: int) -> Arrangement:
        """The order of one pass. Costs at most O(shards) time and memory."""

    @property
    def run_seed(self) -> int:
        """The default seed of a run's random transforms."""
        return int(getattr(self, "seed", 0))

    @property
    def needs_index(self) -> bool:
        """Whether `Population.index` must be given."""
        return False

    @property
    def grouped_by(self) -> tuple[str, ...]:
        """The columns of which `Population.runs` must be given; ``storage_shard`` is the shard itself."""
        return ()


def check_whole(policy: str, name: str, value: object, least: int | None = None, most: int | None = None) -> None:
    """Refuse a parameter that is not an integer from ``least`` to ``most``.

    Args:
        policy: whose it is, for the message.
        name: of the parameter.
        value: what was given.
        least: None for any number, as of a seed.
        most: by default 2**62 where there is a least: sums of two counts stay in 64 bits.

    Raises:
        PlanError: it is another type (a bool too), smaller or larger.
    """
    if not isinstance(value, int) or isinstance(value, bool) or (least is not None and value < least):
        wanted = "an integer" if least is None else f"an integer of at least {least}"
        msg = f"{policy}: {name} is {shown(value)}. Give {wanted}"
        raise PlanError(msg)
    if least is not None and value > (LARGEST if most is None else most):
        msg = f"{policy}: {name} is {value if value < 2**128 else 'past 2**128'}. Give at most {most or '2**62'}"
        raise PlanError(msg)
