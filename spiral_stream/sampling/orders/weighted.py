"""`Weighted`: how often each row is drawn, by the weights of rows.

With replacement, each position draws by itself: a block of 64 rows by the cumulated sums of all blocks, then a row of it
by the weights of these rows. Cost: a binary search in the sums, 8 bytes per 64 rows and mapped, and 64 weights per draw.
Without replacement: `weighted_pass`. Results are the same on every machine, since only sums, products, quotients and
comparisons of float64 decide, always in the same order.
"""

from dataclasses import dataclass
from typing import ClassVar, Final, final

import numpy as np

from spiral_stream.arguments import FLAG, check, class_door
from spiral_stream.errors import PlanError, shown
from spiral_stream.expr import Expr
from spiral_stream.sampling.order import (
    WEIGHT_BLOCK,
    Arrangement,
    Order,
    Population,
    RowWeights,
    UInt64,
    settled_seed,
)
from spiral_stream.sampling.orders.shuffle_key import shuffle_key
from spiral_stream.sampling.orders.weighted_pass import WeightedPass
from spiral_stream.sampling.orders.with_replacement import Draws
from spiral_stream.seeding import combine, fractions, key

_AT_ONCE: Final = 1 << 12  # draws: 2 MiB of weights


@final
@class_door(PlanError)
@dataclass(frozen=True, slots=True)
class Weighted(Order):
    """Rows are drawn in proportion to a weight: a column of numbers from 0 up, or an expression such as ``"score ** 2"``.

    With ``replacement``, a pass draws as often as there are rows, each time any of them. Without, a pass has every row
    whose weight is above 0 once: heavy rows tend to come early, as if rows were drawn one after the other from those that
    are left. ``sample(...).limit(n)`` takes the first n of either. A weight that is null or NaN is refused: filter such rows out
    before, for example those that a left join found nothing for.

    Examples:
        >>> wide = photos.with_columns(weight=col("width") / 320)
        >>> wide.sample(order=spiral.orders.Weighted("weight", seed=17)).order().rows([0, 1])["photo_id"].to_pylist()
        ['p38', 'p25']
    """

    needs_units: ClassVar[bool] = False

    weights: str
    replacement: bool = True
    seed: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.weights, str) or not self.weights:
            text = (
                str(self.weights)
                if isinstance(self.weights, Expr) and '"' not in str(self.weights)
                else "score * score"
            )
            msg = (
                f'Weighted: weights is {shown(self.weights)}. Name a column of numbers, such as weights="score", or write an '
                f'expression as a text: weights="{text}"'
            )
            raise PlanError(msg)
        check(self, "Weighted", " is ", replacement=FLAG)
        object.__setattr__(self, "seed", settled_seed("Weighted", self.seed))

    @property
    def weighted_by(self) -> str:
        return self.weights

    @property
    def repeats_rows(self) -> bool:
        return self.replacement

    @property
    def large_passes(self) -> bool:
        return not self.replacement

    def size(self, population: Population) -> int:
        return population.total if self.replacement else self._weights(population).positive

    def arrange(self, population: Population, pass_number: int) -> Arrangement:
        pass_key = shuffle_key("Weighted", self.VERSION, self.run_seed, population, pass_number)
        weights = self._weights(population)
        if self.replacement:
            return _Drawn(population.total, weights, pass_key)
        return WeightedPass(population.total, weights, pass_key)

    @staticmethod
    def _weights(population: Population) -> RowWeights:
        assert population.weights is not None  # whoever builds a population asks for `Order.weighted_by`
        return population.weights


@final
class _Drawn(Draws):
    def __init__(self, size: int, weights: RowWeights, pass_key: int) -> None:
        self.size, self._weights, self._sums = size, weights, weights.cumulated()
        self._of_block, self._of_row = (np.uint64(key(stage, pass_key)) for stage in ("block", "row"))

    def rows(self, positions: UInt64) -> UInt64:
        wanted = np.asarray(positions, dtype=np.uint64)
        out = np.empty(len(wanted), dtype=np.uint64)
        for begin in range(0, len(wanted), _AT_ONCE):
            part = slice(begin, begin + _AT_ONCE)
            out[part] = self._rows(wanted[part])
        return out

    def _rows(self, positions: UInt64) -> UInt64:
        # A fraction below 1 of a sum rounds to less than the sum, and sums of blocks and rows of weight 0 do not rise, so
        # what is found has a weight above 0.
        wanted = fractions(combine(self._of_block, positions)) * self._sums[-1]
        blocks, at = np.unique(np.searchsorted(self._sums, wanted, side="right"), return_inverse=True)
        rows_BW = blocks[:, None] * WEIGHT_BLOCK + np.arange(WEIGHT_BLOCK)
        inside = rows_BW < self.size
        weights_BW = np.zeros(rows_BW.shape)
        weights_BW[inside] = self._weights.of(rows_BW[inside].astype(np.uint64))
        sums_PW = np.cumsum(weights_BW, axis=1)[at.reshape(-1)]
        wanted = fractions(combine(self._of_row, positions)) * sums_PW[:, -1]
        offsets = (sums_PW <= wanted[:, None]).sum(axis=1)
        return np.asarray(blocks[at.reshape(-1)] * WEIGHT_BLOCK + offsets, dtype=np.uint64)
