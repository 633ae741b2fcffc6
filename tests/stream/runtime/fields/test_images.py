"""Image fields: rows are written in place where they are neighbours, and a mixture gives each stream's own pixels."""

import io
from collections.abc import Iterator
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import spiral_stream as sp
from spiral_stream.errors import DataError
from spiral_stream.runtime.fields import images as room
from spiral_stream.runtime.fields.images import fill_rows
from tests.fixtures.streams import FIXED, make_catalog, plan

pytestmark = pytest.mark.usefixtures("no_threads_left")


@given(rows=st.sets(st.integers(0, 19), min_size=1).map(sorted), data=st.data())
def test_rows_are_filled_and_the_others_stay(rows: list[int], data: st.DataObject) -> None:
    out = np.full((20, 3), -1)
    values = np.array([[row, row, row] for row in rows])
    given_arrays: list[Any] = []

    def fill(own: Any) -> None:
        given_arrays.append(own)
        own[...] = values

    fill_rows(out, np.array(rows), fill)

    assert [row[0] for row in out.tolist()] == [row if row in rows else -1 for row in range(20)]
    neighbours = rows[-1] - rows[0] == len(rows) - 1
    assert np.shares_memory(given_arrays[0], out) == neighbours


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> sp.Catalog:
    return make_catalog(tmp_path_factory.mktemp("images"))


@pytest.fixture(scope="module")
def pixels(catalog: sp.Catalog) -> dict[str, Any]:
    """The pixels of each sample, from one relation alone."""
    with plan(catalog.table("lance"), order=sp.Sequential(), transforms=FIXED, epoch=0).to_numpy() as stream:
        return {name: image for batch in stream for name, image in zip(batch["id"], batch["image"], strict=True)}


@pytest.fixture
def mixture(catalog: sp.Catalog) -> Iterator[Any]:
    streams = [sp.Stream(name, catalog.table(name), proportion=0.5) for name in ("lance", "parquet")]
    with plan(
        sp.mix(streams, epoch_size=96), order=sp.GlobalShuffle(seed=4), transforms=FIXED, epoch=0
    ).to_numpy() as stream:
        yield stream


def test_a_mixture_gives_each_sample_the_pixels_of_its_own_relation(mixture: Any, pixels: dict[str, Any]) -> None:
    for batch in mixture:
        for name, image in zip(batch["id"], batch["image"], strict=True):
            assert (image == pixels[name]).all()


def encoded(at: int) -> bytes:
    """A photo of its own, as baseline, progressive, RGB, CMYK or gray JPEG."""
    y, x = np.mgrid[0:90, 0:130]
    pixels = np.stack([x * 2 % 256, y * 3 % 256, (x + y + 11 * at) % 256], axis=2).astype(np.uint8)
    out, image = io.BytesIO(), Image.fromarray(pixels)
    more: dict[str, Any] = {"progressive": at % 10 == 3, "keep_rgb": at % 10 == 6}
    modes = {7: "CMYK", 8: "L"}
    image.convert(modes.get(at % 10, "RGB")).save(out, "JPEG", quality=90, **more)
    return out.getvalue()


@pytest.mark.parametrize("kept", [False, True])
def test_a_batch_of_all_kinds_of_jpeg_has_the_pixels_of_each(kept: bool, tmp_path: Any) -> None:
    data = [encoded(at) for at in range(64)]
    catalog = sp.connect(tmp_path / "catalog")
    rows = pa.table({"id": [f"{at:02d}" for at in range(64)], "image": pa.array(data, pa.binary())})
    lance.write_dataset(rows, tmp_path / "mixed.lance")
    source = sp.Lance(str(tmp_path / "mixed.lance"))
    catalog.register("mixed", source, identity="id", semantic={"image": "image/jpeg-ref"})
    made = catalog.table("mixed").sample(identity="id", order=sp.GlobalShuffle(seed=2), epoch=0)
    crop = [sp.transforms.CenterCrop(48)]
    fields = {"id": sp.List("id"), "image": sp.Stack("image", decode="jpeg", transforms=crop)}

    with made.collate(batch_size=64, fields=fields).to_numpy() as stream:
        if kept:
            stream.materialize()
        batch = next(iter(stream))

    for name, image in zip(batch["id"], batch["image"], strict=True):
        pixels = np.asarray(Image.open(io.BytesIO(data[int(name)])).convert("RGB"))
        assert np.array_equal(np.moveaxis(image, 0, -1), pixels[21:69, 41:89])


def test_an_error_in_one_stream_of_a_mixture_names_the_sample(mixture: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = mixture.ledger(0)
    whole, bad = room.ImageFeed.render, ledger[10]

    def failing(self: Any, ordinals: Any, *given: Any) -> None:
        if self._relation.entry.name == bad[0]:
            own = [name for stream, name in ledger if stream == bad[0]]
            raise DataError("no image", row=own.index(bad[1]))
        whole(self, ordinals, *given)

    monkeypatch.setattr(room.ImageFeed, "render", failing)
    with pytest.raises(DataError, match=f"{bad[1]}.*no image"):
        mixture.batch(0)
