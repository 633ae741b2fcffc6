"""Write values for people: four digits of a number, a whole moment, one line of a text. The only room that formats."""

import math
import re
from collections.abc import Mapping, Sequence
from datetime import date, datetime, time
from typing import Any, Final

import pyarrow as pa

from spiral_stream.arguments import door
from spiral_stream.errors import PlanError, shown

LONGEST: Final = 60  # characters of a text
_BARS: Final = "▁▂▃▄▅▆▇█"
_UNITS: Final = ("bytes", "kB", "MB", "GB", "TB", "PB")
_STEP: Final = 1000.0  # from one unit to the next
_WHOLE: Final = 1e9  # a float below it is written without an exponent
_DIGITS: Final = 1e4  # a float of as many shows no fraction
_SMALL: Final = 1e-4  # a share below it is not told from others as small
_FRACTION: Final = re.compile(r"(:\d\d)\.(\d*?)0*(?=\D|$)")


@door(PlanError)
def written(value: Any, most: int = LONGEST) -> str:
    """Write any value on one line; nothing but a text or a list of values is shortened.

    Examples:
        >>> spiral.report.written({"labels": [0, 1, 2]})
        'labels: [0, 1, 2]'
    """
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int | float):
        return number(value) if isinstance(value, float) else f"{value:,}"
    if isinstance(value, datetime | date | time):
        return moment(str(value))
    if isinstance(value, bytes | bytearray | memoryview):
        return size(len(value))
    if isinstance(value, Mapping):
        return one_line(", ".join(f"{name}: {written(each, most)}" for name, each in value.items()), most)
    try:
        text = str(value)
    except Exception:  # noqa: BLE001  a class of the user's may fail to describe itself
        text = shown(value)
    return one_line(text, most)


def number(value: float) -> str:
    """Write a float with four digits; an exponent is never cut off."""
    if not math.isfinite(value):
        return {math.inf: "∞", -math.inf: "-∞"}.get(value, "NaN")
    if _DIGITS <= abs(value) < _WHOLE:
        return f"{value:,.0f}"
    return f"{value:,.4g}"


def counted(text: str | None, kind: pa.DataType, most: int = LONGEST) -> str:
    """Write a value that statistics keep as text.

    Args:
        text: as Arrow writes the value; None where there is none.
        kind: its type.
        most: characters of a text.
    """
    if text is None:
        return ""
    if pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return number(float(text))
    if pa.types.is_integer(kind):
        return f"{int(text):,}"
    return moment(text) if pa.types.is_temporal(kind) else one_line(text, most)


def moment(text: str, *, whole: bool = False) -> str:
    """Write a moment without the zeros that end its fraction of a second; ``whole`` leaves out the fraction."""
    return _FRACTION.sub(lambda found: found[1] + (f".{found[2]}" if found[2] and not whole else ""), text)


def one_line(text: str, most: int = LONGEST) -> str:
    """Write a text on one line; where it is cut, an ellipsis says so."""
    line = " ".join(text[: 4 * most].split()) if len(text) > most or not text.isprintable() else text
    line = "".join(each if each.isprintable() else "�" for each in line)
    return line if len(line) <= most and len(text) <= 4 * most else line[: most - 1] + "…"


def seen(text: str) -> str:
    """Write a text so that a terminal prints it and obeys none of it: lines stay, control characters become a sign."""
    return text if text.isprintable() else "".join(c if c.isprintable() or c == "\n" else "�" for c in text)


def size(count: int) -> str:
    """Write a number of bytes."""
    value, unit = float(count), 0
    while round(value) >= _STEP and unit < len(_UNITS) - 1:
        value, unit = value / _STEP, unit + 1
    return f"{count} bytes" if not unit else f"{value:.3g} {_UNITS[unit]}"


def share(part: float, total: float) -> str:
    """Write a part of a whole in percent. Little is not written as nothing, nor nearly all as all."""
    if not total or not part:
        return "0 %"
    found = part / total
    if found < _SMALL:
        return "<0.01 %"
    if 1 > found > 1 - _SMALL:
        return ">99.99 %"
    return f"{100 * found:.3g} %"


def bars(counts: Sequence[float]) -> str:
    """Write a histogram as one line of blocks. A bin that holds anything is not drawn empty."""
    top = max(counts, default=0)
    if not top:
        return ""
    return "".join(_BARS[math.ceil(count / top * len(_BARS)) - 1] if count > 0 else " " for count in counts)
