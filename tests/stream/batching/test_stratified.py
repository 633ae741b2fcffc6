from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from spiral_stream import BatchBudget, BucketKey, StratifiedByStream, WindowedBucket
from spiral_stream.batching import Setting
from spiral_stream.batching.stratified import Line, deal, smallest_window
from spiral_stream.sampling.mixing.mixture import Mixture, apportion
from spiral_stream.testing import ChapterSamples, FormedChapter, check_formation
from tests.fixtures.examples import few

KEYS = (BucketKey("len(tokens)"),)


def supplied(
    shares: list[Fraction], slices: int, width: int, rng: np.random.Generator, first: int = 0
) -> ChapterSamples:
    """A chapter of a mixture from slice ``first``: at each slice's border every stream is within one sample of its share."""
    phases = rng.random(len(shares))

    def counts(border: int) -> np.ndarray:
        exact = np.array([float(share * width * border) for share in shares])
        down = np.floor(exact + 1e-9)
        order = np.argsort(-(exact - down + 1e-6 * phases), kind="stable")
        down[order[: width * border - int(down.sum())]] += 1
        return down.astype(int)

    streams = []
    for border in range(first, first + slices):
        part = np.repeat(np.arange(len(shares)), np.maximum(counts(border + 1) - counts(border), 0))
        streams.append(rng.permutation(part))
    ahead = [int(have) - share * width * first for have, share in zip(counts(first), shares, strict=True)]
    chosen = np.concatenate(streams).astype(np.int32)
    lengths = np.minimum(rng.lognormal(4, 0.8, len(chosen)), 1_000).astype(int)
    return ChapterSamples(lengths, chosen, shares, ahead, keys=(lengths,))


def errors(out: FormedChapter, chapter: ChapterSamples) -> np.ndarray:
    """The largest distance of a stream from its target, after every batch."""
    assert chapter.shares is not None
    assert chapter.ahead is not None
    shares, ahead = (np.array([float(each) for each in values]) for values in (chapter.shares, chapter.ahead))
    counts = np.cumsum([np.bincount(chapter.streams[b.samples], minlength=len(shares)) for b in out.batches], axis=0)
    return np.abs(counts + ahead - np.multiply.outer(counts.sum(axis=1), shares)).max(axis=1)


weights = st.lists(st.integers(1, 60), min_size=1, max_size=9) | st.just([1] * 60) | st.just([500, 30, 3, 1])


@given(
    weights=weights,
    seed=st.integers(0, 2**32 - 1),
    first=st.integers(0, 3),
    batch_size=st.none() | st.integers(1, 70),
    tokens=st.none() | st.integers(1_024, 30_000),
    keyed=st.booleans(),
)
@few(20, 60)
def test_no_stream_is_ever_a_whole_sample_off_its_share(
    weights: list[int], seed: int, first: int, batch_size: int | None, tokens: int | None, keyed: bool
) -> None:
    shares = [Fraction(each, sum(weights)) for each in weights]
    chapter = supplied(shares, 8, 100, np.random.default_rng(seed), first)
    budget = BatchBudget(max_tokens=tokens) if tokens else BatchBudget(max_tokens=20_000) if not batch_size else None
    chapter.keys = chapter.keys if keyed else ()
    policy = WindowedBucket(250, KEYS if keyed else (), budget, 4, StratifiedByStream())
    out = check_formation(policy, chapter, chapter.setting(seed % 7, 8, batch_size))
    off = errors(out, chapter)

    ends = len(off) - out.windows[-1]
    assert off[:ends].max(initial=0) < 1 + 1e-6
    assert off[ends:].max(initial=0) < 2
    assert len(out.windows) <= 6  # supply that follows the shares does not wait long


def shuffled(weights: list[int], total: int, seed: int) -> ChapterSamples:
    """A chapter that is an epoch of a mixture, in the order of its slices."""
    mixture = Mixture(seed, apportion(total, weights))
    streams, _ = mixture.split(0, np.arange(total, dtype=np.uint64))
    lengths = np.random.default_rng(seed).integers(1, 60, total)
    shares = [Fraction(int(each), total) for each in mixture.quotas(0)]
    return ChapterSamples(lengths, streams, shares, [Fraction(0)] * len(weights), keys=(lengths,))


