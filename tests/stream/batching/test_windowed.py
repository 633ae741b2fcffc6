from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spiral_stream import BatchBudget, BucketKey, StratifiedByStream, WindowedBucket
from spiral_stream.batching import Composition, OneStream, Setting, Window
from spiral_stream.errors import DataError, PlanError
from spiral_stream.testing import ChapterSamples, FormedChapter, check_formation
from tests.fixtures.examples import few

TOKENS = BucketKey("len(tokens)")


@st.composite
def cases(draw: st.DrawFn) -> tuple[WindowedBucket, ChapterSamples, Setting]:
    """Any policy on any chapter, with supply that need not follow the shares."""
    size = draw(st.integers(0, 300))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    count = draw(st.integers(1, 6))
    lengths = rng.integers(0, draw(st.sampled_from([2, 30, 200])), size)
    costs = draw(st.integers(0, 2))
    names = ("max_frames", "max_bytes")[:costs]
    tokens = None if costs and draw(st.booleans()) else draw(st.integers(16, 600))
    policies = ["truncate", "alone", "drop"] if tokens and not costs else ["alone", "drop"]
    budget = BatchBudget(
        max_tokens=tokens,
        count=draw(st.sampled_from(["padded", "real"])),
        oversize=draw(st.sampled_from(policies)),
        **{name: draw(st.integers(10, 100)) for name in names},
    )
    batch_size = draw(st.none() | st.integers(1, 20))
    window_size = draw(st.integers(1, 80))
    composition: Composition | None = draw(st.sampled_from([None, StratifiedByStream(), OneStream(), OneStream(3)]))
    keyed = draw(st.booleans())
    chapter = ChapterSamples(
        lengths,
        rng.integers(0, count, size).astype(np.int32),
        draw(st.just([1 / count] * count) | st.just([1.0] + [0.0] * (count - 1))),  # type: ignore[arg-type]
        keys=(lengths, rng.integers(0, 3, size)) if keyed else (),
        costs=tuple(rng.integers(0, 13, size) for _ in names),
    )
    keys = (TOKENS, BucketKey("kind")) if keyed else ()
    policy = WindowedBucket(window_size, keys, budget, draw(st.integers(1, 5)), composition)
    return policy, chapter, chapter.setting(draw(st.integers(0, 9)), draw(st.sampled_from([1, 8])), batch_size)


