"""Samples that cannot be read: what `on_error` makes of a batch is a function of plan, data and place, and all of it is told."""

import multiprocessing
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import simplejpeg
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

import spiral_stream as sp
from spiral_stream.semantic import H264_REF
from spiral_stream.testing import frozen, same
from tests.fixtures.damaged import (
    BAD_IMAGES,
    BAD_TEXTS,
    CACHES,
    ROWS,
    Damaged,
    catalog,
    damaged,
    expected,
    image_plan,
    image_table,
    text_plan,
)
from tests.fixtures.examples import few
from tests.fixtures.streams import FIXED, our_threads
from tests.fixtures.videos import Made, corrupt, truncate, write_video

pytestmark = [pytest.mark.usefixtures("no_threads_left"), pytest.mark.timeout(300)]

Shelf = Mapping[tuple[str, str], sp.Catalog]
FEW = few(4, 200, suppress_health_check=[HealthCheck.too_slow])


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Shelf:
    folder = tmp_path_factory.mktemp("damaged")
    made = {}
    for kind in ("images", "texts"):
        made[kind, "whole"] = catalog(folder / kind / "whole", kind, whole=True)
        for cache in CACHES:
            made[kind, cache] = catalog(folder / kind / cache, kind, cache)
    return made


def run(stream: Any) -> list[dict[str, Any]]:
    """Batches, up to an error that says that nothing is left of one."""
    out = []
    with stream:
        try:
            out.extend(frozen(batch) for batch in stream)
        except sp.errors.DataError as error:
            if "leaves nothing" not in str(error):
                raise
    return out


def wanted(shelf: Shelf, drawn: Damaged, **binding: Any) -> list[dict[str, Any]]:
    """The same, made of the whole twin."""
    with drawn.stream(shelf[drawn.kind, "whole"], whole=True, **binding) as stream:
        found = list(expected(drawn, [frozen(batch) for batch in stream]))
    return found[: found.index(None)] if None in found else found  # type: ignore[return-value]  # none is None


# ---- laws


@FEW
@given(drawn=damaged(), cache=st.sampled_from(CACHES), epoch=st.integers(0, 1), threads=st.sampled_from([1, 3]))
def test_good_rows_are_those_of_whole_data_whatever_is_cached(
    shelf: Shelf, drawn: Damaged, cache: str, epoch: int, threads: int
) -> None:
    stream = drawn.stream(shelf[drawn.kind, cache], threads=threads, epoch=epoch)
    found, right = run(stream), wanted(shelf, drawn, epoch=epoch)

    assert len(found) == len(right)
    for batch, other in zip(found, right, strict=True):
        assert same(batch, other)


@FEW
@given(drawn=damaged(), cache=st.sampled_from(CACHES))
def test_batches_can_be_built_alone(shelf: Shelf, drawn: Damaged, cache: str) -> None:
    whole = run(drawn.stream(shelf[drawn.kind, cache]))
    with drawn.stream(shelf[drawn.kind, "none"]) as stream:
        for number in reversed(range(len(whole))):
            assert same(stream.batch(number), whole[number])


@FEW
@given(drawn=damaged(), world=st.sampled_from([2, 3]), workers=st.sampled_from([1, 3]), data=st.data())
def test_ranks_and_workers_share_one_sequence(
    shelf: Shelf, drawn: Damaged, world: int, workers: int, data: st.DataObject
) -> None:
    cache = data.draw(st.sampled_from(["full"] if drawn.kind == "texts" else CACHES))
    whole = run(drawn.stream(shelf[drawn.kind, cache]))
    for rank in range(world):
        for worker in range(workers):
            with drawn.stream(shelf[drawn.kind, cache], rank=rank, world_size=world) as stream:
                due = range(rank + worker * world, len(whole), world * workers)
                own = stream._worker_batches(worker, workers)
                for number, (batch, _) in zip(due, own, strict=False):
                    assert same(whole[number], batch)
                own.close()


