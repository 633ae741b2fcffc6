"""The commands about what a run measured: ``spiral spike`` and ``spiral card``."""

import sys
from typing import Annotated

import typer

from spiral_stream.commands.command_words import console, opened_catalog
from spiral_stream.report.run.card import run_card
from spiral_stream.report.run.spike_page import report_spikes
from spiral_stream.runs.losses.baseline import WINDOW

Where = Annotated[str | None, typer.Option("--catalog", envvar="SPIRAL_CATALOG", help="Folder or URI of the catalog.")]


def spike(
    run: Annotated[str, typer.Argument(help="A recorded run.")],
    value: Annotated[str, typer.Option(help="What was logged.")] = "loss",
    attempt: Annotated[str | None, typer.Option(help="Another branch; by default the newest one.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="How many spikes.")] = 10,
    samples: Annotated[int, typer.Option(min=1, help="How many samples that stand out over the run.")] = 25,
    window: Annotated[int, typer.Option(min=16, help="Steps before a step that it is compared with.")] = WINDOW,
    like: Annotated[
        str | None, typer.Option(help="A column of vectors with an index: rows like the first samples are shown too.")
    ] = None,
    html: Annotated[str | None, typer.Option(metavar="FILE", help="Also write a page there.")] = None,
    where: Where = None,
) -> None:
    """Show where the loss of a run jumped, which rows carry it, and how to go on without them."""
    catalog = opened_catalog(where)
    report = report_spikes(
        catalog, catalog.run(run), value, attempt=attempt, spikes=limit, samples=samples, window=window, like=like
    )
    if sys.stdout.isatty():
        console().print(report)
    else:
        typer.echo(str(report))
    if html is not None:
        console(plain=True).print(str(report.save(html)), soft_wrap=True)


def card(
    run: Annotated[str, typer.Argument(help="A recorded run.")],
    value: Annotated[str, typer.Option(help="Whose spikes are shown.")] = "loss",
    attempt: Annotated[str | None, typer.Option(help="Another branch; by default the newest one.")] = None,
    out: Annotated[str | None, typer.Option(help="Write it there instead: .md or .html.")] = None,
    where: Where = None,
) -> None:
    """Print a run on one page, in Markdown: where it came from, what it saw and measured, each figure with its query."""
    catalog = opened_catalog(where)
    made = run_card(catalog, catalog.run(run), value, attempt=attempt)
    if out is None:
        typer.echo(made.markdown())
    else:
        console(plain=True).print(str(made.save(out)), soft_wrap=True)
