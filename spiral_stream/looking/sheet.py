"""`Sheet`: samples as people look at them, drawn by Pillow: in a terminal, in a notebook, in a file."""

import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from html import escape
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, final

import numpy as np
from numpy.typing import NDArray

from spiral_stream.errors import PlanError, shown

if TYPE_CHECKING:
    from PIL import Image
    from rich.console import Console

SIDE: Final = 160  # pixels of a picture, at most
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
_ENDINGS: Final = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".webp": "WEBP"}

Pixels = NDArray[np.uint8]


@final
@dataclass(slots=True)
class Tile:
    """What is shown of one sample; every entry begins with the field's name."""

    title: str
    strips: list[tuple[str, list[Pixels]]] = field(default_factory=list)  # an image is a strip of one frame
    sounds: list[tuple[str, NDArray[np.float32]]] = field(default_factory=list)  # [C, N]
    texts: list[tuple[str, list[str]]] = field(default_factory=list)  # documents
    labels: list[tuple[str, str]] = field(default_factory=list)

    def lines(self) -> list[str]:
        """Return the tile as text."""
        out = [self.title]
        out += [f"  {name}: {len(frames)} x {frames[0].shape[0]}x{frames[0].shape[1]}" for name, frames in self.strips]
        out += [f"  {name}: {_heard(wave)}" for name, wave in self.sounds]
        out += [f"  {name}: {' | '.join(texts)}" for name, texts in self.texts]
        return out + [f"  {name}: {text}" for name, text in self.labels]


