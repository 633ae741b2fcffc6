"""Views, masks, boxes, labels and key points in the batches of a stream; and bad ones."""

from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader
from torchvision.transforms import v2

import spiral_stream as sp
from spiral_stream.decoders.image.image import decode_jpeg, encode_jpeg, shrink
from spiral_stream.testing import frozen, same
from tests.fixtures.scene_fields import FIELDS, FOREIGN, MOVES, PLANS, SIZE, VIEWS, grain, image, lighter, mask
from tests.fixtures.scenes import VALUES, catalog, encoded, stream, table


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> sp.Catalog:
    return catalog(tmp_path_factory.mktemp("scenes") / "catalog", table())


def collected(made: sp.Catalog, fields: dict[str, Any], **options: Any) -> list[dict[str, Any]]:
    with stream(made, fields, **options) as read:
        return [{k: v.copy() if isinstance(v, np.ndarray) else v for k, v in batch.items()} for batch in read]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["detection", "foreign"])
def test_batches_do_not_depend_on_workers(scenes: sp.Catalog, name: str) -> None:
    rows = scenes.table("scenes").sample(identity="sample_id", order=sp.GlobalShuffle(seed=3))
    plan = rows.collate(batch_size=8, fields=PLANS[name])
    expected = collected(scenes, PLANS[name])
    with plan.to_torch() as read:
        loader = DataLoader(read, batch_size=None, num_workers=2, multiprocessing_context="forkserver", timeout=300)
        for batch, other in zip(loader, expected, strict=True):
            for key, value in other.items():
                given = batch[key].numpy() if isinstance(batch[key], torch.Tensor) else batch[key]
                assert (
                    np.array_equal(given, value, equal_nan=key == "points")
                    if isinstance(value, np.ndarray)
                    else given == value
                )


def test_views_differ_and_fields_of_one_view_are_alike(scenes: sp.Catalog) -> None:
    fields = {**VIEWS, "again": image(view="b"), "own": image()}
    with pytest.warns(sp.SpiralWarning, match="'b' and 'again' decode 'image' with an equal .* draw alike"):
        [batch, *_] = collected(scenes, fields)

    assert np.array_equal(batch["b"], batch["again"])
    for one, other in (("a", "b"), ("a", "own"), ("b", "own")):
        assert all(not np.array_equal(x, y) for x, y in zip(batch[one], batch[other], strict=True))


def test_a_mask_shows_the_classes_of_its_image(scenes: sp.Catalog) -> None:
    fields = {"image": image(MOVES), "mask": mask(MOVES)}
    colours = {80: 0, 160: 1, 240: 2}
    right = total = 0
    for batch in collected(scenes, fields):
        assert batch["mask"].shape == (8, SIZE, SIZE)
        assert set(np.unique(batch["mask"])) <= set(VALUES)
        for value, channel in colours.items():
            at = batch["mask"] == value
            shown = batch["image"].transpose(0, 2, 3, 1)[at]
            right += int((shown.argmax(axis=1) == channel).sum())
            total += len(shown)
    assert total > 2_000
    assert right / total > 0.97


def test_boxes_lie_around_their_squares_and_labels_stay_with_them(scenes: sp.Catalog) -> None:
    moves = (sp.RandomResizedCrop(SIZE, scale=(0.3, 0.8)), sp.RandomHorizontalFlip())
    fields = {"mask": mask(moves), **{k: FIELDS[k] for k in ("boxes", "labels")}, "image": image(moves)}
    seen = dropped = 0
    for batch in collected(scenes, fields):
        for pixels, boxes, labels in zip(batch["mask"], batch["boxes"], batch["labels"], strict=True):
            found = {value: np.argwhere(pixels == value) for value in VALUES[1:]}
            for box, label in zip(boxes, labels, strict=True):
                if label < 0:
                    assert not box.any()
                    dropped += 1
                    continue
                inside = found[VALUES[label]]
                inside = inside[
                    (inside[:, 0] >= box[1] - 1)
                    & (inside[:, 0] <= box[3])
                    & (inside[:, 1] >= box[0] - 1)
                    & (inside[:, 1] <= box[2])
                ]
                assert len(inside) > 0.8 * np.prod(np.floor(box[2:] - box[:2]) - 1)
                seen += 1
    assert seen > 15
    assert dropped > 3


