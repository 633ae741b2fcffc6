"""Which tokens of a batch this process has, where several processes share its rows: context-parallel ranks.

Each of them opens the run with ``shard=(i, n)`` and logs values of its own places of the rows. They are reduced to sums and
counts of each sample's tokens here, and added up when the table of the run is built (`shard_sums`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, final

import numpy as np
from numpy.typing import NDArray

from spiral_stream.arguments import as_integer
from spiral_stream.errors import RunError, shown
from spiral_stream.runtime.batch.keys import BatchKey, TokenSpans

Int64 = NDArray[np.int64]
MOST: Final = 999  # shards of a batch; the names of parts have three digits for them


def need_shard(shard: Any) -> tuple[int, int] | None:
    """Return which shard of how many a process has; None where it has whole batches.

    Raises:
        RunError: it is no pair of such numbers.
    """
    if shard is None:
        return None
    pair = tuple(map(as_integer, shard)) if isinstance(shard, Sequence) and not isinstance(shard, str) else ()
    number, count = pair if len(pair) == 2 else (None, None)  # noqa: PLR2004
    if number is None or count is None or not 0 <= number < count <= MOST:
        msg = f"run: shard={shown(shard)} is no shard. Give (which, of how many): shard=(0, 2) and shard=(1, 2), up to {MOST}"
        raise RunError(msg)
    return None if count == 1 else (number, count)


@final
@dataclass(frozen=True, slots=True, eq=False)
class TokenShard:
    """The places of each row that a process has.

    Attributes:
        number: of the shard.
        count: how many shards there are.
        positions: [T'], ascending; None: shard ``number`` of ``count`` equal parts of a row.
    """

    number: int
    count: int
    positions: Int64 | None = None

    def spans(self, name: str, key: BatchKey, width: int | None) -> TokenSpans:
        """Return where the tokens of each sample lie among the places of this shard.

        Args:
            name: of the value, for messages.
            key: of the batch.
            width: T', of the value or of its mask; None where there is neither.

        Raises:
            RunError: no token field of the batch has such shards, or several have.
        """
        wanted = len(self.positions) if self.positions is not None and width is None else width
        fits = [each for each in key.spans if self._fits(each.width, wanted)]
        if len(fits) != 1:
            found = "" if wanted is None else f" is of {wanted:,} places, and"
            widths = ", ".join(f"{each.width:,}" for each in key.spans) or "none, for it has no token field"
            msg = (
                f"log: {name}={found} shard {self.number} of {self.count} of rows of {widths} places is meant. Give values of "
                f"shape [B, T / {self.count}] of one token field, or say positions=, ascending, which this process has"
            )
            raise RunError(msg)
        (spans,) = fits
        starts, ends = spans.starts, spans.starts + spans.lengths
        if self.positions is None:
            here = spans.width // self.count
            starts, ends = (np.clip(each - self.number * here, 0, here) for each in (starts, ends))
        else:
            here = len(self.positions)
            starts, ends = (np.searchsorted(self.positions, each).astype(np.int64) for each in (starts, ends))
        return TokenSpans(here, spans.lines, starts, ends - starts)

    def _fits(self, row: int, width: int | None) -> bool:
        if self.positions is not None:
            return width == len(self.positions) and (not width or int(self.positions[-1]) < row)
        return row % self.count == 0 and width in (None, row // self.count)


def need_positions(positions: Any) -> Int64 | None:
    """Return the places that a process has.

    Raises:
        RunError: they do not ascend from 0 up.
    """
    if positions is None:
        return None
    found = np.asarray(positions.cpu() if hasattr(positions, "cpu") else positions)
    if found.ndim != 1 or found.dtype.kind not in "iu" or not (np.diff(found.astype(np.int64), prepend=-1) > 0).all():
        msg = f"log: positions={shown(positions)} do not ascend from 0 up. Give them ascending, and the values likewise"
        raise RunError(msg)
    return found.astype(np.int64)
