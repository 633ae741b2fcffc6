"""The process in which SQL text runs: DuckDB over rows that its caller sends, and nothing else.

A text that somebody else wrote may recurse without end, or make one string of gigabytes
inside a function that neither the engine's memory limit nor its interrupt reaches
(measured with DuckDB 2.0: ``repeat('x', 4000000000)``, ``range(1, 2000000000)``). Here the
kernel holds the memory limit, and the caller ends the process at the deadline. The text is
one SELECT over the given relations: no file, network, extension or setting is reached.

Runs by its path, without the package: starting costs 0.2 s, and 0.1 s more where rows are read. Standard input begins with
a line of JSON and the schema of each relation. Then the process leads, and writes a line of JSON for what it does: a scan of
columns (``scan``), which it may need several times; the ``next`` batch of one, which the caller sends as the continuation of
an Arrow stream; ``rows``, after which a batch of the result follows in the same way; and at last its ``answer``, or an
``error``. So it holds no relation: the engine groups, sorts and joins what comes, and spills to a folder of the caller's.
"""

import json
import re
import resource
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, Final

if __name__ == "__main__":
    # Arrow imports both where they are installed, and nothing here asks for them: a quarter of what a query costs.
    sys.modules.update({"numpy": None, "pandas": None})  # type: ignore[dict-item]

import duckdb
import pyarrow as pa

SETTINGS: Final = {
    "threads": "1",
    "enable_external_access": "false",  # its own file readers drop NaN rows by statistics, too
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "allow_community_extensions": "false",
    "python_enable_replacements": "false",
    "temp_directory": "",
}
# Table functions that make rows; all others read files, settings, or other text.
MAKERS: Final = frozenset(("generate_series", "json_each", "json_tree", "range", "repeat", "repeat_row", "unnest"))
SETTING_READERS: Final = frozenset(("current_setting", "getvariable"))
# The engine says which functions differ by call, by moment or by session. These say the same in every process of ours, or fail.
STEADY: Final = frozenset(
    ("current_database", "current_schema", "current_schemas", "error", "in_search_path", "make_timestamptz")
)
CLOCK_MACROS: Final = frozenset(("ago", "current_localtime", "current_localtimestamp"))  # of which it says nothing
CLOCKS: Final = frozenset(("current_date", "current_time", "current_timestamp", "localtime", "localtimestamp"))
_MAY_DIFFER: Final = """
    SELECT lower(function_name) FROM duckdb_functions() GROUP BY 1
    HAVING bool_or(stability = 'VOLATILE')
        OR bool_or(stability = 'CONSISTENT_WITHIN_QUERY')
           AND NOT bool_or(parameter_types::VARCHAR SIMILAR TO '.*(WITH TIME ZONE|TIMESTAMPTZ).*')
"""  # what takes a time with its zone depends on the session's zone, which is UTC always
_BATCH_ROWS: Final = 65_536
_ENGINE_SHARE: Final = (
    0.6  # of the memory limit: beyond, the engine spills. The rest is for batches, and inside functions
)
HELD: Final = Path("/proc/self/statm")  # pages of this process, in Linux
_GRACE_S: Final = 5  # the caller ends us at the deadline; if it died before, the kernel does


class RefusedError(Exception):
    """The text is wrong; says what, for its author."""


def main() -> None:
    """Answer one request."""
    caller = Caller(sys.stdin.buffer, sys.stdout.buffer)
    request = caller.heard()
    signal.alarm(int(request["timeout_s"]) + _GRACE_S)
    schemas = {name: caller.schema() for name in request["relations"]}
    memory_bytes: int = request["memory_bytes"]
    run = request["task"] == "run"
    if run and schemas:
        import pyarrow.dataset  # noqa: F401  0.1 s, which a text that is only described does not need
    limit_memory(memory_bytes)
    try:
        used, parsed = used_relations(request["text"], list(schemas))
        chosen = {
            name: scanned(name, schemas[name], where_of(parsed, name), caller) if run else no_rows(schemas[name])
            for name in used
        }
        with session_of(chosen, memory_bytes, request["spill"]) as session:
            query = session.sql(request["text"])
            if run:
                reader = query.to_arrow_reader(_BATCH_ROWS)
                caller.rows(reader.schema, within(reader, memory_bytes))
                caller.say({"answer": {}})
            else:
                types = query.limit(0).to_arrow_table().schema  # which gives names that repeat another form
                found = pa.schema([field.with_name(name) for field, name in zip(types, query.columns, strict=True)])
                answer = {"used": used, "floats": _floats(parsed, chosen)}
                answer["unsteady"] = unsteady(parsed, chosen, session)
                caller.rows(found, iter(()))
                caller.say({"answer": answer})
    except (duckdb.Error, pa.ArrowException, OSError, MemoryError, RecursionError, ValueError, RefusedError) as error:
        caller.say({"error": str(error).strip(), "memory": is_memory(error)})