def test_caches_change_nothing(scenes: sp.Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPIRAL_CACHE", str(tmp_path / "prepared"))
    rows = scenes.table("scenes").cache(image=sp.Raw(64), mask=sp.Raw(64))
    sampled = rows.sample(identity="sample_id", order=sp.GlobalShuffle(seed=3))
    plan = sampled.collate(batch_size=8, fields={"image": image(), "mask": mask()})
    with plan.to_numpy() as read:
        before = [{k: v.copy() for k, v in batch.items()} for batch in read]
        read.materialize()
    with plan.to_numpy() as read:
        for batch, other in zip(read, before, strict=True):
            assert same(batch, other)
            assert set(np.unique(batch["mask"])) <= set(VALUES)


def test_a_saved_plan_gives_the_same_batches(scenes: sp.Catalog) -> None:
    fields = {**FIELDS, "tv": image([v2.RandomResizedCrop(SIZE), lighter, v2.ColorJitter(0.4), grain], view="tv")}
    rows = scenes.table("scenes").sample(identity="sample_id", order=sp.GlobalShuffle(seed=3))
    plan = rows.collate(batch_size=8, fields=fields).to_numpy()
    scenes.save_stream("detection", plan)
    with plan, scenes.open_stream("detection") as read:
        assert read.fingerprint == plan.fingerprint
        assert same(next(iter(read)), next(iter(plan)))


def test_fingerprints_move_with_what_is_drawn_and_with_nothing_else(scenes: sp.Catalog) -> None:
    def of(field: Any) -> str:
        with stream(scenes, {"x": field}) as read:
            return read.fingerprint

    same_step = [
        image([v2.ColorJitter(0.4), sp.transforms.Resize((8, 8))]),
        image([v2.ColorJitter(brightness=(0.6, 1.4)), sp.transforms.Resize((8, 8))]),
    ]
    others = [
        image([sp.transforms.Resize((8, 8))]),
        image([sp.transforms.Resize((8, 8))], view="a"),
        image([v2.ColorJitter(0.5), sp.transforms.Resize((8, 8))]),
        image([lighter, sp.transforms.Resize((8, 8))]),
        image([grain, sp.transforms.Resize((8, 8))]),
        image([sp.transforms.ColorJitter(0.4), sp.transforms.Resize((8, 8))]),
        mask([sp.transforms.Resize((8, 8))]),
    ]
    assert of(same_step[0]) == of(same_step[1])
    assert len({of(each) for each in (*others, same_step[0])}) == 8


def test_evaluation_has_nothing_random(scenes: sp.Catalog) -> None:
    with stream(scenes, FIELDS) as read, read.eval() as fixed:
        first, again = list(fixed), list(fixed)
    assert all(same(a, b) for a, b in zip(first, again, strict=True))
    with (
        stream(scenes, FOREIGN) as read,
        pytest.raises(sp.errors.PlanError, match="evaluation: RandomResizedCrop of torchvision may draw"),
    ):
        read.eval()


# ---- what does not fit


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"b": FIELDS["boxes"]}, "field 'b': of='image' is no field of images in this batch. Add one: Stack"),
        ({"image": mask(), "b": FIELDS["boxes"]}, "is no field of images"),
        ({"image": image(), "l": sp.fields.BoxLabels("labels", of="image")}, r"is no field of Boxes. Add one: Boxes"),
        (
            {"image": image([lighter, *MOVES]), "b": FIELDS["boxes"]},
            "function lighter moves boxes and points is not known",
        ),
        (
            {"image": image([*MOVES, v2.RandAugment()]), "b": FIELDS["boxes"]},
            "RandAugment of torchvision .* is not known",
        ),
    ],
)
def test_fields_that_follow_nothing_are_refused(scenes: sp.Catalog, fields: dict[str, Any], says: str) -> None:
    with pytest.raises(sp.errors.PlanError, match=says):
        stream(scenes, fields)


