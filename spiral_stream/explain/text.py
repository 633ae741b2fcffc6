"""How EXPLAIN DATA shows facts: as JSON, as text of 132 columns, as markdown, in a terminal's width, or in a notebook.

A section is a line, a list of lines, a list of rows or a dict; in a dict, rows come last, as tables. A number without a
mark is exact, ``~`` marks an estimate, and ``!`` a measurement of this run. An unknown fact names what would supply it.
In JSON, numbers are numbers: see `figure`.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from typing import TYPE_CHECKING, Any, Final, TypeVar, final

from spiral_stream.display import markup
from spiral_stream.display.markup import Html, element
from spiral_stream.display.wording import seen
from spiral_stream.explain.figure import Figure, Phrase, number, plain

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

SECTIONS: Final = (
    *("header", "plan", "relation", "mix", "sample", "skew", "batch", "materialize", "deliver", "resume", "warnings"),
)
T = TypeVar("T")
_ROWS: Final = 40  # most rows of a table in text; a mixture may have 1,000 streams


class Explained(ABC):
    """A value that is shown as an `Explanation`: printed, in a terminal, and in a notebook."""

    __slots__ = ()

    @abstractmethod
    def explanation(self) -> "Explanation":
        """Return the value as sections."""

    def __repr__(self) -> str:
        return str(self.explanation())

    def _repr_html_(self) -> str:
        return self.explanation()._repr_html_()

    def __rich_console__(self, console: "Console", options: Any) -> Iterator[Any]:
        yield from self.explanation().__rich_console__(console, options)


@final
class Listing(Explained, list[T]):
    """A list that is shown as a table.

    Args:
        items: of the list.
        title: of the table.
        rows: what the table shows of items, a row each.
    """

    def __init__(self, items: Iterable[T], title: str, rows: Callable[[Sequence[T]], list[dict[str, Any]]]) -> None:
        super().__init__(items)
        self._title, self._rows = title, rows

    def explanation(self) -> "Explanation":
        return Explanation({self._title: self._rows(self)})


@final
@dataclass(frozen=True, slots=True)
class Explanation:
    """The facts, by section; `str` returns text.

    Examples:
        >>> isinstance(plan.explain(), spiral.results.Explanation)
        True
    """

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
        from rich.text import Text

        out = StringIO()
        console = Console(file=out, width=132, highlight=False, markup=False, no_color=True)
        for section in self.facts:  # in the order of SECTIONS; NETWORK before the warnings where it was asked for
            console.print(_title(section))
            for each in _blocks(self.facts[section]):
                console.print(each, soft_wrap=isinstance(each, Text))
        lines = [line.rstrip() for line in out.getvalue().splitlines()]
        return "\n".join(lines)

    def __rich_console__(self, console: "Console", options: Any) -> "Iterable[Any]":
        from rich.padding import Padding
        from rich.text import Text

        del console, options
        for section in self.facts:
            yield Text(_title(section), style="bold")
            for each in _blocks(self.facts[section]):  # a line that is broken goes on where it began
                yield Padding(Text(each.plain[2:]), (0, 0, 0, 2), expand=False) if isinstance(each, Text) else each

    def _repr_html_(self) -> str:
        return markup.view_of(self.parts(), "str(...) has all of it.")

    def parts(self) -> Iterator[Html]:
        """Yield the sections as markup, each whole by itself."""
        for section in self.facts:
            body = _warnings(self.facts[section]) if section == "warnings" else _section(self.facts[section])
            yield markup.joined([element("h4", _title(section)), body])
        yield markup.quiet("A number without a mark is exact, ~ is an estimate, ! is measured")


def _title(section: str) -> str:
    return section.upper() if section != "header" else "EXPLAIN DATA"


def _warnings(lines: list[Any]) -> Html:
    return markup.joined([markup.note(str(line)) for line in lines] or [element("div", "none")])


def _section(value: Any) -> Html:
    """A section as markup."""
    if isinstance(value, str | Phrase | Figure):
        return element("div", value)
    if _is_table(value):
        return _rows(value)
    if isinstance(value, list):
        lines = [str(line) for line in value] or ["none"]
        return element("pre", "\n".join(lines)) if any(line.startswith(("(", " ")) for line in lines) else _lines(lines)
    plain = [(key, _text(item)) for key, item in value.items() if not _is_table(item)]
    tables = [markup.joined([element("h5", key), _rows(item)]) for key, item in value.items() if _is_table(item)]
    return markup.joined([markup.pairs(plain) if plain else None, *tables])


def _lines(lines: list[str]) -> Html:
    return markup.joined(element("p", line) for line in lines)


def _rows(rows: list[Mapping[str, Any]]) -> Html:
    return markup.table([{name: _text(each) for name, each in row.items()} for row in rows], most=_ROWS)


def _blocks(value: Any) -> "Iterator[Text | Table]":
    """A section as what rich prints, line by line and table by table. Data is text: it is never markup of rich's."""
    from rich.text import Text

    if isinstance(value, str | Phrase | Figure):
        yield Text(f"  {seen(str(value))}")
    elif _is_table(value):
        yield from _row_blocks(value)
    elif isinstance(value, list):
        yield from (Text(f"  {seen(str(line))}") for line in value or ["none"])
    else:
        yield from _pair_blocks(value)


def _pair_blocks(value: Mapping[str, Any]) -> "Iterator[Text | Table]":
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=None, show_header=False, padding=(0, 2, 0, 2))
    for key, item in value.items():
        if not _is_table(item):
            grid.add_row(Text(seen(key)), Text(seen(_text(item))))
    if grid.row_count:
        yield grid
    for item in value.values():
        if _is_table(item):
            yield from _row_blocks(item)


def _is_table(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], Mapping)


def _row_blocks(rows: list[Mapping[str, Any]]) -> "Iterator[Text | Table]":
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 2), header_style="")
    for name in rows[0]:
        right = all(_is_number(row[name]) for row in rows)
        table.add_column(Text(seen(name)), justify="right" if right else "left", overflow="fold")
    for row in rows[:_ROWS]:
        table.add_row(*(Text(seen(_text(row[name]))) for name in rows[0]))
    yield table
    if len(rows) > _ROWS:
        yield Text(f"  {len(rows) - _ROWS:,} more rows are in to_dict()")


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
