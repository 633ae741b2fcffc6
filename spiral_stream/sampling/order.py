"""What an order must do: say which row stands at which position of an epoch.

An `Order` is the frozen value that the plan holds. `Order.arrange` takes a `Population` (how many rows survive, shard by
shard) and a pass number, and returns an `Arrangement`: a pure function between positions and rows, evaluated on arrays.
Its memory grows with the number of shards or buckets, never with the number of rows.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from spiral_stream.arguments import integer
from spiral_stream.errors import PlanError
from spiral_stream.seeding import DrawnSeed

UInt64 = NDArray[np.uint64]
Float64 = NDArray[np.float64]
WEIGHT_BLOCK: Final = 64  # rows whose weights are summed, so that 8 bytes of sums stand for 64 rows
LARGEST: Final = 2**62  # largest count: positions of an epoch, samples of a run, uses of a stream


class BucketIndex(Protocol):
    """Rows sorted by the 128-bit hash of their identity; on disk, mapped in pieces."""

    def starts(self, bucket_count: int) -> UInt64:
        """Return where each bucket begins in the sorted rows; shape [bucket_count + 1], uint64."""
        ...

    def rows(self, ranks: UInt64) -> UInt64:
        """Return the row at each place of the sorted rows; shape [P] -> [P], uint64."""
        ...

    def ranks(self, rows: UInt64) -> UInt64:
        """Return the place of each row: the inverse of `rows`; shape [P] -> [P], uint64."""
        ...


class SortedRows(Protocol):
    """Rows in the order of a sort; on disk, mapped in pieces."""

    def rows(self, ranks: UInt64) -> UInt64:
        """Return the row at each place of the sorted rows; shape [P] -> [P], uint64."""
        ...

    def ranks(self, rows: UInt64) -> UInt64:
        """Return the place of each row: the inverse of `rows`; shape [P] -> [P], uint64."""
        ...


class RowWeights(Protocol):
    """The weights of rows: numbers from 0 up, of which at least one is above 0."""

    positive: int  # rows whose weight is above 0

    def of(self, rows: UInt64) -> Float64:
        """Return the weights of rows; shape [P] -> [P], float64."""
        ...

    def cumulated(self) -> Float64:
        """Return the sums of all weights up to the end of each block of `WEIGHT_BLOCK` rows; shape [B], float64, rising."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Runs:
    """Which rows are equal in some columns: R runs of neighbouring rows, in G groups."""

    starts: UInt64  # [R], ascending from 0: the first row of each run
    groups: UInt64  # [R], each in [0, G); groups are numbered in order of appearance


@dataclass(frozen=True, slots=True, eq=False)
class Population:
    """The rows that an order orders: ``range(total)``, contiguous within each shard.

    ``unit_rows`` counts the surviving rows of each smallest piece of storage (a row group, a run of pages), in row order;
    ``unit_shards`` says which shard each unit belongs to. Units are the shards if nothing finer is known. ``runs`` groups
    the rows by the columns of `Order.grouped_by`. ``arranged`` has them in the order of a sort that comes last in the plan.
    ``weights`` are those of `Order.weighted_by`.

    Examples:
        >>> from spiral_stream.orders import Population
        >>> Population(np.array([12, 4], np.uint64), np.array([0, 1], np.uint64)).total
        16
    """

    unit_rows: UInt64  # [U]
    unit_shards: UInt64  # [U], non-decreasing, 0-based
    stream: str = ""
    index: BucketIndex | None = None
    runs: Runs | None = None
    arranged: SortedRows | None = None
    weights: RowWeights | None = None

    @property
    def total(self) -> int:
        return int(self.unit_rows.sum())


