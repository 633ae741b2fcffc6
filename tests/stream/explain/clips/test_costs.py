"""What clips cost a batch, against what its batches hold."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import spiral_stream as sp
from tests.fixtures.examples import few
from tests.stream.explain import footages
from tests.stream.explain.batch.test_batch import batch_of
from tests.stream.explain.words import in_words

SAMPLE = 16 * 3 * 56 * 56 * 2  # bytes of one clip
IDENTITY = 70  # bytes of one of 10 letters as a Python value, its offset included


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> sp.Catalog:
    return footages.made_up(tmp_path_factory.mktemp("costs"))


def share(row: dict[str, Any]) -> float:
    return float(row["variance in a batch"].lstrip("~").partition("%")[0]) / 100


@few(3, 6)
@given(
    window_size=st.sampled_from([16, 60, 2_048]),
    max_frames=st.sampled_from([None, 64, 300]),
    max_bytes=st.sampled_from([None, 5 * SAMPLE]),
    batch_size=st.sampled_from([8, 32]),
)
def test_frames_bytes_and_variance_are_those_of_the_epoch(
    catalog: sp.Catalog, window_size: int, max_frames: int | None, max_bytes: int | None, batch_size: int
) -> None:
    limits = {"max_frames": max_frames, "max_bytes": max_bytes, "batch_size": batch_size}
    with footages.program(catalog, window_size=max(window_size, batch_size), **limits) as stream:
        found, members = batch_of(stream), footages.samples(stream)
    rows = np.array([len(batch) for batch in members])
    frames, wide, high = (footages.column(catalog, name) for name in ("frame_count", "width", "height"))
    costs = [np.array([frames[i] * wide[i] * high[i] for i in batch], dtype=float) for batch in members]
    whole = np.concatenate(costs)

    for name, cost in (("frames", 16), ("bytes", SAMPLE)):
        spread = f"min {rows.min() * cost:,} / median {np.median(rows) * cost:,.0f} / max {rows.max() * cost:,}"
        assert found[f"{name} a batch"] == f"{spread}, {cost:,} a sample"
    allowed = [limit // cost for limit, cost in ((max_frames, 16), (max_bytes, SAMPLE)) if limit is not None]
    assert rows.max() <= min([batch_size, *allowed])
    assert f", {min([batch_size, *allowed]):,} samples a batch" in found["tight bound"]
    assert f"batch_size {sum(rows) / (len(rows) * batch_size):.1%}" in found["budget used"]
    within = sum(((cost - cost.mean()) ** 2).sum() for cost in costs) / ((whole - whole.mean()) ** 2).sum()
    assert share(found["decode cost"][0]) == pytest.approx(within, abs=6e-4)


def test_buckets_lower_the_variance_of_decode_cost_in_a_batch(catalog: sp.Catalog) -> None:
    with footages.program(catalog, batch_size=8) as stream:
        sorted_, plain, product = batch_of(stream)["decode cost"]
    with footages.program(catalog, batch_size=8, keys=["1 * frame_count * width * height"]) as stream:
        by_cost, _ = batch_of(stream)["decode cost"]

    assert (sorted_["decode cost"], plain["decode cost"]) == ("with buckets", "the same samples in order")
    assert share(by_cost) < 0.1 < share(sorted_) < share(plain)
    assert share(product) == pytest.approx(share(by_cost), abs=0.02)
    assert product["decode cost"] == "sorted by the product as one key"


def test_unbucketed_is_what_a_plan_without_keys_forms(catalog: sp.Catalog) -> None:
    with footages.program(catalog, batch_size=8) as stream:
        (_, plain, _), product = batch_of(stream)["decode cost"], batch_of(stream)["a sample's decode cost"]
    with footages.program(catalog, batch_size=8, keys=[]) as stream:
        members, without = footages.samples(stream), batch_of(stream)["decode cost"]
    frames, wide, high = (footages.column(catalog, name) for name in ("frame_count", "width", "height"))
    costs = [np.array([frames[i] * wide[i] * high[i] for i in batch], dtype=float) for batch in members]
    within = (
        sum(((cost - cost.mean()) ** 2).sum() for cost in costs) / np.concatenate(costs).var() / sum(map(len, costs))
    )

    assert product == "frame_count x (width * height), in units of its mean"
    assert share(plain) == pytest.approx(within, abs=0.02)  # a chapter's last two batches are cut evenly
    assert without == "unknown: no bucket keys, so nothing says which clips cost alike"


@pytest.mark.parametrize(
    ("limits", "says"),
    [
        ({"batch_size": 32}, "max_frames and batch_size, 32 samples a batch; max_bytes would allow 26,573"),
        ({"batch_size": None}, "max_frames, 32 samples a batch; max_bytes would allow 26,573"),
        ({"max_bytes": 3 * SAMPLE + 1}, "max_bytes, 3 samples a batch; max_frames would allow 32; batch_size would"),
        ({"max_frames": None, "max_bytes": None, "batch_size": 7}, "batch_size, 7 samples a batch"),
    ],
)
def test_the_tight_bound_is_named(catalog: sp.Catalog, limits: dict[str, Any], says: str) -> None:
    with footages.program(catalog, **limits) as stream:
        assert batch_of(stream)["tight bound"].startswith(says)


def test_ranks_of_a_step_wait_for_its_costliest_batch(catalog: sp.Catalog) -> None:
    with footages.program(catalog, batch_size=4, keys=["frame_count * width * height"]) as stream:
        sorted_, plain = in_words(stream.bind(rank=0, world_size=4).explain())["batch"]["decode cost"]

    ours, theirs = (float(re.sub("%.*", "", row["costliest batch of a step"])) for row in (sorted_, plain))
    assert 0 < ours < theirs


def constant(table: pa.Table) -> pa.Table:
    names = [("frame_count", pa.int32(), 48), ("width", pa.int32(), 64), ("height", pa.int32(), 48)]
    for name, kind, value in names:
        at = table.schema.get_field_index(name)
        table = table.set_column(at, name, pa.array([value] * len(table), kind))
    return table


@pytest.mark.parametrize(
    ("change", "keys", "says"),
    [
        (constant, footages.KEYS, "every sample costs the same"),
        (lambda t: t, ["start_time_ms"], "unknown: the keys start_time_ms are no sizes above 0"),
    ],
)
def test_keys_that_are_no_cost_are_not_called_one(
    tmp_path: Path, change: Callable[[pa.Table], pa.Table], keys: Any, says: str
) -> None:
    with footages.program(footages.made_up(tmp_path, 60, change), keys=keys) as stream:
        assert batch_of(stream)["decode cost"] == says


def test_a_fixed_count_says_what_its_batches_hold(catalog: sp.Catalog) -> None:
    with footages.program(catalog, formation=None, batch_size=8) as stream:
        found, deliver = batch_of(stream), in_words(stream.explain())["deliver"]

    assert found["frames a batch"] == "128, 16 a sample"
    assert found["bytes a batch"] == f"{8 * SAMPLE:,}, {SAMPLE:,} a sample"
    assert deliver["bytes a batch"] == f"{8 * (SAMPLE + 8):,} and ~{8 * IDENTITY} in lists"


def test_memory_is_bounded_by_the_budget_of_frames(catalog: sp.Catalog) -> None:
    with footages.program(catalog, max_frames=64) as stream:
        found = in_words(stream.explain())["deliver"]

    assert found["bytes a batch"] == f"at most {4 * (SAMPLE + 8):,} and ~{4 * IDENTITY} in lists"


def test_text_has_no_frames(tmp_path: Path) -> None:
    fields = {"label": sp.Stack("label_id"), "frame_count": sp.Stack("frame_count")}
    catalog = footages.made_up(tmp_path, 60)
    with footages.program(catalog, fields=fields, max_frames=None, max_bytes=None) as stream:
        found = batch_of(stream)

    assert not {"frames a batch", "bytes a batch", "budget used", "tight bound", "decode cost"} & set(found)
