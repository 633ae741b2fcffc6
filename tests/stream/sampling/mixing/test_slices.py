import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spiral_stream.sampling.mixing.schedule import Course, Schedule
from spiral_stream.sampling.mixing.slices import ADAPTED, VERSION, Epoch, order_version, slice_count, slice_size

few = settings(deadline=None, max_examples=40)
QUOTAS = st.lists(st.integers(0, 3_000), min_size=1, max_size=6).filter(any)


def epoch(quotas: list[int], slices: int, seed: int = 1) -> Epoch:
    return Epoch(seed, 0, np.array(quotas, dtype=np.int64), slices)


@few
@given(quotas=QUOTAS, slices=st.integers(1, 12))
def test_each_stream_has_its_quota_and_its_samples_follow_their_borders(quotas: list[int], slices: int) -> None:
    one = epoch(quotas, slices)
    streams, samples = one.split(np.arange(sum(quotas)))

    assert np.bincount(streams, minlength=len(quotas)).tolist() == quotas
    for k, quota in enumerate(quotas):
        assert sorted(samples[streams == k].tolist()) == list(range(quota))
    assert one.join(streams, samples).tolist() == list(range(sum(quotas)))


@few
@given(quotas=QUOTAS, slices=st.integers(1, 12), data=st.data())
def test_a_border_says_how_many_samples_lie_before_it(quotas: list[int], slices: int, data: st.DataObject) -> None:
    one, total = epoch(quotas, slices), sum(quotas)
    at = data.draw(st.integers(0, total))
    border, taken = one.border(at)
    streams, _ = one.split(np.arange(border))

    assert at <= border <= total
    assert taken.tolist() == np.bincount(streams, minlength=len(quotas)).tolist()
    assert one.border(border)[0] == border
    ahead = one.ahead(border, taken)
    assert abs(ahead.sum()) < 1e-6
    assert np.abs(ahead).max() < 1 + len(quotas)


@few
@given(quotas=QUOTAS, slices=st.integers(1, 12))
def test_shares_are_the_quotas_where_no_schedule_moves_them(quotas: list[int], slices: int) -> None:
    assert epoch(quotas, slices).shares(0) == pytest.approx(np.array(quotas) / sum(quotas))


def test_shares_follow_a_schedule_inside_an_epoch() -> None:
    total, slices = 40_000, 8
    schedule = Schedule(((0, (1, 0)), (total, (0, 1))))
    one = Epoch(3, 0, np.array([total // 2, total // 2]), slices, Course(schedule, total, slices))

    assert one.shares(total // 4) == pytest.approx([0.75, 0.25])
    streams, _ = one.split(np.arange(total))
    quarter = np.bincount(streams[: total // 4], minlength=2) / (total // 4)
    assert quarter == pytest.approx([0.875, 0.125], abs=0.05)


def test_slices_are_smaller_where_a_short_schedule_moves_the_shares() -> None:
    assert (slice_size(3), slice_size(1_000)) == (4_096, 8_000)
    assert slice_size(3, 10**6) == 4_096
    assert slice_size(3, 1_600) == 100
    assert slice_size(3, 16) == 24  # eight samples per stream at least
    assert (order_version(3, None), order_version(3, 10**6), order_version(3, 1_600)) == (VERSION, VERSION, ADAPTED)
    assert (slice_count(10_000, 4_096), slice_count(5, 4_096)) == (2, 1)
