"""A relation as markup: what it is, its columns with histograms, some rows, what they refer to, and its skew.

`spiral report`, `spiral page` and notebooks show the same parts.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol

from spiral_stream.display import markup
from spiral_stream.display.markup import Html, element
from spiral_stream.display.wording import one_line
from spiral_stream.errors import MissingExtraError
from spiral_stream.looking.contact_sheet import Sheet
from spiral_stream.report.charts import Picture
from spiral_stream.report.columns import ColumnSummary
from spiral_stream.report.skewed import ColumnSkew

_WIDTH: Final = 520  # pixels of a picture
_NAME: Final = 60  # characters of a column's name
_WORDS: Final = 200  # of its description
_SAMPLED: Final = 24  # columns of a table of rows
_MEASURED: Final = (*("histogram", "nulls", "NaN", "distinct", "min", "mean", "max", "quartiles", "most frequent"),)


class Reported(Protocol):
    """What a page shows of a relation, as `making.Report` has it."""

    @property
    def columns(self) -> tuple[ColumnSummary, ...]: ...

    @property
    def samples(self) -> tuple[dict[str, str], ...]: ...

    @property
    def sheet(self) -> Sheet | None: ...

    @property
    def skews(self) -> tuple[ColumnSkew, ...]: ...

    @property
    def notes(self) -> tuple[str, ...]: ...

    @property
    def snippet(self) -> str:
        """Python code that opens the relation."""
        ...

    def facts(self) -> list[tuple[str, str]]:
        """What is said of the relation as a whole, each with its name."""
        ...


def relation_parts(report: Reported, sheet_bytes: int, *, skew_is_open: bool = True) -> Iterator[Html]:
    """Yield the parts of a relation's page, each whole by itself.

    Args:
        report: of the relation.
        sheet_bytes: most bytes of pictures, clips and sounds.
        skew_is_open: whether a reader sees the pictures of skew without unfolding them.
    """
    yield markup.pairs(report.facts())
    yield from (markup.note(note) for note in report.notes)
    yield element("h4", "Columns")
    yield columns_table(report.columns)
    yield element("h4", "Samples")
    yield rows_table(report.samples)
    if report.sheet is not None:
        yield report.sheet.markup(sheet_bytes)
    for each in report.skews:
        yield from _skew(each, is_open=skew_is_open)
    yield markup.folded("Open it in Python", element("pre", report.snippet.strip()))


def columns_table(columns: Sequence[ColumnSummary]) -> Html:
    """Write the columns of a relation, with what is counted of each."""
    rows = [_column(each) for each in columns[: markup.ROWS]]
    none = {name for name in ("nulls", "NaN") if all(row[name] in ("", "0") for row in rows)}
    shown = markup.table([{name: row[name] for name in row if name not in none} for row in rows], class_="sp-one")
    left = len(columns) - len(rows)
    notes = [f"{left:,} more columns"] if left > 0 else []
    if any(each.nulls is not None for each in columns):
        notes += [f"no column holds {' or '.join(sorted(none, reverse=True))}"] if none else []
        notes.append("~ marks an estimate; quartiles are estimates, good to 1/64 of the rows")
    return markup.joined([shown, markup.quiet("; ".join(notes)) if notes else None])


def _column(each: ColumnSummary) -> Mapping[str, object]:
    cells: dict[str, Any] = {**each.cells()}
    words = f"{each.name}, from {each.least} to {each.greatest}" if each.least else each.name
    cells["histogram"] = markup.histogram(each.counts, one_line(words)) or ""
    return {
        "column": one_line(each.name, _NAME),
        "type": one_line(each.kind, _NAME),
        **{name: cells[name] for name in _MEASURED},
        "role": ", ".join(each.roles),
        "description": one_line(each.description, _WORDS),
    }


def rows_table(rows: Sequence[Mapping[str, str]]) -> Html:
    """Write rows; of many columns, the first."""
    if not rows or len(rows[0]) <= _SAMPLED:
        return markup.table([{one_line(name, _NAME): text for name, text in row.items()} for row in rows])
    names = list(rows[0])[:_SAMPLED]
    cut = [{one_line(name, _NAME): row[name] for name in names} for row in rows]
    return markup.joined([markup.table(cut), markup.quiet(f"{len(rows[0]) - _SAMPLED:,} more columns")])


def _skew(each: ColumnSkew, *, is_open: bool) -> Iterator[Html]:
    parts = [markup.pairs(each.facts()), element("p", f"{each.advice()}.")]
    try:
        parts.append(element("div", *map(_picture, each.pictures("svg")), class_="sp-pics"))
    except MissingExtraError as error:
        parts.append(markup.note(str(error)))
    worst, shards = each.worst_rows(), len(each.skew.distance)
    parts += [
        element("h4", f"The {len(worst)} storage shards farthest from the whole, of {shards:,}"),
        markup.table(worst),
    ]
    title = f"Skew of {one_line(each.column, _NAME)}"
    if is_open:
        yield markup.joined([element("h4", title), *parts])
    else:
        yield markup.folded(title, *parts)


def _picture(picture: Picture) -> Html:
    source, words = markup.data_uri("image/svg+xml", picture.data), picture.title.replace("\n", ": ")
    return element("img", width=_WIDTH, alt=words, src=source)


def outline_part(lines: Iterable[str]) -> Html:
    """Write the outline of a plan."""
    return element("pre", "\n".join(one_line(line, _WORDS) for line in lines))
