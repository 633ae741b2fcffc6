import ctypes
import mmap
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchvision.transforms.v2 import functional as F  # noqa: N812  torchvision's own habit

from spiral_stream.transforms import _pixels
from tests.fixtures.examples import few
from tests.fixtures.torchvision_pixels import need_pixels_of_torchvision, resized_by_torchvision

side = st.integers(1, 150)
seed = st.integers(0, 2**32 - 1)
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
CONSTANTS = np.array([1 / 255, *MEAN, *STD], np.float32)


def noise(height, width, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


def tensor(image):
    return torch.from_numpy(np.ascontiguousarray(image)).permute(2, 0, 1)


def table_of(dtype):
    if dtype == "uint8":
        return np.empty(0, np.uint8)
    values = np.arange(256, dtype=np.float32) * CONSTANTS[0]
    return ((values - CONSTANTS[1:4, None]) / CONSTANTS[4:7, None]).astype(dtype)


def render(images, boxes, size, dtype="uint8", layout="nhwc", *, table=None, portable=False, out=None, cubic=False):
    count = len(images)
    addresses, strides = np.empty(count, np.uint64), np.empty(count, np.int64)
    heights, widths = np.empty(count, np.int32), np.empty(count, np.int32)
    _pixels.locate(images, addresses, strides, heights, widths)
    shape = (count, 3, *size) if layout == "nchw" else (count, *size, 3)
    out = np.empty(shape, dtype) if out is None else out
    table = table_of(dtype) if table is None else table
    boxes = np.ascontiguousarray(boxes, np.int32)
    first = layout == "nchw"
    _pixels.render(
        addresses, strides, heights, widths, boxes, out, *size, out.itemsize, first, table, CONSTANTS, portable, cubic
    )
    return out


@st.composite
def jobs(draw, longest=150):
    """An image, a box in it, a resized size, a window of that, a mirror."""
    side = st.integers(1, longest)
    height, width, resized_h, resized_w = draw(side), draw(side), draw(side), draw(side)
    box_h, box_w = draw(st.integers(1, height)), draw(st.integers(1, width))
    top, left = draw(st.integers(0, height - box_h)), draw(st.integers(0, width - box_w))
    out_h, out_w = draw(st.integers(1, resized_h)), draw(st.integers(1, resized_w))
    at_h, at_w = draw(st.integers(0, resized_h - out_h)), draw(st.integers(0, resized_w - out_w))
    flip = draw(st.booleans())
    box = (top, left, box_h, box_w, resized_h, resized_w, at_h, at_w, flip)
    return noise(height, width, draw(seed)), box, (out_h, out_w)


def by_torchvision(image, box, size, dtype, layout):
    top, left, box_h, box_w, resized_h, resized_w, at_h, at_w, flip = box
    out = resized_by_torchvision(F.crop(tensor(image), top, left, box_h, box_w), [resized_h, resized_w])
    out = out[:, at_h : at_h + size[0], at_w : at_w + size[1]]
    if flip:
        out = F.horizontal_flip(out)
    if dtype != "uint8":
        out = F.normalize(F.to_dtype(out, torch.float32, scale=True), MEAN, STD).to(getattr(torch, dtype))
    return out if layout == "nchw" else out.permute(1, 2, 0)


@given(height=side, width=side, to_height=side, to_width=side, seed=seed)
@few(50, 150)
def test_resize_gives_the_bits_of_torchvision(height, width, to_height, to_width, seed):
    image, target = noise(height, width, seed), np.empty((to_height, to_width, 3), np.uint8)
    _pixels.resize(image, target)

    need_pixels_of_torchvision(target, resized_by_torchvision(tensor(image), [to_height, to_width]).permute(1, 2, 0))


@pytest.mark.parametrize("portable", [False, True])
@given(height=side, width=side, to_height=side, to_width=side, seed=seed, contrast=st.booleans())
@few(50, 300)
def test_a_bicubic_resize_gives_the_bits_of_torchvision(portable, height, width, to_height, to_width, seed, contrast):
    image = noise(height, width, seed)
    image = np.where(image > 127, 255, 0).astype(np.uint8) if contrast else image  # what the filter overshoots is cut
    box = (0, 0, height, width, to_height, to_width, 0, 0, 0)
    out = render([image], [box], (to_height, to_width), portable=portable, cubic=True)[0]

    want = resized_by_torchvision(tensor(image), [to_height, to_width], "bicubic")
    need_pixels_of_torchvision(out, want.permute(1, 2, 0))


@pytest.mark.parametrize(
    ("source", "target"),
    [((1, 1), (300, 7)), ((2, 4000), (9, 3)), ((4000, 2), (1, 1)), ((3000, 3), (224, 224)), ((225, 224), (224, 224))],
)
def test_extreme_sizes_give_the_bits_of_torchvision(source, target):
    image, out = noise(*source), np.empty((*target, 3), np.uint8)
    _pixels.resize(image, out)

    need_pixels_of_torchvision(out, resized_by_torchvision(tensor(image), list(target)).permute(1, 2, 0))


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("dtype", ["uint8", "float16", "float32"])
@given(job=jobs())
@settings(max_examples=40)
def test_every_dtype_and_layout_gives_the_bits_of_torchvision(dtype, layout, job):
    image, box, size = job

    got = render([image], [box], size, dtype, layout)[0]

    need_pixels_of_torchvision(got, by_torchvision(image, box, size, dtype, layout), min(STD))


@given(job=jobs(), dtype=st.sampled_from(["uint8", "float16", "float32"]), layout=st.sampled_from(["nchw", "nhwc"]))
@few(40, 100)
def test_the_portable_path_gives_the_same_bits(job, dtype, layout):
    image, box, size = job

    fast, portable = (render([image], [box], size, dtype, layout, portable=flag) for flag in (False, True))

    assert fast.tobytes() == portable.tobytes()


@given(job=jobs(longest=40), item=st.sampled_from(["float16", "float32"]), layout=st.sampled_from(["nchw", "nhwc"]))
@settings(max_examples=30)
def test_a_table_that_is_not_the_arithmetic_is_looked_up(job, item, layout):
    image, box, size = job
    table = np.random.default_rng(1).standard_normal((3, 256)).astype(item)

    got = render([image], [box], size, item, layout, table=table)[0]
    bytes_hwc = render([image], [box], size)[0]

    expected = np.stack([table[c][bytes_hwc[:, :, c]] for c in range(3)], axis=0 if layout == "nchw" else 2)
    assert got.tobytes() == expected.tobytes()


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_batches_that_are_streamed_past_the_caches_are_the_same(dtype, layout):
    images = [noise(240, 250, seed) for seed in range(16)]
    boxes = [(3, 5, 200, 210 + i, 224, 224, 0, 0, i % 2) for i in range(16)]
    shape = (16, 3, 224, 224) if layout == "nchw" else (16, 224, 224, 3)
    memory = np.zeros(int(np.prod(shape)) * np.dtype(dtype).itemsize + 64, np.uint8)
    start = -memory.ctypes.data % 64
    out = memory[start : start + len(memory) - 64].view(dtype).reshape(shape)
    assert out.nbytes >= 4 << 20

    render(images, boxes, (224, 224), dtype, layout, out=out)

    for i, image in enumerate(images):
        assert out[i].tobytes() == render([image], [boxes[i]], (224, 224), dtype, layout)[0].tobytes()


@given(job=jobs(longest=40), at_end=st.booleans(), portable=st.booleans())
@few(25, 60)
def test_no_byte_outside_the_image_is_read(job, at_end, portable):
    image, (_, _, _, _, *rest), size = job
    box = (0, 0, *image.shape[:2], *rest)  # up to every edge
    page = mmap.PAGESIZE
    middle = -(-image.nbytes // page) * page
    with mmap.mmap(-1, middle + 2 * page) as memory:
        base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        start = page + (middle - image.nbytes if at_end else 0)
        memory[start : start + image.nbytes] = image.tobytes()
        protect = ctypes.CDLL(None, use_errno=True).mprotect
        for guard in (base, base + page + middle):
            assert protect(ctypes.c_void_p(guard), page, 0) == 0  # a read there kills the process
        out = np.empty((1, *size, 3), np.uint8)
        _pixels.render(
            np.array([base + start], np.uint64),
            np.array([image.strides[0]], np.int64),
            np.array([image.shape[0]], np.int32),
            np.array([image.shape[1]], np.int32),
            np.array([box], np.int32),
            out,
            *size,
            1,
            False,
            table_of("uint8"),
            CONSTANTS,
            portable,
        )

    assert np.array_equal(out, render([image], [box], size))


def test_threads_share_nothing():
    images = [noise(90 + i, 200 - i, i) for i in range(32)]
    boxes = [(i, 2, 50, 60 + i, 64, 48, 0, 0, i % 2) for i in range(32)]
    alone = [render([image], [box], (64, 48), "float16", "nchw") for image, box in zip(images, boxes, strict=True)]

    with ThreadPoolExecutor(4) as pool:
        for _ in range(5):
            runs = [pool.submit(render, images, boxes, (64, 48), "float16", "nchw") for _ in range(8)]
            for run in runs:
                assert run.result().tobytes() == np.concatenate(alone).tobytes()


@pytest.mark.parametrize(
    ("box", "found"),
    [
        ((0, 0, 11, 10, 4, 4, 0, 0, 0), "image 0: the crop box leaves the image"),
        ((1, 0, 10, 10, 4, 4, 0, 0, 0), "image 0: the crop box leaves the image"),
        ((-1, 0, 5, 5, 4, 4, 0, 0, 0), "image 0: the crop box leaves the image"),
        ((0, 0, 0, 5, 4, 4, 0, 0, 0), "image 0: the crop box leaves the image"),
        ((0, 0, 10, 10, 4, 4, 1, 0, 0), "image 0: the window leaves the resized image"),
        ((0, 0, 10, 10, 4, 4, 0, -1, 0), "image 0: the window leaves the resized image"),
        ((0, 0, 10, 10, 0, 4, 0, 0, 0), "image 0: resized sides must be 1 to 1048576"),
    ],
)
def test_boxes_that_do_not_fit_are_refused(box, found):
    with pytest.raises(ValueError, match=found):
        render([noise(10, 10)], [box], (4, 4))


def test_buffers_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="buffer lengths differ"):
        render([noise(10, 10)], [(0, 0, 10, 10, 4, 4, 0, 0, 0)], (4, 4), out=np.empty((2, 4, 4, 3), np.uint8))


@pytest.mark.parametrize(
    "image",
    [
        np.zeros((4, 4, 3), np.float32),
        np.zeros((4, 4, 4), np.uint8),
        np.zeros((4, 4), np.uint8),
        np.zeros((4, 4, 3), np.int8),
        np.zeros((3, 4, 4), np.uint8).transpose(1, 2, 0),
        np.zeros((4, 8, 3), np.uint8)[:, ::-1],
        np.zeros((4, 4, 3), np.uint8)[::-1],
    ],
)
def test_images_that_are_not_packed_bytes_are_refused(image):
    with pytest.raises(ValueError, match=r"image 1 is not uint8 .* numpy\.ascontiguousarray"):
        render([noise(4, 4), image], [(0, 0, 4, 4, 4, 4, 0, 0, 0)] * 2, (4, 4))


def test_rows_may_be_padded():
    image = noise(40, 60)[:, 7:50]

    assert np.array_equal(
        render([image], [(0, 0, 40, 43, 20, 20, 0, 0, 0)], (20, 20)),
        render([image.copy()], [(0, 0, 40, 43, 20, 20, 0, 0, 0)], (20, 20)),
    )
