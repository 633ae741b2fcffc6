"""Tables as text: CSV, TSV and the like; plain, gzip or zstd.

Blocks of whole records are parsed by pyarrow. Where a block fails, halves of it are tried until the records at fault
stand alone. Which records are rows, and their values, depend on the records and the columns' types alone.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, final

import pyarrow as pa

from spiral_stream.arguments import FLAG, check, class_door, of_kind
from spiral_stream.display.progress import working
from spiral_stream.errors import SourceError, cut, shown
from spiral_stream.sources.files.listing import set_paths
from spiral_stream.sources.files.units import Record, sound, spread, units_of
from spiral_stream.sources.import_source import ON_ERROR, RAISE, ImportedSource, ImportUnit, Refused
from spiral_stream.sources.mosaic import is_shard, lines_units, shards_source
from spiral_stream.sources.schema import columns, declared, need_column_names
from spiral_stream.sources.text.csv_records import Chunk, CsvForm, chunks, names_of, need_names
from spiral_stream.sources.text.csv_types import FALSE, TRUE, ColumnGuess, OddNumbers, guess_of, inexact, needs_texts
from spiral_stream.sources.text.lines import BLOCK_BYTES, is_plain, with_compressed
from spiral_stream.threads import Workers, thread_share

SUFFIXES: Final = with_compressed(".csv", ".tsv")
SAMPLE_FILES: Final = 16  # that types are taken from, spread over all
SAMPLE_BYTES: Final = 16 << 20  # of them together
SAMPLE_THREADS: Final = 8  # at most, that look at them
_WORDS: Final = {"true_values": list(TRUE), "false_values": list(FALSE)}  # 0 and 1 among them are no truth values
_GIVE: Final = 'schema={"name": "type", ...}'
_INVALID: Final = re.compile(
    r"In CSV column #(\d+): (?:Row #\d+: )?CSV conversion error to (.*?): invalid value '(.*)'", re.DOTALL
)
_COUNT: Final = re.compile(r"Expected (\d+) columns, got (\d+)")


@final
@class_door(SourceError)
@dataclass(frozen=True, slots=True)
class Csv(ImportedSource):
    """Files of comma-separated values: ``.csv`` or ``.tsv``, each also ``.gz`` or ``.zst``.

    A folder that Mosaic's CSVWriter or TSVWriter wrote is read by its index.json, as `Mds` reads it: nothing is quoted there.

    The first line of each file names its columns. One without a name is called ``column_1``, by its place, and a dot, a
    backtick, or a ``*`` alone becomes ``_``. In columns of numbers, truth values and times, an empty field, ``NA``,
    ``null`` and ``nan`` are null; a column of text keeps every text as it is. Empty lines are left out.

    Args:
        path: a file, a folder (searched below), a glob, a brace pattern such as ``part-{000..007}.csv``, or a list of these.
        schema: the columns: a pyarrow Schema, or a dict of names and types such as ``{"text": "string", "n": "int64"}``.
            Other columns are left out, and one that a file lacks is null there. By default the first lines of the files
            decide between integers, floats, truth values and text; texts that a number would say less than, such as ``0012``
            and ``0x1F``, stay text.
        column_names: the names of the columns, for files whose first line is a row.
        delimiter: between two fields; by default a tab in ``.tsv`` files and a comma in others.
        quote: around fields that hold a delimiter, a quote (then two of them) or a line end; None if no field is quoted.
        on_error: ``"raise"``, or ``"skip"`` to leave out rows that cannot be read; they are counted.
        base: folder that relative references are resolved against; by default the common folder of the files.
        allow_outside: whether references may name files that do not lie below ``base``; by default
            only where no base is given.
        newlines_in_values: whether a quoted field may hold a line end. If not, or without a quote, a big file that is not
            compressed is read in parts, by as many workers as there are.

    Examples:
        >>> from pyarrow import csv
        >>> csv.write_csv(pa.table({"id": [1, 2], "price": [2.5, 3.5]}), "prices.csv")
        >>> entry = catalog.register("from-csv", spiral.sources.Csv("prices.csv"), identity="id")
        >>> catalog.table("from-csv").select("id", "price").to_arrow()["price"].to_pylist()
        [2.5, 3.5]
    """

    KIND: ClassVar[str] = "csv"
    PATHS: ClassVar[tuple[str, ...]] = ("path", "base")
    path: str | tuple[str, ...]
    schema: Any = None
    column_names: tuple[str, ...] | None = None
    delimiter: str | None = None
    quote: str | None = '"'
    on_error: str = RAISE
    base: str = None  # type: ignore[assignment]  # which __post_init__ sets
    allow_outside: bool | None = None
    newlines_in_values: bool = True

    def __post_init__(self) -> None:
        check(self, "Csv", "=", SourceError, on_error=ON_ERROR, newlines_in_values=FLAG)
        set_paths(self, "Csv")
        for name in ("delimiter", "quote"):
            _need_letter(name, getattr(self, name))
        if self.column_names is not None:
            check(self, "Csv", "=", SourceError, column_names=of_kind(list | tuple, "a list of names"))
            object.__setattr__(self, "column_names", tuple(self.column_names))
            need_names(self.column_names, "column_names")
            need_column_names(self.column_names, "Csv: column_names", "Choose another name")
        if self.schema is not None:
            object.__setattr__(self, "schema", declared(self.schema, "Csv"))
            kinds = columns(self.schema, "Csv")
            need_column_names(kinds.names, "Csv: schema", "Dots and backticks of a header become _")
            _need_readable(kinds)

    def import_units(self) -> Sequence[ImportUnit]:
        given = {"column_names": self.column_names, "delimiter": self.delimiter}
        return lines_units(self.path, "Csv", SUFFIXES, ("csv", "tsv"), given)

    def import_pieces(self, files: Sequence[ImportUnit]) -> Sequence[ImportUnit]:
        if is_shard(files[0]):
            return files
        return units_of(files, parted=lambda file: self.form_of(file.path).enclosing is None and is_plain(file))

    def import_schema(self, units: Sequence[ImportUnit]) -> pa.Schema:
        if is_shard(units[0]):
            return shards_source(self.path, self.on_error, self.schema).import_schema(units)
        if self.schema is not None:
            schema = columns(self.schema, "Csv")
            self._need_there(schema.names, units)
            return schema
        return _schema_of(self, spread(units, SAMPLE_FILES))

    def import_rows(self, unit: ImportUnit, schema: pa.Schema, refused: Refused) -> Iterator[pa.RecordBatch]:
        if is_shard(unit):
            yield from shards_source(self.path, self.on_error, self.schema).import_rows(unit, schema, refused)
            return
        rows: _Rows | None = None
        for names, chunk in chunks(self.form_of(unit.path), unit, refused, BLOCK_BYTES):
            rows = rows or _Rows(self, unit, names, schema, refused)
            for table in rows.tables(chunk):
                yield from table.to_batches()

    def _need_there(self, names: Sequence[str], units: Sequence[ImportUnit]) -> None:
        """Refuse a declared column that no file has: mostly the first files are looked at alone.

        Raises:
            SourceError: names the column, and those of the first file.
        """
        left, there = list(names), ""
        for unit in units:
            found = names_of(self.form_of(unit.path), unit, self.on_error)
            there = there or (f"{cut(unit.path)} has {', '.join(map(cut, found))}" if found else "")
            left = [name for name in left if name not in found]
            if not left:
                return
        if there:
            msg = f"Csv: no file has a column {shown(left[0])}; {there}. Correct schema="
            raise SourceError(msg)

    def form_of(self, path: str) -> CsvForm:
        """Return how a file is written."""
        by_name = "\t" if path.endswith(with_compressed(".tsv")) else ","
        return CsvForm(self.delimiter or by_name, self.quote, self.column_names, not self.newlines_in_values)


@final
class _Rows:
    """Records of one file to rows."""

    def __init__(
        self, source: Csv, unit: ImportUnit, names: tuple[str, ...], schema: pa.Schema, refused: Refused
    ) -> None:
        import pyarrow.csv as pc

        missing = [name for name in schema.names if name not in names]
        if missing and source.schema is None:
            msg = f"{cut(unit.path)} has no column {shown(missing[0])}; it has {', '.join(map(cut, names))}. Register it alone, "
            msg += f"or name the columns, which are null where a file lacks them: {_GIVE}"
            raise SourceError(msg)
        others = [name for name in names if name not in schema.names]
        if others and source.schema is None:
            msg = (
                f"{cut(unit.path)} has a column {shown(others[0])} that others lack. Name the columns to read: {_GIVE}"
            )
            raise SourceError(msg)
        self._names, self._schema, self._refused = names, schema, refused
        types = {name: schema.field(name).type for name in schema.names}
        guessed = source.schema is None
        words = _WORDS if guessed else {}
        self._convert = pc.ConvertOptions(
            column_types=types, include_columns=schema.names, include_missing_columns=bool(missing), **words
        )
        self._form = source.form_of(unit.path)
        self._parse = _parse_options(self._form)
        numbers = [n for n, kind in types.items() if pa.types.is_integer(kind) or pa.types.is_floating(kind)]
        self._guessed_numbers = numbers if guessed else []
        self._way_out = f". Give the columns: {_GIVE}" if guessed else ""

    def tables(self, chunk: Chunk) -> Iterator[pa.Table]:
        """Yield the rows of a chunk."""
        count = chunk.rows()
        table = self._table(chunk.data, count) if count else None
        if table is not None:
            yield table
        elif count:
            yield from sound(chunk.records(), self._together, self._refuse)

    def _table(self, data: bytes, rows: int) -> pa.Table | None:
        try:
            return self._read(data, rows)
        except (pa.ArrowException, ValueError):
            return None

    def _together(self, records: Sequence[Record]) -> pa.Table | None:
        return self._table(b"".join(data for _, data in records), len(records))

    def _refuse(self, record: Record) -> None:
        try:
            self._read(record[1], 1)
            fault = "it cannot be read"
        except _RowError as error:
            fault = str(error)
        except (pa.ArrowException, ValueError) as error:
            fault = self._fault(str(error), record[1])
        self._refused.line(*record, fault)

    def _read(self, data: bytes, rows: int) -> pa.Table:
        """The rows of records.

        Raises:
            ValueError: they cannot be read; pyarrow's errors are among them.
        """
        if self._form.lines and self._form.has_enclosed(data):
            msg = (
                "a quote is not closed in its line, and newlines_in_values=False says that every field ends in its line"
            )
            raise _RowError(msg + f". Near {shown(data[:60])}")
        table = _read(data, self._names, self._parse, self._convert)
        if len(table) != rows:
            msg = f"it holds {len(table)} rows. One row would be right"
            raise _RowError(msg)
        if self._guessed_numbers:
            self._need_exact(table, data)
        return table.select(self._schema.names)

    def _need_exact(self, table: pa.Table, data: bytes) -> None:
        """Refuse numbers that do not say all that their texts say, in columns whose type was taken from the first rows.

        Raises:
            ValueError: names the column, the text and its type.
        """
        odd = OddNumbers(data, self._form.delimiter, self._form.quote)
        doubtful = [name for name in self._guessed_numbers if needs_texts(table.column(name), odd)]
        texts = _texts(data, self._names, self._parse, doubtful)
        for name in doubtful:
            if (text := inexact(table.column(name), texts.column(name))) is not None:
                kind = table.schema.field(name).type
                msg = f"column {shown(name)} holds {shown(text, 60)}, and is {kind}, which would lose a part of it"
                raise _RowError(msg + self._way_out)

    def _fault(self, said: str, record: bytes) -> str:
        if found := _COUNT.search(said):
            wanted, count = found.groups()
            return f"it has {count} fields, and {wanted} columns are named. Near {shown(record[:60])}"
        if found := _INVALID.search(said):
            place, kind, value = found.groups()
            return f"column {shown(self._names[int(place)])} holds {shown(value, 60)}, and is {kind}{self._way_out}"
        if "UTF8" in said:
            return f"it is not UTF-8, near {shown(record[:60])}"
        return f"{cut(said)}. One row would be right"


def _read(data: bytes, names: Sequence[str], parse: Any, convert: Any) -> pa.Table:
    import pyarrow.csv as pc

    options = pc.ReadOptions(use_threads=False, block_size=len(data) + 1, column_names=names)
    return pc.read_csv(pa.BufferReader(data), read_options=options, parse_options=parse, convert_options=convert)


def _texts(data: bytes, names: Sequence[str], parse: Any, wanted: Sequence[str]) -> pa.Table:
    """Some columns as they are written."""
    import pyarrow.csv as pc

    if not wanted:
        return pa.table({})
    types = dict.fromkeys(wanted, pa.utf8())
    return _read(data, names, parse, pc.ConvertOptions(column_types=types, include_columns=list(wanted)))


class _RowError(ValueError):
    """What is wrong with a row, in our words."""


def _parse_options(form: CsvForm) -> Any:
    import pyarrow.csv as pc

    return pc.ParseOptions(
        delimiter=form.delimiter,
        quote_char=form.quote or False,
        double_quote=bool(form.quote),
        newlines_in_values=bool(form.quote),
    )


def _schema_of(source: Csv, units: Sequence[ImportUnit]) -> pa.Schema:
    """The columns of the first lines of files.

    Raises:
        SourceError: a file has no header, or other columns.
    """
    kinds: dict[str, ColumnGuess] = {}
    room = max(SAMPLE_BYTES // len(units), 1 << 20)
    with (
        working("looking at the first rows of the files", "files"),
        Workers(thread_share().waiting(SAMPLE_THREADS), "spiral-columns") as pool,
    ):
        for found in pool.map(lambda unit: _first_types(source, unit, room), units):
            for name, guess in found.items():
                kinds[name] = kinds.get(name, ColumnGuess()).wider(guess)
    if not kinds:
        msg = f"Csv: {cut(units[0].path)}{' and others' if len(units) > 1 else ''} have no rows. Give the columns: {_GIVE}"
        raise SourceError(msg)
    return pa.schema([(name, guess.type) for name, guess in kinds.items()])


def _first_types(source: Csv, unit: ImportUnit, room: int) -> Mapping[str, ColumnGuess]:
    """The columns of the first lines of a file; none of an empty one."""
    import pyarrow.csv as pc

    form = source.form_of(unit.path)
    for names, chunk in chunks(form, unit, Refused(unit, source.on_error), room):
        parse = _parse_options(form)
        parse.invalid_row_handler = _skip
        try:
            table = _read(chunk.data, names, parse, pc.ConvertOptions(check_utf8=False, **_WORDS))
            odd = OddNumbers(chunk.data, form.delimiter, form.quote)
            doubtful = [name for name in table.column_names if needs_texts(table.column(name), odd)]
            texts = _texts(chunk.data, names, parse, doubtful)
        except pa.ArrowException as error:
            msg = f"{cut(unit.path)}: {cut(str(error))}. Correct the file, or give the columns: {_GIVE}"
            raise SourceError(msg) from error
        return {
            name: guess_of(table.column(name), texts.column(name) if name in doubtful else None)
            for name in table.column_names
        }
    return {}


def _skip(row: Any) -> str:  # noqa: ARG001  it is named when rows are read
    return "skip"


def _need_letter(name: str, value: object) -> None:
    if value is None:
        return
    if not isinstance(value, str) or len(value) != 1 or not value.isascii() or value in "\r\n":
        msg = (
            f'Csv: {name}={shown(value)}. Give one ASCII character, such as "{"," if name == "delimiter" else chr(34)}"'
        )
        raise SourceError(msg)


def _need_readable(schema: pa.Schema) -> None:
    """Refuse declared types that no text field is read as.

    Raises:
        SourceError: names the column.
    """
    import pyarrow.csv as pc

    for field in schema:
        try:
            _read(
                b"x\n",
                [field.name],
                _parse_options(CsvForm(",", '"', None)),
                pc.ConvertOptions(column_types={field.name: field.type}, null_values=["x"]),
            )
        except pa.ArrowNotImplementedError as error:
            msg = f"Csv: column {shown(field.name)} is {field.type}, which no field is read as. Give a number, text or time"
            raise SourceError(msg) from error
