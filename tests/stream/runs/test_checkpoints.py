"""States are found in whatever saved them; nothing of a checkpoint is run, and a damaged one is refused by name."""

import io
import json
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
import torch.distributed.checkpoint as dcp

import spiral_stream as sp
from spiral_stream.errors import CatalogError, ResumeError
from tests.fixtures.mutations import COUNTS, mutated_bytes, survives

pytestmark = [
    pytest.mark.usefixtures("no_threads_left"),
    pytest.mark.filterwarnings("ignore:torch.distributed is disabled"),
]


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> sp.Catalog:
    catalog = sp.connect(tmp_path_factory.mktemp("checkpoints") / "catalog")
    catalog.register("numbers", sp.Arrow(pa.table({"id": range(100)})), identity="id")
    catalog.save_stream("train", plan(catalog))
    return catalog


def plan(catalog: sp.Catalog) -> sp.PreparedStream:
    sampled = catalog.table("numbers").sample(order=sp.GlobalShuffle(seed=17))
    return sampled.collate(batch_size=16, fields={"id": sp.List("id")}).to_numpy()


@pytest.fixture(scope="module")
def state(catalog: sp.Catalog) -> dict[str, Any]:
    with plan(catalog) as stream:
        stream.seek(batch=3)
        return stream.state_dict()


class Saved:
    """What DCP saves: values by name."""

    def __init__(self, values: dict[str, Any]) -> None:
        self._values = values

    def state_dict(self) -> dict[str, Any]:
        return self._values

    def load_state_dict(self, values: dict[str, Any]) -> None:
        self._values = values


def as_json(path: Path, state: Any) -> None:
    path.write_text(json.dumps(state))


def as_text_in_json(path: Path, state: Any) -> None:
    path.write_text(json.dumps({"run": {"stream": json.dumps(state)}}))


def as_trainer(path: Path, state: Any) -> None:
    for number, batch in ((9, 0), (10, state["batch"])):
        folder = path / f"checkpoint-{number}"
        folder.mkdir(parents=True)
        saved = {**state, "batch": batch} if batch != state["batch"] else state
        (folder / "spiral_stream.json").write_text(json.dumps({"stream": saved, "first_epoch": 0}))
        (folder / "trainer_state.json").write_text("{}")


def as_lightning(path: Path, state: Any) -> None:
    model = torch.nn.Linear(3, 3)
    torch.save({"epoch": 0, "state_dict": model.state_dict(), "hyper_parameters": {"of": Path}, "stream": state}, path)


def as_accelerate(path: Path, state: Any) -> None:
    path.mkdir()
    torch.save(state, path / "custom_checkpoint_0.pkl")
    torch.save({"lr": torch.ones(3)}, path / "optimizer.bin")


def as_dcp_text(path: Path, state: Any) -> None:
    model = torch.nn.Linear(3, 3)
    optimizer = torch.optim.Adam(model.parameters())
    dcp.save(
        {"model": model, "optimizer": optimizer, "stream": Saved({"stream": json.dumps(state)})}, checkpoint_id=path
    )


def as_dcp_values(path: Path, state: Any) -> None:
    dcp.save({"model": torch.nn.Linear(3, 3), "stream": Saved(state)}, checkpoint_id=path)


def as_orbax(path: Path, state: Any) -> None:
    for step in (9, 10):
        folder = path / str(step) / "stream"
        folder.mkdir(parents=True)
        (folder / "metadata").write_text(json.dumps(state))


FORMS = [as_json, as_text_in_json, as_trainer, as_lightning, as_accelerate, as_dcp_text, as_dcp_values, as_orbax]


@pytest.mark.parametrize("form", FORMS)
def test_a_state_is_found_in_what_saved_it(
    catalog: sp.Catalog, state: dict[str, Any], tmp_path: Path, form: Callable[[Path, Any], None]
) -> None:
    path = tmp_path / ("saved.ckpt" if form is as_lightning else "saved.json" if "json" in form.__name__ else "saved")
    form(path, state)
    found = catalog.seen(path)
    assert found.samples == 48
    assert json.loads(json.dumps(found.legs[0].state)) == json.loads(json.dumps(state))


def test_an_exported_state_is_found_with_its_records(
    catalog: sp.Catalog, state: dict[str, Any], tmp_path: Path
) -> None:
    catalog.export_state(state, tmp_path / "state.spiral.json")
    assert catalog.seen(tmp_path / "state.spiral.json").samples == 48


