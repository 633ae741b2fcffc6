"""`Sheet`: samples as people look at them: in a terminal, in a notebook, as a picture or a page in a file."""

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from spiral_stream.display import markup
from spiral_stream.display.markup import Html, element
from spiral_stream.display.wording import bars, one_line
from spiral_stream.errors import PlanError, shown
from spiral_stream.looking import media
from spiral_stream.looking.media import SIDE, fitted
from spiral_stream.looking.tokens import Document

if TYPE_CHECKING:
    from PIL import Image
    from rich.console import Console

_WIDE: Final = 640  # of a strip of frames, a waveform or a text
_GAP: Final = 8
_LINE: Final = 14  # pixels of a line of text
_WAVE: Final = 48
_CHARS: Final = 104  # of a line of `_WIDE` pixels
_LINES: Final = 6  # of one field's text
_ACROSS: Final = 4
_CELLS: Final = 32  # columns of a picture in a terminal
_INK: Final = (30, 30, 30)
_GRAY: Final = (120, 120, 120)
_INKS: Final = (
    (31, 91, 160),
    (178, 84, 12),
    (38, 115, 60),
    (140, 50, 120),
    (110, 90, 20),
    (20, 110, 120),
)  # of documents
_TERMINAL_INKS: Final = ("default", "cyan", "yellow", "green")  # of tokens; a terminal's theme makes them legible
_ENDINGS: Final = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".webp": "WEBP"}
_PAGE: Final = ".html"
_TINTS: Final = 5  # of tokens
_FIELDS: Final = 40  # of a sample that are shown, of each kind
_LABEL: Final = 200  # characters
_TEXT: Final = 4_000  # characters of a document
_PICTURES: Final = 16  # of a list

Pixels = NDArray[np.uint8]
Ink = tuple[int, int, int]


class _Paper(NamedTuple):
    """What a sheet is drawn on: white, or nothing, under which any page may lie."""

    color: tuple[int, ...]
    quiet: Ink
    ink: Ink
    of_documents: tuple[Ink, ...]
    of_waves: tuple[int, ...]

    def sheet(self, width: int, height: int, color: tuple[int, ...] = ()) -> "Image.Image":
        from PIL import Image

        return Image.new("RGB" if len(self.color) == _RGB else "RGBA", (width, height), color or self.color)


_RGB: Final = 3  # values of a pixel
_WHITE: Final = _Paper((255, 255, 255), _GRAY, _INK, _INKS, (244, 246, 250))
_CLEAR: Final = _Paper((0, 0, 0, 0), (116, 123, 133), (116, 123, 133), ((116, 123, 133),), (0, 0, 0, 0))


class Strip(NamedTuple):
    """The pictures of a field: one image, the images of a list, or the frames of a clip."""

    name: str
    frames: list[Pixels]
    moves: bool = False


class Sound(NamedTuple):
    """The recording of a field."""

    name: str
    values: NDArray[np.float32]  # [C, N]
    rate: int


