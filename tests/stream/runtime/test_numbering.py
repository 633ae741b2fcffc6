from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import spiral_stream as sp
from spiral_stream.batching.formation import Tail, as_tail
from spiral_stream.runtime.chapters import Drawn
from spiral_stream.runtime.formation_index import Counts, FormationIndex
from spiral_stream.runtime.numbering import Numbering
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


class Counted(Numbering):
    """A numbering of so many batches."""

    def __init__(self, total: int, last: Tail) -> None:
        self.count, self.last = total, last

    def exists(self, epoch: int, number: int) -> bool:
        del epoch
        return 0 <= number < self.count

    def total(self, epoch: int) -> int:
        del epoch
        return self.count

    def knows(self, epoch: int) -> bool:
        return True

    def draw(self, epoch: int, number: int) -> Drawn:
        raise NotImplementedError

    def find(self, epoch: int, stream: int, row: int) -> list[int]:
        raise NotImplementedError

    def undelivered(self, epoch: int, number: int) -> Any:
        raise NotImplementedError


# ---- laws


@given(
    total=st.integers(0, 40),
    world=st.integers(1, 4),
    merge=st.integers(1, 3),
    tail=st.sampled_from([sp.DropPartial, sp.KeepPartial, sp.PadPartial]),
)
def test_steps_are_those_that_ranks_are_admitted_to(total: int, world: int, merge: int, tail: type[Tail]) -> None:
    numbering, group = Counted(total, as_tail(tail)), world * merge
    seen: list[int] = []
    for rank in range(world):
        own: list[range] = []
        while True:
            first = len(own) * group
            begin = first + rank * merge
            due = numbering.admits(0, first, group, range(begin, begin + merge))
            if due is None:
                break
            own.append(due)
        assert numbering.steps(0, world, merge, rank) == len(own)
        seen += [number for due in own for number in due]
    whole = {sp.DropPartial: total // group * group, sp.KeepPartial: total, sp.PadPartial: -(-total // group) * group}
    assert sorted(seen) == list(range(whole[tail]))


@given(data=st.data(), lanes=st.integers(1, 4))
def test_lanes_take_turns_and_those_that_ended_are_skipped(data: st.DataObject, lanes: int) -> None:
    totals = [data.draw(st.integers(1, 8)) for _ in range(lanes)]

    class Fake:
        """The lanes of a formed numbering, as numbers."""

        _lanes = lanes
        _find = staticmethod(lambda epoch, lane, k: (0, k) if epoch == 0 and 0 <= k < totals[lane] else None)
        _lane_total = staticmethod(lambda epoch, lane: totals[lane] + epoch)

    from spiral_stream.runtime.numbering import FormedBatches

    order = [(lane, k) for k in range(max(totals)) for lane in range(lanes) if k < totals[lane]]
    for number, (lane, k) in enumerate(order):
        assert FormedBatches._turn(Fake(), 0, number) == (lane, k)  # type: ignore[arg-type]  # the part it needs
        assert FormedBatches._number(Fake(), 0, lane, k) == number  # type: ignore[arg-type]  # likewise
    assert FormedBatches._turn(Fake(), 0, len(order)) is None  # type: ignore[arg-type]  # likewise


# ---- one numbering of many chapters


@pytest.fixture(scope="module")
def known(catalog: sp.Catalog) -> Iterator[tuple[Any, list[list[Any]]]]:
    """A stream of 9 chapters, and the ledger of each of its batches."""
    with stream(catalog, lanes=2) as one:
        yield one, [one.ledger(number) for number in range(one.count())]


def test_a_row_is_found_in_every_batch_that_holds_it(known: tuple[Any, list[list[Any]]]) -> None:
    one, ledgers = known
    for name, row in (("a", 5), ("a", 2_999), ("b", 0)):
        stages = one.stages
        k = [each.name for each in stages.streams].index(name)
        expected = [number for number, own in enumerate(ledgers) if (name, f"{name}-{row}") in own]
        assert one.numbering.find(0, k, row) == expected


def test_what_the_index_knows_is_not_formed_again(catalog: sp.Catalog, known: tuple[Any, list[list[Any]]]) -> None:
    _, ledgers = known
    with stream(catalog, lanes=2) as other:
        assert other.numbering.unknown(0) == 0
        assert other.ledger(len(ledgers) - 1) == ledgers[-1]
        assert len(other.numbering._open) <= 2  # the chapters of the last batch's lane
        assert len(other) == len(ledgers)


def test_a_state_says_where_its_chapters_begin(
    catalog: sp.Catalog, known: tuple[Any, list[list[Any]]], tmp_path: Path
) -> None:
    one, ledgers = known
    for number in (0, 1, len(ledgers) // 2, len(ledgers) - 1):
        anchors = one.numbering.anchors(0, number)
        assert [lane for lane, _, _ in anchors] == [0, 1]
        with stream(catalog, lanes=2) as other:
            other.numbering.known[0] = Counts(FormationIndex(tmp_path / "none"), 2)  # as without the index
            other.numbering.anchor(0, anchors)
            assert other.ledger(number) == ledgers[number]


def test_random_access_in_any_order_is_iteration(known: tuple[Any, list[list[Any]]]) -> None:
    one, ledgers = known
    for number in np.random.default_rng(0).permutation(len(ledgers))[:12].tolist():
        assert one.ledger(number) == ledgers[number]


# ---- bad input


def test_a_batch_past_the_end_is_refused(known: tuple[Any, list[list[Any]]]) -> None:
    one, ledgers = known
    for number in (len(ledgers), 10**9, -1):
        with pytest.raises(IndexError, match=rf"batch {number} of an epoch of {len(ledgers)}; give a number"):
            one.ledger(number)


def test_counting_what_takes_long_is_refused_with_the_way_out(catalog: sp.Catalog) -> None:
    with stream(catalog, size=10**8) as one, pytest.raises(TypeError, match=r"about 100,000,000 samples.*stream.count"):
        len(one)


def test_several_readers_need_what_decides(catalog: sp.Catalog) -> None:
    def odd(size: Any) -> Any:
        return size.to_numpy() % 2 == 1

    sampled = catalog.table("a").sample(order=sp.Sequential()).filter(odd, columns=["size"])
    plan = sampled.collate(batch_size=4, fields={"id": sp.List("sample_id")})
    with plan.to_numpy() as one:
        one.numbering.need_known(1, 1)
        for world, workers, who in ((2, 1, "2 ranks"), (1, 3, "3 workers")):
            with pytest.raises(sp.BindError, match=rf"filter .*odd.*{who}.*as a column of the relation; or read with"):
                one.numbering.need_known(world, workers)
