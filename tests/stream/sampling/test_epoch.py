from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import spiral_stream as sp
from spiral_stream.orders import Order, Population
from spiral_stream.sampling.epoch import EpochOrder, StreamRows
from spiral_stream.sampling.mixing.mixture import Mixture
from spiral_stream.sampling.mixing.remainder import LeftOver

Populate = Callable[..., Population]
ORDERS = [
    sp.Sequential(),
    sp.GlobalShuffle(seed=3),
    sp.ShardAwareShuffle(seed=3, shuffle_block_size=4),
    sp.HashBucketed(seed=3, bucket_count=4),
]
SIZES = st.lists(st.integers(1, 30), min_size=1, max_size=4)


def order_of(populate: Populate, order: Order, sizes: list[int], quotas: list[int] | None) -> EpochOrder:
    populations = [populate([(0, n // 2), (1, n - n // 2)], stream=f"s{k}") for k, n in enumerate(sizes)]
    return EpochOrder(order, populations, None if quotas is None else Mixture(5, quotas))


def everything(order: EpochOrder) -> np.ndarray:
    return np.arange(order.total, dtype=np.uint64)


# ---- laws


@given(data=st.data(), sizes=SIZES, order=st.sampled_from(ORDERS))
def test_streams_go_through_their_passes_row_by_row(
    populate: Populate, data: st.DataObject, sizes: list[int], order: Order
) -> None:
    quotas = [data.draw(st.integers(0, 70)) for _ in sizes]
    quotas[0] += 1
    epochs = order_of(populate, order, sizes, quotas)
    seen: list[list[tuple[int, int]]] = [[] for _ in sizes]
    for epoch in range(3):
        places = epochs.stream_rows(epoch, everything(epochs))
        for stream, row, number in zip(places.streams, places.rows, places.passes, strict=True):
            seen[stream].append((int(number), int(row)))
    for size, quota, own in zip(sizes, quotas, seen, strict=True):
        assert len(own) == 3 * quota
        assert sorted(number for number, _ in own) == [use // size for use in range(len(own))]
        for number in range(len(own) // size):
            assert sorted(row for of, row in own if of == number) == list(range(size))
        assert len(set(own)) == len(own)


@given(data=st.data(), sizes=SIZES, order=st.sampled_from(ORDERS), mixed=st.booleans(), epoch=st.integers(0, 4))
def test_a_row_is_found_where_it_stands(
    populate: Populate, data: st.DataObject, sizes: list[int], order: Order, mixed: bool, epoch: int
) -> None:
    quotas = [data.draw(st.integers(1, 70)) for _ in sizes] if mixed else None
    epochs = order_of(populate, order, sizes if mixed else sizes[:1], quotas)
    places = epochs.stream_rows(epoch, everything(epochs))
    stream = data.draw(st.integers(0, len(sizes) - 1)) if mixed else 0
    row = data.draw(st.integers(0, sizes[stream] - 1))

    expected = np.flatnonzero((places.streams == stream) & (places.rows == row)).tolist()
    assert epochs.positions(epoch, stream, row) == expected


@given(data=st.data(), sizes=SIZES, order=st.sampled_from(ORDERS))
def test_what_else_is_asked_does_not_matter(
    populate: Populate, data: st.DataObject, sizes: list[int], order: Order
) -> None:
    epochs = order_of(populate, order, sizes, [2 * n for n in sizes])
    whole = epochs.stream_rows(1, everything(epochs))
    some = np.array(data.draw(st.lists(st.integers(0, epochs.total - 1), max_size=20)), dtype=np.int64)
    asked = some.astype(np.uint64)

    places = epochs.stream_rows(1, asked)
    wanted = whole.take(some)
    for name in ("streams", "rows", "passes"):
        assert getattr(places, name).tolist() == getattr(wanted, name).tolist()
        assert getattr(places, name).dtype == getattr(whole, name).dtype
    assert asked.tolist() == some.tolist()


@given(left=st.sets(st.integers(0, 40), max_size=20), sizes=st.integers(1, 30), quota=st.integers(1, 60))
def test_a_carried_stream_goes_on_with_what_was_left(
    populate: Populate, left: set[int], sizes: int, quota: int
) -> None:
    left_over = LeftOver(tuple((use, 1) for use in sorted(left)), 41)
    population = populate([(0, sizes)], stream="s0")
    epochs = EpochOrder(sp.GlobalShuffle(seed=1), [population], Mixture(5, [quota]), [left_over])
    found = epochs.stream_rows(0, everything(epochs))

    uses = np.array([*sorted(left), *range(41, 41 + quota)][:quota])
    wanted = []
    for number in np.unique(uses // sizes).tolist():
        own = uses[uses // sizes == number] % sizes
        rows = epochs.order.arrange(population, number).rows(own.astype(np.uint64))
        wanted += [(number, row) for row in rows.tolist()]
    assert sorted(zip(found.passes.tolist(), found.rows.tolist(), strict=True)) == sorted(wanted)
    for row in range(sizes):
        assert epochs.positions(0, 0, row) == np.flatnonzero(found.rows == row).tolist()


# ---- examples


def test_without_a_mixture_the_pass_is_the_epoch(populate: Populate) -> None:
    epochs = order_of(populate, sp.GlobalShuffle(seed=3), [9], None)
    places = epochs.stream_rows(4, everything(epochs))

    assert sorted(places.rows.tolist()) == list(range(9))
    assert set(places.passes.tolist()) == {4}
    assert set(places.streams.tolist()) == {0}


@pytest.mark.parametrize("quotas", [None, [3, 4]])
def test_no_positions_are_no_places(populate: Populate, quotas: list[int] | None) -> None:
    epochs = order_of(populate, sp.GlobalShuffle(seed=3), [9, 2][: 1 if quotas is None else 2], quotas)
    nothing = epochs.stream_rows(0, np.empty(0, dtype=np.uint64))

    assert len(nothing) == 0
    assert len(StreamRows.concat([nothing, nothing])) == 0
