"""A relation or a plan in a notebook: its columns with histograms, what it does, and a few rows with their pictures.

Showing reads little, and says what it did not read. A registered relation shows rows by their place. Of filters and
computed columns over one, the first rows are looked for among its first 4,096. Anything else is run where the relations
that it reads have at most 65,536 rows together, and 64 MiB where payload would be read; of larger ones the plan is shown,
and no rows.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, final

import numpy as np
import pyarrow as pa

from spiral_stream.catalog.registry import AnyCatalog
from spiral_stream.catalog.relation.entry import Entry
from spiral_stream.catalog.relation.manifest import UNKNOWN_BYTES
from spiral_stream.catalog.relation.reader import OpenRelation
from spiral_stream.display import markup
from spiral_stream.display.markup import Html, element
from spiral_stream.display.wording import one_line
from spiral_stream.errors import SpiralError
from spiral_stream.explain.outline import outline
from spiral_stream.expr import Expr
from spiral_stream.looking.contact_sheet import Sheet
from spiral_stream.plan import combining, nodes
from spiral_stream.plan.tree import relations_of, spine, walk
from spiral_stream.plan.verbs.mix import Mix
from spiral_stream.planner.selection.fetched_columns import in_memory
from spiral_stream.planner.selection.whole import collect
from spiral_stream.report.build import report_relation
from spiral_stream.report.columns import ColumnSummary
from spiral_stream.report.page import columns_table, outline_part, rows_table
from spiral_stream.report.samples import as_texts, is_payload, references, sheet_of
from spiral_stream.semantic import semantic_of

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

FIRST_ROWS: Final = 4_096  # of a relation, among which the first that a filter keeps are looked for
ALL_ROWS: Final = 65_536  # of all relations of a plan, where all of it is run
ALL_BYTES: Final = 64 << 20  # of them, where that reads payload
_ROWS: Final = 5
_PICTURES: Final = 8
_TERMINAL: Final = 12  # columns of a table of rows in a terminal
_WIDTH: Final = 120  # characters of a table of rows without a terminal's own width
_BY_ROW: Final = nodes.Scan | nodes.Filter | nodes.Project | nodes.WithColumns | nodes.Cache | nodes.Limit
_NO_ROWS_YET: Final = combining.Aggregate | combining.Union | nodes.Sql


@final
@dataclass(frozen=True, slots=True)
class RelationView:
    """What is shown.

    Attributes:
        title: what it is.
        facts: each with its name.
        outline: of the plan; empty for a relation as it is registered.
        columns: with what is counted of each.
        rows: a few, as texts.
        note: why there are none, or which they are.
        sheet: what their references name.
    """

    title: str
    facts: Sequence[tuple[str, str]]
    outline: Sequence[str]
    columns: Sequence[ColumnSummary]
    rows: Sequence[Mapping[str, str]]
    note: str
    sheet: Sheet | None

    def parts(self, sheet_bytes: int) -> Iterator[Html]:
        """Yield what is shown as markup, each part whole by itself."""
        yield element("h4", one_line(self.title))
        if self.facts:
            yield markup.pairs((name, one_line(text, 120)) for name, text in self.facts)
        if self.outline:
            yield outline_part(self.outline)
        yield columns_table(self.columns)
        if self.note:
            yield markup.quiet(one_line(self.note, 300))
        if self.rows:
            yield rows_table(self.rows)
        if self.sheet is not None:
            yield self.sheet.markup(sheet_bytes)

    def html(self) -> str:
        """Return what is shown as a notebook shows it."""
        half = (markup.NOTEBOOK_BYTES - markup.PAPER_BYTES) * 3 // 4
        return markup.view_of(self.parts(half), "project(...) keeps fewer columns.")

    def rows_text(self) -> str:
        """Return the rows as a table of plain text, or why there are none."""
        from rich.console import Console

        if not self.rows:
            return one_line(self.note or "no rows", 300)
        console = Console(no_color=True, width=_WIDTH)
        with console.capture() as capture:
            console.print(_terminal_table([{name: row[name] for name in list(row)[:_TERMINAL]} for row in self.rows]))
        return "\n".join(line.rstrip() for line in capture.get().splitlines())

    def __rich_console__(self, console: "Console", options: Any) -> "Iterable[Any]":
        from rich.text import Text

        del console, options
        yield Text(one_line(self.title), style="bold")
        yield from (Text(f"  {name}: {one_line(text, 120)}") for name, text in self.facts)
        yield from (Text(f"  {one_line(line, 120)}", style="dim") for line in self.outline)
        cells = [each.cells() for each in self.columns[: markup.ROWS]]
        names = ("column", "type", "histogram", "nulls", "distinct", "min", "max", "most frequent")
        yield _terminal_table([{name: row[name] for name in names} for row in cells])
        if self.note:
            yield Text(f"  {one_line(self.note, 300)}", style="dim")
        yield Text("")
        if self.rows:
            shown = list(self.rows[0])[:_TERMINAL]
            yield _terminal_table([{name: row[name] for name in shown} for row in self.rows])
        if self.sheet is not None:
            yield self.sheet


def _terminal_table(rows: Sequence[Mapping[str, str]]) -> "Table":
    """A table as rich prints it; columns that are empty in all rows are left out."""
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=None, padding=(0, 2, 0, 2), header_style="dim")
    names = [name for name in rows[0] if any(row[name] for row in rows)] if rows else []
    for name in names:
        right = all(markup.is_number(row[name]) for row in rows)
        grid.add_column(Text(one_line(name)), justify="right" if right else "left")
    for row in rows:
        grid.add_row(*(Text(one_line(row[name], 40)) for name in names))
    return grid


def relation_view(node: nodes.Node, catalog: AnyCatalog) -> RelationView:
    """Return what a relation or a plan shows of itself. What cannot be read is a note."""
    try:
        if isinstance(node, nodes.Scan):
            return _registered(node, catalog)
        rows, note, sheet = _rows(node, catalog) if isinstance(node, nodes.Relational) else ([], "", None)
    except SpiralError as error:
        rows, note, sheet = [], str(error), None
    title = (
        "Relation" if isinstance(node, nodes.Relational) else f"Plan of {'batches' if _collated(node) else 'samples'}"
    )
    columns = [ColumnSummary(each.name, semantic_of(each) or str(each.type), (), "", 0) for each in node.schema()]
    return RelationView(title, (), outline(node), columns, rows, note, sheet)


def _collated(node: nodes.Node) -> bool:
    return any(isinstance(each, nodes.Collate) for each in spine(node))


def _registered(node: nodes.Scan, catalog: AnyCatalog) -> RelationView:
    made = report_relation(catalog, node.relation, labels=(), origins=(), along="", samples=_ROWS, pictures=_PICTURES)
    facts = [
        (name, text) for name, text in made.facts() if name in {"rows", "storage shards", "size", "lies in", "kind"}
    ]
    note = "" if made.is_measured else f'catalog.measure("{node.relation}") counts what each column holds'
    return RelationView(node.relation, facts, (), made.columns, made.samples, note, made.sheet)


def _rows(node: nodes.Node, catalog: AnyCatalog) -> tuple[list[dict[str, str]], str, Sheet | None]:
    """The first rows of a plan, which rows they are, and what their references name."""
    scans = [catalog.entry(name) for name in relations_of(node)]
    total = sum(entry.manifest().total for entry in scans)
    by_row = len(scans) == 1 and all(isinstance(each, _BY_ROW) for each in walk(node))
    is_whole = any(isinstance(each, _NO_ROWS_YET) for each in walk(node))
    payload = is_whole and any(map(is_payload, _fields(scans))) and not _are_small(scans)
    if any(isinstance(each, Mix) for each in walk(node)) or (not by_row and (total > ALL_ROWS or payload)):
        return [], f"no rows: this would read {total:,} rows. head(5).to_arrow() does", None
    opened: dict[str, OpenRelation] = {}

    def open_relation(name: str) -> Any:
        if name not in opened:
            opened[name] = OpenRelation(catalog.entry(name))
        return _FirstRows(opened[name], FIRST_ROWS) if by_row and total > FIRST_ROWS else opened[name]

    try:
        schema = node.schema()
        small = [each.name for each in schema if not is_payload(each)]
        media = references(schema)
        names = list(dict.fromkeys([*small, *media]))
        limited = nodes.Limit(node, _PICTURES)
        table = collect(nodes.Project(limited, tuple(names)), open_relation) if names else pa.table({})
        rows = as_texts(table.slice(0, _ROWS).select(small), schema)
        among = f"the first rows among the first {FIRST_ROWS:,} of {total:,}" if by_row and total > FIRST_ROWS else ""
        base = next((each for each in opened.values() if set(media) <= set(each.schema.names)), None)
        sheet = None
        if media and len(table) and base is not None:
            sheet = sheet_of(table, schema, base.base, base.entry.identity)
        return rows, among if len(table) else among or "no rows", sheet
    finally:
        for each in opened.values():
            each.close()


def _are_small(entries: Sequence[Entry]) -> bool:
    """Whether all bytes of relations are few."""
    sizes = np.concatenate([entry.manifest().shard_bytes for entry in entries])
    return bool((sizes != UNKNOWN_BYTES).all() and sizes.sum() <= ALL_BYTES)


def _fields(entries: Iterable[Entry]) -> Iterator[pa.Field]:
    for entry in entries:
        yield from entry.schema


@final
class _FirstRows:
    """The first rows of a relation, to scan and to fetch from."""

    def __init__(self, relation: OpenRelation, most: int) -> None:
        self._relation, self.schema = relation, relation.schema
        self.total = min(most, relation.manifest.total)

    def scan(self, columns: Sequence[str], predicate: Expr | None = None) -> Any:
        read = list(dict.fromkeys([*columns, *(sorted(predicate.columns()) if predicate is not None else ())]))
        table = self._relation.fetch(np.arange(self.total, dtype=np.uint64), read)
        yield from in_memory(table).scan(columns, predicate)

    def fetch(self, ordinals: Any, columns: Sequence[str]) -> pa.Table:
        return self._relation.fetch(ordinals, columns)
