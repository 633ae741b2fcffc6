"""DuckDB in this process: aggregates over Arrow, at prepare time. Text of the user's is parsed here, and runs elsewhere: `sql`.

Every call has its own in-memory database, reads nothing but the table it is given,
and runs on one thread: rows then come in the same order and sums of floats are the
same on every run of one engine version (with 2 and 4 threads averages differ in the
13th digit). The engine takes ``A`` and ``a`` for one column, so it only ever sees
columns by number.
"""

import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Timer
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa

from spiral_stream.errors import PlanError

if TYPE_CHECKING:
    import duckdb

TIMEOUT_ENV: Final = "SPIRAL_SQL_TIMEOUT_S"
MEMORY_ENV: Final = "SPIRAL_SQL_MEMORY_BYTES"
_TIMEOUT_S: Final = 600.0

_SETTINGS: Final = {
    "threads": "1",
    "enable_external_access": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "python_enable_replacements": "false",
}
# The right side of a join is the one that is held: of a reader the engine does not know that it is long.
_AS_WRITTEN: Final = "SET disabled_optimizers = 'join_order,build_side_probe_side'"
_MEASURES: Final = {
    "count": "count({})",
    "count_distinct": "count(DISTINCT {})",
    "sum": "sum({})",
    "min": "min({})",
    "max": "max({})",
    "avg": "avg({})",
}


class QueryLimits(NamedTuple):
    """Limits of one query."""

    timeout_s: float
    memory_bytes: int  # beyond the rows that it reads


def limits(usual_bytes: int | None = None) -> QueryLimits:
    """``$SPIRAL_SQL_TIMEOUT_S``, else 600; ``$SPIRAL_SQL_MEMORY_BYTES``, else half of the machine's memory.

    Args:
        usual_bytes: what a query of ours takes at most where the variable is not set: beyond, it spills.

    Raises:
        PlanError: one of them is no number above 0.
    """
    half = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    memory = half if usual_bytes is None else min(half, usual_bytes)
    return QueryLimits(_number(TIMEOUT_ENV, _TIMEOUT_S), int(_number(MEMORY_ENV, memory)))


def _number(name: str, default: float) -> float:
    text = os.environ.get(name, "")
    try:
        value = float(text or default)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        msg = f"sql: ${name} is {text[:50]!r}; it is a number above 0. Correct it, or unset it for {default:g}"
        raise PlanError(msg)
    return value


def version() -> str:
    """Return the engine's version, for manifests."""
    import duckdb

    return str(duckdb.__version__)


def syntax_trees(text: str) -> list[dict[str, Any]]:
    """Return the syntax tree of each SELECT of a text; nothing of it is run, or looked up.

    Raises:
        PlanError: the parser refuses it; says where.
    """
    import duckdb

    with duckdb.connect(":memory:", config={**_SETTINGS}) as session:
        try:
            (written,) = session.execute("SELECT json_serialize_sql(?::VARCHAR)", [text]).fetchone() or ("{}",)
        except (duckdb.Error, UnicodeError) as error:
            raise PlanError(str(error).splitlines()[0]) from error
    found: dict[str, Any] = json.loads(written)
    if found.get("error", True):
        raise PlanError(str(found.get("error_message", "it cannot be parsed")))
    statements: list[dict[str, Any]] = found["statements"]
    return statements


def aggregate(
    table: pa.Table | pa.RecordBatchReader, keys: Sequence[str], measures: Sequence[tuple[str, str, str]]
) -> pa.Table:
    """Group rows and measure each group.

    Sums and averages of floats are rounded in row order: the same rows in another
    order may differ in the last digits, so no fingerprint should hold them.

    Args:
        table: the rows, or a reader of them, which is read once.
        keys: columns that name a group; none makes one group of all rows.
        measures: (column, function, name of the result); the function is one of
            count, count_distinct, sum, min, max, avg. Null values do not count.

    Returns:
        one row per group, sorted by the keys (null last): keys, then measures. Counts and
        sums of integers are int64, averages float64.

    Raises:
        PlanError: the engine cannot measure such a column, a sum leaves int64, or a limit is passed.
    """
    read = list(dict.fromkeys([*keys, *(column for column, _, _ in measures)]))
    short = {name: f"c{i}" for i, name in enumerate(read)}
    chosen = [short[key] for key in keys]
    for i, (column, function, _) in enumerate(measures):
        value = _MEASURES[function].format(short[column])
        if function == "sum":
            value = (
                f"CAST({value} AS {'DOUBLE' if pa.types.is_floating(table.schema.field(column).type) else 'BIGINT'})"
            )
        chosen.append(f"{value} AS m{i}")
    grouped = ", ".join(short[key] for key in keys)
    tail = f" GROUP BY {grouped} ORDER BY {', '.join(f'{short[key]} NULLS LAST' for key in keys)}" if keys else ""
    reader = table.select(read).to_reader() if isinstance(table, pa.Table) else table
    rows = _numbered(reader, read)
    what = ", ".join(f"{function}({column})" for column, function, _ in measures)
    found = _answered(f"SELECT {', '.join(chosen)} FROM rows{tail}", rows, what, short)  # noqa: S608  names are ours
    return found.rename_columns([*keys, *(name for _, _, name in measures)])


