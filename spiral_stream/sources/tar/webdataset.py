"""Tars of samples, as the webdataset library writes them: an index of what lies where, and the small members as columns.

A tar is one unit. Payload stays in the tars and is read by offset, so registering reads headers and small members only.
Tars that are compressed as a whole have no offsets: their payload is copied.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, ClassVar, Final, cast, final

import pyarrow as pa

from spiral_stream.arguments import check, class_door, one_of
from spiral_stream.display.progress import working
from spiral_stream.errors import SourceError, anew, cut, shown, warn
from spiral_stream.sources.change_detection import content_key
from spiral_stream.sources.files.listing import Paths, absolute_paths, common_folder, listed_units, need_one_root
from spiral_stream.sources.files.paths import reference_to
from spiral_stream.sources.import_source import (
    KEY,
    ON_ERROR,
    RAISE,
    SKIP,
    ImportedSource,
    ImportUnit,
    Refused,
)
from spiral_stream.sources.schema import columns
from spiral_stream.sources.tar.regular import deciding_values, regular_batches
from spiral_stream.sources.tar.rows import FieldTargets, FoundRow, TarFields, TarFile, TarRows, batches, schema_of
from spiral_stream.sources.tar.samples import (
    INLINE,
    REFERENCE,
    ChosenColumns,
    Columns,
    choice_of,
    declared_columns,
    need_columns,
)
from spiral_stream.sources.tar.stream import COMPRESSED, PLAIN, is_compressed
from spiral_stream.storage.faults import AwayError
from spiral_stream.storage.file_object import look_all, maps
from spiral_stream.storage.store import ObjectStat
from spiral_stream.storage.uri import joined, parse_uri
from spiral_stream.threads import Workers, thread_share

FIRST: Final = "first"
LAST: Final = "last"
_KEY: Final = one_of((FIRST, LAST), '"first" or "last": the dot that ends the key of 0001.seg.png')
Sidecars = tuple[tuple[str, str, str], ...]  # name, what is replaced in the path of a tar, by what
_LOOKED_AT: Final = 16  # tars, for the columns that there are
ROWS: Final = 1000  # of the first of them
OTHERS: Final = 100  # rows of each other
_THREADS: Final = 8  # at most, to look at tars on a store


@final
@class_door(SourceError)
@dataclass(frozen=True, slots=True)
class WebDataset(ImportedSource):
    """Tars whose members are samples: neighbours with the same key are one row.

    | member | column |
    |---|---|
    | ``.jpg .jpeg .png .webp`` and other images | reference, ``image/jpeg-ref`` |
    | ``.mp4 .mkv .avi`` and other videos | reference, ``video/h264-ref`` |
    | ``.txt .text .caption .transcript`` | utf8 |
    | ``.cls .cls2 .class .count .index .inx .id`` | int64 |
    | ``.json .jsn`` | one for each top-level key: ``json_<key>`` |
    | everything else, such as ``.npy .flac .pth`` | reference, ``application/bytes-ref`` |

    Column ``__key__`` holds the key. A dot in the name of a field becomes ``_``: ``0001.seg.png`` is column ``seg_png``. A
    member that a row lacks is null. The columns are those of the first rows of up to 16 of the tars; a later row that has
    another is refused.

    Args:
        path: a tar, a folder, a glob, a brace pattern, or a list of them. ``.tar``, or compressed: ``.tar.gz .tgz .tar.bz2
            .tar.xz .tar.zst``, whose payload is copied.
        key: ``"first"`` splits a file's name at its first dot into key and field, ``"last"`` at its last.
        columns: which to keep: ``["jpg", "cls", "json.width"]``; or under which names: ``{"image": "jpg;png", "label":
            "cls"}``, where the first field that a row has is taken. None keeps all.
        sidecars: tars of further fields for the same keys: ``{"depth": ("/images/", "/depth/")}`` replaces the one text in
            the path of each tar by the other. Field ``png`` there is column ``depth_png``.
        on_error: what to do with a row that cannot be read: ``"raise"``, or ``"skip"`` and count it.
        schema: the columns: a pyarrow Schema, or a dict of names and types such as ``{"jpg": "image/jpeg-ref", "cls": "int64",
            "json_caption": "string"}``. Other members and keys are left out, and what a row lacks is null. Payload is
            ``"image/jpeg-ref"``, ``"video/h264-ref"`` or ``"application/bytes-ref"``, as in the table.

    Raises:
        SourceError: an argument is not of this form.

    Examples:
        >>> import tarfile
        >>> with tarfile.open("shard-0.tar", "w") as tar:
        ...     for name, data in (("a.jpg", jpeg(9)), ("a.cls", b"3")):
        ...         member = tarfile.TarInfo(name)
        ...         member.size = len(data)
        ...         tar.addfile(member, io.BytesIO(data))
        >>> entry = catalog.register("from-tars", spiral.sources.WebDataset("shard-0.tar"), identity="__key__")
        >>> catalog.table("from-tars").count()
        1
    """

    KIND: ClassVar[str] = "webdataset"

    path: Paths
    key: str = FIRST
    columns: Columns | Mapping[str, str] | Sequence[str] = None
    sidecars: Sidecars | Mapping[str, tuple[str, str]] = ()
    on_error: str = RAISE
    schema: Any = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", absolute_paths(self.path, "WebDataset"))
        check(self, "WebDataset", "=", SourceError, key=_KEY)
        object.__setattr__(self, "columns", need_columns("WebDataset", self.columns))
        object.__setattr__(self, "sidecars", _need_sidecars(self.sidecars))
        check(self, "WebDataset", "=", SourceError, on_error=ON_ERROR)
        if self.schema is not None:
            object.__setattr__(self, "schema", declared_columns("WebDataset", self.schema, self.columns, (KEY,)))

    @property
    def _sidecars(self) -> Sidecars:
        return cast("Sidecars", self.sidecars)

    @property
    def base(self) -> str:
        folder = common_folder(self.path)
        if not self._sidecars:
            return folder
        others = [joined(f"{folder}/".replace(old, new), "") for _, old, new in self._sidecars]
        return _common([folder, *others])

    def import_units(self) -> Sequence[ImportUnit]:
        need_one_root(self.path, "WebDataset")
        units = listed_units(self.path, "WebDataset", (PLAIN, *COMPRESSED), self.base)
        if self._sidecars:
            units = self._with_sidecars(units)
        _need_one_kind(units)
        return units

    def import_schema(self, units: Sequence[ImportUnit]) -> pa.Schema:
        chosen = units[:: max(1, len(units) // _LOOKED_AT)][:_LOOKED_AT]
        found = TarFields(self.on_error == SKIP or self.schema is not None)
        if maps(units[0].path) or is_compressed(units[0].path):  # payload of compressed ones would fill the memory
            for unit, count in zip(chosen, _counts(chosen), strict=True):
                self._look(unit, count, found)
        else:
            for unit, looked in zip(chosen, self._looked(chosen), strict=True):
                found.add(looked, unit.path)
        self._need_found(found, units)
        inline = is_compressed(units[0].path)
        declared = self._declared(INLINE if inline else REFERENCE)
        return (
            schema_of(found.kinds, inline=inline) if declared is None else declared.insert(0, pa.field(KEY, pa.utf8()))
        )

    def import_rows(self, unit: ImportUnit, schema: pa.Schema, refused: Refused) -> Iterator[pa.RecordBatch]:
        if self._may_be_regular(unit):
            targets = FieldTargets("", self._choice(), None)
            found = regular_batches(unit.path, reference_to(unit.name), schema, targets, last=self.key == LAST)
            if found is not None:
                yield from found
                return
        with self._rows(unit) as rows:
            yield from batches(rows, schema, refused, self._declared(REFERENCE))

    def _declared(self, payload: pa.DataType) -> pa.Schema | None:
        """The columns that the user declared."""
        return None if self.schema is None else columns(self.schema, "WebDataset", payload=payload)

    def _choice(self) -> ChosenColumns:
        return choice_of(need_columns("WebDataset", self.columns), self.schema)

    def _may_be_regular(self, unit: ImportUnit) -> bool:
        """Whether `regular` may read a tar."""
        return not unit.others and self.schema is None and maps(unit.path) and not is_compressed(unit.path)

    def _look(self, unit: ImportUnit, count: int, found: TarFields) -> None:
        """Note the columns of the first rows of a tar."""
        if self._may_be_regular(unit):
            targets = FieldTargets("", self._choice(), None)
            values = deciding_values(unit.path, reference_to(unit.name), targets, count, last=self.key == LAST)
            if values is not None and found.add_values(values):
                return
        with self._rows(unit) as rows:
            found.add(islice(rows, count), unit.path)

    def _looked(self, units: Sequence[ImportUnit]) -> Iterator[list[FoundRow]]:
        """The first rows of each tar on a store, which are read together."""

        def read(unit: ImportUnit, count: int) -> list[FoundRow]:
            with self._rows(unit) as rows:
                return list(islice(rows, count))

        with (
            working("looking at the first samples of the tars", "tars"),
            Workers(thread_share().waiting(_THREADS), "spiral-columns") as pool,
        ):
            yield from pool.map(read, units, _counts(units))

    def _rows(self, unit: ImportUnit) -> TarRows:
        base = self.base
        sidecars = [
            TarFile(path, reference_to(os.path.relpath(path, base)), f"{name}.", unit.facts(path))
            for (name, _, _), path in zip(self._sidecars, unit.others, strict=True)
        ]
        return TarRows(
            TarFile(unit.path, reference_to(unit.name), seen=unit.facts(unit.path)),
            sidecars,
            self._choice(),
            self._declared(REFERENCE),
            last=self.key == LAST,
        )

    def _with_sidecars(self, units: Sequence[ImportUnit]) -> list[ImportUnit]:
        """The units with their sidecars, which are looked at together."""
        paths = [[_sidecar(unit.path, *each) for each in self._sidecars] for unit in units]
        sidecars = list(dict.fromkeys(path for some in paths for path in some))
        looks = dict(zip(sidecars, look_all(sidecars), strict=True))
        made = []
        for unit, others in zip(units, paths, strict=True):
            facts: list[str | int] = [unit.content_key]
            seen = []
            for (name, _, _), path in zip(self._sidecars, others, strict=True):
                found = _facts_of(path, name, unit.path, looks[path])
                facts += [name, found.size, found.mark]
                seen.append(found)
            made.append(replace(unit, others=tuple(others), content_key=content_key(*facts), seen=(*unit.seen, *seen)))
        return made

    def _need_found(self, found: TarFields, units: Sequence[ImportUnit]) -> None:
        names = [*found.kinds]
        wanted = sorted({target.column for target in (self._choice().targets or {}).values()})
        missing = next((name for name in wanted if not any(f"{each}_".startswith(f"{name}_") for each in names)), None)
        if self.schema is not None and names:
            missing = None  # it is null, unless a later row has it
        if found.fault is not None and (missing is not None or not names):
            msg = f"WebDataset: {found.fault}. Write the tar again, or leave the column out with columns=[...]"
            raise SourceError(msg)
        if missing is not None:
            all_fields = TarFields(skip=True)
            with replace(self, columns=None, schema=None)._rows(units[0]) as rows:  # noqa: SLF001  of this class
                all_fields.add(islice(rows, OTHERS), units[0].path)
            have = f"{cut(units[0].path)} has {', '.join(all_fields.kinds) or 'none'}"
            if self.schema is None:
                msg = f"WebDataset: no row that was looked at has column {missing!r}. {have}. Correct columns="
                raise SourceError(msg)
            msg = (
                f"WebDataset: no row that was looked at has a column of schema= ({', '.join(wanted)}); they are null unless a "
                f"later row has them. {have}. If these are meant, correct schema="
            )
            warn(msg)
            return
        if not names:
            msg = f"WebDataset: {cut(units[0].path)} has no members named <key>.<field>, such as 0001.jpg. Correct the path"
            raise SourceError(msg)


def _counts(units: Sequence[ImportUnit]) -> list[int]:
    """How many rows of each tar are looked at."""
    return [ROWS, *[OTHERS] * (len(units) - 1)]


def _need_sidecars(sidecars: object) -> Sidecars:
    given = [(name, *_pair(pair)) for name, pair in sidecars.items()] if isinstance(sidecars, Mapping) else sidecars
    if not isinstance(given, list | tuple):
        raise _no_sidecars(sidecars)
    for each in given:
        is_triple = isinstance(each, list | tuple) and len(each) == 3 and all(isinstance(text, str) for text in each)  # noqa: PLR2004
        if not is_triple or not each[0] or "." in each[0] or not each[1]:
            raise _no_sidecars(sidecars)
    return tuple((name, old, new) for name, old, new in given)


def _pair(value: object) -> tuple[object, ...]:
    return tuple(value) if isinstance(value, list | tuple) else (value,)


def _no_sidecars(found: object) -> SourceError:
    msg = (
        f"WebDataset: sidecars={shown(found)}. Give a name without dots for each, and what to replace in the path of a tar: "
        '{"depth": ("/images/", "/depth/")}'
    )
    return SourceError(msg)


def _sidecar(path: str, name: str, old: str, new: str) -> str:
    """Where the sidecar of a tar lies."""
    found = joined(path.replace(old, new), "")
    if found == path:
        msg = f"WebDataset: sidecar {name!r}: {old!r} is not in {cut(path)}, so there is no path to replace it in"
        msg += ". Give a text that all paths have"
        raise SourceError(msg)
    return found


def _facts_of(path: str, name: str, main: str, seen: ObjectStat | SourceError) -> ObjectStat:
    """What a sidecar is like, as a look said."""
    if isinstance(seen, AwayError):
        raise anew(seen)
    if isinstance(seen, SourceError):
        msg = f"WebDataset: sidecar {name!r} of {cut(main)} would be {seen}; or leave the tar out, or correct sidecars="
        raise SourceError(msg)
    if is_compressed(path):
        msg = f"WebDataset: sidecar {cut(path)} is compressed, and sidecars are read by offset. Uncompress it"
        raise SourceError(msg)
    return seen


def _common(folders: Sequence[str]) -> str:
    """The folder that folders lie below.

    Raises:
        SourceError: they lie in different stores.
    """
    folder_uris = [parse_uri(folder) for folder in folders]
    if len({folder_uri.root for folder_uri in folder_uris}) > 1:
        msg = (
            f"WebDataset: {cut(folders[0])} and {cut(folders[1])} lie in different buckets, and a row names its files from one "
            "folder. Copy the sidecars into the bucket of the tars"
        )
        raise SourceError(msg)
    key = os.path.commonpath([f"/{folder_uri.key}" for folder_uri in folder_uris]).strip("/")
    return f"{folder_uris[0].root}/{key}".rstrip("/") or "/"


def _need_one_kind(units: Sequence[ImportUnit]) -> None:
    packed = [is_compressed(unit.path) for unit in units]
    if any(packed) and not all(packed):
        one, other = units[packed.index(True)], units[packed.index(False)]
        msg = (
            f"WebDataset: {cut(one.name)} is compressed and {cut(other.name)} is not: payload is copied from the one, and stays "
            "in the other. Register them as two relations, or uncompress the first"
        )
        raise SourceError(msg)
    if any(packed) and any(unit.others for unit in units):
        msg = f"WebDataset: {cut(units[0].name)} is compressed, and has sidecars. Uncompress it, or leave sidecars= out"
        raise SourceError(msg)
