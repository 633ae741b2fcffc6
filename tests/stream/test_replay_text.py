"""Golden replay of text plans: the same fingerprint, identities and tokens on every machine and in every version.

A change of any value is a change of what users' runs see: it takes a new version of what changed, and a line in the
changelog. `record` makes the file's values.
"""

import json
from pathlib import Path
from typing import Any

import pytest

import spiral_stream as sp
from spiral_stream.cursor import STATE_VERSION
from tests.fixtures.texts import SMALL_PLANS, fields, ids_of, make_catalog, mixed, tokenized
from tests.stream.test_replay import digest

pytestmark = SMALL_PLANS

GOLDEN = Path(__file__).parents[1] / "replay" / "text.json"
SHARES = {"web": 0.7, "wiki": 0.1, "code": 0.2}
ORDER = sp.ShardAwareShuffle(
    seed=9176, shard_key=["stream_id", "storage_shard"], shuffle_block_size=100, sampling_granularity="row_group"
)
ARRAYS = ("ids", "mask", "labels")
BUDGET = sp.BatchBudget(max_tokens=512)
LENGTH = sp.BucketKey("len(tokens)")
PLANS: dict[str, dict[str, Any]] = {
    "bucketed": {
        "batch_size": None,
        "formation": sp.WindowedBucket(window_size=64, keys=[LENGTH], budget=BUDGET),
        "composition": sp.StratifiedByStream("stream_id"),
    },
    "one stream": {
        "batch_size": 16,
        "formation": sp.WindowedBucket(window_size=128, keys=[LENGTH]),
        "composition": sp.batching.OneStream(batches=2),
    },
    "best fit": {"batch_size": 4, "formation": sp.batching.Packed(max_tokens=64, window_size=128)},
    "end to end": {
        "batch_size": 4,
        "formation": sp.batching.Packed(max_tokens=64, strategy="concat_and_split", window_size=128),
    },
    "counted": {"batch_size": 16},
}


def record(folder: Path) -> dict[str, Any]:
    """What the file holds, computed now."""
    catalog = make_catalog(folder, {"web": 300, "wiki": 40, "code": 60}, longest=48)
    docs = mixed(catalog, SHARES, 1_000).filter(sp.col("quality") > 0.15)
    out: dict[str, Any] = {"state_version": STATE_VERSION, "plans": {}}
    for name, options in PLANS.items():
        sampled = tokenized(docs, ORDER, lanes=2 if name == "bucketed" else 1)
        own = {**fields(), "labels": sp.ShiftedLabels("tokens"), "stream_id": sp.List("stream_id")}
        with sampled.collate(fields=own, last=sp.KeepPartial, **options).to_numpy() as stream:
            epochs = [list(stream) for _ in range(2)]
            out["plans"][name] = {
                "fingerprint": stream.fingerprint,
                "first": ids_of(epochs[0])[:64],
                "shapes": [list(batch["ids"].shape) for batch in epochs[0][:16]],
                "identities": [digest(ids_of(epoch)) for epoch in epochs],
                "tokens": [digest(b[key].tobytes() for b in epoch for key in ARRAYS) for epoch in epochs],
            }
    return out


@pytest.mark.usefixtures("no_threads_left", "no_encoder")
def test_a_text_plan_replays_bit_for_bit(tmp_path: Path) -> None:
    assert record(tmp_path) == json.loads(GOLDEN.read_text())
