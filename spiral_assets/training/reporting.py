"""Reports to Dagster when it launched the process, to the terminal when nobody did."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, Protocol

from dagster_pipes import PipesContext, open_dagster_pipes
from rich.console import Console

ROWS: Final = 50  # a longer table is rendered whole and pushes everything else off the page


class Reporter(Protocol):
    """Where progress and results go."""

    def log(self, text: str) -> None:
        """One line of progress."""
        ...

    def check(self, name: str, passed: bool, facts: Mapping[str, Any]) -> None:
        """Whether a claim on the result holds, and by what figures."""
        ...

    def done(self, facts: Mapping[str, Any]) -> None:
        """The results, once."""
        ...


class ToDagster:
    """Through Dagster Pipes."""

    def __init__(self, pipes: PipesContext) -> None:
        self._pipes = pipes

    def log(self, text: str) -> None:
        """One line in the run's log."""
        self._pipes.log.info(text)

    def check(self, name: str, passed: bool, facts: Mapping[str, Any]) -> None:
        """An asset check that warns."""
        self._pipes.report_asset_check(name, passed, severity="WARN", metadata=dict(facts))

    def done(self, facts: Mapping[str, Any]) -> None:
        """Metadata of the asset's materialization."""
        self._pipes.report_asset_materialization(metadata=dict(facts))


class ToTerminal:
    """With rich."""

    def log(self, text: str) -> None:
        """One line."""
        Console().print(text, highlight=False)

    def check(self, name: str, passed: bool, facts: Mapping[str, Any]) -> None:
        """One line."""
        Console().print(f"{name}: {'passed' if passed else 'failed'} {dict(facts)}")

    def done(self, facts: Mapping[str, Any]) -> None:
        """The facts as they are."""
        Console().print(dict(facts))


def as_table(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Rows as the table of Dagster Pipes, thinned to `ROWS`; a run that had nothing left to do has none."""
    if not rows:
        return {"raw_value": "nothing was left to do", "type": "text"}
    shown = rows[:: -max(1, -(-len(rows) // ROWS))][::-1]  # the last one always
    schema = [{"name": name, "type": type(value).__name__} for name, value in rows[0].items()]
    return {"raw_value": {"records": shown, "schema": schema}, "type": "table"}


@contextmanager
def reporter() -> Iterator[Reporter]:
    """Dagster's if its bootstrap variable is set: without it `open_dagster_pipes` hands out mocks."""
    if "DAGSTER_PIPES_CONTEXT" not in os.environ:
        yield ToTerminal()
        return
    with open_dagster_pipes() as pipes:
        yield ToDagster(pipes)
