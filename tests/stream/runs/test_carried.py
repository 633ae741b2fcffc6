"""Keys reach the loop through whatever stands between it and the stream: workers, loaders, trainers, other processes."""

import json
import pickle
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import spiral_stream as sp

torch = pytest.importorskip("torch")
from torch.utils.data import DataLoader  # noqa: E402  after the skip

from spiral_stream.adapters import StreamLoader  # noqa: E402

pytestmark = pytest.mark.usefixtures("no_threads_left")


@pytest.fixture
def catalog(tmp_path: Path) -> sp.Catalog:
    found = sp.connect(tmp_path / "catalog")
    table = pa.table({"sample_id": range(64), "x": np.arange(64, dtype=np.float32)})
    found.register("numbers", sp.Arrow(table), identity="sample_id")
    return found


def plan(catalog: sp.Catalog, **fields: Any) -> sp.Relation:
    sampled = catalog.table("numbers").sample(order=sp.GlobalShuffle(seed=3))
    fields = {"x": sp.Stack("x"), "id": sp.List("sample_id"), **fields}
    return sampled.collate(batch_size=8, fields=fields)


def recorded(catalog: sp.Catalog, name: str) -> list[tuple[int, int, int, float]]:
    table = catalog.table(f"runs.{name}").to_arrow()
    return sorted(zip(*(table[each].to_pylist() for each in ("epoch", "batch", "sample_id", "loss")), strict=True))


def wanted(catalog: sp.Catalog, epochs: int = 1) -> list[tuple[int, int, int, float]]:
    with plan(catalog).to_numpy() as stream:
        return sorted(
            (epoch, number, each, float(each))
            for epoch in range(epochs)
            for number in range(8)
            for each in stream.ledger(number, epoch)
        )


def in_order(stream: Any) -> Iterator[Any]:
    yield from stream


def through_loader(stream: Any) -> Iterator[Any]:
    loader = StreamLoader(stream, num_workers=2)
    yield from loader
    loader.close()


def through_dataloader(stream: Any) -> Iterator[Any]:
    yield from DataLoader(stream, batch_size=None, num_workers=2)


def through_spawned(stream: Any) -> Iterator[Any]:
    yield from DataLoader(stream, batch_size=None, num_workers=1, multiprocessing_context="spawn")


def through_accelerate(stream: Any) -> Iterator[Any]:
    from accelerate import Accelerator
    from accelerate.utils import DataLoaderConfiguration

    ready = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(dispatch_batches=False))
    yield from ready.prepare(DataLoader(stream, batch_size=None))


def through_lightning(stream: Any) -> Iterator[Any]:
    from lightning.fabric.utilities.apply_func import move_data_to_device

    for batch in stream:
        yield move_data_to_device(batch, torch.device("cpu"))


@pytest.mark.filterwarnings("ignore:lance is not fork-safe", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    "read",
    [
        in_order,
        through_loader,
        pytest.param(through_dataloader, marks=pytest.mark.slow),
        pytest.param(through_spawned, marks=pytest.mark.slow),
        through_accelerate,
        pytest.param(through_lightning, marks=pytest.mark.slow),
    ],
)
def test_a_batch_keeps_its_key(catalog: sp.Catalog, read: Any) -> None:
    needed = {through_accelerate: "accelerate", through_lightning: "lightning"}.get(read)
    if needed is not None and find_spec(needed) is None:
        pytest.skip(f"{needed} is not installed")
    with plan(catalog).to_torch() as stream:
        run = catalog.run("carried", stream)
        for batch in read(stream):
            run.log(batch=batch, loss=batch["x"])
        run.close()

    assert recorded(catalog, "carried") == wanted(catalog)
    assert [leg.end - leg.first for leg in catalog.run("carried").legs()] == [8]


