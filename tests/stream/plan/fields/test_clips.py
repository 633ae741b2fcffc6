"""Which frames a clip field takes and how they are transformed, and what that costs a budget."""

import re
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spiral_stream import List, Stack
from spiral_stream.decoders.limits import CLIPS, SampleLimits
from spiral_stream.errors import PlanError
from spiral_stream.plan.fields.clips import check_times, clip_costs, clip_parts, is_clip, limits_of, shorthands
from spiral_stream.transforms import CenterCrop, RandomCrop, Resize

SIDES = st.integers(1, 300)


def clip(**options: Any) -> Stack:
    return Stack("v", decode="h264", **{"sequence_length": 4, "crop": 8} | options)


@given(
    frames=st.lists(st.integers(1, 40), min_size=1, max_size=3),
    size=st.tuples(SIDES, SIDES),
    dtype=st.sampled_from(["uint8", "float16", "float32"]),
    layout=st.sampled_from(["ntchw", "nthwc"]),
)
def test_costs_are_those_of_the_arrays_that_are_delivered(
    frames: list[int], size: tuple[int, int], dtype: str, layout: str
) -> None:
    fields = [
        (f"clip-{i}", clip(sequence_length=n, crop=size, dtype=dtype, layout=layout)) for i, n in enumerate(frames)
    ]
    delivered = [
        np.empty((n, *clip_parts(field)[1].output_shape), dtype) for n, (_, field) in zip(frames, fields, strict=True)
    ]
    others = [("image", Stack("i", decode="jpeg", crop=8)), ("label", Stack("l")), ("id", List("id"))]

    assert clip_costs([*others, *fields]) == {"frames": sum(frames), "bytes": sum(each.nbytes for each in delivered)}
    assert [is_clip(field) for _, field in [*others, *fields]] == [False] * 3 + [True] * len(fields)


@given(shorter=st.none() | SIDES, crop=st.none() | SIDES, random=st.booleans())
def test_shorthands_mean_the_transforms_that_they_stand_for(
    shorter: int | None, crop: int | None, random: bool
) -> None:
    field = clip(resize_shorter=shorter, crop=crop, random_crop=random and crop is not None)
    spelled = [Resize(shorter)] * (shorter is not None) if shorter else []
    if crop:
        spelled.append(RandomCrop(crop) if random else CenterCrop(crop))

    assert list(shorthands(field)) == spelled
    if crop:
        written = Stack("v", decode="h264", sequence_length=4, transforms=spelled)
        assert clip_parts(written)[1].steps == clip_parts(field)[1].steps


@given(asked=st.tuples(*[st.none() | st.integers(1, 2**15)] * 3))
def test_limits_are_the_fields_own_where_it_states_them(asked: tuple[int | None, int | None, int | None]) -> None:
    pixels, frames, size = asked
    found = limits_of(clip(max_pixels=pixels, max_frames=frames, max_bytes=size), CLIPS)

    assert found == SampleLimits(pixels or CLIPS.pixels, frames or CLIPS.frames, size or CLIPS.bytes)


@pytest.mark.parametrize(
    ("options", "way_out"),
    [
        ({"sequence_length": None}, "decode='h264' needs the number of frames per clip. Add sequence_length=16"),
        ({"layout": "nchw"}, "clips: layout 'nchw' is unknown; known are ntchw, nthwc"),
        ({"crop": None}, "need one size. Add crop=224, or transforms=[Resize((height, width))]"),
        ({"crop": None, "resize_shorter": 8}, "need one size. Add crop=224, or transforms=[Resize((height, width))]"),
    ],
)
def test_clips_without_a_shape_are_refused(options: dict[str, Any], way_out: str) -> None:
    with pytest.raises(PlanError, match=re.escape(way_out)):
        clip_parts(clip(**options))


def test_a_field_says_which_frames_it_takes() -> None:
    selection, _ = clip_parts(clip(sequence_length=5, stride=3, random_start=True, short="loop"))

    assert (selection.sequence_length, selection.stride, selection.random_start, selection.short) == (
        5,
        3,
        True,
        "loop",
    )
    assert clip_parts(clip())[1].output_shape == (3, 8, 8)
    assert clip_parts(clip(layout="nthwc"))[1].output_shape == (8, 8, 3)


@pytest.mark.parametrize("column", ["start_time_ms", "duration_ms"])
def test_times_of_segments_are_whole_milliseconds(column: str) -> None:
    check_times("r", pa.schema([(column, pa.int32()), ("seconds", pa.float64())]))
    with pytest.raises(PlanError, match=f"r: '{column}' is double; .* whole milliseconds: store them as int64"):
        check_times("r", pa.schema([(column, pa.float64())]))
