"""Golden replay of an image plan: the same fingerprint, identities and pixels on every machine and in every version.

``tests/replay/image.json`` holds the JPEGs and what they must become. A change of any value is a change of what
users' runs see: it takes a new cursor version and a line in the changelog. `record` makes the file's values.
"""

import base64
import hashlib
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import spiral_stream as sp
from spiral_stream.cursor import STATE_VERSION
from tests.fixtures.streams import ORDERS, identities, plan

GOLDEN = Path(__file__).parents[1] / "replay" / "image.json"
ROWS, BATCHES = 150, 2
TRANSFORMS = (sp.RandomResizedCrop(size=24), sp.RandomHorizontalFlip())


def relation(folder: Path, jpegs: list[str]) -> sp.Relation:
    data = [base64.b64decode(each) for each in jpegs]
    table = pa.table(
        {
            "sample_id": [f"img-{i:04d}" for i in range(ROWS)],
            "image_ref": pa.array([data[i % len(data)] for i in range(ROWS)], pa.large_binary()),
            "label_id": [i % 7 for i in range(ROWS)],
            "storage_shard": [f"shard-{i // 40}" for i in range(ROWS)],
        }
    )
    catalog = sp.connect(str(folder / "catalog"))
    catalog.register("golden", sp.Arrow(table), semantic={"image_ref": "image/jpeg-ref"})
    return catalog.table("golden")


def digest(parts: Any) -> str:
    whole = hashlib.sha256()
    for part in parts:
        whole.update(part if isinstance(part, bytes) else f"{part}\n".encode())
    return whole.hexdigest()


def record(folder: Path, jpegs: list[str]) -> dict[str, Any]:
    """What the file holds, computed now."""
    rows, out = relation(folder, jpegs), {"state_version": STATE_VERSION, "jpegs": jpegs, "orders": {}}
    for name, order in ORDERS.items():
        options = {"order": order, "last": sp.KeepPartial, "lanes": 2, "batch_size": 16, "transforms": TRANSFORMS}
        with plan(rows, **options).to_numpy() as stream:
            epochs = [list(stream) for _ in range(2)]
            first = identities(epochs[0])
            out["orders"][name] = {
                "fingerprint": stream.fingerprint,
                "first": first[:64],
                "identities": [digest(identities(epoch)) for epoch in epochs],
                "pixels": [digest(batch["image"].tobytes() for batch in epoch[:BATCHES]) for epoch in epochs],
            }
    with plan(rows, transforms=TRANSFORMS, profile=sp.Raw(shorter_side=32)).to_numpy() as stream:
        out["raw"] = {"fingerprint": stream.fingerprint, "pixels": digest([stream.batch(0)["image"].tobytes()])}
    return out


@pytest.mark.usefixtures("no_threads_left", "no_encoder")
def test_a_plan_replays_bit_for_bit(tmp_path: Path) -> None:
    golden = json.loads(GOLDEN.read_text())

    assert record(tmp_path, golden["jpegs"]) == golden
