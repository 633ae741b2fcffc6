"""How a user's assembler is created and called, and how a user's function is named while it runs."""

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from spiral_stream.dialects.offsets import unsliced_table
from spiral_stream.errors import DataError
from spiral_stream.plan.maps import Context, SampleAssembly
from spiral_stream.transforms.python import Function


def called(function: Function) -> str:
    """Return a user's function in words, for messages to those who wait for it."""
    module = getattr(function.function, "__module__", None)
    return f"a user's function, {module}:{function.name}"


def assembler(step: SampleAssembly, context: Context) -> Any:
    """Create the assembler of a chapter.

    Raises:
        DataError: the user's factory fails, or returns something without ``push`` and ``finish``.
    """
    name = step.function.name
    try:
        made = step.function.function(context)
    except Exception as error:
        msg = f"assemble ({name}): {type(error).__name__}: {error}; it is called with a context (epoch, lane, chapter)"
        raise DataError(msg) from error
    if not (callable(getattr(made, "push", None)) and callable(getattr(made, "finish", None))):
        msg = f"assemble ({name}): gave a {type(made).__name__}. Give it push(table) and finish(), which return a table or None"
        raise DataError(msg)
    return made


def assembled(step: SampleAssembly, call: Callable[..., Any], *given: pa.Table) -> pa.Table:
    """Return the samples that an assembler's method returns, with the plan's columns and types.

    Raises:
        DataError: the method fails, or returns something else.
    """
    name, schema = step.function.name, step.schema()
    try:
        found = call(*given)
        return schema.empty_table() if found is None else unsliced_table(found.select(schema.names).cast(schema))
    except Exception as error:
        msg = f"assemble ({name}): {type(error).__name__}: {error}; push and finish return a table with {', '.join(schema.names)}"
        raise DataError(msg) from error
