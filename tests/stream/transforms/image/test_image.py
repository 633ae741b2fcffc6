import hashlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F  # noqa: N812  torchvision's own habit

from spiral_stream.errors import DataError, PlanError
from spiral_stream.seeding import mix64
from spiral_stream.transforms.image.image import (
    CenterCrop,
    Normalize,
    RandomHorizontalFlip,
    RandomResizedCrop,
    Resize,
    compile_image,
)
from tests.fixtures.torchvision_pixels import need_pixels_of_torchvision

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
side = st.integers(1, 400)
TRAIN = (RandomResizedCrop(32), RandomHorizontalFlip(), Normalize(MEAN, STD))


def noise(height, width, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


def tensor(image):
    return torch.from_numpy(np.ascontiguousarray(image)).permute(2, 0, 1)


def keys(count, start=0):
    return mix64(np.arange(start, start + count, dtype=np.uint64))


def sizes(*shapes):
    heights, widths = zip(*shapes, strict=True)
    return np.array(heights, np.int32), np.array(widths, np.int32)


def run(transforms, images, sample_keys=None, dtype="float16", layout="nchw"):
    program = compile_image(transforms, dtype=dtype, layout=layout)
    sample_keys = keys(len(images)) if sample_keys is None else sample_keys
    heights, widths = sizes(*(image.shape[:2] for image in images))
    out = np.empty((len(images), *program.shape(program.geometry(heights, widths, sample_keys))), dtype)
    program.run(images, sample_keys, out)
    return out


def reference(image, steps, geometry=None, i=0):
    """The same chain by torchvision, with the boxes and mirrors that were drawn."""
    out = tensor(image)
    for step in steps:
        if isinstance(step, RandomResizedCrop):
            box = [int(field[i]) for field in (geometry.top, geometry.left, geometry.crop_h, geometry.crop_w)]
            out = F.resized_crop(out, *box, [step.size, step.size], antialias=True)
        elif isinstance(step, RandomHorizontalFlip):
            out = F.horizontal_flip(out) if geometry.flip[i] else out
        elif isinstance(step, Resize):
            out = v2.Resize(step.size, antialias=True)(out)
        elif isinstance(step, CenterCrop):
            out = v2.CenterCrop(step.size)(out)
        else:
            out = F.normalize(F.to_dtype(out, torch.float32, scale=True), list(step.mean), list(step.std))
    return out


@given(st.lists(st.tuples(side, side), min_size=1, max_size=6), st.integers(0, 1_000))
def test_a_training_chain_gives_the_bits_of_torchvision(shapes, start):
    images = [noise(h, w, h * w) for h, w in shapes]
    drawn = compile_image(TRAIN, dtype="float16", layout="nchw").geometry(*sizes(*shapes), keys(len(images), start))

    got = run(TRAIN, images, keys(len(images), start))

    for i, image in enumerate(images):
        need_pixels_of_torchvision(got[i], reference(image, TRAIN, drawn, i).half(), min(STD))


@given(height=st.integers(20, 300), width=st.integers(20, 300), shorter=st.integers(20, 120), crop=st.integers(1, 20))
def test_an_evaluation_chain_gives_the_bits_of_torchvision(height, width, shorter, crop):
    steps = (Resize(shorter), CenterCrop((crop, 20)), Normalize(MEAN, STD))
    image = noise(height, width)

    got = run(steps, [image], dtype="float32")[0]

    need_pixels_of_torchvision(got, reference(image, steps), min(STD))


@given(height=st.integers(31, 90), width=st.integers(31, 90), flips=st.integers(0, 3), start=st.integers(0, 99))
def test_mirrors_and_windows_in_any_order_give_the_bits_of_torchvision(height, width, flips, start):
    flip = RandomHorizontalFlip(1.0)
    steps = (CenterCrop((31, 30)), Resize((40, 37)), *[flip] * flips, CenterCrop((20, 24)), flip, CenterCrop(7))
    image = noise(height, width, start)

    got = run(steps, [image], dtype="uint8")[0]

    out = v2.Resize((40, 37), antialias=True)(v2.CenterCrop((31, 30))(tensor(image)))
    for _ in range(flips):
        out = F.horizontal_flip(out)
    out = v2.CenterCrop(7)(F.horizontal_flip(v2.CenterCrop((20, 24))(out)))
    need_pixels_of_torchvision(got, out)


@given(height=side, width=side, start=st.integers(0, 10_000), low=st.floats(0.01, 0.5), wide=st.floats(1.0, 40.0))
@settings(max_examples=200)
def test_boxes_lie_in_the_image(height, width, start, low, wide):
    program = compile_image([RandomResizedCrop(8, (low, 1.0), (1 / wide, wide))], dtype="uint8", layout="nchw")

    at = program.geometry(*sizes(*[(height, width)] * 32), keys(32, start))

    assert at.top.min() >= 0
    assert at.left.min() >= 0
    assert at.crop_h.min() >= 1
    assert at.crop_w.min() >= 1
    assert (at.top + at.crop_h).max() <= height
    assert (at.left + at.crop_w).max() <= width


@given(st.permutations(range(9)), st.integers(1, 8))
def test_draws_belong_to_the_sample_and_not_to_the_batch(order, cut):
    images = [noise(30 + 5 * i, 60 - 4 * i, i) for i in range(9)]
    whole = run(TRAIN, images)

    permuted = run(TRAIN, [images[i] for i in order], keys(9)[list(order)])
    parts = np.concatenate([run(TRAIN, images[:cut], keys(9)[:cut]), run(TRAIN, images[cut:], keys(9)[cut:])])

    assert permuted.tobytes() == whole[list(order)].tobytes()
    assert parts.tobytes() == whole.tobytes()


def test_threads_share_one_program():
    images = [noise(50, 60, i) for i in range(16)]
    program = compile_image(TRAIN, dtype="float16", layout="nhwc")
    expected = run(TRAIN, images, layout="nhwc").tobytes()

    def once(_):
        out = np.empty((16, *program.output_shape), np.float16)
        program.run(images, keys(16), out)
        return out.tobytes()

    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(once, range(24))) == {expected}


