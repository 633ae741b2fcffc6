"""Images end to end in a plan: what they cost a budget, and which batches cannot hold them."""

from collections.abc import Sequence

import pyarrow as pa

from spiral_stream.batching.formation import Formation
from spiral_stream.batching.packing import Packed
from spiral_stream.errors import PlanError
from spiral_stream.fields.field import Field
from spiral_stream.fields.flat_images import FlatImages
from spiral_stream.plan.fields.image_lists import list_columns

IMAGES = "images"
PATCHES = "patches"


def flat_images(fields: Sequence[tuple[str, Field]]) -> list[FlatImages]:
    """Return the fields of images end to end, one for each column."""
    by_column: dict[str, FlatImages] = {}
    for _, field in fields:
        if isinstance(field, FlatImages):
            by_column.setdefault(field.column, field)
    return list(by_column.values())


def check_flat(formation: Formation | None, fields: Sequence[tuple[str, Field]]) -> None:
    """Refuse formations that cut samples, whose images would be parted from their tokens.

    Raises:
        PlanError: says what cuts them.
    """
    if formation is None or not flat_images(fields):
        return
    owner = formation if isinstance(formation, Packed) else getattr(formation, "budget", None)
    oversize = getattr(owner, "oversize", "raise")
    if formation.cuts_samples or oversize == "truncate":
        name = type(owner).__name__
        others = "'drop' or 'raise'" if isinstance(owner, Packed) else "'alone', 'drop' or 'raise'"
        msg = (
            f"collate: {name} cuts samples (oversize={oversize!r}), and FlatImages would keep the images whose tokens are cut "
            f"off. Give oversize={others}, and of Packed strategy='best_fit' or 'first_fit'"
        )
        raise PlanError(msg)


def check_rows_of_all(
    fields: Sequence[tuple[str, Field]], formation: Formation | None, *, skips: bool, blanks: bool
) -> None:
    """Refuse what moves or blanks rows of a batch where a field has no value per row.

    Args:
        fields: of the batch.
        formation: of the batches.
        skips: whether bad samples are left out or replaced.
        blanks: whether rows that fill a batch hold a value.

    Raises:
        PlanError: names the field.
    """
    name = next((name for name, field in fields if not field.PER_ROW and field.is_decoded), None)
    if name is None:
        return
    if blanks:
        msg = (
            f"collate: PadPartial(value=...) blanks rows, and field {name!r} has no value per row. Give PadPartial(), which "
            "repeats samples, or KeepPartial"
        )
        raise PlanError(msg)
    if skips and not isinstance(formation, Packed):
        msg = (
            f"collate: on_error takes rows out of a batch, and field {name!r} has no value per row. Give "
            'formation=Packed(...) with on_error="skip", or on_error="raise"'
        )
        raise PlanError(msg)


def check_counted(formation: Formation, fields: Sequence[tuple[str, Field]], have: pa.Schema) -> None:
    """Refuse a budget of images without fields of them.

    Args:
        formation: whose budget counts them.
        fields: of the batch.
        have: the columns that they are collated from.

    Raises:
        PlanError: no field decodes what is counted.
    """
    flat, costs = flat_images(fields), formation.cost_names
    owner = "Packed" if isinstance(formation, Packed) else "BatchBudget"
    if IMAGES in costs and not flat and not list_columns(fields, have):
        msg = (
            f"collate: max_images of {owner} counts the images of lists, which no field decodes; of one image per sample "
            "batch_size says how many there are"
        )
        raise PlanError(msg)
    if PATCHES in costs and not flat:
        msg = f"collate: max_patches of {owner} counts those of images, which no field makes. Add FlatImages(...)"
        raise PlanError(msg)