@given(
    weights=st.lists(st.integers(1, 30), min_size=2, max_size=6)
    | st.sampled_from([[14, 5, 1], [97, 3], [60, 30, 9, 1]]),
    total=st.integers(300, 9_000),
    batch_size=st.integers(2, 64),
    spare=st.integers(0, 40),
    budget=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
@example(weights=[14, 5, 1], total=8_000, batch_size=64, spare=0, budget=False, seed=3)
@few(10, 30)
def test_the_smallest_window_holds_the_promise(
    weights: list[int], total: int, batch_size: int, spare: int, budget: bool, seed: int
) -> None:
    shares, slices = np.array(weights) / sum(weights), max(1, total // 4_096)
    window = smallest_window(shares, total / slices, slices, None if budget else batch_size) + spare
    policy = WindowedBucket(window, KEYS, BatchBudget(max_tokens=2_000) if budget else None, 4, StratifiedByStream())
    chapter = shuffled(weights, total, seed)
    out = check_formation(policy, chapter, chapter.setting(seed % 7, 1, None if budget else batch_size, scarce=True))
    off, inside = errors(out, chapter), len(out.batches) - out.windows[-1]

    assert off[:inside].max(initial=0) < 1 + 1e-6
    assert off[inside:].max(initial=0) < 2
    assert budget or all(batch.rows == batch_size for batch in out.batches[:inside])


@given(
    weights=st.sampled_from([[14, 5, 1], [7, 2, 1], [1, 1], [97, 3]])
    | st.lists(st.integers(1, 9), min_size=2, max_size=8),
    total=st.integers(300, 8_000),
    batch_size=st.integers(1, 40),
    seed=st.integers(0, 2**32 - 1),
)
@example(weights=[14, 5, 1], total=8_000, batch_size=64, seed=3)
@few(10, 25)
def test_every_window_that_can_hold_the_promise_does(
    weights: list[int], total: int, batch_size: int, seed: int
) -> None:
    chapter = shuffled(weights, total, seed)
    shares = np.array([float(each) for each in chapter.shares or []])
    came = np.cumsum(np.eye(len(weights))[chapter.streams], axis=0)
    waiting = (
        np.arange(1, total + 1)[:, None] - (came + 1) / shares
    ).max()  # if no batch goes without a stream that is late
    window = int(waiting) + 4 * len(weights) + batch_size
    policy = WindowedBucket(window, (), None, 4, StratifiedByStream())
    out = check_formation(policy, chapter, chapter.setting(1, 1, batch_size, scarce=True))
    off, inside = errors(out, chapter), len(out.batches) - out.windows[-1]

    assert off[:inside].max(initial=0) < 1 + 1e-6
    assert off[inside:].max(initial=0) < 2
    short = sum(batch.rows < batch_size for batch in out.batches[:inside])
    assert short == 0 or window < int(waiting) + batch_size + 4 * len(weights)


def test_in_a_smaller_window_a_late_stream_is_made_up_for_when_it_comes() -> None:
    chapter = shuffled([14, 5, 1], 8_000, 3)
    found = {}
    for scarce in (False, True):
        policy = WindowedBucket(512, (), None, 4, StratifiedByStream())
        off = errors(check_formation(policy, chapter, chapter.setting(1, 1, 64, scarce=scarce)), chapter)
        found[scarce] = float(off.max()), int((off > 1 + 1e-6).sum()), float(off[-20:].max())

    assert found[False][0] > 25
    assert found[False][1] > 60
    assert found[True][0] < 7
    assert found[True][1] < 6
    assert found[True][2] < 1


@given(st.lists(st.integers(1, 40), min_size=1, max_size=40), weights, st.data())
def test_dealt_units_keep_to_their_targets_and_sum_to_the_sizes(
    sizes: list[int], weights: list[int], data: st.DataObject
) -> None:
    total = sum(sizes)
    shares = np.array(weights) / sum(weights)
    early = np.array(data.draw(st.lists(st.floats(-0.5, 0.5), min_size=len(weights), max_size=len(weights))))
    leads = (early - early.mean()) * 0.99
    counts_JK = deal(np.array(sizes), Line(shares, leads, np.full(len(weights), total)))

    assert counts_JK.sum(axis=1).tolist() == sizes
    dues = np.multiply.outer(np.cumsum(sizes), shares) - leads
    assert np.abs(np.cumsum(counts_JK, axis=0) - dues).max() < 1 + 1e-6


def test_a_stream_below_one_sample_a_batch_gets_exactly_its_share() -> None:
    shares = [Fraction(96, 100), Fraction(3, 100), Fraction(1, 100)]
    chapter = supplied(shares, 20, 100, np.random.default_rng(0))
    out = check_formation(
        WindowedBucket(1_000, KEYS, None, 2, StratifiedByStream()), chapter, chapter.setting(batch_size=8)
    )
    rare = [int((chapter.streams[b.samples] == 2).sum()) for b in out.batches]

    assert sum(rare) == 20
    assert max(rare) == 1
    assert np.diff(np.flatnonzero(rare)).max() <= 2 * 100 / 8 + 1


def test_every_batch_holds_the_seed_programs_shares() -> None:
    shares = [Fraction(7, 10), Fraction(1, 10), Fraction(2, 10)]
    chapter = supplied(shares, 4, 4_096, np.random.default_rng(0))
    policy = WindowedBucket(8_192, KEYS, BatchBudget(max_tokens=40_000), composition=StratifiedByStream())
    out = check_formation(policy, chapter, chapter.setting(multiple=128))

    for batch in out.batches:
        counts = np.bincount(chapter.streams[batch.samples], minlength=3)
        assert np.abs(counts - batch.rows * np.array([0.7, 0.1, 0.2])).max() <= 2
    fill = [b.rows * b.width / 40_000 for b in out.batches]
    assert np.mean(fill) > 0.9


def test_buckets_with_streams_pad_nearly_as_little_as_without() -> None:
    shares = [Fraction(7, 10), Fraction(1, 10), Fraction(2, 10)]
    chapter = supplied(shares, 4, 1_024, np.random.default_rng(0))

    def padding(composition: StratifiedByStream | None) -> float:
        policy = WindowedBucket(2_048, KEYS, BatchBudget(max_tokens=8_192), composition=composition)
        batches = check_formation(policy, chapter, chapter.setting()).batches
        return 1 - int(chapter.lengths.sum()) / sum(b.rows * b.width for b in batches)

    assert padding(StratifiedByStream()) < padding(None) + 0.06


def test_supply_that_does_not_follow_the_shares_neither_stalls_nor_drops() -> None:
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 60, 3_000)
    streams = (rng.random(3_000) < 0.9).astype(np.int32)  # 10 % and 90 % where halves are wanted
    chapter = ChapterSamples(lengths, streams, [Fraction(1, 2)] * 2, keys=(lengths,))
    out = check_formation(
        WindowedBucket(256, KEYS, None, 8, StratifiedByStream()), chapter, chapter.setting(batch_size=16)
    )

    counts = np.array([np.bincount(streams[b.samples], minlength=2) for b in out.batches])
    assert len(out.windows) < 60
    assert np.mean([b.rows for b in out.batches]) > 14
    assert counts[:, 1].mean() == pytest.approx(0.9 * 16, abs=1.5)


def test_a_stream_without_a_share_is_delivered_at_last() -> None:
    lengths = np.full(100, 3)
    streams = np.zeros(100, np.int32)
    streams[::10] = 1
    chapter = ChapterSamples(lengths, streams, [Fraction(1), Fraction(0)], keys=(lengths,))

    out = check_formation(
        WindowedBucket(40, KEYS, None, 8, StratifiedByStream()), chapter, chapter.setting(batch_size=10)
    )
    assert len(out.batches) <= 13


def test_samples_that_are_dropped_hold_nothing_up() -> None:
    shares = [Fraction(3, 4), Fraction(1, 4)]
    chapter = supplied(shares, 20, 100, np.random.default_rng(0))
    chapter.lengths[np.flatnonzero(chapter.streams == 1)[::3]] = 5_000
    budget = BatchBudget(max_tokens=4_000, oversize="drop")
    out = check_formation(WindowedBucket(400, KEYS, budget, 8, StratifiedByStream()), chapter, chapter.setting())

    assert out.tally.dropped > 100
    assert max(out.waited) < 150


def test_the_chapters_key_decides_the_order() -> None:
    shares = [Fraction(3, 4), Fraction(1, 4)]
    chapter = supplied(shares, 4, 100, np.random.default_rng(0))
    policy = WindowedBucket(200, KEYS, None, 1, StratifiedByStream())

    one, two = (check_formation(policy, chapter, chapter.setting(key, batch_size=4)).samples() for key in (1, 2))
    assert one != two


def test_a_chapter_of_nothing_has_no_batches() -> None:
    former = WindowedBucket(8, KEYS, None, 1, StratifiedByStream()).former(
        Setting(0, 0, batch_size=4, shares=np.array([0.5, 0.5]))
    )
    empty = ChapterSamples(np.zeros(0, int), np.zeros(0, np.int32), keys=(np.zeros(0, int),))

    assert former.form(empty.window(0, 0), final=False) == []
    assert former.form(empty.window(0, 0), final=True) == []