@final
class Sheet:
    """A contact sheet. Print it, show it in a notebook, or `save` it.

    Args:
        tiles: one per sample.
        title: of the sheet.
    """

    def __init__(self, tiles: list[Tile], title: str) -> None:
        self.tiles, self.title = tiles, title

    def __str__(self) -> str:
        return "\n".join([self.title, *(line for tile in self.tiles for line in tile.lines())])

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
        from rich.text import Text

        del console, options
        yield Text(self.title, style="bold")
        for tile in self.tiles:
            yield Text(tile.title, style="bold cyan")
            for name, frames in tile.strips:
                yield Text(f"  {name}")
                yield _cells(frames[0])
            for name, wave in tile.sounds:
                yield Text(f"  {name}: {_heard(wave)}")
            for name, texts in tile.texts:
                line = Text(f"  {name}: ")
                for k, each in enumerate(texts):
                    line.append(each + " ", style="rgb({},{},{})".format(*_INKS[k % len(_INKS)]))
                yield line
            for name, text in tile.labels:
                yield Text(f"  {name}: {text}")

    def _repr_png_(self) -> bytes:
        return self._encoded("PNG")

    def _repr_html_(self) -> str:
        from base64 import b64encode

        data = b64encode(self._encoded("PNG")).decode()
        return f'<img alt="{escape(self.title)}" src="data:image/png;base64,{data}">'

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the sheet as a picture, and return where it is.

        Raises:
            PlanError: the ending is none of a picture, or the file cannot be written.
        """
        if not isinstance(path, str | os.PathLike):
            msg = f"show: path={shown(path)} is no path. Give one that ends with {', '.join(_ENDINGS)}"
            raise PlanError(msg)
        file = Path(path)
        form = _ENDINGS.get(file.suffix.lower())
        if form is None:
            msg = f"show: path={str(file)!r} ends with {file.suffix!r}. Give one that ends with {', '.join(_ENDINGS)}"
            raise PlanError(msg)
        try:
            file.write_bytes(self._encoded(form))
        except OSError as error:
            msg = f"show: {file}: {error.strerror or error}. Name another file"
            raise PlanError(msg) from error
        return file

    def _encoded(self, form: str) -> bytes:
        file = BytesIO()
        self.image().save(file, form)
        return file.getvalue()

    def image(self) -> "Image.Image":
        """Draw the sheet."""
        from PIL import Image

        tiles = [_drawn(tile) for tile in self.tiles]
        width = max([each.width for each in tiles], default=SIDE)
        across = max(1, min(_ACROSS, len(tiles)) if width <= 2 * SIDE + _GAP else 1)
        rows = [tiles[at : at + across] for at in range(0, len(tiles), across)]
        heights = [max(each.height for each in row) for row in rows]
        paper = Image.new(
            "RGB", (across * (width + _GAP) + _GAP, sum(heights) + _GAP * (len(rows) + 1) + _LINE), "white"
        )
        _write(paper, (_GAP, _GAP // 2), self.title, _GRAY)
        top = _LINE + _GAP
        for row, height in zip(rows, heights, strict=True):
            for k, each in enumerate(row):
                paper.paste(each, (_GAP + k * (width + _GAP), top))
            top += height + _GAP
        return paper


def _drawn(tile: Tile) -> "Image.Image":
    """Draw one sample: its pictures in a row, below them strips, waves and text."""
    from PIL import Image

    images = [_picture(frames[0]) for _, frames in tile.strips if len(frames) == 1]
    parts: list[Image.Image] = []
    if images:
        parts.append(_beside(images))
    parts += [_strip(frames) for _, frames in tile.strips if len(frames) > 1]
    parts += [_wave(wave) for _, wave in tile.sounds]
    wide = _WIDE if tile.texts or tile.sounds else max([each.width for each in parts], default=SIDE)
    chars = max(8, wide * _CHARS // _WIDE)
    for name, texts in tile.texts:
        parts.append(_texts(name, texts, wide, chars))
    lines = [_cut(tile.title, chars), *(_cut(f"{name}: {text}", chars) for name, text in tile.labels)]
    paper = Image.new("RGB", (wide, sum(each.height + 2 for each in parts) + _LINE * len(lines)), "white")
    top = 0
    for part in parts:
        paper.paste(part, (0, top))
        top += part.height + 2
    for k, line in enumerate(lines):
        _write(paper, (0, top + k * _LINE), line, _GRAY if k == 0 else _INK)
    return paper


def _picture(pixels: Pixels, side: int = SIDE) -> "Image.Image":
    from PIL import Image

    found = Image.fromarray(np.ascontiguousarray(pixels))
    scale = side / max(found.size)
    size = max(1, round(found.width * scale)), max(1, round(found.height * scale))
    return found.resize(size, Image.Resampling.NEAREST if scale > 1 else Image.Resampling.BILINEAR)


def _beside(images: "list[Image.Image]") -> "Image.Image":
    from PIL import Image

    paper = Image.new("RGB", (sum(each.width + 2 for each in images) - 2, max(each.height for each in images)), "white")
    left = 0
    for each in images:
        paper.paste(each, (left, 0))
        left += each.width + 2
    return paper


def _strip(frames: list[Pixels]) -> "Image.Image":
    return _beside(
        [_picture(each, max(24, _WIDE // len(frames) - 2) if len(frames) > _ACROSS else SIDE) for each in frames]
    )


def _wave(wave: NDArray[np.float32]) -> "Image.Image":
    """Draw the highest and lowest value of each pixel's stretch, one channel below the other."""
    from PIL import Image, ImageDraw

    channels = np.atleast_2d(wave)
    paper = Image.new("RGB", (_WIDE, _WAVE * len(channels)), (244, 246, 250))
    draw = ImageDraw.Draw(paper)
    for k, values in enumerate(channels):
        middle, most = _WAVE * k + _WAVE // 2, float(np.abs(values).max(initial=1e-6))
        for x, part in enumerate(np.array_split(values, _WIDE)):
            if len(part):
                ends = [middle - float(each) / most * (_WAVE // 2 - 2) for each in (part.max(), part.min())]
                draw.line([(x, ends[0]), (x, ends[1])], fill=_INKS[0])
    return paper


def _texts(name: str, texts: list[str], wide: int, chars: int) -> "Image.Image":
    """Write the documents of a row one after the other, each in its own colour."""
    from PIL import Image

    lines: list[tuple[str, tuple[int, int, int]]] = (
        [(f"{name}: {len(texts)} documents", _GRAY)] if len(texts) > 1 else []
    )
    for k, text in enumerate(texts):
        flat = " ".join(text.split())
        wrapped = [flat[at : at + chars] for at in range(0, len(flat), chars)] or [""]
        cut = [*wrapped[: _LINES - 1], wrapped[_LINES - 1][:-1] + "…"] if len(wrapped) > _LINES else wrapped
        lines += [(each, _INKS[k % len(_INKS)]) for each in cut]
    paper = Image.new("RGB", (wide, _LINE * len(lines)), "white")
    for k, (line, ink) in enumerate(lines):
        _write(paper, (0, k * _LINE), line, ink)
    return paper


def _write(paper: "Image.Image", at: tuple[int, int], text: str, ink: tuple[int, int, int]) -> None:
    from PIL import ImageDraw, ImageFont

    ImageDraw.Draw(paper).text(at, text, fill=ink, font=ImageFont.load_default(size=11))


def _cut(text: str, chars: int) -> str:
    line = " ".join(text.split())
    return line if len(line) <= chars else line[: chars - 1] + "…"


def _heard(wave: NDArray[np.float32]) -> str:
    channels, count = np.atleast_2d(wave).shape
    power = float(np.sqrt(np.square(wave, dtype=np.float64).mean())) if count else 0.0
    peak = float(np.abs(wave).max(initial=0))
    return f"{channels} x {count:,} values, peak {peak:.3f}, root mean square {power:.3f}"


def _cells(pixels: Pixels) -> Any:
    """A picture of half blocks: two pixels per character."""
    from rich.text import Text

    small = np.asarray(_picture(pixels, _CELLS))
    small = small[: len(small) // 2 * 2] if len(small) > 1 else np.repeat(small, 2, axis=0)
    text = Text()
    for upper, lower in zip(small[::2], small[1::2], strict=True):
        text.append("  ")
        for a, b in zip(upper.tolist(), lower.tolist(), strict=True):
            text.append("▀", style="rgb({},{},{}) on rgb({},{},{})".format(*a, *b))
        text.append("\n")
    return text
