"""Lines of JSON as rows of declared or found columns, and what is wrong with one that is no row."""

import json
import math
from decimal import Decimal
from typing import Any, Final, final

import numpy as np
import pyarrow as pa

from spiral_stream.errors import SourceError, cut, shown
from spiral_stream.semantic import is_list
from spiral_stream.sources.json.parts import CONTENT, has_parts, with_parts
from spiral_stream.sources.json.types import LARGE, adds_nothing, faults

_BLANK: Final = b" \t\r\n"
_CONTENT_KEY: Final = f'"{CONTENT}"'.encode()


@final
class LineParser:
    """Reads lines of one object each.

    Args:
        schema: of the rows.
        known_only: whether nobody but the first lines said what the columns are.
    """

    def __init__(self, schema: pa.Schema, *, known_only: bool) -> None:
        import pyarrow.json as pj

        self._schema, self._known_only = schema, known_only
        self._kind = pa.struct(list(schema))
        self._has_parts, self._has_decimals = has_parts(self._kind), _has_decimals(self._kind)
        parsed = pa.schema([field.with_type(_parsed(field.type)) for field in schema])
        self._parsed = parsed
        unknown = "infer" if known_only else "ignore"  # a key that is new may say nothing, which is no fault
        self._options = pj.ParseOptions(explicit_schema=parsed, unexpected_field_behavior=unknown)
        self._read, self._read_options = pj.read_json, pj.ReadOptions

    def table(self, data: bytes, rows: int) -> pa.Table | None:
        """Return the rows of lines, or None if they cannot be read together."""
        try:
            return self._parse(data, rows)
        except (pa.ArrowException, ValueError):
            if not self._has_parts:
                return None
        try:
            return self._parse(self._with_parts(data), rows)
        except (pa.ArrowException, ValueError):
            return None

    def _parse(self, data: bytes, rows: int) -> pa.Table:
        """The rows of sound lines.

        Raises:
            ValueError: these are none, or others than ``rows``; pyarrow's errors are among them.
        """
        buffer = pa.py_buffer(data)
        _need_utf8(buffer)
        options = self._read_options(use_threads=False, block_size=len(data) + 1)
        table = self._read(pa.BufferReader(buffer), read_options=options, parse_options=self._options)
        if len(table) != rows:
            msg = f"it holds {len(table)} objects"
            raise ValueError(msg)
        if self._known_only and table.schema != self._parsed and not adds_nothing(table.schema, self._parsed):
            raise ValueError("it has another field")
        if self._known_only and any(map(_has_large, table.columns)):
            self._need_exact(data)
        table = table.select(self._schema.names)
        return table if table.schema == self._schema else table.cast(self._schema)

    def _need_exact(self, data: bytes) -> None:
        """Refuse integers that lose digits as floats.

        Raises:
            ValueError: names the column.
        """
        for line in data.split(b"\n"):
            if not line.strip(_BLANK):
                continue
            found = next(faults(json.loads(line), self._kind, "", known_only=True), None)
            if found is not None:
                raise ValueError(found)

    def fault(self, line: bytes) -> str:
        """Return what is wrong with a line."""
        value, fault = read_line(line)
        if fault:
            return fault
        found = next(faults(value, self._kind, "", known_only=self._known_only), None)
        if found:
            return found
        try:
            self._parse(self._with_parts(line) if self._has_parts else line, 1)
        except (pa.ArrowException, ValueError) as error:
            return f"{cut(str(error))}. One object per line would be right"
        return "it cannot be read"

    def _with_parts(self, data: bytes) -> bytes:
        """Lines in which texts are parts where the columns have parts; others stay as they are written."""
        return b"\n".join(self._line_with_parts(line) for line in data.split(b"\n"))

    def _line_with_parts(self, line: bytes) -> bytes:
        if _CONTENT_KEY not in line:
            return line
        try:
            value = json.loads(line, parse_float=self._float)
            found = with_parts(value, self._kind)
            return line if found is value else json.dumps(found, allow_nan=False).encode()
        except (ValueError, RecursionError):  # it is refused as it is written
            return line

    def _float(self, text: str) -> float:
        """A number with a fraction, which is written again.

        Raises:
            ValueError: it would be another number.
        """
        found = float(text)
        if not math.isfinite(found) or (self._has_decimals and Decimal(text) != Decimal(repr(found))):
            msg = f"{shown(text)} would be another number"
            raise ValueError(msg)
        return found


def read_line(line: bytes) -> tuple[dict[str, Any], str]:
    """Return the object of a line, or what is wrong with it."""
    try:
        value = json.loads(line.decode())
    except UnicodeDecodeError as error:
        return {}, f"byte {error.start + 1} is {line[error.start : error.start + 1]!r}, which is not UTF-8"
    except json.JSONDecodeError as error:
        whole = (
            " (the whole file seems to be one JSON array: write one object per line)"
            if line.lstrip()[:1] == b"["
            else ""
        )
        return (
            {},
            f"it is no JSON: {error.msg} at column {error.colno}, near {shown(line[max(0, error.pos - 10) :][:40])}{whole}",
        )
    except (RecursionError, ValueError) as error:
        why = "it is nested too deeply" if isinstance(error, RecursionError) else cut(str(error))
        return {}, why
    if not isinstance(value, dict):
        return {}, f"it holds {shown(value, 60)}, and a line holds one object, such as {{...}}"
    return value, ""


def _has_large(values: pa.Array | pa.ChunkedArray) -> bool:
    """Whether floats among some values are so large that the integers that were written may have more digits."""
    if isinstance(values, pa.ChunkedArray):
        return any(map(_has_large, values.chunks))
    if pa.types.is_struct(values.type) or pa.types.is_list(values.type):
        inside = values.flatten()
        return any(map(_has_large, inside if isinstance(inside, list) else [inside]))
    if not pa.types.is_floating(values.type):
        return False
    return bool((np.abs(values.drop_null().to_numpy(zero_copy_only=False)) >= LARGE).any())


def _need_utf8(buffer: pa.Buffer) -> None:
    """Refuse bytes that are not UTF-8, which pyarrow's JSON takes.

    Raises:
        ValueError: they are not.
    """
    ends = pa.py_buffer(np.array([0, len(buffer)], np.int64))
    pa.Array.from_buffers(pa.large_utf8(), 1, [None, ends, buffer]).validate(full=True)


def need_readable(schema: pa.Schema, what: str) -> None:
    """Refuse declared types that JSON is not read as.

    Args:
        schema: that was declared.
        what: the source, for messages.

    Raises:
        SourceError: names the column.
    """
    import pyarrow.json as pj

    for field in schema:
        options = pj.ParseOptions(explicit_schema=pa.schema([field.with_type(_parsed(field.type))]))
        try:
            pj.read_json(pa.BufferReader(b"{}\n"), parse_options=options)
        except pa.ArrowException as error:
            msg = f"{what}: column {shown(field.name)} is {field.type}, which JSON is not read as. Give another type"
            raise SourceError(msg) from error


def _parsed(kind: pa.DataType) -> pa.DataType:
    """The type that pyarrow parses, which is cast to ``kind``."""
    t = pa.types
    if is_list(kind):
        return pa.list_(_parsed(kind.value_type))
    if t.is_struct(kind):
        return pa.struct([(field.name, _parsed(field.type)) for field in kind])
    return pa.float32() if t.is_float16(kind) else kind


def _has_decimals(kind: pa.DataType) -> bool:
    t = pa.types
    if is_list(kind):
        return _has_decimals(kind.value_type)
    return t.is_decimal(kind) or (t.is_struct(kind) and any(_has_decimals(field.type) for field in kind))
