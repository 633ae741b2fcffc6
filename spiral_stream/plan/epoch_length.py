"""How long an epoch is, in samples.

Without a mixture: as many as the order draws of the rows that pass the plan's filters and joins (`Order.size`; most orders draw
each once), and of these what ``limit``, ``skip`` and ``repeat`` leave (`sampling.extent`). With one: what `size_and_shares` says.
`batching.tail` turns samples into batches and batches into steps: its functions ``batches`` and ``steps`` are the rest of
the answer, unless a formation decides which samples share a batch: then `runtime.forming.batches` counts.
"""

from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise

from spiral_stream.errors import PlanError
from spiral_stream.plan.tree import find
from spiral_stream.plan.verbs.mix import Mix, per_stream, tempered
from spiral_stream.sampling.order import LARGEST


def size_and_shares(mix: Mix, totals: Sequence[int], masses: Sequence[Fraction] | None) -> tuple[int, list[Fraction]]:
    """Return the number of samples per epoch, and the share of each stream.

    Args:
        mix: the outermost mixture.
        totals: rows of each stream that pass, in the order of `per_stream`.
        masses: mean of ``by`` over the rows of each stream; None where proportions are of samples.

    Returns:
        the epoch's size, and exact shares of samples, one per stream, in proportion; not normalized.
    """
    shares = _leaves(mix, 0, totals, masses)
    if mix.parts[0].proportion is None and mix.temperature is None:
        return int(sum(shares)), shares
    return mix.epoch_size or sum(totals), shares


def _leaves(mix: Mix, start: int, totals: Sequence[int], masses: Sequence[Fraction] | None) -> list[Fraction]:
    """The shares of a mixture's streams, the first of which is the ``start``-th of the plan."""
    out: list[Fraction] = []
    for part in mix.parts:
        at = start + len(out)
        nested = find(part.source, Mix)
        if nested is None:
            inner, rows = [Fraction(1) / (masses[at] if masses and masses[at] else 1)], totals[at]
        else:
            found = _leaves(nested, at, totals, masses)
            inner = [share / sum(found) for share in found]
            counted = nested.parts[0].proportion is None and nested.temperature is None  # then its shares are counts
            rows = int(sum(found)) if counted else sum(totals[at : at + len(inner)])
        if part.proportion is not None:
            # The decimals that were written, not their binary neighbours.
            proportion = tempered(Fraction(repr(float(part.proportion))), mix.temperature)
            out += [proportion * share for share in inner]
            continue
        if mix.temperature is not None:
            amount = rows * _mean(inner, [Fraction(1)] * len(inner) if masses is None else masses[at : at + len(inner)])
            out += [tempered(amount, mix.temperature) * share for share in inner]
            continue
        count = part.choose if part.choose is not None else int(Fraction(repr(part.repeat or 1)) * rows)
        if not count:
            msg = (
                f"mix: stream {part.name!r}: repeat={part.repeat!r} of {rows:,} rows is no sample. Raise it, or leave the "
                "stream out of the mixture"
            )
            raise PlanError(msg)
        if count > LARGEST:
            given = f"choose={part.choose}" if part.choose is not None else f"repeat={part.repeat!r} of {rows:,} rows"
            msg = f"mix: stream {part.name!r}: {given:.200} is past 2**62 samples, which a run cannot count. Lower it"
            raise PlanError(msg)
        out += [count * share / sum(inner) for share in inner]
    return out


def scheduled(
    mix: Mix, shares: Sequence[Fraction], masses: Sequence[Fraction] | None
) -> tuple[tuple[int, tuple[Fraction, ...]], ...]:
    """Return a schedule by samples: (sample of the run, weight of each stream's samples), ascending.

    Where proportions are of ``by``, each is divided by the stream's mean of it, so they hold at the points, and go
    linearly in samples between them. Points at amounts of ``by`` are moved to the samples at which that is reached: over n
    samples, between points with a and b of it per sample, it is ``n * (a + b) / 2``.

    Args:
        mix: the outermost mixture; with a schedule.
        shares: as `size_and_shares` gives them.
        masses: mean of ``by`` over the rows of each stream; None where proportions are of samples.
    """
    points = [(at, _of_samples(mix, shares, masses, given)) for at, given in mix.schedule]
    if mix.schedule_in == "samples" or masses is None:
        return tuple(points)
    means = [_mean(weights, masses) for _, weights in points]
    amounts = [at for at, _ in points]
    at = round(amounts[0] / means[0])
    out = [(at, points[0][1])]
    for (begin, end), (before, after), (_, weights) in zip(pairwise(amounts), pairwise(means), points[1:], strict=True):
        at += 1 if end - begin == 1 else max(1, round((end - begin) * 2 / (before + after)))  # a jump stays a jump
        out.append((at, weights))
    return tuple(out)


def _mean(weights: Sequence[Fraction], masses: Sequence[Fraction]) -> Fraction:
    """The mean of ``by`` over samples of these weights."""
    return sum((w * mass for w, mass in zip(weights, masses, strict=True)), Fraction(0)) / sum(weights)


def _of_samples(
    mix: Mix, shares: Sequence[Fraction], masses: Sequence[Fraction] | None, weights: Sequence[float]
) -> tuple[Fraction, ...]:
    """A schedule's proportions of the parts, each split among its streams as the plan's proportions are."""
    out: list[Fraction] = []
    for part, weight in zip(mix.parts, weights, strict=True):
        inner = shares[len(out) : len(out) + len(per_stream(part.source))]
        mass = 1 if masses is None else masses[len(out)]  # such a part is one stream
        out += [Fraction(repr(weight)) / mass * share / sum(inner) for share in inner]
    return tuple(out)
