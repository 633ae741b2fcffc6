"""Torch streams whose runs decide on shares: in loops, through loaders with workers, and on ranks that have to agree."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import spiral_stream as sp
from tests.fixtures.decisions import SIZES, relation_of
from tests.fixtures.texts import make_catalog

torch = pytest.importorskip("torch")
from torch.utils.data import DataLoader  # noqa: E402  after the skip

from spiral_stream.adapters import StreamLoader  # noqa: E402

pytestmark = [
    pytest.mark.usefixtures("no_threads_left"),
    pytest.mark.filterwarnings("ignore:lance is not fork-safe"),
    pytest.mark.filterwarnings("ignore:lancedb fork support is experimental"),
]

SHARES = {"a": 0, "b": 1, "c": 3}
FORKED: dict[str, Any] = {"multiprocessing_context": "fork", "timeout": 300}


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> sp.Catalog:
    return make_catalog(tmp_path_factory.mktemp("decided"), SIZES, shortest=1)


@pytest.fixture
def stream(catalog: sp.Catalog) -> Iterator[Any]:
    with relation_of(catalog, "fixed", size=320).to_torch() as made:
        yield made


def samples(batches: Any) -> list[list[str]]:
    return [batch["sample_id"] for batch in batches]


@pytest.mark.parametrize("through", [iter, StreamLoader, lambda stream: DataLoader(stream, batch_size=None)])
def test_a_loop_in_this_process_goes_on_with_it(stream: Any, through: Any) -> None:
    seen = []
    for step, batch in enumerate(through(stream)):
        seen.append(batch["sample_id"])
        if step == 4:
            assert stream.decide(SHARES) == (0, 5)

    assert seen == samples(stream.batch(number, epoch=0) for number in range(20))
    assert any(name.startswith("a") for name in seen[4])
    assert not any(name.startswith("a") for names in seen[5:] for name in names)


def test_workers_refuse_it_in_their_loop_and_follow_it_between_passes(stream: Any) -> None:
    loader = StreamLoader(stream, 1, **FORKED)
    for _ in loader:
        with pytest.raises(sp.errors.StreamError, match="Leave the loop first, or read with num_workers=0"):
            stream.decide(SHARES)
        break
    loader.close()

    assert stream.decide(SHARES) == (0, 1)
    assert samples(loader) == samples(stream.batch(number, epoch=0) for number in range(1, 20))
    loader.close()


def test_workers_that_live_on_refuse_to_read_what_was_decided_since(stream: Any) -> None:
    loader = DataLoader(stream, batch_size=None, num_workers=1, persistent_workers=True, **FORKED)
    list(loader)
    stream.set_epoch(1)
    stream.decide(SHARES)

    with pytest.raises(sp.errors.StreamError, match="Make a new DataLoader"):
        list(loader)
    del loader


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What another rank says it decided; with nothing, the same as this one."""
    others: list[Any] = []

    def gathered(each: list[Any], mine: Any) -> None:
        each[:] = [mine, *(others or [mine])]

    distributed = "torch.distributed"
    monkeypatch.setattr(f"{distributed}.is_initialized", lambda: True)
    monkeypatch.setattr(f"{distributed}.get_world_size", lambda: 2)
    monkeypatch.setattr(f"{distributed}.all_gather_object", gathered)
    return others


def test_ranks_that_agree_go_on(stream: Any, said: list[Any]) -> None:
    assert not said
    assert stream.bind(rank=0, world_size=2).decide(SHARES, at=2) == (0, 2)


def test_ranks_that_do_not_agree_raise_and_change_nothing(stream: Any, said: list[Any]) -> None:
    said.append(("another digest", "{'a': 1} from batch 2 of epoch 0 on"))

    with pytest.raises(sp.errors.StreamError, match=r"rank 1 has {'a': 1} .* Call it on each, at the same step"):
        stream.bind(rank=0, world_size=2).decide(SHARES, at=2)
    assert stream.decided() == []


def test_a_rank_that_refuses_lets_the_others_know(stream: Any, said: list[Any]) -> None:
    said.append(("a digest", "words"))

    with pytest.raises(sp.errors.StreamError, match="rank 0 has an error: decide: at=1 lies inside a step"):
        stream.bind(rank=0, world_size=2).decide(SHARES, at=1)


def test_ranks_that_all_refuse_say_why(stream: Any, said: list[Any]) -> None:
    assert not said
    with pytest.raises(sp.errors.StreamError, match="Give 0 or 2"):
        stream.bind(rank=0, world_size=2).decide(SHARES, at=1)


def test_ranks_in_groups_are_not_compared(stream: Any, said: list[Any]) -> None:
    said.append(("another digest", ""))

    assert stream.bind(rank=0, world_size=1).decide(SHARES, at=2) == (0, 2)


def test_a_stream_travels_with_what_was_decided(stream: Any, tmp_path: Path) -> None:
    import pickle

    del tmp_path
    stream.decide(SHARES, at=3)
    with pickle.loads(pickle.dumps(stream)) as copy:
        assert samples(copy) == samples(stream.batch(number) for number in range(20))