def sorted_digests(texts: pa.RecordBatchReader) -> pa.ChunkedArray:
    """Return SHA-256 of each text of the only column, each once, ascending by its bytes; what does not fit memory spills.

    Args:
        texts: a column of text without nulls, read once.

    Raises:
        PlanError: a limit is passed.
    """
    name = texts.schema.names[0]
    rows = _numbered(texts, [name])
    query = "SELECT DISTINCT unhex(sha256(c0)) AS m0 FROM rows ORDER BY m0"
    return _answered(query, rows, "digests", {name: "c0"}).column("m0")


def apart(values: pa.RecordBatchReader, examples: int) -> pa.Table:
    """Return which values only one of two sides has, counted by source.

    Args:
        values: columns ``side`` (0 or 1), ``source``, ``value`` (text without nulls) and ``at`` (int64), read once.
        examples: how many values of each group are listed, those of the least ``at``.

    Returns:
        columns ``source``, ``side``, ``count`` and ``examples``, sorted by source and side.

    Raises:
        PlanError: a limit is passed.
    """
    names = ["side", "source", "value", "at"]
    query = (
        "SELECT c1 AS source, side, count(*) AS count, arg_min(c2, nth, ?) AS examples FROM "
        "(SELECT c1, c2, min(c0) AS side, min(c3) AS nth FROM rows GROUP BY c1, c2 HAVING min(c0) = max(c0)) "
        "GROUP BY c1, side ORDER BY c1, side"
    ).replace("?", str(int(examples)))
    return _answered(query, _numbered(values, names), "difference", {name: f"c{i}" for i, name in enumerate(names)})


def _numbered(reader: pa.RecordBatchReader, read: Sequence[str]) -> pa.RecordBatchReader:
    """The columns that are read, by number."""
    schema = pa.schema([reader.schema.field(name).with_name(f"c{i}") for i, name in enumerate(read)])
    batches = (pa.record_batch([batch.column(name) for name in read], schema=schema) for batch in reader)
    return pa.RecordBatchReader.from_batches(schema, batches)


def _answered(text: str, rows: pa.RecordBatchReader, what: str, short: dict[str, str]) -> pa.Table:
    """Run our own text over ``rows``."""
    named = ", ".join(f"{short[name]} is {name!r} ({rows.schema.field(short[name]).type})" for name in short)
    with _session(
        {"rows": rows}, f"aggregate {what}", f" ({named}). Measure another column, or cast it first"
    ) as session:
        return session.sql(text).to_arrow_table()


def answer(
    text: str, tables: Mapping[str, pa.Table | pa.RecordBatchReader], what: str, usual_bytes: int | None = None
) -> pa.Table:
    """Run a SELECT of our own, never of a user's.

    Args:
        text: in DuckDB's dialect; no two columns of a table may differ in case alone.
        tables: what it reads, by name. A reader is read once, as the engine goes on.
        what: is made; begins messages.
        usual_bytes: as for `limits`.

    Raises:
        PlanError: the engine fails on the rows, or passes a limit.
    """
    with _session(tables, what, usual_bytes=usual_bytes) as session:
        session.execute(_AS_WRITTEN)
        return session.sql(text).to_arrow_table()


def answer_in_parts(
    text: str,
    tables: Mapping[str, pa.Table | pa.RecordBatchReader],
    what: str,
    usual_bytes: int | None = None,
    rows: int = 1 << 17,
) -> Iterator[pa.RecordBatch]:
    """Run a SELECT of our own as `answer` does, and yield its rows so many at a time; they are never all in memory."""
    with _session(tables, what, usual_bytes=usual_bytes) as session:
        session.execute(_AS_WRITTEN)
        yield from session.sql(text).to_arrow_reader(rows)


@contextmanager
def _session(
    tables: Mapping[str, pa.Table | pa.RecordBatchReader],
    what: str,
    way_out: str = ". Look at the rows that it reads",
    usual_bytes: int | None = None,
) -> Iterator["duckdb.DuckDBPyConnection"]:
    """A database of its own that reads these tables; it spills to a folder that goes with it."""
    import duckdb

    held = limits(usual_bytes)
    with tempfile.TemporaryDirectory(prefix="spiral-aggregate-") as spill:
        config: dict[str, Any] = {
            **_SETTINGS,
            "memory_limit": f"{max(1, held.memory_bytes >> 10)}KiB",
            "temp_directory": spill,
        }
        with duckdb.connect(":memory:", config=config) as session:
            session.execute("SET TimeZone = 'UTC'")
            for name, table in tables.items():
                session.register(name, table)
            late = Timer(held.timeout_s, session.interrupt)
            late.name = "spiral-aggregate-deadline"
            late.start()
            try:
                yield session
            except duckdb.InterruptException as error:
                msg = f"{what}: not done within {held.timeout_s:g} s. Filter the rows, or set ${TIMEOUT_ENV}"
                raise PlanError(msg) from error
            except duckdb.OutOfMemoryException as error:
                msg = (
                    f"{what}: needs more than {held.memory_bytes / 2**30:.3g} GiB. "
                    f"Filter the rows, or set ${MEMORY_ENV}"
                )
                raise PlanError(msg) from error
            except (duckdb.Error, pa.ArrowException) as error:  # the latter from rows that are streamed
                msg = f"{what}: {str(error).strip().splitlines()[0]}{way_out}"
                raise PlanError(msg) from error
            finally:
                late.cancel()
                late.join()
