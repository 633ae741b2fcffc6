"""Rows of a tar as WebDataset names them: neighbouring members whose names begin alike are one row.

``dir/0001.seg.png`` has the key ``dir/0001`` and the field ``seg.png`` (split at the first dot of the file's name), or the key
``dir/0001.seg`` and the field ``png`` (at the last). Fields are lower case. Passed over are folders, names without a dot or
that begin with one, and ``__...__``, as the webdataset library passes over them.

The extension of a member decides its column: a reference, a text, a number or JSON. A field ``seg.png`` is column
``seg_png``, since names of columns have no dots; key ``url`` of a ``json`` member is column ``json_url``. A user may choose
among them and rename them.
"""

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, NamedTuple, final

import pyarrow as pa

from spiral_stream.errors import SourceError, shown
from spiral_stream.semantic import BYTES_REF, H264_REF, JPEG_REF, SEMANTIC, semantic_of
from spiral_stream.sources.image_folder import IMAGES, VIDEOS
from spiral_stream.sources.json.lines import need_readable
from spiral_stream.sources.schema import Declared, columns, declared, need_column_names
from spiral_stream.sources.tar.headers import Member, members
from spiral_stream.storage.store import BytesAt

_META: Final = re.compile(r"__[^/]*__($|/)")


class RowError(ValueError):
    """Why a row cannot be read; the text says what was found, and what would be right."""


@final
@dataclass(slots=True)
class Group:
    """The members of one key."""

    key: str
    at: int  # byte of its first header
    fields: dict[str, Any] = field(default_factory=dict)  # what `take` made of each
    fault: str | None = None  # why the row cannot be read

    @property
    def where(self) -> str:
        """The place, for messages."""
        return f"key {shown(self.key)} (byte {self.at:,})"


def split_name(name: str, *, last: bool) -> tuple[str, str] | None:
    """Return the key and the field of a member; None for one that is passed over."""
    folder, slash, file = name.rpartition("/")
    key, dot, kind = file.rpartition(".") if last else file.partition(".")
    if not key or not dot or file.startswith(".") or _META.match(name):
        return None
    return f"{folder}{slash}{key}", kind.lower()


def groups(tar: BytesAt, take: Callable[[str, Member], Any], *, last: bool) -> Iterator[Group]:
    """Yield the rows of a tar in its order; memory holds the keys.

    Args:
        tar: that is read.
        take: is asked for what is kept of a member, as the member passes by, faulty ones too; `RowError` makes the row one
            that cannot be read, and None leaves the member out.
        last: whether names are split at their last dot.

    Raises:
        SourceError: the tar cannot be read.
    """
    seen: set[str] = set()
    group: Group | None = None
    for member in members(tar):
        named = split_name(member.name, last=last)
        if named is None:
            continue
        if group is None or named[0] != group.key:
            if group is not None:
                yield group
            group = Group(named[0], member.header)
            if group.key in seen:
                group.fault = (
                    "the key was there before, further up in the tar; the members of a key follow each other, and keys are "
                    "used once. Sort the tar by name"
                )
            seen.add(group.key)
        _add(group, named[1], member, take)
    if group is not None:
        yield group


def _add(group: Group, name: str, member: Member, take: Callable[[str, Member], Any]) -> None:
    if group.fault is None and name in group.fields:
        group.fault = f"there are two members {shown(name)}, the second at byte {member.header:,}; one per key is read"
    if group.fault is not None:
        return
    try:
        _need_text(member.name)
        group.fields[name] = take(name, member)
    except RowError as error:
        group.fault = str(error)


def _need_text(name: str) -> None:
    try:
        name.encode()
    except UnicodeEncodeError:
        msg = f"the name of member {shown(name.encode('utf-8', 'surrogateescape'))} is not UTF-8"
        raise RowError(msg) from None


REFERENCE: Final = pa.struct([("uri", pa.utf8()), ("offset", pa.int64()), ("length", pa.int64())])
INLINE: Final = pa.large_binary()
_INT64: Final = 1 << 63
Columns = tuple[str, ...] | tuple[tuple[str, str], ...] | None  # names, or columns and the fields that fill them


class MemberKind(Enum):
    """What a member is."""

    IMAGE = "an image"
    VIDEO = "a video"
    BYTES = "bytes"
    TEXT = "text"
    NUMBER = "a whole number"
    JSON = "JSON"


