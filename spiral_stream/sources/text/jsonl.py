"""JSON lines: one object per line, its keys are columns; plain, gzip or zstd.

pyarrow parses blocks of lines into the columns that were declared or found. Where a block fails, halves of it are tried
until the lines at fault stand alone; Python's ``json`` then says what is wrong with each. So a file with a few bad lines
costs little more than one without, and which lines are rows depends on the lines alone.
"""

import os
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final, final

import pyarrow as pa

from spiral_stream.arguments import check, class_door
from spiral_stream.errors import SourceError, cut
from spiral_stream.sources.change_detection import content_key
from spiral_stream.sources.files.listing import set_paths
from spiral_stream.sources.files.units import Record, sound, spread, units_of
from spiral_stream.sources.import_source import (
    ON_ERROR,
    RAISE,
    SKIP,
    ImportedSource,
    ImportUnit,
    Refused,
)
from spiral_stream.sources.json.lines import LineParser, need_readable, read_line
from spiral_stream.sources.json.types import (
    MixedTypesError,
    merged,
    settled,
    shape_of,
    type_of,
    without_empty,
)
from spiral_stream.sources.mosaic import is_shard, lines_units, shards_source
from spiral_stream.sources.schema import GIVE, columns, declared, need_column_names
from spiral_stream.sources.tar.links import TarLinks, need_references, tars_key, with_references, with_texts
from spiral_stream.sources.text import _records
from spiral_stream.sources.text.json_arrays import is_lines, json_blocks
from spiral_stream.sources.text.lines import Block, with_compressed

SUFFIXES: Final = with_compressed(".jsonl", ".ndjson", ".json")
SAMPLE_FILES: Final = 16  # that the columns are taken from, spread over all
SAMPLE_BYTES: Final = 4 << 20  # of them together; at least one line of each

_BLANK: Final = b" \t\r\n"


@final
@class_door(SourceError)
@dataclass(frozen=True, slots=True)
class Jsonl(ImportedSource):
    """Files of JSON lines: ``.jsonl``, ``.ndjson`` or ``.json``, each also ``.gz`` or ``.zst``.

    A ``.json`` file may be one array of objects instead; then its objects are counted as lines.

    A big file that is not compressed is read in parts, by as many workers as there are.

    A folder that Mosaic's JSONWriter wrote is read by its index.json, as `Mds` reads it.

    Objects become structs and arrays become lists. A key that a line lacks is null there.

    Args:
        path: a file, a folder (searched below), a glob, a brace pattern such as ``part-{000..007}.jsonl.gz``, or a list of
            these.
        schema: the columns: a pyarrow Schema, or a dict of names and types such as ``{"text": "string", "n": "int64"}``.
            Other keys are left out. By default the first lines of the files decide: all keys there are columns, and a
            later line that has another key or another type is refused.
        on_error: ``"raise"``, or ``"skip"`` to leave out lines that cannot be read; they are counted.
        base: folder that relative references are resolved against; by default the common folder of the files.
        allow_outside: whether references may name files that do not lie below ``base``; by default
            only where no base is given.
        references: columns of texts that name members of tars, ``tar://shard.tar#0001.jpg``, one or a list per row, and
            the folder that the tars are named from: ``{"image": "/data"}``, or its URI on an object store; or
            ``["image"]``, named from the folder of each file. The column becomes a reference to the member's bytes.

    Examples:
        >>> size = Path("chats.jsonl").write_text('{"id": 1, "text": "fox"}')
        >>> entry = catalog.register("from-jsonl", spiral.sources.Jsonl("chats.jsonl"), identity="id")
        >>> catalog.table("from-jsonl").count()
        1
    """

    KIND: ClassVar[str] = "jsonl"
    PATHS: ClassVar[tuple[str, ...]] = ("path", "base")
    path: str | tuple[str, ...]
    schema: Any = None
    on_error: str = RAISE
    base: str = None  # type: ignore[assignment]  # which __post_init__ sets
    allow_outside: bool | None = None
    references: Any = ()

    def __post_init__(self) -> None:
        check(self, "Jsonl", "=", SourceError, on_error=ON_ERROR)
        set_paths(self, "Jsonl")
        object.__setattr__(self, "references", need_references("Jsonl", self.references))
        if self.schema is not None:
            object.__setattr__(self, "schema", declared(self.schema, "Jsonl"))
            kinds = columns(self.schema, "Jsonl")
            need_column_names(kinds.names, "Jsonl", "Leave it out")
            need_readable(kinds, "Jsonl")

    def import_units(self) -> Sequence[ImportUnit]:
        given = {"references": self.references}
        units = lines_units(self.path, "Jsonl", SUFFIXES, ("json",), given)
        if not self.references:
            return units
        keys = {folder: tars_key(self.references, folder) for folder in {_folder(unit) for unit in units}}
        tars = [keys[_folder(unit)] for unit in units]
        return [
            replace(unit, content_key=content_key(unit.content_key, tar), also=tar)
            for unit, tar in zip(units, tars, strict=True)
        ]

    def import_pieces(self, files: Sequence[ImportUnit]) -> Sequence[ImportUnit]:
        return files if is_shard(files[0]) else units_of(files, parted=is_lines)

    def import_schema(self, units: Sequence[ImportUnit]) -> pa.Schema:
        if is_shard(units[0]):
            return shards_source(self.path, self.on_error, self.schema).import_schema(units)
        schema = self._text_schema(units)
        if not self.references:
            return schema
        first = next(self._texts(units[0], schema, Refused(units[0], SKIP)), schema.empty_table())
        return with_references(schema, self.references, _folder(units[0]), first, "Jsonl")

    def _text_schema(self, units: Sequence[ImportUnit]) -> pa.Schema:
        if self.schema is not None:
            return columns(self.schema, "Jsonl")
        return _schema_of(spread(units, SAMPLE_FILES), self.on_error)

    def import_rows(self, unit: ImportUnit, schema: pa.Schema, refused: Refused) -> Iterator[pa.RecordBatch]:
        if is_shard(unit):
            yield from shards_source(self.path, self.on_error, self.schema).import_rows(unit, schema, refused)
            return
        texts = with_texts(schema, self.references)
        links = TarLinks(self.references, _folder(unit), self.base, schema) if self.references else None
        for table in self._texts(unit, texts, refused):
            for batch in table.to_batches():
                yield batch if links is None else links.resolved(batch, refused)

    def _texts(self, unit: ImportUnit, schema: pa.Schema, refused: Refused) -> Iterator[pa.Table]:
        """The rows of a file with references as texts."""
        lines = JsonLines(schema, refused, known_only=self.schema is None)
        for block in json_blocks(unit, refused):
            yield from lines.tables(block)


