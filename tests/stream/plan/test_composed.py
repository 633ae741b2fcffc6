"""Whether a window may go without a stream: known from the plan where it states shares, and feared where it does not."""

import warnings
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import spiral_stream as sp
from spiral_stream import Relation
from spiral_stream.batching.stratified import is_sure
from spiral_stream.plan.composed import is_scarce
from spiral_stream.plan.nodes import Collate, Node, Scan
from spiral_stream.plan.tree import need
from spiral_stream.plan.verbs.mix import Mix, Part

KEYS = [sp.BucketKey("id")]
SCAN = Scan("r", pa.schema([("id", pa.int64()), ("tokens", pa.list_(pa.uint16()))]), ("id",))
WEIGHTS = st.lists(st.integers(1, 60), min_size=1, max_size=3)


def mixed(*parts: tuple[float | None, Node], **options: Any) -> Mix:
    """A mixture; proportions count in relation to their sum, which is warned of elsewhere."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", sp.SpiralWarning)
        return Mix(tuple(Part(f"s{i}", node, share) for i, (share, node) in enumerate(parts)), **options)


def collated(
    node: Node, window: int, *, composition: Any = None, batch_size: int | None = 8, budget: Any = None
) -> Collate:
    sampled = Relation(node, None).sample(identity="id", order=sp.GlobalShuffle(seed=0), epoch=0)  # type: ignore[arg-type]
    formation = sp.WindowedBucket(window_size=window, keys=KEYS, budget=budget)
    stratified = sp.StratifiedByStream("stream_id") if composition is None else composition
    plan = sampled.collate(
        batch_size=batch_size, formation=formation, composition=stratified, fields={"ids": sp.Pad("tokens")}
    )
    return need(plan.node, Collate)


@given(
    outer=WEIGHTS, inner=WEIGHTS, window=st.integers(4, 14).map(lambda bits: 1 << bits), size=st.integers(100, 10**6)
)
def test_a_nested_mixture_is_as_scarce_as_the_flat_one_of_equal_shares(
    outer: list[int], inner: list[int], window: int, size: int
) -> None:
    nested = mixed(*((w, SCAN) for w in inner))
    plan = mixed(*((w, SCAN) for w in outer[1:]), (outer[0], nested), epoch_size=size)
    flat = mixed(*((w * sum(inner), SCAN) for w in outer[1:]), *((outer[0] * w, SCAN) for w in inner), epoch_size=size)

    assert is_scarce(collated(plan, window)) == is_scarce(collated(flat, window))


@given(size=st.integers(100, 4_000), bits=st.integers(4, 14))
def test_a_plan_that_fits_in_one_slice_is_sure_as_its_shares_say(size: int, bits: int) -> None:
    plan = mixed((3, SCAN), (1, SCAN), epoch_size=size)

    assert is_scarce(collated(plan, 1 << bits)) != is_sure(1 << bits, np.array([0.75, 0.25]), size, 8)


WINDOW = 1 << 11  # enough for two halves of a million, and for nothing rarer


@pytest.mark.parametrize(
    ("parts", "options"),
    [
        ([(0.5, SCAN), (0.5, SCAN)], {"epoch_size": 10**6, "by": "id"}),
        ([(0.5, SCAN), (0.5, SCAN)], {"epoch_size": 10**6, "schedule": ((0, (0.5, 0.5)), (10**6, (0.4, 0.6)))}),
        ([(None, SCAN), (None, SCAN)], {}),
        ([(0.5, SCAN), (0.5, mixed((None, SCAN), (None, SCAN)))], {"epoch_size": 10**6}),
    ],
    ids=["by a quantity", "by a schedule", "by rows", "by rows inside"],
)
def test_shares_that_the_plan_does_not_state_may_be_as_small_as_any(
    parts: list[tuple[float | None, Node]], options: dict[str, Any]
) -> None:
    assert not is_scarce(collated(mixed((0.5, SCAN), (0.5, SCAN), epoch_size=10**6), WINDOW))
    assert is_scarce(collated(mixed(*parts, **options), WINDOW))


def test_only_stratified_windows_of_a_mixture_are_scarce() -> None:
    plan = mixed((0.5, SCAN), (0.5, SCAN), epoch_size=10**6)

    assert is_scarce(collated(plan, 16))
    assert is_scarce(collated(plan, WINDOW, batch_size=WINDOW))
    assert not is_scarce(collated(plan, WINDOW, batch_size=None, budget=sp.BatchBudget(max_tokens=WINDOW)))
    assert not is_scarce(collated(plan, 16, composition=sp.batching.OneStream()))
    sampled = Relation(SCAN, None).sample(identity="id", order=sp.GlobalShuffle(seed=0), epoch=0)  # type: ignore[arg-type]
    assert not is_scarce(need(sampled.collate(batch_size=8, fields={"id": sp.Stack("id")}).node, Collate))
