"""The samples that stand out of a run, as people look at them: the rows of their relations, with pictures, texts and tokens.

Rows are looked up by number and compared with the identities that the run recorded, so a relation that was registered
again shows nothing wrong. A relation that cannot be read is named, and stops nothing.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spiral_stream.catalog.registry import AnyCatalog
from spiral_stream.catalog.relation.entry import STORAGE_SHARD
from spiral_stream.catalog.relation.reader import OpenRelation
from spiral_stream.display.wording import LONGEST, number, one_line, written
from spiral_stream.errors import SpiralError
from spiral_stream.looking.contact_sheet import Sheet, Tile
from spiral_stream.looking.tokens import Document, document
from spiral_stream.plan.fields.clips import TIMES
from spiral_stream.report.nearest import nearest, rows_with
from spiral_stream.report.samples import is_payload, references, sheet_of
from spiral_stream.runs.losses.table_query import Sources, column_name
from spiral_stream.semantic import is_list, is_text, semantic_of

_TOKENS: Final = 400
_TEXT: Final = 4_000  # characters
_COLUMNS: Final = 8  # labels of a sample


def samples_sheet(
    catalog: AnyCatalog, sources: Sources, found: pa.Table, value: str, title: str, most: int = 24
) -> Sheet:
    """Return a sheet of samples.

    Args:
        catalog: where their relations are registered.
        sources: of the run.
        found: a row per sample: identity columns, ``stream``, ``row``, ``mean``, and ``score`` or ``excess``.
        value: whose mean it is.
        title: of the sheet.
        most: samples that are shown.
    """
    shown = found.slice(0, most)
    tiles = dict[int, Tile]()
    faults = list[str]()
    streams = np.array(shown.column("stream").to_pylist(), object)
    for stream in dict.fromkeys(streams.tolist()):
        at = np.flatnonzero(streams == stream)
        try:
            sheet = _of_relation(catalog, sources.relation(stream), shown.take(pa.array(at)))
        except (SpiralError, OSError) as error:
            faults.append(f"{stream}: {one_line(str(error), 300)}")
            continue
        faults += sheet.faults
        tiles |= dict(zip(at.tolist(), sheet.tiles, strict=True))
    rows = shown.to_pylist()
    for k, tile in tiles.items():
        tile.labels.insert(0, (value, _judged(rows[k])))
    return Sheet([tiles[k] for k in sorted(tiles)], title, faults)


def like_sheet(catalog: AnyCatalog, sources: Sources, found: pa.Table, column: str, most: int = 8) -> Sheet | None:
    """Return a sheet of the rows that are most like the first sample, by the index of a column of vectors.

    Args:
        catalog: where the relation is registered.
        sources: of the run.
        found: as for `samples_sheet`.
        column: whose index is searched, see `Relation.index`.
        most: rows that are shown.

    Raises:
        MissingExtraError: LanceDB is not installed.
        PlanError: the column has no index.
    """
    (first,) = found.slice(0, 1).to_pylist() or (None,)
    if first is None:
        return None
    name = sources.relation(first["stream"])
    identity = catalog.entry(name).identity
    named = tuple(first[column_name(each)] for each in identity)
    rows = rows_with(catalog, name, nearest(name, catalog, [named], column, most))
    like = pa.table({**{column_name(each): rows.column(each) for each in identity}, "row": rows.column("row")})
    sheet = _of_relation(catalog, name, like)
    for tile, distance in zip(sheet.tiles, rows.column("distance").to_pylist(), strict=True):
        tile.labels.insert(0, ("distance", number(distance)))
    title = f"like {one_line(' '.join(map(str, named)))}, by {column}"
    return Sheet(sheet.tiles, title, sheet.faults)


def _judged(row: Mapping[str, Any]) -> str:
    mean = "NaN" if row["mean"] is None else number(row["mean"])
    if row.get("score") is not None:
        return f"{mean}, expected {number(row['expected'])}; score {number(row['score'])}"
    return mean


def _of_relation(catalog: AnyCatalog, name: str, found: pa.Table) -> Sheet:
    """The sheet of rows of one relation."""
    entry = catalog.entry(name)
    with OpenRelation(entry) as relation:
        schema = relation.schema
        hidden = {*entry.identity, STORAGE_SHARD, entry.shard}
        shown = references(schema)
        plain = [field.name for field in schema if not is_payload(field) and field.name not in hidden]
        wanted = [*entry.identity, *plain, *shown, *(each for each in TIMES if each in schema.names)]
        rows = found.column("row").to_numpy().astype(np.uint64)
        table = relation.fetch(np.minimum(rows, max(0, relation.manifest.total - 1)), list(dict.fromkeys(wanted)))
        changed = _differ(found, table, entry.identity) | (rows >= relation.manifest.total)
        sheet = sheet_of(table, schema, relation.base, entry.identity)
    for k, (tile, row) in enumerate(zip(sheet.tiles, table.select(plain).to_pylist(), strict=True)):
        if changed[k]:
            first = found.slice(k, 1).to_pylist()[0]
            tile.strips, tile.sounds, tile.labels = [], [], [("gone", f"{name} has other rows since the run read it")]
            tile.title = " ".join(str(first[c]) for each in entry.identity if (c := column_name(each)) in first)
            continue
        for column, value in row.items():
            if value is not None and semantic_of(schema.field(column)) is None:
                _add(tile, column, value, schema.field(column).type)
        tile.labels = tile.labels[:_COLUMNS]
    return sheet


def _differ(found: pa.Table, table: pa.Table, identity: Sequence[str]) -> Any:
    """Whether rows have other identities than the run recorded: [rows] bool."""
    differ = np.zeros(len(found), np.bool_)
    for name in identity:
        if column_name(name) in found.column_names:
            recorded, here = (each.cast(pa.utf8()) for each in (found.column(column_name(name)), table.column(name)))
            differ |= ~pc.equal(recorded, here).fill_null(False).to_numpy()
    return differ


def _add(tile: Tile, column: str, value: Any, kind: pa.DataType) -> None:
    """Show a value of a row: a long text and tokens as documents, anything else as a label."""
    if is_text(kind) and len(value) > LONGEST:
        tile.texts.append((column, [Document(((value[:_TEXT], ()),))]))
    elif is_list(kind) and pa.types.is_integer(kind.value_type):
        tile.texts.append((column, [document(value[:_TOKENS], None, max(0, len(value) - _TOKENS))]))
    else:
        tile.labels.append((column, written(value)))
