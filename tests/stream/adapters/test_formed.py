"""Formed batches under DataLoader: the same, with any number of workers, though nobody knows how many there are."""

import json
from collections.abc import Callable
from itertools import islice
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import spiral_stream as sp
from spiral_stream.cursor import Cursor
from tests.stream.adapters import documents

torch = pytest.importorskip("torch")
from torch.utils.data import DataLoader  # noqa: E402  after the skip

from spiral_stream.adapters import StreamLoader  # noqa: E402

pytestmark = [
    pytest.mark.usefixtures("no_threads_left"),
    # Both warn before every fork; what they warn of is why forked workers read in another interpreter.
    pytest.mark.filterwarnings("ignore:lance is not fork-safe"),
    pytest.mark.filterwarnings("ignore:lancedb fork support is experimental"),
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
            assert alike([batch for batch, _ in stream._worker_batches(worker, workers)], expected[worker::workers])


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
        loader = DataLoader(stream, None, num_workers=workers, multiprocessing_context=how, timeout=300)
        assert alike(list(loader), expected)
        resumed.load_state_dict(json.loads(json.dumps(stream.state_dict(delivered=7))))
        assert alike(list(resumed), expected[7:])


@pytest.mark.parametrize(
    ("workers", "how"), [(0, None), pytest.param(1, "fork", marks=pytest.mark.slow), *PROCESSES[1:]]
)
def test_a_stream_loader_knows_its_place_and_goes_on_to_the_next_epoch(
    texts: sp.Catalog, workers: int, how: str | None
) -> None:
    stream, whole, resumed = (documents.plan(texts, documents.BUCKETS).to_torch(prefetch=2) for _ in range(3))
    options = {"multiprocessing_context": how, "timeout": 300, "persistent_workers": True} if workers else {}
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


@pytest.mark.parametrize(("workers", "how"), [(0, None), (1, "fork"), pytest.param(2, "spawn", marks=pytest.mark.slow)])
def test_a_stream_loader_left_behind_the_last_batch_stands_in_the_next_epoch(
    texts: sp.Catalog, workers: int, how: str | None
) -> None:
    stream, whole, resumed = (documents.plan(texts, documents.BUCKETS).to_torch(prefetch=2) for _ in range(3))
    options = {"multiprocessing_context": how, "timeout": 300, "persistent_workers": True} if workers else {}
    with whole, stream, resumed:
        epochs = [list(whole) for _ in range(3)]
        loader = StreamLoader(stream, workers, **options)
        places = []
        for wanted in epochs[:2]:
            found = []
            for batch in islice(loader, len(wanted)):
                found.append(batch)
                state = loader.state_dict()
                places.append((state["epoch"], state["batch"]))
            assert alike(found, wanted)
            loader.close()
            assert stream.state_dict() == state
        ends = [len(epoch) for epoch in epochs[:2]]
        assert places == [*((0, n) for n in range(1, ends[0])), (1, 0), *((1, n) for n in range(1, ends[1])), (2, 0)]
        resumed.load_state_dict(json.loads(json.dumps(state)))
        assert alike(list(resumed), epochs[2])
        del loader


@pytest.mark.parametrize("workers", [1, 3])
def test_workers_skip_an_epoch_whose_batches_were_all_delivered(
    texts: sp.Catalog, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    """The main process of formed batches may not know that a place is an epoch's end; those who read them find out."""
    with documents.plan(texts, documents.BUCKETS).to_torch() as whole:
        first, second = list(whole), list(whole)
    played = Workers(texts, monkeypatch, workers)
    for worker in range(workers):
        played.move(worker, Cursor(0, len(first)))
    reading = played.iterators()
    assert alike([next(reading[at % workers]) for at in range(len(second))], second)
    for each in reading:
        each.close()


# ---- torchdata's StatefulDataLoader asks each worker for its place; it is no dependency, so a worker is played here


class Workers:
    """Streams that believe to be in the workers of a DataLoader."""

    def __init__(self, texts: sp.Catalog, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
        self.count, self._patch = count, monkeypatch
        self.streams = [documents.plan(texts, documents.BUCKETS).to_torch(prefetch=2) for _ in range(count)]

    def at(self, worker: int) -> Any:
        info = SimpleNamespace(id=worker, num_workers=self.count, seed=worker)
        self._patch.setattr("spiral_stream.adapters.torch.get_worker_info", lambda: info)
        return self.streams[worker]

    def move(self, worker: int, cursor: Cursor) -> None:
        """Move a worker as the main process does, by the memory they share."""
        place = self.at(worker)._run.position
        place.move(cursor)
        place.seen -= 1

    def iterators(self) -> list[Any]:
        return [iter(self.at(worker)) for worker in range(self.count)]

    def states(self) -> list[Any]:
        return [json.loads(json.dumps(self.at(worker).state_dict())) for worker in range(self.count)]


@pytest.mark.parametrize(("workers", "had"), [(1, 4), (2, 5), (4, 2), (3, 15)])
def test_a_worker_goes_on_where_its_own_pass_stood(
    texts: sp.Catalog, monkeypatch: pytest.MonkeyPatch, workers: int, had: int
) -> None:
    with documents.plan(texts, documents.BUCKETS).to_torch() as whole:
        expected = list(whole)
    before, after = (Workers(texts, monkeypatch, workers) for _ in range(2))
    reading = before.iterators()
    first = [next(reading[at % workers]) for at in range(had)]
    states = before.states()
    for each in reading:
        each.close()
    for worker, state in enumerate(states):
        after.at(worker).load_state_dict(state)
    resumed = after.iterators()
    assert after.states() == states  # before the first batch, too

    rest = [next(resumed[at % workers]) for at in range(had, len(expected))]
    assert alike([*first, *rest], expected)
    assert [next(each, None) for each in resumed] == [None] * workers
    with pytest.warns(sp.SpiralWarning, match="once more"):
        again = list(after.iterators()[0])
    assert alike(again, expected[::workers])  # what was loaded counts for one pass

    with pytest.raises(sp.errors.ResumeError, match="as many workers"):
        Workers(texts, monkeypatch, workers + 1).at(0).load_state_dict(states[0])
    monkeypatch.undo()
    refused = pytest.raises(sp.errors.ResumeError, match=r"the main process .*stream\.state_dict\(delivered=n\)")
    with documents.plan(texts, documents.BUCKETS).to_torch() as main, refused:
        main.load_state_dict(states[0])


def test_a_pass_left_early_does_not_move_the_next(texts: sp.Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    with documents.plan(texts, documents.BUCKETS).to_torch() as whole:
        expected = list(whole)
    workers = Workers(texts, monkeypatch, 1)
    left = iter(workers.at(0))
    next(left)
    workers.move(0, Cursor(0, 3))
    following = iter(workers.at(0))  # a worker that stays makes the new pass, then drops the old one
    left.close()
    assert alike(list(following), expected[3:])


def test_a_worker_refuses_another_plans_place(texts: sp.Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    workers = Workers(texts, monkeypatch, 1)
    sound = workers.states()[0]
    state = {name: value for name, value in sound.items() if name != "checksum"}
    with pytest.raises(sp.errors.ResumeError, match=r"saved by plan other.*Restore the old plan"):
        workers.at(0).load_state_dict({**state, "plan": "other"})
    with pytest.raises(sp.errors.ResumeError, match=r"edited or damaged"):
        workers.at(0).load_state_dict({**sound, "epoch": 3})
    for bad in (None, 3, [0], [0, 1], [True, 1, 1], ["0", 1, 1]):
        with pytest.raises(sp.errors.ResumeError, match=r"the state's worker is .*Pass what state_dict\(\) returned"):
            workers.at(0).load_state_dict({**state, "worker": bad})


@pytest.mark.slow  # worker processes
@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata 0.11 under torch 2.14
@pytest.mark.parametrize(("workers", "how"), [(0, None), (2, "fork"), (2, "forkserver")])
def test_a_stateful_data_loader_resumes(texts: sp.Catalog, workers: int, how: str | None) -> None:
    loader = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader
    options = {"num_workers": workers, "multiprocessing_context": how} if workers else {}
    stream, whole, resumed = (documents.plan(texts, documents.BUCKETS).to_torch(prefetch=2) for _ in range(3))
    with whole, stream, resumed:
        expected = list(whole)
        first, second = loader(stream, batch_size=None, **options), loader(resumed, batch_size=None, **options)
        batches = iter(first)
        had = [next(batches) for _ in range(5)]
        second.load_state_dict(first.state_dict())
        assert alike([*had, *second], expected)
        del batches