def test_pixels_are_read_where_they_lie():
    images = [noise(20, 30, 1), noise(25, 22, 2)]
    memory = b"".join(image.tobytes() for image in images)
    base = np.frombuffer(memory, np.uint8).ctypes.data
    program = compile_image(TRAIN, dtype="float16", layout="nchw")
    out = np.empty((2, *program.output_shape), np.float16)

    starts = np.array([base, base + images[0].nbytes], np.uint64)
    program.run_at(starts, np.array([90, 66]), *sizes((20, 30), (25, 22)), keys(2), out)

    assert out.tobytes() == run(TRAIN, images).tobytes()


@pytest.mark.parametrize("shape", [(256, 341), (500, 375), (100, 900)])
def test_boxes_are_distributed_as_torchvision_draws_them(shape):
    theirs = v2.RandomResizedCrop(224)
    torch.manual_seed(0)
    image = torch.empty(3, *shape, dtype=torch.uint8)
    boxes = [theirs.make_params([image]) for _ in range(1_500)]
    height, width = (np.array([box[name] for box in boxes], float) for name in ("height", "width"))
    program = compile_image([RandomResizedCrop(224)], dtype="uint8", layout="nchw")
    ours = program.geometry(*sizes(*[shape] * 6_000), keys(6_000))

    def features(height, width, top):
        area, ratio = height * width / (shape[0] * shape[1]), np.log(width / height)
        return np.stack([area, area**2, ratio, ratio**2, top / shape[0]])

    a = features(height, width, np.array([box["top"] for box in boxes], float))
    b = features(ours.crop_h.astype(float), ours.crop_w.astype(float), ours.top.astype(float))
    error = np.sqrt(a.var(axis=1) / a.shape[1] + b.var(axis=1) / b.shape[1])
    assert (np.abs(a.mean(axis=1) - b.mean(axis=1)) < 4 * error).all()


