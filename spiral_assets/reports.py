"""Facts about relations in the form that Dagster shows: schemas, tables and small charts."""

import base64
from collections.abc import Iterator, Mapping, Sequence
from io import BytesIO
from typing import TYPE_CHECKING, Any, Final

import dagster as dg

if TYPE_CHECKING:
    import pyarrow as pa

    import spiral_stream as spiral

ROWS: Final = 20  # a longer table is rendered whole and pushes everything else off the page
COLUMNS: Final = 60  # of a relation that are listed
CELL: Final = 40  # characters: six such columns fit a page
END: Final = 18  # characters for either end of a range
INLINE: Final = 1_000  # characters: shorter markdown is shown without a click
SEMANTIC: Final = b"spiral:semantic"


def column_types(schema: "pa.Schema") -> Iterator[tuple[str, str]]:
    """Yield name and type of each column. The type of a reference is its semantic type."""
    for field in schema:
        semantic = (field.metadata or {}).get(SEMANTIC)
        yield field.name, str(field.type) if semantic is None else semantic.decode()


def column_schema(schema: "pa.Schema", identity: Sequence[str], descriptions: Mapping[str, str]) -> dg.TableSchema:
    """Return a relation's columns with descriptions, and with their roles as tags."""
    columns = []
    for field, (name, kind) in zip(schema, column_types(schema), strict=True):
        metadata: Mapping[bytes, bytes] = field.metadata or {}
        role = "identity" if name in identity else "reference" if SEMANTIC in metadata else None
        constraints = dg.TableColumnConstraints(nullable=field.nullable, unique=[name] == list(identity))
        columns.append(
            dg.TableColumn(
                name,
                kind,
                description=descriptions.get(name),
                constraints=constraints,
                tags={"role": role} if role else {},
            )
        )
    return dg.TableSchema(columns=columns)


def place(source: Any) -> str:
    """Return the location of a source's rows."""
    return str(getattr(source, "uri", None) or getattr(source, "path", ""))


def table(
    rows: Sequence[Mapping[str, Any]], most: int = ROWS, *, cut: bool = True
) -> dg.TableMetadataValue | dg.TextMetadataValue:
    """Return a table, the last row of which says how many are left out, if any are.

    Args:
        rows: with the same names.
        most: rows that are shown.
        cut: whether to shorten values to fit their cells; cells of a `spiral_stream.Report` are.
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


def column_tables(report: "spiral.Report") -> dict[str, Any]:
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


def short(value: Any) -> str | int | float | bool | None:
    """Shorten a value to fit a cell."""
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if value is None or isinstance(value, bool | int):
        return value
    text = str(value)
    return text if len(text) <= CELL else text[: CELL - 1] + "…"


def column_rows(shards: "pa.Table", schema: "pa.Schema") -> list[dict[str, Any]]:
    """Return the statistics of each column over all shards, in four cells: the page has no room for more.

    Args:
        shards: one row per shard and column, from `Catalog.measure`.
        schema: of the relation; rows are in its order.
    """
    types = dict(column_types(schema))
    nulls: dict[str, int | None] = {}
    extremes: dict[str, tuple[str | None, str | None]] = {}
    for row in shards.to_pylist():  # shards x columns, 1 us each; the scan that counted them costs far more
        name = row["column"]
        before = nulls.get(name, 0)
        nulls[name] = None if row["nulls"] is None or before is None else before + row["nulls"]
        low, high = extremes.get(name, (None, None))
        extremes[name] = _extreme(min, low, row["min"], types[name]), _extreme(max, high, row["max"], types[name])
    return [
        {"column": name, "type": types[name], "nulls": nulls[name], "range": _range(*extremes[name], types[name])}
        for name in schema.names
        if name in nulls
    ]


def shard_rows(
    shards: "pa.Table", distances: Mapping[str, float], effective: Mapping[str, float]
) -> list[dict[str, Any]]:
    """Return rows, bytes and label skew of each storage shard, the most skewed first."""
    found: dict[str, dict[str, Any]] = {}
    for row in shards.to_pylist():
        seen = found.setdefault(row["shard"], {"storage shard": row["shard"], "rows": row["rows"], "bytes": 0})
        seen["bytes"] += row["bytes"] or 0
    for name, row in found.items():
        row["bytes"] = f"{row['bytes'] / 1e6:,.1f} MB"
        row["label distance"], row["labels"] = distances.get(name), effective.get(name)
    return sorted(found.values(), key=lambda row: (-(row["label distance"] or 0.0), row["storage shard"]))


def bars(values: Sequence[float], height: int = 24, width: int = 4) -> dg.MarkdownMetadataValue:
    """Return a bar chart of at most 60 bars: a one-bit PNG in markdown, short enough to be shown inline."""
    from PIL import Image, ImageDraw

    shown = list(values[:60])
    top = max(shown, default=0) or 1
    picture = Image.new("1", (max(1, len(shown)) * (width + 1), height), 1)
    draw = ImageDraw.Draw(picture)
    for i, value in enumerate(shown):
        tall = round(value / top * (height - 1))
        draw.rectangle((i * (width + 1), height - 1 - tall, i * (width + 1) + width - 1, height - 1), fill=0)
    file = BytesIO()
    picture.save(file, "PNG", optimize=True)
    encoded = base64.b64encode(file.getvalue()).decode()
    return dg.MetadataValue.md(f"![bars](data:image/png;base64,{encoded})")


def _extreme(choose: Any, one: str | None, other: str | None, kind: str) -> str | None:
    """Return the least or greatest of two values stored as text; numbers are compared as numbers."""
    given = [value for value in (one, other) if value is not None]
    number = kind.startswith(("int", "uint", "float", "double", "decimal", "half"))
    chosen: str | None = choose(given, key=float if number else str) if given else None
    return chosen


def _range(low: str | None, high: str | None, kind: str) -> str | None:
    """Return "least to greatest". Texts are shortened to fit the cell; a number or a moment never is."""
    import spiral_stream as spiral

    if low is None or high is None:
        return None
    if kind.startswith(("float", "double", "half", "decimal")):
        shown = [spiral.written(float(each)) for each in (low, high)]
    else:
        shown = [spiral.written(each, END if kind.endswith("string") else len(each)) for each in (low, high)]
    return shown[0] if low == high else " to ".join(shown)
