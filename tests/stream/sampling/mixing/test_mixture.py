"""Laws, the specification and golden values of the order of a mixture."""

import hashlib
import itertools
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, reject
from hypothesis import strategies as st
from numpy.typing import NDArray

from spiral_stream.errors import PlanError
from spiral_stream.sampling.mixing.mixture import LARGEST, Mixture, apportion
from spiral_stream.sampling.mixing.schedule import Schedule
from spiral_stream.sampling.orders.permutation import permute
from spiral_stream.seeding import combine, key
from tests.fixtures.examples import few

UInt64 = NDArray[np.uint64]

quick = few(15, 40, deadline=None, derandomize=True)
few = few(6, 15, deadline=None, derandomize=True)

WEIGHTS = st.one_of(
    st.integers(0, 50),
    st.fractions(0, 3, max_denominator=97),
    st.floats(0, 1e9, allow_nan=False),
)
QUOTAS = st.one_of(
    st.lists(st.integers(0, 12_000), min_size=1, max_size=6),
    st.lists(st.sampled_from([0, 1, 2, 30, 9_000]), min_size=1, max_size=12),
    st.lists(st.integers(0, 30), min_size=300, max_size=1_000),
).filter(any)
SEEDS = st.integers(-(2**70), 2**70)


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    streams = draw(st.integers(1, 5))
    samples = draw(st.lists(st.integers(0, 60_000), min_size=1, max_size=4, unique=True).map(sorted))
    weights = [
        tuple(draw(st.lists(WEIGHTS, min_size=streams, max_size=streams).filter(any))) for _ in range(len(samples))
    ]
    weights[0] = tuple(weight or 1 for weight in weights[0])
    return Schedule(tuple(zip(samples, weights, strict=True)))


def moving(seed: int, schedule: Schedule, total: int) -> Mixture:
    try:
        return Mixture(seed, schedule, total=total)
    except PlanError as error:
        if "it would be flat" not in str(error):
            raise
        reject()


MIXTURES = st.one_of(st.builds(Mixture, SEEDS, QUOTAS), st.builds(moving, SEEDS, schedules(), st.integers(1, 40_000)))


def whole(mixture: Mixture, epoch: int) -> tuple[NDArray[np.int32], UInt64]:
    return mixture.split(epoch, np.arange(mixture.total, dtype=np.uint64))


def borders(mixture: Mixture, epoch: int) -> list[int]:
    found = [0]
    while found[-1] < mixture.total:
        found.append(mixture.border(epoch, found[-1] + 1))
    return found


# --- laws


@quick
@given(mixture=MIXTURES, epoch=st.integers(0, 5))
def test_an_epoch_has_each_quota_exactly_and_its_uses_once(mixture: Mixture, epoch: int) -> None:
    streams, uses = whole(mixture, epoch)

    quotas = mixture.quotas(epoch)
    assert np.array_equal(np.bincount(streams, minlength=quotas.size).astype(np.uint64), quotas)
    assert int(quotas.sum()) == mixture.total
    for k, first in enumerate(mixture.first_uses(epoch)):
        assert np.array_equal(np.sort(uses[streams == k]), first + np.arange(quotas[k], dtype=np.uint64))


@quick
@given(mixture=MIXTURES, epochs=st.integers(1, 6), backwards=st.booleans())
def test_uses_go_on_from_epoch_to_epoch(mixture: Mixture, epochs: int, backwards: bool) -> None:
    asked = range(epochs)[::-1] if backwards else range(epochs)
    starts = {epoch: mixture.first_uses(epoch) for epoch in asked}

    assert not starts[0].any()
    for epoch in range(epochs - 1):
        assert np.array_equal(starts[epoch] + mixture.quotas(epoch), starts[epoch + 1])
        assert np.array_equal(mixture.used(epoch, mixture.total), mixture.used(epoch + 1, 0))


