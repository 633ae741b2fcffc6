import os

import pytest

from spiral_assets.training.reporting import ROWS, ToTerminal, as_table, reporter


def test_without_dagster_the_reporter_is_no_mock() -> None:
    assert "DAGSTER_PIPES_CONTEXT" not in os.environ
    with reporter() as report:
        assert isinstance(report, ToTerminal)


def test_the_terminal_shows_progress_checks_and_results(capsys: pytest.CaptureFixture[str]) -> None:
    with reporter() as report:
        report.log("step 1/2")
        report.check("beats_chance", False, {"loss": 1.5})
        report.done({"steps": 2})

    shown = capsys.readouterr().out
    assert "step 1/2" in shown
    assert "beats_chance: failed" in shown
    assert "'steps': 2" in shown


@pytest.mark.parametrize("count", [1, ROWS, ROWS + 1, 7 * ROWS + 3])
def test_a_long_table_is_thinned_and_keeps_its_last_row(count: int) -> None:
    table = as_table([{"step": step, "loss": 1.0} for step in range(count)])["raw_value"]

    steps = [row["step"] for row in table["records"]]
    assert len(steps) <= ROWS
    assert steps == sorted(steps)
    assert steps[-1] == count - 1
    assert table["schema"] == [{"name": "step", "type": "int"}, {"name": "loss", "type": "float"}]


def test_a_run_that_had_nothing_left_to_do_says_so() -> None:
    assert as_table([]) == {"raw_value": "nothing was left to do", "type": "text"}
