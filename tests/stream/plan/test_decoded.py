"""What a plan must have for fields that decode is known before anything is decoded."""

import re
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spiral_stream import Frames, Relation, Sequential, Stack, col, lit
from spiral_stream.decoders.video.frame_selection import FrameSelection
from spiral_stream.errors import PlanError
from spiral_stream.fields import Field
from spiral_stream.plan import nodes
from spiral_stream.plan.combining import Join
from spiral_stream.plan.decoded import with_decoded
from spiral_stream.plan.tree import need
from spiral_stream.semantic import H264_REF, JPEG_REF, with_semantic

TIMES = ("start_time_ms", "duration_ms")
NUMBERS = ("id", *TIMES, "frame_count")


def scan(name: str = "v", numbers: tuple[str, ...] = NUMBERS) -> nodes.Node:
    columns = [("video", pa.binary()), ("image", pa.binary()), *((each, pa.int64()) for each in numbers)]
    schema = with_semantic(pa.schema(columns), {"video": H264_REF, "image": JPEG_REF})
    return nodes.Scan(name, schema, ("id",))


def sampled(node: nodes.Node) -> nodes.Node:
    return Relation(node, None).sample(identity="id", order=Sequential(), epoch=0).node  # type: ignore[arg-type]


def clip(**options: Any) -> Stack:
    return Stack("video", decode="h264", **{"sequence_length": 4, "crop": 8} | options)


def computed(node: nodes.Node, name: str) -> nodes.Node:
    return nodes.WithColumns(node, (name,), (lit(b"x") if name in ("video", "image") else lit(1),))


@given(length=st.integers(1, 40), stride=st.none() | st.integers(1, 9))
def test_a_clip_that_drops_short_segments_filters_them_before_they_are_samples(length: int, stride: int | None) -> None:
    plan = sampled(scan())
    found = with_decoded(plan, {"clip": clip(sequence_length=length, stride=stride, short="drop")})
    source = need(found, nodes.Sample).source

    assert isinstance(source, nodes.Filter)
    assert source.predicate.same_as(col("frame_count") >= FrameSelection(length, stride).need)
    assert source.source is need(plan, nodes.Sample).source
    assert with_decoded(plan, {"clip": clip(sequence_length=length, stride=stride)}) is plan


def test_each_field_that_drops_filters_on_its_own_need() -> None:
    fields = {"few": clip(short="drop"), "many": clip(sequence_length=9, short="drop"), "label": Stack("id")}
    needs, at = [], need(with_decoded(sampled(scan()), fields), nodes.Sample).source
    while isinstance(at, nodes.Filter):
        needs.append(str(at.predicate))
        at = at.source

    assert needs == ["frame_count >= 9", "frame_count >= 4"]


OWN = sampled(scan())
JOINED = Join(nodes.Project(scan(), ("id", "video")), scan("t", ("id", *TIMES)), ("id",), ("id",))


@pytest.mark.parametrize(
    ("node", "field", "way_out"),
    [
        (computed(scan(), "video"), clip(), "images and clips are read from a column of a relation"),
        (
            computed(scan(), "image"),
            Stack("image", decode="jpeg"),
            "images and clips are read from a column of a relation",
        ),
        (
            scan(numbers=("id", "start_time_ms")),
            clip(),
            "no 'duration_ms'; a segment needs both. Add it to the relation",
        ),
        (
            scan(numbers=("id", "duration_ms")),
            clip(),
            "no 'start_time_ms'; a segment needs both. Add it to the relation",
        ),
        (
            computed(scan(), "start_time_ms"),
            clip(),
            "Store the times in that relation, or give what was computed or joined",
        ),
        (JOINED, clip(), "Store the times in that relation, or give what was computed or joined another name"),
        (
            scan(numbers=("id",)),
            clip(short="drop"),
            "since who is a sample is decided before anything is decoded. Add the",
        ),
    ],
    ids=["computed clip", "computed image", "no end", "no start", "computed time", "joined time", "no frame count"],
)
def test_what_a_plan_lacks_is_refused_with_the_way_out(node: nodes.Node, field: Stack, way_out: str) -> None:
    with pytest.raises(PlanError, match=rf"^collate: field 'x': .*{re.escape(way_out)}"):
        with_decoded(sampled(node), {"x": field})


def test_a_reference_under_another_name_is_asked_for_under_its_own() -> None:
    renamed = nodes.WithColumns(scan(), ("copy",), (col("video"),))
    with pytest.raises(
        PlanError, match=r"it is 'video' of 'v' by another name. Keep that name: Stack\('video', decode="
    ):
        with_decoded(sampled(renamed), {"x": Stack("copy", decode="h264", sequence_length=4, crop=8)})


@given(kept=st.integers(1, 40), asked=st.integers(1, 40), how=st.sampled_from(["crop", "resize_shorter"]))
def test_frames_are_kept_no_smaller_than_they_are_asked_for(kept: int, asked: int, how: str) -> None:
    cached = sampled(nodes.Cache(scan(), (("video", Frames(shorter_side=kept)),)))
    field = clip(**{"crop": 1, how: asked})
    if asked <= kept:
        assert with_decoded(cached, {"x": field}) is cached
    else:
        with pytest.raises(PlanError, match=f"Keep shorter_side={asked} or more, or ask for less"):
            with_decoded(cached, {"x": field})


def test_fields_that_decode_nothing_and_columns_that_are_missing_are_left_to_others() -> None:
    fields: dict[str, Field] = {"label": Stack("id"), "gone": Stack("nowhere", decode="jpeg")}

    assert with_decoded(OWN, fields) is OWN