class Caller:
    """Who asked: it has the rows, and gets the result. Streams of both directions pass by the message."""

    def __init__(self, source: BinaryIO, out: BinaryIO) -> None:
        self._source, self._out = source, out
        self._scans = 0

    def heard(self) -> Any:
        """The next line of the caller."""
        return json.loads(self._source.readline())

    def say(self, what: Mapping[str, Any]) -> None:
        """Write a line to the caller."""
        self._out.write(json.dumps(what).encode() + b"\n")
        self._out.flush()

    def schema(self) -> pa.Schema:
        """Read a stream without rows."""
        return pa.ipc.open_stream(self._source).read_all().schema

    def scan(self, name: str, columns: list[str], where: Any) -> Iterator[pa.RecordBatch]:
        """Yield columns of a relation's rows, a batch of the caller at a time; it may leave rows out that fail a condition."""
        number, reader = self._scans, None
        self._scans += 1
        self.say({"scan": name, "columns": columns, "where": where})
        while True:
            self.say({"next": number})
            reader = pa.ipc.open_stream(self._source) if reader is None else reader
            try:
                yield reader.read_next_batch()
            except StopIteration:
                return

    def rows(self, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> None:
        """Send the result."""
        writer = pa.ipc.new_stream(self._out, schema)  # closed only if nothing fails: closing writes
        for batch in batches:
            self.say({"rows": True})
            writer.write_batch(batch)
        self.say({"rows": False})
        writer.close()


def where_of(parsed: Any, name: str) -> dict[str, Any] | None:
    """Return what a text asks of the rows of a relation, as a syntax tree: the WHERE of the one SELECT that reads it alone."""
    if next(_samples(parsed), None) is not None:  # of all rows
        return None
    reading = [each for each in _nodes(parsed, "BASE_TABLE") if _folded(_name_of(each)) == _folded(name)]
    if len(reading) != 1 or reading[0]["column_name_alias"]:
        return None
    found = (each for each in _nodes(parsed, "SELECT_NODE") if each["from_table"] is reading[0])
    return next((each["where_clause"] for each in found), None)


def scanned(name: str, schema: pa.Schema, where: Any, caller: Caller) -> Any:
    """Return a relation that the engine scans as often as it needs to, by the columns that it needs."""
    import pyarrow.dataset

    class SentRelation(pyarrow.dataset.Dataset):  # type: ignore[misc]  # pyarrow has no types; the engine asks for this class
        def __init__(self) -> None:
            """Pyarrow forbids to make one."""

        @property
        def schema(self) -> pa.Schema:
            return schema

        def scanner(self, columns: list[str] | None = None, filter: Any = None, **_: Any) -> "SentRows":  # noqa: A002  its name there
            wanted = schema.names if columns is None else columns
            text = "" if filter is None else str(filter)  # a condition does not say its columns, and names them there
            others = [each for each in schema.names if each not in wanted and _has_word(text, each)]
            return SentRows(caller.scan(name, [*wanted, *others], where), schema, wanted, filter)

    return SentRelation()


def _has_word(text: str, name: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text) is not None


class SentRows:
    """The rows of one scan that pass a condition, as a scanner of pyarrow gives them."""

    def __init__(
        self, batches: Iterator[pa.RecordBatch], schema: pa.Schema, columns: list[str], condition: Any
    ) -> None:
        self._batches, self._columns, self._condition = batches, columns, condition
        self.projected_schema = pa.schema([schema.field(name) for name in columns])

    def to_reader(self) -> pa.RecordBatchReader:
        """Return the rows, which are read once."""
        return pa.RecordBatchReader.from_batches(self.projected_schema, self._passing())

    def _passing(self) -> Iterator[pa.RecordBatch]:
        for batch in self._batches:
            table = pa.Table.from_batches([batch])
            table = table if self._condition is None else table.filter(self._condition)
            yield from table.select(self._columns).to_batches()


def used_relations(text: str, relations: list[str]) -> tuple[list[str], Any]:
    """Return the relations that a text reads, sorted, and its syntax tree.

    Raises:
        RefusedError: it is not one SELECT, calls what reads something else, or names a relation that cannot be told apart.
    """
    with duckdb.connect(":memory:", config=dict(SETTINGS)) as session:
        statements = session.extract_statements(text)
        if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
            kinds = ", ".join(str(each.type).rpartition(".")[2] for each in statements) or "nothing"
            msg = f"the text is {kinds}. Give one SELECT (PIVOT with its values: ON ... IN (...))"
            raise RefusedError(msg)
        (written,) = session.execute("SELECT json_serialize_sql(?::VARCHAR)", [text]).fetchone() or ("{}",)
        views = session.execute("SELECT lower(view_name) FROM duckdb_views() WHERE internal").fetchall()
    parsed = json.loads(written)
    for name in _values_of(parsed, "TABLE_FUNCTION", "function"):
        if name.get("function_name", "").lower() not in MAKERS:
            msg = f"{name.get('function_name')} reads no relation. Register what it reads, and name that"
            raise RefusedError(msg)
    tables = set(_tables_in(parsed))
    readers = {name for name in _values_of(parsed, "FUNCTION", "function_name") if name.lower() in SETTING_READERS}
    views_used = {name for name in tables - set(relations) if (name.rpartition(".")[2].lower(),) in views}
    for name in sorted(readers | views_used):
        msg = f"{name} reads no relation but the engine's own state, which differs by machine. Leave it out"
        raise RefusedError(msg)
    return _resolved(tables, relations), parsed


def _resolved(written: set[str], relations: list[str]) -> list[str]:
    """Relations by the names in the text, whose case the engine does not look at."""
    used = set()
    for name in written:
        meant = [name] if name in relations else [each for each in relations if _folded(each) == _folded(name)]
        if len(meant) > 1:
            raise RefusedError(_alike("relations", *meant[:2]))
        used.update(meant)
    if alike := first_alike(sorted(used)):
        raise RefusedError(_alike("relations", *alike))
    return sorted(used)


def first_alike(names: list[str]) -> tuple[str, str] | None:
    """Return the first two different names that the engine takes for one: it ignores the case of ASCII letters."""
    seen: dict[bytes, str] = {}
    for name in names:
        if (other := seen.setdefault(_folded(name), name)) != name:
            return other, name
    return None


def _alike(what: str, one: str, other: str) -> str:
    return f"{what} {one!r} and {other!r} differ only in case, which SQL text cannot tell apart. Rename one of them"


def _folded(name: str) -> bytes:
    return name.encode(errors="surrogatepass").lower()


def session_of(tables: Mapping[str, Any], memory_bytes: int, spill: str) -> duckdb.DuckDBPyConnection:
    """Open an engine that sees these relations and nothing else; what does not fit its memory goes to a folder."""
    for name, table in tables.items():
        if alike := first_alike(table.schema.names):
            msg = (
                f"{_alike(f'columns of relation {name!r}:', *alike)}, or use the verbs instead of SQL text "
                "(filter, with_columns, join, group_by), which tell them apart"
            )
            raise RefusedError(msg)
        if halves := [field for field in table.schema if "halffloat" in str(field.type)]:
            msg = (
                f"column {halves[0].name!r} of relation {name!r} is {halves[0].type}, and DuckDB takes no float16. Use the verbs "
                "instead of SQL text, or register the relation with that column as float32, or without it"
            )
            raise RefusedError(msg)
    limit = f"{max(1, int(_ENGINE_SHARE * memory_bytes) >> 10)}KiB"
    session = duckdb.connect(":memory:", config={**SETTINGS, "memory_limit": limit, "temp_directory": spill})
    session.execute("SET TimeZone = 'UTC'")
    for name, table in tables.items():
        session.register(name, table)
        space, dot, short = name.rpartition(".")
        if dot:
            session.execute(f"CREATE SCHEMA IF NOT EXISTS {_quoted(space)}")
            session.execute(f"CREATE VIEW {_quoted(space)}.{_quoted(short)} AS SELECT * FROM {_quoted(name)}")  # noqa: S608
    session.execute("SET lock_configuration = true")
    return session


def _floats(parsed: Any, tables: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Columns of floats that the text reads: (relation, column)."""
    named = {_folded(part) for parts in _values_of(parsed, "COLUMN_REF", "column_names") for part in parts}
    named |= {_folded(name) for join in _values_of(parsed, "JOIN", "using_columns") for name in join}
    every = next(_values_of(parsed, "STAR", "type"), None) is not None
    return [
        (name, field.name)
        for name, table in tables.items()
        for field in table.schema
        if pa.types.is_floating(field.type) and (every or _folded(field.name) in named)
    ]


def unsteady(parsed: Any, tables: Mapping[str, Any], session: duckdb.DuckDBPyConnection) -> list[str]:
    """What in a text gives other rows on another run: functions by name, and samples without a seed; sorted."""
    listed = session.execute(_MAY_DIFFER).fetchall()
    differing = {name for (name,) in listed} - STEADY | CLOCK_MACROS
    calls = [(node["function_name"].lower(), node) for node in _nodes(parsed, "FUNCTION") if "function_name" in node]
    found = {f"{name}()" for name, _ in calls if name in differing}
    found |= {"age() of one time" for name, node in calls if name == "age" and len(node["arguments"]) == 1}
    columns = {_folded(name) for table in tables.values() for name in table.schema.names}
    named = {parts[0].lower() for parts in _values_of(parsed, "COLUMN_REF", "column_names") if len(parts) == 1}  # no ()
    found |= {name for name in named & CLOCKS if _folded(name) not in columns}
    found |= {"a sample without REPEATABLE (seed)" for clause in _samples(parsed) if not clause["repeatable"]}
    return sorted(found)


def _samples(parsed: Any) -> Iterator[dict[str, Any]]:
    """The clauses USING SAMPLE and TABLESAMPLE, wherever they are."""
    if isinstance(parsed, dict) and isinstance(parsed.get("sample"), dict):
        yield parsed["sample"]
    for part in parsed.values() if isinstance(parsed, dict) else parsed if isinstance(parsed, list) else ():
        yield from _samples(part)


def _tables_in(parsed: Any) -> Iterator[str]:
    """Names of tables in DuckDB's JSON of a statement (and of its common table expressions)."""
    return map(_name_of, _nodes(parsed, "BASE_TABLE"))


def _name_of(table: Mapping[str, Any]) -> str:
    return f"{table['schema_name']}.{table['table_name']}".removeprefix(".")


def _values_of(parsed: Any, kind: str, key: str) -> Iterator[Any]:
    return (node[key] for node in _nodes(parsed, kind) if key in node)


def _nodes(parsed: Any, kind: str) -> Iterator[Any]:
    if isinstance(parsed, list):
        for part in parsed:
            yield from _nodes(part, kind)
    elif isinstance(parsed, dict):
        if kind in (parsed.get("type"), parsed.get("class")):
            yield parsed
        yield from _nodes(list(parsed.values()), kind)


def no_rows(schema: pa.Schema) -> pa.Table:
    """A table without rows, also of tensors with a permutation, of which pyarrow makes none by itself."""
    return pa.table([pa.chunked_array([pa.nulls(0, kind)], kind) for kind in schema.types], schema=schema)


def within(reader: pa.RecordBatchReader, memory_bytes: int) -> Iterator[pa.RecordBatch]:
    """The batches of a result that the caller can hold."""
    size = 0
    for batch in reader:
        size += batch.nbytes
        if size > memory_bytes:
            msg = "the result is larger than the memory limit"
            raise MemoryError(msg)
        yield batch


def limit_memory(memory_bytes: int) -> None:
    """Hold this process to what it has and so much more; where memory runs out, end it before others.

    A system that does not say what the process has (macOS) gets no limit: one below that would refuse every allocation.
    """
    try:
        held = int(HELD.read_text().split()[0]) * resource.getpagesize()
    except OSError:
        return
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    wanted = held + memory_bytes
    with suppress(OSError, ValueError):  # a system without such a limit
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def is_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out."""
    return isinstance(error, MemoryError) or "Out of Memory" in str(error) or "bad_alloc" in str(error)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


if __name__ == "__main__":
    main()
