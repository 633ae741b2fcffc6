"""The first batches of an epoch that a formation will make, for whoever fetches what they need before the epoch begins.

They are formed apart from those that are delivered, as far as they are asked for. So states, counts and metrics are the same
whether somebody looked or not. Only the first chapter of each lane is looked at.
"""

from collections.abc import Sequence
from typing import final

from spiral_stream.runtime.forming.chapter import Chapter
from spiral_stream.runtime.forming.inputs import Forming
from spiral_stream.runtime.numbering.drawn import Drawn
from spiral_stream.runtime.numbering.numbering import Drawable


@final
class FormedAhead(Drawable):
    """Batches of a formation, each drawn once and in ascending order. Not thread-safe.

    Args:
        forming: what the chapters share.
    """

    def __init__(self, forming: Forming) -> None:
        self._forming = forming.for_counting()
        self._lanes = forming.stages.batches.lanes
        self.last = forming.stages.batches.last
        self._chapters: dict[tuple[int, int], Chapter] = {}  # by epoch and lane

    def exists(self, epoch: int, number: int) -> bool:
        """Return whether the first chapter of a lane has this batch, as long as no lane has ended."""
        k, lane = divmod(number, self._lanes.count)
        return number >= 0 and self._chapter(epoch, lane).has(k)

    def draw_several(self, epoch: int, numbers: Sequence[int]) -> list[Drawn]:
        out = []
        for number in numbers:
            if not self.exists(epoch, number):
                msg = f"batch {number} is not among the first ones of epoch {epoch}. Ask the numbering of the stream for it"
                raise IndexError(msg)
            k, lane = divmod(number, self._lanes.count)
            out.append(self._chapter(epoch, lane).draw(k))
        return out

    def _chapter(self, epoch: int, lane: int) -> Chapter:
        if (epoch, lane) not in self._chapters:
            self._chapters[epoch, lane] = Chapter(self._forming, epoch, lane, 0)
        return self._chapters[epoch, lane]
