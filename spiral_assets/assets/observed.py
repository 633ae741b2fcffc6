"""What a registration of a relation is like, next to those before it: values, the check of them, and a chart.

The values stand in the metadata of the statistics' materializations, so they are there for as long as Dagster keeps those.
"""

from collections.abc import Iterator, Mapping, Sequence
from io import BytesIO
from typing import TYPE_CHECKING, Any, Final

import dagster as dg

from spiral_assets import automation, pages
from spiral_assets.facts import reports
from spiral_assets.facts.folded import DETAILS, table_in
from spiral_assets.facts.learned import REST, Judged, Learned, Observation, distinct, judged

if TYPE_CHECKING:
    import pyarrow as pa

    import spiral_stream as spiral

CHECK: Final = "values_are_as_before"
OBSERVED: Final = "observed"  # metadata of a materialization: the values of a registration
_VERSION_TAG: Final = "dagster/data_version"
_ROWS: Final = "dagster/row_count"
_IMAGES: Final = 64  # that are drawn for their sizes
_LABELS: Final = 20  # of a column that are named
_COLUMNS: Final = 100  # of a relation whose values are looked at
_PAGE: Final = 50  # materializations that are read at once
_PAGES: Final = 20
_PANELS: Final = 6  # of the chart
_FEW_PANELS: Final = 3  # where it is small
_LISTED: Final = 11  # values in the table
_NAMED: Final = 3  # values in the description
_JPEG: Final = "image/jpeg-ref"

Counted = dict[str, dict[str, float]]


def check_spec(asset: dg.AssetKey, options: Learned) -> dg.AssetCheckSpec:
    """Return the check of learned limits.

    Args:
        asset: the statistics of the relation.
        options: how limits are learned.
    """
    words = f"{', '.join(options.of)} are within the limits that the last {options.last} registrations teach."
    blocking = any(map(options.blocks, options.of))
    return dg.AssetCheckSpec(
        CHECK,
        asset=asset,
        description=f"Values of {words}",
        blocking=blocking,
        automation_condition=automation.with_its_asset(),
    )


def values_of(
    catalog: "spiral.Catalog", statistics: "spiral.results.Statistics", report: "spiral.report.Report", options: Learned
) -> Counted:
    """Return the values of a relation as it is registered now; sizes of images are read of some drawn rows.

    Args:
        catalog: that has the relation.
        statistics: of the relation.
        report: of the relation, with its labels and origins.
        options: say which values.
    """
    found: Counted = {"rows": {"rows": float(report.rows)}}
    measured = [each for each in report.columns if "identity" not in each.roles][:_COLUMNS]
    if "nulls" in options.of:
        found["nulls"] = dict(_nulls(measured))
    if "labels" in options.of:
        found["labels"] = dict(_shares(statistics.histograms, [each.column for each in report.skews], report.rows))
    if "lengths" in options.of:
        found["lengths"] = dict(_lengths(statistics.shards, {each.name: each.kind for each in measured}))
    if "sizes" in options.of:
        images = [each.name for each in measured if each.kind == _JPEG]
        found["sizes"] = {name: size for column in images for name, size in _sizes(catalog, report.name, column)}
    if "drift" in options.of:
        found["drift"] = dict(_moved(report))
    return {kind: {name: float(f"{value:.6g}") for name, value in each.items()} for kind, each in found.items()}


def history(instance: dg.DagsterInstance, key: dg.AssetKey, last: int) -> list[Observation]:
    """Return what was measured of the last registrations, the first of them first.

    Args:
        instance: that ran them.
        key: of the statistics.
        last: registrations of other data than the one after them.
    """
    found: list[Observation] = []
    cursor = None
    for _ in range(_PAGES):
        page = instance.fetch_materializations(key, limit=_PAGE, cursor=cursor)
        found += [each for each in map(_observation, page.records) if each is not None]
        cursor = page.cursor
        if not page.has_more or len(distinct(found)) > last:
            break
    return distinct(found)[-last:]


