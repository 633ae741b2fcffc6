"""`RunCard`: a run on one page, in Markdown or HTML: where it came from, what it saw and measured, each figure with its query."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

import pyarrow as pa

from spiral_stream.arguments import door
from spiral_stream.catalog.registry import AnyCatalog
from spiral_stream.display import markup
from spiral_stream.display.markup import Html, element
from spiral_stream.display.wording import moment, written
from spiral_stream.errors import PlanError, RunError
from spiral_stream.report.build import write_page
from spiral_stream.report.run.spike_page import SpikeReport, report_spikes
from spiral_stream.runs.losses.figures import RunFigure
from spiral_stream.runs.run import RecordedRun

_ROWS: Final = 20  # of a table
_PAGE: Final = ".html"
_ENDINGS: Final = (_PAGE, ".md")


@final
@dataclass(frozen=True, slots=True, eq=False)
class RunCard:
    """A run on one page. Print it as Markdown, or `save` it.

    Attributes:
        run: its name.
        facts: where it came from, each with its name.
        figures: tables, each with its query.
        spikes: what stands out; None if no value was logged.

    Examples:
        >>> run = catalog.run("told", stream)
        >>> run.log(batch=next(iter(stream)), loss=0.5)
        >>> run.close()
        >>> [figure.title for figure in spiral.report.run_card(catalog, run).figures][:2]
        ['What was recorded', 'By stream']
    """

    run: str
    facts: Sequence[tuple[str, str]]
    figures: Sequence[RunFigure]
    spikes: SpikeReport | None

    def markdown(self) -> str:
        """Return the card as Markdown.

        Examples:
            >>> run = catalog.run("carded", stream)
            >>> for batch in stream:
            ...     run.log(batch=batch, loss=batch["width"] / 1_000)
            >>> run.close()
            >>> print(spiral.report.run_card(catalog, run).markdown().splitlines()[0])
            # Run carded
        """
        lines = [f"# Run {self.run}", "", *_grid(["", ""], self.facts)]
        for each in self.figures:
            rows = _texts(each.table)
            lines += [
                "",
                f"## {each.title}",
                "",
                *_grid(list(each.table.column_names), [tuple(row.values()) for row in rows]),
            ]
            lines += ["", "```sql", each.query, "```"]
        for title, text, query in self._standing_out():
            lines += ["", f"## {title}", "", "```text", text, "```", "", "```python", query, "```"]
        return "\n".join([*lines, ""])

    def html(self) -> str:
        """Return the card as one page that needs no other file.

        Examples:
            >>> run = catalog.run("html", stream)
            >>> run.log(batch=next(iter(stream)), loss=0.5)
            >>> run.close()
            >>> spiral.report.run_card(catalog, run).html()[:15]
            '<!doctype html>'
        """
        parts = markup.bounded(self._parts(), markup.PAGE_BYTES - markup.PAPER_BYTES)
        return markup.page(f"Run {self.run}", element("h1", f"Run {self.run}"), parts)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the card, and return where it is.

        Args:
            path: ends with ``.html`` or ``.md``.

        Raises:
            PlanError: it ends otherwise.
            CatalogError: it cannot be written.

        Examples:
            >>> run = catalog.run("written", stream)
            >>> run.log(batch=next(iter(stream)), loss=0.5)
            >>> run.close()
            >>> spiral.report.run_card(catalog, run).save("written.html").name
            'written.html'
        """
        file = Path(path)
        if file.suffix.lower() not in _ENDINGS:
            msg = f"card: path={str(file)!r} ends with {file.suffix!r}. Give one that ends with {' or '.join(_ENDINGS)}"
            raise PlanError(msg)
        text = self.html() if file.suffix.lower() == _PAGE else self.markdown()
        return write_page(f"card of {self.run}", file, text)

    def __str__(self) -> str:
        return self.markdown()

    def _repr_html_(self) -> str:
        return markup.view_of(self._parts(), "card.save(path) writes all of it.")

    def _parts(self) -> Iterator[Html]:
        yield markup.pairs(self.facts)
        for each in self.figures:
            yield element("h2", each.title)
            yield markup.table(_texts(each.table))
            yield element("pre", each.query)
        if self.spikes is not None:
            yield element("h2", "What stands out")
            yield from self.spikes.parts()

    def _standing_out(self) -> Iterator[tuple[str, str, str]]:
        if self.spikes is not None:
            call = f"catalog.run({self.run!r})"
            value = self.spikes.spikes.value
            yield "Spikes", str(self.spikes.spikes), f"{call}.spikes({value!r})"
            yield "Samples that stand out", str(self.spikes.outliers), f"{call}.outliers({value!r})"


@door(PlanError)
def run_card(catalog: AnyCatalog, run: RecordedRun, value: str = "loss", *, attempt: str | None = None) -> RunCard:
    """Return the card of a run.

    Args:
        catalog: where the run and its relations are.
        run: a recorded one, `Catalog.run`.
        value: whose spikes are shown; one that was not logged has none.
        attempt: the last one of another branch; None takes the newest.

    Raises:
        RunError: nothing was recorded.

    Examples:
        >>> run = catalog.run("described", stream)
        >>> for batch in stream:
        ...     run.log(batch=batch, loss=batch["width"] / 1_000)
        >>> run.close()
        >>> spiral.report.run_card(catalog, run).save("card.md").name
        'card.md'
    """
    figures = run.figures(attempt)
    try:
        spikes = report_spikes(catalog, run, value, attempt=attempt)
    except RunError:  # it was not logged
        spikes = None
    return RunCard(run.name, _facts(run, attempt), figures, spikes)


def _facts(run: RecordedRun, attempt: str | None) -> list[tuple[str, str]]:
    """Where a run came from."""
    changes, legs = run.history(attempt), run.legs(attempt)
    facts = [("run", run.name)]
    if changes:
        facts += [
            ("began", moment(changes[0].at[:19].replace("T", " "))),
            ("last change", moment(changes[-1].at[:19].replace("T", " "))),
        ]
    branch = dict.fromkeys(leg.attempt for leg in legs)
    facts += [("attempts", " → ".join(branch))]
    facts += [("plan", ", ".join(dict.fromkeys(str(leg.state.get("plan")) for leg in legs)))]
    for name in dict.fromkeys(name for leg in legs for name in _data_of(leg.state)):
        versions = dict.fromkeys(str(_data_of(leg.state)[name]) for leg in legs if name in _data_of(leg.state))
        facts.append((f"data version of {name}", ", ".join(versions)))
    facts.append(("ranks", ", ".join(dict.fromkeys(str(leg.world_size) for leg in legs))))
    return facts


def _data_of(state: object) -> dict[str, object]:
    """The data versions in a state, by relation; of many relations, a state names a list of them."""
    found = state.get("data") if isinstance(state, dict) else None
    return found if isinstance(found, dict) else {}


def _texts(table: pa.Table) -> list[dict[str, str]]:
    return [
        {name: "" if value is None else written(value) for name, value in row.items()}
        for row in table.slice(0, _ROWS).to_pylist()
    ]


def _grid(names: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Write a table in Markdown."""
    cells = [[str(each).replace("|", "\\|") for each in row] for row in rows]
    return [f"| {' | '.join(row)} |" for row in [list(names), ["---"] * len(names), *cells]]
