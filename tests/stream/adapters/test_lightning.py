"""Streams in Lightning's loop, which stops behind the last batch without asking for one more."""

from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given

import spiral_stream as sp
from spiral_stream.testing import check_loops
from tests.fixtures.drawn_streams import Drawn, catalogs, plans
from tests.stream.adapters import documents

pytest.importorskip("torch")
if find_spec("lightning") is None:
    pytest.skip("Lightning is not installed", allow_module_level=True)

from torch.utils.data import DataLoader

from spiral_stream.adapters import StreamLoader
from tests.fixtures.examples import few

pytestmark = [
    pytest.mark.usefixtures("no_threads_left"),
    pytest.mark.filterwarnings("ignore"),  # Lightning warns of few workers, of lengths and of its own dependencies
]
EPOCHS = 3
FORMED = {"counted": documents.COUNTED, "buckets": documents.BUCKETS}


def model_of(stream: Any = None) -> Any:
    """A model that keeps what it is given; Lightning is imported by the worker that needs it: 2 CPU s."""
    from tests.fixtures.lightning_loops import Recording

    return Recording(stream)


def trainer(folder: Path, epochs: int = EPOCHS, **options: Any) -> Any:
    from tests.fixtures.lightning_loops import lightning

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


@pytest.mark.crossed
@pytest.mark.parametrize("formed", FORMED)
@pytest.mark.parametrize("how", ["stream", "DataLoader", "StreamLoader"])
def test_each_of_its_epochs_is_one_of_the_streams(texts: sp.Catalog, tmp_path: Path, formed: str, how: str) -> None:
    with documents.plan(texts, FORMED[formed]).to_torch() as stream:
        loader = {
            "stream": stream,
            "DataLoader": DataLoader(stream, batch_size=None),
            "StreamLoader": StreamLoader(stream),
        }
        model = model_of()
        trainer(tmp_path, enable_checkpointing=False).fit(model, loader[how])
        del loader

    expected, found = bare(texts, formed, EPOCHS), list(chain(*model.epochs))
    assert found == list(chain(*expected))[: len(found)]
    if formed == "counted" or how == "StreamLoader":  # else Lightning takes the first epoch's length for all
        assert model.epochs == expected


@pytest.mark.crossed
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
    from tests.fixtures.lightning_loops import lightning

    keep = lightning.pytorch.callbacks.ModelCheckpoint(tmp_path, "{step}", save_top_k=-1, **when)
    with documents.plan(texts, FORMED[formed]).to_torch() as stream:
        trainer(tmp_path, 1, callbacks=[keep]).fit(model_of(stream), stream)
    with documents.plan(texts, FORMED[formed]).to_torch() as stream:
        resumed = model_of(stream)
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
        model = model_of(stream)
        trainer(folder, 1, enable_checkpointing=False).fit(model, stream)
        assert len(model.batches) == steps
        return iter(model.batches)

    check_loops(lambda: drawn.plan(shelf).to_torch(prefetch=2), {"lightning": loop})
