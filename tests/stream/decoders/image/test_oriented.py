import io

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageOps
from torchvision.io import ImageReadMode, decode_image

from spiral_stream.decoders.image.oriented import Oriented, orientation, turned
from spiral_stream.decoders.limits import SampleLimits
from spiral_stream.decoders.registry import decoder
from spiral_stream.errors import DataError

JPEG, ANY = Oriented(decoder("jpeg")), Oriented(decoder("image"))
PIXELS = np.random.default_rng(0).integers(0, 256, (20, 31, 3)).astype(np.uint8)


def photo(tag: int | None, kind: str = "JPEG", **options: object) -> bytes:
    exif = Image.Exif()
    exif[0x010F] = "a camera"  # an entry before the tag
    if tag is not None:
        exif[0x0112] = tag
    out = io.BytesIO()
    Image.fromarray(PIXELS).save(out, kind, exif=exif, **options)
    return out.getvalue()


@pytest.mark.filterwarnings("ignore:The image decoding")  # torchvision is the reference as long as it decodes
@pytest.mark.parametrize("tag", [None, *range(1, 9)])
def test_jpegs_are_turned_as_torchvision_and_pillow_turn_them(tag: int | None) -> None:
    data = photo(tag)
    encoded = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    reference = decode_image(encoded, ImageReadMode.RGB, apply_exif_orientation=True).permute(1, 2, 0).numpy()
    pixels = JPEG.decode(data)

    assert pixels.flags.c_contiguous
    assert np.array_equal(pixels, reference)
    assert np.array_equal(pixels, np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(data)))))
    assert np.array_equal(pixels, ANY.decode(data))
    assert JPEG.size(data) == ANY.size(data) == pixels.shape[:2]


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("tag", [1, 3, 6, 7])
def test_other_formats_are_turned_as_pillow_turns_them(kind: str, tag: int) -> None:
    data = photo(tag, kind, **({"lossless": True} if kind == "WEBP" else {}))
    pixels = ANY.decode(data)

    assert np.array_equal(pixels, np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB")))
    assert np.array_equal(pixels, turned(PIXELS, tag))
    assert ANY.size(data) == pixels.shape[:2]


@pytest.mark.parametrize("tag", [0, 9, 65535])
def test_a_tag_out_of_range_turns_nothing(tag: int) -> None:
    data = photo(tag)

    assert orientation(data) == 1
    assert np.array_equal(JPEG.decode(data), decoder("jpeg").decode(data))


@given(cut=st.integers(0, 400), changes=st.lists(st.tuples(st.integers(0, 120), st.integers(0, 255)), max_size=4))
def test_damaged_tags_raise_nothing(cut: int, changes: list[tuple[int, int]]) -> None:
    data = bytearray(photo(6))
    for at, value in changes:
        data[at] = value

    assert orientation(bytes(data[: len(data) - cut])) in range(1, 9)


def test_both_byte_orders_and_segments_before_the_tag_are_read() -> None:
    tags = b"MM\0*" + (8).to_bytes(4, "big") + (1).to_bytes(2, "big")
    tags += (0x0112).to_bytes(2, "big") + (3).to_bytes(2, "big") + (1).to_bytes(4, "big") + b"\0\x08\0\0"
    body = b"Exif\0\0" + tags
    exif = b"\xff\xe1" + (len(body) + 2).to_bytes(2, "big") + body
    plain = photo(None)
    comment = b"\xff\xff\xfe\0\x06note"  # with filling before it

    assert orientation(plain[:2] + comment + exif + plain[2:]) == 8


def test_limits_are_those_of_the_field() -> None:
    with pytest.raises(DataError, match="more than the 100 that a sample may have"):
        JPEG.within(SampleLimits(100, 1, 1 << 20)).decode(photo(6))
