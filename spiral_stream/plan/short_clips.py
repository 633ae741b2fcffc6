"""Segments too short for a clip are no samples: a filter before `Sample`, on metadata."""

from dataclasses import replace
from typing import Final

from spiral_stream import expr
from spiral_stream.errors import PlanError
from spiral_stream.fields.stack import Stack
from spiral_stream.plan import nodes
from spiral_stream.plan.clips import clip_parts
from spiral_stream.plan.tree import need, replaced

FRAME_COUNT: Final = "frame_count"  # column: frames of a segment


def without_short(name: str, field: Stack, node: nodes.Node) -> nodes.Node:
    """The plan without the samples whose segment is too short for a clip, as a filter before `sample`.

    Raises:
        PlanError: no column tells how many frames a segment has.
    """
    selection, _ = clip_parts(field)
    sample = need(node, nodes.Sample)
    if FRAME_COUNT not in sample.source.schema().names:
        msg = (
            f'collate: field {name!r}: short="drop" needs column {FRAME_COUNT!r}, since who is a sample is decided before '
            'anything is decoded; add it to the relation (spiral_stream.index_videos counts frames), or take short="pad"'
        )
        raise PlanError(msg)
    test = expr.col(FRAME_COUNT) >= selection.need
    return replaced(node, sample, replace(sample, source=nodes.Filter(sample.source, test)))
