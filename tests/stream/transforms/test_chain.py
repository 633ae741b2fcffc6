"""Chains of steps that move boxes and steps that change pixels."""

import numpy as np
import pytest

import spiral_stream as sp
from spiral_stream.errors import DataError, PlanError
from spiral_stream.seeding import sample_keys, transform_keys
from spiral_stream.transforms.chain import ImageChain, as_steps, compile_chain, compile_mask
from spiral_stream.transforms.image.image import ImageProgram, compile_image
from tests.fixtures.scenes import smooth

CROP, FLIP, JITTER = sp.RandomResizedCrop(40), sp.RandomHorizontalFlip(), sp.transforms.ColorJitter(0.4, 0.4, 0.4, 0.1)
NORMALIZE = sp.Normalize((0.4, 0.5, 0.6), (0.2, 0.25, 0.3))
IMAGES = [smooth(60 + 5 * n, 90 - 4 * n, seed=n) for n in range(5)]
KEYS = sample_keys(1, 0, np.arange(10, dtype=np.uint64).reshape(5, 2), np.uint64(0))


def run(steps, dtype="uint8", layout="nhwc", images=IMAGES):
    program = compile_chain(as_steps(steps), dtype=dtype, layout=layout)
    out = np.empty((len(images), *program.output_shape), dtype)
    program.run([image.copy() for image in images], KEYS[: len(images)], out)
    return out


def test_a_chain_without_pixel_steps_is_the_fused_pass():
    assert compile_chain((CROP, FLIP, NORMALIZE), dtype="float32", layout="nchw") == compile_image(
        (CROP, FLIP, NORMALIZE), dtype="float32", layout="nchw"
    )


def test_steps_run_in_order_each_by_its_own_key():
    cropped = run([CROP])
    by_hand = np.stack([JITTER.apply(cropped[i].copy(), transform_keys(KEYS, JITTER.NAME, 0)[i]) for i in range(5)])

    assert np.array_equal(run([CROP, JITTER]), by_hand)
    twice = [JITTER.apply(by_hand[i].copy(), transform_keys(KEYS, JITTER.NAME, 1)[i]) for i in range(5)]
    assert np.array_equal(run([CROP, JITTER, JITTER]), np.stack(twice))


def test_a_flip_draws_alike_before_and_after_colours():
    assert np.array_equal(run([CROP, FLIP, JITTER]), run([CROP, JITTER, FLIP]))
    assert np.array_equal(
        run([CROP, FLIP, sp.transforms.Grayscale(), FLIP]), run([CROP, FLIP, FLIP, sp.transforms.Grayscale()])
    )


def test_pixels_are_normalized_as_those_of_a_fused_pass():
    plain = compile_image((CROP, FLIP, NORMALIZE), dtype="float16", layout="nchw")
    out = np.empty((5, *plain.output_shape), np.float16)
    plain.run(IMAGES, KEYS, out)

    assert np.array_equal(run([CROP, sp.transforms.ColorJitter(), FLIP, NORMALIZE], "float16", "nchw"), out)


def test_steps_before_a_resize_take_images_of_any_size():
    out = run([sp.transforms.RandomRotation(20), JITTER, CROP])

    assert out.shape == (5, 40, 40, 3)
    assert np.array_equal(out, run([sp.transforms.RandomRotation(20), JITTER, CROP]))


def test_images_are_not_written_to():
    images = [np.array(image) for image in IMAGES]
    for image in images:
        image.flags.writeable = False
    program = compile_chain((JITTER, sp.transforms.Resize((20, 20))), dtype="uint8", layout="nhwc")
    program.run(images, KEYS, np.empty((5, 20, 20, 3), np.uint8))

    assert all(np.array_equal(a, b) for a, b in zip(images, IMAGES, strict=True))


@pytest.mark.parametrize(
    ("steps", "says"),
    [
        ([CROP, NORMALIZE, JITTER], "ColorJitter stands after Normalize. Put Normalize last"),
        ([CROP, sp.transforms.Resize(8), JITTER], "Resize resizes again after RandomResizedCrop"),
        ([JITTER, NORMALIZE], "Normalize has no place in uint8"),
        ([JITTER, 3], "3 is not an image transform. Give one of .*ColorJitter.*function of a uint8"),
    ],
)
def test_orders_that_cannot_be_done_are_refused(steps, says):
    with pytest.raises(PlanError, match=says):
        compile_chain(as_steps(steps), dtype="uint8", layout="nhwc")


def test_a_step_that_returns_another_size_than_planned_is_named():
    with pytest.raises(
        DataError, match=r"returned 40 x 30 pixels.*the plan has 40 x 40\. Put Resize\(\(40, 40\)\) after"
    ) as error:
        run([CROP, lambda pixels: pixels[:, :30].copy()])
    assert error.value.row == 0
    assert run([CROP, lambda pixels: pixels[:, :30].copy(), sp.transforms.Resize((8, 8))]).shape == (5, 8, 8, 3)


def test_a_mask_keeps_its_values_and_follows_its_image():
    steps = (
        CROP,
        sp.transforms.RandomRotation(30, mask_fill=2),
        JITTER,
        FLIP,
        sp.transforms.RandAugment(2, 20, mask_fill=2),
    )
    masks = [
        np.random.default_rng(n).choice(np.array([2, 9, 250], np.uint8), (*image.shape[:2], 1))
        for n, image in enumerate(IMAGES)
    ]
    program = compile_mask((*steps, NORMALIZE), channels=1, dtype="int64", layout="nhw")
    out = np.empty((5, 40, 40), np.int64)
    program.run(masks, KEYS, out)

    assert set(np.unique(out)) <= {2, 9, 250}
    blocks = [
        np.kron(np.random.default_rng(n).integers(0, 2, (6, 9)), np.ones((10, 10)))[:, :, None] * 200 for n in range(5)
    ]
    blocks = [each.astype(np.uint8) for each in blocks]
    moves = (CROP, sp.transforms.RandomRotation(30), FLIP)
    shown = run(moves, images=[np.repeat(each, 3, axis=2) for each in blocks])
    compile_mask(moves, channels=1, dtype="int64", layout="nhw").run(blocks, KEYS, out)
    assert ((shown[..., 0] > 100) == (out > 100)).mean() > 0.95


@pytest.mark.parametrize("options", [{"dtype": "float16"}, {"layout": "nwh"}, {"channels": 3, "layout": "nhw"}])
def test_a_mask_of_another_form_is_refused(options):
    with pytest.raises(PlanError, match="masks: "):
        compile_mask((), **{"channels": 1, "dtype": "uint8", "layout": "nhw", **options})


def test_kinds_of_programs():
    assert isinstance(compile_chain((CROP,), dtype="uint8", layout="nchw"), ImageProgram)
    chain = compile_chain((CROP, JITTER), dtype="uint8", layout="nchw")
    assert isinstance(chain, ImageChain)
    assert not chain.deterministic
    assert compile_chain(
        (sp.transforms.Resize(9), sp.transforms.Grayscale()), dtype="uint8", layout="nchw"
    ).deterministic
