"""What a plan must have for fields that decode: bytes and clip times in one relation, and enough pixels.

Everything here is known from the plan alone, so that nothing is found out at the first batch.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from spiral_stream import expr
from spiral_stream.errors import PlanError, shown
from spiral_stream.fields.field import Field
from spiral_stream.fields.stack import Stack
from spiral_stream.plan import nodes
from spiral_stream.plan.fields.clips import TIMES, check_times, clip_parts, is_clip
from spiral_stream.plan.fields.profiles import Frames
from spiral_stream.plan.fields.sounds import is_sound
from spiral_stream.plan.geometry_checks import check_followed
from spiral_stream.plan.tree import UNION, need, owner, profiles, replaced, walk
from spiral_stream.transforms.chain import settled
from spiral_stream.transforms.image.crop_and_resize import CenterCrop, RandomCrop, Resize

FRAME_COUNT: Final = "frame_count"  # column: frames of a segment


def with_steps(fields: Mapping[str, Field]) -> Mapping[str, Field]:
    """Return the fields with transforms of torchvision and functions as values of the plan.

    Raises:
        PlanError: one cannot stand in a chain.
        MissingExtraError: torchvision is not installed.
    """
    if not isinstance(fields, Mapping):  # which `with_decoded` refuses
        return fields
    out = dict(fields)
    for name, field in fields.items():
        if isinstance(field, Stack) and field.transforms:
            try:
                steps, dtype = settled(field.transforms)
                masks = field.interpolation == "nearest"  # their values are labels, and stay as they are
                out[name] = replace(field, transforms=steps, dtype=field.dtype or (None if masks else dtype))
            except PlanError as error:
                msg = f"collate: field {name!r}: {error}"
                raise PlanError(msg) from error
    return out


def with_decoded(node: nodes.Node, fields: Mapping[str, Field]) -> nodes.Node:
    """The plan that fields are collated from: the one given, less the samples whose segment is too short for a clip.

    Args:
        node: what `collate` follows.
        fields: the batch's.

    Raises:
        PlanError: ``fields`` is not a dict, the bytes or the times of a field are computed, or a kept frame is smaller
            than what is asked of it.
    """
    if not isinstance(fields, Mapping):
        msg = f'collate: fields={shown(fields)}. Give a dict of name -> field, for example {{"x": Stack("x")}}'
        raise PlanError(msg)
    if all(isinstance(field, Field) and field.column in node.schema().names for field in fields.values()):
        check_followed(node, fields)  # else what is wrong with them is said by `fields.check_fields`
    for name, field in fields.items():
        if not isinstance(field, Field) or not field.is_decoded or field.column not in node.schema().names:
            continue
        relation = _need_payload(node, name, field.column)
        if is_sound(field):
            check_times(relation, node.schema())
        if is_clip(field):
            _need_times(node, name, relation)
            _need_pixels(node, name, field)
            if field.short == "drop":
                node = _without_short(node, name, field)
    return node


def _need_payload(node: nodes.Node, name: str, column: str) -> str:
    """The relation of the catalog that holds a field's bytes, under the name that the plan has for them."""
    found = owner(node, column)
    if found is None:
        msg = f"collate: field {name!r}: {column!r} is computed; images and clips are read from a column of a relation"
        raise PlanError(msg)
    relation, columns = found
    if columns != column:
        way_out = f"it is {columns!r} of {relation!r} by another name. Keep that name: Stack({columns!r}, decode=...)"
        msg = f"collate: field {name!r}: {column!r} is no column of {relation!r} itself; {way_out}"
        raise PlanError(msg)
    return relation


def _need_times(node: nodes.Node, name: str, relation: str) -> None:
    """Refuse times of segments from another relation than the reference: caches and the video index rely on them."""
    schema = next(each.schema() for each in walk(node) if _is_relation(each, relation))
    check_times(relation, schema)
    names = set(schema.names)
    for column, other in (TIMES, TIMES[::-1]):
        if column in names and other not in names:
            msg = (
                f"collate: field {name!r}: {relation!r} has column {column!r} and no {other!r}; a segment needs both. Add it "
                "to the relation, or register the relation without either for clips that are whole files"
            )
            raise PlanError(msg)
        if column in node.schema().names and owner(node, column) != (relation, column):
            msg = (
                f"collate: field {name!r}: {column!r} here is not the column of {relation!r}, which names the videos and whose "
                "own times are read. Store the times in that relation, or give what was computed or joined another name"
            )
            raise PlanError(msg)


def _is_relation(node: nodes.Node, name: str) -> bool:
    """Whether a node gives the rows of a relation of this name."""
    return node.relation == name if isinstance(node, nodes.Scan) else node.VERB == "union" and name == UNION


def _need_pixels(node: nodes.Node, name: str, field: Stack) -> None:
    """Frames are kept no smaller than they are asked for."""
    profile = profiles(node).get(field.column)
    side = profile.shorter_side if isinstance(profile, Frames) else None
    _, program = clip_parts(field)
    step = next((each for each in program.steps if isinstance(each, Resize | CenterCrop | RandomCrop)), None)
    if side is None or step is None:
        return
    wanted = step.size if isinstance(step.size, int) else min(step.size)
    if wanted > side:
        msg = (
            f"collate: field {name!r}: {type(step).__name__}({step.size}) of frames kept at Frames(shorter_side={side}) would "
            f"enlarge them or find too few pixels. Keep shorter_side={wanted} or more, or ask for less"
        )
        raise PlanError(msg)


def _without_short(node: nodes.Node, name: str, field: Stack) -> nodes.Node:
    """The plan without the samples whose segment is too short for a clip, as a filter before `sample`."""
    selection, _ = clip_parts(field)
    sample = need(node, nodes.Sample)
    if FRAME_COUNT not in sample.source.schema().names:
        msg = (
            f'collate: field {name!r}: short="drop" needs column {FRAME_COUNT!r}, since who is a sample is decided before '
            "anything is decoded. Add the frames of each segment to the relation (spiral_stream.index_videos tells "
            'segment_frames), or take short="pad"'
        )
        raise PlanError(msg)
    test = expr.col(FRAME_COUNT) >= selection.need
    return replaced(node, sample, replace(sample, source=nodes.Filter(sample.source, test)))
