from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import spiral_stream as sp
from spiral_stream.batching.lanes import Lanes
from spiral_stream.planner.binding.bindings import Bound
from spiral_stream.runtime.numbering.formation_index import FormationIndex
from spiral_stream.runtime.numbering.known_chapters import KnownChapters
from tests.fixtures.inner import batches_of, numbering_of, stages_of
from tests.fixtures.texts import fields, make_catalog, mixed, tokenized

EPOCH = 9_000  # two slices of a mixture, so that many small chapters end at one border


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> sp.Catalog:
    return make_catalog(tmp_path_factory.mktemp("numbering"), {"a": 3_000, "b": 900})


def stream(catalog: sp.Catalog, *, window_size: int = 16, lanes: int = 1, size: int = EPOCH, **options: Any) -> Any:
    docs = mixed(catalog, {"a": 0.7, "b": 0.3}, size)
    formation = sp.WindowedBucket(
        window_size=window_size, keys=[sp.BucketKey("len(tokens)")], budget=sp.BatchBudget(max_tokens=256)
    )
    sampled = tokenized(docs, sp.GlobalShuffle(seed=1), stored=True, lanes=lanes)
    settings = {"formation": formation, "fields": fields(), "last": sp.KeepPartial, **options}
    return sampled.collate(batch_size=None, **settings).to_numpy()


# ---- laws


@pytest.fixture(scope="module")
def known(catalog: sp.Catalog) -> Iterator[tuple[Any, list[list[Any]]]]:
    """A stream of 9 chapters, and the ledger of each of its batches."""
    with stream(catalog, lanes=2) as one:
        yield one, [one.ledger(number) for number in range(one.count())]


def test_a_row_is_found_in_every_batch_that_holds_it(known: tuple[Any, list[list[Any]]]) -> None:
    one, ledgers = known
    for name, row in (("a", 5), ("a", 2_999), ("b", 0)):
        stages = stages_of(one)
        k = [each.name for each in stages.streams].index(name)
        expected = [number for number, own in enumerate(ledgers) if (name, f"{name}-{row}") in own]
        assert list(numbering_of(one).find(0, k, row)) == expected


def test_what_the_index_knows_is_not_formed_again(catalog: sp.Catalog, known: tuple[Any, list[list[Any]]]) -> None:
    _, ledgers = known
    with stream(catalog, lanes=2) as other:
        assert numbering_of(other).unknown(0) == 0
        assert other.ledger(len(ledgers) - 1) == ledgers[-1]
        assert len(batches_of(other).chapters.open) <= 2  # the chapters of the last batch's lane
        assert len(other) == len(ledgers)


def test_a_state_says_where_its_chapters_begin(
    catalog: sp.Catalog, known: tuple[Any, list[list[Any]]], tmp_path: Path
) -> None:
    one, ledgers = known
    for number in (0, 1, len(ledgers) // 2, len(ledgers) - 1):
        anchors = batches_of(one).anchors(0, number)
        assert [lane for lane, _, _ in anchors] == [0, 1]
        with stream(catalog, lanes=2) as other:
            span = batches_of(other).forming.span
            batches_of(other).known[0] = KnownChapters(FormationIndex(tmp_path / "none"), Lanes(EPOCH, 2), span)
            batches_of(other).anchor(0, anchors)
            assert other.ledger(number) == ledgers[number]


def test_random_access_in_any_order_is_iteration(known: tuple[Any, list[list[Any]]]) -> None:
    one, ledgers = known
    for number in np.random.default_rng(0).permutation(len(ledgers))[:12].tolist():
        assert one.ledger(number) == ledgers[number]


def test_a_batch_is_looked_up_once_when_it_is_drawn(
    known: tuple[Any, list[list[Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, ledgers = known
    looked: list[int] = []
    inner = KnownChapters.nearest

    def nearest(self: KnownChapters, lane: int, k: int) -> tuple[int, int]:
        looked.append(lane)
        return inner(self, lane, k)

    numbering = numbering_of(one)
    assert numbering.exists(0, 40)  # and with it that no lane has ended before
    monkeypatch.setattr(KnownChapters, "nearest", nearest)
    for number in range(40):
        assert numbering.exists(0, number)
        numbering.draw(0, [number])
    assert looked == [0, 1] * 20
    assert len(ledgers) > 40


# ---- bad input


def test_a_batch_past_the_end_is_refused(known: tuple[Any, list[list[Any]]]) -> None:
    one, ledgers = known
    for number in (len(ledgers), 10**9, -1):
        with pytest.raises(IndexError, match=rf"batch {number} of an epoch of {len(ledgers)}. Give a number"):
            one.ledger(number)


def test_counting_what_takes_long_is_refused_with_the_way_out(catalog: sp.Catalog) -> None:
    left = "(100,000,000|99,999,744)"  # a quick machine forms a whole chapter while it measures
    with stream(catalog, size=10**8) as one, pytest.raises(TypeError, match=rf"about {left} samples.*stream.count"):
        len(one)


def bound(world_size: int) -> Bound:
    return Bound(0, 0, world_size, 0, 1)


def test_several_readers_need_what_decides(catalog: sp.Catalog) -> None:
    def odd(size: Any) -> Any:
        return size.to_numpy() % 2 == 1

    sampled = catalog.table("a").sample(order=sp.Sequential()).filter(odd, columns=["size"])
    plan = sampled.collate(batch_size=4, fields={"id": sp.List("sample_id")})
    with plan.to_numpy() as one:
        batches_of(one).need_known(bound(1), 1, 0)
        for world, workers, who in ((2, 1, "2 ranks"), (1, 3, "3 workers")):
            with pytest.raises(
                sp.errors.BindError, match=rf"filter .*odd.*{who}.*as a column of the relation; or read with"
            ):
                batches_of(one).need_known(bound(world), workers, 0)
