import subprocess
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simplejpeg
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from spiral_stream.decoders.image import region
from spiral_stream.decoders.image.image import decode_jpeg

pytestmark = pytest.mark.skipif(not region.available, reason="Pillow's wheel has no libjpeg-turbo to load here")


def photo(height: int, width: int, seed: int = 0) -> NDArray[np.uint8]:
    """Smooth colours with noise: every coefficient of the transform is at work."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width]
    waves = np.stack([np.sin(x / 9 + seed), np.cos(y / 7), np.sin((x + y) / 5)], axis=-1)
    return np.clip(128 + 90 * waves + rng.normal(0, 20, waves.shape), 0, 255).astype(np.uint8)


def located(images: list[bytes]) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Addresses and lengths of bytes that the caller holds."""
    views = [np.frombuffer(image, dtype=np.uint8) for image in images]
    addresses = np.array([view.ctypes.data for view in views], dtype=np.uint64)
    return addresses, np.array([len(view) for view in views], dtype=np.int64)


def pixels_of(
    images: list[bytes], boxes: list[tuple[int, int, int, int]], *, ours: bool = False
) -> list[NDArray[np.uint8]] | None:
    """What is decoded at each address, copied out by way of a strided view of memory; ``ours``: indexes are believed."""
    from spiral_stream.transforms.image.image import compile_image
    from spiral_stream.transforms.image.placement import Geometry

    believed = np.full(len(images), ours)
    found = region.decode_regions(*located(images), np.array(boxes, dtype=np.int32), believed)
    if found is None:
        return None
    addresses, strides = found
    program = compile_image([], dtype="uint8", layout="nhwc")
    out = []
    for i, (_, _, height, width) in enumerate(boxes):
        one = np.ones(1, dtype=np.int32)
        zero, whole_h, whole_w = 0 * one, height * one, width * one
        placed = Geometry(
            *(zero, zero, whole_h, whole_w, whole_h, whole_w, zero, zero, np.zeros(1, np.bool_), height, width)
        )
        pixels = np.empty((1, height, width, 3), dtype=np.uint8)
        program.render(placed, addresses[i : i + 1], strides[i : i + 1], whole_h, whole_w, pixels)
        out.append(pixels[0])
    return out


@st.composite
def crops(draw: st.DrawFn) -> tuple[bytes, tuple[int, int, int, int]]:
    height, width = draw(st.integers(1, 200)), draw(st.integers(1, 200))
    sampling = draw(st.sampled_from(["444", "422", "420", "440", "411", "Gray"]))
    pixels = photo(height, width, draw(st.integers(0, 3)))
    quality = draw(st.integers(20, 100))
    if sampling == "Gray":
        data = simplejpeg.encode_jpeg(np.ascontiguousarray(pixels[:, :, :1]), quality, "GRAY")
    else:
        data = simplejpeg.encode_jpeg(pixels, quality, "RGB", sampling)
    top, left = draw(st.integers(0, height - 1)), draw(st.integers(0, width - 1))
    return data, (top, left, draw(st.integers(1, height - top)), draw(st.integers(1, width - left)))


@given(crop=crops())
def test_a_region_has_the_pixels_of_a_full_decode(crop: tuple[bytes, tuple[int, int, int, int]]) -> None:
    data, box = crop
    top, left, height, width = box

    found = pixels_of([data], [box])

    assert found is not None
    assert np.array_equal(found[0], decode_jpeg(data)[top : top + height, left : left + width])


def test_many_images_decode_in_one_call() -> None:
    images = [simplejpeg.encode_jpeg(photo(90 + i, 140, i), 90, "RGB", "420") for i in range(12)]
    boxes = [(i, 2 * i, 40, 60 + i) for i in range(12)]

    found = pixels_of(images, boxes)

    assert found is not None
    for image, (top, left, height, width), pixels in zip(images, boxes, found, strict=True):
        assert np.array_equal(pixels, decode_jpeg(image)[top : top + height, left : left + width])


