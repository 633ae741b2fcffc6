"""How a user's assembler is created and called, and how a user's function is named while it runs."""

import inspect
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from spiral_stream.dialects.offsets import unsliced_table
from spiral_stream.errors import DataError, PlanError
from spiral_stream.plan.functions.context import Context
from spiral_stream.plan.verbs.maps import SampleAssembly
from spiral_stream.sources.arrow.views import no_rows
from spiral_stream.transforms.python import Function, is_of_the_row


def called(function: Function) -> str:
    """Return a user's function in words, for messages to those who wait for it."""
    module = getattr(function.function, "__module__", None)
    return f"a user's function, {module}:{function.name}"


def assembler(step: SampleAssembly, context: Context) -> Any:
    """Create the assembler of a chapter.

    Raises:
        DataError: the user's factory fails, or returns something without ``push`` and ``finish``.
        PlanError: it asks the context for what belongs to a process.
    """
    name = step.function.name
    try:
        made = step.function.function(context)
    except PlanError:
        raise
    except Exception as error:
        msg = f"assemble ({name}): {type(error).__name__}: {error}; it is called with a context (epoch, lane, chapter)"
        raise DataError(msg) from error
    if not (callable(getattr(made, "push", None)) and callable(getattr(made, "finish", None))):
        msg = f"assemble ({name}): gave a {type(made).__name__}. Give it push(table) and finish(), which return a table or None"
        raise DataError(msg)
    return made


def pushed(step: SampleAssembly, made: Any, samples: pa.Table, refused: dict[int, str] | None = None) -> pa.Table:
    """Return what an assembler makes of some more samples.

    Args:
        step: the map.
        made: the assembler.
        samples: the samples.
        refused: if given, samples in it are not pushed; those that it fails on, one at a time, are added with the reason.
    """
    if step.function.batched:
        return _assembled(step, made.push, samples)
    rows = list(enumerate(samples.to_pylist()))

    def push() -> list[Any]:
        out = []
        for at, row in rows:
            if refused is not None and at in refused:
                continue
            try:
                out += list(made.push(row) or ())
            except Exception as error:
                if refused is None or isinstance(error, PlanError) or not is_of_the_row(error):
                    raise
                refused[at] = f"assemble ({step.function.name}): push failed: {type(error).__name__}: {error}"
        return out

    return _assembled(step, push)


def finished(step: SampleAssembly, made: Any) -> pa.Table:
    """Return what an assembler makes of the samples that it still holds."""
    if "drop_last" in inspect.signature(made.finish).parameters:
        return _assembled(step, lambda: made.finish(drop_last=step.drop_last))
    return no_rows(step.schema()) if step.drop_last else _assembled(step, made.finish)


def _assembled(step: SampleAssembly, call: Callable[..., Any], *given: pa.Table) -> pa.Table:
    """Return the samples that an assembler's method returns, with the plan's columns and types.

    Raises:
        DataError: the method fails, or returns something else.
        PlanError: it asks the context for what belongs to a process.
    """
    name, schema, tables = step.function.name, step.schema(), step.function.batched
    try:
        found = call(*given)
        if found is None:
            return no_rows(schema)
        made = found if tables else pa.Table.from_pylist(list(found), schema)
        return unsliced_table(made.select(schema.names).cast(schema))
    except PlanError:
        raise
    except Exception as error:
        what = f"a table with {', '.join(schema.names)}" if tables else f"dicts with {', '.join(schema.names)}"
        msg = f"assemble ({name}): {type(error).__name__}: {error}; push and finish return {what}"
        raise DataError(msg) from error
