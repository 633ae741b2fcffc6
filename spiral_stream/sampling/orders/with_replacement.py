"""Drawing with replacement: each position of a pass draws one of all rows, whatever the others drew (a bootstrap)."""

from dataclasses import dataclass
from typing import ClassVar, Final, final

import numpy as np

from spiral_stream.arguments import class_door
from spiral_stream.errors import PlanError
from spiral_stream.sampling.order import Arrangement, Order, Population, UInt64, settled_seed
from spiral_stream.sampling.orders.shuffle_key import shuffle_key
from spiral_stream.seeding import below, combine

_AT_ONCE: Final = 1 << 20  # positions that are drawn again to find a row


@final
@class_door(PlanError)
@dataclass(frozen=True, slots=True)
class WithReplacement(Order):
    """Each position draws any row with the same probability; a pass draws as often as there are rows.

    About 37 % of the rows are missing from a pass. Random transforms of a row that comes several times differ.

    Examples:
        >>> drawn = photos.sample(order=spiral.orders.WithReplacement(seed=17)).order()
        >>> len(set(drawn.rows(range(48))["photo_id"].to_pylist())) < 48
        True
    """

    needs_units: ClassVar[bool] = False
    repeats_rows: ClassVar[bool] = True

    seed: int | None

    def __post_init__(self) -> None:
        object.__setattr__(self, "seed", settled_seed("WithReplacement", self.seed))

    def arrange(self, population: Population, pass_number: int) -> Arrangement:
        pass_key = shuffle_key("WithReplacement", self.VERSION, self.run_seed, population, pass_number)
        return _Uniform(population.total, pass_key)


class Draws(Arrangement):
    """One pass that draws the row of each position by itself. Finding a row draws all positions again."""

    def positions(self, rows: UInt64) -> UInt64:
        """Refuse: a row may be read at several positions.

        Raises:
            PlanError: always; `places_of` says where.
        """
        msg = f"order: {len(rows)} rows may be drawn several times, or never. Ask for places_of(row)"
        raise PlanError(msg)

    def positions_of(self, row: int) -> list[int]:
        found: list[int] = []
        for begin in range(0, self.size, _AT_ONCE):
            drawn = self.rows(np.arange(begin, min(begin + _AT_ONCE, self.size), dtype=np.uint64))
            found += (np.flatnonzero(drawn == np.uint64(row)) + begin).tolist()
        return found


@final
class _Uniform(Draws):
    def __init__(self, size: int, pass_key: int) -> None:
        self.size, self._key = size, np.uint64(pass_key)

    def rows(self, positions: UInt64) -> UInt64:
        return below(combine(self._key, np.asarray(positions, dtype=np.uint64)), self.size)
