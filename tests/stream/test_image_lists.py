"""Lists of images in a sample: padded to the longest or to a fixed length, cached or not, and transformed one by one."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from torch.utils.data import DataLoader

import spiral_stream as sp
from spiral_stream.testing import frozen, same
from tests.fixtures.image_lists import (
    COUNTS,
    SEMANTIC,
    STEPS,
    fields,
    image,
    label,
    make_catalog,
    picture,
    rows,
    stream,
)
from tests.fixtures.inner import stages_of
from tests.fixtures.scenes import encoded

pytestmark = pytest.mark.usefixtures("no_threads_left")


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> sp.Catalog:
    return make_catalog(tmp_path_factory.mktemp("lists"))


def collected(catalog: sp.Catalog, given: dict[str, Any], **options: Any) -> list[dict[str, Any]]:
    with stream(catalog, given, **options) as read:
        return [frozen(batch) for batch in read]


def test_a_list_holds_what_its_images_give_one_by_one(catalog: sp.Catalog) -> None:
    fixed = [sp.transforms.Resize((20, 30))]
    for batch in collected(catalog, fields(transforms=fixed)):
        longest = max(1, *(COUNTS[at] for at in batch["id"]))
        assert batch["x"].shape == (4, longest, 3, 20, 30)
        assert batch["there"].tolist() == [[i < COUNTS[at] for i in range(longest)] for at in batch["id"]]
        for at, pixels in zip(batch["id"], batch["x"], strict=True):
            assert not pixels[COUNTS[at] :].any()
            for item in range(COUNTS[at]):
                one = pa.table({"id": [0], "image": [encoded(picture(at, item), "JPEG", quality=95)]})
                alone = sp.connect(str(catalog.root) + f"-{at}-{item}")
                alone.register("one", sp.Arrow(one), identity="id", semantic={"image": "image/jpeg-ref"})
                plan = alone.table("one").sample(order=sp.Sequential())
                wanted = {"x": sp.Stack("image", decode="jpeg", transforms=fixed)}
                with plan.collate(batch_size=1, fields=wanted).to_numpy() as read:
                    assert np.array_equal(next(iter(read))["x"][0], pixels[item])
        break


def test_a_fixed_length_pads_every_batch_alike_and_refuses_longer_lists(catalog: sp.Catalog) -> None:
    longest, given = collected(catalog, fields()), fields(sequence_length=5)
    with stream(catalog, given) as read:
        assert read.spec()["x"].shape == (5, 3, 24, 24)
        assert read.spec()["there"].shape == (5,)
        assert not stages_of(read).fields[0].ends_on_device  # padding would not stay 0
    for wide, batch in zip(collected(catalog, given), longest, strict=True):
        width = batch["x"].shape[1]
        assert wide["x"].shape[1] == 5
        assert np.array_equal(wide["x"][:, :width], batch["x"])
        assert not wide["x"][:, width:].any()
        assert np.array_equal(wide["there"][:, :width], batch["there"])

    with pytest.raises(
        sp.errors.DataError, match=r"id=\d+: .*the list has [45] images, above sequence_length=3\. Raise it"
    ):
        collected(catalog, fields(sequence_length=3))
    left = collected(catalog, fields(sequence_length=3), on_error="skip", error_budget=2)
    assert sorted(at for batch in left for at in batch["id"]) == [at for at, count in enumerate(COUNTS) if count < 4]


def test_images_draw_apart_or_alike_and_masks_follow_their_images(catalog: sp.Catalog) -> None:
    same_twice = {"id": [0], "images": [[encoded(picture(1, 0))] * 3], "masks": [[encoded(label(1, 0))] * 3]}
    made = sp.connect(str(catalog.root) + "-alike")
    made.register(
        "lists", sp.Arrow(pa.table(same_twice)), identity="id", semantic={k: SEMANTIC[k] for k in ("images", "masks")}
    )
    mask = {"decode": "image", "mode": "L", "interpolation": "nearest", "transforms": STEPS}
    given = {
        "apart": image(),
        "masks": sp.Stack("masks", **mask),
        "alike": image(draws_alike=True),
        "masks alike": sp.Stack("masks", draws_alike=True, **mask),
        "view": image(view="b", draws_alike=True),
    }
    [batch] = collected(made, given, batch_size=1)

    apart, alike, view = (batch[name][0] for name in ("apart", "alike", "view"))
    assert np.array_equal(alike[0], alike[1])
    assert np.array_equal(alike[0], alike[2])
    assert not np.array_equal(apart[0], apart[1])
    assert not np.array_equal(apart[1], apart[2])
    assert not np.array_equal(alike[0], view[0])
    for images, masks in (("apart", "masks"), ("alike", "masks alike")):
        near = np.abs(batch[images][0][:, 0].astype(int) // 64 - batch[masks][0]) <= 1
        assert near.mean() > 0.98
        assert set(np.unique(batch[masks])) <= {0, 1, 2, 3}


@pytest.mark.crossed
@pytest.mark.parametrize(
    "profile", [sp.profiles.Original(), sp.Raw(shorter_side=30), sp.profiles.Jpeg(shorter_side=30, quality=90)], ids=str
)
@pytest.mark.parametrize("given", [fields(), fields(sequence_length=5, dtype="bfloat16")], ids=["longest", "fixed"])
def test_caches_change_nothing(tmp_path: Path, profile: Any, given: dict[str, Any]) -> None:
    made = sp.connect(str(tmp_path))
    made.register("lists", sp.Arrow(rows()), identity="id", semantic=SEMANTIC)
    plan = made.table("lists").cache(images=profile).sample(order=sp.GlobalShuffle(seed=3))

    def read() -> list[dict[str, Any]]:
        with plan.collate(batch_size=4, fields=given).to_torch() as found:
            return [frozen(batch) for batch in found]

    before = read()
    with plan.collate(batch_size=4, fields=given).to_torch() as found:
        built = found.materialize(lambda _: None)
        (status,) = found.caches()
        assert (built.rows, status.built, status.complete) == (12, 12, True)
        assert status.form == f"lists of {profile}"
        assert status.fingerprint == sp.profiles.cache_fingerprint("lists", "images", profile, "image", lists=True)
        again = [frozen(batch) for batch in found]
        assert found.metrics()["source_rows"] == 0
        assert "an image" in str(found.explain())
    assert all(same(a, b) for a, b in zip(before, again, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("context", ["forkserver", "fork"])
@pytest.mark.filterwarnings("ignore:lance is not fork-safe", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_workers_change_nothing(catalog: sp.Catalog, context: str) -> None:
    sampled = catalog.table("lists").sample(order=sp.GlobalShuffle(seed=3)).collate(batch_size=4, fields=fields())
    with sampled.to_torch() as read:
        alone = list(read)
    with sampled.to_torch() as read:
        found = list(DataLoader(read, None, num_workers=2, multiprocessing_context=context))
    assert all(same(a, b) for a, b in zip(found, alone, strict=True))


def test_a_saved_plan_gives_the_same_batches(catalog: sp.Catalog) -> None:
    with stream(catalog, fields(draws_alike=True, sequence_length=6)) as read:
        wanted, mark = [frozen(batch) for batch in read], read.fingerprint
        catalog.save_stream("kept", read)
    with catalog.open_stream("kept") as read:
        assert read.fingerprint == mark
        assert all(same(frozen(a), b) for a, b in zip(read, wanted, strict=True))


def test_lists_of_one_length_files_and_a_mixture_are_read(catalog: sp.Catalog, tmp_path: Path) -> None:
    def written(data: bytes) -> str:
        path = tmp_path / f"{len(list(tmp_path.iterdir())):03}.jpg"
        path.write_bytes(data)
        return path.name

    made = sp.connect(str(tmp_path / "catalog"))
    table = rows(written).select(["id", "images"])
    semantic = {"images": "image/jpeg-ref"}
    made.register("lists", sp.Arrow(table, base=str(tmp_path)), identity="id", semantic=semantic)
    made.register("more", sp.Arrow(rows().select(["id", "images"]).slice(3)), identity="id", semantic=semantic)
    made.register("others", sp.Arrow(rows().select(["id", "images"])), identity="id", semantic=semantic)
    named, inline = collected(made, fields()), collected(catalog, fields())
    assert all(same(a, b) for a, b in zip(named, inline, strict=True))

    streams = [
        sp.Stream("a", made.table("more"), proportion=0.5),
        sp.Stream("b", made.table("others"), proportion=0.5),
    ]
    pairs = pa.array([[encoded(picture(r, i)) for i in range(2)] for r in range(12)], pa.list_(pa.binary(), 2))
    pq.write_table(pa.table({"id": range(12), "images": pairs}), tmp_path / "pairs.parquet")
    made.register("pairs", sp.Parquet(str(tmp_path / "pairs.parquet")), identity="id", semantic=semantic)
    plan = made.table("pairs").sample(order=sp.Sequential()).collate(batch_size=4, fields=fields())
    with plan.to_numpy() as read:
        assert read.spec()["x"].shape == (2, 3, 24, 24)
        assert {batch["x"].shape for batch in read} == {(4, 2, 3, 24, 24)}
    budget = sp.WindowedBucket(window_size=8, budget=sp.BatchBudget(max_images=4))
    sampled = made.table("pairs").sample(order=sp.Sequential())
    with sampled.collate(batch_size=None, fields=fields(), formation=budget).to_numpy() as read:
        assert {batch["x"].shape for batch in read} == {(2, 2, 3, 24, 24)}
    with pytest.raises(sp.errors.PlanError, match=r"sequence_length=1 .* at least 2, or leave it out"):
        sampled.collate(batch_size=2, fields=fields(sequence_length=1))

    mixed = sp.mix(streams).sample(identity="id", order=sp.GlobalShuffle(seed=1)).collate(batch_size=6, fields=fields())
    with mixed.to_numpy() as read:
        assert {batch["x"].shape[2:] for batch in read} == {(3, 24, 24)}
    (tmp_path / "003.jpg").unlink()
    with pytest.raises(sp.errors.SourceError, match=r"003\.jpg"):
        collected(made, fields())


BAD = {
    "a bad image": ([b"GIF89a", None], r"image 1 of the list: .*damaged"),
    "a null image": ([None, None], "the reference is null"),
    "a null list": (None, r"the list is null\. Filter the row out"),
}


@pytest.mark.crossed
@pytest.mark.parametrize("profile", [None, sp.Raw(shorter_side=30)], ids=str)
@pytest.mark.parametrize("what", BAD)
def test_a_bad_list_is_named_or_left_out_cached_or_not(what: str, profile: Any, tmp_path: Path) -> None:
    given, says = BAD[what]
    good = encoded(picture(0, 0))
    bad = given and [good if each is None and what == "a bad image" else each for each in given[::-1]]
    lists = pa.array([[good], bad, [good, good, good]], pa.list_(pa.binary()))
    made = sp.connect(str(tmp_path))
    made.register(
        "lists",
        sp.Arrow(pa.table({"id": [0, 1, 2], "images": lists})),
        identity="id",
        semantic={"images": "image/jpeg-ref"},
    )
    plan = made.table("lists").cache(images=profile) if profile else made.table("lists")
    plan = plan.sample(order=sp.Sequential())
    for built in (False, True):
        with plan.collate(batch_size=3, fields=fields()).to_numpy() as read:
            if built:
                read.materialize(lambda _: None)
            with pytest.raises(sp.errors.DataError, match=rf"id=1: .*{says}"):
                next(iter(read))
        with plan.collate(batch_size=3, fields=fields(), on_error="skip", error_budget=1).to_numpy() as read:
            batch = next(iter(read))
            assert batch["id"] == [0, 2]
            assert batch["there"].tolist() == [[True, False, False], [True] * 3]
            (refused,) = read.quarantine().to_pylist()
            assert refused["field"] == "x"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"x": image(sequence_length=0)}, r"sequence_length=0 of a column of list.* Give a whole number of at least 1"),
        ({"x": image([sp.transforms.Resize(20)])}, r"images of a list need one size\. End with"),
        ({"x": image(), "there": sp.PadMask("masks")}, r"no field decodes this column\. Add Stack\('masks'"),
        (
            {"x": image(sequence_length=3), "there": sp.PadMask("images", length=4)},
            r"share their length, and say \[3, 4\]",
        ),
        (
            {"x": image(), "there": sp.PadMask("images", pad_to_multiple_of=2)},
            r"pad_to_multiple_of is of numbers, not of images",
        ),
        (
            {"x": image(), "boxes": sp.fields.Boxes("boxes", of="x")},
            "has a list of images per row, and boxes and points follow one image",
        ),
    ],
)
def test_fields_that_do_not_fit_are_refused(tmp_path: Path, given: dict[str, Any], says: str) -> None:
    made = sp.connect(str(tmp_path))
    boxes = pa.array([[[0.0, 0.0, 4.0, 4.0]]] * 12, pa.list_(pa.list_(pa.float64(), 4)))
    made.register("lists", sp.Arrow(rows().append_column("boxes", boxes)), identity="id", semantic=SEMANTIC)
    with pytest.raises(sp.errors.PlanError, match=says):
        stream(made, given)


@pytest.mark.parametrize("option", [{"sequence_length": 2}, {"draws_alike": True}])
def test_what_is_of_lists_is_refused_for_single_images(option: dict[str, Any], tmp_path: Path) -> None:
    made = sp.connect(str(tmp_path))
    table = pa.table({"id": [0], "image": [encoded(picture(0, 0))]})
    made.register("one", sp.Arrow(table), identity="id", semantic={"image": "image/jpeg-ref"})
    field = sp.Stack("image", decode="image", transforms=STEPS, **option)
    with pytest.raises(
        sp.errors.PlanError, match=rf"{next(iter(option))} is of lists of images.*'image' has one image per row"
    ):
        made.table("one").sample(order=sp.Sequential()).collate(batch_size=1, fields={"x": field})


@pytest.mark.parametrize("keys", [(), (sp.BucketKey("len(images)"),)], ids=["in order", "by length"])
def test_a_budget_counts_the_images_of_lists(catalog: sp.Catalog, keys: Any) -> None:
    def form(**limits: Any) -> dict[str, Any]:
        return {
            "formation": sp.WindowedBucket(window_size=8, keys=keys, budget=sp.BatchBudget(**limits)),
            "last": sp.KeepPartial,
        }

    batches = collected(catalog, fields(), batch_size=None, **form(max_images=6))
    assert all(batch["there"].sum() <= 6 for batch in batches)
    assert sorted(at for batch in batches for at in batch["id"]) == list(range(12))
    assert len(batches) < 12
    with stream(catalog, fields(), batch_size=None, **form(max_images=6)) as read:
        assert "max_images 6" in str(read.explain())
    with pytest.raises(sp.errors.DataError, match="a sample has 5 images, and a batch may hold 4"):
        collected(catalog, fields(), batch_size=None, **form(max_images=4))
    with pytest.raises(
        sp.errors.PlanError, match="max_images of BatchBudget counts the images of lists, which no field decodes"
    ):
        stream(catalog, {"id": sp.List("id")}, batch_size=None, **form(max_images=4))


@pytest.mark.parametrize("change", ["another size", "one too few"])
def test_masks_that_do_not_fit_their_images_are_named(tmp_path: Path, change: str) -> None:
    masks = [encoded(label(0, 0)), encoded(label(0, 1))]
    masks = [masks[0], encoded(label(3, 1))] if change == "another size" else masks[:1]
    images = [encoded(picture(0, 0)), encoded(picture(0, 1))]
    made = sp.connect(str(tmp_path))
    made.register(
        "lists", sp.Arrow(pa.table({"id": [7], "images": [images], "masks": [masks]})), identity="id", semantic=SEMANTIC
    )
    mask = sp.Stack("masks", decode="image", mode="L", interpolation="nearest", transforms=STEPS)
    with pytest.raises(sp.errors.DataError, match=rf"id=7: .*the list has {len(masks)} masks of 2 images \('x'\)"):
        collected(made, {"x": image(), "m": mask}, batch_size=1)
