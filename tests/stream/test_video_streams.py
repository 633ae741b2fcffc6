"""Video streams as a whole, over drawn plans: what holds for every selection, crop, order, tail and cache."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

import spiral_stream as sp
from spiral_stream.testing import frozen, same
from tests.fixtures.clips import SEGMENTS, Clips, register, video_catalog
from tests.fixtures.drawn_clips import CACHES, ORDERS, Drawn, plans
from tests.fixtures.examples import few

pytestmark = [pytest.mark.usefixtures("no_threads_left"), pytest.mark.timeout(600)]

FEW = few(3, 125, suppress_health_check=[HealthCheck.too_slow])


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Clips]:
    made = video_catalog(tmp_path_factory.mktemp("clips"), files=5, each=3)
    out = {"none": made}
    for name in CACHES[1:]:
        catalog = sp.connect(str(tmp_path_factory.mktemp(name) / "catalog"))
        register(catalog, made.segments, made.labels)
        out[name] = replace(made, catalog=catalog)
    sp.index_videos(out["index"].catalog, SEGMENTS, "clip_ref")
    sp.index_videos(out["half"].catalog, SEGMENTS, "clip_ref", shards=["shard-00001"])
    return out


def run(stream: Any) -> list[dict[str, Any]]:
    with stream:
        return [frozen(batch) for batch in stream]


# ---- laws


@FEW
@given(drawn=plans())
def test_any_batch_can_be_built_alone(shelf: Mapping[str, Clips], drawn: Drawn) -> None:
    catalog = shelf["none"].catalog
    whole = run(drawn.make(catalog, epoch=1))
    with drawn.make(catalog) as stream:
        for number in reversed(range(len(whole))):
            assert same(stream.batch(number, epoch=1), whole[number])


@FEW
@given(drawn=plans(), first=st.integers(1, 2))
def test_a_run_moves_from_one_world_size_to_others(shelf: Mapping[str, Clips], drawn: Drawn, first: int) -> None:
    catalog = shelf["none"].catalog
    plan = replace(drawn, last=sp.KeepPartial)
    whole = run(plan.make(catalog))
    seen: list[dict[str, Any]] = []
    state: Any = None
    for world in (1, 2, 3, 1):
        streams = [plan.make(catalog, data_parallel_rank=r, data_parallel_world_size=world) for r in range(world)]
        for stream in streams:
            if state is not None:
                stream.load_state_dict(state)
        runs = [iter(stream) for stream in streams]
        for _ in range(first if world != 1 or state is None else len(whole)):
            seen += [frozen(batch) for each in runs if (batch := next(each, None)) is not None]
        for each in runs:
            each.close()  # type: ignore[attr-defined]  # generators
        state = streams[0].state_dict()
        for stream in streams:
            stream.close()
        if len(seen) >= len(whole):
            break

    assert len(seen) == len(whole)
    assert all(same(a, b) for a, b in zip(seen, whole, strict=True))


@FEW
@given(drawn=plans(), cached=st.sampled_from(CACHES[1:]))
def test_batches_do_not_depend_on_what_is_built(shelf: Mapping[str, Clips], drawn: Drawn, cached: str) -> None:
    whole = run(drawn.make(shelf["none"].catalog))
    catalog = shelf[cached].catalog
    with drawn.make(catalog) as stream:
        if cached == "full":
            stream.materialize(lambda _: None)
        if cached == "half" and drawn.profile is not None:  # only a part of the rows is kept
            few = catalog.table(SEGMENTS).filter(sp.col("start_time_ms") > 0).cache(clip_ref=drawn.profile)
            plan = few.sample(identity="sample_id", order=drawn.order).collate(batch_size=2, fields={"x": drawn.field})
            with plan.to_numpy() as part:
                part.materialize(lambda _: None)
        found = [frozen(batch) for batch in stream]

    assert len(found) == len(whole)
    assert all(same(a, b) for a, b in zip(found, whole, strict=True))


@FEW
@given(drawn=plans(), cached=st.sampled_from(CACHES))
def test_a_batch_keeps_its_budget_and_its_shape(shelf: Mapping[str, Clips], drawn: Drawn, cached: str) -> None:
    frames = drawn.field.sequence_length or 0
    for batch in run(drawn.make(shelf[cached].catalog)):
        rows = len(batch["sample_id"])
        shape = (3, 24, 24) if drawn.field.crop == 24 else (3, 32, 16)
        if drawn.field.layout == "nthwc":
            shape = (*shape[1:], 3)
        assert batch["frames"].shape == (rows, frames, *shape)
        assert batch["frames"].dtype == np.dtype(drawn.field.dtype)
        assert 1 <= rows <= 4
        assert rows * frames <= (drawn.budget.max_frames or 0)
        assert batch["caption"] == [f"a clip called {name}" for name in batch["sample_id"]]


# ---- examples


def test_one_draw_places_the_crop_of_all_frames_of_a_clip(tmp_path: Path) -> None:
    made = video_catalog(tmp_path, files=1, each=1)
    still = sp.Stack("clip_ref", decode="h264", sequence_length=2, stride=1, crop=(48, 80), random_crop=True)
    whole = sp.Stack("clip_ref", decode="h264", sequence_length=2, stride=1, crop=(64, 96))
    plan = made.catalog.table(SEGMENTS).sample(identity="sample_id", order=sp.Sequential())
    with plan.collate(batch_size=1, fields={"a": still, "b": whole}, last=sp.KeepPartial).to_numpy() as stream:
        places = []
        for epoch in range(6):
            batch = stream.batch(0, epoch=epoch)
            fits = [
                {
                    (y, x)
                    for y in range(17)
                    for x in range(17)
                    if np.array_equal(batch["b"][0, t, :, y : y + 48, x : x + 80], batch["a"][0, t])
                }
                for t in range(2)
            ]
            assert fits[0] & fits[1]
            places.append(tuple(sorted(fits[0] & fits[1])))
    assert len(set(places)) > 1


def test_evaluation_has_nothing_random(tmp_path: Path) -> None:
    made = video_catalog(tmp_path, files=1, each=2)
    field = sp.Stack(
        "clip_ref", decode="h264", sequence_length=2, stride=2, random_start=True, crop=32, random_crop=True
    )
    plan = made.catalog.table(SEGMENTS).sample(identity="sample_id", order=sp.Sequential())
    with plan.collate(batch_size=2, fields={"a": field}).to_numpy() as stream, stream.eval() as fixed:
        assert same(fixed.batch(0, epoch=0), fixed.batch(0, epoch=1))
        assert not same(stream.batch(0, epoch=0), stream.batch(0, epoch=1))


PLAN: Final = Drawn(
    sp.Stack("clip_ref", decode="h264", sequence_length=4, stride=3, random_start=True, crop=24, random_crop=True),
    ORDERS[0],
    sp.KeepPartial,
    None,
    16,
    sp.BatchBudget(max_bytes=4 * 3 * 24 * 24 * 3),
)


@pytest.mark.parametrize(
    ("workers", "how"),
    [
        (0, None),
        (1, "fork"),
        pytest.param(4, "fork", marks=pytest.mark.slow),
        pytest.param(2, "spawn", marks=pytest.mark.slow),
    ],
)
@pytest.mark.filterwarnings("ignore:lance is not fork-safe")
@pytest.mark.filterwarnings("ignore:lancedb fork support is experimental")
def test_workers_of_a_loader_give_the_batches_of_the_bare_loop(
    shelf: Mapping[str, Clips], workers: int, how: str | None
) -> None:
    data = pytest.importorskip("torch.utils.data")
    plan = PLAN.plan(shelf["index"].catalog)
    with plan.to_torch() as bare, plan.to_torch() as stream, plan.to_torch() as resumed:
        expected = [frozen(batch) for batch in bare]
        options = {"multiprocessing_context": how, "timeout": 300} if workers else {}
        loader = data.DataLoader(stream, batch_size=None, num_workers=workers, **options)
        assert all(same(frozen(a), b) for a, b in zip(loader, expected, strict=True))
        if workers:
            resumed.load_state_dict(stream.state_dict(delivered=2))
            assert all(same(frozen(a), b) for a, b in zip(resumed, expected[2:], strict=True))
    assert max(len(batch["sample_id"]) for batch in expected) == 3


def test_metrics_count_frames_and_short_clips(shelf: Mapping[str, Clips]) -> None:
    long = replace(
        PLAN,
        field=sp.Stack("clip_ref", decode="h264", sequence_length=60, crop=24),
        budget=sp.BatchBudget(max_frames=240),
    )
    with long.make(shelf["index"].catalog) as stream:
        batches = [frozen(batch) for batch in stream]
        found = stream.metrics()
    assert found["short_clips"] == sum(len(batch["sample_id"]) for batch in batches) == 12
    assert found["frames_kept"] < found["frames_decoded"]
    assert all(np.array_equal(clip[-1], clip[-2]) for batch in batches for clip in batch["frames"])


def test_short_clips_are_dropped_by_a_filter_on_what_is_stored(tmp_path: Path) -> None:
    made = video_catalog(tmp_path, files=2, each=2)
    short = made.segments.set_column(
        made.segments.schema.get_field_index("frame_count"),
        made.segments.schema.field("frame_count"),
        pa.array([48, 10, 48, 9], pa.int32()),
    )
    catalog = sp.connect(str(tmp_path / "other"))
    register(catalog, short, made.labels)
    field = sp.Stack("clip_ref", decode="h264", sequence_length=12, short="drop", crop=24)
    plan = catalog.table(SEGMENTS).sample(identity="sample_id", order=sp.Sequential())
    with plan.collate(
        batch_size=8, fields={"x": field, "n": sp.List("sample_id")}, last=sp.KeepPartial
    ).to_numpy() as stream:
        assert [batch["n"] for batch in stream] == [["seg-000002", "seg-000000"]]
        assert "filter frame_count >= 12" in str(stream.explain())

    without = (
        catalog.table(SEGMENTS).project("sample_id", "clip_ref").sample(identity="sample_id", order=sp.Sequential())
    )
    with pytest.raises(sp.errors.PlanError, match=r'short="drop" needs column .frame_count..*take short="pad"'):
        without.collate(batch_size=8, fields={"x": field})


@pytest.mark.parametrize(
    ("field", "says"),
    [
        ({}, r"needs the number of frames per clip. Add sequence_length=16"),
        ({"sequence_length": 0}, r"sequence_length=0 is no number of frames"),
        ({"sequence_length": 4}, r"clips of one batch need one size. Add crop=224"),
        ({"sequence_length": 4, "crop": 24, "layout": "nchw"}, r"layout 'nchw' is unknown; known are ntchw, nthwc"),
        ({"sequence_length": 4, "crop": 24, "random_start": True}, r"there is no stride. Give stride=1"),
        ({"sequence_length": 4, "random_crop": True}, r"random_crop needs a size. Give crop=224"),
        ({"sequence_length": 4, "crop": 24, "short": "skip"}, r"short='skip' is unknown"),
    ],
)
def test_a_field_of_clips_that_cannot_be_is_refused_by_the_plan(
    shelf: Mapping[str, Clips], field: dict[str, Any], says: str
) -> None:
    plan = shelf["none"].catalog.table(SEGMENTS).sample(identity="sample_id", order=sp.Sequential())
    with pytest.raises(sp.errors.PlanError, match=says):
        plan.collate(batch_size=2, fields={"x": sp.Stack("clip_ref", decode="h264", **field)})


def test_a_budget_that_holds_no_clip_is_refused_by_the_plan(shelf: Mapping[str, Clips]) -> None:
    with pytest.raises(
        sp.errors.PlanError, match=r"max_frames=3 of BatchBudget holds no sample, since one has 4 frames. Raise it"
    ):
        replace(PLAN, budget=sp.BatchBudget(max_frames=3)).plan(shelf["none"].catalog)


def test_images_refuse_what_only_clips_have_and_the_other_way_round(shelf: Mapping[str, Clips]) -> None:
    plan = shelf["none"].catalog.table(SEGMENTS).sample(identity="sample_id", order=sp.Sequential())
    with pytest.raises(
        sp.errors.PlanError,
        match=r"'clip_ref' is video/h264-ref, which decode='jpeg' does not read. Give decode=.h264.",
    ):
        plan.collate(batch_size=2, fields={"x": sp.Stack("clip_ref", decode="jpeg")})
    with pytest.raises(
        sp.errors.PlanError, match=r"clip_ref' is video/h264-ref, and Raw keeps image/jpeg-ref. Give Frames"
    ):
        shelf["none"].catalog.table(SEGMENTS).cache(clip_ref=sp.Raw())


def test_times_that_are_not_the_relation_s_own_are_refused(shelf: Mapping[str, Clips], tmp_path: Path) -> None:
    """The whole file would come instead, or other frames than the plan seems to say."""
    made = shelf["none"]
    fields = {"x": sp.Stack("clip_ref", decode="h264", sequence_length=2, crop=24)}
    moved = made.catalog.table(SEGMENTS).with_columns(start_time_ms=sp.col("start_time_ms") + 100)
    with pytest.raises(
        sp.errors.PlanError, match=r"'start_time_ms' here is not the column of 'video.training_segments'.*another name"
    ):
        moved.sample(identity="sample_id", order=sp.Sequential()).collate(batch_size=2, fields=fields)

    catalog = sp.connect(str(tmp_path / "catalog"))
    files = made.segments.select(["sample_id", "clip_ref"])
    catalog.register("files", sp.Arrow(files), identity="sample_id", semantic={"clip_ref": "video/h264-ref"})
    times = made.segments.select(["sample_id", "start_time_ms", "duration_ms"])
    catalog.register("times", sp.Arrow(times), identity="sample_id")
    joined = catalog.table("times").join(catalog.table("files"), on="sample_id")
    with pytest.raises(
        sp.errors.PlanError,
        match=r"'start_time_ms' here is not the column of 'files'.*Store the times in that relation",
    ):
        joined.sample(identity="sample_id", order=sp.Sequential()).collate(batch_size=2, fields=fields)

    half = made.segments.select(["sample_id", "clip_ref", "duration_ms"])
    catalog.register("half", sp.Arrow(half), identity="sample_id", semantic={"clip_ref": "video/h264-ref"})
    with pytest.raises(
        sp.errors.PlanError, match=r"'half' has column 'duration_ms' and no 'start_time_ms'; a segment needs both"
    ):
        catalog.table("half").sample(identity="sample_id", order=sp.Sequential()).collate(batch_size=2, fields=fields)


@pytest.mark.parametrize("asked", [{"resize_shorter": 41, "crop": 24}, {"crop": 41}], ids=["resize", "crop"])
def test_frames_kept_smaller_than_they_are_asked_for_are_refused(
    shelf: Mapping[str, Clips], asked: dict[str, int]
) -> None:
    kept = shelf["none"].catalog.table(SEGMENTS).cache(clip_ref=sp.Frames(shorter_side=40))
    fields = {"x": sp.Stack("clip_ref", decode="h264", sequence_length=2, **asked)}
    with pytest.raises(
        sp.errors.PlanError, match=r"of frames kept at Frames\(shorter_side=40\).*Keep shorter_side=41 or more"
    ):
        kept.sample(identity="sample_id", order=sp.Sequential()).collate(batch_size=2, fields=fields)


def test_the_index_of_videos_tells_what_is_missing_and_can_be_built_afresh(tmp_path: Path) -> None:
    made = video_catalog(tmp_path, files=2, each=2)
    gone = made.paths[1].rename(tmp_path / "elsewhere.mp4")
    before = sp.index_videos(made.catalog, SEGMENTS, "clip_ref")
    gone.rename(made.paths[1])
    after = sp.index_videos(made.catalog, SEGMENTS, "clip_ref", afresh=True)

    bad = [error for error in before["error"].to_pylist() if error is not None]
    assert len(bad) == 2
    assert all("video-001.mp4: No such file" in error for error in bad)
    assert after["error"].null_count == 4
    assert after["segment_frames"].to_pylist() == [48] * 4
    assert after["frames"].to_pylist() == [72] * 4


def test_the_frames_of_a_clip_share_the_colours_that_are_drawn_and_views_do_not(shelf: Mapping[str, Clips]) -> None:
    def clip(*steps: Any, **options: Any) -> sp.Stack:
        steps = (sp.transforms.Resize((32, 32)), *steps)
        return sp.Stack("clip_ref", decode="h264", sequence_length=3, transforms=steps, layout="nthwc", **options)

    jitter = sp.transforms.ColorJitter(brightness=(0.3, 0.9))
    fields = {
        "plain": clip(),
        "a": clip(jitter, view="a"),
        "b": clip(jitter, view="b"),
        "n": clip(sp.transforms.ColorJitter()),
    }
    batches = []
    for profile in (None, sp.Frames()):
        segments = shelf["none"].catalog.table(SEGMENTS)
        kept = segments if profile is None else segments.cache(clip_ref=profile)
        sampled = kept.sample(identity="sample_id", order=sp.Sequential())
        with sampled.collate(batch_size=4, fields=fields).to_numpy() as stream:
            batches.append(frozen(next(iter(stream))))

    assert same(*batches)
    [batch, _] = batches
    assert np.array_equal(batch["n"], batch["plain"])
    means = {
        name: batch[name].reshape(4, 3, -1).mean(axis=2) / batch["plain"].reshape(4, 3, -1).mean(axis=2)
        for name in "ab"
    }
    assert np.abs(means["a"] - means["a"][:, :1]).max() < 0.02  # one factor per clip
    assert np.abs(means["a"][:, 0] - means["b"][:, 0]).max() > 0.05
    with pytest.raises(sp.errors.PlanError, match="clips of one batch need one size"):
        sampled.collate(
            batch_size=4, fields={"x": sp.Stack("clip_ref", decode="h264", sequence_length=3, transforms=[jitter])}
        )
