"""The verbs that say how much of its order an epoch takes: `limit`, `skip` and `repeat`, directly after `sample`.

They work on positions, so nothing that depends on what samples hold may come between. A mixture has an ``epoch_size``.
"""

from dataclasses import dataclass
from typing import ClassVar, Final, final

from spiral_stream.arguments import check, of_kind
from spiral_stream.errors import PlanError
from spiral_stream.plan.checks import need_integer
from spiral_stream.plan.nodes import Node, Sample, Sampled, Simple, need_after
from spiral_stream.plan.tree import find, spine
from spiral_stream.plan.verbs.mix import Mix
from spiral_stream.sampling.extent import ENDLESS, Beginning, Extent, Fixed, Repeated, Rest, Stretch
from spiral_stream.sampling.order import Order

_FIXED: Final = of_kind(bool, "True for the same samples in every epoch, or False")


class Extends(Simple, Sampled):
    """A verb on the positions of epochs; subclasses say which."""

    source: Node

    def __post_init__(self) -> None:
        right = ", and counts positions of the order. Write it directly after .sample(...)"
        need_after(self.VERB, self.source, Sample | Extends, right)
        if find(self.source, Mix) is not None:
            msg = (
                f"{self.VERB}: follows a mixture, whose epochs are as long as mix(..., epoch_size=...) says. Give an "
                "epoch_size, or repeat= and choose= to its streams; to begin later, .seek(epoch=, batch=) of the stream"
            )
            raise PlanError(msg)

    @property
    def part(self) -> Beginning | Rest | Repeated:
        """What it does to an epoch."""
        raise NotImplementedError

    def stretch(self, order: Order) -> Stretch:
        """Return what it does to epochs of an order."""
        part = self.part
        if isinstance(part, Repeated) or not getattr(self, "fixed", False):
            return part
        return Fixed(part, None if order.follows_sort else order.run_seed)


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
        need_integer("limit", "count", self.count, least=1)
        check(self, "limit", fixed=_FIXED)

    @property
    def part(self) -> Beginning:
        return Beginning(self.count)


@final
@dataclass(frozen=True, slots=True, eq=False)
class SampleSkip(Extends):
    """Every epoch without its first ``count`` samples; with ``fixed`` epoch 0 without them, in every epoch."""

    VERB: ClassVar[str] = "skip"
    source: Node
    count: int
    fixed: bool = False

    def __post_init__(self) -> None:
        Extends.__post_init__(self)
        need_integer(self.VERB, "count", self.count, least=0)
        check(self, self.VERB, fixed=_FIXED)
        most = longest(self.source, None)
        if most is not None:
            self.part.length(most)  # which refuses to skip everything

    @property
    def part(self) -> Rest:
        return Rest(self.count)


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
            need_integer(self.VERB, "times", self.times, least=1, most=ENDLESS)

    @property
    def part(self) -> Repeated:
        return Repeated(self.times)


def longest(node: Node, passed: int | None) -> int | None:
    """Return how long an epoch is at most after `sample` and these verbs; None where only the data say it.

    Args:
        node: `Sample`, or a verb on its positions.
        passed: the most samples that a pass has; None where that is not known.

    Raises:
        PlanError: a `skip` leaves nothing of it.
    """
    if not isinstance(node, Extends):
        return passed
    before = longest(node.source, passed)
    if before is None:
        return node.count if isinstance(node, SampleLimit) else None
    return node.part.length(before)


def extent_of(node: Node, order: Order) -> Extent:
    """Return how much of its passes an epoch of a plan takes."""
    return Extent(tuple(each.stretch(order) for each in reversed(spine(node)) if isinstance(each, Extends)))
