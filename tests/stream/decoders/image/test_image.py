import contextlib
import io
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torchvision.io import ImageReadMode, decode_image

from spiral_stream.decoders.image.image import codec_version, decode_jpeg, encode_jpeg, shrink
from spiral_stream.decoders.limits import IMAGES
from spiral_stream.decoders.registry import decoder
from spiral_stream.errors import DataError, PlanError
from tests.fixtures.torchvision_pixels import need_pixels_of_torchvision, resized_by_torchvision

JPEG, ANY = decoder("jpeg"), decoder("image")


def photo(height=75, width=100):
    """A smooth picture with some noise, so that JPEG has something to do."""
    y, x = np.mgrid[0:height, 0:width]
    smooth = np.stack([x * 2 % 256, y * 3 % 256, (x + y) % 256], axis=2)
    return np.clip(smooth + np.random.default_rng(0).normal(0, 9, smooth.shape), 0, 255).astype(np.uint8)


def encoded(kind="JPEG", mode="RGB", **options):
    out = io.BytesIO()
    Image.fromarray(photo()).convert(mode).save(out, kind, **options)
    return out.getvalue()


def by_torchvision(data):
    return (
        decode_image(torch.frombuffer(bytearray(data), dtype=torch.uint8), ImageReadMode.RGB).permute(1, 2, 0).numpy()
    )


@pytest.mark.filterwarnings("ignore:The image decoding")  # torchvision is the reference as long as it decodes
@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"quality": 97, "subsampling": 0}, {"subsampling": 1}])
def test_jpegs_decode_to_the_bits_of_torchvision_and_pillow(mode, options):
    data = encoded(mode=mode, **options)

    pixels = JPEG.decode(data)

    assert pixels.dtype == np.uint8
    assert pixels.flags.c_contiguous
    assert np.array_equal(pixels, by_torchvision(data))
    assert np.array_equal(pixels, ANY.decode(data))
    assert JPEG.size(data) == ANY.size(data) == pixels.shape[:2]


def test_any_buffer_may_hold_the_bytes():
    data = encoded()
    expected = decode_jpeg(data)

    for view in (memoryview(data), memoryview(pa.py_buffer(data)), memoryview(np.frombuffer(data, np.int8))):
        assert np.array_equal(JPEG.decode(view), expected)
        assert np.array_equal(ANY.decode(view), expected)


def test_an_exif_orientation_is_ignored():
    exif = Image.Exif()
    exif[0x0112] = 6  # a quarter turn

    assert np.array_equal(JPEG.decode(encoded(exif=exif)), JPEG.decode(encoded()))


def test_unusual_chroma_subsampling_is_decoded():
    data = bytearray(encoded(subsampling=0))
    data[data.index(b"\xff\xc0") + 11] = 0x31  # luma three times as wide as chroma, which TurboJPEG has no name for

    assert JPEG.decode(bytes(data)).shape == (75, 100, 3)
    assert JPEG.size(bytes(data)) == (75, 100)


@pytest.mark.parametrize("kind", ["PNG", "GIF", "BMP", "TIFF", "WEBP"])
def test_other_formats_are_read_by_either_decoder(kind):
    data = encoded(kind, **({"lossless": True} if kind == "WEBP" else {}))

    assert np.array_equal(JPEG.decode(data), ANY.decode(data))
    assert JPEG.size(data) == ANY.size(data)
    assert ANY.decode(data).shape == (75, 100, 3)
    assert ANY.size(data) == (75, 100)
    if kind != "GIF":
        assert np.array_equal(ANY.decode(data), photo())


def test_sixteen_bit_gray_keeps_its_high_byte():
    deep = np.arange(64, dtype=np.uint16).reshape(8, 8) * 1000
    out = io.BytesIO()
    Image.fromarray(deep).save(out, "PNG")

    assert np.array_equal(ANY.decode(out.getvalue()), np.repeat((deep >> 8).astype(np.uint8)[:, :, None], 3, axis=2))


def test_pixels_without_an_agreed_range_are_refused():
    out = io.BytesIO()
    Image.fromarray(np.ones((4, 4), np.float32)).save(out, "TIFF")

    with pytest.raises(DataError, match=r"4 x 4 pixels of mode F cannot be shown.* Convert it, or filter it out"):
        ANY.decode(out.getvalue())


