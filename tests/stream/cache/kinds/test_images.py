"""What is kept of an image column: read of keep is what the profile says, and fingerprints cover exactly that."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import spiral_stream as sp
from spiral_stream.cache.kinds.images import ImageKind
from spiral_stream.decoders.image.image import decode_jpeg, encode_jpeg, shrink
from spiral_stream.decoders.registry import DECODERS
from spiral_stream.errors import DataError

JPEG = DECODERS["jpeg"]


@settings(max_examples=25)
@given(
    height=st.integers(1, 70),
    width=st.integers(1, 70),
    side=st.one_of(st.none(), st.integers(1, 80)),
    quality=st.integers(1, 100),
    seed=st.integers(0, 2**32 - 1),
)
def test_reading_what_was_kept_gives_what_the_profile_says(
    height: int, width: int, side: int | None, quality: int, seed: int
) -> None:
    noise = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    data = encode_jpeg(noise, 90)
    whole = decode_jpeg(data)
    shrunk = whole if side is None else shrink(whole, side)
    expected = {
        sp.profiles.Original(): whole,
        sp.Raw(shorter_side=side): shrunk,
        sp.profiles.Jpeg(shorter_side=side, quality=quality): decode_jpeg(encode_jpeg(shrunk, quality)),
    }
    for profile, pixels in expected.items():
        kind = ImageKind("r", "image_ref", JPEG, profile)
        kept = kind.keep(data)

        assert (kept.height, kept.width) == pixels.shape[:2]
        assert np.array_equal(kind.read(kept), pixels)


def test_what_cannot_be_decoded_is_not_kept() -> None:
    for profile in (sp.profiles.Original(), sp.Raw(), sp.profiles.Jpeg()):
        with pytest.raises(DataError, match="the PNG of 17 bytes is damaged"):
            ImageKind("r", "image_ref", JPEG, profile).keep(b"\x89PNG\r\n\x1a\n 12345678")


def test_a_fingerprint_covers_relation_column_profile_and_decoder() -> None:
    variants = [
        ImageKind(relation, column, decoder, profile).fingerprint
        for relation, column, decoder, profile in itertools.product(
            ["a", "b"],
            ["image_ref", "other"],
            DECODERS.values(),
            [
                sp.Raw(),
                sp.Raw(shorter_side=1),
                sp.profiles.Jpeg(shorter_side=1),
                sp.profiles.Jpeg(shorter_side=1, quality=80),
            ],
        )
    ]

    assert len(set(variants)) == len(variants)
    source = [ImageKind("a", "image_ref", decoder, sp.profiles.Original()).fingerprint for decoder in DECODERS.values()]
    assert len(set(source)) == 1  # bytes as they are serve every decoder


def test_a_lossy_profile_names_its_encoder() -> None:
    assert "simplejpeg" in str(ImageKind("a", "i", JPEG, sp.profiles.Jpeg()).facts()["encoder"])
    assert "encoder" not in ImageKind("a", "i", JPEG, sp.Raw()).facts()
