"""Processes of one node over one relation on a store: each byte once, the limit kept, whoever is killed."""

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

import spiral_stream as sp
from spiral_stream import use_storage
from spiral_stream.storage.open import store_of
from tests.fixtures import stores
from tests.fixtures.far_processes import digest_of, plan_of, read_epoch, write_tars
from tests.fixtures.fault_proxy import FaultProxy, fault_proxy
from tests.fixtures.node_folders import ended, taken
from tests.fixtures.node_processes import context


@dataclass(frozen=True)
class Far:
    catalog: str
    prefix: str
    size: int  # bytes of its tars
    digest: str  # of an epoch of local files
    thrice: str  # of three
    proxy: FaultProxy
    options: dict[str, str]

    def started(self, node: Path, limit: int, told: Any, meet: Any = None) -> BaseProcess:
        args = self.catalog, str(node), limit, self.prefix, self.options, told, meet
        process = context().Process(target=read_epoch, args=args, daemon=True)
        process.start()
        return process


@pytest.fixture(scope="module")
def far(s3_endpoint: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Far]:
    folder = tmp_path_factory.mktemp("far")
    (folder / "tars").mkdir()
    size = write_tars(folder / "tars", 24, 10)
    with fault_proxy(s3_endpoint) as proxy, pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPIRAL_NODE_CACHE", "off")
        prefix = f"s3://{stores.new_bucket(s3_endpoint)}"
        use_storage("far", prefix=prefix, **stores.options(proxy.address))
        for path in (folder / "tars").iterdir():
            store_of(prefix)[0].put(f"tars/{path.name}", path.read_bytes())
        catalog = sp.connect(str(folder / "catalog"))
        for name, place in (("local", str(folder / "tars")), ("far", f"{prefix}/tars")):
            catalog.register(name, sp.sources.WebDataset(place), identity=sp.RowIdentity())
        digest, thrice = (digest_of(plan_of(catalog, "local"), epochs)[0] for epochs in (1, 3))
        yield Far(str(folder / "catalog"), prefix, size, digest, thrice, proxy, stores.options(proxy.address))
        use_storage("far", prefix=prefix)


@pytest.mark.e2e
@pytest.mark.parametrize("count", [2, pytest.param(8, marks=pytest.mark.slow)])
def test_cold_processes_of_a_node_download_the_data_once(count: int, far: Far, tmp_path: Path) -> None:
    told, meet = context().SimpleQueue(), context().Barrier(count)  # some ask while others fetch
    far.proxy.set(latency_s=0.01)
    processes = [far.started(tmp_path, 1 << 30, told, meet) for _ in range(count)]
    found = [told.get() for _ in processes]
    ended(processes)

    assert [digest for digest, _ in found] == [far.digest] * count
    came = far.proxy.counts()["bytes"]
    assert came == sum(network["bytes"] for _, network in found)
    assert 0.9 * far.size < came <= 1.05 * far.size
    assert sum(network["waits"] for _, network in found) > 0


@pytest.mark.e2e
def test_a_cache_of_a_third_of_the_data_keeps_its_limit_and_brings_hardly_more(
    far: Far, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = far.size // 3
    monkeypatch.setenv("SPIRAL_NODE_CACHE", str(tmp_path))
    monkeypatch.setenv("SPIRAL_NODE_CACHE_BYTES", str(limit))
    far.proxy.set()
    digest, network = digest_of(plan_of(sp.connect(far.catalog), "far"), epochs=3)

    assert digest == far.thrice
    assert far.proxy.counts()["bytes"] >= network["bytes"]  # what was under way at the end was not counted
    assert (
        network["bytes"] < 1.7 * 3 * far.size
    )  # each image has a block or two, and what is not kept comes as it is asked for
    assert network["again"] > 0.5 * far.size
    assert network["hit_bytes"] > 0.3 * far.size
    assert taken(tmp_path) <= limit


def killed_again_and_again(far: Far, node: Path, rounds: int, seed: int) -> None:
    """Two processes read; both are killed at a random moment; at the end one reads all."""
    draw, limit = random.Random(seed), far.size // 2
    far.proxy.set(latency_s=0.05)
    for each in range(rounds):
        told = context().SimpleQueue()
        pair = [far.started(node, limit, told) for _ in range(2)]
        what = (
            "requests" if each else "bytes"
        )  # in the first round a body has come: one that a kill cuts counts no bytes
        before = far.proxy.counts()[what]
        while far.proxy.counts()[what] == before and pair[0].is_alive():
            time.sleep(0.01)
        time.sleep(draw.uniform(0.0, 0.5))
        for process in pair:
            process.kill()
        ended(pair)
        assert taken(node) <= limit + (2 << 20)  # what was in flight
    assert far.proxy.counts()["bytes"] > 0  # they came to read
    far.proxy.set()
    told = context().SimpleQueue()
    last = far.started(node, limit, told)
    digest, _ = told.get()
    ended([last])

    assert digest == far.digest
    assert taken(node) <= limit


@pytest.mark.e2e
def test_after_processes_are_killed_the_batches_are_the_same(far: Far, tmp_path: Path) -> None:
    killed_again_and_again(far, tmp_path, 1, 1)


@pytest.mark.e2e
@pytest.mark.slow
def test_after_many_kills_the_batches_are_the_same(far: Far, tmp_path: Path) -> None:
    killed_again_and_again(far, tmp_path, 50, 2)
