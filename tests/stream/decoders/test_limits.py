"""What a sample claims is compared with its limits, and the error names the field's argument."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spiral_stream.decoders.limits import SampleLimits, need_frames, need_pixels
from spiral_stream.errors import DataError


@given(height=st.integers(1, 5_000), width=st.integers(1, 5_000), most=st.integers(1, 10**7))
def test_pixels_up_to_the_limit_are_allowed(height: int, width: int, most: int) -> None:
    if height * width <= most:
        need_pixels("jpeg", height, width, most)
        return
    with pytest.raises(DataError, match=rf"jpeg: the header claims {height} x {width} pixels.*raise max_pixels"):
        need_pixels("jpeg", height, width, most)


@pytest.mark.parametrize(
    ("frames", "size", "way"), [(9, 1, "max_frames"), (1, 101, "max_bytes"), (9, 101, "max_frames")]
)
def test_a_clip_that_asks_for_too_much_is_refused(frames: int, size: int, way: str) -> None:
    limits = SampleLimits(pixels=1, frames=8, bytes=100)
    need_frames(8, 100, limits)
    with pytest.raises(DataError, match=f"raise {way} of the field"):
        need_frames(frames, size, limits)
