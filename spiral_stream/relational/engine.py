"""DuckDB, behind the only door to it: queries and aggregates over Arrow, at prepare time.

Every call has its own in-memory database, reads nothing but the tables it is given,
and runs on one thread: rows then come in the same order and sums of floats are the
same on every run of one engine version (with 2 and 4 threads averages differ in the
13th digit). Query text has DuckDB's own semantics, where NaN is the largest number;
conditions written with `col` never come here as text of the user's.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from spiral_stream.dialects import quoted
from spiral_stream.errors import PlanError

if TYPE_CHECKING:
    import duckdb

Tables = Mapping[str, pa.Table | pa.RecordBatchReader]

_SETTINGS: Final = {
    "threads": "1",
    "enable_external_access": "false",  # its own file readers drop NaN rows by statistics
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "python_enable_replacements": "false",
}
_MEASURES: Final = {
    "count": "count({})",
    "count_distinct": "count(DISTINCT {})",
    "sum": "sum({})",
    "min": "min({})",
    "max": "max({})",
    "avg": "avg({})",
}


def version() -> str:
    """The engine's version, for manifests."""
    import duckdb

    return str(duckdb.__version__)


def run_sql(text: str, tables: Tables) -> pa.Table:
    """Run a query over tables by name.

    Args:
        text: one SELECT in DuckDB's dialect. A name with a dot may be written
            ``vision.labels`` or ``"vision.labels"``.
        tables: what the query may read. A reader can be read once only.

    Raises:
        PlanError: the engine refuses the text or fails on the rows; says where.
    """
    with _session(tables) as session:
        return session.sql(text).to_arrow_table()


def describe_sql(text: str, schemas: Mapping[str, pa.Schema]) -> tuple[list[str], pa.Schema]:
    """Which relations a query reads, and the columns that it gives.

    Args:
        text: as for `run_sql`.
        schemas: of every relation that might be named.

    Returns:
        the names used, sorted; and the schema of the result.

    Raises:
        PlanError: the engine refuses the text; says where.
    """
    with _session({name: schema.empty_table() for name, schema in schemas.items()}) as session:
        result = session.sql(text).to_arrow_table().schema
        (written,) = session.execute("SELECT json_serialize_sql(?::VARCHAR)", [text]).fetchone() or ("{}",)
    used = {name.casefold() for name in _tables_in(json.loads(written))}
    return sorted(name for name in schemas if name.casefold() in used), result


def _tables_in(parsed: Any) -> Iterator[str]:
    """Names of tables in DuckDB's JSON of a statement (and of its common table expressions)."""
    if isinstance(parsed, list):
        for part in parsed:
            yield from _tables_in(part)
    elif isinstance(parsed, dict):
        if parsed.get("type") == "BASE_TABLE":
            yield f"{parsed['schema_name']}.{parsed['table_name']}".removeprefix(".")
        yield from _tables_in(list(parsed.values()))


def aggregate(table: pa.Table, keys: Sequence[str], measures: Sequence[tuple[str, str, str]]) -> pa.Table:
    """Group rows and measure each group.

    Sums and averages of floats are rounded in row order: the same rows in another
    order may differ in the last digits, so no fingerprint should hold them.

    Args:
        table: the rows.
        keys: columns that name a group; none makes one group of all rows.
        measures: (column, function, name of the result); the function is one of
            count, count_distinct, sum, min, max, avg. Null values do not count.

    Returns:
        one row a group, sorted by the keys (null last): keys, then measures. Counts and
        sums of integers are int64, averages float64.

    Raises:
        PlanError: the engine cannot measure such a column, or a sum leaves int64.
    """
    chosen = [quoted(key) for key in keys]
    for column, function, name in measures:
        value = _MEASURES[function].format(quoted(column))
        if function == "sum":
            value = (
                f"CAST({value} AS {'DOUBLE' if pa.types.is_floating(table.schema.field(column).type) else 'BIGINT'})"
            )
        chosen.append(f"{value} AS {quoted(name)}")
    grouped = ", ".join(quoted(key) for key in keys)
    tail = f" GROUP BY {grouped} ORDER BY {', '.join(f'{quoted(k)} NULLS LAST' for k in keys)}" if keys else ""
    return run_sql(f"SELECT {', '.join(chosen)} FROM rows{tail}", {"rows": table})  # noqa: S608  names are quoted


@contextmanager
def _session(tables: Tables) -> Iterator["duckdb.DuckDBPyConnection"]:
    import duckdb

    config: dict[str, Any] = dict(_SETTINGS)
    with duckdb.connect(":memory:", config=config) as session:
        session.execute("SET TimeZone = 'UTC'")
        try:
            for name, table in tables.items():
                session.register(name, table)
                space, dot, short = name.rpartition(".")
                if dot:
                    session.execute(f"CREATE SCHEMA IF NOT EXISTS {quoted(space)}")
                    session.execute(f"CREATE VIEW {quoted(space)}.{quoted(short)} AS SELECT * FROM {quoted(name)}")  # noqa: S608
            yield session
        except duckdb.Error as error:
            reason = str(error).strip()
            named = ", ".join(tables) or "no relation"
            msg = f"sql: {reason}\nThe query may read {named}; correct it in DuckDB's dialect"
            raise PlanError(msg) from error
