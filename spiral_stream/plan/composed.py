"""What a plan alone says of streams that share batches: their shares, and whether its windows are large enough."""

from fractions import Fraction
from typing import Final

import numpy as np

from spiral_stream.batching.composition import StratifiedByStream
from spiral_stream.batching.stratified import Float64, is_sure
from spiral_stream.batching.windowed import WindowedBucket
from spiral_stream.plan.nodes import Collate, Node
from spiral_stream.plan.tree import find
from spiral_stream.plan.verbs.mix import Mix, per_stream, stretch_of, tempered
from spiral_stream.sampling.mixing.slices import slice_count, slice_size

_UNKNOWN: Final = 1e-12  # a share of which nothing is known: it may be as small


def is_scarce(collate: Collate) -> bool:
    """Whether a window may fill up with samples that wait for a late stream, so that batches go without it.

    Such plans are version 2 of `StratifiedByStream`; all others are formed as ever.
    """
    formation, mix = collate.formation, find(collate, Mix)
    if (
        mix is None
        or not isinstance(formation, WindowedBucket)
        or not isinstance(formation.composition, StratifiedByStream)
    ):
        return False
    streams = len(per_stream(mix))
    size = slice_size(streams, stretch_of(mix))
    positions = 2.0 * size if mix.epoch_size is None else mix.epoch_size / slice_count(mix.epoch_size, size)
    known = None if mix.by is not None or mix.schedule else _shares(mix)
    shares = np.full(streams, _UNKNOWN) if known is None else known
    counted = collate.batch_size if formation.budget is None else None
    return not is_sure(formation.window_size, shares, positions, counted)


def _shares(mix: Mix) -> Float64 | None:
    """Shape [K]: the share of each stream; None where rows or counts decide it."""
    out: list[float] = []
    given = [float(tempered(Fraction(part.proportion or 0.0), mix.temperature)) for part in mix.parts]
    for part, share in zip(mix.parts, given, strict=True):
        inner = _inner(part.source)
        if part.proportion is None or inner is None:
            return None
        out += [share / sum(given) * each for each in inner.tolist()]
    return np.array(out)


def _inner(node: Node) -> Float64 | None:
    nested = find(node, Mix)
    return np.ones(1) if nested is None else _shares(nested)
