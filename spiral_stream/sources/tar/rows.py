"""Rows of tars as record batches: values of the members of a key, joined with those of sidecar tars."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Self, final

import pyarrow as pa

from spiral_stream.errors import SourceError, cut, shown
from spiral_stream.semantic import is_text, semantic_of
from spiral_stream.sources.import_source import KEY, Refused
from spiral_stream.sources.json.columns import column_of, kept_type, without_rows
from spiral_stream.sources.json.types import MixedTypesError, is_nothing, merged, type_of
from spiral_stream.sources.schema import GIVE
from spiral_stream.sources.tar.headers import Member
from spiral_stream.sources.tar.samples import (
    INLINE,
    REFERENCE,
    SEMANTICS,
    ChosenColumns,
    ColumnTarget,
    Group,
    MemberKind,
    RowError,
    column_name,
    groups,
    int64_of,
    is_name,
    kind_of,
    parsed,
    payload_field,
)
from spiral_stream.sources.tar.stream import is_compressed, open_tar
from spiral_stream.storage.store import BytesAt, ObjectStat

ROWS: Final = 8192  # of a batch
_BYTES: Final = 32 << 20  # of a batch whose payload is copied
_MOST: Final = 1 << 30  # bytes of one member that is read
_NUMBERS: Final[dict[MemberKind, pa.DataType]] = {MemberKind.TEXT: pa.utf8(), MemberKind.NUMBER: pa.int64()}


class Value(NamedTuple):
    """What one member, or one key of a JSON member, gives a row."""

    target: ColumnTarget
    kind: MemberKind
    value: Any  # (uri, offset, length) or bytes of payload; a text, a number, or what ``json`` reads


FoundRow = tuple[Group, dict[str, Value]]  # its values by column


class TarFile(NamedTuple):
    """One tar, and how references name it."""

    path: str
    uri: str
    prefix: str = ""  # before the fields of a sidecar
    seen: ObjectStat | None = None  # of an object: what it was like when it was listed


class WantedField(NamedTuple):
    """What is done with a field."""

    kind: MemberKind
    derived: str
    target: ColumnTarget | None
    read_as: MemberKind  # a number may be read as text; then the column decides


@final
class FieldTargets:
    """Where the fields of a tar go; asked once for each field, and for each key of JSON."""

    def __init__(self, prefix: str, choice: ChosenColumns, declared: pa.Schema | None) -> None:
        self._prefix, self._choice = prefix, choice
        self.declared = None if declared is None else {each.name: each.type for each in declared}
        self._known: dict[str, WantedField | None] = {}
        self._keys: dict[tuple[str, str], ColumnTarget | None] = {}

    def field(self, name: str) -> WantedField | None:
        """Return what is done with a field; None if nobody asks for it."""
        if name not in self._known:
            self._known[name] = self._wanted(f"{self._prefix}{name}")
        return self._known[name]

    def key(self, derived: str, target: ColumnTarget | None, key: str) -> ColumnTarget | None:
        """Return where a key of a JSON object goes; None if nobody asks for it."""
        if (derived, key) not in self._keys:
            self._keys[derived, key] = self.there(self._choice.key_target(derived, target, key))
        return self._keys[derived, key]

    def there(self, target: ColumnTarget | None) -> ColumnTarget | None:
        """Return where a value goes: nowhere if the columns are declared, and this is none of them."""
        return target if self.declared is None or target is None or target.column in self.declared else None

    def _wanted(self, name: str) -> WantedField | None:
        kind, derived = kind_of(name), column_name(name)
        if not self._choice.wants(name, is_json=kind is MemberKind.JSON):
            return None
        target = self._choice.target(derived, name)
        is_text = kind is MemberKind.NUMBER and (is_name(name) or self._is_text(target))
        return WantedField(kind, derived, target, MemberKind.TEXT if is_text else kind)

    def _is_text(self, target: ColumnTarget | None) -> bool:
        kind = None if target is None or self.declared is None else self.declared.get(target.column)
        return kind is not None and is_text(kind)


@final
class _Taker:
    """Makes values of members; called for each member in turn."""

    def __init__(self, tar: BytesAt, file: TarFile, targets: FieldTargets) -> None:
        self._tar, self._file, self._targets = tar, file, targets
        self._inline = is_compressed(file.path)

    def __call__(self, name: str, member: Member) -> Sequence[Value] | None:
        wanted = self._targets.field(name)
        if wanted is None:
            return None
        if member.fault is not None:
            msg = f"member {shown(member.name)} {member.fault}"
            raise RowError(msg)
        kind, derived, target, read_as = wanted
        is_payload = kind in SEMANTICS
        if is_payload and not self._inline:
            return () if target is None else (Value(target, kind, (self._file.uri, member.start, member.size)),)
        found = self._bytes(member)
        value = found if is_payload else parsed(read_as, f"member {shown(member.name)}", found)
        if kind is MemberKind.JSON and isinstance(value, dict):
            if self._targets.declared is not None and target is not None and target.column in self._targets.declared:
                msg = (
                    f"{name} is an object, and its keys are columns: {target.column}_<key>. Name those in schema=, not "
                    f"{target.column!r}"
                )
                raise RowError(msg)
            return self._of_keys(derived, target, value)
        target = self._targets.there(target)
        return () if target is None else (Value(target, kind, value),)

    def _of_keys(self, derived: str, target: ColumnTarget | None, value: Mapping[str, Any]) -> list[Value]:
        places = ((self._targets.key(derived, target, key), each) for key, each in value.items())
        return [Value(where, MemberKind.JSON, each) for where, each in places if where is not None]

    def _bytes(self, member: Member) -> bytes:
        if member.size > _MOST:
            msg = f"member {shown(member.name)} has {member.size:,} bytes, and at most {_MOST:,} are read of one that is copied"
            raise RowError(msg)
        found = self._tar.at(member.start, member.size)
        if len(found) < member.size:
            msg = (
                f"{cut(self._tar.path)} was cut short: member {shown(member.name)}, which begins at byte {member.header:,}, has "
                f"{member.size:,} bytes, and {len(found):,} are there. Fetch it again, or leave the file out"
            )
            raise SourceError(msg)
        return found


@final
class TarRows:
    """The rows of one tar, joined with its sidecars. Use as a context manager."""

    def __init__(
        self,
        file: TarFile,
        sidecars: Sequence[TarFile],
        choice: ChosenColumns,
        declared: pa.Schema | None = None,
        *,
        last: bool,
    ) -> None:
        """Open the tars.

        Args:
            file: the tar.
            sidecars: of it.
            choice: which columns there are.
            declared: the columns that a user declared; None if the rows say them.
            last: whether names are split at their last dot.

        Raises:
            SourceError: one cannot be opened.
        """
        self._open: list[BytesAt] = []
        try:
            self._choice, self._declared = choice, declared
            self._main = self._groups(file, last=last)
            self._sides = [_Sidecar(each, self._groups(each, last=last)) for each in sidecars]
        except OSError as error:
            self.close()
            raise _unreadable(error) from error

    def __iter__(self) -> Iterator[FoundRow]:
        """Yield each row, with its values by column; the group's fault says why a row cannot be read.

        Raises:
            SourceError: a tar cannot be read.
        """
        try:
            for group in self._main:
                parts = [group.fields, *(side.fields(group) for side in self._sides)]
                row: dict[str, Value] = {}
                for value in (each for part in parts for values in part.values() for each in values or ()):
                    _put(row, value, group)
                yield group, row
        except OSError as error:
            raise _unreadable(error) from error

    def close(self) -> None:
        """Close the tars."""
        for tar in self._open:
            tar.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _groups(self, file: TarFile, *, last: bool) -> Iterator[Group]:
        tar = open_tar(file.path, file.seen)
        self._open.append(tar)
        return groups(tar, _Taker(tar, file, FieldTargets(file.prefix, self._choice, self._declared)), last=last)


@final
class _Sidecar:
    """The rows of a sidecar by key; those that come before their turn wait in memory."""

    def __init__(self, file: TarFile, rows: Iterator[Group]) -> None:
        self._file, self._rows = file, rows
        self._waiting: dict[str, Group] = {}

    def fields(self, group: Group) -> Mapping[str, Any]:
        """Return what the sidecar has for a row, or note why the row cannot be read."""
        found = self._waiting.pop(group.key, None)
        while found is None and (each := next(self._rows, None)) is not None:
            if each.key == group.key:
                found = each
            else:
                self._waiting.setdefault(each.key, each)
        if found is None:
            group.fault = group.fault or f"there is no such key in the sidecar {cut(self._file.path)}"
        elif found.fault is not None:
            group.fault = group.fault or f"sidecar {cut(self._file.path)}: {found.fault}"
        return {} if found is None else found.fields


def batches(
    rows: Iterable[FoundRow], schema: pa.Schema, refused: Refused, declared: pa.Schema | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield record batches of rows; those that cannot be read go to ``refused``.

    Args:
        rows: of a tar.
        schema: `KEY` and the columns.
        refused: of the tar.
        declared: the columns that a user declared; None if the first rows said them.

    Raises:
        SourceError: a row cannot be read, and none may be left out.
    """
    names = set(schema.names)
    pending: list[FoundRow] = []
    held = 0
    for group, row in rows:
        unknown = next((name for name, value in row.items() if name not in names and not _says_nothing(value)), None)
        if group.fault is None and unknown is not None:
            group.fault = _unknown(unknown, schema)
        if group.fault is not None:
            refused.row(group.where, group.fault, _as_text(row))
            continue
        pending.append((group, row))
        held += sum(len(value.value) for value in row.values() if isinstance(value.value, bytes | str))
        if len(pending) >= ROWS or held >= _BYTES:
            yield _batch(pending, schema, refused, declared)
            pending, held = [], 0
    if pending:
        yield _batch(pending, schema, refused, declared)


