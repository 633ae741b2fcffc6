"""Drawn damage to images, through the stream: a sample is refused or decodes to something, and its neighbours are right.

JPEG has no checksum, so damage that is itself a sound image gives other pixels. It may not give anything else: no raw
exception, no wait, no memory beyond the limits, and the same verdict with and without a cache.
"""

import io
import resource
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import simplejpeg
from PIL import Image

import spiral_stream as sp
from tests.fixtures.mutations import COUNTS, deadline, mutated_bytes

pytestmark = [pytest.mark.usefixtures("no_threads_left")]
BATCH = 25
STEPS = (sp.transforms.Resize((8, 8)),)


def seeds() -> list[bytes]:
    """One small image of every kind that has a parser of its own."""
    pixels = np.random.default_rng(0).integers(0, 255, (12, 14, 3), dtype=np.uint8)
    out = [simplejpeg.encode_jpeg(pixels, 80), simplejpeg.encode_jpeg(pixels[:, :, :1].copy(), 80, "GRAY")]
    image = Image.fromarray(pixels)
    for kind, mode, options in (
        ("JPEG", "RGB", {"progressive": True}),
        ("JPEG", "CMYK", {}),
        *((kind, "RGB", {}) for kind in ("PNG", "GIF", "BMP", "TIFF", "WEBP", "PPM")),
    ):
        held = io.BytesIO()
        image.convert(mode).save(held, kind, **options)
        out.append(held.getvalue())
    return [bytes(each) for each in out]


def damaged(count: int, kinds: slice) -> tuple[list[bytes], bytes]:
    """Sound images and damaged ones: the first of every batch is sound."""
    sources = seeds()
    good = sources[0]
    some = sources[kinds]
    return [good if not at % BATCH else mutated_bytes(some[at % len(some)], at) for at in range(count)], good


def decoded(
    catalog: sp.Catalog, decode: str, profile: Any, count: int, *, built: bool = False
) -> Iterator[tuple[str, np.ndarray]]:
    relation = catalog.table("damaged")
    if profile is not None:
        relation = relation.cache(image_ref=profile)
    fields = {"x": sp.Stack("image_ref", decode=decode, transforms=STEPS), "id": sp.List("sample_id")}
    sampled = relation.sample(identity="sample_id", order=sp.Sequential())
    with sampled.collate(batch_size=BATCH, fields=fields, on_error="skip", error_budget=count).to_numpy() as stream:
        if built:
            stream.materialize(lambda _: None)
        for batch in stream:
            yield from zip(batch["id"], batch["x"].copy(), strict=True)


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize(("decode", "kinds"), [("jpeg", slice(4)), ("image", slice(None))])
@pytest.mark.filterwarnings("ignore")  # Pillow's own, about odd headers
def test_a_damaged_image_is_refused_or_decodes_and_spoils_no_other(
    empty: sp.Catalog, decode: str, kinds: slice, count: int
) -> None:
    images, good = damaged(count, kinds)
    names = [f"i{at:05d}" for at in range(count)]
    empty.register(
        "damaged",
        sp.Arrow(pa.table({"sample_id": names, "image_ref": pa.array(images, pa.large_binary())})),
        semantic={"image_ref": "image/jpeg-ref"},
    )
    empty.register(
        "sound",
        sp.Arrow(pa.table({"sample_id": ["a"], "image_ref": pa.array([good], pa.large_binary())})),
        semantic={"image_ref": "image/jpeg-ref"},
    )
    sampled = empty.table("sound").sample(identity="sample_id", order=sp.Sequential())
    field = sp.Stack("image_ref", decode=decode, transforms=STEPS)
    with sampled.collate(batch_size=1, fields={"x": field}).to_numpy() as stream:
        want = stream.batch(0, epoch=0)["x"][0].copy()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with deadline(20 + count / 20):
        parts = dict(decoded(empty, decode, None, count))  # decodes only what is shown, and sees only its damage
        direct = dict(decoded(empty, decode, sp.Raw(), count))
        kept = dict(decoded(empty, decode, sp.Raw(), count, built=True))
    assert (
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1_500_000
    )  # KB: two images at the limit, and scratch
    assert direct.keys() == kept.keys()
    assert all(np.array_equal(direct[name], kept[name]) for name in direct)
    assert direct.keys() <= parts.keys()
    for name in names[::BATCH]:
        assert np.array_equal(direct[name], want)
        assert np.array_equal(parts[name], want)
    assert count // 10 < len(direct) < count