def test_mirrors_come_with_their_probability_and_independently():
    program = compile_image([RandomHorizontalFlip(0.3)], dtype="uint8", layout="nchw")
    twice = compile_image([RandomHorizontalFlip(), RandomHorizontalFlip()], dtype="uint8", layout="nchw")

    assert abs(program.geometry(*sizes(*[(4, 4)] * 20_000), keys(20_000)).flip.mean() - 0.3) < 0.015
    assert abs(twice.geometry(*sizes(*[(4, 4)] * 20_000), keys(20_000)).flip.mean() - 0.5) < 0.015


def test_boxes_of_known_keys_stay_what_they_are():
    at = compile_image(TRAIN, dtype="float16", layout="nchw").geometry(
        *sizes(*[(375, 500), (256, 341), (90, 1000), (1000, 90)] * 64), keys(256)
    )

    assert at.boxes()[:2].tolist() == [[11, 163, 264, 233, 32, 32, 0, 0, 0], [59, 112, 126, 128, 32, 32, 0, 0, 1]]
    assert hashlib.sha256(at.boxes().astype("<i4").tobytes()).hexdigest()[:16] == "23c0af227a69c676"


@given(height=side, width=side, size=st.integers(1, 300))
def test_resize_follows_the_size_rule_of_torchvision(height, width, size):
    at = compile_image([Resize(size)], dtype="uint8", layout="nchw").geometry(*sizes((height, width)), keys(1))

    assert (at.out_h, at.out_w) == v2.Resize(size)(torch.empty(1, height, width, dtype=torch.uint8)).shape[1:]


def test_floats_without_normalize_are_scaled_to_one():
    image = noise(9, 9)

    got = run([Resize((5, 6))], [image], dtype="float32")[0]

    expected = F.to_dtype(v2.Resize((5, 6), antialias=True)(tensor(image)), torch.float32, scale=True)
    need_pixels_of_torchvision(got, expected)


@pytest.mark.parametrize(
    ("steps", "shape"),
    [
        ([], None),
        ([Resize(8)], None),
        ([RandomHorizontalFlip()], None),
        ([Resize((8, 9))], (3, 8, 9)),
        ([RandomResizedCrop((8, 9))], (3, 8, 9)),
        ([Resize(20), CenterCrop(7)], (3, 7, 7)),
        ([CenterCrop((10, 20)), Resize(5)], (3, 5, 10)),
    ],
)
def test_the_output_shape_is_known_when_the_chain_fixes_it(steps, shape):
    program = compile_image(steps, dtype="uint8", layout="nchw")

    assert program.output_shape == shape
    placed = program.geometry(*sizes((30, 40)), keys(1))
    assert shape is None or program.shape(placed) == shape


def test_a_chain_that_fixes_no_size_needs_equal_images():
    images = [noise(20, 30, i) for i in range(3)]

    assert np.array_equal(run([], images, dtype="uint8", layout="nhwc"), np.stack(images))
    with pytest.raises(DataError, match=r"20 x 30 and 20 x 31 \(image 1 .*\)\. End the chain with Resize") as caught:
        run([], [noise(20, 30), noise(20, 31)], dtype="uint8")
    assert caught.value.row == 1


def test_a_crop_larger_than_the_image_is_an_error_with_the_way_out():
    with pytest.raises(
        DataError, match=r"image 1 of the call is 20 x 40 .* Put Resize\(32\) or larger before"
    ) as caught:
        run([CenterCrop(32)], [noise(40, 40), noise(20, 40)], dtype="uint8")
    assert caught.value.row == 1
    run([Resize(32), CenterCrop(32)], [noise(40, 40), noise(20, 40)], dtype="uint8")