def looked_at(
    context: dg.AssetExecutionContext,
    key: dg.AssetKey,
    report: "spiral.report.Report",
    values: Counted,
    options: Learned,
) -> tuple[dict[str, Any], dict[str, Any], dg.AssetCheckResult]:
    """Return what the page of the statistics shows of the last registrations, what it folds, and what the check says.

    Args:
        context: of the run that measured it.
        key: of the statistics.
        report: of the relation.
        values: of the relation as it is registered now.
        options: how limits are learned.
    """
    before = history(context.instance, key, 2 * options.last)  # the first of the chart have limits too
    number = before[-1].number + 1 if before else 0
    shown = distinct([*before, Observation(number, report.data_version, values)])
    found = judged(shown, options)
    rows = [{"kind": kind, "value": name, "measured": each} for kind in values for name, each in values[kind].items()]
    details: dict[str, Any] = {OBSERVED: reports.listed(rows, len(rows))}
    chart = {}
    if len(shown) > 1:
        pictures = {
            name: _chart(name, found, len(shown), options, width)
            for name, width in (("last_registrations", pages.SMALL), ("registrations", pages.LARGE))
        }
        drawn = {name: pages.shown(context, report.name, [(p.name, p.form, p.data)]) for name, p in pictures.items()}
        chart, large = ({name: drawn[name]} for name in pictures)
        details = large | details
    in_check = {"last_registrations": details["registrations"]} if chart else {}  # a check shows it in a dialog
    return chart, details, _result(key, found, len(shown) - 1, options, in_check)


def _result(
    key: dg.AssetKey, found: Sequence[Judged], before: int, options: Learned, chart: Mapping[str, Any]
) -> dg.AssetCheckResult:
    far = [each for each in found if each.is_far]
    severe = any(options.blocks(each.kind) for each in far)
    if far:
        more = f"; and {len(far) - _NAMED:,} more" if len(far) > _NAMED else ""
        words = "; ".join(map(_words, far[:_NAMED])) + more
    elif before < options.observe:
        words = f"{before} registrations before this one; limits are learned from {options.observe} on"
    else:
        words = f"{len(found)} values are as in the last {min(before, options.last)} registrations"
    return dg.AssetCheckResult(
        passed=not far,
        asset_key=key,
        check_name=CHECK,
        severity=dg.AssetCheckSeverity.ERROR if severe else dg.AssetCheckSeverity.WARN,
        description=words,
        metadata={
            "out_of_limits": len(far),
            "registrations": before,
            "values": reports.table([_row(each) for each in found], _LISTED),
            **chart,
        },
    )


def _words(one: Judged) -> str:
    assert one.band is not None
    return f"{one.name} is {one.value:,.5g}, usual is {one.band.low:,.5g} to {one.band.high:,.5g}"


def _row(one: Judged) -> dict[str, Any]:
    band = one.band
    return {
        "value": one.name,
        "now": one.value,
        "median": None if band is None else band.median,
        "low": None if band is None else band.low,
        "high": None if band is None else band.high,
        "of the limit": None if band is None else f"{one.distance:.0%}",
    }


def _chart(
    name: str, found: Sequence[Judged], registrations: int, options: Learned, width: int
) -> "spiral.report.Picture":
    """Draw the values that are farthest from their medians, with the limits that each registration had."""
    import spiral_stream as spiral

    drawn = [*found[:1], *(each for each in found[1:] if each.kind != "rows")]
    rows = [each for each in found if each.kind == "rows"]
    drawn = list({(each.kind, each.name): each for each in [*rows, *drawn]}.values())
    drawn = drawn[: _FEW_PANELS if width < pages.LARGE else _PANELS]
    panels = {each.name: dict(_curves(each, registrations)) for each in drawn}
    far = sorted(
        {1 + at - registrations for each in drawn for at, value, band in each.course if band and not band.holds(value)}
    )
    return spiral.report.draw_curves(
        name,
        f"The last {registrations} registrations, limits learned from {options.last} before each",
        panels,
        across="registrations before the latest",
        marks=far,
        marked="a value out of its limits",
        width=width,
    )


def _curves(one: Judged, registrations: int) -> Iterator[tuple[str, list[tuple[float, float]]]]:
    yield "value", [(1 + at - registrations, value) for at, value, _ in one.course]
    limited = [(1 + at - registrations, band) for at, _, band in one.course if band is not None]
    if limited:
        yield "lowest", [(at, band.low) for at, band in limited]
        yield "highest", [(at, band.high) for at, band in limited]