@final
@dataclass(slots=True)
class Tile:
    """What is shown of one sample; every entry begins with the field's name."""

    title: str
    batch: int | None = None  # its global number; None for a row of a relation
    strips: list[Strip] = field(default_factory=list)
    sounds: list[Sound] = field(default_factory=list)
    texts: list[tuple[str, list[Document]]] = field(default_factory=list)
    labels: list[tuple[str, str]] = field(default_factory=list)

    def lines(self) -> list[str]:
        """Return the tile as text."""
        out = [self.title]
        for name, frames, _ in self.strips:
            out.append(f"  {name}: {len(frames)}" + (f" x {frames[0].shape[0]}x{frames[0].shape[1]}" if frames else ""))
        out += [f"  {name}: {_heard(wave)}" for name, wave, _ in self.sounds]
        out += [f"  {name}: {' | '.join(map(str, texts))}" for name, texts in self.texts]
        return out + [f"  {name}: {text}" for name, text in self.labels]

    def lines_of_terminal(self) -> Iterator[Any]:
        """Yield the tile as rich prints it."""
        from rich.padding import Padding
        from rich.text import Text

        yield Text(one_line(self.title, _LABEL), style="bold cyan")
        for name, frames, _ in self.strips[:_FIELDS]:
            if len(self.strips) > 1 or len(frames) != 1:
                yield Text(f"{one_line(name)}: {len(frames):,} pictures", style="dim")
            if frames:
                yield _cells(frames[0])
        for name, values, rate in self.sounds[:_FIELDS]:
            yield Text(_envelope(values), style="cyan")
            yield Text(f"{one_line(name)}: {_seconds(values, rate)}")
        for name, documents in self.texts[:_FIELDS]:
            yield Text(one_line(name), style="dim")
            yield from (Padding(_terminal_tokens(each), (0, 0, 0, 2)) for each in documents[:_FIELDS])
        for name, text in self.labels[:_FIELDS]:
            yield Text.assemble((f"{one_line(name)} ", "dim"), one_line(text, _LABEL))

    def markup(self, most: int) -> Html:
        """Return the tile as markup of at most this many bytes."""
        head = element("h5", one_line(self.title, _LABEL))
        kind = "sp-c sp-long" if self.texts else "sp-c sp-heard" if self.sounds else "sp-c"
        return element("div", head, markup.bounded(self._parts(), most - 256), class_=kind)

    def _parts(self) -> Iterator[Html]:
        strips = self.strips[:_FIELDS]
        still = [(strip, each) for strip in strips if not strip.moves for each in strip.frames[:_PICTURES]]
        if still:
            drawn = (
                element("figure", media.picture(each, strip.name), *_caption(strip.name, strips))
                for strip, each in still
            )
            yield element("div", *drawn, class_="sp-r")
        for strip in strips:
            if strip.moves and strip.frames:
                yield element("figure", media.clip(strip.frames, strip.name), *_caption(strip.name, strips))
        for name, values, rate in self.sounds[:_FIELDS]:
            words = f"{one_line(name)}: {_seconds(values, rate)}, {_heard(values)}"
            yield element("figure", media.sound(values, rate, name), element("figcaption", words))
        for name, documents in self.texts[:_FIELDS]:
            yield from _text_parts(name, documents)
        if self.labels:
            yield markup.pairs((one_line(name), one_line(text, _LABEL)) for name, text in self.labels[:_FIELDS])
        if len(self.labels) > _FIELDS:
            yield markup.quiet(f"{len(self.labels) - _FIELDS:,} more fields")


