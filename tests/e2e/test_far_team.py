"""A team on one bucket: two machines register, three build and two read, all at once, and no machine knows another."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import spiral_stream as spiral
from spiral_stream import use_storage
from spiral_stream.storage.open import store_of
from tests.fixtures import stores, streams

NAMES = 8
pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(600)]
MACHINE = """
import json, sys
import pyarrow as pa
import xxhash
import spiral_stream as spiral
from spiral_stream.errors import CatalogError

role, uri, number = sys.argv[1], sys.argv[2], int(sys.argv[3])
catalog, found = spiral.connect(uri), {}
if role == "register":
    won = []
    for name in [each for k in range(8) for each in (f"own-{number}-{k}", f"both-{k}")]:
        try:
            catalog.register(name, spiral.Arrow(pa.table({"id": [f"{name}-{number}-{k}" for k in range(5)]})), identity="id")
            won.append(name)
        except CatalogError:
            pass
    found = {"won": won}
else:
    plan = (
        catalog.table("images")
        .filter(spiral.col("label_id") >= 0)
        .cache(image_ref=spiral.Raw(shorter_side=40))
        .sample(order=spiral.GlobalShuffle(seed=5))
        .collate(
            batch_size=16,
            fields={
                "image": spiral.Stack("image_ref", decode="jpeg", transforms=[spiral.RandomResizedCrop(32)]),
                "id": spiral.List("sample_id"),
            },
        )
    )
    with plan.to_numpy() as stream:
        if role == "build":
            stream.materialize(lambda _: None)
        digests = [xxhash.xxh3_64_hexdigest(each["image"].tobytes() + repr(each["id"]).encode()) for each in stream]
        found = {"digests": digests, "built": [[each.built, each.rows] for each in stream.caches()]}
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with stores.s3_server() as address:
        yield address


def started(role: str, uri: str, number: int, folder: Path, environment: dict[str, str]) -> "subprocess.Popen[str]":
    folder.mkdir()
    own = {"HOME": folder / "home", "SPIRAL_NODE_CACHE": folder / "node", "SPIRAL_CATALOG_MIRROR": folder / "mirror"}
    command = [sys.executable, "-c", MACHINE, role, uri, str(number)]
    every = os.environ | environment | {name: str(path) for name, path in own.items()}
    return subprocess.Popen(command, env=every, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finished(process: "subprocess.Popen[str]") -> dict[str, Any]:
    out, said = process.communicate(timeout=300)
    assert process.returncode == 0, said[-3_000:]
    found: dict[str, Any] = json.loads(out.splitlines()[-1])
    return found


def test_nothing_is_lost_and_nothing_is_double(endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = f"s3://{stores.new_bucket(endpoint)}"
    profile = tmp_path / "storage.toml"
    lines = [f"{name} = {json.dumps(str(value))}" for name, value in stores.options(endpoint).items()]
    profile.write_text("\n".join(["[tests]", f'prefix = "{bucket}"', *lines]))
    far = {"SPIRAL_CACHE": f"{bucket}/prepared", "SPIRAL_STORAGE": str(profile)}
    for name, value in {
        **far,
        "SPIRAL_CATALOG_MIRROR": tmp_path / "mirror",
        "SPIRAL_NODE_CACHE": tmp_path / "node",
    }.items():
        monkeypatch.setenv(name, str(value))
    use_storage("tests", prefix=bucket, **stores.options(endpoint))
    uri = f"{bucket}/catalog"
    spiral.connect(uri).register("images", spiral.Arrow(streams.images(160)), semantic={"image_ref": "image/jpeg-ref"})

    roles = ["register", "register", "build", "build", "build", "read", "read"]
    done = [finished(each) for each in [started(r, uri, k, tmp_path / f"m{k}", far) for k, r in enumerate(roles)]]

    for k in range(NAMES):  # of a contested name one is the winner
        assert sum(f"both-{k}" in each["won"] for each in done[:2]) == 1
    for number, each in enumerate(done[:2]):
        assert {f"own-{number}-{k}" for k in range(NAMES)} <= set(each["won"])
    catalog = spiral.connect(uri)
    assert len(catalog.tables()) == 1 + 3 * NAMES
    for number, each in enumerate(done[:2]):
        for name in each["won"]:
            assert catalog.table(name).to_arrow()["id"].to_pylist()[0] == f"{name}-{number}-0"
    assert len({tuple(each["digests"]) for each in done[2:]}) == 1
    assert [each["built"] for each in done[2:5]] == [[[160, 160]]] * 3
    store, key = store_of(f"{bucket}/prepared/")
    entries = [name for name, _ in store.list(key) if "/ledger/" in name]
    shards = [name.rpartition("/")[2].partition(".")[0] for name in entries]
    assert len(shards) == len(set(shards)) > 0
    late = finished(started("read", uri, 9, tmp_path / "late", far))
    assert (late["digests"], late["built"]) == (done[2]["digests"], [[160, 160]])
