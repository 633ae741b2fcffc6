"""SQL text over relations: run in a process of its own, under a deadline and a memory limit.

`sql_process` is that process and says why there is one. It asks for the columns that the engine needs, and they are scanned
here and sent batch by batch, so a query over 10^8 rows holds its groups, and spills what does not fit. Rows come in the same
order and sums of floats are the same on every run of one engine version, since it works on one thread. Query text has
DuckDB's own semantics, where NaN is the largest number; conditions written with `col` never come here as text of the user's.
"""

import difflib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from threading import Timer
from typing import Any, Final, NamedTuple, Protocol, final

import pyarrow as pa

from spiral_stream.display.progress import working
from spiral_stream.errors import PlanError, shown
from spiral_stream.expr import Expr
from spiral_stream.relational.conditions import rows_that_pass
from spiral_stream.relational.engine import MEMORY_ENV, QueryLimits, limits
from spiral_stream.sources.arrow.table import no_rows


class QueriedRows(Protocol):
    """The rows of a relation, which a query may scan several times."""

    @property
    def schema(self) -> pa.Schema:
        """Its columns."""
        ...

    def scan(self, columns: Sequence[str], condition: Expr | None) -> Iterator[pa.RecordBatch]:
        """Yield columns of the rows for which a condition is true, in the order of the relation."""
        ...


Tables = Mapping[str, pa.Table | QueriedRows]

PROCESS: Final = Path(__file__).with_name("sql_process.py")
_DESCRIBED: Final = 256  # texts whose facts are kept
_CORRECT: Final = "Correct it in DuckDB's dialect"
_NO_TABLE: Final = re.compile(r'Catalog Error: Table with name (?:"(?P<quoted>.+?)"|(?P<name>.+?)) does not exist')
_QUERIES: Final = (
    "select",
    "with",
    "from",
    "values",
    "table",
    "pivot",
    "unpivot",
    "describe",
    "summarize",
    "show",
    "explain",
)
_ALIKE: Final = 0.8  # of a word that is mistyped; `score` is no `show`
_COMPARES: Final = re.compile(r"[<>=]|\b(?:is|in|like|ilike|between|not)\b", re.IGNORECASE)
_NAMED: Final = 20  # relations that a message lists
_LEAST_BYTES: Final = 128 << 20  # with 50 MB the engine does not start; with 100 MB it answered every time


def run_sql(text: str, tables: Tables) -> pa.Table:
    """Run a query over tables by name.

    Args:
        text: one SELECT in DuckDB's dialect. A name with a dot may be written
            ``vision.labels`` or ``"vision.labels"``.
        tables: what the query may read.

    Raises:
        PlanError: the engine refuses the text, fails on the rows, or passes a limit; says where.
    """
    return _answer_of("run", _text(text), tables, _limits())[1]


class TextFacts(NamedTuple):
    """What is known of a query before it runs."""

    used: tuple[str, ...]  # the relations that it reads, sorted
    schema: pa.Schema  # of the result
    floats: tuple[tuple[str, str], ...]  # columns of floats that the text reads: (relation, column)
    unsteady: tuple[str, ...]  # functions and clauses that give other rows on another run


def describe_sql(text: str, schemas: Mapping[str, pa.Schema]) -> TextFacts:
    """Return the relations that a query reads, its columns, and what in it differs from run to run.

    Args:
        text: as for `run_sql`.
        schemas: of every relation that might be named.

    Raises:
        PlanError: the engine refuses the text; says where.
    """
    return _described(_text(text), tuple(schemas.items()), _limits())


@lru_cache(_DESCRIBED)
def _described(text: str, schemas: tuple[tuple[str, pa.Schema], ...], held: QueryLimits) -> TextFacts:
    """Keep the facts: a process that opens streams again asks for the same."""
    answer, found = _answer_of("describe", text, {name: no_rows(schema) for name, schema in schemas}, held)
    twice = [name for name in found.schema.names if found.schema.names.count(name) > 1]
    if twice:
        msg = f"sql: two columns of the result are called {twice[0]!r}. Give one another name with AS"
        raise PlanError(msg)
    floats = tuple((relation, column) for relation, column in answer["floats"])
    return TextFacts(tuple(answer["used"]), found.schema, floats, tuple(answer["unsteady"]))