SEMANTICS: Final = {MemberKind.IMAGE: JPEG_REF, MemberKind.VIDEO: H264_REF, MemberKind.BYTES: BYTES_REF}
_KINDS: Final[dict[str, MemberKind]] = {
    **{name.removeprefix("."): MemberKind.IMAGE for name in (*IMAGES, ".gif", ".pbm", ".pnm", ".jp2", ".avif")},
    **{name.removeprefix("."): MemberKind.VIDEO for name in (*VIDEOS, ".webm")},
    **dict.fromkeys(("txt", "text", "transcript", "caption"), MemberKind.TEXT),
    **dict.fromkeys(("cls", "cls2", "class", "count", "index", "inx", "id"), MemberKind.NUMBER),
    **dict.fromkeys(("json", "jsn"), MemberKind.JSON),
}


def kind_of(name: str) -> MemberKind:
    """Return what a field is, by the last part of its name, as the webdataset library decodes it."""
    return _KINDS.get(name.rpartition(".")[2], MemberKind.BYTES)


def is_name(field: str) -> bool:
    """Whether a field names its sample, by a number or by a text: ``.id``."""
    return field.rpartition(".")[2] == "id"


def int64_of(text: str, *, is_declared: bool = False) -> int | None:
    """Return the whole number that a text writes; None where it writes none, or one that int64 does not hold.

    Args:
        text: possibly with blanks and line ends around it.
        is_declared: whether a user said that it is a number; else one that says less than its text is none, such as ``0012``.
    """
    try:
        found = int(text)
    except ValueError:
        return None
    if not is_declared and str(found) != text.strip():
        return None
    return found if -_INT64 <= found < _INT64 else None


def column_name(name: str) -> str:
    """Return the column of a field."""
    return name.replace(".", "_")


class ColumnTarget(NamedTuple):
    """Where a value goes."""

    column: str
    rank: int  # of several fields that may fill the column, the one with the lowest does


@final
@dataclass(frozen=True, slots=True)
class ChosenColumns:
    """Which columns there are."""

    targets: Mapping[str, ColumnTarget] | None  # what a field or key would be called -> where it goes; None takes all
    exact: Mapping[str, ColumnTarget]  # the same by their own names, which may have dots

    def target(self, derived: str, name: str = "", others: Collection[str] = ()) -> ColumnTarget | None:
        """Return where a field, or a key of JSON, goes; None if nobody asked for it.

        Args:
            derived: what its column would be called.
            name: its own name.
            others: names of all fields; one that is called as ``derived`` is another field.
        """
        if self.targets is None:
            return ColumnTarget(derived, 0)
        if name in self.exact:
            return self.exact[name]
        found = self.targets.get(derived)
        if found is None:
            return None
        claimed = any(each in self.exact and column_name(each) == derived for each in others)
        return None if claimed or (name != derived and derived in others) else found

    def wants(self, name: str, *, is_json: bool) -> bool:
        """Whether anything of a field may be asked for."""
        derived = column_name(name)
        if self.targets is None or derived in self.targets:
            return True
        return is_json and any(each.startswith(f"{derived}_") for each in self.targets)

    def key_target(
        self, derived: str, of_field: ColumnTarget | None, key: str, name: str = "", others: Collection[str] = ()
    ) -> ColumnTarget | None:
        """Return where a key of a JSON object goes.

        Args:
            derived: the column of the member.
            of_field: where the whole member goes, if it is asked for.
            key: of the object.
            name: of the member, as it is written.
            others: names of all keys of the object, with the member's before them.
        """
        target = self.target(f"{derived}_{column_name(key)}", f"{name}.{key}", others)
        if target is None and of_field is not None:
            return ColumnTarget(f"{of_field.column}_{column_name(key)}", of_field.rank)
        return target


def choice_of(columns: Columns, schema: Declared | None = None) -> ChosenColumns:
    """Return the choice that a user made: by ``columns``, or else by the names of ``schema``.

    Args:
        columns: as `need_columns` returns them; the fields of a column are separated by ``;``, and the first that a row has
            is taken.
        schema: as `declared_columns` returns it.
    """
    if columns is None and schema is not None:
        return ChosenColumns({name: ColumnTarget(name, 0) for name, _ in schema}, {})
    if columns is None:
        return ChosenColumns(None, {})
    targets: dict[str, ColumnTarget] = {}
    exact: dict[str, ColumnTarget] = {}
    for each in columns:
        column, fields = (column_name(each), each) if isinstance(each, str) else each
        for rank, name in enumerate(fields.split(";")):
            exact[name.strip()] = targets[column_name(name.strip())] = ColumnTarget(column, rank)
    return ChosenColumns(targets, exact)