def test_a_key_goes_to_another_process_and_repeated_ones_count_once(catalog: sp.Catalog) -> None:
    with plan(catalog).to_torch() as stream:
        run = catalog.run("far", stream)
        for batch in stream:
            key = pickle.loads(pickle.dumps(run.key(batch)))
            for _ in range(2):  # as two ranks of one tensor-parallel group do
                run.log(key=key, loss=batch["x"])
        assert run.metrics()["duplicates"] == 8
        run.close()

    assert recorded(catalog, "far") == wanted(catalog)


def test_parts_of_several_processes_with_the_same_batches_count_once(catalog: sp.Catalog) -> None:
    with plan(catalog).to_numpy() as first, plan(catalog).to_numpy() as second:
        runs = [
            catalog.run("both", stream.bind(rank=k, world_size=2), attempt="one")
            for k, stream in enumerate([first, second])
        ]
        for batches in zip(first, second, strict=True):
            for run in runs:  # each rank of a group logs what both were given
                for batch in batches:
                    run.log(key=run.key(batch), loss=batch["x"])
        for run in runs:
            run.close()

    assert recorded(catalog, "both") == wanted(catalog)


def test_without_a_batch_the_last_one_is_meant_unless_somebody_reads_ahead(catalog: sp.Catalog) -> None:
    with plan(catalog).to_numpy() as stream:
        run = catalog.run("bare", stream)
        batches = iter(stream)
        for _ in range(3):
            run.log(loss=next(batches)["x"])
        next(batches)
        next(batches)
        with pytest.raises(sp.errors.RunError, match="2 batches were delivered since"):
            run.log(loss=0.5)
        batches.close()
        run.close()
    assert len(recorded(catalog, "bare")) == 24


def test_trainer_records_the_loss_of_each_batch_and_goes_on_from_a_checkpoint(
    catalog: sp.Catalog, tmp_path: Path
) -> None:
    pytest.importorskip("transformers")
    from transformers import TrainingArguments

    from spiral_stream.adapters import StreamTrainer

    class Sums(torch.nn.Linear):
        def forward(self, x: Any) -> dict[str, Any]:
            return {"loss": super().forward(x[:, None]).square().mean(), "losses": x}

    class PerSample(StreamTrainer):
        def compute_loss(self, model: Any, inputs: Any, *args: Any, **options: Any) -> Any:
            found = model(**inputs)
            self.record(loss=found["losses"])
            return found["loss"]

    def train(steps: int, resume: Any = None) -> None:
        args = TrainingArguments(
            str(tmp_path / "out"), max_steps=steps, save_steps=4, report_to=[], use_cpu=True, disable_tqdm=True,
            gradient_accumulation_steps=2, learning_rate=1e-6,
        )  # fmt: skip
        with plan(catalog).to_torch() as stream:
            trainer = PerSample(Sums(1, 1), args, train_dataset=stream, run=catalog.run("trainer", stream))
            trainer.train(resume_from_checkpoint=resume)

    train(6)
    train(8, str(tmp_path / "out" / "checkpoint-4"))
    attempts = catalog.run("trainer").attempts()

    assert recorded(catalog, "trainer") == wanted(catalog, 2)
    assert [each.parent for each in attempts] == [None, attempts[0].name]


def test_a_stream_that_goes_back_to_a_state_begins_another_attempt(catalog: sp.Catalog) -> None:
    with plan(catalog).to_numpy() as stream:
        run = catalog.run("back", stream)
        batches = iter(stream)
        for number in range(6):
            if number == 2:
                state = json.loads(json.dumps(stream.state_dict()))
            run.log(loss=next(batches)["x"])
        batches.close()
        stream.load_state_dict(state)
        for batch in stream:
            run.log(batch=batch, loss=batch["x"])
        run.close()
        first, second = catalog.run("back").attempts()

    assert (second.parent, second.cut.batch) == (first.name, 2)
    assert recorded(catalog, "back") == wanted(catalog)
    steps = catalog.table("runs.back").to_arrow()["step"].to_pylist()
    assert sorted(set(steps)) == list(range(8))
    other = catalog.run("back").registered(first.name).name
    assert catalog.table(other).count() == 6 * 8


