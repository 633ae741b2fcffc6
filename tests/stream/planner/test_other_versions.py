"""A state by an earlier version of a policy is refused by its name, with both versions and the way out."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import spiral_stream as sp
from spiral_stream import ShardAwareShuffle, WindowedBucket
from spiral_stream.batching import Packed
from spiral_stream.batching.one_stream import least_window
from spiral_stream.plan.saving import fingerprint
from tests.fixtures.texts import SMALL_PLANS

pytestmark = SMALL_PLANS

Patch = pytest.MonkeyPatch


@pytest.fixture
def catalog(tmp_path: Path) -> sp.Catalog:
    made = sp.connect(str(tmp_path / "catalog"))
    for name, rows in (("a", 300), ("b", 60)):
        size = np.arange(rows) * 7 // rows
        tokens = pa.array([list(range(n)) for n in size], pa.list_(pa.uint16()))
        table = pa.table({"id": [f"{name}{i}" for i in range(rows)], "size": size, "tokens": tokens})
        made.register(name, sp.Arrow(table), identity="id")
    return made


def plan(catalog: sp.Catalog, *, mixed: Any = None, order: Any = None, kept: bool = False, **options: Any) -> Any:
    rows = catalog.table("a")
    if mixed is not None:
        rows = sp.mix(
            [sp.Stream(name, catalog.table(name), proportion=share) for name, share in (("a", 0.8), ("b", 0.2))],
            epoch_size=200,
            **mixed,
        )
    sampled = rows.sample(order=order or sp.GlobalShuffle(seed=1))
    sampled = sampled.filter(sp.col("size") > 2) if kept else sampled
    fields = {"id": sp.List("id"), "ids": sp.Pad("tokens", pad_value=9)}
    return sampled.collate(batch_size=4, fields=fields, **options).to_numpy()


WINDOWED = (lambda patch: patch.setattr(WindowedBucket, "COUNTED", 1), "WindowedBucket was version 1, and is version 3")
SCARCE = sp.WindowedBucket(16)
PLANS: dict[str, tuple[Callable[[Patch], None], str, dict[str, Any]]] = {
    "windows": (*WINDOWED, {"formation": sp.WindowedBucket(16)}),
    "filter": (*WINDOWED, {"kept": True}),
    "one stream": (
        *WINDOWED,
        {
            "mixed": {},
            "composition": sp.batching.OneStream(batches=2),
            "formation": sp.WindowedBucket(least_window(2, 2, 4)),
        },
    ),
    "packed": (
        lambda patch: patch.setattr(Packed, "VERSION", 1),
        "Packed was version 1, and is version 2",
        {"formation": sp.batching.Packed(8)},
    ),
    "shard key": (
        lambda patch: patch.setattr(ShardAwareShuffle, "version", 1),
        "ShardAwareShuffle was version 1, and is version 2",
        {"order": sp.ShardAwareShuffle(seed=1, shard_key=["size"], shuffle_block_size=16)},
    ),
    "late stream": (
        lambda patch: patch.setattr(fingerprint, "is_scarce", lambda _: False),
        "StratifiedByStream was version 1, and is version 2",
        {"mixed": {}, "composition": sp.StratifiedByStream(), "formation": SCARCE},
    ),
    "short schedule": (
        lambda patch: patch.setattr(fingerprint, "order_version", lambda *_: 1),
        "the order of a mixture was version 1, and is version 2",
        {"mixed": {"schedule": {0: {"a": 0.8, "b": 0.2}, 3: {"a": 0.5, "b": 0.5}}, "samples_per_step": 20}},
    ),
}


@pytest.mark.parametrize("name", PLANS)
def test_a_state_of_an_earlier_version_is_refused_by_name(catalog: sp.Catalog, name: str) -> None:
    earlier, wanted, options = PLANS[name]
    with pytest.MonkeyPatch.context() as patch:
        earlier(patch)
        with plan(catalog, **options) as stream:
            next(iter(stream))
            state = json.loads(json.dumps(stream.state_dict()))
    way_out = "Go on with the version of spiral that saved it until the epoch ends, or start a new epoch with this one"
    with plan(catalog, **options) as stream:
        before = stream.state_dict()
        with pytest.raises(
            sp.errors.ResumeError, match=rf"^resume: the plan is the same, but .*{wanted} here.*{way_out}"
        ):
            stream.load_state_dict(state)
        assert stream.state_dict() == before
        next(iter(stream))


def test_a_plan_that_differs_too_says_where(catalog: sp.Catalog) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(WindowedBucket, "COUNTED", 1)
        with plan(catalog, formation=sp.WindowedBucket(16)) as stream:
            next(iter(stream))
            state = stream.state_dict()
    with (
        plan(catalog, formation=sp.WindowedBucket(32)) as stream,
        pytest.raises(sp.errors.ResumeError, match=r"@version \(1 -> 3\); collate.formation.window_size \(16 -> 32\)"),
    ):
        stream.load_state_dict(state)