@given(cases())
@few(30, 100)
def test_every_sample_is_in_one_batch_within_the_limits_or_counted(
    case: tuple[WindowedBucket, ChapterSamples, Setting],
) -> None:
    policy, chapter, setting = case
    out = check_formation(policy, chapter, setting)  # checks them

    assert out.tally.dropped == len(out.tally.first)
    assert max(out.waited) <= policy.window_size - max(1, policy.window_size // 8)


@given(cases())
@few(15, 30)
def test_a_chapter_is_a_pure_function_of_its_values(case: tuple[WindowedBucket, ChapterSamples, Setting]) -> None:
    policy, chapter, setting = case
    first = check_formation(policy, chapter, setting)

    def strided(values: np.ndarray, dtype: Any = None) -> np.ndarray:
        wide = np.zeros((len(values), 3), dtype=dtype or values.dtype)
        wide[:, 1] = values
        wide.flags.writeable = False  # it is an error to write into it
        return wide[:, 1]

    again = replace(
        chapter,
        lengths=strided(chapter.lengths, np.int32),
        streams=strided(chapter.streams),
        keys=tuple(strided(each) for each in chapter.keys),
        costs=tuple(strided(each, np.uint16) for each in chapter.costs),
    )
    second = check_formation(policy, again, setting)

    assert first.samples() == second.samples()
    assert [b.lengths.tolist() for b in first.batches] == [b.lengths.tolist() for b in second.batches]


def plain(lengths: list[int], batch_size: int | None = None, **policy: Any) -> FormedChapter:
    values = np.array(lengths, dtype=np.int64)
    chapter = ChapterSamples(
        values, np.zeros(len(values), np.int32), keys=(values,) if policy.get("keys", True) else ()
    )
    return check_formation(
        WindowedBucket(**{"keys": (TOKENS,), **policy}), chapter, chapter.setting(batch_size=batch_size)
    )


@given(st.lists(st.integers(0, 50), max_size=200), st.integers(1, 10))
def test_without_keys_batches_follow_the_positions(lengths: list[int], batch_size: int) -> None:
    out = plain(lengths, batch_size, keys=(), window_size=37, budget=BatchBudget(max_tokens=200, oversize="alone"))

    assert [sample for batch in out.samples() for sample in batch] == list(range(len(lengths)))


@given(
    st.lists(st.integers(0, 3) | st.integers(-(2**63), 2**63 - 1), max_size=60)
    | st.lists(st.integers(70_000, 140_000), max_size=60)
    | st.lists(st.sampled_from([-0.0, 0.0, 1.5, float("inf"), -2.0]), max_size=60)
)
def test_a_window_is_sorted_by_its_key_and_then_by_position(keys: list[float]) -> None:
    kind = np.float64 if any(isinstance(each, float) for each in keys) else np.int64
    ones, streams = np.ones(len(keys), np.int64), np.zeros(len(keys), np.int32)
    chapter = ChapterSamples(ones, streams, keys=(np.array(keys, kind),))
    out = check_formation(WindowedBucket(64, (TOKENS,), cost_group=64), chapter, chapter.setting(batch_size=1))

    assert [sample for batch in out.samples() for sample in batch] == sorted(range(len(keys)), key=keys.__getitem__)


def test_equal_keys_keep_the_order_of_positions() -> None:
    assert plain([5, 3, 5, 3, 5, 3], 3, window_size=6).samples() == [[1, 3, 5], [0, 2, 4]]


def test_only_the_last_run_waits_and_goes_on_with_the_next_window() -> None:
    out = plain([9, 1, 2, 8, 1, 2, 9, 9], window_size=4, budget=BatchBudget(max_tokens=9))

    assert out.windows[0] == 3  # [1, 2], [8] and the full [9]
    out = plain([1, 1, 1, 9, 1, 1, 1, 9], window_size=4, budget=BatchBudget(max_tokens=30))
    assert [3, 7] in out.samples()  # the first 9 waited for the other


def test_a_budget_larger_than_the_window_does_not_stall() -> None:
    out = plain([3] * 100, window_size=16, budget=BatchBudget(max_tokens=10_000))

    assert {len(batch) for batch in out.samples()} == {16, 4}
    assert out.waited == [0] * 7


def test_a_filter_that_refuses_most_of_a_window_makes_no_small_batches() -> None:
    former = WindowedBucket(16, (), None).former(Setting(0, 1_000, batch_size=8))
    sizes = []
    for at in range(0, 60, 2):  # two samples of each window pass
        window = Window(np.arange(at, at + 2), np.zeros(2, np.int32))
        sizes += [len(batch.samples) for batch in former.form(window, final=at == 58)]

    assert sizes == [8] * 7 + [4]
    assert former.form(Window(np.arange(0), np.zeros(0, np.int32)), final=True) == []


def test_at_the_epochs_end_the_last_batch_is_short() -> None:
    out = plain([4] * 10, 8, window_size=100)

    assert [len(batch) for batch in out.samples()] == [8, 2]


@pytest.mark.parametrize("composition", [None, StratifiedByStream()])
def test_elsewhere_the_last_to_join_wait_whatever_their_keys(composition: StratifiedByStream | None) -> None:
    lengths = np.arange(42)[::-1]
    streams = np.arange(42, dtype=np.int32) % 2
    window = Window(np.arange(42), streams, None, (lengths,))
    setting = Setting(3, 42, batch_size=8, shares=np.array([0.5, 0.5]), ends=False)
    former = WindowedBucket(64, (BucketKey("size"),), composition=composition).former(setting)

    assert [batch.rows for batch in former.form(window, final=True)] == [8] * 5
    assert former.left().samples.tolist() == [40, 41]


def test_what_is_above_the_budget_is_treated_as_the_plan_says() -> None:
    lengths = [5, 70, 6, 90, 7]
    policy = {"window_size": 10, "budget": BatchBudget(max_tokens=64, oversize="drop")}
    out = plain(lengths, **policy)
    assert out.samples() == [[0, 2, 4]]
    assert (out.tally.dropped, out.tally.first.tolist()) == (2, [1, 3])

    out = plain(lengths, **{**policy, "budget": BatchBudget(max_tokens=64, oversize="alone")})
    assert sorted(out.samples()) == [[0, 2, 4], [1], [3]]
    assert out.tally.alone == 2

    out = plain(lengths, **{**policy, "budget": BatchBudget(max_tokens=64, oversize="truncate")})
    assert sorted(batch.lengths.tolist() for batch in out.batches) == [[5, 6, 7], [64], [64]]
    assert out.tally.truncated == 2

    with pytest.raises(DataError, match=r"70 tokens.*choose oversize='truncate' or 'alone' or 'drop'") as caught:
        plain(lengths, **{**policy, "budget": BatchBudget(max_tokens=64)})
    assert caught.value.sample == 1


def test_bytes_cannot_be_truncated() -> None:
    budget = BatchBudget(max_tokens=64, max_bytes=10, oversize="truncate")
    chapter = ChapterSamples(np.array([99, 3]), np.zeros(2, np.int32), costs=(np.array([1, 11]),))

    with pytest.raises(DataError, match=r"11 bytes, and a batch may hold 10 .*'alone' or 'drop'") as caught:
        check_formation(WindowedBucket(8, (), budget), chapter, chapter.setting())
    assert caught.value.sample == 1


def test_buckets_pad_less_than_none() -> None:
    lengths = np.random.default_rng(0).lognormal(5.5, 1, 4_000).astype(int).tolist()

    def padding(**policy: Any) -> float:
        batches = plain(lengths, 16, window_size=1_024, **policy).batches
        return 1 - sum(int(b.lengths.sum()) for b in batches) / sum(b.rows * b.width for b in batches)

    assert padding() < 0.2
    assert padding(keys=()) > 0.6


def padding(out: FormedChapter) -> float:
    return 1 - sum(int(b.lengths.sum()) for b in out.batches) / sum(b.rows * b.width for b in out.batches)


@pytest.mark.parametrize("composition", [None, StratifiedByStream()])
def test_a_window_is_cut_where_it_pads_least(composition: StratifiedByStream | None) -> None:
    """The example text program's parameters: the longest batches are two per window, and 65 to 69 % padding."""
    rng = np.random.default_rng(3)
    lengths = np.clip(rng.lognormal(4.6, 0.8, 4 * 8_192).astype(int), 1, 4_096)
    streams = rng.choice(3, len(lengths), p=[0.7, 0.1, 0.2]).astype(np.int32)
    chapter = ChapterSamples(lengths, streams, [0.7, 0.1, 0.2], keys=(lengths,))  # type: ignore[arg-type]
    policy = WindowedBucket(8_192, (TOKENS,), BatchBudget(max_tokens=2_000_000), composition=composition)
    out = check_formation(policy, chapter, replace(chapter.setting(), multiple=128))

    assert padding(out) < 0.56
    assert 9 <= len(out.batches) <= 16
    assert min(batch.rows for batch in out.batches) >= 50


def test_where_a_window_makes_many_batches_they_stay_about_as_full() -> None:
    lengths = np.random.default_rng(0).lognormal(5.5, 1, 16_384).astype(int) + 1
    budget = BatchBudget(max_tokens=16_384)
    out = plain(lengths.tolist(), window_size=8_192, budget=budget)
    places = [batch.rows * batch.width for batch in out.batches]

    assert np.mean(places) > 0.9 * 16_384
    assert padding(out) < 0.05


def test_without_keys_or_tokens_each_batch_is_as_long_as_it_may_be() -> None:
    lengths = [1, 1, 1, 1, 9]
    budget = BatchBudget(max_tokens=45)

    assert [len(each) for each in plain(lengths, keys=(), window_size=8, budget=budget).samples()] == [5]
    assert sorted(plain(lengths, window_size=8, budget=budget).samples()) == [[0, 1, 2, 3], [4]]
    clips = BatchBudget(max_frames=45)
    versions = [
        WindowedBucket(keys=keys, budget=each).version for keys in ((), (TOKENS,)) for each in (None, budget, clips)
    ]
    assert versions == [3, 1, 1, 3, 4, 1]


def test_neighbours_in_cost_are_delivered_together() -> None:
    lengths = np.random.default_rng(0).integers(1, 1_000, 4_096).tolist()
    widths = [b.width for b in plain(lengths, 8, window_size=4_096, cost_group=4).batches]

    steps = [max(group) - min(group) for group in zip(*[iter(widths)] * 4, strict=True)]
    assert max(steps) < 25  # ranks of one step
    assert np.mean([abs(a - b) for a, b in pairwise(widths[::4])]) > 100  # steps are in no order


def test_a_plan_without_lengths_needs_none() -> None:
    policy = WindowedBucket(8, (), BatchBudget(max_bytes=20))
    chapter = ChapterSamples(np.zeros(10, int), np.zeros(10, np.int32), costs=(np.full(10, 7),), known=False)

    assert not policy.needs_lengths
    assert check_formation(policy, chapter, chapter.setting()).samples()[0] == [0, 1]


def test_the_policy_says_what_it_needs() -> None:
    policy = WindowedBucket(keys=[TOKENS, BucketKey("width * height")], budget=BatchBudget(max_tokens=9, max_bytes=9))  # type: ignore[arg-type]

    assert policy.key_texts == ("len(tokens)", "width * height")
    assert policy.cost_names == ("bytes",)
    assert policy.needs_lengths
    assert policy.with_composition(OneStream()).composition == OneStream()
    assert policy.with_composition(None) == policy
    assert hash(policy) == hash(WindowedBucket(keys=policy.keys, budget=policy.budget))


@pytest.mark.parametrize(
    ("wrong", "way_out"),
    [
        ({"window_size": 0}, "Give an integer from 1"),
        ({"cost_group": 0}, "Give an integer from 1"),
        ({"keys": "len(tokens)"}, "Give a list of keys"),
        ({"keys": TOKENS}, "Give a list of keys"),
        ({"keys": None}, "Give a list of keys"),
        ({"keys": ["len(tokens)"]}, r"Give BucketKey\('len\(tokens\)'\)"),
        ({"budget": 5}, "Give BatchBudget"),
        ({"composition": "stratified"}, "Give StratifiedByStream"),
    ],
)
def test_a_wrong_policy_is_refused_with_the_way_out(wrong: dict[str, Any], way_out: str) -> None:
    with pytest.raises(PlanError, match=way_out):
        WindowedBucket(**wrong)


@pytest.mark.parametrize("text", ["", "len(", "a b", 5, None])
def test_a_key_that_is_no_expression_is_refused(text: Any) -> None:
    with pytest.raises(PlanError, match=r"An expression is made of|Give an expression"):
        BucketKey(text)


def test_a_chapter_that_no_batch_fits_is_refused() -> None:
    with pytest.raises(PlanError, match=r"Give batch_size, or budget"):
        WindowedBucket().former(Setting(0, 5))
    with pytest.raises(PlanError, match=r"Give at least window_size=16"):
        WindowedBucket(8).former(Setting(0, 5, batch_size=16))
    with pytest.raises(PlanError, match=r"mix\(\[Stream"):
        WindowedBucket(composition=StratifiedByStream()).former(Setting(0, 5, batch_size=16))
