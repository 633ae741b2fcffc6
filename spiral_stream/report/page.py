"""The report of a relation as one HTML page: no script, and no other file."""

import base64
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import Final

from spiral_stream.report.charts import Picture
from spiral_stream.report.columns import ColumnSummary
from spiral_stream.report.samples import ContactSheet
from spiral_stream.report.skewed import ColumnSkew

_NUMBERS: Final = frozenset({"nulls", "NaN", "distinct", "min", "mean", "max", "distance", "values in effect"})
_WIDTH: Final = 540  # pixels of a picture
_STARTS: Final = frozenset("0123456789-~∞<>")
_STYLE: Final = """
body { font: 14px/1.45 system-ui, sans-serif; color: #222; max-width: 1400px; margin: 2em auto; padding: 0 1em }
h1 { font-size: 22px } h2 { font-size: 17px; margin-top: 2em; border-bottom: 1px solid #ddd } h3 { font-size: 14px }
table { border-collapse: collapse; display: block; overflow-x: auto } th { text-align: left; font-weight: 600 }
th, td { padding: 3px 12px 3px 0; border-bottom: 1px solid #eee; vertical-align: top } td { max-width: 22em }
td.number { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums }
td.bars { white-space: pre; line-height: 1; font-family: monospace } td.wide { min-width: 14em }
.columns { font-size: 12px }
pre { background: #f6f6f6; padding: 8px; overflow-x: auto } img { max-width: 100% }
.pictures { display: flex; flex-wrap: wrap; gap: 16px } .note { color: #8a5a00 } .small { color: #666; font-size: 12px }
"""


def page(
    name: str,
    facts: Iterable[tuple[str, str]],
    notes: Sequence[str],
    snippet: str,
    columns: Sequence[ColumnSummary],
    samples: Sequence[Mapping[str, str]],
    sheet: ContactSheet | None,
    skews: Sequence[ColumnSkew],
) -> str:
    """Return the page of a relation; arguments are as in `making.Report`."""
    parts = [
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(name)}</title>',
        f"<style>{_STYLE}</style></head><body>\n<h1>{escape(name)}</h1>",
        _pairs(facts),
        *(f'<p class="note">{escape(note)}</p>' for note in notes),
        f"<pre>{escape(snippet)}</pre>\n<h2>Columns</h2>",
        f'<div class="columns">{_table([each.cells() for each in columns])}</div>',
        '<p class="small">~ marks an estimate; quartiles are estimates, good to 1/64 of the rows.</p>',
        *_described(columns),
        "<h2>Samples</h2>",
        _table(samples),
        *([] if sheet is None else _sheet(sheet)),
        *(line for each in skews for line in _skew(each)),
        "</body></html>\n",
    ]
    return "\n".join(parts)


def _described(columns: Sequence[ColumnSummary]) -> Iterator[str]:
    told = [(each.name, ", ".join(each.roles), each.description) for each in columns]
    rows = [{"column": name, "role": roles, "description": words} for name, roles, words in told if roles or words]
    if rows:
        yield "<h3>Roles and descriptions</h3>" + _table(rows)


def _sheet(sheet: ContactSheet) -> Iterator[str]:
    yield f"<h3>{escape(sheet.column)}</h3>"
    if sheet.jpeg:
        source = base64.b64encode(sheet.jpeg).decode()
        words = escape(", ".join(sheet.samples))
        yield f'<img width="{sheet.width}" alt="{words}" src="data:image/jpeg;base64,{source}">'
        yield f'<p class="small">{words}</p>'
    yield from (f'<p class="note">cannot be decoded: {escape(fault)}</p>' for fault in sheet.faults)


def _skew(each: ColumnSkew) -> Iterator[str]:
    yield f"<h2>Skew of {escape(each.column)}</h2>"
    yield _pairs(each.facts())
    yield f"<p>{escape(each.advice())}.</p>"
    yield '<div class="pictures">'
    yield from map(_picture, each.pictures("svg"))
    yield "</div>"
    worst, shards = each.worst_rows(), len(each.skew.distance)
    yield f"<h3>The {len(worst)} storage shards farthest from the whole, of {shards:,}</h3>"
    yield _table(worst)


def _picture(picture: Picture) -> str:
    data = base64.b64encode(picture.data).decode()
    title = escape(picture.title.replace("\n", ": "))
    return f'<img width="{_WIDTH}" alt="{title}" src="data:image/svg+xml;base64,{data}">'


def _pairs(pairs: Iterable[tuple[str, str]]) -> str:
    return "<table>" + "".join(f"<tr><th>{escape(a)}</th><td>{escape(b)}</td></tr>" for a, b in pairs) + "</table>"


def _table(rows: Sequence[Mapping[str, str]]) -> str:
    """A table; columns that are empty in all rows are left out."""
    names = [name for name in rows[0] if any(row[name] for row in rows)] if rows else []
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    body = "".join("<tr>" + "".join(_cell(name, row[name]) for name in names) + "</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>" if names else "<p>none</p>"


def _cell(name: str, text: str) -> str:
    is_number = name in _NUMBERS and text[:1] in _STARTS
    kind = "number" if is_number else {"histogram": "bars", "most frequent": "wide"}.get(name, "")
    return f'<td class="{kind}">{escape(text)}</td>' if kind else f"<td>{escape(text)}</td>"