def test_boxes_in_pixels_do_not_follow_a_smaller_cache(scenes: sp.Catalog) -> None:
    rows = scenes.table("scenes").cache(image=sp.Raw(64))
    sampled = rows.sample(identity="sample_id", order=sp.Sequential())
    fields = {"image": image(), "boxes": FIELDS["boxes"]}
    with pytest.raises(sp.errors.PlanError, match=r"cached in a smaller size.*relative=True"):
        sampled.collate(batch_size=2, fields=fields)


BAD = {
    "a mask of another size": (
        3,
        "mask",
        encoded(np.zeros((10, 12), np.uint8)),
        "the mask is 10 x 12 and its image .* filter the sample out",
    ),
    "a box outside": (4, "boxes", [[0, 0, 5, 5], [500, 0, 510, 9]], "box 1 .* stands out of its image"),
    "a label too many": (5, "labels", [1, 2, 3, 1], "4 labels of . boxes"),
    "NaN": (6, "boxes", [[0.0, float("nan"), 5.0, 5.0]], "is NaN or infinite"),
    "a bomb": (7, "image", None, "claims more than the 67,108,864 pixels that a sample may have"),
    "no image": (8, "image", b"GIF89a", "damaged"),
}


def bomb() -> bytes:
    out = BytesIO()
    Image.new("1", (20_000, 9_000)).save(out, "PNG")
    return out.getvalue()


def damaged(only: str | None = None) -> pa.Table:
    rows = table().to_pylist()
    for what, (at, column, value, _) in BAD.items():
        if only in (None, what):
            rows[at][column] = bomb() if value is None else value
    kinds = {"boxes": pa.list_(pa.list_(pa.float64())), "labels": pa.list_(pa.int64())}
    return pa.table({name: pa.array([row[name] for row in rows], kinds.get(name)) for name in rows[0]})


@pytest.mark.parametrize("what", BAD)
def test_a_bad_sample_stops_the_stream_by_name(what: str, tmp_path: Path) -> None:
    made = catalog(tmp_path / "catalog", damaged(what))
    with pytest.raises(sp.errors.DataError, match=BAD[what][3]) as error:
        collected(made, FIELDS)
    assert f"s{BAD[what][0]:03}" in str(error.value)


@pytest.mark.parametrize("policy", ["skip", "substitute"])
def test_bad_samples_are_quarantined_and_the_others_are_as_before(
    scenes: sp.Catalog, policy: Any, tmp_path: Path
) -> None:
    made = catalog(tmp_path / "catalog", damaged())
    whole = {name: (batch, at) for batch in collected(scenes, FIELDS) for at, name in enumerate(batch["id"])}
    with stream(made, FIELDS, on_error=policy, error_budget=10) as read:
        batches = [{k: v.copy() if isinstance(v, np.ndarray) else v for k, v in batch.items()} for batch in read]
        reasons = {row["sample_id"]: row["reason"] for row in read.quarantine().to_pylist()}

    assert sorted(reasons) == sorted(f"s{at:03}" for at, *_ in BAD.values())
    left = [name for batch in batches for name in batch["id"]]
    assert len(left) == (18 if policy == "skip" else 24)
    for batch in batches:
        for at, name in enumerate(batch["id"]):
            other, place = whole[name]
            assert np.array_equal(batch["image"][at], other["image"][place])
            assert np.array_equal(batch["mask"][at], other["mask"][place])
            count = int((batch["labels"][at] >= 0).sum())
            assert np.array_equal(batch["boxes"][at][:count], other["boxes"][place][:count])


