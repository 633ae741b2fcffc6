"""A figure of EXPLAIN DATA: a number, its unit, how reliable it is, its base, and where it comes from.

Facts are words and figures. A `Figure` stands alone; a `Phrase` puts several into words. Text shows a figure as people read
it, with ``~`` before an estimate and ``!`` before a measurement; JSON has the number itself (`plain`):

    {"value": 0.423, "unit": "ratio", "mark": "estimated", "operands": [25398, 60000], "source": "the first batches"}

A phrase is ``{"text": ..., "figures": {name: figure}}`` there.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, Literal, final

import numpy as np

Mark = Literal["exact", "estimated", "measured"]
Number = int | float
RATIO: Final = "ratio"
_SIGNS: Final[Mapping[Mark, str]] = {"exact": "", "estimated": "~", "measured": "! "}
_SMALL: Final = 1e4  # from here on, 4 digits need an exponent


@final
@dataclass(frozen=True, slots=True)
class Figure:
    """One number of EXPLAIN DATA.

    Attributes:
        value: the number; a ratio is no percentage.
        unit: what it counts (``"rows"``, ``"bytes"``), or ``"ratio"``.
        mark: ``"exact"``, ``"estimated"`` or ``"measured"``.
        operands: of a ratio: part and whole.
        source: what says so; "" for the plan and the selection alone.
        form: how text shows the value, as Python formats numbers; "" as people read them.
    """

    value: Number
    unit: str
    mark: Mark = "exact"
    operands: tuple[Number, ...] = ()
    source: str = ""
    form: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "value", _plain_number(self.value))
        object.__setattr__(self, "operands", tuple(map(_plain_number, self.operands)))

    @property
    def sign(self) -> str:
        """What stands before the number in text."""
        return _SIGNS[self.mark]

    @property
    def bare(self) -> bool:
        """Whether text shows the number alone."""
        return self.mark == "exact" and not self.form and not self.operands

    def __str__(self) -> str:
        return f"{self:m}"

    def __format__(self, form: str) -> str:
        """``m`` shows the mark too; what follows is a form of Python's."""
        sign, form = (self.sign if form.startswith("m") else ""), form.removeprefix("m") or self.form
        if form:
            shown = format(self.value, form)
        else:
            shown = f"{self.value:.1%}" if self.unit == RATIO and self.operands else number(self.value)
        parts = f" ({'/'.join(f'{each:,}' for each in self.operands)})" if self.operands else ""
        return f"{sign}{shown}{parts}"

    def to_json(self) -> dict[str, Any]:
        """Return the figure as JSON values."""
        return {
            "value": self.value,
            "unit": self.unit,
            "mark": self.mark,
            "operands": list(self.operands),
            "source": self.source,
        }


@final
@dataclass(frozen=True, slots=True)
class Phrase:
    """Words with figures in them."""

    text: str
    figures: Mapping[str, Figure]

    def __str__(self) -> str:
        return self.text

    def to_json(self) -> dict[str, Any]:
        """Return text and figures as JSON values."""
        return {"text": self.text, "figures": {name: each.to_json() for name, each in self.figures.items()}}


def phrase(template: str, **figures: Figure) -> Phrase:
    """Put figures into words.

    Args:
        template: for `str.format`: ``{rows}`` shows a figure, ``{rows:m}`` with its mark, ``{sign}`` is the mark of all.
        **figures: by name; what the template does not show is in JSON alone.
    """
    return Phrase(template.format(sign=sign_of(figures.values()), **figures), figures)


def joined(parts: Iterable["Phrase | str"], between: str) -> "Phrase | str":
    """Return several lines as one. Figures of the same name keep the first one's place."""
    parts = list(parts)
    figures: dict[str, Figure] = {}
    for part in parts:
        figures |= {name: each for name, each in getattr(part, "figures", {}).items() if name not in figures}
    text = between.join(map(str, parts))
    return Phrase(text, figures) if figures else text


def sign_of(figures: Iterable[Figure]) -> str:
    """Return the mark of several figures: that of the one to trust least."""
    marks = {each.mark for each in figures}
    return next((_SIGNS[mark] for mark in ("measured", "estimated", "exact") if mark in marks), "")


def marked(exact: bool) -> Mark:
    """Return the mark of what is counted, or else estimated."""
    return "exact" if exact else "estimated"


@final
@dataclass(frozen=True, slots=True)
class FigureSource:
    """What says figures, and how reliable they are: makes them.

    Attributes:
        name: of the source; "" for the plan and the selection alone.
        mark: of its figures.
    """

    name: str
    mark: Mark = "exact"

    def __call__(self, value: Number, unit: str, form: str = "") -> Figure:
        """Return a figure."""
        return Figure(value, unit, self.mark, (), self.name, form)

    def ratio(self, part: Number, total: Number, form: str = "") -> Figure:
        """Return a ratio with its operands; 0 of nothing."""
        return ratio(part, total, self.mark, self.name, form)

    def phrase(self, template: str, unit: str = "", /, **values: Number | Figure) -> Phrase:
        """Put numbers into words.

        Args:
            template: as for the function `phrase`; a form of Python's may follow a name, as in ``{median:,.0f}``.
            unit: of all numbers; "" takes the name of each.
            **values: by name; a figure is of a source of its own.
        """
        figures = {
            name: each if isinstance(each, Figure) else self(each, unit or name) for name, each in values.items()
        }
        return phrase(template, **figures)

    def spread(self, template: str, unit: str, values: Any, /, **more: Figure) -> Phrase:
        """Put the least, mean, median and largest of some numbers into words, as far as the template names them."""
        found = {name: of(values) for name, of in _SUMMARIES.items() if f"{{{name}" in template}
        return self.phrase(template, unit, **found, **more)


_SUMMARIES: Final[Mapping[str, Callable[[Any], Any]]] = MappingProxyType(
    {"min": np.min, "mean": np.mean, "median": np.median, "max": np.max}
)
EXACT: Final = FigureSource("")  # what follows from the plan and the selection alone
ABOUT: Final = FigureSource("", "estimated")
METRICS: Final = FigureSource("metrics()", "measured")  # what a running stream measured


def ratio(part: Number, total: Number, mark: Mark = "exact", source: str = "", form: str = "") -> Figure:
    """Return a ratio with its operands; 0 of nothing."""
    return Figure(part / total if total else 0.0, RATIO, mark, (part, total), source, form)


def _plain_number(value: Any) -> Number:
    """A number of NumPy's as one of Python's, which JSON can hold."""
    found: Number = value.item() if hasattr(value, "item") else value
    return found


def number(value: Number) -> str:
    """Return a number as people read it."""
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.4g}" if abs(value) < _SMALL else f"{value:,.0f}"


def plain(value: Any) -> Any:
    """Return facts as JSON values."""
    if isinstance(value, Figure | Phrase):
        return value.to_json()
    if isinstance(value, Mapping):
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return value