class Arrangement(ABC):
    """One pass of an order over a population.

    Examples:
        >>> from spiral_stream.orders import Population
        >>> everything = Population(np.array([12], np.uint64), np.zeros(1, np.uint64))
        >>> arranged = spiral.GlobalShuffle(seed=17).arrange(everything, 0)
        >>> rows = arranged.rows(np.arange(3, dtype=np.uint64))
        >>> arranged.positions(rows).tolist()
        [0, 1, 2]
    """

    size: int  # number of positions

    @abstractmethod
    def rows(self, positions: UInt64) -> UInt64:
        """Return the row read at each position in [0, size); shape [P] -> [P], uint64."""

    @abstractmethod
    def positions(self, rows: UInt64) -> UInt64:
        """Return the position at which each row is read; shape [P] -> [P], uint64."""

    def positions_of(self, row: int) -> list[int]:
        """Return every position at which a row is read, ascending: one, unless the order repeats or leaves out rows."""
        return [int(each) for each in self.positions(np.array([row], dtype=np.uint64))]


class Order(ABC):
    """A policy of the plan: frozen, JSON-able, without data.

    Examples:
        >>> from spiral_stream.orders import Population
        >>> from spiral_stream.testing import check_order
        >>> check_order(
        ...     spiral.GlobalShuffle(seed=17), Population(np.array([12], np.uint64), np.zeros(1, np.uint64))
        ... )
    """

    VERSION: ClassVar[int] = 1  # part of the fingerprint; a change of any output raises it

    @abstractmethod
    def arrange(self, population: Population, pass_number: int) -> Arrangement:
        """Return the order of one pass, in at most O(shards) time and memory."""

    def size(self, population: Population) -> int:
        """Return how many positions a pass has: as many as there are rows, unless rows are left out."""
        return population.total

    @property
    def run_seed(self) -> int:
        """The seed of the order; also the default seed of a run's random transforms."""
        return int(getattr(self, "seed", 0) or 0)

    @property
    def repeats_rows(self) -> bool:
        """Whether a pass may read a row several times, or not at all; then `Arrangement.places_of` has to say where."""
        return False

    @property
    def large_passes(self) -> bool:
        """Whether an arrangement takes much memory, so that only the last two of a stream are kept."""
        return False

    @property
    def needs_index(self) -> bool:
        """Whether `Population.index` must be given."""
        return False

    @property
    def needs_units(self) -> bool:
        """Whether `Population.unit_rows` must count the smallest pieces of storage; otherwise they may count shards."""
        return True

    @property
    def follows_sort(self) -> bool:
        """Whether the order is that of a sort before it; then `Population.arranged` must be given where there is one."""
        return False

    @property
    def goes_in_turn(self) -> bool:
        """Whether row p stands at position p, which no mixture can keep."""
        return False

    @property
    def weighted_by(self) -> str | None:
        """The column or expression whose values `Population.weights` must have."""
        return None

    @property
    def grouped_by(self) -> tuple[str, ...]:
        """The columns that `Population.runs` must group by; ``storage_shard`` is the shard itself."""
        return ()


def check_integer(policy: str, name: str, value: Any, least: int | None = None, most: int | None = None) -> None:
    """Refuse a parameter that is not an integer from ``least`` to ``most``.

    Args:
        policy: the class that has the parameter, for the message.
        name: the parameter's name.
        value: the value given.
        least: smallest value; None for a parameter of any size, such as a seed.
        most: largest value; if there is a ``least``, 2**62 by default, so that sums of two counts stay in 64 bits.

    Raises:
        PlanError: it is another type (a bool too), smaller or larger.
    """
    integer(least, None, "an integer" if least is None else "").need(f"{policy}: {name} is ", value)
    if least is not None and value > (LARGEST if most is None else most):
        msg = f"{policy}: {name} is {value if value < 2**128 else 'past 2**128'}. Give at most {most or '2**62'}"
        raise PlanError(msg)


def settled_seed(policy: str, seed: object) -> int:
    """Return the seed of an order: one that is drawn now, where None is given.

    Raises:
        PlanError: it is neither an integer nor None.
    """
    if seed is None:
        return DrawnSeed.fresh()
    check_integer(policy, "seed", seed)
    assert isinstance(seed, int)
    return seed
