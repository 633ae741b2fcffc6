"""What fields and a formation need of the columns that they are collated from; `dtypes` says what each field will be."""

from collections.abc import Mapping, Sequence

import pyarrow as pa

from spiral_stream.batching.formation import Formation, Setting
from spiral_stream.batching.packing import Packed, check_multiple
from spiral_stream.batching.padding_width import common_multiple
from spiral_stream.batching.row_exchange import RowExchange
from spiral_stream.batching.shapes.one_shape import OneShape
from spiral_stream.errors import PlanError, shown, warn
from spiral_stream.expr import kind_of, parse
from spiral_stream.fields.field import Field
from spiral_stream.fields.pad import Pad
from spiral_stream.fields.sequence import SequenceField, is_tokens
from spiral_stream.fields.stack import Stack
from spiral_stream.fields.step_total import StepTotal
from spiral_stream.plan.checks import bound_type, device_name, need_columns, need_new_names
from spiral_stream.plan.fields.clips import clip_costs, is_clip, shorthands
from spiral_stream.plan.fields.dtypes import field_spec, field_specs, widths_of
from spiral_stream.plan.fields.flat_images import check_counted, check_flat
from spiral_stream.plan.fields.image_lists import check_lists
from spiral_stream.transforms.image.crop_and_resize import FitToShape
from spiral_stream.transforms.transform import Transform


def warn_of_fields_drawn_alike(fields: Sequence[tuple[str, Field]]) -> None:
    """Warn where two fields decode one column with an equal random transform: both get the same crop, or the same flip."""
    seen: list[tuple[str, tuple[str, str | None, bool], object]] = []  # field, column and view, and what it draws
    for name, field in fields:
        if not isinstance(field, Stack) or field.decode is None:
            continue
        steps = (*shorthands(field), *field.transforms)
        drawn_like = (field.column, field.view, field.draws_alike)
        draws: list[object] = [each for each in steps if isinstance(each, Transform) and not each.deterministic]
        draws += ["random_start"] * field.random_start
        for other, source, what in seen:
            if source == drawn_like and what in draws:
                msg = (
                    f"collate: fields {other!r} and {name!r} decode {field.column!r} with an equal "
                    f"{what if isinstance(what, str) else type(what).__name__} and draw alike, since random numbers are of the "
                    'sample and the transform, not of the field. For two different views write Stack(..., view="a") and '
                    'Stack(..., view="b"); where the fields are to be alike, ignore this warning'
                )
                warn(msg)
                return
        seen += [(name, drawn_like, each) for each in draws]


def check_fields(fields: Sequence[tuple[str, Field]], have: pa.Schema) -> None:
    """Refuse fields that these columns cannot fill.

    Raises:
        PlanError: there is none, two have one name, one is no field, or its column does not fit.
    """
    if not fields:
        msg = 'collate: no fields. Name at least one, for example fields={"x": Stack("x")}'
        raise PlanError(msg)
    need_new_names("collate (fields)", [name for name, _ in fields], "Give each field a name of its own")
    for name, field in fields:
        if not isinstance(field, Field):
            column = field if isinstance(field, str) and field in have.names else "column"
            lists = column in have.names and is_tokens(have.field(column).type)
            way_out = f'Pad("{column}")' if lists else f'Stack("{column}") or List("{column}")'
            msg = f"collate: field {name!r} is {shown(field)}. Give {way_out}"
            raise PlanError(msg)
        need_columns(f"collate (field {name!r})", field.columns, have)
        for other in field.columns[1:]:
            field.need_column(f"collate (field {name!r})", have.field(other))
        device = field_spec(name, field, have.field(field.column)).device
        if device is not None:
            device_name(f"collate (field {name!r}): device", device)
    sequences = {field.column for _, field in fields if isinstance(field, SequenceField)}
    for name, field in fields:
        if isinstance(field, Pad) and field.also is not None and field.also not in sequences:
            msg = f'collate: field {name!r}: also={field.also!r}, and no field pads it. Add one, for example Pad("{field.also}")'
            raise PlanError(msg)
    for column in sequences:
        widths_of(fields, column)
    _check_totals({name: field for name, field in fields if isinstance(field, StepTotal)}, have)
    check_lists(fields, have)
    field_specs(fields, have)


