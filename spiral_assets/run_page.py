"""What the page of a trained model shows of its recorded run: losses by source, what stands out, what was seen, what changed.

All of it comes from the catalog, by the name of the run, so it covers every process of a run that was killed and retried. What
cannot be read says why in its place, and fails nothing: the model is trained.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import dagster as dg

from spiral_assets import pages
from spiral_assets.facts import reports
from spiral_assets.training import progress

if TYPE_CHECKING:
    import spiral_stream as spiral

LOSS: Final = "loss"
STANDS_OUT: Final = "stands_out"
RECORD: Final = progress.RECORD
_POINTS: Final = 200  # of a curve
_CURVES: Final = 6  # shards of a picture
_LINES: Final = 12  # of what stands out

Values = dict[str, Any]


def run_page(
    context: dg.AssetExecutionContext, catalog: "spiral.Catalog", name: str, folder: Path, trust: Sequence[str] = ()
) -> tuple[dict[str, dg.MetadataValue[Any]], dict[str, dg.MetadataValue[Any]]]:
    """Return what the page of a trained model shows of its recorded run, and what it folds; empty if none was recorded.

    Args:
        context: of the Dagster run that shows it; pictures are kept with it.
        catalog: that has the run.
        name: of the run.
        folder: of the training run, which says which attempts are of it.
        trust: modules whose functions the plan may name.

    Examples:
        >>> from spiral_assets.run_page import run_page
        >>> train("recorded", record="models.of_page")
        >>> shown, details = run_page(dg.build_asset_context(), catalog, "models.of_page", Path("recorded"))
        >>> shown["recorded_run"].value
        'models.of_page'
        >>> "| samples |" in details["seen"].value
        True
    """
    begins = progress.every_begin(folder)
    if not any(begun.get("recorded") == name for begun in begins):
        return {}, {}
    run = catalog.run(name, trust=trust)
    attempts = {str(begun.get("attempt")) for begun in begins}
    details: dict[str, dg.MetadataValue[Any]] = {
        "recorded_run": reports.opens(catalog.uri, f"run = catalog.run({name!r})")
    }
    parts: Sequence[Callable[[], Iterator[tuple[str, Any]]]] = (
        lambda: _losses(context, catalog, run),
        lambda: _seen(catalog, run, trust),
        lambda: _difference(catalog, run, attempts, trust),
    )
    for part, instead in zip(parts, ("losses_by_source", "seen", "difference_to_run_before"), strict=True):
        details |= _read(part, instead)
    shown = {each: details.pop(each) for each in (STANDS_OUT,) if each in details}
    return {**shown, "recorded_run": dg.MetadataValue.text(name)}, details


def _read(part: Callable[[], Iterator[tuple[str, Any]]], instead: str) -> dict[str, Any]:
    """What a part shows; where it cannot be read, why."""
    import spiral_stream as spiral

    found: dict[str, Any] = {}
    try:
        found.update(part())
    except (spiral.errors.SpiralError, OSError) as error:
        found[instead] = dg.MetadataValue.text(f"not known: {error}")
    return found


def _losses(
    context: dg.AssetExecutionContext, catalog: "spiral.Catalog", run: "spiral.results.RecordedRun"
) -> Iterator[tuple[str, Any]]:
    """Losses by stream and storage shard, the spikes, and the samples that stand out."""
    import spiral_stream as spiral

    table = run.registered().name  # brings it up to date, with the trust that the run was opened with
    report = spiral.report.report_spikes(catalog, run)
    sources = report.outliers.sources
    rows = list(_by_source(catalog.table(table), sources))
    spikes, outliers = len(report.spikes), len(report.outliers.rows())
    yield (
        STANDS_OUT,
        dg.MetadataValue.text(
            f"{spikes} spike{'s' * (spikes != 1)} of loss, {outliers} outlier{'s' * (outliers != 1)} among samples"
        ),
    )
    yield "losses_by_source", reports.listed([_few_digits(row) for row in rows])
    pictures = [_curves(catalog.table(table), sources, rows)]
    if len(report.spikes):
        pictures.append(report.picture())
    yield "loss_curves", pages.shown(context, run.name, [(each.name, each.form, each.data) for each in pictures])
    yield "spikes", _lines(str(report.spikes))
    yield "outliers", reports.listed(report.outliers.rows())
    if report.outlier_sheet is not None and report.outlier_sheet.tiles:
        sheet = pages.framed(report.outlier_sheet.image(transparent=True))
        yield "outlier_samples", pages.shown(context, run.name, [("outliers", "svg", sheet)])
    if report.outliers.skip is not None:
        ways = [str(report.outliers.skip), *map(str, report.outliers.filters)]
        yield "without_outliers", reports.snippet("\n".join(ways))


def _by_source(rows: "spiral.Relation", sources: Any) -> Iterator[Values]:
    """Yield a row per stream and storage shard, those with the highest loss in the last epoch first."""
    import spiral_stream as spiral

    every = rows.group_by("stream", "shard").aggregate(
        samples=("step", "count"), loss=(LOSS, "avg"), first=("epoch", "min"), last=("epoch", "max")
    )
    found = every.to_arrow().to_pylist()
    last = max((row["last"] for row in found), default=0)
    of_last = rows.filter(spiral.col("epoch") == last).group_by("stream", "shard").aggregate(loss=(LOSS, "avg"))
    ended = {(row["stream"], row["shard"]): row["loss"] for row in of_last.to_arrow().to_pylist()}
    for row in sorted(found, key=lambda row: -(ended.get((row["stream"], row["shard"])) or float("-inf"))):
        key = row["stream"], row["shard"]
        yield {
            "stream": row["stream"],
            "shard": _shard(sources, row),
            "samples": row["samples"],
            LOSS: row["loss"],
            f"in epoch {last}": ended.get(key),
        }


def _few_digits(row: Values) -> Values:
    return {name: float(f"{value:.4g}") if isinstance(value, float) else value for name, value in row.items()}


def _shard(sources: Any, row: Values) -> str:
    return sources.shard_name(row["stream"], row["shard"]) or str(row["shard"])


def _curves(rows: "spiral.Relation", sources: Any, highest: Sequence[Values]) -> "spiral.report.Picture":
    """Draw the loss of each stream over the steps, and of the storage shards that end highest."""
    import spiral_stream as spiral

    (ends,) = rows.aggregate(first=("step", "min"), last=("step", "max")).to_arrow().to_pylist()
    begin, length = ends["first"], ends["last"] - ends["first"] + 1
    parts = rows.with_columns(part=(spiral.col("step") - begin) * min(_POINTS, length) // length)

    def curves(of: "spiral.Relation", key: str, name: Callable[[Values], str]) -> dict[str, list[tuple[int, float]]]:
        columns = ("stream",) if key == "stream" else ("stream", key)
        found = of.group_by(*columns, "part").aggregate(step=("step", "max"), loss=(LOSS, "avg")).to_arrow()
        lines: dict[str, list[tuple[int, float]]] = {}
        for row in found.sort_by("step").to_pylist():
            if row["loss"] is not None:
                lines.setdefault(name(row), []).append((row["step"], row["loss"]))
        return lines

    panels = {"mean loss of a stream": curves(parts, "stream", lambda row: str(row["stream"]))}
    if len(highest) > 1:
        every = curves(parts, "shard", lambda row: f"{row['stream']} {_shard(sources, row)}")
        named = [f"{row['stream']} {row['shard']}" for row in highest[:_CURVES]]
        panels["of the shards that end highest"] = {name: every[name] for name in named if name in every}
    return spiral.report.draw_curves("loss_by_source", f"{length:,} steps", panels, across="step", width=pages.LARGE)


def _lines(text: str) -> dg.MetadataValue[Any]:
    lines = text.splitlines()
    more = [f"... and {len(lines) - _LINES:,} lines more: `spiral spike`"] if len(lines) > _LINES else []
    return dg.MetadataValue.md("\n".join(["```text", *lines[:_LINES], "```", *more]))


def _seen(
    catalog: "spiral.Catalog", run: "spiral.results.RecordedRun", trust: Sequence[str]
) -> Iterator[tuple[str, Any]]:
    """Samples, tokens and passes of each stream."""
    seen = catalog.seen(run.name, trust=trust)
    yield "seen", reports.listed([_few_digits(row) for row in seen.to_arrow().to_pylist()])
    if seen.not_recorded:
        yield "not_recorded", dg.MetadataValue.text("; ".join(seen.not_recorded))


def _difference(
    catalog: "spiral.Catalog", run: "spiral.results.RecordedRun", attempts: set[str], trust: Sequence[str]
) -> Iterator[tuple[str, Any]]:
    """Where the run parts from the one before, and what only one of them saw."""
    others = [each for each in run.attempts() if each.name not in attempts]
    if not others:
        yield "difference_to_run_before", dg.MetadataValue.text("no run before it was recorded")
        return
    before, after = others[-1].name, run.attempt
    found = catalog.diff(run.legs(before), run.legs(after), trust=trust)
    words = f"A is attempt `{before}`, B is this run, `{after}`.\n\n"
    yield "difference_to_run_before", dg.MetadataValue.md(words + found.explanation().to_markdown())
