"""Fold what an asset's page has no room for into one Markdown page, which a button opens.

A window of 1,280 pixels leaves 264 of them for a value, and whatever is wider pushes all values out of sight. So the page
shows at most `MOST` entries that fit, in the order in which they come, and one more: `DETAILS`, a Markdown page of the rest.
Dagster shows Markdown of 1,000 characters and more in a dialog, which is 980 pixels wide; a shorter page is padded, so that it
is opened too.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any, Final

import dagster as dg

MOST: Final = 12  # entries of a page, the folded ones among them
ROWS: Final = 12  # of a table on the page
LISTED: Final = 60  # rows of a table in the folded page
DETAILS: Final = "details"
FACTS: Final = "facts"  # heading of the words and numbers of a folded page
WIDTH: Final = 264  # pixels of a value in a window of 1,280
OPENED: Final = 1_000  # characters of Markdown that Dagster opens in a dialog
ELSEWHERE: Final = (
    "dagster/row_count",
    "dagster/uri",
    "dagster/table_name",
    "dagster/column_schema",
    "dagster/column_lineage",
)  # which the page shows in places of their own
_NAME: Final = 24  # characters of a name; a longer one narrows all values
_DAGSTERS: Final = "dagster/"  # names that other tools look for: they stay, however long
_CHARACTER: Final = 8.4  # pixels, of the page's font
_PADDING: Final = 15  # pixels of a cell
_MARKS: Final = re.compile(r"([\\`*_\[\]<>|~#])")  # what Markdown would take for its own
_ESCAPED: Final = re.compile(r"\\([\\`*_\[\]<>|~#])")
_TEXTS: Final = (dg.IntMetadataValue, dg.FloatMetadataValue, dg.BoolMetadataValue, dg.TextMetadataValue)

Metadata = Mapping[str, Any]


def folded(shown: Metadata, details: Metadata | None = None) -> dict[str, Any]:
    """Return at most `MOST` entries that fit a page, one of which is a page of the others.

    Args:
        shown: entries in the order of their use; what does not fit is folded.
        details: entries that are folded in any case.
    """
    given = dict(shown)
    before = given.pop(DETAILS, None)
    values = dict(dg.AssetMaterialization("page", metadata=given).metadata)
    elsewhere = {name: given[name] for name in values if name in ELSEWHERE}
    rows = {name: value for name, value in values.items() if name not in ELSEWHERE}
    fit = [name for name, value in rows.items() if (len(name) <= _NAME or name.startswith(_DAGSTERS)) and fits(value)]
    has_room = before is None and not details and len(fit) == len(rows) <= MOST
    inline = fit if has_room else fit[: MOST - 1]
    found = {**elsewhere, **{name: given[name] for name in inline}}
    if has_room:
        return found
    rest = {name: value for name, value in rows.items() if name not in inline}
    more = dict(dg.AssetMaterialization("page", metadata=dict(details or {})).metadata)
    text = "" if before is None else f"{before.value if isinstance(before, dg.MetadataValue) else before}".rstrip()
    page = "\n\n".join([*([text] if text else []), *_sections({**more, **rest})])
    found[DETAILS] = dg.MetadataValue.md(page.ljust(OPENED, "\n"))
    return found


def fitted(result: Any) -> Any:
    """Return a result whose metadata fit the asset's page; what is no result stays as it is.

    Args:
        result: of a step.
    """
    if not isinstance(result, dg.MaterializeResult) or not result.metadata:
        return result
    return result._replace(metadata=folded(result.metadata))


def fits(value: Any) -> bool:
    """Whether a value fits the column of values in a window of 1,280 pixels.

    Args:
        value: of Dagster's metadata.
    """
    if isinstance(value, dg.JsonMetadataValue):  # a dictionary, in which nobody reads
        return False
    if isinstance(value, dg.TableMetadataValue):
        return len(value.records) <= ROWS and _width(value) <= WIDTH
    if isinstance(value, dg.MarkdownMetadataValue | dg.DagsterAssetMetadataValue):
        return True
    return max(map(len, str(value.value).split()), default=0) * _CHARACTER <= WIDTH + _PADDING  # 32 digits fit


def markdown_table(rows: Sequence[Mapping[str, Any]], most: int = LISTED) -> str:
    """Return a table in Markdown, the last line of which says how many rows are left out, if any are.

    Args:
        rows: with the same names.
        most: rows that are shown.
    """
    if not rows:
        return "none"
    names = list(rows[0])
    lines = [
        _line(names),
        _line(["---"] * len(names)),
        *(_line(row.get(name) for name in names) for row in rows[:most]),
    ]
    left = f"\n\n… and {len(rows) - most:,} more" if len(rows) > most else ""
    return "\n".join(lines) + left


def table_in(page: str, section: str) -> list[dict[str, str]]:
    """Return the rows of the first table of a section of a folded page; none where there is no such table.

    Args:
        page: from `folded`.
        section: its heading.
    """
    _, _, text = f"\n{page}".partition(f"\n## {_escaped(section)}\n")
    of_section = text.partition("\n## ")[0].strip().splitlines()
    lines = list(takewhile(lambda line: line.startswith("| "), of_section))
    if len(lines) < 2:  # noqa: PLR2004  a heading and its rule
        return []
    names, _, *rows = [[_unescaped(cell) for cell in line[2:-2].split(" | ")] for line in lines]
    return [dict(zip(names, row, strict=True)) for row in rows]


def _sections(entries: Metadata) -> Iterator[str]:
    """Yield the parts of a page: first what is a word or a number, in one table, then each other entry under its name."""
    few = [{"what": name, "value": _words(value)} for name, value in entries.items() if _is_short(value)]
    if few:
        yield f"## {FACTS}\n\n{markdown_table(few, len(few))}"
    for name, value in entries.items():
        if not _is_short(value):
            yield f"## {_escaped(name)}\n\n{_text(value)}"


def _is_short(value: Any) -> bool:
    return isinstance(value, _TEXTS) or not isinstance(
        value, dg.TableMetadataValue | dg.MarkdownMetadataValue | dg.JsonMetadataValue
    )


def _text(value: Any) -> str:
    if isinstance(value, dg.TableMetadataValue):
        return markdown_table([record.data for record in value.records], len(value.records))
    if isinstance(value, dg.JsonMetadataValue):
        return f"```json\n{json.dumps(value.value, indent=1, sort_keys=True)}\n```"
    return str(value.value).strip()


def _words(value: Any) -> str:
    if isinstance(value, dg.DagsterAssetMetadataValue):
        return value.asset_key.to_user_string()
    found = value.value
    return f"{found:,}" if isinstance(found, int) and not isinstance(found, bool) else str(found)


def _width(table: dg.TableMetadataValue) -> float:
    """The pixels of a table whose cells are not wrapped."""
    columns: dict[str, int] = {}
    for record in table.records:
        for name, value in record.data.items():
            columns[name] = max(columns.get(name, len(name)), len(str("" if value is None else value)))
    return sum(most * _CHARACTER + _PADDING for most in columns.values())


def _line(cells: Any) -> str:
    return f"| {' | '.join(map(_escaped, cells))} |"


def _escaped(value: Any) -> str:
    return _MARKS.sub(r"\\\1", "" if value is None else " ".join(str(value).split()))


def _unescaped(cell: str) -> str:
    return _ESCAPED.sub(r"\1", cell.strip())