def _check_totals(totals: Mapping[str, StepTotal], have: pa.Schema) -> None:
    for name, total in totals.items():
        where = f"collate (field {name!r})"
        check_number(where, "value", total.value, have)
        kind = bound_type(where, parse(total.value), have)
        if kind_of(kind) == "float" and total.dtype.startswith("int"):
            msg = (
                f"{where}: {total.value!r} is {kind}, and {total.dtype} would cut the total. Give "
                f'StepTotal({total.value!r}, dtype="float64")'
            )
            raise PlanError(msg)


def check_balance(balance: RowExchange | None, cost: str | None, formation: Formation | None) -> None:
    """Refuse an exchange of rows that would break what the formation promises.

    Raises:
        PlanError: there is no cost, or batches have limits or shares that an exchange does not keep.
    """
    if balance is None:
        return
    if cost is None:
        msg = "collate: balance='rows' exchanges rows by cost. Say it: collate(cost='len(tokens)')"
        raise PlanError(msg)
    if isinstance(formation, OneShape):
        msg = "collate: balance='rows' moves rows between batches, and OneShape says which share a shape. Leave balance out"
        raise PlanError(msg)
    composition = getattr(formation, "composition", None)
    if composition is not None:
        msg = (
            f"collate: balance='rows' moves rows between batches, and {type(composition).__name__} says which streams share one. "
            "Leave one of them out"
        )
        raise PlanError(msg)
    if formation is not None and formation.cost_names:
        limits = " and ".join(f"max_{name}" for name in formation.cost_names)
        msg = (
            f"collate: balance='rows' with {limits} of BatchBudget, which an exchange would not keep. Budget max_tokens, or "
            "leave balance out"
        )
        raise PlanError(msg)


def check_number(where: str, name: str, text: str, have: pa.Schema) -> None:
    """Refuse an expression that is no number of every sample.

    Args:
        where: who takes it, as an error names it.
        name: of the argument.
        text: the expression.
        have: the columns.

    Raises:
        PlanError: it names what is no column, or is no number; says which columns there are.
    """
    found = parse(text)
    need_columns(f"{where}: {name}={text!r}", tuple(sorted(found.columns())), have)
    if not found.columns():
        msg = f"{where}: {name}={text!r} is the same for every sample. Name a column; the input has {', '.join(have.names)}"
        raise PlanError(msg)
    kind = bound_type(f"{where}: {name}={text!r}", found, have)
    if kind_of(kind) not in ("int", "float"):
        lists = next((each for each in sorted(found.columns()) if is_tokens(have.field(each).type)), None)
        way_out = f"len({lists})" if lists else "a number of each sample, such as width * height"
        msg = f"{where}: {name}={text!r} is {kind}. Give {way_out}"
        raise PlanError(msg)


def check_formation(
    formation: Formation | None, batch_size: int | None, fields: Sequence[tuple[str, Field]], have: pa.Schema
) -> None:
    """Refuse a formation that cannot be measured on these columns, or fields that it cannot hold.

    Raises:
        PlanError: an unknown or unfit column in a key; a budget of tokens without a field of tokens.
    """
    packed = isinstance(formation, Packed)
    tokens = [
        field for _, field in fields if isinstance(field, SequenceField) and is_tokens(have.field(field.column).type)
    ]
    for name, field in fields:
        if packed and field not in tokens and not field.PACKS:
            msg = (
                f"collate: field {name!r}: a packed row holds several samples, which {type(field).__name__} cannot show. "
                f"Use List({field.column!r}), or another formation"
            )
            raise PlanError(msg)
    check_shapes(formation, fields)
    check_flat(formation, fields)
    if formation is None:
        return
    for text in formation.key_texts:
        kind = bound_type(f"collate (bucket key {text!r})", parse(text), have)
        if kind_of(kind) not in ("int", "float"):
            msg = f"collate: bucket key {text!r} is {kind}. Give a number of each sample, such as len({text})"
            raise PlanError(msg)
    if formation.needs_lengths and not tokens:
        msg = (
            "collate: a budget of tokens, or packing, needs a field of tokens. "
            'Add one, for example fields={"input_ids": Pad("tokens")}'
        )
        raise PlanError(msg)
    _check_widths(formation, tokens)
    _check_together(formation, tokens)
    _check_formation_widths(formation, fields, tokens)
    _check_lengths(formation, have)
    costs = clip_costs(fields)
    of_clips = [name for name in formation.cost_names if name in costs]
    check_counted(formation, fields, have)
    if of_clips and not costs["frames"]:
        msg = (
            f"collate: {' and '.join(f'max_{name}' for name in of_clips)} of BatchBudget counts decoded "
            "frames of video, which no field decodes; text has no such cost: use max_tokens, or batch_size"
        )
        raise PlanError(msg)
    for name in of_clips:
        limit = getattr(getattr(formation, "budget", None), f"max_{name}")
        if costs[name] > limit:
            msg = (
                f"collate: max_{name}={limit:,} of BatchBudget holds no sample, since one has {costs[name]:,} {name}. Raise it, "
                "or ask for fewer or smaller frames (sequence_length, crop)"
            )
            raise PlanError(msg)
    multiple = 1 if formation.widths else common_multiple(field.multiple for field in tokens)
    formation.with_composition(None).former(Setting(0, 0, multiple, batch_size))  # refuses limits that nothing can keep


