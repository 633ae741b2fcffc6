"""What is counted to be fetched again is what a node cache fetches again, in the same order and with the same limit."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import spiral_stream as sp
from spiral_stream import use_storage
from spiral_stream.explain.network.eviction import Evicting
from spiral_stream.sources import read_kept
from spiral_stream.storage.node_cache.file import BLOCK
from tests.fixtures import stores
from tests.fixtures.far_processes import read_epochs, shared_plan, write_tars
from tests.fixtures.node_folders import ended
from tests.fixtures.node_processes import context
from tests.stream.explain.words import in_words

FILES, BYTES = 24, 10 * BLOCK + 1_000
Ask = tuple[int, list[tuple[int, int]]]  # a file; offsets and lengths


def in_ranges(rng: np.random.Generator) -> list[Ask]:
    """Samples of 20 kB in tars, a few neighbouring tars at a time."""
    asks = []
    for _ in range(2):
        for block in rng.permutation(FILES // 4):
            for _ in range(40):
                file = int(block * 4 + rng.integers(4))
                asks.append((file, [(int(rng.integers(BYTES - 20_000)), 20_000)]))
    return asks


def whole(rng: np.random.Generator) -> list[Ask]:
    """Whole files in a global order."""
    return [(int(file), [(0, BYTES)]) for _ in range(3) for file in rng.permutation(FILES)]


def again_and_again(rng: np.random.Generator) -> list[Ask]:
    """Whole files, some far more often than others."""
    return [(int(file) % FILES, [(0, BYTES)]) for file in rng.geometric(0.15, 120)]


@pytest.mark.crossed
@pytest.mark.parametrize("order", [in_ranges, whole, again_and_again])
@pytest.mark.parametrize("share", [3, 8])
def test_a_node_cache_fetches_exactly_what_is_counted(
    order: object, share: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asks = order(np.random.default_rng(7))  # type: ignore[operator]  # one of the above
    limit = FILES * BYTES // share
    counted = Evicting(limit)
    fetched = 0

    def download(offset: int, length: int) -> bytes:
        nonlocal fetched
        fetched += length
        return bytes(length)

    monkeypatch.setenv("SPIRAL_NODE_CACHE", str(tmp_path))
    monkeypatch.setenv("SPIRAL_NODE_CACHE_BYTES", str(limit))
    for file, ranges in asks:
        uri = f"s3://b/{file}"
        counted.ask(uri, BYTES, [(start, start + length) for start, length in ranges])
        read_kept(uri, "1", BYTES, download, ranges)

    assert counted.fetched == fetched
    distinct = Evicting(1 << 60)
    for file, ranges in asks:
        distinct.ask(f"s3://b/{file}", BYTES, [(start, start + length) for start, length in ranges])
    again = counted.fetched - distinct.fetched
    assert again > distinct.fetched / 10


def test_what_fits_is_fetched_once() -> None:
    counted = Evicting(FILES * (BYTES + 3 * 4096) * 2)
    for _ in range(3):
        for file in range(FILES):
            counted.ask(f"s3://b/{file}", BYTES, [(0, BYTES)])

    assert counted.fetched == FILES * BYTES


ORDERS = {"global": sp.GlobalShuffle(seed=3), "shards": sp.ShardAwareShuffle(seed=3, shuffle_block_size=30)}
slow = pytest.mark.slow


@pytest.fixture(scope="module")
def far(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str, int]]:
    """A catalog of 64 tars on a server, its address, and their bytes."""
    folder = tmp_path_factory.mktemp("far")
    (folder / "tars").mkdir()
    size = write_tars(folder / "tars", 64, 15)
    with stores.web_server(folder / "tars") as address, pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPIRAL_NODE_CACHE", "off")
        use_storage("far", prefix=address, allow_http="true")
        source = sp.sources.WebDataset([f"{address}/{at}.tar" for at in range(64)])
        sp.connect(str(folder / "catalog")).register("far", source, identity=sp.RowIdentity())
        yield str(folder / "catalog"), address, size
        use_storage("far", prefix=address)


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("order", "processes"),
    [("global", 1), ("shards", 1), pytest.param("global", 2, marks=slow), pytest.param("shards", 2, marks=slow)],
)
def test_three_epochs_through_a_cache_of_a_third_fetch_what_explain_said(
    order: str, processes: int, far: tuple[str, str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog, address, size = far
    monkeypatch.setenv("SPIRAL_NODE_CACHE", str(tmp_path / "none"))
    monkeypatch.setenv("SPIRAL_NODE_CACHE_BYTES", str(size // 3))
    with shared_plan(sp.connect(catalog), "far", ORDERS[order]).to_numpy() as stream:
        stream.bind(rank=0, world_size=processes, ranks_per_node=processes)
        said = in_words(stream.explain(network="10 Gbit/s, 50 ms"))["network"]
    first, later = (int(said[name].split()[0].lstrip("~").replace(",", "")) for name in ("first epoch", "later epochs"))
    told, step = context().SimpleQueue(), context().Barrier(processes)
    how = (address, {"allow_http": "true"}), str(tmp_path / "node"), size // 3, ORDERS[order]
    args = [(catalog, *how, rank, step, told) for rank in range(processes)]
    started = [context().Process(target=read_epochs, args=each, daemon=True) for each in args]
    for each in started:
        each.start()
    found = [told.get() for _ in started]
    ended(started)

    assert [type(each) for each in found] == [list] * processes, found
    epochs = [sum(each[epoch] for each in found) for epoch in range(3)]
    assert [first, later] == pytest.approx(epochs[:2], rel=0.1)
    assert later == pytest.approx(epochs[2], rel=0.25)  # what is said of later epochs is the second one's