@final
@dataclass(slots=True)
class TarFields:
    """The columns that some rows of tars have.

    Args:
        skip: whether a row whose values do not go with those of the rows before is left out, when rows are read.
    """

    skip: bool
    kinds: dict[str, tuple[MemberKind, pa.DataType]] = field(default_factory=dict)  # and the type of JSON
    fault: str | None = None  # the first row that cannot be read, and why

    def add(self, rows: Iterable[FoundRow], path: str) -> None:
        """Look at rows of one tar.

        Raises:
            SourceError: a column has values of types that do not go together.
        """
        for group, row in rows:
            if group.fault is not None:
                self.fault = self.fault or f"{cut(path)}, {group.where}: {group.fault}"
                continue
            for name, value in row.items():
                try:
                    self._add(name, value)
                except MixedTypesError as error:
                    if not self.skip:
                        msg = f"WebDataset: {cut(path)}, {group.where}: {error}. {GIVE}, choose others with columns=[...], "
                        msg += 'write the members again, or leave such rows out with on_error="skip"'
                        raise SourceError(msg) from error

    def add_values(self, values: Iterable[Value]) -> bool:
        """Look at values of one tar whose rows can all be read; False, and nothing is noted, if types do not go together."""
        before = dict(self.kinds)
        try:
            for value in values:
                self._add(value.target.column, value)
        except MixedTypesError:
            self.kinds = before
            return False
        return True

    def _add(self, name: str, value: Value) -> None:
        kind, have = self.kinds.get(name, (value.kind, pa.null()))
        if value.kind is MemberKind.NUMBER and isinstance(value.value, str):  # the name of a sample, or its number
            if kind in _NUMBERS and int64_of(value.value) is None:
                self.kinds[name] = MemberKind.TEXT, pa.null()
                return
            kind = value.kind if kind is MemberKind.TEXT else kind
            self.kinds.setdefault(name, (kind, pa.null()))
            if kind is value.kind:
                return
        if kind is not value.kind:
            raise MixedTypesError(name, kind.value, value.kind.value)
        added = type_of(value.value, name) if kind is MemberKind.JSON else pa.null()
        self.kinds[name] = kind, merged(have, added, name)


