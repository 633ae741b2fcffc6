"""What the streams of a mixture cannot keep to in their batches, said before the first one is formed."""

from collections.abc import Iterator
from typing import Final

import numpy as np

from spiral_stream.batching.composition import OneStream, StratifiedByStream
from spiral_stream.batching.stratified import Float64, smallest_window
from spiral_stream.batching.tail import KeepPartial, PadPartial
from spiral_stream.batching.windowed import WindowedBucket
from spiral_stream.planner.stages import Stages

_NAMED: Final = 3  # streams in a message


def doubts(stages: Stages, epoch: int) -> Iterator[str]:
    """Yield promises that batches will not keep, each with the way out.

    Args:
        stages: the lowered plan.
        epoch: whose shares are looked at.
    """
    formation, mixture = stages.formation, stages.epochs.mixture
    if mixture is None or not isinstance(formation, WindowedBucket):
        return
    batch_size = stages.batches.batch_size if formation.budget is None else None
    window, composition = formation.window_size, formation.composition
    if isinstance(composition, StratifiedByStream):
        both = (mixture.shares(epoch, 0), mixture.shares(epoch, mixture.total))
        positions = mixture.total / mixture.slices
        least = max(smallest_window(each, positions, mixture.slices, batch_size) for each in both)
        if window < least:
            rare = float(min(each[each > 0].min() for each in both))
            yield (
                f"collate: StratifiedByStream with window_size={window:,}: a stream of {rare:.2%} may come so late that the "
                f"window is full before it does. Batches then go without it, and it falls more than a sample behind its share. "
                f"Give window_size of at least {least:,}"
            )
    elif isinstance(composition, OneStream) and composition.batches > 1 and batch_size is not None:
        yield from _of_units(stages, composition.batches * batch_size, mixture.quotas(epoch) / mixture.total)


def _of_units(stages: Stages, rows: int, shares: Float64) -> Iterator[str]:
    """Doubts about counted batches that take several batches in a row from one stream: ``rows`` samples per unit."""
    last, total = stages.batches.last, stages.epochs.total
    few = np.flatnonzero(shares * total < rows).tolist()
    if few and not isinstance(last, KeepPartial):
        named = ", ".join(f"{stages.streams[k].name} (about {shares[k] * total:,.0f})" for k in few[:_NAMED])
        more = f" and {len(few) - _NAMED:,} more" if len(few) > _NAMED else ""
        does = "fills it with repeated ones" if isinstance(last, PadPartial) else "drops them all"
        yield (
            f"collate: OneStream: in an epoch of {total:,} samples {named}{more} have fewer than a step's {rows:,}, and "
            f"{type(last).__name__} {does}. Give last=KeepPartial, fewer batches in a row or a smaller batch_size"
        )