def test_no_images_are_no_work():
    program = compile_image(TRAIN, dtype="float16", layout="nchw")

    program.run([], keys(0), np.empty((0, 3, 32, 32), np.float16))


@pytest.mark.parametrize(
    "out",
    [
        np.empty((2, 3, 32, 32), np.float32),
        np.empty((2, 3, 31, 32), np.float16),
        np.empty((4, 3, 32, 32), np.float16)[::2],
    ],
)
def test_a_target_that_does_not_fit_is_refused(out):
    program = compile_image(TRAIN, dtype="float16", layout="nchw")

    with pytest.raises(ValueError, match=r"Give a C-contiguous float16 array of shape \(2, 3, 32, 32\)"):
        program.run([noise(9, 9), noise(9, 9)], keys(2), out)


@pytest.mark.parametrize(
    ("steps", "options", "way_out"),
    [
        ([Normalize(MEAN, STD), CenterCrop(3)], {}, "Put Normalize last"),
        ([Normalize(MEAN, STD)], {"dtype": "uint8"}, "Ask for dtype float16, bfloat16 or float32, or drop Normalize"),
        ([], {"dtype": "int8"}, "known are uint8, float16, bfloat16, float32"),
        ([], {"layout": "chwn"}, "known are nchw, nhwc"),
        ([Resize(4), RandomResizedCrop(4)], {}, "Keep one"),
        ([RandomHorizontalFlip(), Resize(4)], {}, "Put RandomHorizontalFlip after Resize"),
        (["resize"], {}, r"'resize' is the name of a transform; a chain takes transforms. Give Resize\(\.\.\.\)"),
        ([Resize], {}, r"Resize'> is a class; a chain takes transforms. Give Resize\(\.\.\.\)"),
        (["rotate"], {}, "'rotate' is not an image transform. Give one of RandomResizedCrop, .*, with its arguments"),
    ],
)
def test_illegal_chains_are_refused_with_the_way_out(steps, options, way_out):
    with pytest.raises(PlanError, match=way_out):
        compile_image(steps, **({"dtype": "float16", "layout": "nchw"} | options))


def test_what_draws_says_so():
    assert not compile_image(TRAIN, dtype="float16", layout="nchw").deterministic
    assert compile_image([Resize(4), Normalize(MEAN, STD)], dtype="float16", layout="nchw").deterministic
    assert RandomHorizontalFlip(0).deterministic
    assert not RandomHorizontalFlip().deterministic


def test_normalize_without_a_dtype_means_float32(tmp_path):
    import pyarrow as pa
    import simplejpeg

    import spiral_stream as sp

    jpegs = [simplejpeg.encode_jpeg(np.full((24, 24, 3), 9 * row, np.uint8)) for row in range(6)]
    catalog = sp.connect(str(tmp_path / "catalog"))
    table = pa.table({"id": range(6), "image": pa.array(jpegs, pa.large_binary())})
    catalog.register("d", sp.Arrow(table), identity="id", semantic={"image": "image/jpeg-ref"})

    def pixels(*transforms, **options):
        field = sp.Stack("image", decode="jpeg", transforms=[sp.transforms.CenterCrop(16), *transforms], **options)
        plan = catalog.table("d").sample(order=sp.Sequential()).collate(batch_size=6, fields={"image": field})
        with plan.to_numpy() as stream:
            return next(iter(stream))["image"].copy()

    for more in ([], [sp.transforms.ColorJitter(brightness=0.4)]):
        plain = pixels(*more, sp.Normalize(MEAN, STD))
        assert plain.dtype == np.float32
        assert np.array_equal(plain, pixels(*more, sp.Normalize(MEAN, STD), dtype="float32"))
    assert pixels().dtype == np.uint8
    assert pixels(sp.Normalize(MEAN, STD), dtype="float16").dtype == np.float16
    with pytest.raises(PlanError, match="Normalize has no place in uint8"):
        pixels(sp.Normalize(MEAN, STD), dtype="uint8")
