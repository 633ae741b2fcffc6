"""What stands out of a run as a loop records it: on several ranks, of mixtures, after a resume; what the stream takes of it."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import spiral_stream as spiral

BAD = 7


def loss_of(x: Any, step: int) -> Any:
    """The same for a sample wherever it is trained on: its place, and a step that falls."""
    return 1.0 / (1 + step / 10) + 0.1 * np.sin(np.asarray(x, float) * 1.7) + 9.0 * (np.asarray(x) == BAD)


def plan_of(folder: Path) -> tuple[Any, Any]:
    catalog = spiral.connect(str(folder / "catalog"))
    table = pa.table(
        {"step": [f"s{k}" for k in range(1_920)], "x": range(1_920), "file": [f"f{k // 64:02}" for k in range(1_920)]}
    )
    catalog.register("rows", spiral.Arrow(table), identity="step", shard="file")
    plan = (
        catalog.table("rows")
        .sample(order=spiral.GlobalShuffle(seed=5))
        .collate(batch_size=16, fields={"x": spiral.Stack("x")})
    )
    return catalog, plan


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_any_number_of_ranks_gives_the_same_outliers(tmp_path: Path, ranks: int) -> None:
    catalog, plan = plan_of(tmp_path)
    streams = [plan.to_numpy().bind(data_parallel_rank=rank, data_parallel_world_size=ranks) for rank in range(ranks)]
    runs = [catalog.run("first", stream, attempt="monday") for stream in streams]
    for _ in range(2):
        for step, batches in enumerate(zip(*streams, strict=True)):
            for run, batch in zip(runs, batches, strict=True):
                run.log(batch=batch, loss=loss_of(batch["x"], step * ranks))
    for each in [*runs, *streams]:
        each.close()

    found = catalog.run("first").outliers()

    assert found.table.select(["sample_step", "row", "occurrences"]).to_pylist() == [
        {"sample_step": f"s{BAD}", "row": BAD, "occurrences": 2}
    ]
    assert found.skip.arguments == {"identities": [f"s{BAD}"]}
    assert str(found.filters[0]).endswith(f"(~col('step').is_in(['s{BAD}']))")


def test_a_stream_takes_the_skip_and_leaves_the_sample_out(tmp_path: Path) -> None:
    catalog, plan = plan_of(tmp_path)
    with plan.to_numpy() as stream:
        run = catalog.run("first", stream)
        for step, batch in enumerate(stream):
            run.log(batch=batch, loss=loss_of(batch["x"], step))
        run.close()
    with plan.to_numpy() as stream:
        stream.skip(**run.outliers().skip.arguments)

        assert BAD not in np.concatenate([batch["x"] for batch in stream])
    left = catalog.table("rows").filter(run.outliers().filters[0].condition)
    assert left.count() == 1_919


def test_what_an_abandoned_branch_had_is_asked_by_its_name(tmp_path: Path) -> None:
    catalog, plan = plan_of(tmp_path)
    with plan.to_numpy() as stream:
        run = catalog.run("first", stream)
        for step, batch in enumerate(stream):
            run.log(batch=batch, loss=loss_of(batch["x"], step) + 5.0 * (step == 60))
            if step == 39:
                state = stream.state_dict()
        run.close()
    with plan.to_numpy() as stream:
        stream.load_state_dict(state)
        again = catalog.run("first", stream)
        for step, batch in enumerate(stream, 40):
            again.log(batch=batch, loss=loss_of(batch["x"], step))
        again.close()

    assert 60 not in [each.peak_step for each in again.spikes()]
    assert again.spikes(attempt=run.attempts()[0].name)[0].peak_step == 60


def test_a_run_that_recorded_nothing_says_so(tmp_path: Path) -> None:
    catalog, plan = plan_of(tmp_path)
    with plan.to_numpy() as stream:
        run = catalog.run("first", stream)
        for verb in (run.outliers, run.spikes, run.figures):
            with pytest.raises(spiral.SpiralError, match="has recorded nothing yet"):
                verb()
        run.close()


def test_samples_of_a_mixture_are_named_with_their_stream(tmp_path: Path) -> None:
    catalog = spiral.connect(str(tmp_path / "catalog"))
    for name in ("web", "books"):
        rows = pa.table({"id": [f"{name}-{k}" for k in range(640)], "x": range(640), "y": [name == "web"] * 640})
        catalog.register(name, spiral.Arrow(rows), identity="id")
    streams = [spiral.Stream(name, catalog.table(name), proportion=0.5) for name in ("web", "books")]
    samples = spiral.mix(streams).sample(identity="id", order=spiral.GlobalShuffle(seed=5))
    plan = samples.collate(batch_size=16, fields={"x": spiral.Stack("x"), "y": spiral.Stack("y")})
    with plan.to_numpy() as stream:
        run = catalog.run("mixed", stream)
        for step, batch in enumerate(stream):
            run.log(batch=batch, loss=loss_of(np.where(batch["y"], batch["x"], 0), step))
        run.close()

    found = run.outliers()

    assert found.table.select(["id", "stream"]).to_pylist() == [{"id": f"web-{BAD}", "stream": "web"}]
    assert found.skip.arguments == {"identities": [("web", f"web-{BAD}")]}
    with plan.to_numpy() as stream:
        stream.skip(**found.skip.arguments)
        assert not any((batch["x"] == BAD)[batch["y"]].any() for batch in stream)
