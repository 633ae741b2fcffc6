"""The record of what a run skips: sets of numbers, and a way through JSON that refuses what it did not write."""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spiral_stream.errors import ResumeError, StreamError
from spiral_stream.planner.state.skips import MOST, NOTHING, SkippedSample, Skips

NUMBERS = st.lists(st.tuples(st.integers(0, 2), st.lists(st.integers(0, 40), min_size=1)), max_size=6)
VALUES = st.one_of(st.integers(-(2**63), 2**64), st.text(), st.binary())
SAMPLES = st.lists(st.tuples(st.sampled_from(["", "a"]), st.tuples(VALUES)), max_size=6)


def record(numbers: list[tuple[int, list[int]]]) -> Skips:
    out = NOTHING
    for epoch, each in numbers:
        out = out.with_batches(epoch, np.array(each))
    return out


@given(numbers=NUMBERS)
def test_batches_are_those_that_were_named(numbers: list[tuple[int, list[int]]]) -> None:
    skips = record(numbers)
    for epoch in range(3):
        named = {n for at, each in numbers for n in each if at == epoch}
        kept = skips.remaining(epoch)
        left = [n for n in range(60) if n not in named]
        assert kept.uses(np.arange(len(left), dtype=np.uint64)).tolist() == left
        assert kept.plan_uses(np.array(left, dtype=np.uint64)).tolist() == list(range(len(left)))
        assert (kept.plan_uses(np.array(sorted(named), dtype=np.uint64)) == -1).all()
        assert [skips.after(epoch, n) for n in range(45)] == [
            any((at, m) >= (epoch, n) for at, each in numbers for m in each) for n in range(45)
        ]


@given(numbers=NUMBERS, samples=SAMPLES)
def test_a_record_survives_json(numbers: list[tuple[int, list[int]]], samples: list[tuple[str, tuple[Any]]]) -> None:
    skips = record(numbers).with_samples((3, 4), samples)
    assert Skips.from_json(json.loads(json.dumps(skips.to_json()))) == skips
    assert bool(skips) == bool(numbers or samples)
    assert Skips.from_json(None) == NOTHING


def test_a_sample_that_is_skipped_keeps_its_first_place() -> None:
    skips = NOTHING.with_samples((0, 4), [("", (7,))]).with_samples((1, 2), [("", (7,)), ("", ("7",))])
    assert [each.since for each in skips.samples] == [(0, 4), (1, 2)]


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"batches": [], "samples": 3},
        {"batches": [[0, 1]], "samples": []},
        {"batches": [[0, 1, 0]], "samples": []},
        {"batches": [[0, -1, 1]], "samples": []},
        {"batches": [[0, 3, 2], [0, 5, 1]], "samples": []},  # not apart
        {"batches": [[1, 0, 1], [0, 0, 1]], "samples": []},
        {"batches": [], "samples": [[0, 0, "", [1.5]]]},
        {"batches": [], "samples": [[0, 0, "", [True]]]},
        {"batches": [], "samples": [[0, 0, "", [{"hex": "zz"}]]]},
        {"batches": [], "samples": [[0, 0, "", []]]},
        {"batches": [], "samples": [[0, 0, "", [1]], [0, 1, "", [1]]]},
    ],
)
def test_what_is_no_record_is_refused(data: Mapping[str, Any]) -> None:
    with pytest.raises(ResumeError, match="the state's skips cannot be read"):
        Skips.from_json(data)


def test_a_record_that_grows_too_large_says_what_to_do() -> None:
    with pytest.raises(StreamError, match=r"would list 10,001 ranges of batches.*rebase"):
        NOTHING.with_batches(0, np.arange(0, 2 * MOST + 1, 2))
    assert NOTHING.with_batches(0, np.arange(10 * MOST)).batches == ((0, 0, 10 * MOST),)
    with pytest.raises(StreamError, match="would list 10,001 samples"):
        NOTHING.with_samples((0, 0), [("", (n,)) for n in range(MOST + 1)])
    assert SkippedSample((0, 1), "", (b"\xff",)).to_json() == [0, 1, "", [{"hex": "ff"}]]
