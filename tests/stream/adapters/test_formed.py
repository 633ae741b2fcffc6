"""Formed batches under DataLoader: the same, with any number of workers, though nobody knows how many there are."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import spiral_stream as sp
from tests.stream.adapters import documents

torch = pytest.importorskip("torch")
from torch.utils.data import DataLoader  # noqa: E402  after the skip

from spiral_stream.adapters.torch import StreamLoader  # noqa: E402  after the skip

pytestmark = [
    pytest.mark.usefixtures("no_threads_left"),
    pytest.mark.timeout(280),
    # Both warn before every fork; what they warn of is why forked workers read in another interpreter.
    pytest.mark.filterwarnings("ignore:lance is not fork-safe"),
    pytest.mark.filterwarnings("ignore:lancedb fork support is experimental"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create 4 worker processes"),
]

Make = Callable[[], Any]
FORMED = {"buckets": documents.BUCKETS, "packed": documents.PACKED}
PROCESSES = [
    (1, "fork"),
    pytest.param(4, "fork", marks=pytest.mark.slow),
    pytest.param(1, "spawn", marks=pytest.mark.slow),
    pytest.param(4, "spawn", marks=pytest.mark.slow),
]


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> sp.Catalog:
    return documents.make_catalog(tmp_path_factory.mktemp("texts"))


@pytest.fixture(params=FORMED)
def make(texts: sp.Catalog, request: pytest.FixtureRequest) -> Make:
    return lambda: documents.plan(texts, FORMED[request.param]).to_torch(prefetch=2)


def alike(some: list[Any], others: list[Any]) -> bool:
    return len(some) == len(others) and all(
        list(a) == list(b)
        and all(np.array_equal(np.asarray(a[k]), np.asarray(b[k])) if k != "sample_id" else a[k] == b[k] for k in a)
        for a, b in zip(some, others, strict=True)
    )


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_worker_i_of_n_reads_every_nth_batch_from_the_ith_on(make: Make, workers: int) -> None:
    with make() as whole:
        expected = list(whole)
    for worker in range(workers):
        with make() as stream:
            assert alike(list(stream.worker_batches(worker, workers)), expected[worker::workers])


def test_a_loader_without_workers_reads_what_has_no_length(make: Make) -> None:
    with make() as whole, make() as stream:
        expected = list(whole)
        assert alike(list(DataLoader(stream, batch_size=None)), expected)
        assert stream.place == (1, 0)


@pytest.mark.parametrize(("workers", "how"), PROCESSES)
def test_workers_give_the_batches_of_the_bare_loop(texts: sp.Catalog, workers: int, how: str) -> None:
    stream, whole, resumed = (documents.plan(texts, documents.BUCKETS).to_torch(prefetch=2) for _ in range(3))
    with whole, stream, resumed:
        expected = list(whole)
        loader = DataLoader(stream, None, num_workers=workers, multiprocessing_context=how, timeout=120)
        assert alike(list(loader), expected)
        resumed.load_state_dict(json.loads(json.dumps(stream.state_dict(delivered=7))))
        assert alike(list(resumed), expected[7:])


@pytest.mark.parametrize(("workers", "how"), [(0, None), *PROCESSES])
def test_a_stream_loader_knows_its_place_and_goes_on_to_the_next_epoch(
    texts: sp.Catalog, workers: int, how: str | None
) -> None:
    stream, whole, resumed = (documents.plan(texts, documents.BUCKETS).to_torch(prefetch=2) for _ in range(3))
    options = {"multiprocessing_context": how, "timeout": 120, "persistent_workers": True} if workers else {}
    with whole, stream, resumed:
        expected, following = list(whole), list(whole)
        loader = StreamLoader(stream, workers, **options)
        batches = iter(loader)
        first = [next(batches) for _ in range(3)]
        state = loader.state_dict()
        loader.close()

        assert stream.place == (0, 3)
        assert alike([*first, *loader], expected)
        assert stream.place == (1, 0)
        assert alike(list(loader), following)
        resumed.load_state_dict(state)
        assert alike(list(resumed), expected[3:])
        del batches, loader