def _observation(record: dg.EventLogRecord) -> Observation | None:
    made = record.asset_materialization
    if made is None:
        return None
    said = made.metadata.get(OBSERVED)  # of an earlier version
    values: Any = _listed(made.metadata.get(DETAILS)) if said is None else said.value
    if not isinstance(values, Mapping):  # measured before limits were learned
        rows = made.metadata.get(_ROWS)
        values = {} if rows is None else {"rows": {"rows": float(rows.value)}}  # type: ignore[arg-type]  # a number
    return Observation(record.storage_id, (made.tags or {}).get(_VERSION_TAG, ""), values)


def _listed(page: Any) -> Counted | None:
    """The values that a folded page lists; None where it lists none."""
    found: Counted = {}
    for row in [] if page is None else table_in(str(page.value), OBSERVED):
        found.setdefault(row["kind"], {})[row["value"]] = float(row["measured"])
    return found or None


def _nulls(columns: "Sequence[spiral.report.ColumnSummary]") -> Iterator[tuple[str, float]]:
    for each in columns:
        if each.nulls is not None and each.rows:
            yield f"{each.name} is null", each.nulls / each.rows
            if each.nans is not None:
                yield f"{each.name} is NaN", each.nans / each.rows


def _shares(histograms: "pa.Table", columns: Sequence[str], rows: int) -> Iterator[tuple[str, float]]:
    """Yield the share of each value of some columns, the most frequent ones by name."""
    import pyarrow.compute as pc

    for column in columns:
        of_column = histograms.filter(pc.equal(histograms["column"], column))
        counted = of_column.group_by("value").aggregate([("count", "sum")]).to_pylist()
        counted.sort(key=lambda row: (-row["count_sum"], str(row["value"])))
        for row in counted[:_LABELS]:
            yield f"{column}={row['value']}", row["count_sum"] / max(1, rows)
        if len(counted) > _LABELS:
            yield f"{column}={REST}", sum(row["count_sum"] for row in counted[_LABELS:]) / max(1, rows)


def _lengths(shards: "pa.Table", kinds: Mapping[str, str]) -> Iterator[tuple[str, float]]:
    """Yield the mean bytes of the texts of each column."""
    texts = [name for name, kind in kinds.items() if kind in {"string", "large_string", "string_view"}]
    totals = shards.group_by("column").aggregate([("bytes", "sum"), ("rows", "sum"), ("nulls", "sum")]).to_pylist()
    for row in totals:
        count = (row["rows_sum"] or 0) - (row["nulls_sum"] or 0)
        if row["column"] in texts and row["bytes_sum"] is not None and count:
            yield f"bytes of {row['column']}", row["bytes_sum"] / count


def _sizes(catalog: "spiral.Catalog", relation: str, column: str) -> Iterator[tuple[str, float]]:
    """Yield the mean width and height of some drawn images; only their headers are read."""
    from PIL import Image, UnidentifiedImageError

    import spiral_stream as spiral

    drawn = catalog.table(relation).sample(order=spiral.GlobalShuffle(seed=0))
    one_batch = drawn.collate(batch_size=_IMAGES, last=spiral.KeepPartial, fields={"image": spiral.List(column)})
    sizes = []
    try:
        with one_batch.to_numpy() as stream:
            images = stream.batch(0)["image"]
    except (spiral.errors.DataError, spiral.errors.SourceError):  # other checks say it
        return
    for each in images:
        try:
            sizes.append(Image.open(BytesIO(each)).size)
        except (UnidentifiedImageError, OSError, TypeError):
            continue
    for name, of_images in zip(("width", "height"), zip(*sizes, strict=True), strict=False):
        yield f"{name} of {column}", sum(of_images) / len(of_images)


def _moved(report: "spiral.report.Report") -> Iterator[tuple[str, float]]:
    """Yield means of columns of numbers, and how labels and origins are spread over shards and time."""
    for each in report.columns[:_COLUMNS]:
        mean = dict(each.numbers).get("mean")
        if mean is not None and "identity" not in each.roles:
            yield f"mean of {each.name}", mean
    for skew in report.skews:
        for name, value in skew.numbers().items():
            if name in {"distance_mean", "effective", "explained_by_time"}:
                yield f"{name} of {skew.column}", value
