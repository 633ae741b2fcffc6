"""Lay the shares that a run decided on over the mixture of its plan (docs/decisions/0082).

Shares mean what the plan's proportions mean: of samples, or of what ``by=`` names. A decision is final, so a temperature or a
schedule of the plan does not act on it.
"""

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np

from spiral_stream.errors import ResumeError
from spiral_stream.plan.nodes import Sample
from spiral_stream.plan.tree import find, need
from spiral_stream.plan.verbs.mix import Mix
from spiral_stream.planner.stages import Stages
from spiral_stream.planner.state.decisions import Decisions
from spiral_stream.sampling.mixing.decided import AnyMixture, Change, DecidedMixture
from spiral_stream.sampling.mixing.mixture import Mixture
from spiral_stream.sampling.mixing.schedule import in_integers


def with_decisions(stages: Stages, decisions: Decisions) -> Stages:
    """Return the stages of a plan whose run decided on shares; the same ones if it did not.

    Args:
        stages: of the plan, with or without other decisions.
        decisions: what holds now.

    Raises:
        ResumeError: they are not of this plan.
    """
    mixture = stages.epochs.mixture
    if not decisions and not isinstance(mixture, DecidedMixture):
        return stages
    if mixture is None or (decisions and decisions.streams != names_of(stages)):
        msg = "resume: the state's decisions are of other streams than the plan's. Pass what state_dict() returned, unchanged"
        raise ResumeError(msg)
    decided = _decided(stages, mixture, decisions)
    return replace(stages, epochs=stages.epochs.mixed_by(decided))


def _decided(stages: Stages, mixture: AnyMixture, decisions: Decisions) -> AnyMixture:
    known = mixture if isinstance(mixture, DecidedMixture) else None
    base = mixture if isinstance(mixture, Mixture) else mixture.base
    if not decisions:
        return base
    if any(each.position >= base.total for each in decisions.made):
        msg = (
            "resume: a decision of the state lies past the end of its epoch. Pass what state_dict() returned, unchanged"
        )
        raise ResumeError(msg)
    weights = of_samples(stages, [each.weights for each in decisions.made])
    changes = [Change(*each.at, found) for each, found in zip(decisions.made, weights, strict=True)]
    return DecidedMixture(base, stages.order.run_seed, changes, known)


def names_of(stages: Stages) -> tuple[str, ...]:
    """Return the names of the streams, in the order of the mixture."""
    return tuple(stream.name for stream in stages.streams)


def of_samples(stages: Stages, weights: Sequence[Sequence[int | float]]) -> list[tuple[int, ...]]:
    """Return weights of samples, as the smallest whole numbers in each proportion.

    Args:
        stages: of the plan.
        weights: each of every stream; of what ``by=`` names, if the plan's proportions are.
    """
    mix = need(stages.plan, Mix)
    masses = tuple(Fraction(1) if mix.by is None else stream.selected.mean(mix.by) for stream in stages.streams)
    return [_over(tuple(each), masses) for each in weights]


@lru_cache(1 << 12)  # of a run that decides often, all but one are those of the time before
def _over(weights: tuple[int | float, ...], masses: tuple[Fraction, ...]) -> tuple[int, ...]:
    return tuple(in_integers([Fraction(repr(each)) / mass for each, mass in zip(weights, masses, strict=True)]))


def decided_shares(stages: Stages, decisions: Decisions, here: tuple[int, int | None]) -> list[dict[str, Any]]:
    """Return each decision as it is shown: the shares that were decided, as the epoch rounds them, and as they were delivered.

    Args:
        stages: of the plan, with the decisions.
        decisions: what the run decided.
        here: the epoch in which the run stands, and the first position that it has not delivered; None if there is no such one.
    """
    mixture = stages.epochs.mixture
    assert isinstance(mixture, DecidedMixture)
    ends = [*(each.at for each in decisions.made[1:]), (here[0] + 1, 0)]
    out = []
    for each, stretch, end in zip(decisions.made, mixture.stretches, ends, strict=True):
        intended, rounded = sum(each.weights), stretch.quotas(each.epoch)
        counts = None
        if here[1] is not None:
            until = min(end, (here[0], here[1]))
            counts = stretch.number_at(*until) if until > each.at else np.zeros_like(rounded)
        streams = {
            name: {
                "share": weight / intended,
                "rounded": int(rounded[k]) / int(rounded.sum()),
                "realised": int(counts[k]) / int(counts.sum()) if counts is not None and counts.any() else None,
                "samples": None if counts is None else int(counts[k]),
            }
            for k, (name, weight) in enumerate(zip(decisions.streams, each.weights, strict=True))
        }
        out.append({"epoch": each.epoch, "batch": each.batch, "streams": streams})
    return out


def mix_of(stages: Stages) -> Mix | None:
    """Return the outermost mixture of a plan; None if it mixes nothing."""
    return find(need(stages.plan, Sample), Mix)
