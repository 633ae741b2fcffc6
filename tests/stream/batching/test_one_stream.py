from itertools import groupby

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from spiral_stream import BatchBudget, BucketKey, DropPartial, KeepPartial, WindowedBucket
from spiral_stream.batching import OneStream, PadPartial, Setting, Tail, Window
from spiral_stream.batching.one_stream import least_window
from spiral_stream.errors import PlanError
from spiral_stream.testing import ChapterSamples, FormedChapter, check_formation

KEYS = (BucketKey("len(tokens)"),)


def chapter_of(shares: list[float], size: int, seed: int) -> ChapterSamples:
    rng = np.random.default_rng(seed)
    lengths = np.minimum(rng.lognormal(4, 0.8, size), 900).astype(int)
    streams = rng.choice(len(shares), size, p=shares).astype(np.int32)
    return ChapterSamples(lengths, streams, shares, keys=(lengths,))  # type: ignore[arg-type]


def streams_of(out: FormedChapter, chapter: ChapterSamples) -> list[int]:
    for batch in out.batches:
        assert len(set(chapter.streams[batch.samples].tolist())) == 1
    return [int(chapter.streams[batch.samples[0]]) for batch in out.batches]


@given(
    st.integers(0, 2**32 - 1),
    st.integers(1, 5),
    st.integers(1, 900),
    st.integers(20, 300),
    st.none() | st.integers(1, 12),
)
@settings(max_examples=60)
def test_every_batch_is_of_one_stream_and_so_are_units_of_batches(
    seed: int, unit: int, size: int, window_size: int, batch_size: int | None
) -> None:
    chapter = chapter_of([0.6, 0.3, 0.1], size, seed)
    budget = None if batch_size and least_window(3, unit, batch_size) <= window_size else BatchBudget(max_tokens=2_000)
    policy = WindowedBucket(window_size, KEYS, budget, 8, OneStream(unit))
    out = check_formation(policy, chapter, chapter.setting(batch_size=batch_size))
    streams = streams_of(out, chapter)

    whole = sum(streams.count(k) // unit for k in range(3)) * unit
    if len(out.windows) == 1 and budget is not None:  # counted batches have a law of their own
        for start in range(0, whole, unit):
            assert len(set(streams[start : start + unit])) == 1


@given(
    seed=st.integers(0, 2**32 - 1),
    unit=st.integers(2, 5),
    batch_size=st.integers(1, 9),
    size=st.integers(1, 700),
    spare=st.integers(0, 60),
    last=st.sampled_from([KeepPartial(), DropPartial(), PadPartial()]),
    weights=st.lists(st.integers(1, 9), min_size=1, max_size=4) | st.just([97, 3]),
)
@example(seed=0, unit=4, batch_size=8, size=800, spare=40, last=KeepPartial(), weights=[3, 1])
@example(seed=2, unit=3, batch_size=1, size=88, spare=9, last=KeepPartial(), weights=[6, 3, 1])  # nothing to halve
@example(seed=1, unit=5, batch_size=2, size=60, spare=0, last=KeepPartial(), weights=[97, 3])
def test_counted_units_are_whole_and_short_batches_come_last(
    seed: int, unit: int, batch_size: int, size: int, spare: int, last: Tail, weights: list[int]
) -> None:
    chapter = chapter_of([each / sum(weights) for each in weights], size, seed)
    held = len(weights) * (unit * batch_size - 1)  # what may wait at most, an eighth of the window apart
    policy = WindowedBucket(held + held // 7 + 2 + spare, KEYS, None, 4, OneStream(unit))
    out = check_formation(policy, chapter, chapter.setting(seed % 5, batch_size=batch_size, last=last))
    streams, rows = streams_of(out, chapter), np.array([batch.rows for batch in out.batches])
    supply = np.bincount(chapter.streams, minlength=len(weights))
    given = np.bincount(chapter.streams[np.concatenate([[], *out.samples()]).astype(int)], minlength=len(weights))
    kept = isinstance(last, KeepPartial)

    mixed = [at for at in range(0, len(streams), unit) if len(set(streams[at : at + unit])) > 1]
    assert not mixed or (kept and len(mixed) <= len(weights) and mixed[0] >= len(streams) - 3 * len(weights) * unit)
    assert len(streams) % unit == 0 or (kept and (rows[len(rows) - out.windows[-1] :] == 1).all())
    whole = supply // (unit * batch_size) * (unit * batch_size)
    if kept:
        short = np.flatnonzero(rows < batch_size)
        assert len(rows) - short.min(initial=len(rows)) <= (2 * len(weights) + 1) * unit
    else:
        assert (rows == batch_size).all()
        filled = whole + (supply > whole) * unit * batch_size
        assert given.tolist() == (whole if isinstance(last, DropPartial) else filled).tolist()


@given(streams=st.integers(1, 6), unit=st.integers(1, 5), batch_size=st.integers(1, 40))
def test_a_window_without_room_for_what_every_stream_may_wait_with_is_refused(
    streams: int, unit: int, batch_size: int
) -> None:
    least = least_window(streams, unit, batch_size)
    setting = Setting(0, 0, batch_size=batch_size, shares=np.full(streams, 1 / streams), ends=False)
    policy = WindowedBucket(least, KEYS, None, 4, OneStream(unit))
    former = policy.former(setting)

    worst = np.repeat(np.arange(streams, dtype=np.int32), unit * batch_size - 1)  # no stream has a whole unit
    keys = (np.zeros(len(worst), dtype=np.int64),)
    assert former.form(Window(np.arange(len(worst)), worst, None, keys), final=False) == []
    assert former.room == 1
    one = Window(np.array([len(worst)]), np.zeros(1, dtype=np.int32), None, (np.zeros(1, dtype=np.int64),))
    assert [batch.rows for batch in former.form(one, final=False)] == [batch_size] * unit
    if batch_size < least:
        with pytest.raises(PlanError, match=rf"Give formation=WindowedBucket\(window_size={least:,}\) or more"):
            WindowedBucket(least - 1, KEYS, None, 4, OneStream(unit)).former(setting)


def test_streams_take_turns_at_their_shares() -> None:
    shares = [0.7, 0.1, 0.2]
    chapter = chapter_of(shares, 20_000, 0)
    out = check_formation(WindowedBucket(2_048, KEYS, None, 8, OneStream()), chapter, chapter.setting(batch_size=16))
    counts = np.cumsum(np.eye(3)[streams_of(out, chapter)] * [[b.rows] for b in out.batches], axis=0)

    inside = counts[: -out.windows[-1]]
    assert np.abs(inside - inside.sum(axis=1)[:, None] * shares).max() < 150  # supply itself is off by sqrt(20,000)
    runs = [len(list(run)) for _, run in groupby(streams_of(out, chapter))]
    assert max(runs) < 30


def test_batches_of_one_step_share_the_stream_until_the_chapters_end() -> None:
    chapter = chapter_of([0.5, 0.5], 10_000, 1)
    out = check_formation(WindowedBucket(1_024, KEYS, None, 8, OneStream(4)), chapter, chapter.setting(batch_size=16))
    streams = streams_of(out, chapter)

    steps = [set(streams[start : start + 4]) for start in range(0, len(streams), 4)]
    assert all(len(step) == 1 for step in steps)
    assert {len(batch.samples) for batch in out.batches[: -out.windows[-1]]} == {16}


def test_many_streams_that_never_fill_a_batch_do_not_stall() -> None:
    chapter = chapter_of([1 / 200] * 200, 4_000, 2)
    out = check_formation(
        WindowedBucket(400, KEYS, BatchBudget(max_tokens=2_000), 8, OneStream()),
        chapter,
        chapter.setting(batch_size=None),
    )

    assert len(out.windows) < 100
    assert np.mean([batch.rows for batch in out.batches]) > 2
