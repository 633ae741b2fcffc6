"""Folders of MDS shards on an object store have the rows of local ones, and their batches."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import spiral_stream as sp
from spiral_stream.storage.opening import store_of
from tests.stream.sources.test_remote import put_all, rows_of

DATA = Path(__file__).parents[2] / "data" / "mds"


def batches(catalog: sp.Catalog, name: str) -> list[dict[str, Any]]:
    sampled = catalog.table(name).sample(identity="str_int", order=sp.GlobalShuffle(seed=2), epoch=0)
    fields = {"fixed": sp.Stack("fixed"), "data": sp.List("data"), "pils": sp.List("pils"), "many": sp.List("many")}
    with sampled.collate(batch_size=3, fields=fields, last=sp.KeepPartial).to_numpy(prefetch=2) as stream:
        return [{key: [bytes_of(each) for each in batch[key]] for key in fields} for batch in stream]


def bytes_of(value: Any) -> Any:
    return value.tobytes() if hasattr(value, "tobytes") else value


@pytest.mark.parametrize("folder", ["raw", "zstd", "streams"])
def test_shards_on_s3_have_the_rows_of_local_ones(folder: str, tmp_path: Path, bucket: str) -> None:
    put_all(DATA / folder, f"{bucket}/{folder}")
    catalog = sp.connect(str(tmp_path / "catalog"))
    for name, path in (("local", str(DATA / folder)), ("remote", f"{bucket}/{folder}/")):
        arrays = {"tokens": "int64"} if folder == "raw" else {}
        catalog.register(name, sp.Mds(path, arrays=arrays), identity=sp.RowIdentity())
    assert rows_of(catalog, "remote") == rows_of(catalog, "local") != []


def test_batches_are_those_of_local_shards_and_a_shard_that_changes_is_named(
    tmp_path: Path, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPIRAL_NODE_CACHE", "off")  # a node would have what was registered
    put_all(DATA / "raw", f"{bucket}/raw")
    catalog = sp.connect(str(tmp_path / "catalog"))
    for name, path in (("local", str(DATA / "raw")), ("remote", f"{bucket}/raw")):
        catalog.register(name, sp.Mds(path), identity="str_int")
    assert batches(catalog, "remote") == batches(catalog, "local") != []
    store, key = store_of(f"{bucket}/raw/shard.00001.mds")
    store.put(key, (DATA / "raw" / "shard.00001.mds").read_bytes()[::-1])
    with pytest.raises(sp.SourceError, match=r"shard\.00001\.mds changed since registration"):
        batches(catalog, "remote")


def test_what_an_index_lists_and_is_not_there_is_named(tmp_path: Path, bucket: str) -> None:
    shutil.copytree(DATA / "raw", tmp_path / "raw")
    (tmp_path / "raw" / "shard.00001.mds").unlink()
    put_all(tmp_path / "raw", f"{bucket}/raw")
    catalog = sp.connect(str(tmp_path / "catalog"))
    with pytest.raises(sp.SourceError, match=r"index\.json lists shard\.00001\.mds, which is not there"):
        catalog.register("mds", sp.Mds(f"{bucket}/raw"))
    said = json.loads((tmp_path / "raw" / "index.json").read_text())
    said["shards"][0]["raw_data"]["bytes"] += 1
    store, key = store_of(f"{bucket}/raw/index.json")
    store.put(key, json.dumps(said).encode())
    with pytest.raises(sp.SourceError, match=r"shard\.00000\.mds has .* bytes, and the index says"):
        catalog.register("mds", sp.Mds(f"{bucket}/raw"))
    store.put(key.replace("raw/index.json", "other/a.bin"), b"1")
    with pytest.raises(sp.SourceError, match=r"there is no index\.json below"):
        catalog.register("mds", sp.Mds(f"{bucket}/other"))
