"""Batches of patches: next to transformers, with and without a cache, with bad images, in mixtures, in evaluation, on sheets."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import spiral_stream as sp
from tests.fixtures import patches
from tests.fixtures.patches import SIDE, fields, make_catalog, pictures, stream
from tests.stream.explain.words import in_words

COUNT = len(patches.SIZES)


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> sp.Catalog:
    return make_catalog(tmp_path_factory.mktemp("patches"))


def read(made: sp.PreparedStream) -> dict[str, Any]:
    """All batches of an epoch, end to end."""
    with made:
        found = [{name: np.array(value) for name, value in batch.items()} for batch in made]
    return {name: np.concatenate([each[name] for each in found]) for name in found[0]}


def test_batches_are_those_of_the_processor_of_siglip(catalog: sp.Catalog) -> None:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("torchvision")
    processor = transformers.Siglip2ImageProcessor(patch_size=SIDE, max_num_patches=24)
    expected = processor(images=pictures(), return_tensors="np")

    found = read(stream(catalog, last=sp.KeepPartial()))

    assert np.array_equal(found["grid"], expected["spatial_shapes"])
    assert np.array_equal(found["mask"], expected["pixel_attention_mask"].astype(bool))
    assert np.abs(found["patches"] - expected["pixel_values"]).max() < 1e-6


def test_a_batch_does_not_depend_on_what_is_cached(tmp_path: Path) -> None:
    made = make_catalog(tmp_path)
    before = read(stream(made, sp.GlobalShuffle(seed=1), transforms=patches.RANDOM))
    with stream(made) as built:
        built.materialize(lambda _: None)
        assert [(each.field, each.built) for each in built.caches()] == [("patches", COUNT)]

    after = read(stream(made, sp.GlobalShuffle(seed=1), transforms=patches.RANDOM))

    assert all(np.array_equal(before[name], after[name]) for name in before)


def test_images_that_cannot_be_read_leave_the_batch(tmp_path: Path) -> None:
    made, options = make_catalog(tmp_path, bad=2), {"batch_size": COUNT, "last": sp.KeepPartial()}
    with pytest.raises(sp.errors.DataError, match="id=2"):
        read(stream(made, **options))

    found, whole = (
        read(stream(made, on_error="skip", **options)),
        read(stream(make_catalog(tmp_path / "all"), **options)),
    )

    assert found["id"].tolist() == [each for each in range(COUNT) if each != 2]
    assert all(np.array_equal(found[name], np.delete(whole[name], 2, axis=0)) for name in found)


def test_rows_that_fill_a_batch_have_no_patches(catalog: sp.Catalog) -> None:
    found = read(stream(catalog, last=sp.batching.PadPartial(value={"patches": -1})))

    assert (~found["real"]).sum() == -COUNT % 4
    assert not found["mask"][~found["real"]].any()
    assert (found["patches"][~found["real"]] == -1).all()


def test_two_streams_of_a_mixture_share_a_batch(catalog: sp.Catalog) -> None:
    parts = [sp.Stream(name, catalog.table("pictures"), proportion=0.5) for name in ("a", "b")]
    mixed = sp.mix(parts).sample(identity="id", order=sp.GlobalShuffle(seed=1)).collate(batch_size=5, fields=fields())
    alone = read(stream(catalog, last=sp.KeepPartial()))

    found = read(mixed.to_numpy())

    for name in ("patches", "grid", "mask"):
        assert np.array_equal(found[name], alone[name][found["id"]])


def test_views_of_a_column_share_one_grid(catalog: sp.Catalog) -> None:
    given = fields() | {"other": fields(transforms=(sp.RandomHorizontalFlip(p=1.0),))["patches"]}
    sampled = catalog.table("pictures").sample(order=sp.Sequential())

    found = read(sampled.collate(batch_size=COUNT, fields=given).to_numpy())

    assert (found["other"][~found["mask"]] == 0).all()
    assert (found["patches"][~found["mask"]] == 0).all()
    with pytest.raises(sp.errors.PlanError, match="one patch_size and max_patches"):
        sampled.collate(batch_size=4, fields=given | {"small": fields(3)["patches"]})


def test_nothing_is_random_in_evaluation(catalog: sp.Catalog) -> None:
    with stream(catalog, transforms=patches.RANDOM) as training:
        found = read(training.eval())

    assert np.array_equal(found["patches"], read(stream(catalog, last=sp.KeepPartial()))["patches"])


def test_a_saved_plan_gives_the_same_batches(tmp_path: Path) -> None:
    made = make_catalog(tmp_path)
    with stream(made, transforms=patches.RANDOM) as saved:
        made.save_stream("run", saved)
        before = read(saved)

    after = read(made.open_stream("run"))

    assert all(np.array_equal(before[name], after[name]) for name in before)


def test_a_sheet_shows_the_picture_that_patches_are_of(catalog: sp.Catalog) -> None:
    with stream(catalog) as shown:
        text = str(shown.show(1))

    assert f"patches: 1 x {4 * SIDE}x{6 * SIDE}" in text


def test_grids_without_patches_and_steps_that_change_the_size_are_refused(catalog: sp.Catalog) -> None:
    sampled = catalog.table("pictures").sample(order=sp.Sequential())
    with pytest.raises(sp.errors.PlanError, match=r"Add Patches\('image'\)"):
        sampled.collate(batch_size=4, fields={"grid": sp.fields.PatchGrid("image")})
    with pytest.raises(sp.errors.PlanError, match="Give those that keep the size"):
        read(stream(catalog, transforms=(sp.transforms.CenterCrop(4),)))


def test_explain_says_what_patches_take(catalog: sp.Catalog) -> None:
    with stream(catalog) as shown:
        rows = {row["field"]: row for row in in_words(shown.explain())["materialize"]["fields"]}

    assert rows["patches"]["out/sample"] == 24 * SIDE * SIDE * 3 * 4
    assert rows["patches"]["where"].startswith("after membership")
