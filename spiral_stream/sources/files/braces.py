"""What a brace pattern stands for, as a shell writes it out: ``part-{000..007}.tar``, ``{train,val}/*.jsonl``.

Patterns may have several groups, and groups inside groups. The leftmost group varies slowest. Zeros in front set the
width of a range. What is no group (``{x}``, an open brace) stays as it is written. Nothing is held: a range of 10^12
numbers costs nothing until they are asked for.
"""

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Final

_NUMBERS: Final = re.compile(r"(-?\d+)\.\.(-?\d+)(?:\.\.-?(\d+))?")
_LETTERS: Final = re.compile(r"(?:([a-z])\.\.([a-z])|([A-Z])\.\.([A-Z]))(?:\.\.-?(\d+))?")
_MOST_DIGITS: Final = 18  # of a number in a range


def expanded(pattern: str) -> Iterator[str]:
    """Yield each text that the pattern stands for; the pattern itself if it has no group."""
    start = pattern.find("{")
    while start >= 0:
        commas = _group(pattern, start)
        choices = _choices(pattern, commas) if commas else None
        if choices is not None:
            for choice in choices:
                for rest in expanded(pattern[commas[-1] + 1 :]):
                    yield f"{pattern[:start]}{choice}{rest}"
            return
        start = pattern.find("{", start + 1)
    yield pattern


def _group(pattern: str, start: int) -> list[int]:
    """Places of the opening brace, of the commas between its choices, and of its closing brace; [] if it stays open."""
    depth, marks = 0, [start]
    for place in range(start, len(pattern)):
        letter = pattern[place]
        if letter == "{":
            depth += 1
        elif letter == "," and depth == 1:
            marks.append(place)
        elif letter == "}":
            depth -= 1
            if depth == 0:
                return [*marks, place]
    return []


def _choices(pattern: str, marks: list[int]) -> Iterator[str] | None:
    """The choices of a group, or None if it is neither a list nor a range."""
    texts = [pattern[left + 1 : right] for left, right in pairwise(marks)]
    if len(texts) > 1:
        return (choice for text in texts for choice in expanded(text))
    if found := _NUMBERS.fullmatch(texts[0]):
        first, last, step = found.groups()
        if max(len(first), len(last), len(step or "")) > _MOST_DIGITS:
            return None
        padded = any(text.lstrip("-").startswith("0") and text.lstrip("-") != "0" for text in (first, last))
        width = max(len(first), len(last)) if padded else 0
        return (f"{number:0{width}d}" for number in _steps(int(first), int(last), step))
    if found := _LETTERS.fullmatch(texts[0]):
        small, to_small, large, to_large, step = found.groups()
        return (chr(code) for code in _steps(ord(small or large), ord(to_small or to_large), step))
    return None


def _steps(first: int, last: int, step: str | None) -> range:
    by = int(step or 1) or 1
    return range(first, last + 1, by) if first <= last else range(first, last - 1, -by)
