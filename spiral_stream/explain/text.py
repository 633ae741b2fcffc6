"""How EXPLAIN DATA shows facts: as JSON, as text of 132 columns, or as markdown.

A section is a line, a list of lines, a list of rows or a dict; in a dict, rows come last, as tables. A number without a
mark is exact, ``~`` marks an estimate, and ``!`` a measurement of this run. An unknown fact names what would supply it.
In JSON, numbers are numbers: see `figure`.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from io import StringIO
from typing import TYPE_CHECKING, Any, Final, final

from spiral_stream.explain.figure import Figure, Phrase, number, plain

if TYPE_CHECKING:
    from rich.console import Console

SECTIONS: Final = (
    *("header", "plan", "relation", "mix", "sample", "skew", "batch", "materialize", "deliver", "resume", "warnings"),
)
_ROWS: Final = 40  # most rows of a table in text; a mixture may have 1,000 streams


@final
@dataclass(frozen=True, slots=True)
class Explanation:
    """The facts, by section; `str` returns text."""

    facts: Mapping[str, Any]

    def __repr__(self) -> str:
        return str(self)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values, by section.

        A figure is ``{"value", "unit", "mark", "operands", "source"}``; words with figures in them are ``{"text", "figures"}``,
        figures by name; all other facts are plain values.
        """
        found: dict[str, Any] = json.loads(self.to_json())
        return found

    def to_json(self) -> str:
        """Return JSON text."""
        return json.dumps(plain(self.facts), indent=2)

    def to_markdown(self) -> str:
        """Return markdown, for Dagster's metadata."""
        return f"```\n{self}\n```"

    def __str__(self) -> str:
        from rich.console import Console

        out = StringIO()
        console = Console(file=out, width=132, highlight=False, markup=False, no_color=True)
        for section in self.facts:  # in the order of SECTIONS; NETWORK before the warnings where it was asked for
            console.print(section.upper() if section != "header" else "EXPLAIN DATA")
            _print(console, self.facts[section])
        lines = [line.rstrip() for line in out.getvalue().splitlines()]
        return "\n".join(lines)


def _print(console: "Console", value: Any) -> None:
    if isinstance(value, str | Phrase | Figure):
        console.print(f"  {value}", soft_wrap=True)
    elif _is_table(value):
        _print_rows(console, value)
    elif isinstance(value, list):
        for line in value or ["none"]:
            console.print(f"  {line}", soft_wrap=True)
    else:
        _print_pairs(console, value)


def _print_pairs(console: "Console", value: Mapping[str, Any]) -> None:
    from rich.table import Table

    grid = Table(box=None, show_header=False, padding=(0, 2, 0, 2))
    for key, item in value.items():
        if not _is_table(item):
            grid.add_row(key, _text(item))
    if grid.row_count:
        console.print(grid)
    for item in value.values():
        if _is_table(item):
            _print_rows(console, item)


def _is_table(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], Mapping)


def _print_rows(console: "Console", rows: list[Mapping[str, Any]]) -> None:
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 2), header_style="")
    for name in rows[0]:
        right = all(_is_number(row[name]) for row in rows)
        table.add_column(name, justify="right" if right else "left", overflow="fold")
    for row in rows[:_ROWS]:
        table.add_row(*(_text(row[name]) for name in rows[0]))
    console.print(table)
    if len(rows) > _ROWS:
        console.print(f"  {len(rows) - _ROWS:,} more rows are in to_dict()", soft_wrap=True)


def _is_number(value: Any) -> bool:
    return value.bare if isinstance(value, Figure) else isinstance(value, int | float)


def _text(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "-"}[value]
    if isinstance(value, int | float):
        return number(value)
    if isinstance(value, Mapping):
        return ", ".join(f"{k}={_text(v)}" for k, v in value.items())
    if isinstance(value, list):
        return ", ".join(map(_text, value)) or "none"
    return str(value)
