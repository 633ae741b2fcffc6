"""Images that are turned by EXIF, through every way of a stream: whole, by region, from caches."""

import io
import json
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps

import spiral_stream as sp
from spiral_stream.decoders.image import region
from spiral_stream.errors import PlanError
from spiral_stream.plan.saving.canonical import encode_value

COUNT = 24
KEEP = [None, sp.profiles.Original(), sp.Raw(), sp.profiles.Jpeg(shorter_side=40, quality=90)]


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> sp.Catalog:
    """Photos in all eight positions, a third of them upright; and the same photos turned, without loss, under the same names."""
    root = tmp_path_factory.mktemp("photos")
    y, x = np.mgrid[0:48, 0:80]
    for at in range(COUNT):
        exif = Image.Exif()
        if at % 3:
            exif[0x0112] = at % 8 + 1
        pixels = np.stack([x * 3 % 256, y * 5 % 256, (x + y + 9 * at) % 256], axis=2).astype(np.uint8)
        photo, turned = io.BytesIO(), io.BytesIO()
        Image.fromarray(pixels).save(photo, "JPEG", quality=95, exif=exif)
        ImageOps.exif_transpose(Image.open(photo)).save(turned, "PNG")
        for folder, data in (("photos", photo), ("upright", turned)):
            (root / folder / "a").mkdir(parents=True, exist_ok=True)
            (root / folder / "a" / f"{at:02d}.jpg").write_bytes(data.getvalue())
    catalog = sp.connect(root / "catalog")
    for name in ("photos", "upright"):
        catalog.register(name, sp.ImageFolder(str(root / name)))
    return catalog


def plan(catalog: sp.Catalog, name: str, decode: str, *, orient: bool, keep: Any = None) -> Any:
    table = catalog.table(name)
    kept = table if keep is None else table.cache(image_ref=keep)
    transforms = [sp.RandomResizedCrop(24, scale=(0.2, 1.0)), sp.RandomHorizontalFlip()]
    fields = {"image": sp.Stack("image_ref", decode=decode, transforms=transforms, orient=orient)}
    return kept.sample(identity="sample_id", order=sp.GlobalShuffle(seed=3), epoch=0).collate(
        batch_size=8, fields=fields
    )


def images(stream: Any) -> np.ndarray:
    return np.concatenate([batch["image"] for batch in stream])


@pytest.mark.parametrize("keep", KEEP, ids=str)
@pytest.mark.parametrize("decode", ["jpeg", "image"])
def test_random_crops_are_those_of_the_upright_image(decode: str, keep: Any, catalog: sp.Catalog) -> None:
    with plan(catalog, "upright", "image", orient=False, keep=keep).to_numpy() as stream:
        upright = images(stream)
    with plan(catalog, "photos", decode, orient=True, keep=keep).to_numpy() as stream:
        first = images(stream)
        if keep is not None:
            stream.materialize()
    with plan(catalog, "photos", decode, orient=True, keep=keep).to_numpy() as stream:
        cached = images(stream)

    assert len(upright) == COUNT
    assert np.array_equal(first, upright)
    assert np.array_equal(cached, upright)


def test_upright_images_are_decoded_by_region_as_before(catalog: sp.Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded = []
    original = region.decode_regions

    def recorded(addresses: Any, *rest: Any) -> Any:
        decoded.append(len(addresses))
        return original(addresses, *rest)

    monkeypatch.setattr(region, "TOGETHER", 1)
    monkeypatch.setattr(region, "decode_regions", recorded)
    with plan(catalog, "photos", "jpeg", orient=True).to_numpy() as stream:
        images(stream)

    assert sum(decoded) == sum(not at % 3 or not at % 8 for at in range(COUNT))


def test_plans_and_caches_without_it_stay_as_they_were(catalog: sp.Catalog) -> None:
    without, turned = (plan(catalog, "photos", "jpeg", orient=orient) for orient in (False, True))
    fields = [sp.Stack("image_ref", decode="jpeg", orient=orient) for orient in (False, True)]
    with without.to_numpy() as stream, turned.to_numpy() as other:
        assert not np.array_equal(images(stream), images(other))

    assert without.fingerprint != turned.fingerprint
    assert "orient" not in json.dumps(encode_value(fields[0]))
    for form in (sp.profiles.Original(), sp.Raw(), sp.profiles.Jpeg(shorter_side=40, quality=90)):
        keys = [sp.profiles.cache_fingerprint("photos", "image_ref", form, field) for field in (*fields, "jpeg")]
        assert keys[0] == keys[2] != keys[1]


def test_a_saved_plan_turns_images_too(catalog: sp.Catalog) -> None:
    catalog.save_stream("turned", plan(catalog, "photos", "jpeg", orient=True).to_numpy())
    with plan(catalog, "photos", "jpeg", orient=True).to_numpy() as stream:
        wanted = images(stream)
    with catalog.open_stream("turned") as stream:
        assert np.array_equal(images(stream), wanted)


def test_explain_says_that_images_are_turned(catalog: sp.Catalog) -> None:
    with plan(catalog, "photos", "jpeg", orient=True).to_numpy() as stream:
        assert "turned by EXIF" in str(stream.explain())
    with plan(catalog, "photos", "jpeg", orient=False).to_numpy() as stream:
        assert "turned by EXIF" not in str(stream.explain())


def test_what_is_no_image_is_not_turned() -> None:
    with pytest.raises(PlanError, match=r'orient=True turns images. Give decode="jpeg" or "image"'):
        sp.Stack("clip_ref", decode="h264", sequence_length=2, crop=8, orient=True)
    with pytest.raises(PlanError, match="orient=True turns images"):
        sp.Stack("n", orient=True)
    with pytest.raises(PlanError, match=r"orient=1\. Give True or False"):
        sp.Stack("image_ref", decode="jpeg", orient=1)
