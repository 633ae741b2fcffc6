"""How many tokens and pieces an image takes is what transformers' processors say, for every size."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from transformers.models.qwen2_vl.image_processing_qwen2_vl import smart_resize

import spiral_stream as sp
from spiral_stream.errors import PlanError
from tests.fixtures import vision_processors
from tests.fixtures.examples import few

side = st.integers(1, 5_000)


@given(
    sizes=st.lists(st.tuples(side, side), min_size=1, max_size=30),
    patch_size=st.sampled_from([14, 16]),
    merge_size=st.integers(1, 3),
    limits=st.sampled_from([(56 * 56, 28 * 28 * 1280), (4 * 28 * 28, 28 * 28 * 64), (1, 10**8)]),
)
@few(60, 400)
def test_patches_are_those_of_qwen2_vl(
    sizes: list[tuple[int, int]], patch_size: int, merge_size: int, limits: tuple[int, int]
) -> None:
    low, high = limits
    layout = sp.fields.PatchLayout(
        patch_size, merge_size, min_pixels=low, max_pixels=max(high, (patch_size * merge_size) ** 2)
    )
    given_sizes = np.array(sizes)
    taken = ~layout.refused(given_sizes)
    factor = patch_size * merge_size

    want = [smart_resize(h, w, factor, low, layout.max_pixels) for h, w in given_sizes[taken].tolist()]

    assert layout.resized(given_sizes[taken]).tolist() == [list(each) for each in want]
    assert taken.tolist() == [max(each) <= 200 * min(each) for each in sizes]
    counted = [h // factor * (w // factor) for h, w in want]
    assert layout.token_counts(given_sizes[taken]).tolist() == counted
    assert layout.patch_counts(given_sizes[taken]).tolist() == [each * merge_size**2 for each in counted]


@given(size=st.tuples(st.integers(1, 600), st.integers(1, 600)))
@few(60, 400)
def test_tiles_are_those_of_llava_next(size: tuple[int, int]) -> None:
    layout, processor = vision_processors.TILES, vision_processors.llava_next()

    want = processor(text=["<image>"], images=[Image.new("RGB", size[::-1])])

    assert layout.token_counts(np.array([size])).tolist() == [len(want["input_ids"][0])]
    assert layout.patch_counts(np.array([size])).tolist() == [len(want["pixel_values"][0])]
    assert sum(each.patches for each in layout.views(*size)) == len(want["pixel_values"][0])


@given(height=st.integers(20, 400), width=st.integers(20, 400))
@few(30, 200)
def test_pieces_are_cut_as_the_views_say(height: int, width: int) -> None:
    for layout in (vision_processors.FIXED, vision_processors.TILES, sp.fields.PatchLayout(max_pixels=28 * 28 * 9)):
        views = layout.views(height, width)
        assert sum(each.patches for each in views) == layout.patch_counts(np.array([[height, width]]))[0]
        for view in views:
            numbers = np.arange(3 * view.canvas[0] * view.canvas[1], dtype=np.float64).reshape(1, 3, *view.canvas)
            out = np.full((1, view.patches, *layout.patch_shape), -1.0)
            layout.cut(numbers, out)
            copies = getattr(layout, "frames", 1)
            assert (np.bincount(out.astype(np.int64).ravel()) == copies).all()  # each pixel once, or once per frame


@pytest.mark.parametrize(
    ("make", "way_out"),
    [
        (lambda: sp.fields.FixedLayout(336, 576), r"size is 336\. Give height and width, such as \(336, 336\)"),
        (lambda: sp.fields.FixedLayout((336, 336), 0), "Give a whole number of at least 1"),
        (lambda: sp.fields.PatchLayout(0), "Give a whole number of at least 1"),
        (lambda: sp.fields.PatchLayout(max_pixels=100), "Raise it"),
        (lambda: sp.fields.TileLayout(336, 14, []), "Give sizes that are multiples of size=336"),
        (lambda: sp.fields.TileLayout(336, 14, [(336, 500)]), "Give sizes that are multiples of size=336"),
    ],
)
def test_layouts_that_cannot_be_are_refused(make: Any, way_out: str) -> None:
    with pytest.raises(PlanError, match=way_out):
        make()
