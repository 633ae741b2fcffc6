"""What happens to the last batches of an epoch: a short one, and a step that does not have a batch for every rank.

Each step takes ``merge`` consecutive batches per rank, so a *group* of ``world_size * merge`` batches for all ranks
(docs/decisions/0025). An epoch seldom ends with a whole group. What happens then is the plan's tail rule:

* `DropPartial`: the last, incomplete group is not delivered.
* `PadPartial`: it is filled up with batches from the epoch's start.
* `KeepPartial`: it is delivered as it is, so some ranks may make one step fewer.

Tail rules are usable as bare names and called: ``last=DropPartial`` and ``last=DropPartial()`` are the same plan.

Where a run binds how many batches an optimizer step has, the rules hold for optimizer steps (docs/decisions/0087).

Under a budget, the last two batches are evened out before the rule sees them (`cutting.even_end`).

A run does not know how many batches an epoch has until it has formed them all, so `admits` only asks whether a batch
exists. `end` and `steps` say the same of an epoch whose batches are counted.
"""

from abc import ABC
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, final

from spiral_stream.arguments import check, is_number, text
from spiral_stream.errors import PlanError, shown


class Tail(ABC):  # noqa: B024  a closed family of rules
    """What happens to a short batch, and to a last step that does not have a batch for every rank.

    Examples:
        >>> isinstance(spiral.batching.PadPartial(), spiral.batching.Tail)
        True
    """


@final
@dataclass(frozen=True, slots=True)
class DropPartial(Tail):
    """Drop the short batch, then the batches that do not fill a step of all ranks.

    Only the epoch's last batch may be short; under a budget none is. With ``OneStream(batches=n)`` and no budget, samples
    of a stream that do not fill n batches at the epoch's end are dropped.

    Examples:
        >>> len(
        ...     samples.collate(
        ...         batch_size=10, last=spiral.DropPartial, fields={"x": spiral.Stack("width")}
        ...     ).to_numpy()
        ... )
        4
    """


@final
@dataclass(frozen=True, slots=True)
class KeepPartial(Tail):
    """Deliver every sample once; ranks may differ by one step at the very end.

    Examples:
        >>> len(
        ...     samples.collate(
        ...         batch_size=10, last=spiral.KeepPartial, fields={"x": spiral.Stack("width")}
        ...     ).to_numpy()
        ... )
        5
    """


@final
@dataclass(frozen=True, slots=True)
class PadPartial(Tail):
    """Fill the short batch, and the last step, with samples from the epoch's start.

    Where a formation decides who shares a batch, the short batch is filled with rows of the epoch's first one. ``OneStream``
    without a budget fills what each stream has left at the epoch's end with samples of the same stream.

    With ``value`` these rows hold that value, and each batch has a mask that says which rows are samples. They are read like
    others before, so that batches have their shapes.

    Args:
        value: a number for all arrays of the rows, or ``{"field": number}``, with 0 for fields that it does not name. Arrays of
            booleans hold False there, and lists None. None leaves the rows of repeated samples as they are.
        mask: with ``value``, the name of the mask: shape [B], bool, False for rows that are no samples.

    Raises:
        PlanError: a value is no finite number, or ``mask`` is no name.

    Examples:
        >>> filled = samples.collate(
        ...     batch_size=50, last=spiral.batching.PadPartial(value=0), fields={"x": spiral.Stack("width")}
        ... ).to_numpy()
        >>> sum(int(batch["real"].sum()) for batch in filled) == filled.rows
        True
        >>> padded = samples.collate(
        ...     batch_size=10, last=spiral.batching.PadPartial, fields={"x": spiral.Stack("width")}
        ... ).to_numpy()
        >>> padded[4]["x"].shape
        (10,)
    """

    value: float | int | tuple[tuple[str, float | int], ...] | Mapping[str, float | int] | None = None
    mask: str = "real"

    def __post_init__(self) -> None:
        if isinstance(self.value, Mapping):
            object.__setattr__(self, "value", tuple(sorted(self.value.items(), key=lambda each: str(each[0]))))
        for name, value in self.values:
            if not is_number(value) or not isinstance(name, str):
                msg = (
                    f"PadPartial: value={shown(value if name == '' else {name: value})}. Give a finite number, or one for each "
                    'field: value={"label": -100}'
                )
                raise PlanError(msg)
        check(self, "PadPartial", mask=text('the name of the mask in a batch, such as "real"'))

    @property
    def blanks(self) -> bool:
        """Whether rows that fill a batch hold a value, and no samples."""
        return self.value is not None

    @property
    def values(self) -> tuple[tuple[str, Any], ...]:
        """The values by field; the name "" stands for all."""
        if self.value is None or isinstance(self.value, tuple):
            return self.value or ()
        return (("", self.value),)

    def value_of(self, field: str) -> float | int:
        """Return the value of a field's rows that are no samples."""
        by_name = dict(self.values)
        found: float | int = by_name.get(field, by_name.get("", 0))
        return found


