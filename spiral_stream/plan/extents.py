"""The verbs that say how much of its order an epoch takes: `limit` and `repeat`, directly after `sample`.

They work on positions, so nothing that depends on what samples hold may come between. A mixture has an ``epoch_size``.
"""

from dataclasses import dataclass
from typing import ClassVar, final

from spiral_stream.errors import PlanError, shown
from spiral_stream.plan.checks import need_whole
from spiral_stream.plan.mix import Mix
from spiral_stream.plan.nodes import Node, Sample, Sampled, Simple
from spiral_stream.plan.tree import find, spine
from spiral_stream.sampling.extent import ENDLESS, Beginning, Extent, Fixed, Repeated, Stretch
from spiral_stream.sampling.order import Order


class Extends(Simple, Sampled):
    """A verb on the positions of epochs; subclasses say which."""

    source: Node

    def __post_init__(self) -> None:
        if not isinstance(self.source, Sample | Extends):
            msg = (
                f"{self.VERB}: follows {self.source.VERB}, and counts positions of the order. Write it directly after "
                ".sample(...)"
            )
            raise PlanError(msg)
        if find(self.source, Mix) is not None:
            msg = (
                f"{self.VERB}: follows a mixture, whose epochs are as long as mix(..., epoch_size=...) says. Give an "
                "epoch_size, or repeat= and choose= to its streams"
            )
            raise PlanError(msg)

    def stretch(self, order: Order) -> Stretch:
        """Return what it does to epochs of an order."""
        raise NotImplementedError


@final
@dataclass(frozen=True, slots=True, eq=False)
class SampleLimit(Extends):
    """The first ``count`` samples of every epoch; with ``fixed`` those of epoch 0, in every epoch."""

    VERB: ClassVar[str] = "first"
    source: Node
    count: int
    fixed: bool = False

    def __post_init__(self) -> None:
        Extends.__post_init__(self)
        need_whole("limit", "count", self.count, least=1)
        if not isinstance(self.fixed, bool):
            msg = f"limit: fixed={shown(self.fixed)}. Give True for the same samples in every epoch, or False"
            raise PlanError(msg)

    def stretch(self, order: Order) -> Stretch:
        if not self.fixed:
            return Beginning(self.count)
        return Fixed(self.count, None if order.follows_sort else order.run_seed)


@final
@dataclass(frozen=True, slots=True, eq=False)
class SampleRepeat(Extends):
    """Several epochs as one, without a border between them; None repeats without end."""

    VERB: ClassVar[str] = "repeat"
    source: Node
    times: int | None = None

    def __post_init__(self) -> None:
        Extends.__post_init__(self)
        if self.times is not None:
            need_whole(self.VERB, "times", self.times, least=1, most=ENDLESS)

    def stretch(self, order: Order) -> Stretch:
        del order
        return Repeated(self.times)


def extent_of(node: Node, order: Order) -> Extent:
    """Return how much of its passes an epoch of a plan takes."""
    return Extent(tuple(each.stretch(order) for each in reversed(list(spine(node))) if isinstance(each, Extends)))
