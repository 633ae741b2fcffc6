from dataclasses import replace
from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from spiral_stream.batching.budget import BatchLimits
from spiral_stream.batching.cutting import cut, even_end, is_full, least_padded, run_ends

sizes = st.lists(st.tuples(st.integers(0, 100), st.integers(0, 50)), max_size=250)
limits = st.builds(
    BatchLimits,
    multiple=st.sampled_from([1, 8]),
    batch_size=st.none() | st.integers(1, 150),
    max_tokens=st.integers(104, 3_000),
    padded=st.booleans(),
    additive=st.just(()) | st.tuples(st.integers(50, 400)),
)


def holds(lengths: list[int], costs: list[int], rule: BatchLimits) -> bool:
    """The same in words: one run at a time."""
    if rule.batch_size is not None and len(lengths) > rule.batch_size:
        return False
    width = max(1, -(-max(lengths) // rule.multiple)) * rule.multiple
    if rule.max_tokens is not None and (len(lengths) * width if rule.padded else sum(lengths)) > rule.max_tokens:
        return False
    return all(sum(costs) <= limit for limit in rule.additive)


def parts(drawn: list[tuple[int, int]], rule: BatchLimits) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
    lengths = np.array([length for length, _ in drawn], dtype=np.int64)
    return lengths, (np.array([cost for _, cost in drawn], dtype=np.int64),) * len(rule.additive)


@given(sizes, limits)
@settings(max_examples=60)
def test_every_batch_is_the_longest_run_that_keeps_to_the_limits(
    drawn: list[tuple[int, int]], rule: BatchLimits
) -> None:
    lengths, costs = parts(drawn, rule)
    ends = cut(len(drawn), lengths, costs, rule).tolist()

    assert ends[0] == 0
    assert ends[-1] == len(drawn)
    for start, stop in pairwise(ends):
        real = [[d[i] for d in drawn[start:stop]] for i in (0, 1)]
        more = [[d[i] for d in drawn[start : stop + 1]] for i in (0, 1)]
        assert stop > start
        assert holds(*real, rule)
        assert stop == len(drawn) or not holds(*more, rule)
        if is_full(start, stop, lengths, costs, rule):
            assert not holds([*real[0], 1], [*real[1], 1], rule)


@given(
    st.lists(st.tuples(st.integers(0, 100) | st.integers(0, 4), st.integers(0, 50)), max_size=40),
    limits,
    st.sampled_from([0, 1, 10, 200, 10_000]),
    st.sampled_from(["ascending", "descending", "as drawn"]),
)
@settings(max_examples=150)
def test_no_other_cut_holds_fewer_tokens_and_prices(
    drawn: list[tuple[int, int]], rule: BatchLimits, price: int, order: str
) -> None:
    drawn = drawn if order == "as drawn" else sorted(drawn, reverse=order == "descending")
    lengths, costs = parts(drawn, rule)
    ends = least_padded(len(drawn), lengths, costs, replace(rule, price=price)).tolist()
    least = [0]
    for end in range(1, len(drawn) + 1):
        begins = [begin for begin in range(end) if fits(drawn[begin:end], rule)]
        least.append(min(least[begin] + padded(drawn[begin:end], rule) + price for begin in begins))

    assert (ends[0], ends[-1]) == (0, len(drawn))
    assert all(start < stop and fits(drawn[start:stop], rule) for start, stop in pairwise(ends))
    assert sum(padded(drawn[start:stop], rule) + price for start, stop in pairwise(ends)) == least[-1]


def test_very_wide_samples_and_a_window_of_the_largest_size_are_cut_at_once() -> None:
    wide = np.sort(np.random.default_rng(0).integers(1, 2**45, 1_000))
    rule = BatchLimits(1, None, 2**53, padded=True, additive=(), price=2**39)
    ends = least_padded(1_000, wide, (), rule)
    assert rule.hold(np.diff(ends), np.maximum.reduceat(wide, ends[:-1]), wide[:1], ()).all()

    many = np.arange(2**20) // 8
    rule = BatchLimits(8, None, 2**24, padded=True, additive=(), price=2**22)
    ends = least_padded(len(many), many, (), rule)
    assert rule.hold(np.diff(ends), np.maximum.reduceat(many, ends[:-1]), many[:1], ()).all()
    assert len(ends) <= len(cut(len(many), many, (), rule)) * 1.1


def test_without_a_price_runs_are_as_long_as_they_may_be() -> None:
    lengths = np.array([1, 1, 1, 9])
    rule = BatchLimits(1, None, 40, padded=True, additive=())

    assert run_ends(4, lengths, (), rule).tolist() == [0, 4]
    assert run_ends(4, lengths, (), replace(rule, price=10)).tolist() == [0, 3, 4]
    assert run_ends(4, lengths, (), replace(rule, price=30)).tolist() == [0, 4]


@given(sizes, limits)
@settings(max_examples=60)
def test_the_last_two_batches_are_evened_out_for_no_more_than_the_price(
    drawn: list[tuple[int, int]], rule: BatchLimits
) -> None:
    lengths, costs = parts(drawn, rule)
    rule = replace(rule, price=(rule.max_tokens or 0) // 4)
    ends = run_ends(len(drawn), lengths, costs, rule)
    even = even_end(ends, lengths, costs, rule)
    held = [sum(padded(drawn[a:b], rule) for a, b in pairwise(each.tolist())) for each in (ends, even)]

    assert all(fits(drawn[start:stop], rule) for start, stop in pairwise(even.tolist()))
    assert held[1] <= held[0] + (rule.price or 0)


@given(sizes, limits)
@settings(max_examples=60)
def test_the_last_two_batches_are_as_equal_as_the_limits_allow(drawn: list[tuple[int, int]], rule: BatchLimits) -> None:
    lengths, costs = parts(drawn, rule)
    ends = cut(len(drawn), lengths, costs, rule)
    even = even_end(ends, lengths, costs, rule).tolist()

    assert even[:-2] + even[-1:] == ends[:-2].tolist() + ends[-1:].tolist()
    if len(ends) > 2 and not is_full(int(ends[-2]), int(ends[-1]), lengths, costs, rule):
        apart = {
            end: abs(padded(drawn[even[-3] : end], rule) - padded(drawn[end:], rule))
            for end in range(even[-3] + 1, even[-1])
            if all(
                holds([d[0] for d in half], [d[1] for d in half], rule) for half in (drawn[even[-3] : end], drawn[end:])
            )
        }
        assert apart[even[-2]] == min(apart.values())


def fits(drawn: list[tuple[int, int]], rule: BatchLimits) -> bool:
    return holds([length for length, _ in drawn], [cost for _, cost in drawn], rule)


def padded(drawn: list[tuple[int, int]], rule: BatchLimits) -> int:
    return len(drawn) * max(1, -(-max(d[0] for d in drawn) // rule.multiple)) * rule.multiple


def test_a_count_alone_needs_no_lengths() -> None:
    rule = BatchLimits(1, 4, None, padded=True, additive=())

    assert cut(10, None, (), rule).tolist() == [0, 4, 8, 10]
    assert cut(8, None, (), rule).tolist() == [0, 4, 8]
    assert cut(0, None, (), rule).tolist() == [0]
    assert even_end(cut(10, None, (), rule), None, (), rule).tolist() == [0, 4, 7, 10]


def test_empty_samples_are_one_multiple_wide() -> None:
    rule = BatchLimits(8, None, 32, padded=True, additive=())

    assert cut(10, np.zeros(10, dtype=np.int64), (), rule).tolist() == [0, 4, 8, 10]
