from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import spiral_stream as sp
from spiral_stream.runtime.forming.chapter import Chapter
from tests.fixtures.examples import few
from tests.fixtures.inner import batches_of, stages_of
from tests.fixtures.texts import fields, make_catalog, mixed, tokenized

FEW = few(6, 15)


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> sp.Catalog:
    return make_catalog(tmp_path_factory.mktemp("chapters"), {"a": 300, "b": 40})


def opened(catalog: sp.Catalog, *, window_size: int, lanes: int, size: int, formation: Any = None) -> Any:
    docs = mixed(catalog, {"a": 0.7, "b": 0.3}, size)
    made = formation or sp.WindowedBucket(window_size=window_size, budget=sp.BatchBudget(max_tokens=256))
    sampled = tokenized(docs, sp.GlobalShuffle(seed=1), stored=True, lanes=lanes)
    collated = sampled.collate(batch_size=2, formation=made, fields=fields(), last=sp.KeepPartial)
    return collated.to_numpy()


# ---- laws


@FEW
@given(window_size=st.integers(1, 20), lanes=st.integers(1, 3), size=st.integers(3, 20_000))
def test_chapters_share_an_epoch_out(catalog: sp.Catalog, window_size: int, lanes: int, size: int) -> None:
    with opened(catalog, window_size=window_size, lanes=lanes, size=size) as stream:
        forming, mixture = batches_of(stream).forming, stages_of(stream).epochs.mixture
        of_lane = stages_of(stream).batches.lanes.chapter_count
        at = 0
        for lane in range(lanes):
            count = of_lane(lane, forming.span)
            begins = [forming.begin(0, lane, chapter) for chapter in range(count + 1)]
            assert begins[0] == at
            assert begins == sorted(begins)
            at = begins[-1]
            assert all(mixture.border(0, each) == each for each in begins[1:-1] if each < at)
        assert at == size


@FEW
@given(size=st.integers(3, 3_000), lanes=st.integers(1, 3), data=st.data())
def test_a_chapter_is_formed_alike_at_once_or_bit_by_bit(
    catalog: sp.Catalog, size: int, lanes: int, data: st.DataObject
) -> None:
    with opened(catalog, window_size=8, lanes=lanes, size=size) as stream:
        forming = batches_of(stream).forming
        lane = data.draw(st.integers(0, lanes - 1))
        chapters = stages_of(stream).batches.lanes.chapter_count(lane, forming.span)
        number = data.draw(st.integers(0, chapters - 1))
        whole, bits = Chapter(forming, 1, lane, number), Chapter(forming, 1, lane, number)
        count = whole.finish()
        for index in range(count):
            assert bits.has(index)
            a, b = whole.draw(index), bits.draw(index)
            assert a.membership.samples.tolist() == b.membership.samples.tolist()
            assert a.samples.stream_rows.rows.tolist() == b.samples.stream_rows.rows.tolist()
        assert not bits.has(count)
        numbers = sorted(sample for batch in whole.batches for sample in batch.samples.tolist())
        assert numbers == list(range(forming.begin(1, lane, number + 1) - forming.begin(1, lane, number)))


@FEW
@given(strategy=st.sampled_from([None, "best_fit", "concat_and_split"]), data=st.data())
def test_batches_drawn_together_are_those_drawn_one_by_one(
    catalog: sp.Catalog, strategy: Any, data: st.DataObject
) -> None:
    packed = strategy and sp.batching.Packed(max_tokens=24, strategy=strategy, window_size=8)
    with opened(catalog, window_size=8, lanes=1, size=200, formation=packed) as stream:
        forming = batches_of(stream).forming
        together, single = Chapter(forming, 0, 0, 0), Chapter(forming, 0, 0, 0)
        count = together.finish()
        assert single.finish() == count
        some = data.draw(st.lists(st.integers(0, count - 1), min_size=1, unique=True).map(sorted))
        at = data.draw(st.integers(1, len(some)))
        drawn = [*together.draw_several(some[:at]), *(together.draw_several(some[at:]) if some[at:] else ())]
        for a, b in zip(drawn, map(single.draw, some), strict=True):
            assert a.membership.samples.tolist() == b.membership.samples.tolist()
            for name in ("streams", "rows", "passes"):
                assert getattr(a.samples.stream_rows, name).tolist() == getattr(b.samples.stream_rows, name).tolist()
            assert [a.samples.parts.tolist(), a.samples.origins.tolist()] == [
                b.samples.parts.tolist(),
                b.samples.origins.tolist(),
            ]
            assert a.samples.columns.keys() == b.samples.columns.keys()
        assert together.drawn == single.drawn == some[-1] + 1
        assert together.held.holds_columns() == single.held.holds_columns()


