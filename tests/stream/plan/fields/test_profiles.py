"""What a profile promises: when it changes pixels, when an encoder is in them, and which columns it is a form of."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

import spiral_stream as sp
from spiral_stream import Frames, Raw
from spiral_stream.errors import PlanError
from spiral_stream.plan.fields.profiles import forms_of
from spiral_stream.plan.saving.canonical import encode_value
from spiral_stream.profiles import Jpeg, Original, Profile
from spiral_stream.semantic import H264_REF, JPEG_REF

SIDES = st.none() | st.integers(1, 2_000)
QUALITIES = st.integers(1, 100)


@given(side=SIDES, quality=st.none() | QUALITIES)
def test_frames_are_lossy_with_a_quality_and_change_pixels_if_smaller_or_lossy(
    side: int | None, quality: int | None
) -> None:
    frames = Frames(shorter_side=side, quality=quality)

    assert frames.lossy == (quality is not None)
    assert frames.changes_pixels == (side is not None or quality is not None)
    assert {name: encode_value(frames)[name] for name in ("shorter_side", "quality")} == {
        "shorter_side": side,
        "quality": quality,
    }


@given(side=SIDES, quality=QUALITIES)
def test_images_are_lossy_as_jpegs_only(side: int | None, quality: int) -> None:
    assert Jpeg(shorter_side=side, quality=quality).lossy
    assert Jpeg(shorter_side=side, quality=quality).changes_pixels
    assert not Raw(shorter_side=side).lossy
    assert Raw(shorter_side=side).changes_pixels == (side is not None)
    assert not Original().changes_pixels


@pytest.mark.parametrize("semantic", [JPEG_REF, H264_REF])
def test_every_profile_is_named_among_the_forms_of_its_columns(semantic: str) -> None:
    for profile in (Original, Raw, Jpeg, Frames):
        assert (f"{profile.__name__}(" in forms_of(semantic)) == (semantic == profile.SEMANTIC)


@pytest.mark.parametrize("profile", [Raw, Jpeg, Frames])
def test_a_side_of_no_pixels_is_refused(profile: type[Profile]) -> None:
    with pytest.raises(PlanError, match=rf"{profile.__name__}: shorter_side=0. Give at least 1 pixel, or None to keep"):
        profile(shorter_side=0)  # type: ignore[call-arg]  # all three have it


@pytest.mark.parametrize("quality", [0, 101, -1])
@pytest.mark.parametrize("profile", [Jpeg, Frames])
def test_a_quality_the_encoder_does_not_take_is_refused(profile: type[Profile], quality: int) -> None:
    with pytest.raises(PlanError, match=rf"{profile.__name__}: quality={quality}; the encoder takes 1 to 100"):
        profile(quality=quality)  # type: ignore[call-arg]  # both have it


def test_source_called_as_a_profile_means_original_and_says_what_to_write(catalog: sp.Catalog) -> None:
    with pytest.warns(DeprecationWarning, match=r"Write Original\(\)"):
        former = sp.sources.Source()  # type: ignore[abstract]  # as programs before 0.2 do
    images = catalog.table("lance")

    assert images.cache(image_ref=former).node.profiles == (("image_ref", Original()),)
    assert sp.profiles.cache_fingerprint("images", "image_ref", former) == sp.profiles.cache_fingerprint(
        "images", "image_ref", Original()
    )


def test_the_source_interface_is_at_the_door_and_has_no_instances_of_its_own() -> None:
    assert isinstance(sp.Lance("rows.lance"), sp.sources.Source)
    assert not isinstance(Original(), sp.sources.Source)


def test_original_is_saved_under_the_name_it_had_first() -> None:
    assert encode_value(Original()) == {"@class": "Source", "@version": 1}
