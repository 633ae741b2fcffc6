"""`SpikeReport`: the loss of a run with its spikes, who carries them, samples that stand out: in a terminal, and as a page."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, final

import numpy as np
import pyarrow as pa

from spiral_stream.arguments import door
from spiral_stream.catalog.registry import AnyCatalog
from spiral_stream.display import markup
from spiral_stream.display.markup import Html, element
from spiral_stream.display.wording import bars, number, one_line, share
from spiral_stream.errors import MissingExtraError, PlanError
from spiral_stream.looking.contact_sheet import Sheet
from spiral_stream.report.build import write_page
from spiral_stream.report.charts import Form, Picture, draw_curves
from spiral_stream.report.run.samples import like_sheet, samples_sheet
from spiral_stream.runs.losses.baseline import WINDOW
from spiral_stream.runs.losses.outliers import Outliers
from spiral_stream.runs.losses.spikes import Spike, Spikes
from spiral_stream.runs.losses.table_query import Sources
from spiral_stream.runs.run import RecordedRun

if TYPE_CHECKING:
    from rich.console import Console

_COLUMNS: Final = 72  # of a curve in a terminal
_POINTS: Final = 400  # of a curve on a page
_ROWS: Final = 6  # of a table of streams or shards
_TILES: Final = 4  # of a sheet in a terminal
_SHEETS: Final = 3  # spikes whose samples are shown
_PICTURES: Final = 12  # of a spike
_SHEET_BYTES: Final = 2 << 20
_LINE: Final = 2_000
_LITTLE: Final = 1e-4  # a share below it is nothing


@final
@dataclass(frozen=True, slots=True, eq=False)
class SpikeReport:
    """What stands out of a run. Print it, show it in a notebook, or `save` it as a page.

    Attributes:
        spikes: of the run.
        outliers: of the run.
        sheets: samples of the first spikes, by place in ``spikes``.
        outlier_sheet: samples that stand out over the run; None if none do.
        like_sheets: rows like the first sample of a spike, by place in ``spikes``, and of the outliers, at -1.

    Examples:
        >>> run = catalog.run("shown", stream)
        >>> for step, batch in enumerate(stream):
        ...     run.log(batch=batch, loss=batch["width"] * (np.nan if step == 2 else 1))
        >>> run.close()
        >>> report = spiral.report.report_spikes(catalog, run)
        >>> "step 2" in report.html()
        True
    """

    spikes: Spikes
    outliers: Outliers
    sheets: Mapping[int, Sheet]
    outlier_sheet: Sheet | None
    like_sheets: Mapping[int, Sheet] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = [line for line in self._curve() if line]
        return "\n".join([*lines, str(self.spikes), "", str(self.outliers)])

    __repr__ = __str__

    def _curve(self) -> tuple[str, str]:
        """The value as a line of blocks, and a line of marks below it; empty where there are no steps."""
        mean = self.spikes.steps.column("mean").fill_null(np.nan).to_numpy()
        known = np.isfinite(mean)
        if not known.any():
            return "", ""
        bins = np.minimum(np.arange(len(mean)) * _COLUMNS // max(len(mean), 1), _COLUMNS - 1)
        if len(mean) < _COLUMNS:
            bins = np.arange(len(mean))
        high = np.full(bins[-1] + 1, -np.inf)
        np.maximum.at(high, bins[known], mean[known])
        low, top = float(mean[known].min()), float(mean[known].max())
        heights = np.where(np.isfinite(high), high - low + 0.02 * (top - low) + 1e-12, 0.0)
        marks = np.zeros(len(high), np.bool_)
        marks[bins[self.spikes.steps.column("spike").is_valid().to_numpy()]] = True
        return bars(heights.tolist()), "".join("^" if each else " " for each in marks.tolist()).rstrip()

    def picture(self, form: Form = "svg") -> Picture:
        """Draw the value by step, with a line at each spike that is shown.

        Raises:
            MissingExtraError: matplotlib is not installed.

        Examples:
            >>> run = catalog.run("drawn", stream)
            >>> run.log(batch=next(iter(stream)), loss=0.5)
            >>> run.close()
            >>> spiral.report.report_spikes(catalog, run).picture().form
            'svg'
        """
        steps = self.spikes.steps
        step, mean = steps.column("step").to_numpy(), steps.column("mean").fill_null(np.nan).to_numpy()
        step, mean = step[np.isfinite(mean)], mean[np.isfinite(mean)]
        width = max(1, -(-len(step) // _POINTS))
        starts = np.arange(0, len(step), width)
        curves = {"mean of a step": list(zip(step.tolist(), mean.tolist(), strict=True))}
        if width > 1:
            middle = np.add.reduceat(mean, starts) / np.diff(np.append(starts, len(step)))
            highest = np.maximum.reduceat(mean, starts)
            curves = {
                f"highest of {width} steps": list(zip(step[starts].tolist(), highest.tolist(), strict=True)),
                f"mean of {width} steps": list(zip(step[starts].tolist(), middle.tolist(), strict=True)),
            }
        marks = [each.peak_step for each in self.spikes]
        title = f"{self.spikes.value} of run {self.spikes.run}"
        panels = {self.spikes.value: curves}
        return draw_curves("spikes", title, panels, across="step", marks=marks, marked="spike", form=form)

    def html(self) -> str:
        """Return the report as one page that needs no other file.

        Examples:
            >>> run = catalog.run("paged", stream)
            >>> run.log(batch=next(iter(stream)), loss=0.5)
            >>> run.close()
            >>> spiral.report.report_spikes(catalog, run).html()[:15]
            '<!doctype html>'
        """
        parts = markup.bounded(self.parts(), markup.PAGE_BYTES - markup.PAPER_BYTES)
        title = f"What stands out of run {self.spikes.run}"
        return markup.page(title, element("h1", title), parts)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the page, and return where it is.

        Raises:
            CatalogError: it cannot be written.

        Examples:
            >>> run = catalog.run("saved", stream)
            >>> run.log(batch=next(iter(stream)), loss=0.5)
            >>> run.close()
            >>> spiral.report.report_spikes(catalog, run).save("saved.html").name
            'saved.html'
        """
        return write_page(f"spikes of {self.spikes.run}", Path(path), self.html())

    def _repr_html_(self) -> str:
        return markup.view_of(self.parts(), "report.save(path) writes all of it.")

    def parts(self) -> Iterator[Html]:
        """Yield what the page shows, each part complete by itself.

        Examples:
            >>> run = catalog.run("parted", stream)
            >>> run.log(batch=next(iter(stream)), loss=0.5)
            >>> run.close()
            >>> len(list(spiral.report.report_spikes(catalog, run).parts())) > 1
            True
        """
        spikes, outliers = self.spikes, self.outliers
        yield markup.pairs(_facts(spikes, outliers))
        yield from (markup.note(each) for each in dict.fromkeys([spikes.note, outliers.note]) if each)
        if len(spikes.steps):
            try:
                drawn = self.picture()
                source = markup.data_uri("image/svg+xml", drawn.data)
                yield element("img", width=720, alt=drawn.title, src=source, style="max-width:100%")
            except MissingExtraError as error:
                yield markup.note(str(error))
        if len(spikes):
            yield element("h2", "Spikes")
        for k, each in enumerate(spikes):
            yield from self._spike(k, each)
        if len(outliers):
            yield element("h2", "Samples that stand out")
            yield markup.quiet(
                "their value is far above those of the same step and stream, each time that they are seen"
            )
            yield markup.table(outliers.rows())
            yield from _calls([str(outliers.skip), *map(str, outliers.filters)])
        if self.outlier_sheet is not None:
            yield self.outlier_sheet.markup(_SHEET_BYTES)
        if -1 in self.like_sheets:
            yield self.like_sheets[-1].markup(_SHEET_BYTES)
        if len(outliers.shards):
            yield element("h3", "Storage shards whose rows lie highest")
            yield markup.table(_shard_rows(outliers))

    def _spike(self, k: int, spike: Spike) -> Iterator[Html]:
        yield element("h3", spike.text(self.spikes.value))
        yield element("ul", *(element("li", line) for line in spike.carriers()))
        yield from _calls(
            [*map(str, spike.skips), *map(str, filter(None, [spike.skip_samples])), *map(str, spike.filters)]
        )
        tables = [
            joined_table(name, shared_rows(table, self.spikes.value, mixed=spike.sources.mixed))
            for name, table in (("By stream", spike.streams), ("By shard", spike.shards))
            if name == "By shard" or spike.sources.mixed
        ]
        yield markup.joined(tables)
        for sheets in (self.sheets, self.like_sheets):
            if k in sheets:
                yield sheets[k].markup(_SHEET_BYTES)

    def __rich_console__(self, console: "Console", options: Any) -> "Iterable[Any]":
        from rich.text import Text

        del console, options
        spikes, outliers = self.spikes, self.outliers
        for name, text in _facts(spikes, outliers):
            yield Text.assemble((f"{name}: ", "dim"), text)
        curve, marks = self._curve()
        if curve:
            yield Text(f"\n{curve}", no_wrap=True)
            yield Text(marks, style="bold yellow", no_wrap=True)
        yield from (Text(each, style="yellow") for each in dict.fromkeys([spikes.note, outliers.note]) if each)
        for k, each in enumerate(spikes):
            yield Text(f"\n{each.text(spikes.value)}", style="bold")
            yield from (Text(f"  {line}") for line in each.carriers())
            yield from (Text(f"  {line}", style="cyan") for line in each.ways_out())
            yield terminal_table(shared_rows(each.shards, spikes.value, mixed=each.sources.mixed))
            for sheets in (self.sheets, self.like_sheets):
                if k in sheets:
                    yield _shorter(sheets[k])
        if len(outliers):
            yield Text("\nSamples that stand out, each time that they are seen", style="bold")
            yield terminal_table(outliers.rows())
            yield Text(f"  go on without them: {outliers.skip}", style="cyan")
            yield from (Text(f"  leave them out for good: {each}", style="cyan") for each in outliers.filters)
        if self.outlier_sheet is not None:
            yield _shorter(self.outlier_sheet)
        if -1 in self.like_sheets:
            yield _shorter(self.like_sheets[-1])