def schema_of(found: Mapping[str, tuple[MemberKind, pa.DataType]], *, inline: bool) -> pa.Schema:
    """Return the schema of columns that were found."""
    fields = [pa.field(KEY, pa.utf8())]
    for name, (kind, json_type) in found.items():
        if kind in SEMANTICS:
            fields.append(payload_field(name, kind, inline=inline))
            continue
        of = kept_type(json_type) if kind is MemberKind.JSON else _NUMBERS[kind]
        if of is not None:
            fields.append(pa.field(name, of))
    return pa.schema(fields)


def _put(row: dict[str, Value], value: Value, group: Group) -> None:
    have = row.get(value.target.column)
    if have is None or value.target.rank < have.target.rank:
        row[value.target.column] = value
    elif value.target.rank == have.target.rank and group.fault is None:
        group.fault = (
            f"two members or keys are column {value.target.column!r}, since a dot in a name becomes _. Choose one: "
            f'columns={{"{value.target.column}": "<the field>"}}'
        )


def _batch(rows: Sequence[FoundRow], schema: pa.Schema, refused: Refused, declared: pa.Schema | None) -> pa.RecordBatch:
    wrong: dict[int, str] = {}
    arrays = []
    for each in schema:
        if each.name == KEY:
            arrays.append(pa.array([group.key for group, _ in rows], pa.utf8()))
            continue
        found = [row.get(each.name) for _, row in rows]
        if declared is None:
            array, bad = _column(each, found)
        else:
            array, bad = _declared_column(each, found, semantic_of(declared.field(each.name)))
        arrays.append(array)
        for row, reason in bad:
            wrong.setdefault(row, reason)
    for at in sorted(wrong):
        refused.row(rows[at][0].where, wrong[at], _as_text(rows[at][1]))
    return without_rows(pa.RecordBatch.from_arrays(arrays, schema=schema), wrong)


