from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from spiral_stream.decoders.video.frame_selection import ClipSegment, FrameSelection, Short, segment_of
from spiral_stream.errors import DataError, PlanError

# F frames of the file, T sequence_length, N frames of the segment


@st.composite
def timelines(draw: st.DrawFn) -> tuple[NDArray[np.int64], int]:
    """Times of a file and its duration: steady or not, some frames at the same time."""
    gaps = draw(st.lists(st.integers(0, 90_000), min_size=0, max_size=60))
    if draw(st.booleans()):
        gaps = [draw(st.integers(1, 90_000))] * len(gaps)
    times = np.concatenate([[0], np.cumsum(gaps, dtype=np.int64)]).astype(np.int64)
    return times, int(times[-1]) + draw(st.integers(1, 90_000))


@st.composite
def segments(draw: st.DrawFn) -> tuple[NDArray[np.int64], ClipSegment]:
    """A file, and a segment inside it."""
    times, duration = draw(timelines())
    if draw(st.booleans()):
        return times, segment_of(times, duration)
    start = draw(st.integers(0, max(0, duration // 1_000 - 1)))
    length = draw(st.integers(1, max(1, duration // 1_000 - start)))
    return times, segment_of(times, duration, start, length)


selections = st.builds(
    FrameSelection,
    sequence_length=st.integers(1, 20),
    stride=st.none() | st.integers(1, 5),
    short=st.sampled_from(["pad", "loop"]),
)


# ---- laws


@given(
    timeline=timelines(),
    start_ms=st.integers(0, 5_000),
    duration_ms=st.integers(1, 5_000),
)
def test_a_segment_is_the_frames_whose_rounded_time_is_in_it(
    timeline: tuple[NDArray[np.int64], int], start_ms: int, duration_ms: int
) -> None:
    times, duration = timeline
    try:
        segment = segment_of(times, duration, start_ms, duration_ms)
    except DataError:
        assert (start_ms + duration_ms) * 1_000 > duration
        return
    if (segment.start, segment.end) == (0, duration) and segment.frames == len(times):
        return  # a clip that was cut out before
    inside = [i for i, t in enumerate(times.tolist()) if start_ms <= (t + 500) // 1_000 < start_ms + duration_ms]
    shown = max((i for i, t in enumerate(times.tolist()) if (t + 500) // 1_000 <= start_ms), default=0)

    assert list(range(segment.first, segment.stop)) == (inside or [shown])
    assert (segment.start, segment.end) == (start_ms * 1_000, (start_ms + duration_ms) * 1_000)


@given(timed=segments(), selection=selections, u=st.floats(0, 1, exclude_max=True))
def test_chosen_frames_are_of_the_segment_and_ascend_unless_they_loop(
    timed: tuple[NDArray[np.int64], ClipSegment], selection: FrameSelection, u: float
) -> None:
    times, segment = timed
    frames, short = selection.choose(times, segment, u)

    assert frames.dtype == np.int64
    assert frames.shape == (selection.sequence_length,)
    assert segment.first <= frames.min() <= frames.max() < segment.stop
    assert short == (segment.frames < selection.need)
    assert selection.short == "loop" or (np.diff(frames) >= 0).all()


@given(timed=segments(), length=st.integers(1, 20))
def test_uniform_frames_are_those_shown_in_the_middle_of_equal_parts(
    timed: tuple[NDArray[np.int64], ClipSegment], length: int
) -> None:
    times, segment = timed
    frames, short = FrameSelection(length).choose(times, segment)
    if short:
        return
    for k, frame in enumerate(frames.tolist()):
        middle = segment.start + (2 * k + 1) * (segment.end - segment.start) // (2 * length)
        shown = max(i for i, t in enumerate(times.tolist()) if t <= middle)
        assert frame == min(max(shown, segment.first), segment.stop - 1)


@given(timed=segments(), length=st.integers(1, 10), stride=st.integers(1, 5), u=st.floats(0, 1, exclude_max=True))
def test_a_random_start_shifts_strided_frames_over_all_of_the_segment(
    timed: tuple[NDArray[np.int64], ClipSegment], length: int, stride: int, u: float
) -> None:
    times, segment = timed
    selection = FrameSelection(length, stride, random_start=True)
    frames, short = selection.choose(times, segment, u)
    if short:
        assert frames.tolist() == FrameSelection(length, stride).choose(times, segment)[0].tolist()
        return
    free = segment.frames - selection.need

    assert frames.tolist() == [segment.first + int(u * (free + 1)) + k * stride for k in range(length)]
    ends = {int(selection.choose(times, segment, at)[0][-1]) for at in (0.0, np.nextafter(1.0, 0.0))}
    assert ends == {segment.first + selection.need - 1, segment.stop - 1}


@given(timed=segments(), length=st.integers(1, 20), stride=st.none() | st.integers(1, 5))
def test_a_short_segment_goes_on_with_its_last_frame_or_with_its_first_ones(
    timed: tuple[NDArray[np.int64], ClipSegment], length: int, stride: int | None
) -> None:
    times, segment = timed
    held = list(range(segment.first, segment.stop))
    needed = FrameSelection(length, stride).need
    if len(held) >= needed:
        return
    padded = (held + held[-1:] * needed)[:needed][:: stride or 1]
    looped = (held * needed)[:needed][:: stride or 1]

    assert FrameSelection(length, stride, short="pad").choose(times, segment)[0].tolist() == padded
    assert FrameSelection(length, stride, short="loop").choose(times, segment)[0].tolist() == looped


@given(timeline=timelines(), length=st.integers(1, 12), selection=selections)
def test_a_clip_cut_out_before_gives_the_frames_of_the_range_it_was_cut_from(
    timeline: tuple[NDArray[np.int64], int], length: int, selection: FrameSelection
) -> None:
    """On whole milliseconds, where a cut falls between frames."""
    times = np.arange(len(timeline[0]), dtype=np.int64) * 40_000
    first = min(3, len(times) - 1)
    count = min(length, len(times) - first)
    whole = segment_of(times, len(times) * 40_000, first * 40, count * 40)
    clip = segment_of(times[:count], count * 40_000, first * 40, count * 40)
    a, a_short = selection.choose(times, whole)
    b, b_short = selection.choose(times[:count], clip)

    assert (a - first).tolist() == b.tolist()
    assert a_short == b_short


# ---- examples

STEADY = np.arange(48, dtype=np.int64) * 125_000 // 3  # 24 frames a second, 2 s


@pytest.mark.parametrize(
    ("selection", "segment", "frames"),
    [
        (FrameSelection(4), (None, None), [6, 18, 30, 42]),
        (FrameSelection(1), (None, None), [24]),
        (FrameSelection(4), (500, 500), [13, 16, 19, 22]),
        (FrameSelection(4, 3), (500, 500), [12, 15, 18, 21]),
        (FrameSelection(4, 1, short="loop"), (500, 42), [12, 12, 12, 12]),
        (FrameSelection(4, 2), (500, 250), [12, 14, 16, 17]),
    ],
)
def test_frames_of_a_steady_file(
    selection: FrameSelection, segment: tuple[int | None, int | None], frames: list[int]
) -> None:
    assert selection.choose(STEADY, segment_of(STEADY, 2_000_000, *segment))[0].tolist() == frames


def test_frames_of_an_unsteady_file_are_chosen_by_time_not_by_count() -> None:
    times = np.array([0, 10_000, 20_000, 30_000, 1_000_000, 1_500_000], np.int64)

    assert FrameSelection(4).choose(times, segment_of(times, 2_000_000))[0].tolist() == [3, 3, 4, 5]


def test_a_segment_may_end_a_frame_after_the_file() -> None:
    """Metadata is rounded; the last frame of an MP4 may be told shorter than it is."""
    assert segment_of(STEADY, 2_000_000, 1_000, 1_041).frames == 24
    with pytest.raises(DataError, match=r"\[1000, 2043\) ms.*2000 ms long.*filter the row out"):
        segment_of(STEADY, 2_000_000, 1_000, 1_043)


def test_a_file_as_long_as_a_segment_that_lies_outside_of_it_is_the_segment() -> None:
    assert segment_of(STEADY, 2_000_000, 60_000, 2_000) == ClipSegment(0, 48, 0, 2_000_000)
    assert segment_of(STEADY, 2_000_000, 60_000, 1_960) == ClipSegment(0, 48, 0, 2_000_000)


def test_a_segment_between_two_frames_is_the_one_still_shown() -> None:
    times = np.array([0, 1_000_000, 2_000_000], np.int64)

    assert segment_of(times, 3_000_000, 1_200, 100) == ClipSegment(1, 2, 1_200_000, 1_300_000)


def test_need_and_determinism() -> None:
    assert [FrameSelection(16).need, FrameSelection(16, 4).need, FrameSelection(1, 4).need] == [16, 61, 1]
    assert FrameSelection(16, 4).deterministic
    assert not FrameSelection(16, 4, random_start=True).deterministic


# ---- bad input


@pytest.mark.parametrize(
    ("start", "duration"), [(0, 0), (0, -5), (-1, 100), (None, 100), (100, None), (2_000, 1_000), (0, 10**12)]
)
def test_segments_that_are_none_are_refused(start: int | None, duration: int | None) -> None:
    with pytest.raises(DataError, match="filter the row out"):
        segment_of(STEADY, 2_000_000, start, duration)


def test_a_short_segment_under_drop_is_refused() -> None:
    with pytest.raises(DataError, match=r'6 frames.*needs 7\. Give short="pad".*filter on frame_count'):
        FrameSelection(7, 1, short="drop").choose(STEADY, segment_of(STEADY, 2_000_000, 0, 250))


@pytest.mark.parametrize(
    ("arguments", "way_out"),
    [
        ({"sequence_length": 0}, "whole number from 1"),
        ({"sequence_length": True}, "whole number from 1"),
        ({"sequence_length": None}, "whole number from 1"),
        ({"sequence_length": 2.0}, "whole number from 1"),
        ({"sequence_length": 1 << 20}, "whole number from 1 to 65536"),
        ({"sequence_length": 2, "stride": 0}, "stride=0.*whole number from 1"),
        ({"sequence_length": 2, "random_start": True}, "Give stride=1"),
        ({"sequence_length": 2, "short": "cut"}, "Give one of pad, loop, drop"),
    ],
)
def test_selections_that_say_nothing_are_refused(arguments: dict[str, Any], way_out: str) -> None:
    with pytest.raises(PlanError, match=way_out):
        FrameSelection(**arguments)


def test_the_ways_to_treat_short_segments_are_these() -> None:
    assert Short.__args__ == ("pad", "loop", "drop")
