"""Streams over a store that fails, through the node cache: the same batches, counted, or an error that says what to do."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest

import spiral_stream as sp
from spiral_stream import use_storage
from spiral_stream.runtime import read_ahead
from spiral_stream.storage.open import store_of
from spiral_stream.storage.profiles import options_of
from tests.fixtures import stores, streams
from tests.fixtures.fault_proxy import FaultProxy, fault_proxy
from tests.fixtures.waits import until

ROWS = 64


@pytest.fixture(scope="module")
def proxy(s3_endpoint: str) -> Iterator[FaultProxy]:
    with fault_proxy(s3_endpoint) as found:
        yield found


@pytest.fixture(scope="module")
def made(proxy: FaultProxy, s3_endpoint: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, Any]]:
    """A bucket behind the proxy; and plans over the same images in local files and in its objects."""
    folder = tmp_path_factory.mktemp("far")
    uri = f"s3://{stores.new_bucket(s3_endpoint)}"
    use_storage("far", prefix=uri, **patient(proxy))
    table = streams.images(ROWS)
    (folder / "files").mkdir()
    store, _ = store_of(uri)
    names = [f"{at:04}.jpg" for at in range(ROWS)]
    for name, data in zip(names, table["image_ref"].to_pylist(), strict=True):
        (folder / "files" / name).write_bytes(data)
        store.put(f"images/{name}", data)
    catalog = sp.connect(str(folder / "catalog"))
    out = {}
    for kind, base in (("local", str(folder / "files")), ("far", f"{uri}/images")):
        rows = table.set_column(2, "image_ref", pa.array([f"{base}/{name}" for name in names]))
        catalog.register(kind, sp.Arrow(rows), semantic={"image_ref": "image/jpeg-ref"})
        out[kind] = streams.plan(catalog.table(kind), order=sp.GlobalShuffle(seed=3), batch_size=8)
    return uri, out


def patient(proxy: FaultProxy) -> dict[str, str]:
    return stores.options(proxy.address) | {"client_max_retries": "10"}


@pytest.fixture
def far(
    made: tuple[str, dict[str, Any]], proxy: FaultProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """The bucket, on a network that works, and an empty node cache."""
    monkeypatch.setenv("SPIRAL_NODE_CACHE", str(tmp_path / "node"))
    proxy.set()
    use_storage("far", prefix=made[0], **patient(proxy))
    yield made[0]
    use_storage("far", prefix=made[0])


@pytest.fixture
def images(far: str, made: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    """The plans, by where the images lie."""
    return made[1]


def all_of(plan: Any) -> tuple[list[Any], dict[str, Any]]:
    with plan.to_numpy(prefetch=4) as stream:
        return list(stream), stream.metrics()["network"]


def need_same(left: list[Any], right: list[Any]) -> None:
    assert len(left) == len(right)
    for one, other in zip(left, right, strict=True):
        for name in one:
            np.testing.assert_array_equal(np.asarray(one[name]), np.asarray(other[name]))


def test_a_second_epoch_asks_nothing_of_the_store(images: dict[str, Any], proxy: FaultProxy) -> None:
    local, network = all_of(images["local"])
    assert (network["requests"], network["hits"]) == (0, 0)
    proxy.set()
    cold, network = all_of(images["far"])
    need_same(cold, local)
    assert (network["requests"], network["hits"]) == (ROWS, 0)
    assert network["bytes"] == proxy.counts()["bytes"]
    assert network["wait_s"] > 0
    assert network["slowest_s"] * 1e3 >= network["first_byte_ms"] > 0
    proxy.set()
    with images["far"].to_numpy(prefetch=4) as stream:
        need_same(list(stream), local)
        said = str(stream.explain(analyze=True))
        network = stream.metrics()["network"]
    assert (network["requests"], network["hits"], network["hit_bytes"] > 0) == (0, ROWS, True)
    assert f"{ROWS} hits of the node cache" in said
    assert proxy.counts()["requests"] == 0


def test_a_cache_that_is_off_or_cannot_be_written_is_done_without(
    images: dict[str, Any], proxy: FaultProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local, _ = all_of(images["local"])
    monkeypatch.setenv("SPIRAL_NODE_CACHE", "off")
    proxy.set()
    for _ in range(2):
        need_same(all_of(images["far"])[0], local)
    assert proxy.counts()["requests"] == 2 * ROWS
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("SPIRAL_NODE_CACHE", str(tmp_path / "file"))
    with pytest.warns(sp.SpiralWarning, match=r"Bytes of object stores are read again each time"):
        first, _ = all_of(images["far"])
    need_same(first, local)
    need_same(all_of(images["far"])[0], local)  # a second warning would be an error
    assert not (tmp_path / "node" / "files").exists() or not list((tmp_path / "node" / "files").iterdir())


def test_an_epoch_through_a_bad_network_gives_the_same_batches(images: dict[str, Any], proxy: FaultProxy) -> None:
    local, _ = all_of(images["local"])
    faults = {"error": 0.08, "slow_down": 0.08, "reset": 0.08, "cut": 0.08}
    proxy.set(latency_s=0.01, slow_start=0.02, **faults)
    found, network = all_of(images["far"])
    need_same(found, local)
    counts = proxy.counts()
    bad = sum(counts[kind] for kind in faults)
    assert sum(counts[kind] > 0 for kind in faults) >= 3, counts
    assert network["retries"] == bad
    assert network["requests"] == counts["requests"] == ROWS + bad


@pytest.mark.parametrize("fault", ["away", "silent"])
def test_a_store_that_stays_away_ends_the_run_and_the_state_resumes(
    fault: str, images: dict[str, Any], far: str, proxy: FaultProxy
) -> None:
    local, _ = all_of(images["local"])
    use_storage("far", prefix=far, **stores.options(proxy.address) | {"client_retry_timeout": "1"})
    with images["far"].to_numpy(prefetch=2) as stream:
        each = iter(stream)
        head = [next(each) for _ in range(3)]
        proxy.set(**{fault: True})
        with pytest.raises(
            sp.errors.SourceError, match=r"the store (fails|does not answer).*a saved state resumes"
        ) as caught:
            head.extend(each)  # which keeps those before the error
        state = stream.state_dict()
    assert stores.SECRET not in str(caught.value)
    proxy.set()
    with images["far"].to_numpy(prefetch=2) as stream:
        stream.load_state_dict(state)
        need_same(head + list(stream), local)


def test_what_is_not_the_object_is_named(
    images: dict[str, Any], far: str, proxy: FaultProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults = {
        "html": (True, r"answer is not the store's: it has no etag, as the page of a proxy"),
        "expired": (True, r"ExpiredToken\)\. Check the credentials, whether they have expired"),
        "denied": ("images/0007", r"images/0007\.jpg: may not be read with profile far .*403, AccessDenied"),
    }
    for kind, (value, words) in faults.items():
        proxy.set(first=0 if kind == "denied" else 9, **{kind: value})
        monkeypatch.setenv("SPIRAL_NODE_CACHE", str(tmp_path / kind))
        with pytest.raises(sp.errors.SourceError, match=words) as caught:
            all_of(images["far"])
        assert stores.SECRET not in str(caught.value)
        assert proxy.counts()["requests"] < 2 * ROWS
    proxy.set()
    store, _ = store_of(far)
    before = bytes(store.get("images/0050.jpg").data)
    store.put("images/0050.jpg", b"another")
    monkeypatch.setenv("SPIRAL_NODE_CACHE", str(tmp_path / "another"))
    with pytest.raises(sp.errors.SourceError, match=r"0050\.jpg changed since registration.*catalog\.refresh"):
        all_of(images["far"])
    store.put("images/0050.jpg", before)
    use_storage("gone", prefix="s3://no-such-bucket", **stores.options(proxy.address))
    with pytest.raises(sp.errors.SourceError, match=r"its bucket is not there"):
        store_of("s3://no-such-bucket/a")[0].get("a")


@pytest.mark.usefixtures("no_threads_left")
def test_a_stream_that_waits_for_a_store_closes_at_once(images: dict[str, Any], proxy: FaultProxy) -> None:
    proxy.set(silent=True)
    stream = images["far"].to_numpy(prefetch=4)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(lambda: next(iter(stream)))
        until(lambda: proxy.counts()["requests"])
        stream.close()  # the store is waited for longer; threads left alone would be warned of
        with pytest.raises(sp.errors.StreamError, match="closed"):
            waiting.result()
    assert streams.our_threads() == []


@pytest.mark.usefixtures("no_threads_left")
def test_the_next_epoch_is_asked_for_before_the_present_one_ends(
    images: dict[str, Any], proxy: FaultProxy, far: str
) -> None:
    with images["local"].to_numpy(prefetch=2).bind(rank=0, world_size=2) as stream:
        right = [list(stream), list(stream)]
    had = {each for batch in right[0] for each in batch["id"]}
    new = {each for batch in right[1][:2] for each in batch["id"]} - had
    store, _ = store_of(far)
    size = sum(store.stat(f"images/{int(each.removeprefix('img-')):04}.jpg").size for each in had | new)
    with images["far"].to_numpy(prefetch=2).bind(rank=0, world_size=2) as stream:
        found = list(stream)
        until(lambda: stream.metrics()["network"]["bytes"] >= size)  # nothing is under way when the store goes away
        network = stream.metrics()["network"]
        assert (network["requests"], network["hits"]) == (len(had) + len(new), 0)
        proxy.set(away=True)
        each = iter(stream)
        found += [next(each), next(each)]
        proxy.set()
        found += list(each)
    assert len(new) > 4
    need_same(found, right[0] + right[1])
    assert streams.our_threads() == []


@pytest.mark.usefixtures("no_threads_left")
def test_a_stream_that_waits_for_the_next_epoch_closes_at_once(
    images: dict[str, Any], proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch, images["far"].to_numpy(prefetch=2).bind(rank=0, world_size=2) as stream:
        patch.setattr(read_ahead, "NEXT_EPOCH_BYTES", 0)
        assert len(list(stream)) == ROWS // 16  # from now on this epoch lies on the node
    proxy.set(silent=True)
    with images["far"].to_numpy(prefetch=2).bind(rank=0, world_size=2) as stream:
        assert len(list(stream)) == ROWS // 16
        until(lambda: proxy.counts()["requests"])
    assert streams.our_threads() == []


def test_what_lance_asks_of_a_store_is_counted(far: str, proxy: FaultProxy, tmp_path: Path) -> None:
    lance.write_dataset(streams.images(ROWS), f"{far}/rows.lance", storage_options=options_of(far))
    catalog = sp.connect(str(tmp_path / "catalog"))
    catalog.register("rows", sp.Lance(f"{far}/rows.lance"), semantic={"image_ref": "image/jpeg-ref"})
    with streams.plan(catalog.table("rows"), batch_size=8).to_numpy(prefetch=4) as stream:
        assert len(list(stream)) == ROWS // 8
        before = stream.metrics()["network"]
        proxy.set()
        assert len(list(stream)) == ROWS // 8
        now, counts = stream.metrics()["network"], proxy.counts()
    assert counts["requests"] > 0
    for name in ("requests", "bytes"):
        assert now[name] - before[name] == counts[name]
    assert now["wait_s"] > before["wait_s"] > 0
