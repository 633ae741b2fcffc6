"""Folders of MDS shards on an object store have the rows of local ones, and their batches."""

import json
import re
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import spiral_stream as sp
from spiral_stream import use_storage
from spiral_stream.storage.open import store_of
from tests.fixtures import stores
from tests.fixtures.fault_proxy import FaultProxy, fault_proxy
from tests.stream.sources.mds.test_source import shard
from tests.stream.sources.test_remote import put_all, rows_of

DATA = Path(__file__).parents[2] / "data" / "mds"


def batches(catalog: sp.Catalog, name: str) -> list[dict[str, Any]]:
    sampled = catalog.table(name).sample(identity="str_int", order=sp.GlobalShuffle(seed=2), epoch=0)
    fields = {"fixed": sp.Stack("fixed"), "data": sp.List("data"), "pils": sp.List("pils"), "many": sp.List("many")}
    with sampled.collate(batch_size=3, fields=fields, last=sp.KeepPartial).to_numpy(prefetch=2) as stream:
        return [{key: [bytes_of(each) for each in batch[key]] for key in fields} for batch in stream]


def bytes_of(value: Any) -> Any:
    return value.tobytes() if hasattr(value, "tobytes") else value


def without_digests(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_digests(each) for key, each in value.items() if key != "digest"}
    return [without_digests(each) for each in value] if isinstance(value, list) else value


@pytest.mark.parametrize("folder", ["raw", "zstd", "streams"])
def test_shards_on_s3_have_the_rows_of_local_ones(folder: str, tmp_path: Path, bucket: str) -> None:
    put_all(DATA / folder, f"{bucket}/{folder}")
    catalog = sp.connect(str(tmp_path / "catalog"))
    for name, path in (("local", str(DATA / folder)), ("remote", f"{bucket}/{folder}/")):
        arrays = {"tokens": "int64"} if folder == "raw" else {}
        catalog.register(name, sp.sources.Mds(path, arrays=arrays), identity=sp.RowIdentity())
    remote, local = rows_of(catalog, "remote"), rows_of(catalog, "local")
    assert (without_digests(remote) != remote) == (folder != "zstd")  # payload that stays on the store is compared
    assert without_digests(remote) == local != []


