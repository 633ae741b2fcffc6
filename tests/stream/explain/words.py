"""What EXPLAIN's facts say as text, and its figures as numbers."""

from collections.abc import Iterator, Mapping
from typing import Any

from spiral_stream.explain.figure import Figure, Phrase
from spiral_stream.results import Explanation


def in_words(explained: Explanation) -> dict[str, Any]:
    """Facts by section, as text shows them; a number that stands alone is the number."""
    return {section: _in_words(facts) for section, facts in explained.facts.items()}


def _in_words(value: Any) -> Any:
    if isinstance(value, Figure):
        return value.value if value.bare else str(value)
    if isinstance(value, Phrase):
        return str(value)
    if isinstance(value, Mapping):
        return {name: _in_words(each) for name, each in value.items()}
    return [_in_words(each) for each in value] if isinstance(value, list) else value


def figures(facts: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    """Every figure in the JSON of an explanation, with the names that lead to it; rows of tables go by their first cells."""
    if isinstance(facts, dict) and set(facts) == {"value", "unit", "mark", "operands", "source"}:
        yield path, facts
    elif isinstance(facts, dict) and set(facts) == {"text", "figures"}:
        for name, each in facts["figures"].items():
            yield (*path, name), each
    elif isinstance(facts, dict):
        for name, each in facts.items():
            yield from figures(each, (*path, name))
    elif isinstance(facts, list):
        for each in facts:
            yield from figures(each, (*path, _cells(each)))


def _cells(row: Any) -> str:
    """The words in the first two cells of a row."""
    cells = list(row.values())[:2] if isinstance(row, dict) else []
    words = [cell["text"] if isinstance(cell, dict) and "text" in cell else cell for cell in cells]
    return ", ".join(word.strip() for word in words if isinstance(word, str))