def test_threads_have_scratch_of_their_own() -> None:
    images = [simplejpeg.encode_jpeg(photo(120, 160, i), 90) for i in range(8)]
    expected = [decode_jpeg(image)[10:90, 20:120] for image in images]

    def decode(i: int) -> bool:
        found = pixels_of([images[i % 8]], [(10, 20, 80, 100)])
        return found is not None and np.array_equal(found[0], expected[i % 8])

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(decode, range(200)))


def test_sizes_are_read_from_eligible_headers_only() -> None:
    pixels = photo(60, 80)
    baseline = simplejpeg.encode_jpeg(pixels, 90)
    progressive, cmyk = BytesIO(), BytesIO()
    Image.fromarray(pixels).save(progressive, "JPEG", progressive=True)
    Image.fromarray(pixels).convert("CMYK").save(cmyk, "JPEG")
    images = [
        baseline,
        progressive.getvalue(),
        cmyk.getvalue(),
        baseline[:-1],
        baseline[:300],
        b"",
        b"\x89PNG\r\n\x1a\n",
    ]

    heights, widths = region.sizes(*located(images))

    assert heights.tolist() == [60, 0, 0, 0, 0, 0, 0]
    assert widths.tolist() == [80, 0, 0, 0, 0, 0, 0]


def test_damage_inside_the_region_goes_to_the_full_decoder() -> None:
    data = bytearray(simplejpeg.encode_jpeg(photo(100, 100), 90))
    data[len(data) // 4 : len(data) // 4 + 40] = b"\xff\xd9" * 20

    assert pixels_of([bytes(data)], [(0, 0, 100, 100)]) is None


@given(noise=st.binary(min_size=0, max_size=200), at=st.floats(0, 1))
def test_no_bytes_crash_the_decoder(noise: bytes, at: float) -> None:
    data = bytearray(simplejpeg.encode_jpeg(photo(40, 50), 90))
    place = int(at * len(data))
    data[place : place + len(noise)] = noise
    data += b"\xff\xd9"
    image = bytes(data)
    heights, widths = region.sizes(*located([image]))
    if heights[0] and heights[0] * int(widths[0]) < 1 << 20:
        region.decode_regions(*located([image]), np.array([[0, 0, heights[0], widths[0]]], dtype=np.int32))


# ---- the library

FIELDS = {
    "Errors": (
        "jpeg_error_mgr",
        {"exit": "error_exit", "emit": "emit_message", "print": "output_message", "warnings": "num_warnings"},
    ),
    "Decoder": (
        "jpeg_decompress_struct",
        {
            "errors": "err", "width": "image_width", "height": "image_height", "components": "num_components",
            "space": "jpeg_color_space", "out_space": "out_color_space", "scale_num": "scale_num", "dct": "dct_method",
            "fancy": "do_fancy_upsampling", "out_width": "output_width", "out_height": "output_height", "row": "output_scanline",
        },
    ),
}  # fmt: skip


@pytest.mark.skipif(not Path("/usr/include/jpeglib.h").exists(), reason="no header of libjpeg-turbo is installed here")
def test_fields_lie_where_the_library_has_them(tmp_path: Path) -> None:
    source = Path(region.__file__).parents[1].joinpath("_region.c").read_text("utf-8")
    declared = source[source.index("typedef struct {\n  void (*exit)") : source.index("} Decoder;")] + "} Decoder;"
    checks = [
        f'_Static_assert(offsetof({ours}, {name}) == offsetof(struct {theirs}, {other}), "{ours}.{name}");'
        for ours, (theirs, names) in FIELDS.items()
        for name, other in names.items()
    ]
    room = source[source.index("enum { ABI") : source.index("ROOM = 4096 };")] + "ROOM = 4096 };"
    headers = "#include <stddef.h>\n#include <stdio.h>\n#include <setjmp.h>\n#include <jpeglib.h>\n"
    version = '_Static_assert(JPEG_LIB_VERSION == ABI, "the version that is asked for");'
    file = tmp_path / "fields.c"
    file.write_text("\n".join([headers, room, declared, version, *checks]))
    command = ["gcc", "-std=gnu11", "-c", file, "-o", tmp_path / "fields.o"]
    built = subprocess.run(command, check=False, capture_output=True, text=True)
    assert not built.returncode, built.stderr


def test_a_library_that_gives_other_pixels_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    decode = region.decode_regions

    def shifted(*given: Any) -> Any:
        found = decode(*given)
        assert found is not None
        return found[0] + np.uint64(3), found[1]

    assert region.agrees()
    monkeypatch.setattr(region, "decode_regions", shifted)
    assert not region.agrees()
    monkeypatch.setattr(region, "decode_regions", lambda *_: None)
    assert not region.agrees()


@st.composite
def batches(draw: st.DrawFn) -> tuple[NDArray[np.bool_], NDArray[np.int32], NDArray[np.int32]]:
    count = draw(st.integers(0, 40))
    eligible = np.array(draw(st.lists(st.booleans(), min_size=count, max_size=count)), dtype=np.bool_)
    side = st.integers(1, 3_000)
    sizes_B2 = np.array(draw(st.lists(st.tuples(side, side), min_size=count, max_size=count)), dtype=np.int32)
    return eligible, sizes_B2.reshape(count, 2), np.hstack([np.zeros((count, 2), np.int32), sizes_B2.reshape(count, 2)])


@given(batch=batches())
def test_parts_are_of_one_kind_and_bounded(
    batch: tuple[NDArray[np.bool_], NDArray[np.int32], NDArray[np.int32]],
) -> None:
    eligible, sizes_B2, boxes_B4 = batch

    parts = list(region.together(eligible, sizes_B2[:, 0], sizes_B2[:, 1], boxes_B4))

    assert [at for part in parts for at in range(part.start, part.stop)] == list(range(len(eligible)))
    for part in parts:
        assert len(set(eligible[part].tolist())) == 1
        pixels = sizes_B2[part].astype(np.int64).prod(axis=1) * 3
        assert len(pixels) == 1 or pixels.sum() <= region.TOGETHER


def test_images_before_one_for_the_full_decoder_are_decoded() -> None:
    images = [simplejpeg.encode_jpeg(photo(60, 90, i), 90) for i in range(5)]
    damaged = bytearray(images[3])
    damaged[len(damaged) // 4 : len(damaged) // 4 + 40] = b"\xff\xd9" * 20
    images[3] = bytes(damaged)

    found = region.decode_regions(*located(images), np.tile(np.array([0, 0, 60, 90], np.int32), (5, 1)))

    assert found is not None
    assert len(found[0]) == len(found[1]) == 3


# ---- an index of the bits


def with_optimized_tables(data: bytes) -> bytes:
    """The same coefficients under Huffman tables that were made for them."""
    out = BytesIO()
    with Image.open(BytesIO(data)) as image:
        image.save(out, "JPEG", quality="keep", optimize=True)
    return out.getvalue()


@given(crop=crops(), optimized=st.booleans())
def test_an_index_changes_no_pixel(crop: tuple[bytes, tuple[int, int, int, int]], *, optimized: bool) -> None:
    data, box = crop
    data = with_optimized_tables(data) if optimized else data
    top, left, height, width = box

    indexed = bytes(region.indexed(data))
    found = pixels_of([indexed], [box], ours=True)

    pixels = decode_jpeg(data)
    assert np.array_equal(decode_jpeg(indexed), pixels)
    assert found is not None
    assert np.array_equal(found[0], pixels[top : top + height, left : left + width])


@pytest.mark.parametrize("sampling", ["444", "422", "420", "440", "Gray"])
def test_what_stands_above_a_crop_is_not_read(sampling: str) -> None:
    pixels = photo(200, 300)
    gray = sampling == "Gray"
    planes = np.ascontiguousarray(pixels[:, :, :1]) if gray else pixels
    data = simplejpeg.encode_jpeg(planes, 90, *(["GRAY"] if gray else ["RGB", sampling]))
    indexed = bytearray(region.indexed(data))
    assert len(data) < len(indexed) < 1.1 * len(data)
    begin = indexed.rindex(b"\xff\xda") + 40
    for at in range(begin, begin + 40):  # in the first rows; stuffing stays as it is
        if indexed[at] not in {0x00, 0xFE, 0xFF}:
            indexed[at] ^= 0x15
    crop = decode_jpeg(data)[120:180, 100:220]

    found = pixels_of([bytes(indexed)], [(120, 100, 60, 120)], ours=True)
    assert found is not None
    assert np.array_equal(found[0], crop)
    seen = pixels_of([bytes(indexed)], [(0, 0, 200, 300)], ours=True)
    assert seen is None or not np.array_equal(seen[0], decode_jpeg(data))


def test_an_index_that_others_made_is_replaced() -> None:
    data = simplejpeg.encode_jpeg(photo(100, 200), 90)
    indexed = bytes(region.indexed(data))
    wrong = bytearray(indexed)
    at = wrong.index(b"SpiralM") + 40
    wrong[at] ^= 0x55

    assert region.indexed(indexed) == indexed
    assert region.indexed(bytes(wrong)) == indexed
    found = pixels_of([bytes(wrong)], [(50, 60, 20, 90)])
    assert found is not None
    assert np.array_equal(found[0], decode_jpeg(data)[50:70, 60:150])


def test_only_jpegs_of_one_sequential_scan_have_an_index() -> None:
    pixels, progressive, restarts = photo(100, 120), BytesIO(), BytesIO()
    Image.fromarray(pixels).save(progressive, "JPEG", progressive=True)
    Image.fromarray(pixels).save(restarts, "JPEG", restart_marker_blocks=4)
    baseline = simplejpeg.encode_jpeg(pixels, 90)
    cut_short = baseline[: len(baseline) // 2] + b"\xff\xd9"
    for data in (progressive.getvalue(), restarts.getvalue(), baseline[:-1], cut_short, b"", b"\x89PNG\r\n"):
        assert region.indexed(data) == data


def test_an_index_leaves_what_a_file_says_of_itself() -> None:
    out, made = BytesIO(), Image.fromarray(photo(60, 80))
    exif = made.getexif()
    exif[0x0112] = 6
    made.save(out, "JPEG", quality=90, exif=exif, comment=b"a comment", icc_profile=b"a profile")
    with Image.open(BytesIO(region.indexed(out.getvalue()))) as read, Image.open(BytesIO(out.getvalue())) as written:
        assert read.getexif()[0x0112] == 6
        assert read.info["comment"] == written.info["comment"]
        assert read.info["icc_profile"] == written.info["icc_profile"]


@given(noise=st.binary(min_size=0, max_size=60), at=st.floats(0, 1), box=st.tuples(*[st.integers(0, 60)] * 4))
def test_no_bytes_crash_a_cut(noise: bytes, at: float, box: tuple[int, int, int, int]) -> None:
    data = bytearray(region.indexed(simplejpeg.encode_jpeg(photo(70, 90), 90)))
    place = int(at * len(data))
    data[place : place + len(noise)] = noise
    data[-2:] = b"\xff\xd9"
    image = bytes(data)
    heights, widths = region.sizes(*located([image]))
    if heights[0] and heights[0] * int(widths[0]) < 1 << 20:
        top, left = min(box[0], heights[0] - 1), min(box[1], widths[0] - 1)
        height, width = min(box[2] + 1, heights[0] - top), min(box[3] + 1, widths[0] - left)
        wanted = np.array([[top, left, height, width]], dtype=np.int32)
        region.decode_regions(*located([image]), wanted, np.ones(1, dtype=np.bool_))
    region.indexed(image)
