"""Two trainings under one name, starts that forget their state, ranks that seal nothing: each is said, and is in the history."""

import json
import os
import signal
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import spiral_stream as sp
from tests.fixtures import stores, warm

pytestmark = pytest.mark.usefixtures("no_threads_left")
FORGOTTEN = r"goes on from none of this run.*had come to epoch 0, batch 3.*load_state_dict\(state\).*anew=True"
BESIDE = r"is being recorded now.*leave the stream out: catalog\.run\('numbers'\)"


@pytest.fixture
def catalog(tmp_path: Path) -> sp.Catalog:
    return made(tmp_path / "catalog")


def made(where: Path | str) -> sp.Catalog:
    found = sp.connect(where)
    table = pa.table({"sample_id": range(64), "x": np.arange(64, dtype=np.float32)})
    found.register("numbers", sp.Arrow(table), identity="sample_id")
    return found


def on_store(request: Any) -> str:
    endpoint = request.getfixturevalue("s3_endpoint")
    uri = f"s3://{stores.new_bucket(endpoint)}"
    sp.use_storage("branches", prefix=uri, **stores.options(endpoint))
    return f"{uri}/catalog"


def opened(catalog: sp.Catalog, state: Any = None, rank: int = 0, ranks: int = 1) -> sp.PreparedStream:
    sampled = catalog.table("numbers").sample(order=sp.GlobalShuffle(seed=3))
    stream = sampled.collate(batch_size=4, fields={"x": sp.Stack("x"), "id": sp.List("sample_id")}).to_numpy()
    stream.bind(rank=rank, world_size=ranks)
    if state is not None:
        stream.load_state_dict(json.loads(json.dumps(state)))
    return stream


def steps(run: sp.results.RecordedRun, batches: Iterator[Any], count: int) -> None:
    for _, batch in zip(range(count), batches, strict=False):
        run.log(batch=batch, loss=batch["x"])


def train(catalog: sp.Catalog, count: int = 3, state: Any = None, **options: Any) -> Any:
    """One start of the training; returns the state after it."""
    with opened(catalog, state) as stream, catalog.run("numbers", stream, **options) as run:
        steps(run, iter(stream), count)
        return stream.state_dict()


@contextmanager
def unwarned() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def test_a_start_that_forgets_its_state_is_warned_of_and_the_history_shows_it(catalog: sp.Catalog) -> None:
    state = train(catalog, attempt="a")
    with pytest.warns(sp.errors.SpiralWarning, match=FORGOTTEN):
        train(catalog, 2, attempt="b")
    run = catalog.run("numbers")
    assert run.attempt == "b"
    assert [(each.name, each.parent, each.is_anew) for each in run.attempts()] == [
        ("a", None, False),
        ("b", None, False),
    ]
    assert str(run.attempts()).count("nothing") == 2
    with unwarned():
        train(catalog, 2, state, attempt="c")  # the way out: the branch of a is the trained one again
    assert [(leg.attempt, leg.first, leg.end) for leg in run.legs()] == [("a", 0, 3), ("c", 3, 5)]


def test_a_start_that_delivers_nothing_does_not_take_the_branch(catalog: sp.Catalog) -> None:
    train(catalog, attempt="a")
    with unwarned():
        train(catalog, 0, attempt="b")
    assert catalog.run("numbers").attempt == "a"
    assert catalog.table("runs.numbers").count() == 12


def test_a_training_begins_anew_on_purpose(catalog: sp.Catalog) -> None:
    state = train(catalog, attempt="a")
    with unwarned():
        train(catalog, 0, attempt="b", anew=True)
        assert catalog.run("numbers").attempt == "b"
        train(catalog, 2, state, attempt="c", anew=True)  # from the state's place, as a branch of its own
    run = catalog.run("numbers")
    assert [(leg.attempt, leg.first, leg.end) for leg in run.legs()] == [("c", 3, 5)]
    assert [each.is_anew for each in run.attempts()] == [False, True, True]
    assert "nothing, on purpose" in str(run.attempts())


def test_a_state_of_another_run_is_named(catalog: sp.Catalog) -> None:
    train(catalog, attempt="a")
    with opened(catalog) as stream, catalog.run("other", stream) as run:
        steps(run, iter(stream), 2)
        state = stream.state_dict()
    with pytest.warns(sp.errors.SpiralWarning, match=r"begins at epoch 0, batch 2 of a state that run 'other' saved"):
        train(catalog, 1, state, attempt="b")


def test_a_state_that_is_loaded_after_the_run_is_opened_is_not_forgotten(catalog: sp.Catalog) -> None:
    state = train(catalog, attempt="a")
    with unwarned(), opened(catalog) as stream, catalog.run("numbers", stream, attempt="b") as run:
        stream.load_state_dict(state)
        steps(run, iter(stream), 2)
    assert [(leg.attempt, leg.first, leg.end) for leg in catalog.run("numbers").legs()] == [("a", 0, 3), ("b", 3, 5)]