def check_shapes(formation: Formation | None, fields: Sequence[tuple[str, Field]]) -> None:
    """Refuse fields that follow the shape of their batch where batches have none, or say a number of frames beside it.

    Raises:
        PlanError: says which field, and what would be right.
    """
    has_shapes, has_frames = isinstance(formation, OneShape), isinstance(formation, OneShape) and formation.has_frames
    for name, field in fields:
        if not isinstance(field, Stack):
            continue
        fits = any(isinstance(step, FitToShape) for step in field.transforms)
        if fits and not has_shapes:
            msg = (
                f"collate: field {name!r}: FitToShape follows the shape of its batch, which no formation says. Give "
                "formation=batching.OneShape([(height, width), ...])"
            )
            raise PlanError(msg)
        if is_clip(field) and fits and has_frames != (field.sequence_length is None):
            msg = (
                f"collate: field {name!r}: sequence_length={field.sequence_length}, and shapes of OneShape say the frames of "
                "a batch. Leave sequence_length out, or give shapes of (height, width)"
                if has_frames
                else f"collate: field {name!r}: nobody says how many frames a clip has. Give sequence_length, or shapes of "
                "(frames, height, width)"
            )
            raise PlanError(msg)


def _check_widths(formation: Formation, tokens: Sequence[SequenceField]) -> None:
    fixed = next((field for field in tokens if field.fixed is not None), None)
    if formation.needs_lengths and fixed is not None:
        msg = (
            f"collate: {type(fixed).__name__}({fixed.column!r}, length={fixed.fixed}) fixes the width, and a budget of "
            "tokens, or packing, settles it by batch. Leave length out, or take batch_size alone"
        )
        raise PlanError(msg)


def _check_together(formation: Formation, tokens: Sequence[SequenceField]) -> None:
    shared = any(isinstance(field, Pad) and field.also is not None for field in tokens)
    if shared and isinstance(formation, Packed) and formation.oversize == "split":
        msg = (
            "collate: Pad(also=) lays the columns of a sample over the same places of a row, and this packing splits samples. "
            'Give oversize="truncate", "drop" or "raise"'
        )
        raise PlanError(msg)


def _check_formation_widths(
    formation: Formation, fields: Sequence[tuple[str, Field]], tokens: Sequence[SequenceField]
) -> None:
    """Refuse columns without a width where the formation gives each one of its own, and widths that they cannot have."""
    widths = formation.widths
    if not widths:
        return
    columns = sorted({field.column for field in tokens})
    if (without := next((name for name in columns if name not in widths), None)) is not None:
        msg = (
            f"collate: max_tokens of Packed names {', '.join(map(repr, widths))}, and a field reads {without!r}. Give it a "
            f"width too: max_tokens={{..., {without!r}: ...}}; or read it with List"
        )
        raise PlanError(msg)
    if (unused := next((name for name in widths if name not in columns), None)) is not None:
        msg = f"collate: max_tokens of Packed names {unused!r}, and no field reads it. Add one, for example Pad({unused!r})"
        raise PlanError(msg)
    both = next((field for field in tokens if isinstance(field, Pad) and field.also is not None), None)
    if both is not None:
        msg = (
            f"collate: Pad({both.column!r}, also={both.also!r}) lays two columns over the same places, and max_tokens gives "
            "each column places of its own. Leave also out"
        )
        raise PlanError(msg)
    for name, width in widths.items():
        check_multiple(name, width, widths_of(fields, name)[0])


def _check_lengths(formation: Formation, have: pa.Schema) -> None:
    for text in formation.length_texts:
        kind = bound_type(f"collate (length={text!r})", parse(text), have)
        if kind_of(kind) != "int":
            msg = f"collate: length={text!r} is {kind}. Give a column of whole numbers: the tokens of each sample"
            raise PlanError(msg)
