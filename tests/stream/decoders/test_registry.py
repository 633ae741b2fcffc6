"""Decoders are found by name, and a wrong name shows the right one."""

import pytest

from spiral_stream.decoders.image.image import JpegDecoder, PillowDecoder
from spiral_stream.decoders.registry import CLIPS, DECODERS, decode_version, decoder
from spiral_stream.errors import PlanError


def test_each_decoder_is_registered_under_its_own_name() -> None:
    assert {name: type(each) for name, each in DECODERS.items()} == {"jpeg": JpegDecoder, "image": PillowDecoder}
    assert all(name == decoder(name).NAME for name in DECODERS)
    assert not set(DECODERS) & set(CLIPS)


def test_versions_are_those_of_the_decoder_or_the_codec() -> None:
    assert decode_version("jpeg") == JpegDecoder.VERSION
    assert decode_version("h264") == CLIPS["h264"]


@pytest.mark.parametrize(
    ("name", "hint"), [("jpg", r"Did you mean 'jpeg'\?"), ("h265", r"Did you mean 'h264'\?"), ("x", "Give one of them")]
)
def test_an_unknown_name_shows_the_known_ones(name: str, hint: str) -> None:
    for ask in (decoder, decode_version):
        with pytest.raises(PlanError, match=rf"{name!r} is unknown; known are jpeg, image, h264, audio\. {hint}"):
            ask(name)
