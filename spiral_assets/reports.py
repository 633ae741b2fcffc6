"""Facts of relations as Dagster shows them: schemas, tables, small pictures."""

import base64
from collections.abc import Sequence
from io import BytesIO
from typing import TYPE_CHECKING, Any, Final

import dagster as dg

if TYPE_CHECKING:
    import pyarrow as pa


ROWS: Final = 50  # longer tables are rendered whole and clip the page
INLINE: Final = 1_000  # characters of markdown that the page shows without a click


def column_schema(entry: Any) -> dg.TableSchema:
    """The columns of a relation, with their roles as tags."""
    columns = []
    for field in entry.schema:
        metadata = {key.decode(): value.decode() for key, value in (field.metadata or {}).items()}
        semantic = metadata.get("spiral:semantic")
        tags = {"role": "identity"} if field.name in entry.identity else {}
        if semantic:
            tags = {"role": "reference"}
        columns.append(
            dg.TableColumn(
                field.name,
                semantic or str(field.type),
                description=metadata.get("description"),
                constraints=dg.TableColumnConstraints(
                    nullable=field.nullable, unique=[field.name] == list(entry.identity)
                ),
                tags=tags,
            )
        )
    return dg.TableSchema(columns=columns)


def table(rows: Sequence[dict[str, Any]]) -> dg.TableMetadataValue:
    """Rows as a table, at most `ROWS` of them; values as short text."""
    records = [dg.TableRecord({name: short(value) for name, value in row.items()}) for row in rows[:ROWS]]
    return dg.MetadataValue.table(records)


def short(value: Any) -> str | int | float | bool | None:
    """A value that fits a cell."""
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if value is None or isinstance(value, bool | int):
        return value
    text = str(value)
    return text if len(text) <= 40 else text[:39] + "…"  # noqa: PLR2004  a cell's width


def column_rows(shards: "pa.Table") -> list[dict[str, Any]]:
    """Statistics of each column over all shards: six narrow cells."""
    found: dict[str, dict[str, Any]] = {}
    for row in shards.to_pylist():
        seen = found.setdefault(
            row["column"],
            {"column": row["column"], "rows": 0, "nulls": 0, "min": None, "max": None, "known": row["mark"]},
        )
        seen["rows"] += row["rows"] or 0
        seen["nulls"] += row["nulls"] or 0
        seen["min"] = _extreme(min, seen["min"], row["min"])
        seen["max"] = _extreme(max, seen["max"], row["max"])
    return list(found.values())


def _extreme(choose: Any, one: Any, other: Any) -> Any:
    given = [value for value in (one, other) if value is not None]
    return choose(given) if given else None


def bars(values: Sequence[float], height: int = 24, width: int = 4) -> str:
    """A bar chart as a one-bit PNG in markdown, small enough to be shown inline."""
    from PIL import Image, ImageDraw

    top = max(values, default=0) or 1
    picture = Image.new("1", (max(1, len(values)) * (width + 1), height), 1)
    draw = ImageDraw.Draw(picture)
    for i, value in enumerate(values):
        tall = round(value / top * (height - 1))
        draw.rectangle((i * (width + 1), height - 1 - tall, i * (width + 1) + width - 1, height - 1), fill=0)
    file = BytesIO()
    picture.save(file, "PNG", optimize=True)
    return f"![bars](data:image/png;base64,{base64.b64encode(file.getvalue()).decode()})"


def skew_rows(skew: Any, count: int = 10) -> list[dict[str, Any]]:
    """The shards whose labels differ most from the whole."""
    return [{"storage shard": name, "distance to the whole": distance} for name, distance in skew.worst(count)]