def as_tail(value: object) -> Tail:
    """Return the tail rule that ``last=`` names.

    Args:
        value: `DropPartial`, `KeepPartial` or `PadPartial`, or an instance of one.

    Raises:
        PlanError: it is something else.
    """
    if isinstance(value, Tail):
        return value
    if isinstance(value, type) and value in (DropPartial, KeepPartial, PadPartial):
        rule: Tail = value()
        return rule
    msg = f"collate: last is {shown(value)}. Give DropPartial, KeepPartial or PadPartial"
    raise PlanError(msg)


def fills_with_value(last: Tail) -> bool:
    """Return whether the rows that fill a batch hold a value, and no samples."""
    return isinstance(last, PadPartial) and last.blanks


def drops_short(last: Tail) -> bool:
    """Return whether a short batch is dropped."""
    return isinstance(last, DropPartial)


def batches(last: Tail, samples: int, batch_size: int) -> int:
    """Return the batches of a fixed size that samples form: `DropPartial` drops a short one, the others count it."""
    return samples // batch_size if drops_short(last) else -(-samples // batch_size)


def admits(last: Tail, first: int, group: int, due: range, exists: Callable[[int], bool]) -> range | None:
    """Return which batches a rank delivers in a step.

    Args:
        last: the tail rule.
        first: the first batch of the step, or of the optimizer step that it is in.
        group: batches of that, over all ranks: they are delivered all or none.
        due: the rank's batches in a complete step.
        exists: whether the epoch has a batch, by number.

    Returns:
        ``due`` or its beginning; None if the epoch has no such step for this rank.
    """
    if isinstance(last, DropPartial):
        return due if exists(first + group - 1) else None
    if isinstance(last, PadPartial):
        return due if exists(first) else None
    there = [number for number in due if exists(number)]
    return range(due.start, there[-1] + 1) if there else None


def end(last: Tail, left: int, group: int) -> int:
    """Return how many batches all ranks deliver together, repeated ones included.

    Args:
        last: the tail rule.
        left: batches left in the epoch.
        group: batches of a step, over all ranks.
    """
    if isinstance(last, DropPartial):
        return left // group * group
    if isinstance(last, PadPartial):
        return -(-left // group) * group
    return left


def steps(last: Tail, left: int, world_size: int, merge: int, rank: int, together: int | None = None) -> int:
    """Return how many steps a rank makes; all ranks make the same number, except with `KeepPartial`.

    Args:
        last: the tail rule.
        left: batches left in the epoch.
        world_size: ranks that share them.
        merge: batches that a rank concatenates in each step.
        rank: the rank.
        together: batches that are delivered all or none; None takes those of a step.
    """
    shares = -(
        -end(last, left, together or world_size * merge) // merge
    )  # of up to merge batches, dealt to the ranks in turn
    return max(0, -(-(shares - rank) // world_size))