@door(PlanError)
def report_spikes(
    catalog: AnyCatalog,
    run: RecordedRun,
    value: str = "loss",
    *,
    attempt: str | None = None,
    spikes: int = 10,
    samples: int = 25,
    window: int = WINDOW,
    like: str | None = None,
) -> SpikeReport:
    """Report what stands out of a run: the steps whose value jumped, who carries them, and samples, as people look at them.

    Args:
        catalog: where the run and its relations are.
        run: a recorded one, `Catalog.run`.
        value: which was logged.
        attempt: the last one of another branch; None takes the newest.
        spikes: how many are looked into, the largest first.
        samples: how many that stand out over the whole run.
        window: steps before a step whose scatter says how far it may lie off.
        like: a column of vectors that `Relation.index` has indexed: rows like the first samples are shown too.

    Raises:
        RunError: nothing was recorded, no such value was logged, or a number is out of range.
        PlanError: the column of ``like`` has no index.

    Examples:
        >>> run = catalog.run("reported", stream)
        >>> for batch in stream:
        ...     run.log(batch=batch, loss=batch["width"] / 1_000)
        >>> run.close()
        >>> report = spiral.report.report_spikes(catalog, run)
        >>> report.save("spikes.html").name
        'spikes.html'
    """
    found = run.spikes(value, attempt=attempt, limit=spikes, window=window)
    outliers = run.outliers(value, attempt=attempt, limit=samples)
    sheets, like_sheets = dict[int, Sheet](), dict[int, Sheet]()
    for k, each in enumerate(found.found[:_SHEETS]):
        table = each.culprits if len(each.culprits) else each.samples
        if len(table):
            what = f"the samples with the largest excess in {each.steps_text}"
            sheets[k] = samples_sheet(catalog, each.sources, table, value, what, _PICTURES)
            _add_like(like_sheets, k, catalog, each.sources, table, like)
    sheet = samples_sheet(catalog, outliers.sources, outliers.table, value, "") if len(outliers) else None
    _add_like(like_sheets, -1, catalog, outliers.sources, outliers.table, like)
    return SpikeReport(found, outliers, sheets, sheet, like_sheets)


