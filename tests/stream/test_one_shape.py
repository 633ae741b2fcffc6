"""Streams whose batches have one shape each: pixels, ranks, states, clips with frames, EXPLAIN, and what is refused."""

import json
from io import BytesIO
from itertools import islice
from typing import Any

import numpy as np
import pytest
from PIL import Image

import spiral_stream as sp
from spiral_stream.errors import BindError, PlanError, ResumeError, StreamError
from tests.fixtures import clips, shapes

pytestmark = [
    pytest.mark.usefixtures("no_threads_left"),
    pytest.mark.filterwarnings("ignore::spiral_stream.SpiralWarning"),
]


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> sp.Catalog:
    return shapes.make_catalog(tmp_path_factory.mktemp("shapes"))


def of_ranks(make: Any, world: int, **bound: Any) -> list[list[dict[str, Any]]]:
    out = []
    for rank in range(world):
        with make().bind(rank=rank, world_size=world, **bound) as stream:
            out.append([{name: np.copy(value) for name, value in batch.items()} for batch in stream])
    return out


# ---- which pixels


def test_each_picture_is_cut_to_the_nearest_shape_as_pillow_cuts_it(catalog: sp.Catalog) -> None:
    table = shapes.rows()
    chosen = sp.batching.OneShape(shapes.SHAPES).choose(table["width"].to_numpy(), table["height"].to_numpy())
    given = {"id": sp.Stack("id"), "image": shapes.fields("center")["image"]}
    given["image"] = sp.Stack("image", decode="image", transforms=[sp.transforms.FitToShape()])
    seen = []
    with shapes.plan(catalog, batches=1, given=given).to_numpy() as stream:
        for batch in stream:
            high, wide = batch["image"].shape[2:]
            for number, pixels in zip(batch["id"].tolist(), batch["image"], strict=True):
                assert shapes.SHAPES[chosen[number]] == (high, wide)
                original = Image.open(BytesIO(table["image"][number].as_py()))
                scale = max(high / original.height, wide / original.width)
                size = [int(side * scale + 0.5) for side in original.size]
                left, top = ((a - b) // 2 for a, b in zip(size, (wide, high), strict=True))
                resized = original.resize(size, Image.Resampling.BILINEAR)
                cuts = [resized.crop((x, y, x + wide, y + high)) for x in (left, left + 1) for y in (top, top + 1)]
                apart = [np.abs(np.asarray(cut).astype(int) - pixels.transpose(1, 2, 0)).max() for cut in cuts]
                assert min(apart) <= 2, "two kernels round, and an odd rest may be halved up"
                seen.append(number)
    assert sorted(seen) == list(range(len(table)))


def test_pixels_do_not_depend_on_threads_caches_or_the_batches_around(catalog: sp.Catalog) -> None:
    def by_sample(plan: sp.Relation, **options: Any) -> dict[int, bytes]:
        with plan.to_numpy(**options) as stream:
            return {
                n: pixels.tobytes()
                for batch in stream
                for n, pixels in zip(batch["id"].tolist(), batch["image"], strict=True)
            }

    alone = by_sample(shapes.plan(catalog, batches=1))
    threads = by_sample(shapes.plan(catalog, batches=1, batch_size=3), threads=3, read_batch_size=2)
    with shapes.plan(catalog, batches=1).to_numpy() as stream:
        stream.materialize(lambda progress: None)
    cached = by_sample(shapes.plan(catalog, batches=1))

    assert alone == threads == cached


# ---- ranks and states


@pytest.mark.parametrize("last", [sp.KeepPartial, sp.DropPartial, sp.batching.PadPartial])
@pytest.mark.parametrize("bound", [{}, {"step_batches": 4}, {"step_batches": 8}, {"step_batches": 8, "merge": 2}])
def test_ranks_of_a_step_have_one_shape_and_no_sample_is_lost(
    catalog: sp.Catalog, last: Any, bound: dict[str, int]
) -> None:
    for world in (2, 4) if bound.get("merge", 1) == 1 else (2,):
        ranks = of_ranks(lambda: shapes.plan(catalog, last=last).to_numpy(), world, **bound)
        for step in range(max(map(len, ranks))):
            assert len({batches[step]["image"].shape[2:] for batches in ranks if step < len(batches)}) == 1
        seen = [number for batches in ranks for batch in batches for number in batch["id"].tolist()]
        if last is sp.KeepPartial:
            assert sorted(seen) == list(range(shapes.ROWS))
        elif last is sp.DropPartial:
            assert len(set(seen)) == len(seen) > shapes.ROWS // 2
        else:
            assert set(seen) == set(range(shapes.ROWS))


def test_a_deal_by_cost_leaves_shapes_together(catalog: sp.Catalog) -> None:
    given = {**shapes.fields(), "tokens": sp.Pad("tokens")}
    ranks = of_ranks(
        lambda: shapes.plan(catalog, batches=4, batch_size=2, cost="len(tokens)", given=given).to_numpy(),
        4,
        step_batches=16,
    )
    orders = {tuple(batch["image"].shape[2:]) for batch in ranks[0]}

    assert len(orders) > 3
    for step in range(max(map(len, ranks))):
        assert len({batches[step]["image"].shape[2:] for batches in ranks if step < len(batches)}) == 1


def test_ranks_that_would_mix_shapes_are_refused_with_those_that_do_not(catalog: sp.Catalog) -> None:
    stream = shapes.plan(catalog, batches=12, batch_size=1).to_numpy()

    with pytest.raises(
        BindError, match=r"8 ranks would not get one shape .* 1, 2, 3, 4, 6, 12 ranks can. Bind one of .* batches=8"
    ):
        stream.bind(rank=0, world_size=8)
    with pytest.raises(BindError, match=r"4 ranks with merge=2 .* 1, 2, 3, 6 ranks can with merge=2"):
        stream.bind(rank=0, world_size=4, merge=2)
    with pytest.raises(BindError, match=r"no number of ranks can with merge=5"):
        stream.bind(rank=0, world_size=1, merge=5)
    with pytest.raises(BindError, match=r"cannot share step_batches=9 evenly"):
        stream.bind(rank=0, world_size=2, step_batches=9)
    stream.close()
    own = shapes.plan(catalog, batches=1).to_numpy()
    assert len(own.bind(rank=2, world_size=3).take(1)) == 1, "each rank has a shape of its own"
    own.close()


def test_a_state_inside_a_row_of_one_shape_leads_ranks_that_share_the_rest(catalog: sp.Catalog) -> None:
    def make() -> sp.PreparedStream:
        return shapes.plan(catalog, batches=4).to_numpy()

    with make().bind(rank=0, world_size=2) as stream:
        for _ in islice(stream, 3):
            pass
        state = json.loads(json.dumps(stream.state_dict()))
    with make().bind(rank=0, world_size=1) as stream:
        expected = [batch["id"].tolist() for batch in stream]
        stream.load_state_dict(state)
        assert [batch["id"].tolist() for batch in stream] == expected[6:]
    with make().bind(rank=0, world_size=4) as stream:
        stream.load_state_dict(state)
        with pytest.raises(ResumeError, match=r"from batch 6 .* Save at batch 4 or 8, .* bind\(step_batches=4\)"):
            next(iter(stream))


def test_batches_of_one_shape_are_skipped_together(catalog: sp.Catalog) -> None:
    with shapes.plan(catalog, batches=4).to_numpy() as stream:
        with pytest.raises(StreamError, match=r"batches 5 to 6, .* Skip all of them: batches=range\(4, 8\)"):
            stream.skip(batches=[5, 6])
        stream.skip(batches=range(4, 8))
        left = [stream.ledger(number) for number in range(8)]
        assert [bool(each) for each in left] == [True] * 4 + [False] * 4
        assert stream.take(5)[4]["id"].tolist() == stream.ledger(8)


def test_a_saved_stream_is_the_same_one(catalog: sp.Catalog) -> None:
    plan = shapes.plan(catalog)
    catalog.save_stream("shaped", plan.to_numpy())

    with catalog.open_stream("shaped") as again, plan.to_numpy() as stream:
        assert again.fingerprint == stream.fingerprint
        assert again.take(1)[0]["id"].tolist() == stream.take(1)[0]["id"].tolist()


# ---- clips


def test_a_clip_has_the_frames_of_its_batch(tmp_path: Any) -> None:
    """Segments of 2 s have 48 frames in most files; a shape says how many of them, and how large."""
    made = clips.stored_catalog(tmp_path)
    formed = sp.batching.OneShape(
        [(4, 24, 32), (12, 24, 24), (12, 32, 24), (99, 8, 8)], batches=2, frames="frame_count"
    )
    clip = sp.Stack("clip_ref", decode="h264", transforms=[sp.transforms.FitToShape("random")])
    given = {"id": sp.List("sample_id"), "clip": clip, "n": sp.Stack("frame_count")}
    sampled = made.catalog.table(clips.SEGMENTS).sample(order=sp.GlobalShuffle(seed=1), identity="sample_id")
    plan = sampled.collate(batch_size=2, fields=given, formation=formed, last=sp.KeepPartial)
    assert plan.to_numpy().spec()["clip"].shape == (None, 3, None, None)
    seen = []
    with plan.to_numpy() as stream:
        for batch in stream:
            frames, _, high, wide = batch["clip"].shape[1:]
            assert (frames, high, wide) in formed.shapes
            assert (batch["n"] >= frames).all()
            seen += batch["id"]
    assert sorted(seen) == sorted(made.segments["sample_id"].to_pylist())

    fixed = sp.Stack("clip_ref", decode="h264", sequence_length=12, transforms=[sp.transforms.FitToShape("random")])
    alike = [shape for shape in formed.shapes if shape[0] == 12]
    known = sp.batching.OneShape([shape[1:] for shape in alike], batches=2)
    with_frames = sp.batching.OneShape(alike, batches=2, frames="frame_count")
    one = sampled.collate(batch_size=2, fields={**given, "clip": fixed}, formation=known)
    other = sampled.collate(batch_size=2, fields=given, formation=with_frames)
    with one.to_numpy() as left, other.to_numpy() as right:
        for a, b in zip(left, right, strict=True):
            assert np.array_equal(a["clip"], b["clip"])
    with pytest.raises(PlanError, match=r"Leave sequence_length out, or give shapes of \(height, width\)"):
        sampled.collate(batch_size=2, fields={"clip": fixed}, formation=with_frames)
    with pytest.raises(PlanError, match=r"Give sequence_length, or shapes of \(frames, height, width\)"):
        sampled.collate(batch_size=2, fields={"clip": clip}, formation=known)


# ---- what is said and refused


def test_explain_says_batches_of_each_shape_and_what_is_short_lent_or_left_out(catalog: sp.Catalog) -> None:
    dropping = shapes.plan(catalog, batches=8, last=sp.DropPartial).to_numpy().explain().facts["batch"]
    keeping = shapes.plan(catalog, batches=8).to_numpy().explain().facts["batch"]

    assert str(keeping["shape"]) == "the nearest of 6 by width, height, 8 batches of a shape in a row"
    lines = {line["shape"]: line for line in keeping["shapes"]}
    assert sum(line["samples"].value for line in lines.values()) == shapes.ROWS
    assert sum(line["of them short"].value for line in lines.values()) > 0
    assert lines["64 x 32"]["lent by other shapes"].value + lines["32 x 64"]["lent by other shapes"].value > 0
    assert "24 x 80" not in lines, "it has too few samples for eight batches"
    left = {line["shape"]: line["left out"].value for line in dropping["shapes"]}
    delivered = sum(line["samples"].value for line in dropping["shapes"])
    assert sum(left.values()) == shapes.ROWS - delivered > 0
    assert left["24 x 80"] > 0
    assert "OneShape window 1,024, 6 shapes by width, height, 8 batches in a row" in str(
        shapes.plan(catalog, batches=8).to_numpy().explain()
    )


def test_what_does_not_go_with_shapes_is_refused(catalog: sp.Catalog) -> None:
    sampled = catalog.table("photos").sample(order=sp.Sequential(), identity="id")
    image = {"image": shapes.fields()["image"]}
    formed = sp.batching.OneShape(shapes.SHAPES, batches=2)

    with pytest.raises(PlanError, match=r"no formation says. Give formation=batching.OneShape"):
        sampled.collate(batch_size=4, fields=image)
    with pytest.raises(PlanError, match=r"OneShape counts samples. Give batch_size"):
        sampled.collate(batch_size=None, fields=image, formation=formed)
    with pytest.raises(PlanError, match="Leave balance out"):
        sampled.collate(batch_size=4, fields=image, formation=formed, cost="width", balance="rows", step_batches=2)
    mixed = sp.mix([sp.Stream("photos", catalog.table("photos"), proportion=1.0)]).sample(
        order=sp.GlobalShuffle(seed=1)
    )
    with pytest.raises(PlanError, match="Leave the composition out, or filter a stream by its sizes"):
        mixed.collate(batch_size=4, fields=image, formation=formed, composition=sp.batching.OneStream())
    lanes = sp.DataParallel(sp.RuntimeParam("rank"), sp.RuntimeParam("world_size"), lanes=2)
    laned = catalog.table("photos").sample(order=sp.Sequential(), identity="id", assignment=lanes)
    with pytest.raises(PlanError, match="Leave lanes out of the assignment"):
        laned.collate(batch_size=4, fields=image, formation=formed)
    steps = [sp.transforms.FitToShape(), sp.transforms.Resize(8)]
    with pytest.raises(PlanError, match="Resize resizes again after FitToShape"):
        sampled.collate(
            batch_size=4, fields={"image": sp.Stack("image", decode="image", transforms=steps)}, formation=formed
        )
    with pytest.raises(StreamError, match=r"cuts samples to the shape of their batch. Ask for a whole batch"):
        sampled.collate(batch_size=4, fields=image, formation=formed).to_numpy().sample(3)
    with pytest.raises(PlanError, match="center, random, none"):
        sp.transforms.FitToShape("middle")


def test_an_evaluation_plan_crops_the_center(catalog: sp.Catalog) -> None:
    with shapes.plan(catalog).to_numpy().eval() as stream:
        batch = stream.take(1)[0]
        assert (batch["crop"][:, 8] == 0).all()
        room = batch["crop"][:, 4:6] - batch["image"].shape[2:]
        assert (np.abs(batch["crop_top_left"] - room / 2) <= 0.5).all()
