import os

import pytest

from spiral_assets.training.reporting import ToTerminal, reporter


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
