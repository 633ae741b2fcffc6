"""Streams in Lightning's loop, which stops behind the last batch without asking for one more."""

import warnings
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given

import spiral_stream as sp
from spiral_stream.testing import check_loops
from tests.fixtures.drawn_streams import Drawn, catalogs, plans
from tests.stream.adapters import documents

torch = pytest.importorskip("torch")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what its import warns of is not ours
    lightning = pytest.importorskip("lightning")

from torch.utils.data import DataLoader  # noqa: E402  after the skip

from spiral_stream.adapters import StreamLoader  # noqa: E402
from tests.fixtures.examples import few  # noqa: E402

pytestmark = [
    pytest.mark.usefixtures("no_threads_left"),
    pytest.mark.filterwarnings("ignore"),  # Lightning warns of few workers, of lengths and of its own dependencies
]
EPOCHS = 3
FORMED = {"counted": documents.COUNTED, "buckets": documents.BUCKETS}


class Recording(lightning.LightningModule):
    """Learns nothing, and keeps what it is given."""

    def __init__(self, stream: Any = None) -> None:
        super().__init__()
        self.stream = stream
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.seen: dict[int, list[Any]] = {}
        self.batches: list[Any] = []

    @property
    def epochs(self) -> list[list[Any]]:
        return list(self.seen.values())

    def training_step(self, batch: dict[str, Any]) -> Any:
        self.seen.setdefault(self.current_epoch, []).append(batch.get("sample_id"))
        self.batches.append(batch)
        return self.weight.sum()

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["stream"] = self.stream.state_dict()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.stream.load_state_dict(checkpoint["stream"])

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def trainer(folder: Path, epochs: int = EPOCHS, **options: Any) -> Any:
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "barebones": False}
    return lightning.Trainer(
        **{"accelerator": "cpu", "max_epochs": epochs, "default_root_dir": str(folder), **quiet, **options}
    )


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> sp.Catalog:
    return documents.make_catalog(tmp_path_factory.mktemp("texts"))


def bare(texts: sp.Catalog, formed: str, epochs: int) -> list[list[Any]]:
    with documents.plan(texts, FORMED[formed]).to_torch() as stream:
        return [[batch["sample_id"] for batch in stream] for _ in range(epochs)]


@pytest.mark.parametrize("formed", FORMED)
@pytest.mark.parametrize("how", ["stream", "DataLoader", "StreamLoader"])
def test_each_of_its_epochs_is_one_of_the_streams(texts: sp.Catalog, tmp_path: Path, formed: str, how: str) -> None:
    with documents.plan(texts, FORMED[formed]).to_torch() as stream:
        loader = {
            "stream": stream,
            "DataLoader": DataLoader(stream, batch_size=None),
            "StreamLoader": StreamLoader(stream),
        }
        model = Recording()
        trainer(tmp_path, enable_checkpointing=False).fit(model, loader[how])
        del loader

    expected, found = bare(texts, formed, EPOCHS), list(chain(*model.epochs))
    assert found == list(chain(*expected))[: len(found)]
    if formed == "counted" or how == "StreamLoader":  # else Lightning takes the first epoch's length for all
        assert model.epochs == expected


@pytest.mark.parametrize("formed", FORMED)
@pytest.mark.parametrize("saved", ["in mid-epoch", "after the last batch", "after the epoch"])
def test_a_checkpoint_goes_on_with_the_next_batch(texts: sp.Catalog, tmp_path: Path, formed: str, saved: str) -> None:
    expected = bare(texts, formed, 3)
    steps = 7 if saved == "in mid-epoch" else len(expected[0])
    when = (
        {"every_n_epochs": 1, "save_on_train_epoch_end": True}
        if saved == "after the epoch"
        else {"every_n_train_steps": steps}
    )
    keep = lightning.pytorch.callbacks.ModelCheckpoint(tmp_path, "{step}", save_top_k=-1, **when)
    with documents.plan(texts, FORMED[formed]).to_torch() as stream:
        trainer(tmp_path, 1, callbacks=[keep]).fit(Recording(stream), stream)
    with documents.plan(texts, FORMED[formed]).to_torch() as stream:
        resumed = Recording(stream)
        path = tmp_path / f"step={steps}.ckpt"
        trainer(tmp_path, 3, enable_checkpointing=False).fit(resumed, stream, ckpt_path=path, weights_only=False)

    found = list(chain(*resumed.epochs))
    assert found == list(chain(*expected))[steps : steps + len(found)]
    assert len(found) > 0
    assert formed != "counted" or len(found) == 3 * len(expected[0]) - steps


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, sp.Catalog]:
    return catalogs(tmp_path_factory.mktemp("drawn"))


@few(2, 50, suppress_health_check=[HealthCheck.too_slow])
@given(drawn=plans())
def test_drawn_plans_keep_the_law_of_loops_in_it(
    shelf: Mapping[str, sp.Catalog], tmp_path_factory: pytest.TempPathFactory, drawn: Drawn
) -> None:
    folder = tmp_path_factory.mktemp("lightning")

    def loop(stream: Any, steps: int) -> Iterator[Any]:
        model = Recording(stream)
        trainer(folder, 1, enable_checkpointing=False).fit(model, stream)
        assert len(model.batches) == steps
        return iter(model.batches)

    check_loops(lambda: drawn.plan(shelf).to_torch(prefetch=2), {"lightning": loop})
