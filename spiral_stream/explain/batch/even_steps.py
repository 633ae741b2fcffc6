"""How long ranks will wait for each other in an optimizer step, from what batches cost: with the deal, and without it."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np

from spiral_stream.cursor import Cursor
from spiral_stream.errors import DataError, StreamError
from spiral_stream.explain.figure import EXACT, METRICS, RATIO, Figure, FigureSource, Phrase, phrase
from spiral_stream.explain.subject import Subject
from spiral_stream.plan.nodes import Collate
from spiral_stream.plan.tree import need
from spiral_stream.planner.state.skips import NOTHING
from spiral_stream.runtime.forming.batches import FormedBatches
from spiral_stream.runtime.forming.inputs import Forming
from spiral_stream.runtime.numbering.batch_costs import BatchCosts
from spiral_stream.runtime.numbering.dealt import DealtStep
from spiral_stream.runtime.numbering.exchanged import ExchangedBatches
from spiral_stream.runtime.numbering.numbering import BatchStore
from spiral_stream.runtime.numbering.run_batches import RunBatches
from spiral_stream.sampling.dealing import Float64, wait_share, waits

_STEPS: Final = 64  # of which costs are read
_SAMPLES: Final = 1 << 17  # of those steps
_LONG: Final = 0.1  # of the time: above this, EXPLAIN warns
_PERCENTILES: Final = (50, 90, 99)


def step_facts(subject: Subject) -> dict[str, Any]:
    """Return what an optimizer step is, and the share of a microstep that ranks wait; empty if the run says no step."""
    bound = subject.bound
    if bound.deal is None:
        return {}
    stripe = bound.world_size * bound.merge
    by = "by cost, in stripes" if bound.deal.policy == "cost" else "as they are numbered"
    if need(subject.stages.plan, Collate).balance is not None:
        by += ", after an exchange of rows"
    out: dict[str, Any] = {
        "optimizer step": EXACT.phrase(
            f"{{batches}} batches, dealt {by}: {{microsteps}} microsteps of {{ranks}} ranks",
            batches=bound.deal.step_batches,
            microsteps=bound.deal.step_batches // stripe,
            ranks=bound.world_size,
        )
    }
    out["ranks wait"] = _waits(subject)
    if subject.metrics is not None and subject.metrics["step_wait_share"] is not None:
        share = METRICS(subject.metrics["step_wait_share"], RATIO, ".1%")
        out["ranks waited"] = METRICS.phrase(
            "{sign}{share} of the microsteps that were delivered, by cost", share=share
        )
    return out


def _waits(subject: Subject) -> Phrase | str:
    costs = _costs(subject)
    if costs is None:
        return "unknown: the plan says no cost. Give it one: collate(cost='len(tokens)')"
    if (unknown := costs.unknown()) is not None:
        return f"unknown: the cost needs {unknown}, which no cache holds: stream.materialize()"
    if subject.stages.formed and isinstance(subject.first, str):
        return subject.first
    try:
        steps, shadow, is_complete = _first_steps(subject, costs)
    except (DataError, StreamError) as error:
        return f"unknown: what batches cost cannot be read: {error}"
    if not steps:
        return "the epoch has no optimizer step"
    name = "all optimizer steps" if is_complete else f"the first {len(steps):,} optimizer steps"
    source = FigureSource(name, "exact" if is_complete else "estimated")
    planned = [each.per_rank for each in steps]
    share = wait_share(planned)
    if share > _LONG:
        subject.warnings.add(
            f"ranks wait {share:.0%} of the time for the slowest one, by the plan's cost. Give more batches per optimizer step, "
            "which are dealt in more microsteps, or rows of similar cost: a smaller max_tokens, or longer packed rows"
        )
    figures = {"planned": source(share, RATIO, ".1%"), "undealt": source(wait_share(shadow), RATIO, ".1%")}
    figures |= _spread("", planned, source) | _spread("undealt_", shadow, source)
    line = ", ".join(f"p{each} {{p{each}}}" for each in _PERCENTILES)
    other = ", ".join(f"p{each} {{undealt_p{each}}}" for each in _PERCENTILES)
    words = f"{{sign}}{{planned}} of the time (a microstep: {line}); without the deal {{undealt}} ({other})"
    return phrase(words, **figures)


def _spread(name: str, per_rank: list[Float64], source: FigureSource) -> dict[str, Figure]:
    """Percentiles of the share that ranks wait in a microstep."""
    every = np.concatenate([waits(each) for each in per_rank])
    return {f"{name}p{each}": source(float(np.percentile(every, each)), RATIO, ".1%") for each in _PERCENTILES}


def _costs(subject: Subject) -> BatchCosts | None:
    """What batches cost, by a reader whose reads the stream does not count."""
    text = need(subject.stages.plan, Collate).cost
    return None if text is None else BatchCosts(subject.stages, subject.reader, text)


def _first_steps(subject: Subject, costs: BatchCosts) -> tuple[list[DealtStep], list[Float64], bool]:
    """The first optimizer steps of the epoch, drawn apart from those of the run; what ranks had without deal and exchange.

    The third says whether these are all.
    """
    if not subject.stages.formed:
        return _drawn(subject, _as_formed(subject.numbering.store), costs)
    forming = subject.forming
    with TemporaryDirectory() as folder:  # of an index that nobody else reads
        return _drawn(
            subject, FormedBatches(Forming(forming.stages, forming.reader, forming.formation), Path(folder)), costs
        )


def _as_formed(store: BatchStore) -> BatchStore:
    return store.store if isinstance(store, ExchangedBatches) else store


def _drawn(subject: Subject, store: BatchStore, costs: BatchCosts) -> tuple[list[DealtStep], list[Float64], bool]:
    bound, epoch = subject.bound, subject.bound.epoch
    exchange, deal = need(subject.stages.plan, Collate).balance, bound.deal
    assert deal is not None
    segments = Cursor().enter(*bound.shape).segments
    formed = RunBatches(store, NOTHING, subject.stages, costs)
    dealt = formed
    if exchange is not None:
        dealt = RunBatches(ExchangedBatches(store, exchange.step_batches, costs), NOTHING, subject.stages, costs)
    out, shadow, samples = list[DealtStep](), list[Float64](), 0
    dealt, undealt = dealt.dealt(segments), formed.dealt(segments)
    while len(out) < _STEPS and samples < _SAMPLES:
        first = len(out) * deal.step_batches
        if not formed.exists(epoch, first + deal.step_batches - 1):
            return out, shadow, True
        step = dealt.step(epoch, first)
        before = undealt.step(epoch, first) if exchange is not None else step
        assert step is not None
        assert before is not None
        out.append(step)
        shadow.append(before.shadow)
        samples += step.samples
    return out, shadow, not formed.exists(epoch, (len(out) + 1) * deal.step_batches - 1)
