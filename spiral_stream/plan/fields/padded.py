"""What ``last=PadPartial(value=...)`` means for a batch: the field of its mask, and values that fields can hold."""

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from spiral_stream.batching.composition import OneStream
from spiral_stream.batching.formation import Formation
from spiral_stream.batching.packing import Packed
from spiral_stream.batching.tail import PadPartial, Tail
from spiral_stream.errors import PlanError, shown
from spiral_stream.fields.field import Field
from spiral_stream.fields.pad import Real
from spiral_stream.plan.fields.dtypes import field_spec


def with_mask(fields: Mapping[str, Field], last: Tail, column: str) -> Mapping[str, Field]:
    """Return the fields of a batch with the mask of the tail rule, if it has one.

    Args:
        fields: as they are given.
        last: the tail rule.
        column: any column of the samples.

    Raises:
        PlanError: a field has the name of the mask.
    """
    if not isinstance(last, PadPartial) or not last.blanks:
        return fields
    if last.mask in fields:
        msg = (
            f"collate: PadPartial(value=...) adds a mask called {last.mask!r}, and a field has that name. Give it another: "
            'PadPartial(value=..., mask="is_sample")'
        )
        raise PlanError(msg)
    return {**fields, last.mask: Real(column)}


def check_padded(last: Tail, formation: Formation | None, fields: Sequence[tuple[str, Field]], have: pa.Schema) -> None:
    """Refuse a value that rows of a batch cannot hold.

    Raises:
        PlanError: it does not fit a field, names none, or rows that fill a batch do not lie at its end.
    """
    if not isinstance(last, PadPartial) or not last.blanks:
        return
    if isinstance(formation, Packed):
        msg = (
            "collate: PadPartial(value=...) with Packed, whose rows hold several samples. Give PadPartial(), or KeepPartial; "
            "Segments say which places of a row are samples"
        )
        raise PlanError(msg)
    if formation is not None and isinstance(getattr(formation, "composition", None), OneStream):
        msg = "collate: PadPartial(value=...) with OneStream, which fills batches of one stream. Give PadPartial() or KeepPartial"
        raise PlanError(msg)
    named, specs = (
        dict(last.values),
        {name: field_spec(name, field, have.field(field.column)) for name, field in fields},
    )
    masks = {name for name, field in fields if field.MASK}
    for name in named:
        if name and (name not in specs or specs[name].dtype in (None, "bool") or name in masks):
            lists = "is a list or a mask, which hold None and 0 there" if name in specs else "is not a field"
            msg = f"collate: PadPartial(value=...) names {name!r}, which {lists}. Leave it out"
            raise PlanError(msg)
    for name, spec in specs.items():
        value = last.value_of(name)
        if spec.dtype not in (None, "bool") and name not in masks and not _holds(str(spec.dtype), value):
            msg = (
                f"collate: PadPartial: value={shown(value)} does not fit field {name!r}, which is {spec.dtype}. Give values by "
                f'field, and 0 for the others: value={{"{name}": 0}}'
            )
            raise PlanError(msg)


def _holds(dtype: str, value: float) -> bool:
    """Whether a dtype holds a number; floats round it."""
    if dtype == "bfloat16":
        return abs(value) <= 3.3e38  # noqa: PLR2004  its largest number is 3.39e38
    kind = np.dtype(dtype)
    if kind.kind in "iu":
        return value == int(value) and np.iinfo(kind).min <= value <= np.iinfo(kind).max
    return kind.kind != "f" or abs(value) <= np.finfo(kind).max