@quick
@given(mixture=MIXTURES, epoch=st.integers(0, 4))
def test_join_is_the_inverse_of_split(mixture: Mixture, epoch: int) -> None:
    streams, uses = whole(mixture, epoch)

    assert np.array_equal(mixture.join(epoch, streams, uses), np.arange(mixture.total))
    before, after = mixture.first_uses(epoch), mixture.first_uses(epoch + 1)
    every = np.arange(before.size, dtype=np.int32)
    assert (mixture.join(epoch, every, after) == -1).all()
    assert (
        mixture.join(epoch, every, before - np.uint64(1)) == -1
    ).all()  # the last use of the epoch before, or 2**64-1


@quick
@given(mixture=MIXTURES, epoch=st.integers(0, 4), picks=st.lists(st.integers(0, 10**6), min_size=1, max_size=30))
def test_a_position_alone_is_what_it_is_in_a_batch(mixture: Mixture, epoch: int, picks: list[int]) -> None:
    streams, uses = whole(mixture, epoch)
    positions = np.array(picks, dtype=np.uint64) % np.uint64(mixture.total)

    some = mixture.split(epoch, positions)

    assert np.array_equal(some[0], streams[positions.astype(np.int64)])
    assert np.array_equal(some[1], uses[positions.astype(np.int64)])
    for at in positions[:3]:
        alone = mixture.split(epoch, np.array([at]))
        assert (alone[0][0], alone[1][0]) == (streams[int(at)], uses[int(at)])