def _folder(unit: ImportUnit) -> str:
    return os.path.dirname(unit.path)  # noqa: PTH120


@final
class JsonLines:
    """Lines of one file to rows."""

    def __init__(self, schema: pa.Schema, refused: Refused, *, known_only: bool) -> None:
        self._parser, self._refused = LineParser(schema, known_only=known_only), refused

    def tables(self, block: Block) -> Iterator[pa.Table]:
        """Yield the rows of a block."""
        rows, plain = _records.objects(block.data)
        if not rows:
            return
        table = self._parser.table(block.data, rows) if plain else None
        if table is not None:
            yield table
            return
        lines = block.data.split(b"\n")
        numbered = [(block.line + at, line) for at, line in enumerate(lines) if line.strip(_BLANK)]
        yield from sound(numbered, self._together, self._refuse)

    def _together(self, lines: Sequence[Record]) -> pa.Table | None:
        """The rows of lines, or None if they cannot be read together."""
        data = b"\n".join(line for _, line in lines)
        plain = _records.objects(data)[1] or (len(lines) == 1 and _is_object(data))
        return self._parser.table(data, len(lines)) if plain else None

    def _refuse(self, line: Record) -> None:
        self._refused.line(*line, self._parser.fault(line[1]))


def _schema_of(units: Sequence[ImportUnit], on_error: str) -> pa.Schema:
    """The columns of the first lines of files.

    Raises:
        SourceError: there are none, or two lines contradict each other; says where.
    """
    kind, seen, room = pa.struct([]), set[Hashable](), max(SAMPLE_BYTES // len(units), 1 << 18)
    for unit in units:
        refused = Refused(unit, on_error)
        for number, line in _first_lines(unit, refused, room):
            value, fault = read_line(line)
            if fault:
                refused.line(number, line, fault)
                continue
            try:
                shape = shape_of(value)
                if shape not in seen:
                    seen.add(shape)
                    kind = merged(kind, type_of(value))
            except (MixedTypesError, RecursionError) as error:
                why = str(error) if isinstance(error, MixedTypesError) else "it is nested too deeply"
                msg = f"{cut(unit.path)}, line {number}: {why}. {GIVE}, or make the lines alike"
                raise SourceError(msg) from error
    kind = without_empty(kind)
    if not kind.num_fields:
        msg = f"Jsonl: no line of {cut(units[0].path)}{' and others' if len(units) > 1 else ''} has keys. {GIVE}"
        raise SourceError(msg)
    columns_found = [(field.name, settled(field.type)) for field in kind]
    need_column_names(
        [name for name, _ in columns_found], f"Jsonl: {cut(units[0].path)}", f"Rename it, or leave it out. {GIVE}"
    )
    return pa.schema(columns_found)


def _first_lines(unit: ImportUnit, refused: Refused, room: int) -> Iterator[tuple[int, bytes]]:
    """The first lines of a file that are not blank, with their numbers: some ``room`` bytes."""
    for block in json_blocks(unit, refused, room):
        for number, line in enumerate(block.data.split(b"\n"), start=block.line):
            if line.strip(_BLANK):
                yield number, line
            room -= len(line) + 1
            if room <= 0:
                return


def _is_object(line: bytes) -> bool:
    """Whether a line is one object for sure, whatever pyarrow makes of it."""
    return not read_line(line)[1]
