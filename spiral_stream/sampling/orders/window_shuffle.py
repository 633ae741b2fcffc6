"""`WindowShuffle`: rows change positions with rows near them, as in the shuffle buffer of a streaming reader."""

from dataclasses import dataclass
from typing import ClassVar, Final, final

import numpy as np

from spiral_stream.arguments import class_door
from spiral_stream.errors import PlanError
from spiral_stream.sampling.order import Arrangement, Order, Population, SortedRows, UInt64, check_integer, settled_seed
from spiral_stream.sampling.orders.permutation import permute, unpermute
from spiral_stream.sampling.orders.shuffle_key import shuffle_key
from spiral_stream.seeding import combine, key

_ONE: Final = np.uint64(1)


@final
@class_door(PlanError)
@dataclass(frozen=True, slots=True)
class WindowShuffle(Order):
    """Rows permuted inside windows of the stored order, twice: the second time in windows that begin half a window later.

    A row moves by less than two windows, so reading stays nearly sequential whatever the storage. Rows far apart in
    storage stay far apart in the epoch: take it where the data is shuffled already, or must keep its rough order. It
    follows a `sort` that comes last in the plan: a curriculum whose steps are mixed. A mixture shuffles each stream in its
    slices of about 4,096 samples as well (docs/decisions/0021).

    Examples:
        >>> photos.sample(order=spiral.orders.WindowShuffle(seed=17, window=4)).order().rows([0, 1])[
        ...     "photo_id"
        ... ].to_pylist()
        ['p03', 'p00']
    """

    follows_sort: ClassVar[bool] = True
    needs_units: ClassVar[bool] = False

    seed: int | None
    window: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "seed", settled_seed("WindowShuffle", self.seed))
        check_integer("WindowShuffle", "window", self.window, least=1)

    def arrange(self, population: Population, pass_number: int) -> Arrangement:
        pass_key = shuffle_key("WindowShuffle", self.VERSION, self.run_seed, population, pass_number)
        return Windows(population.total, self.window, pass_key, population.arranged)


@final
class Windows(Arrangement):
    """Places permuted in windows, twice; ``arranged`` says which row a place is, where that is not the row itself."""

    def __init__(self, size: int, window: int, pass_key: int, arranged: SortedRows | None) -> None:
        self.size, self._window, self._arranged = size, np.uint64(window), arranged
        self._first, self._second = (np.uint64(key(stage, pass_key)) for stage in ("first", "second"))
        self._half = np.uint64(window // 2)

    def rows(self, positions: UInt64) -> UInt64:
        starts, sizes, keys = self._windows(positions, self._half, self._second)
        mixed = starts + permute(positions - starts, sizes, keys)
        starts, sizes, keys = self._windows(mixed, np.uint64(0), self._first)
        swapped = starts + permute(mixed - starts, sizes, keys)
        return swapped if self._arranged is None else self._arranged.rows(swapped)

    def positions(self, rows: UInt64) -> UInt64:
        ranked = rows if self._arranged is None else self._arranged.ranks(rows)
        starts, sizes, keys = self._windows(ranked, np.uint64(0), self._first)
        mixed = starts + unpermute(ranked - starts, sizes, keys)
        starts, sizes, keys = self._windows(mixed, self._half, self._second)
        return starts + unpermute(mixed - starts, sizes, keys)

    def _windows(self, positions: UInt64, lead: np.uint64, pass_key: np.uint64) -> tuple[UInt64, UInt64, UInt64]:
        """Start, size and key of the window around each place; the first window is shorter by what all are ahead."""
        positions = np.asarray(positions, dtype=np.uint64)
        number = (positions + lead) // self._window
        starts = np.maximum(number * self._window, lead) - lead
        ends = np.minimum((number + _ONE) * self._window - lead, np.uint64(self.size))
        return starts, ends - starts, combine(pass_key, number)
