"""The columns of a folder of Mosaic's shards: their types, from the index and where it says too little from samples."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, final

import pyarrow as pa

from spiral_stream.errors import SourceError, cut
from spiral_stream.semantic import SEMANTIC, semantic_of
from spiral_stream.semantic import SHAPE as DIMS
from spiral_stream.sources.import_source import Refused
from spiral_stream.sources.json.columns import column_of, kept_type, without_rows
from spiral_stream.sources.json.types import MixedTypesError, is_nothing, merged, type_of
from spiral_stream.sources.mds import values
from spiral_stream.sources.mds.encodings import Encoding, MdsForm, arrow_type, bare_array, encoding_of
from spiral_stream.sources.mds.index import JSON, Shard
from spiral_stream.sources.mds.samples import Span
from spiral_stream.sources.mds.values import SHAPE
from spiral_stream.sources.schema import GIVE
from spiral_stream.sources.tar.samples import INLINE, ChosenColumns, ColumnTarget, column_name

_NAME: Final = "Name one of them with columns={...}"
_INT64: Final = 1 << 63


class MdsColumn(NamedTuple):
    """One column of the shards that is kept."""

    at: int  # among the columns of the shards
    derived: str  # its name, without dots; "" of lines of JSON, whose keys are columns
    target: ColumnTarget | None  # None: only keys of its JSON are kept
    encoding: Encoding


@final
class MdsColumns:
    """The columns of a shard that are kept.

    Args:
        shard: of the folder.
        choice: which a user wants.
        arrays: columns of bytes that are arrays, and their types.
        payload: of what type payload is: bytes, or references with or without a digest.
        declared: the columns that a user declared; None if the index and the first samples say them.
    """

    def __init__(
        self,
        shard: Shard,
        choice: ChosenColumns,
        arrays: Mapping[str, str],
        payload: pa.DataType,
        declared: pa.Schema | None = None,
    ) -> None:
        self.payload = payload
        self._choice = choice
        self.declared = declared
        self.names = shard.names
        self.columns: list[MdsColumn] = []
        self.lines = shard.lines
        self.json: dict[str, pa.DataType] = {}  # columns of lines of JSON; null: whole numbers, or truth values
        if shard.lines is not None and shard.lines.form == JSON:
            self._take_keys(shard, arrays)
            return
        for at, (name, written) in enumerate(zip(shard.names, shard.encodings, strict=True)):
            derived = column_name(name)
            if not self._choice.wants(name, is_json=written == "json"):
                continue
            encoding = _encoding(name, written, arrays)
            _need_size(name, encoding, shard.sizes[at])
            target = self._there(self._choice.target(derived, name, shard.names))
            if target is not None or encoding.form is MdsForm.JSON:
                self.columns.append(MdsColumn(at, derived, target, encoding))
        if declared is None:
            _need_named(shard, self._choice, arrays, {column.derived: column for column in self.columns})

    def _there(self, target: ColumnTarget | None) -> ColumnTarget | None:
        """Where a column goes: nowhere if the columns are declared, and this is none of them."""
        return target if self.declared is None or target is None or target.column in self.declared.names else None

    def _take_keys(self, shard: Shard, arrays: Mapping[str, str]) -> None:
        """Take the keys of lines of JSON as columns."""
        for name, written in zip(shard.names, shard.encodings, strict=True):
            _encoding(name, written, arrays)
            if (target := self._there(self._choice.target(column_name(name), name, shard.names))) is not None:
                if target.column in self.json:
                    raise called_alike(target.column, shard.names)
                self.json[target.column] = {"str": pa.utf8(), "str_float": pa.float64()}.get(written, pa.null())
        self.columns.append(MdsColumn(0, "", None, Encoding("json", MdsForm.JSON)))
        if self.declared is None:
            _need_named(shard, self._choice, arrays, self.json)

    @property
    def says_little(self) -> bool:
        """Whether the index leaves the type of a column open: of whole numbers in lines whether they are above 2^63."""
        return any(
            column.encoding.form is MdsForm.JSON or _is_open(column.encoding) or self.is_written(column)
            for column in self.columns
        )

    def is_written(self, column: MdsColumn) -> bool:
        """Whether a column holds whole numbers of any size, written as text in lines."""
        encoding = column.encoding
        return self.lines is not None and encoding.form is MdsForm.WRITTEN and encoding.dtype == "int64"

    def said(self, name: str) -> pa.Field | None:
        """Return what the index says of a column; None if it says nothing, or this shard lacks it."""
        fields = {field.name: field for field in ShardColumns(self).schema()}
        return fields.get(name)

    def may_hold(self, name: str) -> bool:
        """Whether samples may have a column of which the index says nothing: a key of JSON, or the shape of an array."""
        for column in self.columns:
            of = column.derived if column.target is None else column.target.column
            if column.encoding.form is MdsForm.JSON and (not of or f"{name}_".startswith(f"{of}_")):
                return True
            if column.encoding.form is MdsForm.ARRAY and name == f"{of}{SHAPE}":
                return True
        return False

    def keys(self, column: MdsColumn, value: Mapping[str, Any]) -> list[tuple[str, Any]]:
        """Return the columns of the keys of a JSON object."""
        if not column.derived and not self.is_chosen:
            return [(column_name(key), each) for key, each in value.items()]
        if not column.derived:
            found = ((self._choice.target(column_name(key), key, self.names), each) for key, each in value.items())
        else:
            name = self.names[column.at]
            others = [f"{name}.{each}" for each in value] if self.is_chosen else ()
            found = (
                (self._choice.key_target(column.derived, column.target, key, name, others), each)
                for key, each in value.items()
            )
        there = [(target, each) for target, each in found if target is not None]
        if self.is_chosen:  # of several keys that may fill a column, the first that a user named does
            first = {target.column: target.rank for target, _ in sorted(there, key=lambda pair: -pair[0].rank)}
            there = [(target, each) for target, each in there if target.rank == first[target.column]]
        return [(target.column, each) for target, each in there]

    @property
    def is_chosen(self) -> bool:
        """Whether the user said which columns there are."""
        return self._choice.targets is not None

    def batch(self, spans: Sequence[Span], schema: pa.Schema, uri: str | None, refused: Refused) -> pa.RecordBatch:
        """Return the rows of some samples; those that cannot be read go to ``refused``.

        Args:
            spans: one per column of the shard.
            schema: of the rows.
            uri: of the shard, for references; None if it is compressed.
            refused: of the shard.

        Raises:
            SourceError: a row cannot be read, and none may be left out; or payload would be copied from a shard, or stay in
                one, unlike that of the others.
        """
        arrays: dict[str, pa.Array] = {}
        for column in self.columns:
            arrays |= self._arrays(column, spans[column.at], schema, uri)
        wrong: dict[int, tuple[str, int]] = {}
        for column in self.columns:
            for row, reason in spans[column.at].wrong:
                wrong.setdefault(row, (f"{column.derived or 'it'} {reason}", column.at))
        for row, (reason, at) in sorted(wrong.items()):
            refused.row(f"sample {spans[0].first + row:,}", reason, bytes(spans[at].bytes_of(row)))
        count = len(spans[0])
        found = [arrays[each.name] if each.name in arrays else pa.nulls(count, each.type) for each in schema]
        return without_rows(pa.RecordBatch.from_arrays(found, schema=schema), wrong)

    def _arrays(self, column: MdsColumn, span: Span, schema: pa.Schema, uri: str | None) -> dict[str, pa.Array]:
        encoding = column.encoding
        if encoding.form is MdsForm.JSON:
            return self._json(column, span, schema)
        assert column.target is not None
        name = column.target.column
        kind = schema.field(name).type
        if encoding.form is MdsForm.ARRAY:
            return self._array(name, encoding, span, schema)
        if encoding.form in (MdsForm.PAYLOAD, MdsForm.IMAGES):
            uri = _need_uri(name, kind, uri, schema)
            is_list = encoding.form is MdsForm.IMAGES
            images = values.images_array(encoding, span, uri, kind.value_type).cast(kind) if is_list else None
            return {name: values.payload_array(span, uri, kind) if images is None else images}
        if encoding.form in (MdsForm.PIXELS, MdsForm.PIXEL_LISTS):
            return {name: values.pixels_array(encoding, span).cast(kind)}
        if self.declared is not None:
            return {name: values.declared_array(name, encoding, span, kind)}
        return {name: values.plain_array(encoding, span, kind)}

    def _array(self, name: str, encoding: Encoding, span: Span, schema: pa.Schema) -> dict[str, pa.Array]:
        arrays, kind, shape = values.arrays_of(encoding, span), schema.field(name).type, f"{name}{SHAPE}"
        is_declared = self.declared is not None
        found = {name: values.flat_array(name, arrays, span, kind, is_declared=is_declared)}
        others = {column.target.column for column in self.columns if column.target is not None}
        if shape in schema.names and shape not in others:
            return {**found, shape: self._shapes(shape, arrays, span, schema.field(shape).type)}
        if encoding.shape is not None and pa.types.is_fixed_size_list(kind):
            return found  # the index says the shape of all
        for row, each in enumerate(arrays.shapes):
            if len(each) != 1 and arrays.dtypes[row] is not None:
                way_out = f'{GIVE}, with "{shape}": ("list", "int64") among them'
                span.wrong.append((row, f"is an array of shape {each}, and there is no column of shapes. {way_out}"))
        return found

    def _shapes(self, name: str, arrays: values.Arrays, span: Span, kind: pa.DataType) -> pa.Array:
        shapes = [list(each) for each in arrays.shapes]
        natural = pa.list_(pa.int64())
        if kind == natural:
            return pa.array(shapes, natural)
        array, wrong = column_of(name, shapes, kind, is_declared=True)
        span.wrong.extend(wrong)
        return array

    def _json(self, column: MdsColumn, span: Span, schema: pa.Schema) -> dict[str, pa.Array]:
        found: dict[str, list[Any]] = {}
        names, count = frozenset(schema.names), len(span)
        for row, value in enumerate(values.json_values(span)):  # 5 us per sample
            columns = [] if column.target is None or value is None else [(column.target.column, value)]
            if self.declared is not None and columns and isinstance(value, dict):
                is_object = f"is an object, and its keys are columns: {columns[0][0]}_<key>. Name those in schema="
                span.wrong.append((row, is_object))
            for name, each in self.keys(column, value) if isinstance(value, dict) else columns:
                if name in names:
                    if name not in found:
                        found[name] = [None] * count
                    values_of = found[name]
                    if values_of[row] is not None:
                        span.wrong.append((row, f"has two keys that are column {name!r}. {_NAME}"))
                    values_of[row] = each
                elif self.declared is None and not is_nothing(each):
                    where = f"which is in none of the samples that the columns were taken from. {GIVE}"
                    span.wrong.append((row, f"has {name!r}, {where}, or choose others with columns=[...]"))
        arrays = {}
        for name, each in found.items():
            arrays[name], wrong = column_of(name, each, schema.field(name).type, is_declared=self.declared is not None)
            span.wrong.extend(wrong)
        return arrays


def called_alike(column: str, names: Sequence[str]) -> SourceError:
    """Return the error for two columns of one name, with the way out."""
    of = [each for each in names if column_name(each) == column]
    named = ", ".join(f'"{column}{"_" * at}": "{each}"' for at, each in enumerate(of)) if len(of) > 1 else "..."
    return SourceError(
        f"Mds: two columns would be called {column!r}. Name them, and the others, with columns={{{named}}}"
    )


@final
@dataclass(slots=True)
class ShardColumns:
    """What is known of the columns, while samples are looked at."""

    columns: MdsColumns
    json: dict[str, pa.DataType] = field(default_factory=dict)  # by column
    dtypes: dict[str, str] = field(default_factory=dict)  # of arrays that say their own
    shaped: set[str] = field(default_factory=set)  # columns of arrays that have not one dimension
    large: set[str] = field(default_factory=set)  # columns of whole numbers of which one is above 2^63
    negative: set[str] = field(default_factory=set)  # those of which one is negative

    def schema(self) -> pa.Schema:
        """Return the schema."""
        fields: list[pa.Field] = []
        for column in self.columns.columns:
            if column.encoding.form is not MdsForm.JSON and column.target is not None:
                fields += self._fields(column.target.column, column.encoding)
        for name, kind in self.json.items():
            said = self.columns.json.get(name)
            of = pa.int64() if said is not None and pa.types.is_null(kind) else kept_type(kind)
            if of is not None:
                fields.append(pa.field(name, of))
        names = [each.name for each in fields]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise called_alike(twice, self.columns.names)
        return pa.schema(fields)

    def _fields(self, name: str, encoding: Encoding) -> list[pa.Field]:
        if encoding.form is MdsForm.ARRAY:
            return self._array_fields(name, encoding)
        payload = self.columns.payload
        kind = {
            MdsForm.PAYLOAD: payload,
            MdsForm.PIXELS: INLINE,
            MdsForm.IMAGES: pa.list_(payload),
            MdsForm.PIXEL_LISTS: pa.list_(INLINE),
        }.get(encoding.form)
        if kind is not None:
            return [pa.field(name, kind, metadata={SEMANTIC: (encoding.semantic or "").encode()})]
        if encoding.dtype is None:
            return [pa.field(name, pa.utf8())]
        is_large = name in self.large and name not in self.negative
        return [pa.field(name, pa.uint64() if is_large else arrow_type(encoding.dtype))]

    def _array_fields(self, name: str, encoding: Encoding) -> list[pa.Field]:
        inner = arrow_type(encoding.dtype or self.dtypes.get(name, "float32"))
        if encoding.dtype is not None and encoding.shape is not None:
            dims = ",".join(map(str, encoding.shape)).encode()
            count = encoding.size // (inner.bit_width // 8) if encoding.size else 0
            return [pa.field(name, pa.list_(inner, count), metadata={DIMS: dims})]
        shape = [pa.field(f"{name}{SHAPE}", pa.list_(pa.int64()))] if name in self.shaped else []
        return [pa.field(name, pa.list_(inner)), *shape]


def found_columns(columns: MdsColumns) -> ShardColumns:
    """Return what the index says of the columns."""
    return ShardColumns(columns, dict(columns.json))


def declared_schema(declared: pa.Schema, layouts: Sequence[MdsColumns]) -> pa.Schema:
    """Return the schema of columns that a user declared, as the shards give them.

    Args:
        declared: the columns; payload is of the type that most columns of payload have.
        layouts: the columns of each kind of shard.

    Raises:
        SourceError: a column is in no shard, or a shard holds other things there.
    """
    fields = {name: [field for each in layouts if (field := each.said(name)) is not None] for name in declared.names}
    for field in declared:
        said = fields[field.name]
        if not said and not any(each.may_hold(field.name) for each in layouts):
            have = ", ".join(dict.fromkeys(name for each in layouts for name in each.names))
            msg = f"Mds: schema= has column {field.name!r}, which is no column of the folder; it has {have}. Correct schema="
            raise SourceError(msg)
        for other in said:
            _need_declared(field, other)
        if len({(each.metadata or {}).get(DIMS) for each in said}) > 1 and f"{field.name}{SHAPE}" not in declared.names:
            msg = f"Mds: arrays of {field.name!r} have several shapes. Declare a column of them, too: schema= with "
            msg += f'"{field.name}{SHAPE}": ("list", "int64")'
            raise SourceError(msg)
    return pa.schema([_as_said(field, fields[field.name]) for field in declared])


def _as_said(field: pa.Field, said: Sequence[pa.Field]) -> pa.Field:
    """A declared column: payload that some shard holds as pixels is copied of all; fixed arrays keep their shape."""
    if SEMANTIC in (field.metadata or {}):
        return next((each for each in said if INLINE in (each.type, *_inner(each.type))), field)
    return said[0] if said and said[0].type == field.type else field


def _inner(kind: pa.DataType) -> tuple[pa.DataType, ...]:
    return (kind.value_type,) if pa.types.is_list(kind) else ()


def _need_declared(field: pa.Field, said: pa.Field) -> None:
    """Refuse a declared column that the shards hold something else in."""
    semantic, found = semantic_of(field), semantic_of(said)
    is_list, is_array = bool(_inner(field.type)), found is None and pa.types.is_nested(said.type)
    fits = semantic == found and (found is None or is_list == bool(_inner(said.type)))
    if is_array:
        fits = fits and (is_list or pa.types.is_large_list(field.type) or pa.types.is_fixed_size_list(field.type))
    if not fits:
        holds = str(said.type) if found is None else f"a list of {found}" if _inner(said.type) else found
        msg = f"Mds: schema= says that {field.name!r} is {semantic or field.type}, and the index says {holds}. Correct schema="
        raise SourceError(msg)


def described(columns: MdsColumns, spans: Sequence[Span], found: ShardColumns, path: str) -> None:
    """Add what some samples say of columns whose type the index leaves open.

    Raises:
        SourceError: the samples contradict each other.
    """
    for column in columns.columns:
        span = spans[column.at]
        if _is_open(column.encoding):
            assert column.target is not None
            arrays = values.arrays_of(column.encoding, span)
            first = next((dtype for dtype in arrays.dtypes if dtype is not None), None)
            if first is not None:
                found.dtypes.setdefault(column.target.column, first)
            if any(len(shape) != 1 for shape in arrays.shapes):
                found.shaped.add(column.target.column)
        elif columns.is_written(column):
            assert column.target is not None
            numbers = [each for each in values.written_numbers(span) if each is not None]
            found.large |= {column.target.column} if any(each >= _INT64 for each in numbers) else set()
            found.negative |= {column.target.column} if any(each < 0 for each in numbers) else set()
        elif column.encoding.form is MdsForm.JSON:
            _describe_json(columns, column, values.json_values(span), found, path)


def _describe_json(columns: MdsColumns, column: MdsColumn, read: Sequence[Any], found: ShardColumns, path: str) -> None:
    for row, value in enumerate(read):
        described = [] if column.target is None or value is None else [(column.target.column, value)]
        for name, each in columns.keys(column, value) if isinstance(value, dict) else described:
            try:
                found.json[name] = merged(found.json.get(name, pa.null()), type_of(each, name), name)
            except MixedTypesError as error:
                msg = f"Mds: {cut(path)}, sample {row:,}: {error}. {GIVE}, or choose others with columns=[...]"
                raise SourceError(msg) from error


def _need_uri(name: str, kind: pa.DataType, uri: str | None, schema: pa.Schema) -> str | None:
    """The uri that references name, None if payload is copied."""
    inner = kind.value_type if pa.types.is_list(kind) else kind
    if inner == INLINE:
        return None
    if uri is None:
        msg = (
            f"Mds: the shard is compressed, and payload of column {name!r} was registered as references "
            f"({schema.field(name).type}). Uncompress the shard, or register the folder under another name"
        )
        raise SourceError(msg)
    return uri


def _encoding(name: str, written: str, arrays: Mapping[str, str]) -> Encoding:
    if name not in arrays:
        return encoding_of(written, name)
    if written != "bytes":
        msg = f"Mds: arrays names column {name!r}, which is {written}. Only columns of bytes need it; leave it out"
        raise SourceError(msg)
    return bare_array(arrays[name])


def _need_size(name: str, encoding: Encoding, said: int | None) -> None:
    if encoding.is_bare or encoding.size == said:
        return
    msg = f"Mds: column {name!r} is {encoding.name}, of {encoding.size or 'no fixed'} bytes, and the index says {said or 'none'}"
    msg += ". Write the folder again, or fetch it again"
    raise SourceError(msg)


def _need_named(shard: Shard, choice: ChosenColumns, arrays: Mapping[str, str], declared: Collection[str]) -> None:
    have = {column_name(name) for name in shard.names}
    named = [*(choice.targets or ()), *map(column_name, arrays)]
    unknown = [name for name in named if name not in have and not any(name.startswith(f"{each}_") for each in declared)]
    if unknown or not declared:
        what = (
            f"{unknown[0]!r} is no column of the folder; it has"
            if unknown
            else "no column of the folder is chosen; it has"
        )
        msg = f"Mds: {what} {', '.join(shard.names)}. Correct columns= or arrays="
        raise SourceError(msg)


def _is_open(encoding: Encoding) -> bool:
    """Whether each array says something of its own."""
    return (
        encoding.form is MdsForm.ARRAY and not encoding.is_bare and (encoding.dtype is None or encoding.shape is None)
    )
