"""How many bytes a batch takes, and how much room its slots have."""

import sys
from typing import Final

import numpy as np
import pyarrow as pa

from spiral_stream.batching.formation import Formation
from spiral_stream.host_dtypes import host_dtype
from spiral_stream.plan.fields.clips import clip_costs
from spiral_stream.plan.nodes import Collate
from spiral_stream.plan.tree import need
from spiral_stream.planner.field_stages import FieldStage
from spiral_stream.planner.stages import Stages

UNKNOWN_IMAGES: Final = 4  # of a list, where only the data knows how many there are
UNKNOWN_PATCHES: Final = 256  # of an image, likewise
_VALUE_BYTES: Final = 8  # of a value in a list
OBJECT_BYTES: Final = 48 + _VALUE_BYTES  # of a text, or of bytes, beside their own bytes
_LIST_BYTES: Final = 72 + _VALUE_BYTES  # beside the places of its items; two of them are spare
_OTHER_BYTES: Final = 48  # of a time; a date takes less, and a decimal more


def object_bytes(values: pa.Array) -> int:
    """Estimate the bytes that a column's values take as Python objects, from above.

    It counts by column, not by value. Small integers and interned texts are shared, so less may be used.
    """
    kind = values.type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return _LIST_BYTES * len(values) + object_bytes(values.flatten())
    if pa.types.is_struct(kind):
        return _dict_bytes(kind) * len(values) + sum(map(object_bytes, values.flatten()))
    each = number_bytes(kind)
    return OBJECT_BYTES * len(values) + int(values.nbytes) if each is None else each * len(values)


def number_bytes(kind: pa.DataType) -> int | None:
    """Return the bytes of one number, time or boolean as a Python object; None of what is as long as its value."""
    if pa.types.is_integer(kind):
        return 32 + _VALUE_BYTES  # 28 below 2**30
    if pa.types.is_floating(kind):
        return 24 + _VALUE_BYTES
    if pa.types.is_boolean(kind) or pa.types.is_null(kind):
        return _VALUE_BYTES
    return None if _is_sized(kind) else _OTHER_BYTES + _VALUE_BYTES


def _is_sized(kind: pa.DataType) -> bool:
    """Whether values are as long as they are: texts, bytes, and what is encoded."""
    try:
        return bool(kind.bit_width <= 0) or pa.types.is_fixed_size_binary(kind) or pa.types.is_dictionary(kind)
    except ValueError:  # of no fixed width
        return True


def fixed_bytes(kind: pa.DataType) -> int | None:
    """Return the bytes of a value as a Python object, for types whose values all have one size; else None."""
    if pa.types.is_fixed_size_list(kind):
        inner = fixed_bytes(kind.value_type)
        return None if inner is None else _LIST_BYTES + int(kind.list_size) * inner
    if pa.types.is_struct(kind):
        parts = [fixed_bytes(each.type) for each in kind]
        return None if None in parts else _dict_bytes(kind) + sum(part for part in parts if part is not None)
    if pa.types.is_fixed_size_binary(kind):
        return int(OBJECT_BYTES + kind.byte_width)
    return number_bytes(kind)


def _dict_bytes(kind: pa.DataType) -> int:
    """Bytes of a dict with as many keys, which all values share, in a list; its values take the places of a list there."""
    keys = int(kind.num_fields)
    return sys.getsizeof(dict.fromkeys(map(str, range(keys)))) + _VALUE_BYTES - _VALUE_BYTES * keys


def room(stages: Stages, rows: int, merge: int) -> int:
    """Rows to allocate: a full batch, or, if a formation decides, the next power of two, so that few slot sizes exist."""
    if stages.formation is None:
        return stages.batches.batch_size * merge
    return 1 << max(0, rows - 1).bit_length()


def most_items(stages: Stages, column: str, merge: int) -> int:
    """Items of a token column's fields in a batch that keeps to the budget; 0 where nothing bounds them."""
    most = stages.formation and stages.formation.most_tokens(stages.batches.batch_size)
    if stages.formation is not None and column in stages.formation.widths:
        most = stages.formation.widths[column] * stages.batches.batch_size
    return most * merge if most else 0


def capacity(most: int, items: int) -> int:
    """Items that a slot has room for: those of the budget if the batch keeps it; ``most`` comes from `most_items`."""
    return most if items <= most else 1 << max(0, items - 1).bit_length()


def batch_bytes(stages: Stages, merge: int) -> int:
    """Bytes of a batch's arrays, about: what is reserved in the queue before it is built."""
    formation = stages.formation
    if formation is None:
        return stages.batch_bytes(stages.batches.batch_size * merge)
    tokens = formation.most_tokens(stages.batches.batch_size)
    if tokens is None:
        return stages.batch_bytes(_most_samples(stages, formation) * merge)
    rows = stages.batches.batch_size
    known = [(stage, stage.formed_bytes(formation, rows)) for stage in stages.fields]
    flat_bytes = sum(_guessed(stage) * rows if most is None else most for stage, most in known)
    return max(1, (row_bytes(stages, tokens, rows) + flat_bytes) * merge)


def row_bytes(stages: Stages, tokens: int, rows: int = 1) -> int:
    """Bytes of the token fields of some rows that hold ``tokens``; a column with a width of its own has that."""
    widths = {} if stages.formation is None else stages.formation.widths
    fields = [(stage.field.column, stage.spec.dtype) for stage in stages.sequences if stage.spec.dtype]
    return sum(np.dtype(dtype).itemsize * (widths[of] * rows if of in widths else tokens) for of, dtype in fields)


def _guessed(stage: FieldStage) -> int:
    """Bytes that a field of images end to end takes per row, where no budget bounds it."""
    items = int(np.prod([n or 1 for n in stage.spec.shape], dtype=np.int64))
    return UNKNOWN_IMAGES * UNKNOWN_PATCHES * items * host_dtype(str(stage.spec.dtype)).itemsize


def _most_samples(stages: Stages, formation: Formation) -> int:
    """The most samples that a batch of a formation without a token limit may hold."""
    collate = need(stages.plan, Collate)
    costs = {**clip_costs(collate.fields), "images": UNKNOWN_IMAGES, "patches": UNKNOWN_IMAGES * UNKNOWN_PATCHES}
    return formation.most_samples(collate.batch_size, costs)
