"""How many bytes a batch takes, and how much room its slots have."""

from typing import Final

import numpy as np
import pyarrow as pa

from spiral_stream.batching.formation import Formation
from spiral_stream.plan.clips import clip_costs
from spiral_stream.plan.nodes import Collate
from spiral_stream.plan.tree import need
from spiral_stream.planner.physical import UNKNOWN_IMAGES, Stages

# What a Python value takes in addition to its bytes: 48 bytes for bytes and str, 24 for int, and 8 for its place in a
# list.
OBJECT_BYTES: Final = 56


def object_bytes(values: pa.Array) -> int:
    """Estimate the bytes that a column's values take as Python objects, from above.

    It counts by column, not by value. Small integers and interned texts are shared, so less may be used.
    """
    kind = values.type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return OBJECT_BYTES * len(values) + object_bytes(values.flatten())
    if pa.types.is_struct(kind):
        return OBJECT_BYTES * len(values) + sum(map(object_bytes, values.flatten()))
    return OBJECT_BYTES * len(values) + int(values.nbytes)


def room(stages: Stages, rows: int, merge: int) -> int:
    """Rows to allocate: a full batch, or, if a formation decides, the next power of two, so that few slot sizes exist."""
    if stages.formation is None:
        return stages.batches.batch_size * merge
    return 1 << max(0, rows - 1).bit_length()


def capacity(stages: Stages, items: int, merge: int) -> int:
    """Items that a slot of token fields has room for: the budget if the batch keeps it."""
    most = stages.formation and stages.formation.most_tokens(stages.batches.batch_size)
    return most * merge if most and items <= most * merge else 1 << max(0, items - 1).bit_length()


def batch_bytes(stages: Stages, merge: int) -> int:
    """Bytes of a batch's arrays, about: what is reserved in the queue before it is built."""
    formation = stages.formation
    if formation is None:
        return stages.batch_bytes(stages.batches.batch_size * merge)
    tokens = formation.most_tokens(stages.batches.batch_size)
    if tokens is None:
        return stages.batch_bytes(_most_samples(stages, formation) * merge)
    sizes = [np.dtype(stage.spec.dtype).itemsize for stage in stages.sequences if stage.spec.dtype]
    return max(1, tokens * merge * sum(sizes))


def _most_samples(stages: Stages, formation: Formation) -> int:
    """The most samples that a batch of a formation without a token limit may hold."""
    collate = need(stages.plan, Collate)
    costs = {**clip_costs(collate.fields), "images": UNKNOWN_IMAGES}
    return formation.most_samples(collate.batch_size, costs)