def _text(given: object) -> str:
    if not isinstance(given, str):
        msg = f"sql: the text is a {type(given).__name__}. Give one SELECT in DuckDB's dialect"
        raise PlanError(msg)
    return given


def _answer_of(task: str, text: str, tables: Tables, held: QueryLimits) -> tuple[dict[str, Any], pa.Table]:
    """The answer of the process, and the rows that it sent."""
    with tempfile.TemporaryDirectory(prefix="spiral-sql-") as spill:
        question = {"task": task, "text": text, "relations": list(tables), "spill": spill, **held._asdict()}
        sink = pa.BufferOutputStream()
        sink.write(json.dumps(question).encode() + b"\n")
        for table in tables.values():
            with pa.ipc.new_stream(sink, table.schema):
                pass
        answer, found = _answered(sink.getvalue(), _Scans(tables), held, tables)
    if "error" in answer:
        if answer["memory"]:
            raise PlanError(_beyond_memory(held, answer["error"].splitlines()[0]))
        known = _unknown(answer["error"], tables) or _condition(text, tables)
        raise PlanError(known or f"sql: {answer['error']}\n{_readable(tables)}. {_CORRECT}")
    assert found is not None
    return answer["answer"], found


@final
class _Scans:
    """The scans that a query has asked for, by number: each an Arrow stream that goes on when it is asked for more."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._begun = list[tuple[Iterator[pa.RecordBatch], pa.Schema]]()
        self._writers: dict[int, Any] = {}

    def begin(self, name: str, columns: list[str], where: Mapping[str, Any] | None) -> None:
        """Begin a scan; ``where`` is what the query asks of the rows, as a syntax tree, and is asked again of those sent."""
        table = self._tables[name]
        schema = pa.schema([table.schema.field(each) for each in columns])
        if isinstance(table, pa.Table):
            self._begun.append((iter(table.select(columns).to_batches()), schema))
        else:
            condition = None if where is None else rows_that_pass(where, table.schema)
            self._begun.append((table.scan(columns, condition), schema))

    def next(self, number: int) -> pa.RecordBatch | None:
        """Read the next batch of a scan; None if there is none."""
        batches, schema = self._begun[number]
        batch = next(batches, None)
        return None if batch is None else pa.record_batch(batch.columns, schema=schema)

    def send(self, number: int, batch: pa.RecordBatch | None, sink: Any) -> None:
        """Write what was read."""
        if number not in self._writers:
            self._writers[number] = pa.ipc.new_stream(sink, self._begun[number][1])
        if batch is None:
            self._writers.pop(number).close()
        else:
            self._writers[number].write_batch(batch)
        sink.flush()


def _unknown(error: str, tables: Tables) -> str | None:
    """Say that no relation has the name that the query reads; None for other errors."""
    found = _NO_TABLE.match(error)
    if found is None:
        return None
    name = found["quoted"] or found["name"]
    near = difflib.get_close_matches(name, tables, 1)
    way_out = (
        f"Did you mean {near[0]}?"
        if near
        else f'Register it first, catalog.register("{name}", ...), or correct the name'
    )
    return f"sql: no relation is called {name!r}. {_readable(tables)}. {way_out}"


def _condition(text: str, tables: Tables) -> str | None:
    """Say that a text is a condition, which a filter takes; None for what begins like a query, or is neither."""
    first = re.match(r"[\s(]*(\w*)", text)
    word = first[1].lower() if first is not None else ""
    if difflib.get_close_matches(word, _QUERIES, 1, _ALIKE) or not _COMPARES.search(text):
        return None
    name = next(iter(tables), "name")
    return (
        f"sql: {shown(text)} is a condition, and no query. Write catalog.table({name!r}).filter({shown(text)}), or give it "
        "a select"
    )


def _limits() -> QueryLimits:
    held = limits()
    if held.memory_bytes >= _LEAST_BYTES:
        return held
    if MEMORY_ENV not in os.environ:  # a very small machine
        return held._replace(memory_bytes=_LEAST_BYTES)
    msg = (
        f"sql: ${MEMORY_ENV} is {os.environ[MEMORY_ENV][:50]!r}; SQL text needs at least {_LEAST_BYTES:,} bytes. "
        "Set it to that or more, or unset it"
    )
    raise PlanError(msg)


def _answered(
    request: pa.Buffer, scans: _Scans, held: QueryLimits, tables: Tables
) -> tuple[dict[str, Any], pa.Table | None]:
    """Talk to the process until it has answered, or the deadline is over; it never outlives the call."""
    command = [sys.executable, "-P", str(PROCESS)]
    # Every arena of malloc reserves 128 MiB of addresses, which the limit counts: with more than one, small limits end the
    # process with SIGSEGV on some runs.
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path), "MALLOC_ARENA_MAX": "1"}
    pipe = subprocess.PIPE
    with tempfile.TemporaryFile() as errors:
        try:
            # A session of its own: Ctrl-C interrupts the caller, which ends the process.
            started = subprocess.Popen(  # noqa: S603
                command, stdin=pipe, stdout=pipe, stderr=errors, env=env, start_new_session=True
            )
        except OSError as error:
            msg = f"sql: no process to run it in can be started ({error.strerror}). Mend that, or use the verbs"
            raise PlanError(msg) from error
        late = Timer(held.timeout_s, started.kill)
        late.name = "spiral-sql-deadline"
        with started as process:
            late.start()
            try:
                with working(f"running SQL over {', '.join(sorted(tables)[:_NAMED]) or 'no relation'}"):
                    found = _talked(process, request, scans)
            finally:
                in_time = late.is_alive()
                late.cancel()
                late.join()
                process.kill()
                with suppress(OSError):  # of what it never read
                    process.stdin.close()  # type: ignore[union-attr]  # it has a pipe
        if found is not None:
            return found
        errors.seek(0)
        said = errors.read().decode(errors="replace")
    if not in_time:
        msg = (
            f"sql: the query did not end within {held.timeout_s:g} s, and was stopped. A recursion may have no end. "
            f"Write a shorter query, or set $SPIRAL_SQL_TIMEOUT_S\n{_readable(tables)}"
        )
        raise PlanError(msg)
    raise PlanError(_beyond_memory(held, _ended(process.returncode, said)))


class _EndedError(Exception):
    """The process has ended before it answered."""


@contextmanager
def _speaking() -> Iterator[None]:
    """What fails between the two processes: one has ended."""
    try:
        yield
    except (OSError, ValueError, pa.ArrowException) as error:
        raise _EndedError from error


def _talked(process: Any, request: pa.Buffer, scans: _Scans) -> tuple[dict[str, Any], pa.Table | None] | None:
    """What the process answers, and the rows that it sends; None if it ends before."""
    rows, reader = list[pa.RecordBatch](), None
    with suppress(_EndedError):
        with _speaking():
            process.stdin.write(request)
            process.stdin.flush()
        while True:
            with _speaking():
                said: dict[str, Any] = json.loads(process.stdout.readline())
            if "scan" in said:
                scans.begin(said["scan"], said["columns"], said["where"])
            elif "next" in said:
                batch = scans.next(said["next"])
                with _speaking():
                    scans.send(said["next"], batch, process.stdin)
            elif "rows" in said:
                with _speaking():
                    reader = pa.ipc.open_stream(process.stdout) if reader is None else reader
                    rows += [reader.read_next_batch()] if said["rows"] else list(reader)
            else:
                return said, None if reader is None else pa.Table.from_batches(rows, reader.schema)
    return None


def _ended(code: int, errors: str) -> str:
    """Say how the process ended, with the last line that it wrote if there is one."""
    how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    lines = errors.strip().splitlines()
    return f"its process ended with {how}" + (f": {lines[-1]}" if lines else "")


def _beyond_memory(held: QueryLimits, reason: str) -> str:
    return (
        f"sql: the query needs more than {held.memory_bytes / 2**30:.3g} GiB of memory ({reason}). "
        "Select fewer rows or columns, or set $SPIRAL_SQL_MEMORY_BYTES"
    )


def _readable(tables: Tables) -> str:
    names = sorted(tables)
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"The query may read {', '.join(names[:_NAMED]) or 'no relation'}{more}"
