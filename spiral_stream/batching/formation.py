"""What happens to the last batches of an epoch: the family's tail rules.

Usable as bare names and called: ``last=DropPartial`` and ``last=DropPartial()``
are the same plan.
"""

from abc import ABC
from dataclasses import dataclass
from typing import final

from spiral_stream.errors import PlanError


class Tail(ABC):  # noqa: B024  a closed family of rules; the arithmetic is in `fixed`
    """What becomes of a short batch, and of a last step that lacks batches."""


@final
@dataclass(frozen=True, slots=True)
class DropPartial(Tail):
    """Drop the short batch, then the batches that do not fill a step of all ranks."""


@final
@dataclass(frozen=True, slots=True)
class KeepPartial(Tail):
    """Deliver every sample once; ranks may differ by one step at the very end."""


@final
@dataclass(frozen=True, slots=True)
class PadPartial(Tail):
    """Fill the short batch, and the last step, with samples from the epoch's start."""


def as_tail(value: object) -> Tail:
    """The tail rule that ``last=`` names.

    Args:
        value: `DropPartial`, `KeepPartial` or `PadPartial`, or an instance.

    Raises:
        PlanError: it is something else.
    """
    if isinstance(value, Tail):
        return value
    if isinstance(value, type) and value in (DropPartial, KeepPartial, PadPartial):
        rule: Tail = value()
        return rule
    msg = f"collate: last is {value!r}. Give DropPartial, KeepPartial or PadPartial"
    raise PlanError(msg)
