"""Dealt optimizer steps in a loop's workers and in Trainer: the same batches, and states at borders."""

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

import spiral_stream as sp
from tests.fixtures import even_steps
from tests.fixtures.texts import make_catalog

torch = pytest.importorskip("torch")
from torch.utils.data import DataLoader  # noqa: E402  after the skip

from spiral_stream.adapters import StreamLoader  # noqa: E402

pytestmark = [
    pytest.mark.usefixtures("no_threads_left"),
    pytest.mark.filterwarnings("ignore:lance is not fork-safe"),
    pytest.mark.filterwarnings("ignore:lancedb fork support is experimental"),
]

STEP = 12
FORMED = ["fixed", "packed"]


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> sp.Catalog:
    return make_catalog(tmp_path_factory.mktemp("steps"), even_steps.SIZES, shortest=1)


@pytest.fixture(params=FORMED)
def formed(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def stream_of(catalog: sp.Catalog, formed: str, rank: int = 1, world: int = 3, **options: Any) -> Any:
    stream = even_steps.plan(catalog, formed, **options).to_torch()
    return stream.bind(rank=rank, world_size=world, step_batches=STEP)


def ids(batches: Any) -> list[Any]:
    return [batch["id"] for batch in batches]


def test_workers_deal_what_one_process_deals(catalog: sp.Catalog, formed: str) -> None:
    with stream_of(catalog, formed) as bare, stream_of(catalog, formed) as stream:
        wanted = ids(bare)
        assert ids(DataLoader(stream, batch_size=None, num_workers=2)) == wanted
        assert stream.state_dict(delivered=4)["batch"] == STEP


def test_a_loop_over_workers_that_is_left_inside_a_step_goes_on_there(catalog: sp.Catalog, formed: str) -> None:
    with stream_of(catalog, formed) as bare, stream_of(catalog, formed) as stream:
        wanted = ids(bare)
        loader = StreamLoader(stream, num_workers=2)
        loop = iter(loader)
        had = ids(islice(loop, 6))
        with pytest.warns(sp.SpiralWarning, match="after 2 of its 4 microsteps"):
            assert loader.state_dict()["batch"] == STEP
        loader.close()
        had += ids(islice(iter(loader), 3))
        loader.close()
        assert had == wanted[:9]
        assert ids(stream) == wanted[9:]


def test_a_state_of_a_loop_over_workers_leads_other_ranks_on(catalog: sp.Catalog) -> None:
    with stream_of(catalog, "packed", 0, 3) as stream:
        loader = StreamLoader(stream, num_workers=1)
        loop = iter(loader)
        list(islice(loop, 4))
        state = json.loads(json.dumps(loader.state_dict()))
        loader.close()
    got: list[Any] = []
    for rank in range(2):
        with stream_of(catalog, "packed", rank, 2) as resumed:
            resumed.load_state_dict(state)
            got += [x for batch in islice(resumed, 6) for row in batch["id"] for x in row]
    with even_steps.stream(catalog, "packed") as whole:
        assert sorted(got) == sorted(x for number in range(STEP, 2 * STEP) for x in whole.ledger(number))


def test_a_worker_of_a_stateful_loader_goes_on_inside_a_step(catalog: sp.Catalog) -> None:
    stateful = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader
    with stream_of(catalog, "fixed") as bare, stream_of(catalog, "fixed") as stream:
        wanted = ids(bare)
        first = stateful(stream, batch_size=None, num_workers=1)
        loop: Iterator[Any] = iter(first)
        assert ids(islice(loop, 6)) == wanted[:6]
        state = first.state_dict()
        del loop
    with stream_of(catalog, "fixed") as stream:
        second = stateful(stream, batch_size=None, num_workers=1)
        second.load_state_dict(state)
        assert ids(second) == wanted[6:]


def test_trainers_steps_are_those_of_the_stream(catalog: sp.Catalog, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    from transformers import GPT2Config, GPT2LMHeadModel, TrainingArguments

    from spiral_stream.adapters import StreamTrainer

    def trainer(stream: Any, accumulated: int) -> StreamTrainer:
        args = TrainingArguments(
            str(tmp_path), use_cpu=True, report_to=[], disable_tqdm=True, max_steps=2, save_steps=1,
            gradient_accumulation_steps=accumulated,
        )  # fmt: skip
        model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=64, n_embd=8, n_layer=1, n_head=1))
        return StreamTrainer(model, args, train_dataset=stream)

    fields = {"input_ids": sp.Pad("tokens"), "labels": sp.fields.Labels("tokens"), "id": sp.List("sample_id")}
    plan = catalog.table("a").sample(order=sp.GlobalShuffle(seed=4), identity="sample_id")
    made = plan.collate(batch_size=2, cost="len(tokens)", fields=fields)
    with made.to_torch().bind(step_batches=6) as stream:
        with pytest.raises(
            sp.errors.BindError, match=r"optimizer steps have 6 batches, and Trainer's have 4.*step_batches=4"
        ):
            trainer(stream, 4).train()
        assert trainer(stream, 6).train().global_step == 2
        saved = json.loads((tmp_path / "checkpoint-1" / "spiral_stream.json").read_text())["stream"]
        assert saved["batch"] == 6
        assert saved["segments"][0][-2:] == [6, "cost"]
