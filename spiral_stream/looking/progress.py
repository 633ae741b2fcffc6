"""A progress bar over what is left of an epoch: on rank 0 alone, from the place of the run on."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console


def with_bar(
    batches: Iterator[Any], title: str, total: int | None, done: Callable[[], int], console: "Console | None"
) -> Iterator[Any]:
    """Yield batches, and show how many of the epoch's steps are done.

    Args:
        batches: of the pass.
        title: before the bar.
        total: steps of the epoch; None if they are not counted.
        done: the steps that are done; asked at the start, so that a resumed bar goes on where the run stands.
        console: where it is drawn; None takes standard error.
    """
    from rich.console import Console as Standard
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console or Standard(stderr=True)) as bar:
        task = bar.add_task(title, total=total, completed=done())
        for batch in batches:
            yield batch
            bar.advance(task)