@final
class Sheet:
    """A contact sheet. Print it, show it in a notebook, or `save` it.

    Args:
        tiles: one per sample.
        title: of the sheet.
        faults: what could not be decoded, and why.

    Examples:
        >>> sheet = stream.show(2, path="sheet.html")
        >>> len(sheet.tiles)
        2
    """

    def __init__(self, tiles: list[Tile], title: str, faults: Sequence[str] = ()) -> None:
        self.tiles, self.title, self.faults = tiles, title, tuple(faults)

    def __str__(self) -> str:
        head = [self.title] if self.title else []
        return "\n".join([*head, *(line for tile in self.tiles for line in tile.lines()), *self.faults])

    def __repr__(self) -> str:
        """The text; on a terminal with the pictures."""
        if not sys.stdout.isatty():
            return str(self)
        from rich.console import Console

        console = Console()
        with console.capture() as written:
            console.print(self)
        return written.get()

    def __rich_console__(self, console: "Console", options: Any) -> Iterable[Any]:
        from rich.columns import Columns
        from rich.console import Group
        from rich.constrain import Constrain
        from rich.text import Text

        del options
        widest = None if console.is_terminal else _ACROSS * (_CELLS + 4)  # a pipe has no width to fill
        if self.title:
            yield Text(one_line(self.title, _LABEL), style="bold")
        for is_wide, tiles in groupby(self.tiles, lambda tile: bool(tile.texts)):
            shown = [Group(*tile.lines_of_terminal()) for tile in tiles]
            yield from shown if is_wide else [Constrain(Columns(shown, width=_CELLS + 3), widest)]
        for fault in self.faults[:_FIELDS]:
            yield Text(one_line(fault, _LABEL), style="yellow")

    def _repr_html_(self) -> str:
        return markup.view_of(
            [self.markup(markup.NOTEBOOK_BYTES - markup.PAPER_BYTES)], "Ask for fewer samples: show(2)."
        )

    def markup(self, most: int) -> Html:
        """Return the sheet as markup of at most this many bytes.

        Examples:
            >>> html = stream.show(2).markup(most=100_000)
        """
        faults = [markup.note(one_line(each, _LABEL)) for each in self.faults[:_FIELDS]]
        room = most - 256 - sum(len(each.encode()) for each in faults)
        tiles = (tile.markup(most // 2) for tile in self.tiles)
        shown_ = element("div", markup.bounded(tiles, room, "Ask for fewer samples: show(2)."), class_="sp-g")
        return element("div", element("h4", self.title) if self.title else None, shown_, *faults)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the sheet as a picture or, with the ending ``.html``, as a page that needs no other file; return where it is.

        Raises:
            PlanError: the ending is none of these, or the file cannot be written.

        Examples:
            >>> stream.show(2).save("look.html").name
            'look.html'
        """
        endings = ", ".join([*_ENDINGS, _PAGE])
        if not isinstance(path, str | os.PathLike):
            msg = f"show: path={shown(path)} is no path. Give one that ends with {endings}"
            raise PlanError(msg)
        file = Path(path)
        ending = file.suffix.lower()
        if ending != _PAGE and ending not in _ENDINGS:
            msg = f"show: path={str(file)!r} ends with {file.suffix!r}. Give one that ends with {endings}"
            raise PlanError(msg)
        try:
            if ending == _PAGE:
                file.write_text(
                    markup.page(self.title, self.markup(markup.PAGE_BYTES - markup.PAPER_BYTES)), encoding="utf-8"
                )
            else:
                file.write_bytes(self.encoded(ending))
        except OSError as error:
            msg = f"show: {file}: {error.strerror or error}. Name another file"
            raise PlanError(msg) from error
        return file

    def encoded(self, ending: str) -> bytes:
        """Return the sheet as a picture in a file of this ending, such as ``.jpg``.

        Examples:
            >>> stream.show(2).encoded(".png")[1:4]
            b'PNG'
        """
        file = BytesIO()
        self.image().save(file, _ENDINGS[ending])
        return file.getvalue()

    def image(self, *, transparent: bool = False) -> "Image.Image":
        """Draw the sheet.

        Args:
            transparent: on nothing, with words that are read on light and on dark pages; else on white.

        Examples:
            >>> stream.show(2).image().mode
            'RGB'
            >>> stream.show(2).image(transparent=True).mode
            'RGBA'
        """
        paper_ = _CLEAR if transparent else _WHITE
        tiles = [_drawn(tile, paper_) for tile in self.tiles]
        width = max([each.width for each in tiles], default=SIDE)
        across = max(1, min(_ACROSS, len(tiles)) if width <= 2 * SIDE + _GAP else 1)
        rows = [tiles[at : at + across] for at in range(0, len(tiles), across)]
        heights = [max(each.height for each in row) for row in rows]
        paper = paper_.sheet(across * (width + _GAP) + _GAP, sum(heights) + _GAP * (len(rows) + 1) + _LINE)
        _write(paper, (_GAP, _GAP // 2), self.title, paper_.quiet)
        top = _LINE + _GAP
        for row, height in zip(rows, heights, strict=True):
            for k, each in enumerate(row):
                paper.paste(each, (_GAP + k * (width + _GAP), top))
            top += height + _GAP
        return paper


def _drawn(tile: Tile, paper_: _Paper) -> "Image.Image":
    """Draw one sample: its pictures in a row, below them strips, waves and text."""
    images = [fitted(frames[0], SIDE) for _, frames, _ in tile.strips if len(frames) == 1]
    parts: list[Image.Image] = []
    if images:
        parts.append(_side_by_side(images, paper_))
    parts += [_strip(frames, paper_) for _, frames, _ in tile.strips if len(frames) > 1]
    parts += [_wave(wave, paper_) for _, wave, _ in tile.sounds]
    wide = _WIDE if tile.texts or tile.sounds else max([each.width for each in parts], default=SIDE)
    chars = max(8, wide * _CHARS // _WIDE)
    for name, documents in tile.texts:
        parts.append(_texts(name, [str(each)[:_TEXT] for each in documents], wide, chars, paper_))
    lines = [one_line(tile.title, chars), *(one_line(f"{name}: {text}", chars) for name, text in tile.labels[:_FIELDS])]
    paper = paper_.sheet(wide, sum(each.height + 2 for each in parts) + _LINE * len(lines))
    top = 0
    for part in parts:
        paper.paste(part, (0, top))
        top += part.height + 2
    for k, line in enumerate(lines):
        _write(paper, (0, top + k * _LINE), line, paper_.quiet if k == 0 else paper_.ink)
    return paper


def _side_by_side(images: "list[Image.Image]", paper_: _Paper) -> "Image.Image":
    paper = paper_.sheet(sum(each.width + 2 for each in images) - 2, max(each.height for each in images))
    left = 0
    for each in images:
        paper.paste(each, (left, 0))
        left += each.width + 2
    return paper


def _strip(frames: list[Pixels], paper_: _Paper) -> "Image.Image":
    side = max(24, _WIDE // len(frames) - 2) if len(frames) > _ACROSS else SIDE
    return _side_by_side([fitted(each, side) for each in frames], paper_)


def _wave(wave: NDArray[np.float32], paper_: _Paper) -> "Image.Image":
    """Draw the highest and lowest value of each pixel's stretch, one channel below the other."""
    from PIL import ImageDraw

    channels = np.atleast_2d(wave)
    paper = paper_.sheet(_WIDE, _WAVE * len(channels), paper_.of_waves)
    draw = ImageDraw.Draw(paper)
    for k, values in enumerate(channels):
        middle, most = _WAVE * k + _WAVE // 2, float(np.abs(values).max(initial=1e-6))
        for x, part in enumerate(np.array_split(values, _WIDE)):
            if len(part):
                ends = [middle - float(each) / most * (_WAVE // 2 - 2) for each in (part.max(), part.min())]
                draw.line([(x, ends[0]), (x, ends[1])], fill=_INKS[0])
    return paper


def _texts(name: str, texts: list[str], wide: int, chars: int, paper_: _Paper) -> "Image.Image":
    """Write the documents of a row one after the other, each in its own colour."""
    lines: list[tuple[str, tuple[int, int, int]]] = (
        [(f"{name}: {len(texts)} documents", paper_.quiet)] if len(texts) > 1 else []
    )
    for k, text in enumerate(texts):
        flat = " ".join(text.split())
        wrapped = [flat[at : at + chars] for at in range(0, len(flat), chars)] or [""]
        cut = [*wrapped[: _LINES - 1], wrapped[_LINES - 1][:-1] + "…"] if len(wrapped) > _LINES else wrapped
        lines += [(each, paper_.of_documents[k % len(paper_.of_documents)]) for each in cut]
    paper = paper_.sheet(wide, _LINE * len(lines))
    for k, (line, ink) in enumerate(lines):
        _write(paper, (0, k * _LINE), line, ink)
    return paper


def _write(paper: "Image.Image", at: tuple[int, int], text: str, ink: tuple[int, int, int]) -> None:
    from PIL import ImageDraw, ImageFont

    ImageDraw.Draw(paper).text(at, text, fill=ink, font=ImageFont.load_default(size=11))


def _caption(name: str, strips: list[Strip]) -> list[Html]:
    """The name of a field, where a sample has pictures of several."""
    return [element("figcaption", one_line(name))] if len(strips) > 1 else []


def _text_parts(name: str, documents: list[Document]) -> Iterator[Html]:
    count = f"{len(documents):,} documents, " if len(documents) > 1 else ""
    tokens = sum(len(ids) for each in documents for _, ids in each.pieces) + sum(each.left for each in documents)
    yield element("figcaption", f"{one_line(name)}: {count}{tokens:,} tokens" if tokens else one_line(name))
    for each in documents[:_FIELDS]:
        yield _coloured_tokens(each)
    if len(documents) > _FIELDS:
        yield markup.quiet(f"{len(documents) - _FIELDS:,} more documents")


def _coloured_tokens(document: Document) -> Html:
    """A document whose tokens are told apart by colour; each says its numbers."""
    spans, chars = list[Html](), 0
    for k, (text, ids) in enumerate(document.pieces):
        room = _TEXT - chars
        if room <= 0:
            break
        cut = text if len(text) <= room else text[: room - 1] + "…"
        chars += len(text)
        spans.append(element("span", cut, class_=f"sp-{k % _TINTS}", title=" ".join(map(str, ids))))
    left = sum(len(ids) for _, ids in document.pieces[len(spans) :]) + document.left
    more = element("span", f" … and {left:,} more tokens", class_="sp-quiet") if left else None
    return element("div", *spans, more, class_="sp-p")


def _terminal_tokens(document: Document) -> Any:
    from rich.text import Text

    line, chars = Text(), 0
    for k, (text, _) in enumerate(document.pieces):
        if chars > _TEXT:
            break
        spaced = "".join(each if each.isprintable() else " " for each in text[:_TEXT])
        line.append(spaced, style=_TERMINAL_INKS[k % len(_TERMINAL_INKS)])
        chars += len(text)
    if document.left:
        line.append(f" … and {document.left:,} more tokens", style="dim")
    return line


def _seconds(values: NDArray[np.float32], rate: int) -> str:
    return f"{np.atleast_2d(values).shape[1] / max(1, rate):.2f} s at {rate:,} Hz"


def _heard(wave: NDArray[np.float32]) -> str:
    channels, count = np.atleast_2d(wave).shape
    power = float(np.sqrt(np.square(wave, dtype=np.float64).mean())) if count else 0.0
    peak = float(np.abs(wave).max(initial=0))
    return f"{channels} x {count:,} values, peak {peak:.3f}, root mean square {power:.3f}"


def _envelope(values: NDArray[np.float32]) -> str:
    """The loudness of a recording as a line of blocks."""
    loud = np.abs(np.atleast_2d(values)).max(axis=0)
    edges = np.linspace(0, len(loud), min(_CELLS, max(1, len(loud))) + 1).astype(np.int64)[:-1]
    return bars(np.maximum.reduceat(loud, edges).tolist()) if len(loud) else ""


def _cells(pixels: Pixels) -> Any:
    """A picture of half blocks: two pixels per character."""
    from rich.text import Text

    small = np.asarray(fitted(pixels, _CELLS))
    small = small[: len(small) // 2 * 2] if len(small) > 1 else np.repeat(small, 2, axis=0)
    text = Text()
    for upper, lower in zip(small[::2], small[1::2], strict=True):
        for a, b in zip(upper.tolist(), lower.tolist(), strict=True):
            text.append("▀", style="rgb({},{},{}) on rgb({},{},{})".format(*a, *b))
        text.append("\n")
    text.rstrip()
    return text
