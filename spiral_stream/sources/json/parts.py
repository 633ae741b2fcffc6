"""The content of a chat's messages where it is now a text and now a list of parts, as OpenAI's and LLaVA's files have it.

``{"content": "Hi"}`` and ``{"content": [{"type": "text", "text": "Hi"}]}`` say the same, and a column has one type: lists of
parts. So where a column has parts, a text is read as one part of type ``text``. The rule holds for fields called ``content``
alone. Rewriting costs some 10 us per line that has such a text; files of one form do not pay.
"""

from typing import Any, Final

import pyarrow as pa

from spiral_stream.semantic import is_text

CONTENT: Final = "content"
_TYPE, _TEXT = "type", "text"
_PART: Final = pa.struct([(_TYPE, pa.utf8()), (_TEXT, pa.utf8())])


def parts_type(one: pa.DataType, other: pa.DataType, path: str) -> pa.DataType | None:
    """Return what a text is where the other values of a column are lists of parts; None if these two are something else.

    Args:
        one: the type of some values: text, or lists.
        other: that of others.
        path: of the column, such as ``messages[].content``.
    """
    lists = [kind for kind in (one, other) if pa.types.is_list(kind)]
    if path.rpartition(".")[2] != CONTENT or len(lists) != 1 or not any(map(is_text, (one, other))):
        return None
    part = lists[0].value_type
    is_part = pa.types.is_null(part) or (pa.types.is_struct(part) and part.get_field_index(_TYPE) >= 0)
    return pa.list_(_PART) if is_part else None


def is_parts(kind: pa.DataType, path: str) -> bool:
    """Whether a column holds lists of parts, of which a text may be one."""
    if path.rpartition(".")[2] != CONTENT or not _is_list(kind) or not pa.types.is_struct(kind.value_type):
        return False
    kinds = {field.name: field.type for field in kind.value_type}
    return all(name in kinds and is_text(kinds[name]) for name in (_TYPE, _TEXT))


def has_parts(kind: pa.DataType, path: str = "") -> bool:
    """Whether lists of parts are anywhere in a type."""
    if is_parts(kind, path):
        return True
    if _is_list(kind):
        return has_parts(kind.value_type, f"{path}[]")
    return pa.types.is_struct(kind) and any(has_parts(field.type, field.name) for field in kind)


def with_parts(value: Any, kind: pa.DataType, path: str = "") -> Any:
    """Return a value with texts as lists of one part where the column has parts; itself if there are none."""
    if isinstance(value, str):
        return [{_TYPE: _TEXT, _TEXT: value}] if is_parts(kind, path) else value
    if isinstance(value, list) and _is_list(kind):
        items = [with_parts(each, kind.value_type, f"{path}[]") for each in value]
        return value if all(new is old for new, old in zip(items, value, strict=True)) else items
    if isinstance(value, dict) and pa.types.is_struct(kind):
        kinds = {field.name: field.type for field in kind}
        fields = {name: with_parts(each, kinds[name], name) if name in kinds else each for name, each in value.items()}
        return value if all(fields[name] is value[name] for name in value) else fields
    return value


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))
