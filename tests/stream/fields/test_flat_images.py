"""Images end to end beside packed text: ids, pixels, grids, places and positions are those of the models' own processors."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

import spiral_stream as sp
from spiral_stream.errors import DataError, PlanError
from tests.fixtures import mixed_rows, vision_processors
from tests.fixtures.mixed_rows import PATCHES

TOLERANCE = 1e-5  # of a normalized pixel: one level of 255 is 0.015

PACKED = sp.batching.Packed(max_tokens=700, max_images=12, max_patches=420, window_size=40)


@pytest.fixture(scope="module")
def table() -> pa.Table:
    return mixed_rows.rows(40, most=6)


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory, table: pa.Table) -> sp.Catalog:
    return mixed_rows.make_catalog(tmp_path_factory.mktemp("mixed"), table)


def fields(layout: Any = PATCHES, token_id: int | None = None, **more: Any) -> dict[str, Any]:
    mark = mixed_rows.mark_id() if token_id is None else token_id
    images = sp.fields.FlatImages("images", layout, tokens="tokens", token_id=mark, **more)
    return {
        "input_ids": sp.Pad("tokens"),
        "segments": sp.fields.Segments("tokens"),
        "position_ids": sp.fields.Positions("tokens"),
        "id": sp.List("id"),
        "numbers": sp.List("numbers"),
        "pixel_values": images,
        "grids": sp.fields.ImageGrids("images"),
        "extents": sp.fields.ImageExtents("images"),
        "places": sp.fields.ImagePlaces("images"),
    }


def delivered(samples: sp.Relation, of: dict[str, Any], **more: Any) -> list[dict[str, Any]]:
    options = {"batch_size": 2, "last": sp.KeepPartial, "formation": PACKED, **more}
    with samples.collate(fields=of, **options).to_numpy() as stream:
        return [{name: _own(value) for name, value in batch.items()} for batch in stream]


def _own(value: Any) -> Any:
    return value.copy() if isinstance(value, np.ndarray) else value


@dataclass
class Piece:
    """What a batch has of one sample."""

    id: int
    places: np.ndarray  # of its tokens in the row
    row: int
    segment: int
    images: range


def pieces(batch: dict[str, Any]) -> list[Piece]:
    found, at = [], 0
    for row, (ids, numbers) in enumerate(zip(batch["id"], batch["numbers"], strict=True)):
        for segment, (one, shown) in enumerate(zip(ids, numbers, strict=True), 1):
            where = np.flatnonzero(batch["segments"][row] == segment)
            found.append(Piece(one, where, row, segment, range(at, at + len(shown))))
            at += len(shown)
    assert at == len(batch["grids"])
    return found


def test_packed_rows_are_those_of_qwen2_vl(catalog: sp.Catalog, table: pa.Table) -> None:
    processor, rows = vision_processors.qwen(), {row["id"]: row for row in table.to_pylist()}
    positions = {"positions": sp.fields.GridPositions("tokens", images="images")}
    batches = delivered(
        mixed_rows.tokens(catalog, order=sp.GlobalShuffle(seed=3)),
        fields(transforms=[vision_processors.NORMALIZE]) | positions,
    )

    seen = []
    for batch in batches:
        ends = np.concatenate(([0], batch["grids"].prod(axis=1).cumsum()))
        assert ends[-1] == len(batch["pixel_values"])
        for piece in pieces(batch):
            want = vision_processors.processed(processor, rows[piece.id])
            seen.append(piece.id)
            assert batch["input_ids"][piece.row][piece.places].tolist() == want["input_ids"][0].tolist()
            three = batch["positions"][piece.row][:, piece.places]
            assert three.tolist() == vision_processors.positions(want).tolist()
            if not len(piece.images):
                continue
            at = slice(piece.images.start, piece.images.stop)
            assert batch["grids"][at].tolist() == want["image_grid_thw"].tolist()
            pixels = batch["pixel_values"][ends[at.start] : ends[at.stop]]
            assert np.abs(pixels - want["pixel_values"].numpy()).max() < TOLERANCE
    assert sorted(seen) == sorted(rows)


@pytest.mark.parametrize("family", ["llava", "llava_next"])
def test_packed_rows_are_those_of_llava(catalog: sp.Catalog, table: pa.Table, family: str) -> None:
    processor, rows = getattr(vision_processors, family)(), {row["id"]: row for row in table.to_pylist()}
    layout: Any = vision_processors.FIXED if family == "llava" else vision_processors.TILES
    resized = [sp.transforms.Resize(56, interpolation="bicubic"), sp.transforms.CenterCropDown(56)]
    steps = [*(resized if family == "llava" else ()), vision_processors.NORMALIZE]
    mark = mixed_rows.tokenizer().token_to_id("<image>")
    samples = mixed_rows.tokens(catalog, layout, mark="<image>", template=vision_processors.LLAVA)
    formation = sp.batching.Packed(max_tokens=900, window_size=40)
    batches = delivered(samples, fields(layout, mark, transforms=steps), formation=formation)

    for batch in batches:
        counts = layout.patch_counts(batch["extents"])
        ends = np.concatenate(([0], counts.cumsum()))
        assert ends[-1] == len(batch["pixel_values"])
        for piece in pieces(batch):
            want = vision_processors.processed(processor, rows[piece.id])
            assert batch["input_ids"][piece.row][piece.places].tolist() == want["input_ids"][0].tolist()
            assert batch["position_ids"][piece.row][piece.places].tolist() == list(range(len(piece.places)))
            for nth, image in enumerate(piece.images):
                pixels = batch["pixel_values"][ends[image] : ends[image + 1]]
                theirs = want["pixel_values"][nth].numpy().reshape(-1, 3, 56, 56)[: len(pixels)]
                assert np.abs(pixels - theirs).max() < TOLERANCE


def test_each_image_is_in_its_place(catalog: sp.Catalog) -> None:
    """Which row, segment and places an image belongs to, by what is drawn into it."""
    mark = mixed_rows.mark_id()
    for batch in delivered(mixed_rows.tokens(catalog), fields()):
        ends = np.concatenate(([0], batch["grids"].prod(axis=1).cumsum()))
        for piece in pieces(batch):
            numbers = batch["numbers"][piece.row][piece.segment - 1]
            marks = piece.places[batch["input_ids"][piece.row][piece.places] == mark]
            for number, image in zip(numbers, piece.images, strict=True):
                row, segment, first, count = batch["places"][image].tolist()
                assert (row, segment) == (piece.row, piece.segment)
                assert marks[:count].tolist() == list(range(first, first + count))
                marks = marks[count:]
                pixels = batch["pixel_values"][ends[image] : ends[image + 1]]
                assert mixed_rows.read_back(mixed_rows.put_together(pixels, batch["grids"][image])) == number
            assert not len(marks)


def test_padded_batches_hold_the_same_images(catalog: sp.Catalog) -> None:
    """With a budget of each kind, and one row per sample."""
    budget = sp.BatchBudget(max_tokens=2_000, max_images=9, max_patches=300, count="real")
    formation = sp.WindowedBucket(window_size=40, keys=[sp.BucketKey("len(tokens)")], budget=budget)
    of = fields()
    packed = {}
    for batch in delivered(mixed_rows.tokens(catalog), of):
        ends = np.concatenate(([0], batch["grids"].prod(axis=1).cumsum()))
        for piece in pieces(batch):
            at = slice(ends[piece.images.start], ends[piece.images.stop])
            packed[piece.id] = batch["input_ids"][piece.row][piece.places], batch["pixel_values"][at]

    batches = delivered(mixed_rows.tokens(catalog), of, batch_size=None, formation=formation)

    assert len(batches) > 4
    for batch in batches:
        assert len(batch["grids"]) <= 9
        assert len(batch["pixel_values"]) <= 300
        assert np.count_nonzero(batch["segments"]) <= 2_000
        rows = np.repeat(np.arange(len(batch["id"])), [len(each) for each in batch["numbers"]])
        assert batch["places"][:, 0].tolist() == rows.tolist()
        ends = np.concatenate(([0], batch["grids"].prod(axis=1).cumsum()))
        for row, one in enumerate(batch["id"]):
            ids, pixels = packed.pop(one)
            assert batch["input_ids"][row][batch["segments"][row] > 0].tolist() == ids.tolist()
            at = np.flatnonzero(rows == row)
            mine = [batch["pixel_values"][ends[k] : ends[k + 1]] for k in at]
            assert np.array_equal(np.concatenate([pixels[:0], *mine]), pixels)
    assert not packed


def test_torch_gets_the_same(catalog: sp.Catalog) -> None:
    plan = mixed_rows.tokens(catalog).collate(batch_size=2, last=sp.KeepPartial, formation=PACKED, fields=fields())
    first = delivered(mixed_rows.tokens(catalog), fields())[0]

    with plan.to_torch() as stream:
        batch = next(iter(stream))

    assert isinstance(batch["pixel_values"], torch.Tensor)
    assert np.array_equal(batch["pixel_values"].numpy(), first["pixel_values"])
    assert batch["places"].tolist() == first["places"].tolist()


def test_sizes_that_no_column_has_are_measured(catalog: sp.Catalog, table: pa.Table) -> None:
    mixed_rows.register(catalog, "unsized", table.drop(["sizes"]))
    images = sp.transforms.ImageTokens(mixed_rows.MARK, layout=PATCHES, sizes="sizes")
    chat = sp.transforms.ChatTemplate("messages", tokenizer="qwen", images=images)
    sampled = catalog.table("unsized").sample(order=sp.Sequential()).map(sp.transforms.ImageSizes("images") >> "sizes")

    measured = delivered(sampled.cache().map(chat >> ("tokens", "loss_mask")), fields())

    stated = delivered(mixed_rows.tokens(catalog), fields())
    assert len(measured) == len(stated) > 2
    for one, other in zip(measured, stated, strict=True):
        assert all(np.array_equal(one[name], other[name]) for name in ("input_ids", "pixel_values", "places"))


# ---- what is refused


def need_refused(way_out: str, samples: sp.Relation, of: dict[str, Any], **more: Any) -> None:
    with pytest.raises((PlanError, DataError), match=way_out):
        delivered(samples, of, **more)


def test_sizes_that_are_not_those_of_the_images_are_refused(catalog: sp.Catalog, table: pa.Table) -> None:
    sizes = [[{"height": each["width"], "width": each["height"]} for each in row] for row in table["sizes"].to_pylist()]
    at = table.schema.get_field_index("sizes")
    turned = table.set_column(at, "sizes", pa.array(sizes, table.schema.field(at).type))
    mixed_rows.register(catalog, "turned", turned)

    way_out = "the column of sizes says .* Make the sizes of the images anew"
    need_refused(way_out, mixed_rows.tokens(catalog, name="turned"), fields())


def test_tokens_of_another_layout_are_refused(catalog: sp.Catalog) -> None:
    other = sp.fields.PatchLayout(patch_size=14, merge_size=1, max_pixels=28 * 28 * 4)

    need_refused(
        "Give FlatImages the layout and the sizes that ImageTokens has", mixed_rows.tokens(catalog), fields(other)
    )


def test_fields_that_lack_another_are_refused(catalog: sp.Catalog) -> None:
    samples, whole = mixed_rows.tokens(catalog), fields()
    without = {name: each for name, each in whole.items() if name != "pixel_values"}
    placeless = {**whole, "pixel_values": sp.fields.FlatImages("images", PATCHES)}

    need_refused(r"Add FlatImages\('images', \.\.\.\)", samples, without)
    need_refused("Give it tokens= and token_id=", samples, placeless)
    with pytest.raises(PlanError, match="Give both, or neither"):
        sp.fields.FlatImages("images", PATCHES, tokens="tokens")
    positions = sp.fields.GridPositions("tokens", images="images")
    fixed = fields(vision_processors.FIXED, transforms=[sp.transforms.Resize((56, 56))])
    need_refused(r"Use Positions\('tokens'\)", samples, fixed | {"three": positions})
    need_refused("end with Resize or CenterCrop", samples, fields(vision_processors.FIXED))
    need_refused(
        "Give a column of lists of images", samples, {**whole, "pixel_values": sp.fields.FlatImages("id", PATCHES)}
    )
    sizes = sp.fields.FlatImages("images", PATCHES, sizes="numbers")
    need_refused(
        r"\.map\(spiral\.transforms\.ImageSizes\(\"images\"\) >> 'numbers'\)", samples, {**whole, "pixel_values": sizes}
    )


@pytest.mark.parametrize("oversize", ["truncate", "split"])
def test_samples_with_images_are_not_cut(catalog: sp.Catalog, oversize: Any) -> None:
    samples = mixed_rows.tokens(catalog)

    need_refused(
        "Give oversize='drop' or 'raise'", samples, fields(), formation=sp.batching.Packed(64, oversize=oversize)
    )
    with pytest.raises(PlanError, match="and oversize='drop' or 'raise'"):
        sp.batching.Packed(64, oversize=oversize, max_images=3)
    budget = sp.BatchBudget(max_tokens=400, oversize="truncate")
    formation = sp.WindowedBucket(window_size=40, budget=budget)
    need_refused("Give oversize='alone', 'drop' or 'raise'", samples, fields(), batch_size=None, formation=formation)


def test_what_moves_rows_is_refused(catalog: sp.Catalog) -> None:
    samples = mixed_rows.tokens(catalog)

    need_refused(r"Give formation=Packed\(\.\.\.\) with on_error", samples, fields(), formation=None, on_error="skip")
    blank = sp.batching.PadPartial(value=0)
    need_refused(
        r"Give PadPartial\(\), which repeats samples, or KeepPartial", samples, fields(), formation=None, last=blank
    )
    need_refused(
        "Add FlatImages", samples, {"input_ids": sp.Pad("tokens")}, formation=sp.batching.Packed(900, max_patches=9)
    )
    need_refused(
        "batch_size says how many", samples, {"x": sp.Pad("tokens")}, formation=sp.batching.Packed(900, max_images=9)
    )


def test_a_sample_above_a_budget_is_named(catalog: sp.Catalog) -> None:
    few = sp.batching.Packed(max_tokens=700, max_images=2, window_size=40)

    need_refused("images, but a row holds 2. Raise the budget", mixed_rows.tokens(catalog), fields(), formation=few)
    dropped = delivered(
        mixed_rows.tokens(catalog), fields(), formation=sp.batching.Packed(700, max_images=2, oversize="drop")
    )
    assert dropped
    assert all(len(shown) <= 2 for batch in dropped for row in batch["numbers"] for shown in row)


def test_a_bad_image_leaves_its_places_empty(catalog: sp.Catalog, table: pa.Table) -> None:
    """With on_error="skip" a sample goes with all of its images, and the others are as they were."""
    images = table["images"].to_pylist()
    bad = next(at for at, row in enumerate(images) if len(row) > 1)
    images[bad][1] = b"no image at all"
    at = table.schema.get_field_index("images")
    mixed_rows.register(catalog, "broken", table.set_column(at, "images", pa.array(images, pa.list_(pa.binary()))))
    broken, whole = mixed_rows.tokens(catalog, name="broken"), delivered(mixed_rows.tokens(catalog), fields())

    need_refused("image 1 of the list", broken, fields())
    left = delivered(broken, fields(), on_error="skip")

    for one, other in zip(left, whole, strict=True):
        owners = [piece.id for piece in pieces(other) for _ in piece.images]
        good = np.array([owner != bad for owner in owners], bool)
        patches = np.repeat(good, other["grids"].prod(axis=1))
        assert np.array_equal(one["pixel_values"], other["pixel_values"][patches])
        assert np.array_equal(one["grids"], other["grids"][good])
        assert np.array_equal(one["places"][:, [0, 2, 3]], other["places"][good][:, [0, 2, 3]])


@pytest.mark.parametrize("layout", [PATCHES, vision_processors.TILES], ids=["patches", "tiles"])
def test_a_saved_plan_gives_the_same_batches(catalog: sp.Catalog, layout: Any) -> None:
    of = fields(layout, transforms=[vision_processors.NORMALIZE])
    samples = mixed_rows.tokens(catalog, layout)
    plan = samples.collate(
        batch_size=2, last=sp.KeepPartial, formation=sp.batching.Packed(900, max_images=20), fields=of
    )
    catalog.save_stream("mixed", plan.to_numpy())

    with catalog.open_stream("mixed") as again, plan.to_numpy() as stream:
        assert again.fingerprint == stream.fingerprint
        for one, other in zip(again, stream, strict=True):
            assert all(np.array_equal(one[name], other[name]) for name in ("input_ids", "pixel_values", "places"))
