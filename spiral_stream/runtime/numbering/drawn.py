"""The samples of one batch before anything of them is fetched: how several draws join, and what remains without some."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import final

import numpy as np

from spiral_stream.batching.formation import Membership, Packing
from spiral_stream.errors import StreamError
from spiral_stream.runtime.columns.samples import Int64, Lost, Samples


@final
@dataclass(frozen=True, slots=True, eq=False)
class Drawn:
    """The samples of one batch, and how they lie in it."""

    samples: Samples
    membership: Membership
    lost: tuple[Lost, ...] = ()  # what an assembler could not be given since the batch before it


def joined(drawn: Sequence[Drawn]) -> Drawn:
    """Join batches that are delivered as one in order: ``merge`` (docs/decisions/0025)."""
    if len(drawn) == 1:
        return drawn[0]
    parts = [each.membership for each in drawn]
    rows = np.cumsum([0, *(part.rows for part in parts)])
    packing = None
    if parts[0].packing is not None:
        packed = [part.packing for part in parts if part.packing is not None]
        packing = Packing.concat(
            [replace(part, rows=part.rows + begin) for part, begin in zip(packed, rows, strict=False)]
        )
    known = [part.lengths for part in parts if part.lengths is not None]
    lengths = np.concatenate(known) if len(known) == len(parts) else None
    numbers = np.concatenate([part.samples for part in parts])  # of several chapters: not read after this
    width = max(part.width for part in parts)
    samples = Samples.concat([each.samples for each in drawn])
    fillers = [part.filler + begin for part, begin in zip(parts, rows, strict=False) if part.filler is not None]
    filler = np.concatenate(fillers) if fillers else None
    sizes = {part.size for part in parts}
    if len(sizes) > 1:
        msg = f"merge: batches of {len(sizes)} shapes cannot be delivered as one. Give OneShape(batches=) a multiple of merge"
        raise StreamError(msg)
    return Drawn(samples, Membership(numbers, int(rows[-1]), width, lengths, packing, filler, parts[0].size))


def part_of(membership: Membership, left: Int64) -> Membership:
    """Return a batch with some of its samples, in the same shape as far as that goes."""
    lengths = None if membership.lengths is None else membership.lengths[left]
    packing = membership.packing
    if packing is None:
        filler = None if membership.filler is None else np.flatnonzero(np.isin(left, membership.filler))
        return replace(membership, samples=membership.samples[left], rows=len(left), lengths=lengths, filler=filler)
    return replace(membership, samples=membership.samples[left], lengths=lengths, packing=packing.take(left))


def sample_count(drawn: Drawn) -> int:
    """Samples of a batch; a sample cut into several pieces counts where it begins."""
    packing = drawn.membership.packing
    return len(drawn.samples) if packing is None else int(np.count_nonzero(packing.offsets == 0))