def _add_like(
    sheets: dict[int, Sheet], k: int, catalog: AnyCatalog, sources: Sources, table: pa.Table, column: str | None
) -> None:
    sheet = None if column is None else like_sheet(catalog, sources, table, column)
    if sheet is not None:
        sheets[k] = sheet


def _shorter(sheet: Sheet) -> Sheet:
    return Sheet(sheet.tiles[:_TILES], sheet.title, sheet.faults)


def _facts(spikes: Spikes, outliers: Outliers) -> list[tuple[str, str]]:
    steps = spikes.steps
    facts = [("run", spikes.run), ("value", spikes.value), ("steps", f"{len(steps):,}")]
    if len(steps):
        lost = len(steps) - int(steps.column("applied").to_numpy().sum())
        facts += [("not applied", f"{lost:,}")] if lost else []
        known = steps.column("mean").drop_null()
        facts += [("last", number(known[-1].as_py()))] if len(known) else []
    spiked = f"{spikes.total:,}" + (f"; the largest {len(spikes):,} are shown" if spikes.total > len(spikes) else "")
    more = f"; the first {len(outliers):,} are shown" if outliers.standing_out > len(outliers) else ""
    return [*facts, ("spikes", spiked), ("samples that stand out", f"{outliers.standing_out:,}{more}")]


