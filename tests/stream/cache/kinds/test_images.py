"""What is kept of an image column: read of keep is what the profile says, and fingerprints cover exactly that."""

import itertools
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import spiral_stream as sp
from spiral_stream.cache.kinds.images import ImageKind
from spiral_stream.decoders.image.image import decode_jpeg, encode_jpeg, shrink
from spiral_stream.decoders.registry import DECODERS
from spiral_stream.errors import DataError

JPEG = DECODERS["jpeg"]
STRUCT = pa.struct([("uri", pa.utf8()), ("offset", pa.int64()), ("length", pa.int64())])


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


def test_a_file_of_many_images_is_opened_once_a_run_and_bad_references_cost_themselves_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pixels = np.arange(8 * 8 * 3, dtype=np.uint8).reshape(8, 8, 3)
    data = [encode_jpeg(pixels + at, 90) for at in range(16)]
    (tmp_path / "images.bin").write_bytes(b"".join(data))
    starts = np.cumsum([0, *map(len, data)])[:-1].tolist()
    named: list[dict[str, object] | None] = [
        {"uri": "images.bin", "offset": start, "length": len(each)} for start, each in zip(starts, data, strict=True)
    ]
    kind, opened, openings = ImageKind("r", "image_ref", JPEG, sp.Raw()), os.open, list[str]()

    def noted(path: object, *how: object, **named: object) -> int:
        openings.append(str(path))
        return opened(path, *how, **named)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", noted)
        together = kind.keep_rows(pa.table({"image_ref": pa.array(named, STRUCT)}), str(tmp_path))
    named[3], named[11] = None, {"uri": "images.bin", "offset": -1, "length": 9}
    left = kind.keep_rows(pa.table({"image_ref": pa.array(named, STRUCT)}), str(tmp_path))

    assert [each for each in openings if each.endswith("images.bin")] == [str(tmp_path / "images.bin")]
    assert bytes(together.payload) == b"".join(decode_jpeg(each).tobytes() for each in data)
    assert sorted(left.refused) == [3, 11]
    assert "null" in left.refused[3]
    assert bytes(left.payload) == b"".join(
        decode_jpeg(each).tobytes() for at, each in enumerate(data) if at not in (3, 11)
    )
