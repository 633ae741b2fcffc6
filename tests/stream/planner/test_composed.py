"""What batches of a mixture cannot keep to is said with a way out, and not said once that is taken."""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import spiral_stream as sp
from spiral_stream.planner.defaults import doubts
from spiral_stream.planner.stages import Stages
from tests.fixtures.inner import lower_plan
from tests.fixtures.texts import make_catalog, mixed

KEYS = [sp.BucketKey("size")]


@pytest.fixture(scope="module")
def lowered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stages]:
    """Three streams of 70, 25 and 5 in 100; the formation is replaced by that of each test."""
    catalog = make_catalog(tmp_path_factory.mktemp("composed"), {"a": 30, "b": 30, "c": 9})
    stages = lower_plan(collated(mixed(catalog, {"a": 0.7, "b": 0.25, "c": 0.05}, 60_000)), catalog.registry)
    yield stages
    stages.close()


def collated(relation: sp.Relation) -> Any:
    sampled = relation.sample(identity="sample_id", order=sp.GlobalShuffle(seed=3), epoch=0)
    formation = sp.WindowedBucket(window_size=1 << 14, keys=KEYS)
    options: dict[str, Any] = {"composition": sp.StratifiedByStream(), "fields": {"size": sp.Stack("size")}}
    return sampled.collate(batch_size=64, formation=formation, **options).to_numpy().plan


def said(stages: Stages, window: int, composition: Any, last: Any = None) -> list[str]:
    batches = stages.batches if last is None else replace(stages.batches, last=last)
    formation = sp.WindowedBucket(window_size=window, keys=KEYS, composition=composition)
    return list(doubts(replace(stages, formation=formation, batches=batches), 0))


@given(window=st.integers(64, 1 << 13))
def test_a_window_is_doubted_exactly_below_the_one_that_is_advised(window: int, lowered: Stages) -> None:
    (advice,) = said(lowered, 64, sp.StratifiedByStream())
    least = int(re.findall(r"Give window_size of at least ([\d,]+)$", advice)[0].replace(",", ""))

    assert "a stream of 5.00% may come so late that the window is full before it does" in advice
    assert bool(said(lowered, window, sp.StratifiedByStream())) == (window < least)
    assert said(lowered, least - 1, sp.StratifiedByStream())
    assert said(lowered, least, sp.StratifiedByStream()) == []


def test_streams_of_less_than_a_step_are_named_with_what_becomes_of_them(lowered: Stages) -> None:
    composition = sp.batching.OneStream(batches=128)
    dropped, padded = (
        said(lowered, 1 << 10, composition, last) for last in (sp.DropPartial(), sp.batching.PadPartial())
    )

    assert re.search(
        r"samples c \(about 3,000\) have fewer than a step's 8,192, and DropPartial drops them all", dropped[-1]
    )
    assert re.search(
        r"PadPartial fills it with repeated ones\. Give last=KeepPartial, fewer batches in a row", padded[-1]
    )
    assert not any("fewer than a step" in line for line in said(lowered, 1 << 10, composition, sp.KeepPartial()))


def test_what_forms_no_windows_of_streams_has_nothing_to_doubt(lowered: Stages, tmp_path: Path) -> None:
    assert said(lowered, 64, sp.batching.OneStream()) == []
    assert list(doubts(replace(lowered, formation=None), 0)) == []
    catalog = make_catalog(tmp_path, {"a": 30})
    sampled = catalog.table("a").sample(identity="sample_id", order=sp.Sequential(), epoch=0)
    plan = sampled.collate(batch_size=4, formation=sp.WindowedBucket(64, KEYS), fields={"size": sp.Stack("size")})
    alone = lower_plan(plan.to_numpy().plan, catalog.registry)
    assert list(doubts(alone, 0)) == []
    alone.close()