def declared_columns(what: str, schema: object, chosen: object, reserved: Collection[str] = ()) -> Declared:
    """Return the columns that a user declared of a source that has payload, as a frozen value.

    Args:
        what: the source, for messages.
        schema: as `declared` takes it.
        chosen: as `need_columns` takes it.
        reserved: names of columns that are there always.

    Raises:
        SourceError: names the column that is wrong.
    """
    found = declared(schema, what, payload=REFERENCE)
    kinds = columns(found, what, payload=REFERENCE)
    need_column_names(kinds.names, f"{what}: schema", "Dots of a name become _")
    if twice := next((name for name in kinds.names if name in reserved), None):
        msg = f"{what}: schema= has column {twice!r}, which is there always. Leave it out"
        raise SourceError(msg)
    need_readable(pa.schema([field for field in kinds if semantic_of(field) is None]), what)
    _need_agreed(what, need_columns(what, chosen), kinds.names)
    return found


def _need_agreed(what: str, columns: Columns, names: Sequence[str]) -> None:
    """Refuse columns that are chosen and not declared, or declared and not chosen.

    Args:
        what: the source, for messages.
        columns: as `need_columns` returns them.
        names: of the columns of ``schema``.

    Raises:
        SourceError: names the column.
    """
    if columns is None:
        return
    targets = choice_of(columns).targets or {}
    chosen = list(dict.fromkeys(target.column for target in targets.values()))
    for name in names:
        if not any(name == each or name.startswith(f"{each}_") for each in chosen):
            msg = f"{what}: schema= has column {shown(name)}, and columns= does not. Name it in both, or leave columns= out"
            raise SourceError(msg)
    for each in chosen:
        if not any(name == each or name.startswith(f"{each}_") for name in names):
            msg = f"{what}: columns= has {shown(each)}, and schema= does not. Name it in both, or leave columns= out"
            raise SourceError(msg)


def need_columns(what: str, columns: object) -> Columns:
    """Return the columns that a user chose, as a frozen value.

    Args:
        what: the source, for messages.
        columns: names, a mapping of columns to fields, or that mapping as pairs; None chooses all.

    Raises:
        SourceError: these are no names, or a field is named twice.
    """
    if columns is None:
        return None
    given: Any = columns.items() if isinstance(columns, Mapping) else columns
    given = given if _is_several(columns) else ()
    pairs: tuple[Any, ...] = tuple(tuple(each) if isinstance(each, list) else each for each in given)
    named = pairs if all(isinstance(each, tuple) for each in pairs) else tuple((each, each) for each in pairs)
    wrong = [pair for pair in named if len(pair) != 2 or not all(map(_is_name, pair))]  # noqa: PLR2004
    renamed = named is pairs
    wrong += [pair for pair in named if not wrong and renamed and "." in pair[0]]
    fields = [name.strip() for _, names in named if not wrong for name in names.split(";")]
    twice = next((name for at, name in enumerate(fields) if name in fields[:at]), None)
    if wrong or not named or twice is not None:
        bad = f"has {shown(wrong[0] if wrong else columns)}" if twice is None else f"names {twice!r} twice"
        msg = (
            f'{what}: columns {bad}. Give names, such as ["jpg", "cls"], or a name without a dot for each field, such as '
            '{"image": "jpg;png", "label": "cls"}'
        )
        raise SourceError(msg)
    return pairs


def parsed(kind: MemberKind, name: str, data: bytes) -> Any:
    """Return the value of a member that becomes a column.

    Raises:
        RowError: the bytes are not what the extension says.
    """
    try:
        if kind is MemberKind.JSON:
            return json.loads(data)
        if kind is MemberKind.TEXT:
            return data.decode()
        found = int(data)
    except UnicodeDecodeError as error:
        msg = f"{name} is not UTF-8 ({error.reason} at byte {error.start:,}); text would be"
        raise RowError(msg) from error
    except json.JSONDecodeError as error:
        msg = f"{name} is no JSON ({error.msg}, line {error.lineno}, column {error.colno})"
        raise RowError(msg) from error
    except (ValueError, RecursionError) as error:
        what = "no JSON that can be read" if kind is MemberKind.JSON else f"{shown(data)}, which is no whole number"
        msg = f"{name} is {what}"
        raise RowError(msg) from error
    if not -_INT64 <= found < _INT64:
        msg = f"{name} is {found}, which does not fit int64"
        raise RowError(msg)
    return found


def payload_field(name: str, kind: MemberKind, *, inline: bool) -> pa.Field:
    """Return the column of payload: references to it, or the bytes themselves."""
    return pa.field(name, INLINE if inline else REFERENCE, metadata={SEMANTIC: SEMANTICS[kind].encode()})


def _is_name(value: object) -> bool:
    return isinstance(value, str) and bool(value) and all(part.strip() for part in value.split(";"))


def _is_several(value: object) -> bool:
    return isinstance(value, Mapping | Sequence) and not isinstance(value, str | bytes)