@pytest.mark.parametrize("codec", [JPEG, ANY])
@pytest.mark.parametrize(
    ("data", "found"),
    [
        (None, r"the value is null. Filter it out before sample, with ~col\(\.\.\.\)\.is_null\(\)"),
        (b"", "the value is empty"),
        (b"<html>404", r"9 bytes.* Check the column or the file"),
        (b"\xff\xd8\xff", "3 bytes"),
    ],
)
def test_bytes_that_are_no_image_say_what_they_are(codec, data, found):
    with pytest.raises(DataError, match=f"^{codec.NAME}: .*{found}"):
        codec.decode(data)
    with pytest.raises(DataError, match=f"^{codec.NAME}: .*{found}"):
        codec.size(data)


@given(keep=st.floats(0.05, 0.999), progressive=st.booleans())
@settings(max_examples=40)
def test_a_truncated_jpeg_is_an_error_and_never_grey_pixels(keep, progressive):
    data = encoded(progressive=progressive)
    cut = data[: int(keep * len(data))]

    with pytest.raises(DataError, match=r"(?i:fetch it again), (or )?filter it out"):
        JPEG.decode(cut)


def test_a_truncated_jpeg_says_how_far_it_goes():
    data = encoded()

    with pytest.raises(DataError, match=r"the 75 x 100 image ends before its pixels are complete, 1,000 bytes"):
        JPEG.decode(data[:1000])
    with pytest.raises(DataError, match=r"the PNG of 9,000 bytes is damaged .*(?i:fetch it again)"):
        ANY.decode(encoded("PNG")[:9000])


def test_damage_inside_a_jpeg_is_an_error_and_pillow_reads_what_is_left():
    data = encoded()
    data = data[:-2] + bytes(range(40)) + data[-2:]  # 40 bytes too many before the end

    with pytest.raises(DataError, match=r'the 75 x 100 image is damaged.*take what can be read with decode="image"'):
        JPEG.decode(data)
    assert ANY.decode(data).shape == (75, 100, 3)


def test_a_header_that_claims_too_much_is_refused_before_memory_is_taken():
    data = bytearray(encoded())
    at = data.index(b"\xff\xc0") + 5
    data[at : at + 4] = (65_000).to_bytes(2, "big") * 2

    with pytest.raises(DataError, match=f"claims 65000 x 65000 pixels, more than the {IMAGES.pixels:,}"):
        JPEG.decode(bytes(data))


@given(st.binary(min_size=1, max_size=200), st.integers(0, 3000))
def test_damaged_bytes_give_pixels_or_a_data_error(junk, at):
    data = encoded()
    data = data[:at] + junk + data[at + len(junk) :]

    for codec in (JPEG, ANY):
        with contextlib.suppress(DataError):
            assert codec.decode(data).shape[2] == 3


def test_decoding_releases_the_gil():
    data = encode_jpeg(np.tile(photo(), (40, 40, 1)), 90)  # 3,000 x 4,000, about 0.1 s
    begun, done = threading.Event(), threading.Event()

    def work():
        begun.set()
        JPEG.decode(data)
        done.set()

    before = sys.getswitchinterval()
    sys.setswitchinterval(60)  # only a thread that gives the GIL away lets another run
    try:
        worker = threading.Thread(target=work, name="decoder")
        worker.start()
        begun.wait()
        ran_beside_it = not done.is_set()
        worker.join()
    finally:
        sys.setswitchinterval(before)

    assert ran_beside_it


def test_threads_share_a_decoder():
    data = [encoded(quality=quality) for quality in range(70, 90)]
    expected = [JPEG.decode(each).tobytes() for each in data]

    with ThreadPoolExecutor(4) as pool:
        for _ in range(3):
            assert [pixels.tobytes() for pixels in pool.map(JPEG.decode, data)] == expected


@pytest.mark.parametrize("name", ["jpg", "png", ""])
def test_an_unknown_decoder_names_the_known_ones(name):
    with pytest.raises(PlanError, match=f"decode: '{name}' is unknown; .*known are jpeg, image"):
        decoder(name)


