from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from spiral_stream.batching.budget import BatchLimits
from spiral_stream.batching.cutting import cut, even_end, is_full

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
