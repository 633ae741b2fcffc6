import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spiral_stream.errors import DataError, PlanError
from spiral_stream.seeding import mix64, uniforms
from spiral_stream.transforms.image.image import (
    TRANSFORMS,
    CenterCrop,
    RandomCrop,
    RandomHorizontalFlip,
    Resize,
    compile_image,
)

side = st.integers(1, 300)


def keys(count, start=0):
    return mix64(np.arange(start, start + count, dtype=np.uint64))


def geometry(steps, height, width, sample_keys):
    program = compile_image(steps, dtype="uint8", layout="nhwc")
    count = len(sample_keys)
    return program.geometry(np.full(count, height, np.int32), np.full(count, width, np.int32), sample_keys)


def pixels(steps, image, sample_keys):
    program = compile_image(steps, dtype="uint8", layout="nhwc")
    placed = geometry(steps, *image.shape[:2], sample_keys)
    out = np.empty((len(sample_keys), *program.shape(placed)), np.uint8)
    program.run([image] * len(sample_keys), sample_keys, out)
    return out


@given(height=side, width=side, data=st.data(), start=st.integers(0, 1_000))
def test_the_window_lies_inside_the_image_and_where_the_samples_bits_say(height, width, data, start):
    size = (data.draw(st.integers(1, height)), data.draw(st.integers(1, width)))

    placed = geometry([RandomCrop(size)], height, width, keys(9, start))

    u = uniforms(keys(9, start), "random_crop", 0, 2)
    assert placed.top.tolist() == np.floor(u[:, 0] * (height - size[0] + 1)).tolist()
    assert placed.left.tolist() == np.floor(u[:, 1] * (width - size[1] + 1)).tolist()
    assert (placed.top + size[0] <= height).all()
    assert (placed.left + size[1] <= width).all()
    assert (placed.out_h, placed.out_w) == size


@given(height=st.integers(20, 90), width=st.integers(20, 90), mirrored=st.booleans(), start=st.integers(0, 50))
def test_pixels_are_those_of_the_whole_resized_image(height, width, mirrored, start):
    image = np.random.default_rng(height * width).integers(0, 256, (height, width, 3), np.uint8)
    flip = (RandomHorizontalFlip(1.0),) if mirrored else ()
    whole = pixels([Resize(16), *flip], image, keys(4, start))

    cut = pixels([Resize(16), *flip, RandomCrop((9, 12))], image, keys(4, start))

    u = uniforms(keys(4, start), "random_crop", 0, 2)
    for i in range(4):
        top = int(u[i, 0] * (whole.shape[1] - 9 + 1))
        left = int(u[i, 1] * (whole.shape[2] - 12 + 1))
        assert (cut[i] == whole[i, top : top + 9, left : left + 12]).all()


def test_every_place_is_equally_likely():
    placed = geometry([RandomCrop(5)], 8, 7, keys(12_000))

    seen = np.bincount(placed.top * 3 + placed.left, minlength=12)

    assert len(seen) == 4 * 3
    assert (abs(seen - 1_000) < 5 * np.sqrt(1_000)).all()


def test_frames_of_one_clip_get_one_window():
    placed = geometry([Resize(64), RandomCrop(56)], 100, 140, np.repeat(keys(3), 8))

    places = np.stack([placed.window_top, placed.window_left], 1).reshape(3, 8, 2)
    assert (places == places[:, :1]).all()
    assert len(np.unique(places[:, 0], axis=0)) == 3


def test_evaluation_takes_the_middle():
    assert RandomCrop((10, 12)).evaluation() == (CenterCrop((10, 12)),)
    assert not RandomCrop(10).deterministic


def test_it_is_known_by_its_name():
    assert TRANSFORMS["random_crop"] is RandomCrop


def test_a_small_image_is_refused_with_the_way_out():
    with pytest.raises(
        DataError, match=r"RandomCrop: image 1 .* is 30 x 20 .* the 32 x 32 asked for. Put Resize\(32\)"
    ):
        compile_image([RandomCrop(32)], dtype="uint8", layout="nhwc").geometry(
            np.array([40, 30], np.int32), np.array([40, 20], np.int32), keys(2)
        )


@pytest.mark.parametrize("size", [0, -3, "7", (1, 2, 3), 1.5])
def test_a_size_that_is_none_is_refused(size):
    with pytest.raises(PlanError, match=r"RandomCrop: size is .*. Give a whole number of pixels or \(height, width\)"):
        RandomCrop(size)