def shared_rows(table: pa.Table, value: str, *, mixed: bool) -> list[dict[str, str]]:
    """Write the first rows of a spike's streams or shards as texts."""
    out = []
    for row in table.slice(0, _ROWS).to_pylist():
        cells = {"stream": one_line(row["stream"])} if mixed or "shard" not in row else {}
        if "shard" in row:
            cells["shard"] = one_line(row["name"] or str(row["shard"]))
        cells["rows"] = f"{row['rows']:,}"
        cells[value] = "NaN" if row["mean"] is None else number(row["mean"])
        cells["not finite"] = f"{row['not_finite']:,}" if row["not_finite"] else ""
        part = row["share"]
        cells["share"] = (
            "" if part is None else share(part, 1) if part > 0 else f"-{share(-part, 1)}" if part < -_LITTLE else "0 %"
        )
        out.append(cells)
    return out


def _shard_rows(outliers: Outliers) -> list[dict[str, str]]:
    return [
        {
            **({"stream": one_line(row["stream"])} if outliers.sources.mixed else {}),
            "shard": outliers.sources.shard_name(row["stream"], row["shard"]) or str(row["shard"]),
            "rows": f"{row['rows']:,}",
            "score": number(row["score"]),
            outliers.value: "NaN" if row["mean"] is None else number(row["mean"]),
            "expected": number(row["expected"]),
        }
        for row in outliers.shards.to_pylist()
    ]


def joined_table(title: str, rows: Sequence[Mapping[str, str]]) -> Html:
    """Write a table below its title."""
    return markup.joined([element("h4", title), markup.table(rows)])


def terminal_table(rows: Sequence[Mapping[str, str]]) -> Any:
    """Return rows as a table for a terminal; columns that are empty in all rows are left out."""
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=None, padding=(0, 2, 0, 2), header_style="dim")
    names = [name for name in (rows[0] if rows else ()) if any(row.get(name) for row in rows)]
    for name in names:
        grid.add_column(name, justify="right" if all(markup.is_number(row.get(name, "")) for row in rows) else "left")
    for row in rows:
        grid.add_row(*(Text(row.get(name, "")) for name in names))
    return grid


def _calls(lines: Sequence[str]) -> Iterator[Html]:
    if lines:
        yield element("pre", "\n".join(one_line(each, _LINE) for each in lines))
