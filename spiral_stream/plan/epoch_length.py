"""How long an epoch is, in samples.

Without a mixture: the rows that pass the plan's filters and joins, once each. With a mixture: what `size_and_shares` says.
`batching.tail` turns samples into batches and batches into steps: its functions ``batches`` and ``steps`` are the rest of
the answer, unless a formation decides which samples share a batch: then `runtime.formed_batches` counts.
"""

from collections.abc import Sequence
from fractions import Fraction

from spiral_stream.errors import PlanError
from spiral_stream.plan.mix import Mix
from spiral_stream.plan.tree import find
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
    if mix.parts[0].proportion is None:
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
            counted = nested.parts[0].proportion is None  # then its shares are counts
            rows = int(sum(found)) if counted else sum(totals[at : at + len(inner)])
        if part.proportion is not None:
            # The decimals that were written, not their binary neighbours.
            out += [Fraction(repr(float(part.proportion))) * share for share in inner]
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
