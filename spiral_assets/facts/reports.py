"""Facts about relations in the form that Dagster shows: schemas and tables."""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import dagster as dg

from spiral_assets.facts.folded import LISTED, ROWS, markdown_table

if TYPE_CHECKING:
    import pyarrow as pa

    import spiral_stream as spiral

COLUMNS: Final = 60  # of a relation that are listed
CELL: Final = 40  # characters: six such columns fit a page
SIZE: Final = "dagster/size_bytes"  # which the page of an asset shows as its storage
SEMANTIC: Final = b"spiral:semantic"
_LINE: Final = 34  # characters of code that a page shows in a window of 1,280 pixels
_SAMPLES: Final = 3  # rows beside each other
_CALL: Final = re.compile(r"(.*\()(.+)\)")


def column_types(schema: "pa.Schema") -> Iterator[tuple[str, str]]:
    """Yield name and type of each column. The type of a reference is its semantic type."""
    for field in schema:
        semantic = (field.metadata or {}).get(SEMANTIC)
        yield field.name, str(field.type) if semantic is None else semantic.decode()


def table(
    rows: Sequence[Mapping[str, Any]], most: int = ROWS, *, cut: bool = True
) -> dg.TableMetadataValue | dg.TextMetadataValue:
    """Return a table, the last row of which says how many are left out, if any are.

    Args:
        rows: with the same names.
        most: rows that are shown.
        cut: whether to shorten values to fit their cells; cells of a `spiral_stream.report.Report` are.
    """
    if not rows:
        return dg.MetadataValue.text("none")
    records = [
        dg.TableRecord({name: short(value) if cut else value for name, value in row.items()}) for row in rows[:most]
    ]
    if len(rows) > most:
        first, *others = rows[0]
        left = f"… and {len(rows) - most + 1:,} more"
        records[-1] = dg.TableRecord({first: left, **dict.fromkeys(others)})
    return dg.MetadataValue.table(records)


def column_tables(report: "spiral.report.Report") -> dict[str, Any]:
    """Return tables of a relation's columns in Markdown, of as many cells as a folded page shows without a scroll bar."""
    rows = [each.cells() for each in report.columns if each.nulls is not None]
    tables = {
        "columns": ("column", "histogram", "nulls", "NaN", "distinct"),
        "values": ("column", "min", "mean", "max"),
        "spread": ("column", "quartiles", "most frequent"),
    }
    return {
        key: listed([{name: row[name] for name in names} for row in rows], COLUMNS) for key, names in tables.items()
    }


def listed(rows: Sequence[Mapping[str, Any]], most: int = LISTED) -> dg.MarkdownMetadataValue:
    """Return a table for a folded page.

    Args:
        rows: with the same names.
        most: rows that are shown.
    """
    return dg.MetadataValue.md(markdown_table(rows, most))


def sample_table(samples: Sequence[Mapping[str, Any]]) -> dg.MarkdownMetadataValue:
    """Return sample rows as a table for a folded page: a line per column, so that a wide relation fits too.

    Args:
        samples: rows as texts, of the same columns.
    """
    few = samples[:_SAMPLES]
    names = list(few[0]) if few else []
    return listed(
        [{"column": name, **{f"row {k + 1}": row[name] for k, row in enumerate(few)}} for name in names], len(names)
    )


def snippet(code: str) -> dg.MarkdownMetadataValue:
    """Return Python code to copy, in lines that a page has room for where that is possible."""
    return dg.MetadataValue.md(f"```python\n{chr(10).join(map(_short_line, code.splitlines()))}\n```")


def _short_line(line: str) -> str:
    """Write the arguments of a long call in a line of their own."""
    found = _CALL.fullmatch(line)
    return line if found is None or len(line) <= _LINE else f"{found[1]}\n    {found[2]}\n)"


def opens(catalog: str, code: str) -> dg.MarkdownMetadataValue:
    """Return Python code to copy, which begins with the catalog.

    Args:
        catalog: folder or URI.
        code: what is asked of ``catalog``.
    """
    return snippet(f"import spiral_stream as spiral\n\ncatalog = spiral.connect({catalog!r})\n{code}")


def size_of(path: str | Path) -> dict[str, int]:
    """Return the bytes of a file or a folder under Dagster's key; nothing for a place that this machine has not.

    Args:
        path: of a file or folder, or a URI.
    """
    below = [f"{folder}/{name}" for folder, _, names in os.walk(path) for name in names]
    try:
        sizes: list[int] = [os.stat(each).st_size for each in below or [str(path)]]  # noqa: PTH116  paths of os.walk
        return {SIZE: sum(sizes)}
    except OSError:  # a URI, or a file that was removed just now
        return {}


def short(value: Any) -> str | int | float | bool | None:
    """Shorten a value to fit a cell."""
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if value is None or isinstance(value, bool | int):
        return value
    text = str(value)
    return text if len(text) <= CELL else text[: CELL - 1] + "…"
