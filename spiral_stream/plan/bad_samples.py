"""What a plan does with samples whose payload cannot be read: stop, leave them out, or replace them.

A sample is *refused* when reading it repeats a `DataError`: a bad image, clip or text, a null where none may be, a
row that a cache build refused, a row for which a user's function raises (`transforms.python.is_of_the_row`). What becomes
of it stays inside its own batch: ``"skip"`` delivers the batch without it, ``"substitute"`` puts a copy of the next sample
of the batch that can be read in its place, cyclically. A batch of which nothing is left is delivered as the next one that
has something. So batches stay a pure function of plan, data and place. Faults of storage are no property of a sample and
always raise.
"""

from typing import Any, Final, Literal, get_args

from spiral_stream.arguments import is_integer
from spiral_stream.batching.formation import Formation
from spiral_stream.batching.packing import Packed
from spiral_stream.errors import PlanError, shown

OnError = Literal["raise", "skip", "substitute"]
DEFAULT_BUDGET: Final = 0.01  # of the epoch's samples


def check_on_error(on_error: object, budget: object, formation: Formation | None, source: Any) -> None:
    """Refuse a policy that is none, and plans in which a refused sample has no row of its own.

    Args:
        on_error: see `OnError`.
        budget: most refused samples an epoch, a count or a fraction of its samples; None for the default.
        formation: of the batches, or None.
        source: the node that the batches are collated of.

    Raises:
        PlanError: says the ways out.
    """
    if on_error not in get_args(OnError):
        msg = f'collate: on_error={shown(on_error)}; it is "raise", "skip" or "substitute"'
        raise PlanError(msg)
    if budget is not None and not is_integer(budget, 0) and not (isinstance(budget, float) and 0 <= budget <= 1):
        msg = (
            f"collate: error_budget={shown(budget)}. Give a count of at least 0, or a fraction of the epoch's samples between "
            "0.0 and 1.0"
        )
        raise PlanError(msg)
    if on_error == "raise":
        if budget is not None:
            msg = f'collate: error_budget={shown(budget)} with on_error="raise", which stops at the first. Add on_error="skip"'
            raise PlanError(msg)
        return
    found = why_never(source)
    if on_error == "substitute" and isinstance(formation, Packed):
        found = (
            'with Packed, whose rows hold pieces of several samples: none can take another\'s place. Use on_error="skip", which '
            "leaves its places empty"
        )
    if found:
        msg = (
            f'collate: on_error="{on_error}" {found}, or on_error="raise" with the bad rows filtered out before sample'
        )
        raise PlanError(msg)


def why_never(source: Any) -> str:
    """Why no sample of this plan can be taken out of its batch alone, and what else to use; "" if one can."""
    node = source
    while node is not None:  # from the last map back to the relations
        if node.VERB == "assemble" and node.function.batched:
            return (
                "after assemble, whose push sees many samples at once. Give assemble batched=False: then push gets one"
            )
        below = node.inputs()
        node = below[0] if below else None
    return ""


def budget_text(budget: float | None) -> str:
    """As the plan has it, for people."""
    return f"error_budget={DEFAULT_BUDGET if budget is None else budget!r}"


def allowed(budget: float | None, samples: int) -> int:
    """Return how many samples of an epoch may be refused; at least one if the budget is a fraction above 0."""
    if budget is None:
        budget = DEFAULT_BUDGET
    if isinstance(budget, int):
        return budget
    return max(1, int(budget * samples)) if budget > 0 else 0
