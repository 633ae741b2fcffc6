"""Facts about relations in the form that Dagster shows: schemas and tables."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import dagster as dg

if TYPE_CHECKING:
    import pyarrow as pa

    import spiral_stream as spiral

ROWS: Final = 20  # a longer table is rendered whole and pushes everything else off the page
COLUMNS: Final = 60  # of a relation that are listed
CELL: Final = 40  # characters: six such columns fit a page
SEMANTIC: Final = b"spiral:semantic"


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
    """Return tables of a relation's columns, of as many cells as a page shows without a scroll bar."""
    rows = [each.cells() for each in report.columns if each.nulls is not None]
    tables = {
        "columns": ("column", "histogram", "nulls", "NaN", "distinct"),
        "values": ("column", "min", "mean", "max"),
        "spread": ("column", "quartiles", "most frequent"),
    }
    return {
        key: table([{name: row[name] for name in names} for row in rows], COLUMNS, cut=False)
        for key, names in tables.items()
    }


def snippet(code: str) -> dg.MarkdownMetadataValue:
    """Return Python code to copy."""
    return dg.MetadataValue.md(f"```python\n{code}\n```")


def opens(catalog: str, code: str) -> dg.MarkdownMetadataValue:
    """Return Python code to copy, which begins with the catalog.

    Args:
        catalog: folder or URI.
        code: what is asked of ``catalog``.
    """
    return snippet(f"import spiral_stream as spiral\n\ncatalog = spiral.connect({catalog!r})\n{code}")


def short(value: Any) -> str | int | float | bool | None:
    """Shorten a value to fit a cell."""
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if value is None or isinstance(value, bool | int):
        return value
    text = str(value)
    return text if len(text) <= CELL else text[: CELL - 1] + "…"