def formats() -> dict[str, tuple[bytes, np.ndarray]]:
    """A file of every format, and its pixels by Pillow's own conversion."""
    draw = np.random.default_rng(0)
    rgb = Image.fromarray(draw.integers(0, 256, (20, 30, 3), dtype=np.uint8))
    deep = draw.integers(0, 1 << 16, (20, 30), dtype=np.uint16)
    more = {"save_all": True, "append_images": [Image.new("RGB", (30, 20))]}
    pictures = {
        "png": (rgb, "PNG", {}),
        "webp": (rgb, "WEBP", {"lossless": True}),
        "webp with colours lost": (rgb, "WEBP", {"quality": 70}),
        "webp of two frames": (rgb, "WEBP", {"lossless": True, **more}),
        "gif of two frames": (rgb.convert("P"), "GIF", more),
        "gif with a transparent colour": (rgb.quantize(9), "GIF", {"transparency": 3}),
        "apng": (rgb, "PNG", more),
        "gray": (rgb.convert("L"), "PNG", {}),
        "gray with alpha": (rgb.convert("LA"), "PNG", {}),
        "cmyk": (rgb.convert("CMYK"), "TIFF", {}),
        "cmyk jpeg": (rgb.convert("CMYK"), "JPEG", {}),
        "palette": (rgb.quantize(9), "PNG", {}),
        "palette with alpha": (rgb.quantize(9), "PNG", {"transparency": bytes([0, 90, 255])}),
        "alpha": (rgb.convert("RGBA"), "PNG", {}),
        "bits": (rgb.convert("1"), "PNG", {}),
        "16 bits": (Image.fromarray(deep), "PNG", {}),
        "16 bits of TIFF": (Image.fromarray(deep), "TIFF", {}),
    }
    found = {}
    for name, (picture, kind, options) in pictures.items():
        out = BytesIO()
        picture.save(out, kind, **options)
        with Image.open(BytesIO(out.getvalue())) as opened:
            if name.startswith("16 bits"):
                pixels = np.repeat((np.asarray(opened) >> 8).astype(np.uint8)[..., None], 3, axis=2)
            else:
                pixels = np.asarray(
                    opened.convert("RGBA").convert("RGB") if "palette" in name else opened.convert("RGB")
                )
        found[name] = (out.getvalue(), pixels)
    return found


@pytest.mark.parametrize(
    "profile", [None, sp.profiles.Original(), sp.Raw(), sp.Raw(10), sp.profiles.Jpeg(quality=95)], ids=str
)
def test_every_format_of_one_column_is_read(profile: Any, tmp_path: Path) -> None:
    """PNG, WebP, GIF, gray, CMYK, palettes and 16 bits in one column: pixels of Pillow, or what the profile keeps of them."""
    files = formats()
    table = pa.table({"sample_id": list(files), "image": [data for data, _ in files.values()]})
    made = sp.connect(str(tmp_path / "catalog"))
    made.register("formats", sp.Arrow(table), semantic={"image": "image/jpeg-ref"})
    relation = made.table("formats").cache(image=profile) if profile else made.table("formats")
    fields = {"x": sp.Stack("image", decode="image", layout="nhwc"), "id": sp.List("sample_id")}
    plan = relation.sample(identity="sample_id", order=sp.Sequential()).collate(batch_size=len(files), fields=fields)
    with plan.to_numpy() as read:
        batch = frozen(next(iter(read)))
        if profile is not None:
            assert read.materialize(lambda _: None).refused == 0
            [again] = [frozen(each) for each in read]
            assert same(again, batch)
    for name, pixels in zip(batch["id"], batch["x"], strict=True):
        wanted = files[name][1]
        if profile == sp.profiles.Jpeg(quality=95):
            assert np.array_equal(pixels, decode_jpeg(encode_jpeg(wanted, 95))), name
        else:
            assert np.array_equal(pixels, shrink(wanted, 10) if profile == sp.Raw(10) else wanted), name