def test_decoders_are_equal_values():
    assert decoder("jpeg") == decoder("jpeg") != decoder("image")


@given(height=st.integers(1, 120), width=st.integers(1, 120), shorter=st.integers(1, 100))
def test_shrink_only_ever_shrinks_and_follows_the_reference(height, width, shorter):
    pixels = photo(height, width)

    small = shrink(pixels, shorter)

    if min(height, width) <= shorter:
        assert small is pixels
    else:
        size = [shorter * side // min(height, width) for side in (height, width)]
        reference = resized_by_torchvision(torch.from_numpy(pixels).permute(2, 0, 1), size)
        need_pixels_of_torchvision(small, reference.permute(1, 2, 0))


def test_encoding_is_repeatable_and_close():
    data = encode_jpeg(photo(), 90)

    assert data == encode_jpeg(photo(), 90)
    assert np.abs(decode_jpeg(data).astype(int) - photo()).mean() < 8
    assert len(encode_jpeg(photo(), 50)) < len(data)
    assert codec_version().startswith("simplejpeg ")


@pytest.mark.parametrize("quality", [0, 101])
def test_a_quality_out_of_range_is_refused(quality):
    with pytest.raises(ValueError, match="it must be from 1 to 100"):
        encode_jpeg(photo(), quality)


@pytest.mark.parametrize("name", ["jpeg", "image"])
def test_what_is_wrong_is_said_alike_every_time(name: str) -> None:
    """A message is kept beside caches and in the quarantine, so it tells nothing of the process that met the bytes."""
    said = set()
    for _ in range(2):
        with pytest.raises(DataError, match=r"JPEG of 3 bytes is damaged.*its header cannot be read") as caught:
            decoder(name).decode(bytearray(b"\xff\xd8\xff"))
        said.add(str(caught.value))
    assert len(said) == 1


def written(array, kind="PNG", mode=None):
    out = io.BytesIO()
    Image.fromarray(array, mode).save(out, kind) if mode else Image.fromarray(array).save(out, kind)
    return out.getvalue()


def test_sixteen_bit_gray_keeps_its_high_byte_so_that_widened_eight_bit_images_come_back():
    ramp = np.arange(65_536, dtype=np.uint16).reshape(256, 256)
    gray = np.random.default_rng(1).integers(0, 256, (9, 7)).astype(np.uint16)

    for kind in ("PNG", "TIFF"):
        assert np.array_equal(ANY.decode(written(ramp, kind))[:, :, 0], ramp >> 8)
        assert np.array_equal(ANY.decode(written(gray * 257, kind)), np.repeat(gray[:, :, None], 3, axis=2))


def test_sixteen_bit_colour_keeps_its_high_byte():
    import zlib

    rows = np.random.default_rng(2).integers(0, 65_536, (4, 5, 3)).astype(">u2")
    lines = b"".join(b"\0" + row.tobytes() for row in rows)
    header = (5).to_bytes(4, "big") + (4).to_bytes(4, "big") + bytes([16, 2, 0, 0, 0])

    def chunk(kind, body):
        return len(body).to_bytes(4, "big") + kind + body + zlib.crc32(kind + body).to_bytes(4, "big")

    data = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(lines)) + chunk(b"IEND", b"")

    assert np.array_equal(ANY.decode(data), (rows >> 8).astype(np.uint8))


def test_alpha_is_dropped_and_the_colours_below_it_stay():
    pixels = np.dstack([photo(6, 5), np.random.default_rng(3).integers(0, 256, (6, 5)).astype(np.uint8)])
    gray = np.ascontiguousarray(pixels[:, :, [0, 3]])

    for kind in ("PNG", "TIFF"):
        assert np.array_equal(ANY.decode(written(pixels, kind)), pixels[:, :, :3])
    assert np.array_equal(ANY.decode(written(gray)), np.repeat(gray[:, :, :1], 3, axis=2))


def test_thirty_two_bit_images_are_refused():
    for array in (np.zeros((4, 5), np.int32), np.zeros((4, 5), np.float32)):
        with pytest.raises(DataError, match="32 bits have no agreed range"):
            ANY.decode(written(array, "TIFF"))
