"""Progress of a run over its processes: what a kill undid counts once, half a line not at all."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spiral_assets.training import progress
from spiral_assets.training.progress import SPENT, ProgressFile, read

PER_EPOCH = 5


def begun(step: int, **more: Any) -> dict[str, Any]:
    same = {
        "stream": "s",
        "fingerprint": "f",
        "data_versions": {"t": "1"},
        "run_seed": 0,
        "world": 1,
        "unit": "samples",
    }
    return {**same, "step": step, "epoch": step // PER_EPOCH, "batch": step % PER_EPOCH, **more}


def place(step: int) -> dict[str, int]:
    return {"epoch": step // PER_EPOCH, "batch": step % PER_EPOCH}


def process(folder: Path, first: int, last: int, rank: int = 0, waited_s: float = 0.0, **more: Any) -> None:
    """A process that resumes at a step and writes a line per step, up to the one at which it dies."""
    file = ProgressFile(folder, rank, every_s=0.0)
    file.begin(begun(first, **more))
    for step in range(first + 1, last + 1):
        assert file.add(loss=float(step), units=4)
        spent = dict.fromkeys(SPENT, 0.0) | {"consumer_waited_s": waited_s * (step - first)}
        file.flush(step, place(step), spent)
    file.close()


@given(runs=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=5))
def test_every_step_counts_once_whatever_was_killed(
    runs: list[tuple[int, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder, reached = tmp_path_factory.mktemp("run"), 0
    for back, steps in runs:  # a process resumes at or before the step that the last one reached
        first = max(0, reached - back)
        process(folder, first, first + steps)
        reached = first + steps

    found = read(folder)

    assert [(line["step"], line["loss"]) for line in found.main] == [(k, float(k)) for k in range(1, reached + 1)]
    assert found.step == reached
    parts = found.seen()
    assert [part["steps"] for part in parts] == ([reached] if reached else [])
    if reached:
        assert (parts[0]["begin"], parts[0]["end"]) == ([0, 0], [reached // PER_EPOCH, reached % PER_EPOCH])


def test_half_a_line_is_not_read_and_the_next_process_writes_below_it(tmp_path: Path) -> None:
    process(tmp_path, 0, 3)
    (path,) = (tmp_path / progress.FOLDER).iterdir()
    path.write_bytes(path.read_bytes()[:-20])

    process(tmp_path, 2, 4)

    assert [line["step"] for line in read(tmp_path).main] == [1, 2, 3, 4]
    assert sum(not text.startswith("{") for text in path.read_text().splitlines()) == 0


def test_data_that_changed_between_two_processes_gives_two_parts(tmp_path: Path) -> None:
    process(tmp_path, 0, 6)
    process(tmp_path, 4, 9, data_versions={"t": "2"})

    parts = read(tmp_path).seen()

    assert [(part["data_versions"]["t"], part["begin"], part["end"], part["steps"]) for part in parts] == [
        ("1", [0, 0], [0, 4], 4),
        ("2", [0, 4], [1, 4], 5),
    ]


def test_the_rank_that_waits_most_says_what_bounds_the_run(tmp_path: Path) -> None:
    for rank in (0, 1):
        process(tmp_path, 0, 4, rank=rank, waited_s=0.0 if rank == 0 else 100.0, world=2)

    found = read(tmp_path)

    share, bound_by = found.waiting()
    assert (share, bound_by) == (1.0, "data (transform)")
    assert sum(line["units"] for rank in found.lines.values() for line in rank) == 2 * 4 * 4
    assert read(tmp_path / "nothing").waiting() == (0.0, "unknown: no step is done")