def _column(each: pa.Field, found: Sequence[Value | None]) -> tuple[pa.Array, list[tuple[int, str]]]:
    """A column, and the rows whose values it does not hold."""
    values = [None if value is None else value.value for value in found]
    if _is_payload(each):
        return payload_column(each.name, values, each.type)
    if each.type == pa.int64():
        for at, value in enumerate(values):  # 0.1 us per row; tars of named samples have texts here
            if isinstance(value, str) and (number := int64_of(value)) is not None:
                values[at] = number
    return column_of(each.name, values, each.type)


def _declared_column(
    each: pa.Field, found: Sequence[Value | None], semantic: str | None
) -> tuple[pa.Array, list[tuple[int, str]]]:
    """A column of the type that a user declared, and the rows whose values it does not hold."""
    values = [None if value is None else value.value for value in found]
    bad = []
    for at, value in enumerate(found):  # 0.2 us per row
        if value is not None and SEMANTICS.get(value.kind) != semantic:
            values[at] = None
            right = f'"{SEMANTICS[value.kind]}"' if value.kind in SEMANTICS else 'what it is, such as "string"'
            bad.append((at, f"column {each.name!r} holds {value.kind.value}. Declare it as {right}"))
        elif value is not None and value.kind is MemberKind.NUMBER and pa.types.is_integer(each.type):
            number = int64_of(str(value.value), is_declared=True)
            values[at] = value.value if number is None else number
    of = (
        payload_column(each.name, values, each.type)
        if semantic
        else column_of(each.name, values, each.type, is_declared=True)
    )
    return of[0], [*bad, *of[1]]


def _says_nothing(value: Value) -> bool:
    return value.kind is MemberKind.JSON and is_nothing(value.value)


def _as_text(row: Mapping[str, Value]) -> str:
    """What the members of a row hold, for people: payload that stays in its tar as (uri, offset, length)."""
    return json.dumps({name: value.value for name, value in row.items()}, default=shown, ensure_ascii=False)


def _is_payload(field: pa.Field) -> bool:
    return field.type in (REFERENCE, INLINE)


def payload_column(name: str, values: Sequence[Any], kind: pa.DataType) -> tuple[pa.Array, list[tuple[int, str]]]:
    """Build a column of payload: references as (uri, offset, length), or bytes; and the rows that have the other of the two."""
    python_type = bytes if kind == INLINE else tuple
    wrong = [row for row, value in enumerate(values) if value is not None and not isinstance(value, python_type)]
    left = [None if row in set(wrong) else value for row, value in enumerate(values)] if wrong else values
    bad = [
        (row, f"column {name!r} holds other payload, and is {kind}. Register the source under another name")
        for row in wrong
    ]
    return pa.array(left, kind), bad


def _unknown(name: str, schema: pa.Schema) -> str:
    return (
        f"it has {name!r}, which is in none of the rows that the columns were taken from ({', '.join(schema.names[1:])}). "
        f"{GIVE}, or choose others with columns=[...]"
    )


def _unreadable(error: OSError) -> SourceError:
    return SourceError(
        f"{cut(str(error.filename or 'tar'))}: {error.strerror or error}. Restore the file, or leave it out"
    )