@pytest.mark.parametrize("where", ["folder", "store"])
def test_two_trainings_under_one_name_warn_each_other(where: str, tmp_path: Path, request: Any) -> None:
    catalog = made(tmp_path / "catalog") if where == "folder" else made(on_store(request))
    with opened(catalog) as first, opened(catalog) as second:
        one = catalog.run("numbers", first, attempt="a", every=1)
        batches = iter(first)
        steps(one, batches, 3)
        with pytest.warns(sp.errors.SpiralWarning, match=BESIDE):
            two = catalog.run("numbers", second, attempt="b", anew=True)
        with pytest.warns(
            sp.errors.SpiralWarning, match=r"attempt b was begun while a records.*runs\.numbers\.a.*End one"
        ):
            steps(one, batches, 1)
        with unwarned():  # once
            steps(one, batches, 1)
            steps(two, iter(second), 2)
            one.close()
            two.close()
            run = catalog.run("numbers")
            assert [(each.name, each.alongside) for each in run.attempts()] == [("a", ("b",)), ("b", ("a",))]
            assert "alongside" in str(run.attempts())
            train(catalog, 1, attempt="c", anew=True)  # both have ended
    assert catalog.run("numbers").attempts()[-1].alongside == ()


def test_a_training_on_another_machine_is_seen_by_the_elder(
    tmp_path: Path, request: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = on_store(request)
    catalog = made(uri)
    monkeypatch.setenv("SPIRAL_CATALOG_MIRROR", str(tmp_path / "another"))
    other = sp.connect(uri)
    assert other.root != catalog.root
    with opened(catalog) as first, opened(other) as second:
        one, two = catalog.run("numbers", first, attempt="a", every=1), other.run("numbers", second, attempt="b")
        with pytest.warns(sp.errors.SpiralWarning, match="attempt b was begun while a records"):
            steps(one, iter(first), 2)
        with pytest.warns(sp.errors.SpiralWarning, match="goes on from none of this run"):
            steps(two, iter(second), 2)
        one.close()
        two.close()
    assert [each.alongside for each in other.run("numbers").attempts()] == [("b",), ("a",)]


def test_an_attempt_of_before_beside_shows_both(catalog: sp.Catalog) -> None:
    """A start that resumes while the one that saved its state goes on."""
    with opened(catalog) as first:
        run = catalog.run("numbers", first, attempt="a")
        steps(run, iter(first), 3)
        state = first.state_dict()
        with pytest.warns(sp.errors.SpiralWarning, match=BESIDE):
            train(catalog, 1, state, attempt="b")
        run.close()
    assert [each.alongside for each in catalog.run("numbers").attempts()] == [("b",), ("a",)]


LOGS: dict[str, Any] = {
    "each": lambda step, k, runs, batch: runs[k].log(batch=batch, loss=batch["x"]),
    "every third step": lambda step, k, runs, batch: step % 3 == 1 and runs[k].log(batch=batch, loss=batch["x"]),
    "the first for all": lambda step, k, runs, batch: runs[0].log(key=runs[k].key(batch), loss=batch["x"]),
    "the first alone": lambda step, k, runs, batch: not k and runs[k].log(batch=batch, loss=batch["x"]),
}


def train_and_die(root: str, state: str, ranks: int, sealed: list[int], logs: str) -> None:
    """A program: train four steps, save the state, and be killed. Its ranks share a process, and not what they write."""
    catalog = sp.connect(root)
    streams = [opened(catalog, None, k, ranks) for k in range(ranks)]
    runs = [catalog.run("numbers", stream, attempt="a") for stream in streams]
    loops = [iter(stream) for stream in streams]
    for step in range(4):
        batches = [next(loop) for loop in loops]
        for k, batch in enumerate(batches):
            LOGS[logs](step, k, runs, batch)
    states = [streams[k].state_dict() for k in sealed]
    Path(state).write_text(json.dumps(states[0]))
    os.kill(os.getpid(), signal.SIGKILL)


def killed(catalog: sp.Catalog, ranks: int, sealed: list[int], logs: str) -> Any:
    state = catalog.root / "state.json"
    asked = json.dumps([str(catalog.root), str(state), ranks, sealed, logs])
    command = [sys.executable, "-m", "tests.stream.runs.test_branches", asked]
    done = warm.run(command, cwd=Path(__file__).parents[3], check=False, capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    return json.loads(state.read_text())


def test_a_killed_training_is_not_beside_the_one_that_goes_on(catalog: sp.Catalog) -> None:
    state = killed(catalog, 1, [0], "each")
    with unwarned():
        train(catalog, 2, state, attempt="b")
    assert [each.alongside for each in catalog.run("numbers").attempts()] == [(), ()]
    assert catalog.table("runs.numbers").count() == 24


@pytest.mark.parametrize(
    ("sealed", "logs", "lacking"),
    [
        ([0, 1, 2], "each", ""),
        ([0, 1, 2], "every third step", ""),
        ([0], "the first for all", ""),
        ([0], "each", "rank 1 after its beginning, rank 2 after its beginning"),
        ([0, 1], "every third step", "rank 2 after its beginning"),
        ([1, 0, 2], "the first alone", "rank 1 after its beginning, rank 2 after its beginning"),
    ],
)
def test_ranks_that_sealed_nothing_are_named_at_the_resume(
    sealed: list[int], logs: str, lacking: str, catalog: sp.Catalog
) -> None:
    state = killed(catalog, 3, sealed, logs)
    with opened(catalog, state) as stream:
        if lacking:
            said = rf"saved at epoch 0, batch 12, and attempt a has no records of {lacking}\. .*on every rank"
            with pytest.warns(sp.errors.SpiralWarning, match=said):
                catalog.run("numbers", stream, attempt="b")
        else:
            with unwarned():
                catalog.run("numbers", stream, attempt="b")


if __name__ == "__main__":
    train_and_die(*json.loads(sys.argv[1]))
