"""Report to Dagster if it launched the process, otherwise to the terminal."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

from dagster_pipes import PipesContext, open_dagster_pipes
from rich.console import Console


class Reporter(Protocol):
    """Receives progress and results."""

    def log(self, text: str) -> None:
        """Report one line of progress."""
        ...

    def check(self, name: str, passed: bool, facts: Mapping[str, Any]) -> None:
        """Report whether a claim about the result holds, with the figures."""
        ...

    def done(self, facts: Mapping[str, Any]) -> None:
        """Report the results, once."""
        ...


class ToDagster:
    """Reports through Dagster Pipes."""

    def __init__(self, pipes: PipesContext) -> None:
        self._pipes = pipes

    def log(self, text: str) -> None:
        """Write a line to the run's log."""
        self._pipes.log.info(text)

    def check(self, name: str, passed: bool, facts: Mapping[str, Any]) -> None:
        """Report an asset check that warns."""
        self._pipes.report_asset_check(name, passed, severity="WARN", metadata=dict(facts))

    def done(self, facts: Mapping[str, Any]) -> None:
        """Report the metadata of the asset's materialization."""
        self._pipes.report_asset_materialization(metadata=dict(facts))


class ToNobody:
    """Reports nothing: of several ranks, one reports."""

    def log(self, text: str) -> None:
        """Say nothing."""

    def check(self, name: str, passed: bool, facts: Mapping[str, Any]) -> None:
        """Say nothing."""

    def done(self, facts: Mapping[str, Any]) -> None:
        """Say nothing."""


class ToTerminal:
    """Reports with rich."""

    def log(self, text: str) -> None:
        """Print one line."""
        Console().print(text, highlight=False)

    def check(self, name: str, passed: bool, facts: Mapping[str, Any]) -> None:
        """Print one line."""
        Console().print(f"{name}: {'passed' if passed else 'failed'} {dict(facts)}")

    def done(self, facts: Mapping[str, Any]) -> None:
        """Print the facts."""
        Console().print(dict(facts))


@contextmanager
def reporter() -> Iterator[Reporter]:
    """Yield Dagster's reporter if its bootstrap variable is set; without it `open_dagster_pipes` returns mocks."""
    if "DAGSTER_PIPES_CONTEXT" not in os.environ:
        yield ToTerminal()
        return
    with open_dagster_pipes() as pipes:
        yield ToDagster(pipes)