def test_a_jax_batch_goes_through_jit(catalog: sp.Catalog) -> None:
    jax = pytest.importorskip("jax")
    with plan(catalog).to_jax() as stream:
        run = catalog.run("jax", stream)
        loss = jax.jit(lambda batch: batch["x"] * 1)
        for batch in stream:
            numbers = {name: each for name, each in batch.items() if name != "id"}
            run.log(batch=batch, loss=loss(numbers))
            assert jax.tree.leaves({name: batch[name] for name in numbers})[0].shape == (8,)
        run.close()
    assert recorded(catalog, "jax") == wanted(catalog)


def test_what_fits_no_batch_is_refused(catalog: sp.Catalog) -> None:
    with plan(catalog).to_numpy() as stream:
        run = catalog.run("refused", stream)
        batch = next(iter(stream))
        for values, words in [
            ({"loss": np.zeros(7)}, "has 7 values; this batch has 8 rows"),
            ({"loss": np.zeros((8, 5))}, "it has no token field"),
            ({"loss": np.zeros((8, 5, 2))}, r"shape \[8, 5, 2\]"),
            ({"loss": "much"}, "Give numbers"),
            ({"epoch": 1.0}, "is a column of every run"),
        ]:
            with pytest.raises(sp.errors.RunError, match=words):
                run.log(batch=batch, **values)
        with pytest.raises(sp.errors.RunError, match="lost its key"):
            run.log(batch=dict(batch), loss=1.0)
        with pytest.raises(sp.errors.RunError, match="is open to be read"):
            catalog.run("refused").log(loss=1.0)
        run.log(batch=batch, loss=1.0)
        with pytest.raises(sp.errors.RunError, match="was logged already, with loss"):
            run.log(batch=batch, accuracy=1.0)
        with pytest.raises(sp.errors.RunError, match="is not in catalog"):
            catalog.run("nobody")
        with pytest.raises(sp.errors.RunError, match="Give the stream that the loop reads"):
            catalog.run("plan", plan(catalog))  # type: ignore[arg-type]  # as somebody might


def test_a_run_does_not_read_itself(catalog: sp.Catalog) -> None:
    with plan(catalog).to_numpy() as stream:
        run = catalog.run("self", stream)
        for batch in stream:
            run.log(batch=batch, loss=batch["x"])
        run.close()
    hard = catalog.table("runs.self").filter(sp.col("loss") > 31).select("sample_id", "loss")
    again = catalog.table("numbers").join(hard, on="sample_id").sample(order=sp.GlobalShuffle(seed=1))
    fields = {"x": sp.Stack("x"), "loss": sp.Stack("loss")}
    with again.collate(batch_size=8, fields=fields).to_numpy() as stream:
        assert sum(len(batch["x"]) for batch in stream) == 32
        with pytest.raises(sp.errors.RunError, match="which grows while the run records"):
            catalog.run("self", stream)


def test_a_step_that_was_not_taken_is_delivered_and_not_applied(catalog: sp.Catalog) -> None:
    with plan(catalog).to_numpy() as stream:
        run = catalog.run("nan", stream)
        for number, batch in enumerate(stream):
            run.log(batch=batch, loss=batch["x"], applied=number != 3)
        run.close()
        gone = stream.ledger(3, 0)

    seen = catalog.run("nan").seen().streams[0]
    assert (seen.samples, seen.applied) == (64, 56)
    assert catalog.seen("nan").streams == (seen,)
    table = catalog.table("runs.nan")
    assert sorted(table.filter(~sp.col("applied")).to_arrow()["sample_id"].to_pylist()) == sorted(gone)
    assert catalog.run("nan").forget(gone[:1]).first.batch == 3
