"""What a stream, or one of its batches, shows of itself: the plan, the fields, the place, and some samples."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, final

from spiral_stream.display import markup
from spiral_stream.display.markup import Html, element
from spiral_stream.display.wording import one_line, seen
from spiral_stream.looking.contact_sheet import Sheet

if TYPE_CHECKING:
    from rich.console import Console

_LINE: Final = 200  # characters


@final
@dataclass(frozen=True, slots=True)
class StreamView:
    """What is shown.

    Attributes:
        title: what it is.
        outline: of the plan.
        fields: of a batch, as rows of a table.
        facts: length and place, each with its name.
        sheet: of the next samples; None if there is none.
        note: why there is none.
    """

    title: str
    outline: Sequence[str]
    fields: Sequence[Mapping[str, str]]
    facts: Sequence[tuple[str, str]]
    sheet: Sheet | None
    note: str = ""

    def parts(self, sheet_bytes: int) -> Iterator[Html]:
        """Yield what is shown as markup, each part whole by itself."""
        yield element("h4", self.title)
        if self.facts:
            yield markup.pairs(self.facts)
        if self.outline:
            yield element("pre", "\n".join(one_line(line, _LINE) for line in self.outline))
        yield markup.table([{name: one_line(text) for name, text in row.items()} for row in self.fields])
        if self.note:
            yield markup.note(one_line(self.note, _LINE))
        if self.sheet is not None:
            yield self.sheet.markup(sheet_bytes)

    def html(self) -> str:
        """Return what is shown as a notebook shows it."""
        half = (markup.NOTEBOOK_BYTES - markup.PAPER_BYTES) * 3 // 4
        return markup.view_of(self.parts(half), "stream.show(2) shows fewer samples.")

    def __rich_console__(self, console: "Console", options: Any) -> "Iterable[Any]":
        from rich.table import Table
        from rich.text import Text

        del console, options
        yield Text(seen(self.title), style="bold")
        yield from (Text(f"  {one_line(line, _LINE)}", style="dim") for line in self.outline)
        grid = Table(box=None, padding=(0, 2, 0, 2), header_style="dim")
        for name in self.fields[0] if self.fields else ():
            grid.add_column(name)
        for row in self.fields:
            grid.add_row(*(Text(one_line(text)) for text in row.values()))
        if self.fields:
            yield grid
        yield from (Text(f"  {name}: {one_line(text, _LINE)}") for name, text in self.facts)
        if self.note:
            yield Text(one_line(self.note, _LINE), style="yellow")
        if self.sheet is not None:
            yield self.sheet