@quick
@given(seed=SEEDS, quotas=QUOTAS, epoch=st.integers(0, 9))
def test_at_every_slice_border_each_stream_is_within_one_sample_of_its_share(
    seed: int, quotas: list[int], epoch: int
) -> None:
    mixture = Mixture(seed, quotas)

    places = borders(mixture, epoch)

    slices = len(places) - 1
    assert slices == max(1, mixture.total // max(4_096, 8 * len(quotas)))
    start, (streams, _) = mixture.first_uses(epoch), whole(mixture, epoch)
    for b, position in enumerate(places):
        taken = np.bincount(streams[:position], minlength=len(quotas))
        assert np.array_equal(mixture.used(epoch, position) - start, taken.astype(np.uint64))
        assert all(abs(int(count) * slices - b * quota) < slices for count, quota in zip(taken, quotas, strict=True))


def share_until(schedule: Schedule, stream: int, sample: Fraction) -> Fraction:
    """The integral of a stream's share over the run's first samples, in plain Fractions."""
    points = [(at, Fraction(own[stream]) / sum(map(Fraction, own))) for at, own in schedule.points]
    points = [(0, points[0][1]), *points, (10**9, points[-1][1])]
    area = Fraction(0)
    for (left, first), (right, second) in itertools.pairwise(points):
        width = min(Fraction(right), sample) - left
        if width > 0:
            area += width * first + (second - first) * width**2 / (2 * (right - left))
    return area


@quick
@given(seed=SEEDS, schedule=schedules(), total=st.integers(1, 40_000), epoch=st.integers(0, 3))
def test_a_schedule_is_followed_within_one_sample(seed: int, schedule: Schedule, total: int, epoch: int) -> None:
    mixture = Mixture(seed, schedule, total=total)
    streams = range(schedule.streams)
    begun = [share_until(schedule, k, Fraction(epoch * total)) for k in streams]
    areas = [share_until(schedule, k, Fraction((epoch + 1) * total)) - begun[k] for k in streams]

    places = borders(mixture, epoch)

    assert mixture.quotas(epoch).tolist() == apportion(total, areas)
    for b, position in enumerate(places):
        nominal = epoch * total + Fraction(b * total, len(places) - 1)
        taken = mixture.used(epoch, position) - mixture.first_uses(epoch)
        for k in streams:
            done = share_until(schedule, k, nominal) - begun[k]
            assert abs(int(taken[k]) - (Fraction(int(mixture.quotas(epoch)[k])) * done / areas[k] if done else 0)) < 1
            target = share_until(schedule, k, Fraction(epoch * total + position)) - begun[k]
            exact = int(taken[k]) - (int(mixture.quotas(epoch)[k]) * target / areas[k] if target else 0)
            assert mixture.ahead(epoch, position)[k] == pytest.approx(float(exact), abs=1e-9)


@quick
@given(seed=SEEDS, quotas=QUOTAS, epoch=st.integers(0, 4), cut=st.floats(0, 1))
def test_a_mixture_that_takes_over_at_a_border_goes_on_where_each_stream_was(
    seed: int, quotas: list[int], epoch: int, cut: float
) -> None:
    before = Mixture(seed, quotas)
    place = before.border(epoch, int(cut * before.total))
    used = before.used(epoch, place)

    after = Mixture(seed, quotas[::-1], offsets=used, first_epoch=epoch + 1)

    streams, uses = whole(after, epoch + 1)
    assert np.array_equal(after.first_uses(epoch + 1), used)
    for k in set(streams.tolist()):
        assert int(uses[streams == k].min()) == int(used[k])
    assert np.array_equal(after.join(epoch + 1, streams, uses), np.arange(after.total))


def large(seed: int, streams: int, total: int, *, moving: bool) -> Mixture:
    weights = [tuple(1 + (k * k + 7 * turn) % 31 for k in range(streams)) for turn in range(2)]
    schedule = Schedule(((total // 3, weights[0]), (2 * total + 1, weights[1])))
    return Mixture(seed, schedule, total=total) if moving else Mixture(seed, apportion(total, weights[0]))


@few
@given(
    seed=SEEDS,
    streams=st.sampled_from([1, 2, 3, 50, 1_000]),
    total=st.sampled_from([10**10, 10**12, 10**12 + 12_345_677]),
    epoch=st.integers(0, 3),
    moving=st.booleans(),
    place=st.floats(0, 1, exclude_max=True),
)
def test_epochs_without_measure_are_exact_anywhere(
    seed: int, streams: int, total: int, epoch: int, moving: bool, place: float
) -> None:
    mixture = large(seed, streams, total, moving=moving)
    begin = mixture.border(epoch, int(place * (total - 20_000)))
    end = mixture.border(epoch, begin + 1)

    own, uses = mixture.split(epoch, np.arange(begin, end, dtype=np.uint64))

    assert np.array_equal(mixture.join(epoch, own[:300], uses[:300]), begin + np.arange(300))
    before, after = mixture.used(epoch, begin), mixture.used(epoch, end)
    assert int((before - mixture.first_uses(epoch)).sum()) == begin
    assert np.array_equal(np.bincount(own, minlength=streams).astype(np.uint64), after - before)
    by_stream = np.lexsort((uses, own))
    expected = [np.arange(a, b, dtype=np.uint64) for a, b in zip(before, after, strict=True)]
    assert np.array_equal(uses[by_stream], np.concatenate(expected))
    assert (np.abs(mixture.ahead(epoch, begin)) < 1 + 2 * streams * mixture.quotas(epoch) / total).all()


@few
@given(
    total=st.sampled_from([2**40 + 3, 2**53 + 1, 2**60 + 7]),
    streams=st.sampled_from([1, 3, 200]),
    moving=st.booleans(),
    places=st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=20),
)
def test_any_position_of_any_size_of_epoch_comes_back(
    total: int, streams: int, moving: bool, places: list[float]
) -> None:
    mixture = large(7, streams, total, moving=moving)
    positions = np.array([min(int(place * total), total - 1) for place in places] + [total - 1], dtype=np.uint64)

    own, uses = mixture.split(2, positions)

    assert np.array_equal(mixture.join(2, own, uses), positions.astype(np.int64))
    assert (uses - mixture.first_uses(2)[own] < mixture.quotas(2)[own]).all()


@quick
@given(total=st.integers(0, 10**12), weights=st.lists(WEIGHTS, min_size=1, max_size=20).filter(any))
@example(total=10, weights=[1, 1, 1])
@example(total=100, weights=[0.7, 0.1, 0.2])
def test_apportioning_is_exact_largest_remainder(total: int, weights: list[Fraction | float]) -> None:
    counts = apportion(total, weights)

    exact = [total * Fraction(weight) / sum(map(Fraction, weights)) for weight in weights]
    assert sum(counts) == total
    rounded_up = [count - int(share) for count, share in zip(counts, exact, strict=True)]
    assert set(rounded_up) <= {0, 1}
    assert all(up == 0 for up, share in zip(rounded_up, exact, strict=True) if share == int(share))
    order = sorted(range(len(exact)), key=lambda k: (int(exact[k]) - exact[k], k))
    assert [rounded_up[k] for k in order] == sorted(rounded_up, reverse=True)


# --- the order itself


def as_specified(seed: int, epoch: int, quotas: list[int]) -> list[tuple[int, int]]:
    """The docstring of `slices` in plain integers."""
    total, streams = sum(quotas), len(quotas)
    slices = max(1, total // max(4_096, 8 * streams))
    base = np.uint64(key("mixture", 1, seed, epoch))
    phases = [int(combine(base, np.uint64(k))) % slices for k in range(streams)]
    order = []
    for b in range(slices):
        uses = [
            [(k, epoch * quota + n) for n in range((b * quota + r) // slices, ((b + 1) * quota + r) // slices)]
            for k, (quota, r) in enumerate(zip(quotas, phases, strict=True))
        ]
        owned = list(itertools.chain(*uses))
        slice_key = combine(np.uint64(key("mixture slice", 1, seed, epoch)), np.uint64(b))
        order += [owned[int(i)] for i in permute(np.arange(len(owned)), len(owned), slice_key)]
    return order


@pytest.mark.parametrize("quotas", [[14_000, 2_000, 4_001], [1], [0, 5_000, 0], [3] * 700, [12_288, 1, 0]])
def test_the_order_is_as_specified(quotas: list[int]) -> None:
    streams, uses = whole(Mixture(17, quotas), 2)

    assert list(zip(streams.tolist(), uses.tolist(), strict=True)) == as_specified(17, 2, quotas)


def digest(mixture: Mixture, epoch: int, start: int, count: int = 20_000) -> str:
    positions = np.arange(start, start + count, dtype=np.uint64)
    streams, uses = mixture.split(epoch, positions)
    return hashlib.sha256(streams.astype("<i4").tobytes() + uses.astype("<u8").tobytes()).hexdigest()[:16]


GOLDEN_QUOTAS = [3400000000, 1000000000, 5600000000]
GOLDEN_STREAMS = [0, 0, 0, 2, 0, 1, 0, 0]
GOLDEN_USES = [7000001967, 7000000735, 7000001521, 2000000041, 7000002011, 1000000188, 7000000991, 7000001615]
GOLDEN_DIGESTS = ["ae9902d9b8910c4d", "8902e3ca4222295d", "11c47e7041e343b7"]


def test_golden_values_stay() -> None:
    web = Mixture(9176, apportion(10**10, [0.7, 0.1, 0.2]))
    many = Mixture(9176, [k * 1_000 for k in range(1_000)])
    ramp = Mixture(9176, Schedule(((0, (0.7, 0.1, 0.2)), (25 * 10**9, (0.1, 0.1, 0.8)))), total=10**10)

    assert web.quotas(0).tolist() == [7 * 10**9, 10**9, 2 * 10**9]
    assert ramp.quotas(1).tolist() == GOLDEN_QUOTAS
    assert web.split(1, np.arange(8, dtype=np.uint64))[0].tolist() == GOLDEN_STREAMS
    assert web.split(1, np.arange(8, dtype=np.uint64))[1].tolist() == GOLDEN_USES
    assert [digest(web, 3, 5 * 10**9), digest(many, 0, 10**8), digest(ramp, 2, 4 * 10**9)] == GOLDEN_DIGESTS


def test_epochs_and_seeds_interleave_differently_with_the_same_counts() -> None:
    quotas = [7_000, 1_000, 2_000]
    orders = [whole(Mixture(seed, quotas), epoch)[0] for seed, epoch in [(1, 0), (1, 1), (2, 0), (2, 1)]]

    for one, other in itertools.combinations(orders, 2):
        assert np.mean(one == other) == pytest.approx(0.7**2 + 0.1**2 + 0.2**2, abs=0.03)  # as of independent draws


def test_a_slice_is_well_mixed_inside() -> None:
    mixture = Mixture(5, apportion(400 * 4_096, [0.7, 0.1, 0.2]))
    streams = whole(mixture, 0)[0]

    # Neighbours: a pair of streams is as frequent as independent draws make it (5 standard errors).
    pairs = np.bincount(streams[:-1] * 3 + streams[1:], minlength=9) / (streams.size - 1)
    expected = np.outer([0.7, 0.1, 0.2], [0.7, 0.1, 0.2]).ravel()
    assert (np.abs(pairs - expected) < 5 * np.sqrt(expected / streams.size)).all()
    # Batches of 64 vary as draws without replacement of a slice do.
    batches = (streams[: streams.size // 64 * 64].reshape(-1, 64) == 1).sum(axis=1)
    assert batches.var() == pytest.approx(64 * 0.1 * 0.9, rel=0.05)
    # Each part of a slice has each stream alike.
    place = np.arange(streams.size) % 4_096 // 512
    rare = np.bincount(place[streams == 1], minlength=8) / np.bincount(place, minlength=8)
    assert np.abs(rare - 0.1).max() < 5 * np.sqrt(0.1 * 0.9 * 8 / streams.size)


def test_uses_inside_a_slice_come_in_no_order_of_their_own() -> None:
    streams, uses = whole(Mixture(5, [40_000, 1_960]), 0)

    rises = np.mean(np.diff(uses[streams == 0].astype(np.int64)) > 0)

    assert rises == pytest.approx(0.5, abs=0.02)


def test_a_stream_below_one_sample_a_slice_still_gets_its_quota() -> None:
    mixture = Mixture(3, [40_960, 3, 1, 0])

    streams, uses = whole(mixture, 4)

    assert np.bincount(streams, minlength=4).tolist() == [40_960, 3, 1, 0]
    assert sorted(uses[streams == 1].tolist()) == [12, 13, 14]
    assert len(set((np.flatnonzero(streams == 1) // 5_000).tolist())) == 3  # in slices far apart


def test_a_schedule_turns_one_stream_into_another_and_then_stays() -> None:
    mixture = Mixture(1, Schedule(((10_000, (1, 0)), (30_000, (0, 1)))), total=10_000)

    assert [mixture.quotas(epoch).tolist() for epoch in range(5)] == [
        [10_000, 0],
        [7_500, 2_500],
        [2_500, 7_500],
        [0, 10_000],
        [0, 10_000],
    ]
    assert mixture.first_uses(10**6).tolist() == [20_000, 10_000 + 10_000 * (10**6 - 3)]
    assert mixture.shares(1, 5_000).tolist() == [0.75, 0.25]
    assert mixture.shares(7, 10_000).tolist() == [0, 1]
    early = np.bincount(mixture.split(2, np.arange(4_000, dtype=np.uint64))[0], minlength=2)
    assert early[1] < 2_900  # 2,500 + half the slice's rise, where the epoch has 3 of 4


def test_a_schedule_that_stays_is_the_mixture_of_its_quotas() -> None:
    still = Mixture(8, Schedule(((0, (14, 2, 4)), (77, (7, 1, 2)))), total=30_001)
    quotas = Mixture(8, apportion(30_001, [7, 1, 2]))

    for epoch in (0, 1, 5):
        assert all(np.array_equal(a, b) for a, b in zip(whole(still, epoch), whole(quotas, epoch), strict=True))


def test_arguments_stay_as_they_were_and_results_are_the_callers() -> None:
    offsets, positions = np.array([5, 7], dtype=np.uint64), np.arange(10, dtype=np.uint64)
    mixture = Mixture(1, [6, 4], offsets=offsets)
    offsets[0] = 0
    mixture.quotas(0)[0] = 99
    mixture.first_uses(0)[0] = 99

    streams, uses = mixture.split(0, positions)
    mixture.join(0, streams, uses)

    assert np.array_equal(positions, np.arange(10, dtype=np.uint64))
    assert mixture.first_uses(0).tolist() == [5, 7]
    assert mixture.quotas(0).tolist() == [6, 4]
    assert (streams.dtype, uses.dtype, mixture.join(0, streams, uses).dtype) == (np.int32, np.uint64, np.int64)


def test_nothing_asked_is_nothing_answered() -> None:
    nothing = np.empty(0, dtype=np.uint64)
    mixture = Mixture(1, [3, 4])

    assert [part.size for part in mixture.split(0, nothing)] == [0, 0]
    assert mixture.join(0, nothing.astype(np.int32), nothing).size == 0


# --- bad input


@pytest.mark.parametrize("wrong", [-1, -0.5, float("nan"), float("inf"), "0.5", None, True, 1j])
def test_a_wrong_weight_is_refused(wrong: object) -> None:
    with pytest.raises(PlanError, match=r"stream 1 is .*Give a finite number of 0 or more"):
        apportion(10, [1, wrong])
    with pytest.raises(PlanError, match="Give a finite number of 0 or more"):
        Schedule(((0, (1, wrong)),))


@pytest.mark.parametrize("weights", [[], [0, 0.0]])
def test_weights_without_weight_are_refused(weights: list[float]) -> None:
    with pytest.raises(PlanError, match="at least one of them above 0"):
        apportion(10, weights)


def test_a_numpy_weight_counts_as_its_value() -> None:
    assert apportion(10**18, [np.int64(2**62), np.float32(2**62), np.uint8(0)]) == [5 * 10**17, 5 * 10**17, 0]


@pytest.mark.parametrize(
    ("points", "way_out"),
    [
        ((), "at least once"),
        (((0, (1, 2)), (0, (1, 2))), "ascending order"),
        (((0, (1, 2)), (5, (1, 2, 3))), "one weight for each stream"),
        (((0, (1, 0)), (5, (2, 0))), "Leave the stream out"),
        (((-1, (1, 1)),), "Give an integer of at least 0"),
        (((0, (0, 0)),), "at least one of them above 0"),
    ],
)
def test_a_wrong_schedule_is_refused(points: tuple[tuple[int, tuple[float, ...]], ...], way_out: str) -> None:
    with pytest.raises(PlanError, match=way_out):
        Schedule(points)


@pytest.mark.parametrize(
    ("arguments", "way_out"),
    [
        ({"quotas": [5, -1]}, "Give an integer of at least 0"),
        ({"quotas": [5, 0.5]}, "Give an integer of at least 0"),
        ({"quotas": []}, "Give an integer of at least 1"),
        ({"quotas": [0, 0]}, "Give an integer of at least 1"),
        ({"quotas": [LARGEST + 1]}, r"Give at most 2\*\*62"),
        ({"quotas": [LARGEST, LARGEST]}, r"Give at most 2\*\*62"),
        ({"quotas": [5, 6], "total": 10}, "Give quotas of that sum"),
        ({"quotas": Schedule(((0, (1, 2)),))}, "Give epoch_size"),
        ({"quotas": Schedule(((0, (1, 2)),)), "total": 0}, "Give an integer of at least 1"),
        ({"quotas": [5, 6], "offsets": [1]}, "Give one for each stream"),
        ({"quotas": [5, 6], "offsets": [1, -1]}, "Give an integer of at least 0"),
        ({"quotas": [5, 6], "first_epoch": -1}, "Give an integer of at least 0"),
        ({"quotas": [5, 6], "seed": None}, "Give an integer"),
    ],
)
def test_a_wrong_mixture_is_refused(arguments: dict[str, object], way_out: str) -> None:
    with pytest.raises(PlanError, match=way_out):
        Mixture(**{"seed": 1, **arguments})


def test_places_outside_are_refused() -> None:
    mixture = Mixture(1, [6_000, 4_000], first_epoch=2)
    one = np.zeros(1, dtype=np.uint64)

    with pytest.raises(IndexError, match=r"Ask in \[0, 10000\), or the next epoch"):
        mixture.split(2, one + np.uint64(10_000))
    with pytest.raises(IndexError, match="Ask the mixture before it"):
        mixture.split(1, one)
    with pytest.raises(IndexError, match=r"Give numbers in \[0, 2\)"):
        mixture.join(2, np.array([2], dtype=np.int32), one)
    with pytest.raises(IndexError, match=rf"Ask at {mixture.border(2, 17)}, as border"):
        mixture.used(2, 17)
    with pytest.raises(IndexError, match="or the next epoch"):
        mixture.border(2, 10_001)
    with pytest.raises(PlanError, match="Start a new run before it"):
        mixture.split(2**50, one)