def test_batches_are_those_of_local_shards_and_a_shard_that_changes_is_named(
    tmp_path: Path, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPIRAL_NODE_CACHE", "off")  # a node would have what was registered
    put_all(DATA / "raw", f"{bucket}/raw")
    catalog = sp.connect(str(tmp_path / "catalog"))
    for name, path in (("local", str(DATA / "raw")), ("remote", f"{bucket}/raw")):
        catalog.register(name, sp.sources.Mds(path), identity="str_int")
    assert batches(catalog, "remote") == batches(catalog, "local") != []
    store, key = store_of(f"{bucket}/raw/shard.00001.mds")
    store.put(key, (DATA / "raw" / "shard.00001.mds").read_bytes()[::-1])
    with pytest.raises(sp.errors.SourceError, match=r"shard\.00001\.mds changed since registration"):
        batches(catalog, "remote")


def test_what_an_index_lists_and_is_not_there_is_named(tmp_path: Path, bucket: str) -> None:
    shutil.copytree(DATA / "raw", tmp_path / "raw")
    (tmp_path / "raw" / "shard.00001.mds").unlink()
    put_all(tmp_path / "raw", f"{bucket}/raw")
    catalog = sp.connect(str(tmp_path / "catalog"))
    with pytest.raises(sp.errors.SourceError, match=r"index\.json lists shard\.00001\.mds, which is not there"):
        catalog.register("mds", sp.sources.Mds(f"{bucket}/raw"))
    said = json.loads((tmp_path / "raw" / "index.json").read_text())
    said["shards"][0]["raw_data"]["bytes"] += 1
    store, key = store_of(f"{bucket}/raw/index.json")
    store.put(key, json.dumps(said).encode())
    with pytest.raises(sp.errors.SourceError, match=r"shard\.00000\.mds has .* bytes, and the index says"):
        catalog.register("mds", sp.sources.Mds(f"{bucket}/raw"))
    store.put(key.replace("raw/index.json", "other/a.bin"), b"1")
    with pytest.raises(sp.errors.SourceError, match=r"there is no index\.json in or below"):
        catalog.register("mds", sp.sources.Mds(f"{bucket}/other"))


# ---- bits that flip on the way


@pytest.fixture(scope="module")
def proxy(s3_endpoint: str) -> Iterator[FaultProxy]:
    with fault_proxy(s3_endpoint) as found:
        yield found


@pytest.fixture
def behind(proxy: FaultProxy, s3_endpoint: str, tmp_path: Path) -> Iterator[tuple[sp.Catalog, FaultProxy]]:
    """A catalog with shards of 16 MB on a store behind a proxy, whose index has no hash."""
    uri = f"s3://{stores.new_bucket(s3_endpoint)}"
    use_storage("flipping", prefix=uri, **stores.options(proxy.address))
    proxy.set()
    drawn = np.random.default_rng(5)
    samples = [
        [drawn.bytes(4000), b"".join(count(2, [drawn.bytes(2000), drawn.bytes(1)])), np.int64(k).tobytes()]
        for k in range(60)
    ]
    data, entry = shard(samples, {"data": "bytes", "many": "list[png]", "n": "int"}, [None, None, 8])
    (tmp_path / "mds").mkdir()
    (tmp_path / "mds" / "shard.00000.mds").write_bytes(data)
    (tmp_path / "mds" / "index.json").write_text(json.dumps({"version": 2, "shards": [entry]}))
    put_all(tmp_path / "mds", f"{uri}/mds")
    catalog = sp.connect(str(tmp_path / "catalog"))
    for name, path in (("local", str(tmp_path / "mds")), ("far", f"{uri}/mds")):
        catalog.register(name, sp.sources.Mds(path), identity="n")
    yield catalog, proxy
    proxy.set()
    use_storage("flipping", prefix=uri)


def count(images: int, each: list[bytes]) -> list[bytes]:
    """What a list of images holds: how many bytes of head, how many images, their sizes, and they."""
    sizes = np.array([images, *map(len, each)], "<u4").tobytes()
    return [np.uint32(len(sizes)).tobytes(), sizes, *each]


def payload_of(catalog: sp.Catalog, name: str, epoch: int = 0) -> list[dict[str, Any]]:
    sampled = catalog.table(name).sample(order=sp.GlobalShuffle(seed=2), epoch=epoch)
    fields = {"data": sp.List("data"), "many": sp.List("many")}
    with sampled.collate(batch_size=4, fields=fields).to_numpy(prefetch=2) as stream:
        return list(stream)


def right_or_named(catalog: sp.Catalog, epoch: int = 0) -> tuple[list[dict[str, Any]] | None, str]:
    """The batches, or what the error says, which names the digest."""
    try:
        return payload_of(catalog, "far", epoch), ""
    except sp.errors.SourceError as error:
        said = str(error)
    assert re.search(r"shard\.00000\.mds: the xxh3_64 of the bytes is .*, and the reference says", said)
    return None, said


@pytest.mark.parametrize("cache", ["off", "on"])
def test_a_bit_that_flips_on_the_way_is_named_and_never_delivered(
    cache: str, behind: tuple[sp.Catalog, FaultProxy], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPIRAL_NODE_CACHE", str(tmp_path / "node") if cache == "on" else "off")
    catalog, proxy = behind
    right = payload_of(catalog, "local")

    proxy.set(flip=1.0)
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore"
        )  # with a node cache bytes come in blocks: some are right when they are read again
        found, said = right_or_named(catalog)
        assert found in (None, right)
        assert cache == "on" or "Restore the file" in said
        proxy.set()
        assert payload_of(catalog, "far") == right  # whatever the node kept of the reads that failed
    assert payload_of(catalog, "far") == right  # without a word


@pytest.mark.parametrize("cache", ["off", "on"])
def test_bytes_that_are_right_when_read_again_are_told(
    cache: str, behind: tuple[sp.Catalog, FaultProxy], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a network that damages bytes when it sends them first, each batch is right."""
    catalog, proxy = behind
    for epoch in range(3):
        monkeypatch.setenv("SPIRAL_NODE_CACHE", str(tmp_path / f"node-{epoch}") if cache == "on" else "off")
        proxy.set(flip=1.0, heals=True)
        with pytest.warns(UserWarning, match="were damaged on their way, and right when read again"):
            assert payload_of(catalog, "far", epoch) == payload_of(catalog, "local", epoch)


@pytest.mark.parametrize("cache", ["off", "on"])
def test_a_network_that_flips_a_bit_now_and_then_delivers_no_wrong_batch(
    cache: str, behind: tuple[sp.Catalog, FaultProxy], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog, proxy = behind
    proxy.set(flip=0.15 if cache == "off" else 0.5)
    for epoch in range(12):
        monkeypatch.setenv("SPIRAL_NODE_CACHE", str(tmp_path / f"node-{epoch}") if cache == "on" else "off")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found, _ = right_or_named(catalog, epoch)
        assert found in (None, payload_of(catalog, "local", epoch))
    assert proxy.counts()["flip"]