class Evil:
    """What runs where a pickle is loaded."""

    def __init__(self, mark: Path) -> None:
        self._mark = mark

    def __reduce__(self) -> Any:
        return Path.touch, (self._mark,)


def test_nothing_of_a_checkpoint_is_run(catalog: sp.Catalog, state: dict[str, Any], tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    torch.save({"evil": Evil(mark), "stream": state}, tmp_path / "evil.ckpt")
    assert catalog.seen(tmp_path / "evil.ckpt").samples == 48
    (tmp_path / "plain.pkl").write_bytes(pickle.dumps({"evil": Evil(mark), "stream": state}))
    assert catalog.seen(tmp_path / "plain.pkl").samples == 48
    folder = tmp_path / "dcp"
    as_dcp_text(folder, state)
    (folder / ".metadata").write_bytes(pickle.dumps(Evil(mark)))
    with pytest.raises(ResumeError, match="Give a checkpoint that was saved with"):
        catalog.seen(folder)
    assert not mark.exists()


@pytest.mark.parametrize("count", COUNTS)
def test_a_damaged_checkpoint_is_refused_or_says_the_same(
    catalog: sp.Catalog, state: dict[str, Any], tmp_path: Path, count: int
) -> None:
    as_lightning(tmp_path / "sound.ckpt", state)
    sound = (tmp_path / "sound.ckpt").read_bytes()
    inner = zipfile.ZipFile(io.BytesIO(sound)).read("sound/data.pkl")
    path = tmp_path / "damaged.ckpt"
    for seed in range(count // 8):
        if seed % 2:
            path.write_bytes(mutated_bytes(sound, seed))
        else:
            path.write_bytes(mutated_bytes(inner, seed))
        survives(lambda: catalog.seen(path).samples, 48, says=f"seed {seed}")


def test_several_states_are_listed_and_one_is_named(catalog: sp.Catalog, state: dict[str, Any], tmp_path: Path) -> None:
    with plan(catalog) as stream:
        stream.seek(batch=1)
        other = stream.state_dict()
    path = tmp_path / "two.json"
    path.write_text(json.dumps({"train": state, "judge": other}))
    with pytest.raises(ResumeError, match=r"several states: .*train.*; .*judge.*Name one: name= "):
        catalog.seen(path)
    assert catalog.seen(path, name="judge").samples == 16


def test_several_checkpoints_of_one_run_are_one_run(catalog: sp.Catalog, state: dict[str, Any], tmp_path: Path) -> None:
    with plan(catalog) as stream:
        stream.seek(epoch=2, batch=2)
        later = stream.state_dict()
    as_json(tmp_path / "later.json", later)
    found = catalog.seen([state, tmp_path / "later.json"])
    assert found.samples == 48 + 32
    assert found.not_recorded == (
        "epoch 0 from batch 3 on, to the end of epoch 1: not recorded. States from before their ends would say more",
    )


def test_a_plan_that_is_not_saved_says_how_to_save_it(tmp_path: Path) -> None:
    catalog = sp.connect(tmp_path / "other")
    catalog.register("numbers", sp.Arrow(pa.table({"id": range(100)})), identity="id")
    with plan(catalog) as stream:
        stream.seek(batch=3)
        state = stream.state_dict()
    with pytest.raises(
        CatalogError, match=r"no saved stream .* has plan .*catalog.save_stream\(name, plan\); or give it: plan="
    ):
        catalog.seen(state)
    assert catalog.seen(state, plan=plan(catalog)).samples == 48
    with pytest.raises(ResumeError, match="Give a checkpoint"):
        catalog.seen(tmp_path / "nothing")


def test_data_that_changed_since_is_counted_as_it_was(tmp_path: Path) -> None:
    catalog = sp.connect(tmp_path / "changed")
    catalog.register("numbers", sp.Arrow(pa.table({"id": range(100)})), identity="id")
    with plan(catalog) as stream:
        stream.seek(batch=3)
        state = stream.state_dict()
    catalog.save_stream("train", plan(catalog))
    catalog.register("numbers", sp.Arrow(pa.table({"id": range(40)})), identity="id", replace=True)
    found = catalog.seen(state)
    assert (found.samples, found.streams[0].rows) == (48, 100)