@FEW
@given(first=st.integers(0, 30), strategy=st.sampled_from(["best_fit", "first_fit", "concat_and_split"]))
def test_batches_may_be_left_out_at_the_start(catalog: sp.Catalog, first: int, strategy: Any) -> None:
    packed = sp.batching.Packed(max_tokens=24, strategy=strategy, window_size=8)
    with opened(catalog, window_size=8, lanes=1, size=200, formation=packed) as stream:
        forming = batches_of(stream).forming
        whole, later = Chapter(forming, 0, 0, 0), Chapter(forming, 0, 0, 0)
        count = whole.finish()
        first = min(first, count - 1)
        every = [whole.draw(index).samples.stream_rows.rows.tolist() for index in range(count)]
        assert [
            later.draw(index).samples.stream_rows.rows.tolist() for index in range(first, count) if later.has(index)
        ] == (every[first:])


# ---- examples


def test_a_chapter_forms_no_further_than_it_is_asked(catalog: sp.Catalog) -> None:
    with opened(catalog, window_size=8, lanes=1, size=400) as stream:
        chapter = Chapter(batches_of(stream).forming, 0, 0, 0)
        assert chapter.has(0)
        assert not chapter.complete
        assert chapter.formed <= 16


def test_what_windows_hold_is_dropped_with_their_last_batch(catalog: sp.Catalog) -> None:
    sampled = tokenized(catalog.table("a"), sp.Sequential())
    formation = sp.WindowedBucket(window_size=8, budget=sp.BatchBudget(max_tokens=128))
    plan = sampled.collate(batch_size=None, formation=formation, fields=fields())
    with plan.to_numpy() as stream:
        chapter = Chapter(batches_of(stream).forming, 0, 0, 0)
        for index in range(chapter.finish()):
            chapter.draw(index)
        assert chapter.held.holds_columns() == 0


def test_two_columns_of_tokens_keep_one_budget(catalog: sp.Catalog) -> None:
    """Widths are multiples of 8 and 6: the budget holds for both."""
    import pyarrow as pa

    sampled = tokenized(catalog.table("a"), sp.Sequential(), stored=True)
    both = sampled.map(lambda tokens: tokens, columns=["tokens"], name="more", returns=pa.list_(pa.uint16()))
    formation = sp.WindowedBucket(window_size=32, budget=sp.BatchBudget(max_tokens=120))
    own = {"x": sp.Pad("tokens", pad_to_multiple_of=8), "y": sp.Pad("more", pad_to_multiple_of=6)}
    with both.collate(batch_size=None, formation=formation, fields=own).to_numpy() as stream:
        batches = list(stream)
        assert batches_of(stream).forming.multiple == 24
        assert max(batch[name].size for batch in batches for name in ("x", "y")) <= 120
        assert all(np.array_equal(b["x"].sum(axis=1), b["y"].sum(axis=1)) for b in batches)


def test_a_resumed_run_reads_the_text_of_its_chapter_only(catalog: sp.Catalog) -> None:
    """300 rows in chapters of 64: after 4 of them a run reads the last 44 rows, whatever came before."""
    sampled = tokenized(catalog.table("a"), sp.GlobalShuffle(seed=1))
    formation = sp.WindowedBucket(window_size=1, budget=sp.BatchBudget(max_tokens=128))
    plan = sampled.collate(batch_size=None, formation=formation, fields=fields(), last=sp.KeepPartial)
    with plan.to_numpy() as whole, plan.to_numpy() as resumed, plan.to_numpy() as random:
        batches, state = [], None
        for batch in whole:
            batches.append(batch["sample_id"])
            if len(batches) == 256:  # a window of one sample is a batch
                state = whole.state_dict()
        resumed.load_state_dict(state)
        assert [batch["sample_id"] for batch in resumed] == batches[256:]
        assert resumed.metrics()["source_rows"] == 44
        assert random.batch(150)["sample_id"] == batches[150]  # the index knows where chapters begin
        assert random.metrics()["source_rows"] <= 64


@pytest.mark.parametrize(
    "formation", [sp.WindowedBucket(window_size=64), sp.batching.Packed(max_tokens=64, window_size=64)]
)
def test_a_fixed_count_drops_the_short_batch_of_a_chapter_and_no_other(tmp_path: Path, formation: Any) -> None:
    catalog = make_catalog(tmp_path, {"web": 203}, longest=30)
    sampled = tokenized(catalog.table("web"), sp.GlobalShuffle(seed=2))

    def rows(last: Any) -> list[int]:
        with sampled.collate(batch_size=8, formation=formation, last=last, fields=fields()).to_numpy() as stream:
            return [len(batch["ids"]) for batch in stream]

    dropped, kept = rows(sp.DropPartial), rows(sp.KeepPartial)
    assert set(dropped) == {8}
    assert 0 <= sum(kept) - sum(dropped) < 8 + (len(kept) - len(dropped) > 1) * 8
