"""Masks keep the values of their files; what does not fit a mode is refused."""

from io import BytesIO

import numpy as np
import pytest
from PIL import Image

from spiral_stream.decoders.image.mask import MaskDecoder
from spiral_stream.decoders.limits import SampleLimits
from spiral_stream.errors import DataError

VALUES = np.random.default_rng(0).integers(0, 200, (30, 44), dtype=np.uint8)


def saved(image, kind="PNG", **options):
    out = BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def palette():
    image = Image.fromarray(VALUES % 20).convert("L")
    indexed = Image.new("P", image.size)
    indexed.putpalette([int(n) for n in np.random.default_rng(1).integers(0, 256, 768)])
    indexed.putdata(
        list(image.getdata()) if not hasattr(image, "get_flattened_data") else list(image.get_flattened_data())
    )
    return indexed


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "BMP"])
def test_gray_values_come_back(kind):
    data = saved(Image.fromarray(VALUES), kind)

    assert np.array_equal(MaskDecoder("L").decode(data)[:, :, 0], VALUES)
    assert MaskDecoder("L").size(data) == (30, 44)


@pytest.mark.parametrize("kind", ["PNG", "GIF"])
def test_a_palette_gives_its_indexes(kind):
    found = MaskDecoder("L").decode(saved(palette(), kind))

    assert found.shape == (30, 44, 1)
    assert np.array_equal(found[:, :, 0], VALUES % 20)


def test_one_bit_gives_zero_and_one():
    bits = Image.fromarray((VALUES > 100).astype(np.uint8) * 255).convert("1")

    assert np.array_equal(MaskDecoder("L").decode(saved(bits))[:, :, 0], VALUES > 100)


def test_sixteen_bits_come_back_whole():
    deep = VALUES.astype(np.uint16) * 300

    found = MaskDecoder("I;16").decode(saved(Image.fromarray(deep)))
    assert found.dtype == np.uint16
    assert np.array_equal(found[:, :, 0], deep)
    assert np.array_equal(MaskDecoder("I;16").decode(saved(Image.fromarray(VALUES)))[:, :, 0], VALUES)


def test_colours_come_back():
    pixels = np.random.default_rng(2).integers(0, 256, (9, 8, 3), dtype=np.uint8)

    assert np.array_equal(MaskDecoder("RGB").decode(saved(Image.fromarray(pixels))), pixels)
    assert np.array_equal(MaskDecoder("RGB").decode(saved(palette())), np.asarray(palette().convert("RGB")))


@pytest.mark.parametrize(
    ("image", "mode", "says"),
    [
        (Image.new("RGB", (4, 4)), "L", r'mask: the 4 x 4 file is of mode RGB.*mode="RGB" reads colours'),
        (Image.fromarray(VALUES.astype(np.uint16)), "L", r'mode="I;16" reads 16 bits'),
        (Image.new("LA", (4, 4)), "L", "mode LA.*gray or palette PNG"),
        (Image.new("L", (4, 4)), "RGB", "is of mode L, which mode='RGB' does not read"),
    ],
)
def test_a_file_of_another_mode_is_refused(image, mode, says):
    with pytest.raises(DataError, match=says):
        MaskDecoder(mode).decode(saved(image))


def test_damage_and_bombs_are_named():
    data = saved(Image.fromarray(VALUES))
    with pytest.raises(DataError, match=r"mask: the PNG .* is damaged"):
        MaskDecoder("L").decode(data[:-60])
    with pytest.raises(DataError, match=r"mask: the header claims 30 x 44 pixels, more than the 100"):
        MaskDecoder("L", SampleLimits(100, 1, 1 << 20)).decode(data)


@pytest.mark.parametrize("shape", [(30, 44), (44, 30), (10, 44)])
def test_shrinking_takes_values_and_makes_none(shape):
    mask = np.random.default_rng(3).choice(np.array([3, 77, 250], np.uint8), (*shape, 1))
    small = MaskDecoder("L").shrunk(mask, 12)

    assert min(small.shape[:2]) == min(12, *shape)
    assert set(np.unique(small)) <= {3, 77, 250}
