"""The evaluation counterpart of a training plan."""

from dataclasses import replace

from spiral_stream.batching.tail import Tail
from spiral_stream.errors import PlanError
from spiral_stream.plan.nodes import Collate, Deliver, Sample
from spiral_stream.plan.tree import need, replaced
from spiral_stream.transforms.python import Function
from spiral_stream.transforms.transform import Transform


def evaluation(plan: Deliver, epoch: int, last: Tail) -> Deliver:
    """The same rows and fields with nothing random: epoch pinned, transforms in their deterministic form, clips from their start.

    Args:
        plan: a delivered plan.
        epoch: the epoch whose order is used, in every epoch.
        last: the tail rule, `KeepPartial` so that every sample is evaluated.
    """
    sample, collate = need(plan, Sample), need(plan, Collate)
    fields = tuple((name, field.in_evaluation(_fixed)) for name, field in collate.fields)
    source = replaced(collate.source, sample, replace(sample, epoch=epoch))
    return replace(plan, source=replace(collate, source=source, last=last, fields=fields))


def _fixed(step: Transform | Function) -> tuple[Transform | Function, ...]:
    """Return what stands for a transform in evaluation."""
    if isinstance(step, Transform):
        return step.evaluation()
    if step.random:
        msg = (
            f"evaluation: function {step.name} in transforms= draws random numbers, and its form without them is not known. "
            "Collate an evaluation plan of its own"
        )
        raise PlanError(msg)
    return (step,)