@FEW
@given(drawn=damaged().filter(lambda drawn: drawn.kind == "images"), merge=st.sampled_from([2, 3]))
def test_merged_batches_are_settled_one_by_one(shelf: Shelf, drawn: Damaged, merge: int) -> None:
    whole = run(drawn.stream(shelf["images", "none"]))
    merged = run(drawn.stream(shelf["images", "none"], merge=merge))

    for at, batch in enumerate(merged[: len(whole) // merge]):  # after them a tail rule may pad
        parts = whole[at * merge : (at + 1) * merge]
        for name, value in batch.items():
            together = [each for part in parts for each in part[name]]
            assert same(value, together if isinstance(value, list) else np.array(together, value.dtype))


@FEW
@given(drawn=damaged(), cache=st.sampled_from(CACHES))
def test_every_refused_sample_is_in_the_quarantine_once(
    tmp_path_factory: pytest.TempPathFactory, shelf: Shelf, drawn: Damaged, cache: str
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPIRAL_CACHE", str(tmp_path_factory.mktemp("prepared")))
        refused = []
        with drawn.stream(shelf[drawn.kind, cache]) as stream:
            assert len(stream.quarantine()) == 0
            for number in (*range(3), 0, 2):  # the same batches again say nothing new
                try:
                    stream.batch(number)
                except (IndexError, sp.errors.DataError):
                    continue
            for number in range(3):
                ids = stream.ledger(number) if number < stream.count() or drawn.last == "pad" else []
                ids = [each[-1] if drawn.mixed else each for each in ids]
                refused += [(number, row, each) for row, each in enumerate(ids) if drawn.bad(each)]
            table = stream.quarantine()
        with drawn.stream(shelf[drawn.kind, cache]) as other:
            other.batch(0) if not any(number == 0 for number, _, _ in refused) else None
            assert other.quarantine().equals(table)

    columns = ("batch", "row", "sample_id")
    assert list(zip(*(table[name].to_pylist() for name in columns), strict=True)) == refused
    assert set(table["field"].to_pylist()) <= {"image" if drawn.kind == "images" else "tokens"}
    assert table["reason"].null_count == table["shard"].null_count == table["relation"].null_count == 0
    assert set(table["stream"].to_pylist()) <= ({"a", "b"} if drawn.mixed else {None})


# ---- what is counted and told


@pytest.mark.parametrize(("policy", "count"), [("skip", ROWS - len(BAD_IMAGES)), ("substitute", ROWS)])
def test_refused_samples_are_counted_and_explained(shelf: Shelf, policy: str, count: int) -> None:
    rows = shelf["images", "none"].table("rows")
    with image_plan(rows, last=sp.KeepPartial, on_error=policy, error_budget=9).to_numpy() as stream:
        before = stream.explain()
        assert sum(len(batch["label"]) for batch in stream) == count
        metrics = stream.metrics()
        after = str(stream.explain(analyze=True))

    done = "skipped" if policy == "skip" else "substituted"
    assert metrics["refused"] == metrics[done] == len(BAD_IMAGES)
    assert metrics["skipped"] + metrics["substituted"] == len(BAD_IMAGES)
    assert metrics["samples"] == count
    assert f"last KeepPartial, on_error {policy}, fields" in str(before)
    line = before.to_dict()["batch"]["on_error"]["text"]
    assert line.startswith(f"{policy}: ")
    assert line.endswith("; at most 9 of 60 an epoch and process (error_budget=9)")
    assert f"! 6 samples that cannot be read: {done} 6; stream.quarantine() lists them" in after


def test_a_plan_that_raises_says_nothing_of_refusals(shelf: Shelf) -> None:
    with image_plan(shelf["images", "whole"].table("rows")).to_numpy() as stream:
        text = str(stream.explain(analyze=True))
        assert "on_error" not in text
        assert "refused" not in text
        assert stream.quarantine().num_rows == 0


def test_the_quarantine_says_why_and_from_where(shelf: Shelf) -> None:
    rows = shelf["images", "full"].table("rows")
    with image_plan(rows, sp.Sequential(), batch_size=60, on_error="skip", error_budget=0.5).to_numpy() as stream:
        stream.batch(0)
        found = {row["sample_id"]: row for row in stream.quarantine().to_pylist()}
    assert sorted(found) == [f"rows-{row:08d}" for row in sorted(BAD_IMAGES)]
    one = found["rows-00000005"]
    assert "the reference is null" in one.pop("reason")
    assert {name: one[name] for name in ("stream", "epoch", "batch", "field", "relation", "reference")} == {
        "stream": None,
        "epoch": 0,
        "batch": 0,
        "field": "image",
        "relation": "rows",
        "reference": None,
    }


def test_files_are_named_in_the_quarantine(empty: sp.Catalog, tmp_path: Path) -> None:
    table = image_table({3: b"no image"})
    paths = []
    for name, data in zip(table["sample_id"].to_pylist(), table["image_ref"].to_pylist(), strict=True):
        (tmp_path / f"{name}.jpg").write_bytes(data)
        paths.append(f"{name}.jpg")
    files = table.set_column(2, pa.field("image_ref", pa.utf8()), pa.array(paths))
    empty.register("files", sp.Arrow(files, base=str(tmp_path)), semantic={"image_ref": "image/jpeg-ref"})
    plan = image_plan(empty.table("files"), on_error="substitute", last=sp.KeepPartial)
    with plan.to_numpy() as stream:
        list(stream)
        assert stream.quarantine()["reference"].to_pylist() == ["img-00000003.jpg"]
        (tmp_path / paths[9]).unlink()
        with pytest.raises(sp.errors.SourceError, match=r"img-00000009\.jpg: No such file.*Restore the file") as caught:
            list(stream)
        assert not isinstance(caught.value, sp.errors.DataError)  # storage is no property of a sample
        assert our_threads() == []


def test_a_null_where_none_may_be_is_refused_too(empty: sp.Catalog) -> None:
    table = image_table({7: b"no image"})
    labels = [None if row in (7, 8) else value for row, value in enumerate(table["label_id"].to_pylist())]
    table = table.set_column(3, "label_id", pa.array(labels, pa.int64()))
    empty.register("holes", sp.Arrow(table), semantic={"image_ref": "image/jpeg-ref"})
    plan = image_plan(empty.table("holes"), sp.Sequential(), on_error="skip", error_budget=2, last=sp.KeepPartial)
    with plan.to_numpy() as stream:
        ids = [each for batch in stream for each in batch["sample_id"]]
        found = stream.quarantine()
    assert len(ids) == 58
    assert set(zip(found["sample_id"].to_pylist(), found["field"].to_pylist(), strict=True)) == {
        ("img-00000007", "image"),  # of two reasons the first field's
        ("img-00000008", "label"),
    }


def test_images_of_a_size_that_only_the_data_know_are_compacted_too(empty: sp.Catalog) -> None:
    photos = [simplejpeg.encode_jpeg(np.full((24, 32, 3), 4 * row, np.uint8)) for row in range(ROWS)]
    plans = {}
    for name, bad, options in (("whole", {}, {}), ("bad", BAD_IMAGES, {"on_error": "skip", "error_budget": 9})):
        table = image_table({**dict(enumerate(photos)), **bad})
        empty.register(name, sp.Arrow(table), semantic={"image_ref": "image/jpeg-ref"})
        plan = image_plan(empty.table(name), transforms=(sp.transforms.Resize(20),), last=sp.KeepPartial, **options)
        plans[name] = run(plan.to_numpy())
    drawn = Damaged("images", "skip", "global", "keep", 1, False, {})
    assert plans["bad"][0]["image"].shape[1:] == (3, 20, 26)
    assert all(same(a, b) for a, b in zip(plans["bad"], expected(drawn, plans["whole"]), strict=True))


# ---- texts


@pytest.mark.parametrize("cache", CACHES)
def test_a_filter_on_tokens_keeps_what_cannot_be_read_for_its_batch_to_tell(shelf: Shelf, cache: str) -> None:
    rows = shelf["texts", cache].table("rows")
    plan = text_plan(rows, filtered=True, last=sp.KeepPartial, on_error="skip", error_budget=9)
    with plan.to_numpy() as stream:
        ids = [each for batch in stream for each in batch["sample_id"]]
        assert stream.metrics()["refused"] == len(BAD_TEXTS)
        assert stream.metrics()["filtered"] + len(ids) == ROWS - len(BAD_TEXTS)
        assert sorted(stream.quarantine()["sample_id"].to_pylist()) == sorted(f"rows-{row}" for row in BAD_TEXTS)


def count_words(tokens: pa.Array) -> pa.Array:
    lengths = tokens.value_lengths().to_numpy()
    assert len(lengths), "no sample at all"
    return pa.array(lengths, pa.int64())


def test_a_function_sees_only_what_can_be_read(shelf: Shelf) -> None:
    for cache in ("none", "full"):
        sampled = (
            shelf["texts", cache]
            .table("rows")
            .sample(order=sp.Sequential())
            .map(sp.Tokenize("text", tokenizer="words") >> "tokens")
            .map(count_words, name="words", columns=["tokens"], returns=pa.int64())
        )
        fields = {"words": sp.Stack("words"), "mask": sp.PadMask("tokens"), "sample_id": sp.List("sample_id")}
        with sampled.collate(batch_size=4, fields=fields, on_error="substitute", error_budget=9).to_numpy() as stream:
            for batch in stream:
                assert batch["words"].tolist() == batch["mask"].sum(axis=1).tolist()
            found = stream.quarantine()
        assert set(found["field"].to_pylist()) == {"tokens"}
        assert len(found) == len(BAD_TEXTS)


def upper(text: Any) -> Any:
    return text


def test_text_that_is_computed_is_refused_alike(shelf: Shelf) -> None:
    sampled = shelf["texts", "none"].table("rows").sample(order=sp.Sequential())
    computed = sampled.map(upper, name="copy", columns=["text"], returns=pa.binary()).map(
        sp.Tokenize("copy", tokenizer="words") >> "tokens"
    )
    fields = {"ids": sp.Pad("tokens"), "sample_id": sp.List("sample_id")}
    with computed.collate(batch_size=6, fields=fields, on_error="skip", error_budget=9).to_numpy() as stream:
        ids = [each for batch in stream for each in batch["sample_id"]]
        reasons = stream.quarantine()["reason"].to_pylist()
    assert len(ids) == ROWS - len(BAD_TEXTS)
    assert sum("the text is null" in each for each in reasons) == 2
    assert sum("the text is not UTF-8" in each for each in reasons) == 2


# ---- clips


@pytest.mark.parametrize("cache", ["none", "full"])
def test_clips_that_cannot_be_read_are_left_to_the_same_rule(tmp_path: Path, cache: str) -> None:
    sound = write_video(tmp_path / "sound.mp4", Made(frames=24, gop=12, faststart=True))
    corrupt(sound, tmp_path / "corrupt.mp4", 0)
    truncate(sound, tmp_path / "short.mp4", 0.5)
    made = sp.connect(str(tmp_path / "catalog"))
    stack = sp.Stack("clip_ref", decode="h264", sequence_length=4, stride=2, crop=24)
    fields = {"clip": stack, "sample_id": sp.List("sample_id")}
    paths = [sound, tmp_path / "corrupt.mp4", None, sound, sound, tmp_path / "short.mp4", sound, sound]
    plans: dict[str, Any] = {}
    for name, files in (("whole", [sound] * 8), ("bad", paths)):
        names = pa.array([None if path is None else path.name for path in files], pa.utf8())
        table = pa.table({"sample_id": [f"clip-{row}" for row in range(8)], "clip_ref": names})
        source = sp.Arrow(table, base=str(tmp_path))
        made.register(name, source, identity="sample_id", semantic={"clip_ref": H264_REF})
        clips = made.table(name).cache(clip_ref=sp.Frames(shorter_side=48)).sample(order=sp.Sequential())
        for policy in ("raise",) if name == "whole" else ("skip", "substitute"):
            budget = None if policy == "raise" else 3
            plan = clips.collate(batch_size=4, fields=fields, on_error=policy, error_budget=budget)
            with plan.to_numpy() as stream:
                if cache == "full":
                    assert stream.materialize(lambda _: None).refused == (3 if policy == "skip" else 0)
                plans[policy] = [frozen(batch) for batch in stream]
                found = stream.quarantine()
    assert found["reference"].to_pylist() == ["corrupt.mp4", None, "short.mp4"]
    for policy in ("skip", "substitute"):
        drawn = Damaged("images", policy, "sequential", "keep", 1, False, {})
        wanted = expected(drawn, plans["raise"], lambda batch, row: batch["sample_id"][row][-1] in "125")
        assert all(same(a, b) for a, b in zip(plans[policy], wanted, strict=True))


# ---- budget


def test_a_used_up_budget_stops_the_stream_and_says_how_to_go_on(empty: sp.Catalog) -> None:
    empty.register("bad", sp.Arrow(image_table(BAD_IMAGES)), semantic={"image_ref": "image/jpeg-ref"})
    rows, options = empty.table("bad"), {"last": sp.KeepPartial, "on_error": "substitute"}
    plan = image_plan(rows, error_budget=5, **options)
    seen: list[Any] = []
    with plan.to_numpy() as stream:
        message = (
            r"collate: 6 samples of epoch 0 could not be read, more than the 5 that error_budget=5 allows of 60; the last: "
            r"'img-.*' \(image: .*\)\. All are in .*/prepared/quarantine/.*, see stream\.quarantine\(\): mend them, leave them "
            r"out before sample with \.filter\(~col\(\"sample_id\"\)\.is_in\(\[\.\.\.\]\)\), or raise error_budget"
        )
        with pytest.raises(sp.errors.DataError, match=message):
            seen.extend(frozen(batch) for batch in stream)
        assert our_threads() == []
        assert len(stream.quarantine()) == 6
        state = stream.state_dict()
    with image_plan(
        rows, error_budget=6, **options
    ).to_numpy() as stream:  # the budget is no part of the plan's fingerprint
        stream.load_state_dict(state)
        rest = [frozen(batch) for batch in stream]
        whole = [stream.batch(number, epoch=0) for number in range(len(seen) + len(rest))]
    assert all(same(a, b) for a, b in zip([*seen, *rest], whole, strict=True))


def test_the_budget_is_of_an_epoch_and_counts_a_batch_once(empty: sp.Catalog) -> None:
    empty.register("bad", sp.Arrow(image_table(BAD_IMAGES)), semantic={"image_ref": "image/jpeg-ref"})
    plan = image_plan(empty.table("bad"), last=sp.KeepPartial, on_error="skip", error_budget=0.1)
    with plan.to_numpy() as stream:
        state = stream.state_dict()
        for _ in range(3):
            list(stream)
        stream.load_state_dict(state)
        list(stream)
        assert stream.metrics()["refused"] == 4 * len(BAD_IMAGES)
        assert len(stream.quarantine()) == 3 * len(BAD_IMAGES)


def test_the_default_budget_is_a_hundredth_and_at_least_one(empty: sp.Catalog) -> None:
    for count, bad in ((1, {3: b"x"}), (2, {3: b"x", 9: None})):
        empty.register(f"bad{count}", sp.Arrow(image_table(bad)), semantic={"image_ref": "image/jpeg-ref"})
        with image_plan(empty.table(f"bad{count}"), last=sp.KeepPartial, on_error="skip").to_numpy() as stream:
            if count == 1:
                assert sum(len(batch["label"]) for batch in stream) == 59
            else:
                with pytest.raises(sp.errors.DataError, match=r"more than the 1 that error_budget=0\.01 allows of 60"):
                    list(stream)


@pytest.mark.crossed
@pytest.mark.parametrize("policy", ["skip", "substitute"])
@pytest.mark.parametrize("merge", [1, 2, 3])
def test_a_batch_of_which_nothing_is_left_is_delivered_as_the_next_one(
    empty: sp.Catalog, policy: str, merge: int
) -> None:
    empty.register("whole", sp.Arrow(image_table({})), semantic={"image_ref": "image/jpeg-ref"})
    options: dict[str, Any] = {"order": sp.Sequential(), "batch_size": 4, "last": sp.KeepPartial}
    with image_plan(empty.table("whole"), **options).to_numpy() as stream:
        rows = [int(each[-2:]) for batch in stream for each in batch["sample_id"]]
    bad = {rows[at]: b"x" for at in (*range(4), *range(20, 28), 57, 58, 59)}
    empty.register("bad", sp.Arrow(image_table(bad)), semantic={"image_ref": "image/jpeg-ref"})
    plan = image_plan(empty.table("bad"), on_error=policy, error_budget=1.0, **options)
    with plan.to_numpy().bind(merge=merge) as stream:
        ids = [[rows.index(int(each[-2:])) for each in batch["sample_id"]] for batch in stream]
        metrics, found = stream.metrics(), stream.quarantine()
    firsts = (4, 4, 8, 12, 16, 28, 28, 28, 32, 36, 40, 44, 48, 52)
    single = [[*range(first, first + 4)] for first in firsts] + [[56] if policy == "skip" else [56] * 4]
    whole = len(single) // merge * merge
    assert ids[: whole // merge] == [[*chain(*single[at : at + merge])] for at in range(0, whole, merge)]
    assert metrics["refused"] == len(found) == len(bad)
    assert metrics["samples"] == sum(map(len, ids))


@pytest.mark.parametrize("policy", ["skip", "substitute"])
def test_a_batch_of_which_nothing_is_left_is_refused_where_none_beside_it_has_anything(
    empty: sp.Catalog, policy: str
) -> None:
    empty.register(
        "bad", sp.Arrow(image_table(dict.fromkeys(range(60), b"x"))), semantic={"image_ref": "image/jpeg-ref"}
    )
    for size, none in ((4, "none of its 4 samples can be read"), (1, "its only sample cannot be read")):
        plan = image_plan(empty.table("bad"), sp.Sequential(), batch_size=size, on_error=policy, error_budget=1.0)
        message = (
            rf'epoch 0: {none}, so on_error="{policy}" leaves nothing, nor has one of the 8 batches beside it a sample that '
            r"can; the first: image: jpeg: .*stream\.quarantine\(\)"
        )
        with plan.to_numpy() as stream:
            with pytest.raises(sp.errors.DataError, match=message):
                list(stream)
            assert len(stream.quarantine()) >= size


# ---- processes


def _read(folder: str, rank: int) -> None:
    rows = sp.connect(folder).table("bad")
    with image_plan(rows, on_error="skip", error_budget=1.0, last=sp.KeepPartial).to_numpy() as stream:
        stream.bind(rank=rank, world_size=2)
        list(stream)


def test_ranks_write_one_quarantine_at_the_same_time(empty: sp.Catalog) -> None:
    empty.register("bad", sp.Arrow(image_table(BAD_IMAGES)), semantic={"image_ref": "image/jpeg-ref"})
    start = multiprocessing.get_context("forkserver")
    ranks = [start.Process(target=_read, args=(str(empty.root), rank)) for rank in range(2)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(60)
        assert rank.exitcode == 0
    with image_plan(empty.table("bad"), on_error="skip", error_budget=1.0, last=sp.KeepPartial).to_numpy() as stream:
        alone = stream.quarantine()
        list(stream)
        assert stream.quarantine().equals(alone)
    assert sorted(alone["sample_id"].to_pylist()) == [f"img-{row:08d}" for row in sorted(BAD_IMAGES)]


@pytest.mark.filterwarnings("ignore:lance is not fork-safe")  # which is why forked workers read in another interpreter
@pytest.mark.filterwarnings("ignore:lancedb fork support is experimental")
def test_the_loader_gives_the_same_batches(empty: sp.Catalog) -> None:
    torch_data = pytest.importorskip("torch.utils.data")
    empty.register("bad", sp.Arrow(image_table(BAD_IMAGES)), semantic={"image_ref": "image/jpeg-ref"})
    plan = image_plan(empty.table("bad"), on_error="skip", error_budget=1.0, last=sp.KeepPartial, transforms=FIXED)
    whole = run(plan.to_numpy())
    for workers in (0, 1):
        with plan.to_torch() as stream:
            for batch, right in zip(torch_data.DataLoader(stream, None, num_workers=workers), whole, strict=True):
                assert same({n: v if isinstance(v, list) else v.numpy() for n, v in batch.items()}, right)
            assert len(stream.quarantine()) == len(BAD_IMAGES)


def test_a_plan_is_saved_with_its_policy(empty: sp.Catalog) -> None:
    empty.register("bad", sp.Arrow(image_table(BAD_IMAGES)), semantic={"image_ref": "image/jpeg-ref"})
    plan = image_plan(empty.table("bad"), on_error="skip", error_budget=7, last=sp.KeepPartial)
    empty.save_stream("train", plan.to_numpy())
    with empty.open_stream("train") as stream:
        assert sum(len(batch["label"]) for batch in stream) == 54
        assert stream.fingerprint == plan.fingerprint


@pytest.mark.parametrize("source", ["parquet", "arrow"])
def test_a_list_with_a_null_item_is_a_bad_sample(tmp_path: Path, source: str) -> None:
    lists = pa.array([[1], [2, None], [3], [], None, [4, 4]], pa.list_(pa.int32()))
    table = pa.table({"sample_id": range(6), "tokens": lists})
    pq.write_table(table, tmp_path / "rows.parquet")
    shelf = sp.connect(str(tmp_path / "catalog"))
    given = sp.Arrow(table) if source == "arrow" else sp.Parquet(str(tmp_path / "rows.parquet"))
    shelf.register("rows", given, identity="sample_id")

    def batches(**options: Any) -> list[tuple[list[int], list[list[int]]]]:
        fields = {"id": sp.List("sample_id"), "tokens": sp.Pad("tokens")}
        sampled = shelf.table("rows").sample(order=sp.Sequential())
        plan = sampled.collate(batch_size=3, fields=fields, last=sp.KeepPartial, **options)
        with plan.to_numpy() as stream:
            return [(batch["id"], batch["tokens"].tolist()) for batch in stream]

    last = ([3, 4, 5], [[0, 0], [0, 0], [4, 4]])
    assert batches(on_error="skip", error_budget=1) == [([0, 2], [[1, 0], [3, 0]]), last]
    assert batches(on_error="substitute", error_budget=1) == [([0, 2, 2], [[1, 0], [3, 0], [3, 0]]), last]
    for options in ({}, {"formation": sp.batching.Packed(max_tokens=4)}):
        with pytest.raises(
            sp.errors.DataError, match=r"rows: sample sample_id=1: 'tokens': the list holds a null item. Fill it in"
        ):
            batches(**options)
