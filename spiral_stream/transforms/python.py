"""A user's function in a plan: which columns it takes, what it returns, and whether it draws random numbers.

A function has one of three forms. It takes Arrow arrays of many samples (``batched``), the Python values of one sample,
or record batches (``records``), or one sample as a dict, and then returns several columns. Its result for a sample must
depend on that sample alone. A random function gets a generator that belongs to the sample (docs/decisions/0032), or, if
batched, the samples' 64-bit keys. So the numbers it draws depend on neither workers nor batches.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spiral_stream.arguments import check, door, integer
from spiral_stream.errors import DataError, PlanError, SourceError, SpiralError, shown
from spiral_stream.seeding import combine
from spiral_stream.transforms.function_results import column_of, columns_of, need_rows
from spiral_stream.transforms.transform import Named, Transform

INDEX: Final = "\0index"  # where samples stand in the epoch's order; no column of a plan begins with NUL
_LEFT_OUT: Final[Mapping[str, Any]] = {"columns": (), "batched": True, "random": False, "with_index": False}
_DRAWS: Final = integer(1, 2**16, "how many random keys of each row it takes, or None", none=True)
_CALL_ROWS: Final = integer(1, None, "the most rows of one call, or None", none=True)
_PROCESSES: Final = integer(1, None, "a number of processes of at least 1, or None for threads", none=True)


@final
@dataclass(frozen=True, slots=True, eq=False)
class Function:
    """A user's function over columns, and what the plan knows of it before it runs."""

    function: Callable[..., Any]
    columns: tuple[str, ...]
    kind: pa.DataType  # of the values it returns; for records a struct of its columns
    batched: bool = True
    random: bool = False
    version: str | None = None  # stands for its code in fingerprints
    records: bool = False  # takes record batches (or dicts) and returns several columns
    workers: int | None = None  # processes that run it; None runs it on the stream's threads. Not in fingerprints
    with_index: bool = False  # also takes where each sample stands in the epoch's order, after its columns
    draws: int | None = None  # also takes this many random keys of each row, the same in every epoch
    call_rows: int | None = (
        None  # most samples of one call; None: as many as a window or a batch has. Not in fingerprints
    )

    def __post_init__(self) -> None:
        if not callable(self.function):
            given = shown(self.function)
            msg = f"map: {given} is no function. Give a transform, for example Tokenize(...) >> 'tokens', or a function"
            raise PlanError(msg)
        if not self.columns:
            msg = f"map ({self.name}): columns=(). Name the columns that the function takes, in order"
            raise PlanError(msg)
        if not isinstance(self.kind, pa.DataType):
            given = shown(self.kind)
            msg = (
                f"map ({self.name}): returns={given}. Give the Arrow type of what it returns, for example pa.float32()"
            )
            raise PlanError(msg)
        check(self, f"map ({self.name})", workers=_PROCESSES, draws=_DRAWS, call_rows=_CALL_ROWS)
        if self.random and self.draws is not None:
            msg = (
                f"map ({self.name}): random=True draws anew in each epoch, and draws={self.draws} the same numbers in all. Give "
                "draws for values that are kept, or random=True"
            )
            raise PlanError(msg)

    @property
    def of_the_row(self) -> bool:
        """Whether it gives the same value in every epoch: it draws no random number, and is given no place in an epoch."""
        return not self.random and not self.with_index

    @property
    def name(self) -> str:
        """The function's own name, for messages."""
        return spelt_name(self.function)

    def run(self, table: pa.Table, keys: NDArray[np.uint64]) -> pa.Array:
        """Call the function for some samples.

        Args:
            table: S samples with at least `columns`, and with `INDEX` for a function ``with_index``.
            keys: shape [S], uint64: random keys of the samples, or of their rows if it `draws`, for this function alone.

        Returns:
            S values of type ``kind``.

        Raises:
            DataError: the function failed, or did not return S values of type ``kind``; ``row`` is the sample, if known.
        """
        columns = [table[name].combine_chunks() for name in self.columns]
        given = [pa.RecordBatch.from_arrays(columns, names=list(self.columns))] if self.records else columns
        if not self.batched:
            given = [each.to_pylist() for each in given]
        if self.with_index:
            index = table[INDEX].to_numpy()
            given = [*given, index if self.batched else index.tolist()]
        if self.records:
            values = self._called(given, keys) if self.batched else self._singly(given, keys)
            return columns_of(values, self.kind, len(table), self._who)
        values = column_of(
            self._called(given, keys) if self.batched else self._singly(given, keys), self.kind, self._who
        )
        need_rows(len(values), len(table), self._who)
        return values

    @property
    def _who(self) -> str:
        return f"map ({self.name})"

    def _called(self, given: list[Any], keys: NDArray[np.uint64]) -> Any:
        """One call for all samples; ``given`` holds arrays, or one record batch, and perhaps the samples' places."""
        try:
            return self.function(*given, *self._drawn(keys))
        except Exception as error:
            if not is_of_the_row(error):
                raise self._fault(error) from error
            self._raise_first(given, keys)
            msg = f"{self._who}: failed on {len(keys):,} samples: {type(error).__name__}: {error}"
            raise DataError(msg) from error

    def _raise_first(self, given: list[Any], keys: NDArray[np.uint64]) -> None:
        """Raise the error of the first sample that fails by itself: one call per sample, after a failure only."""
        for row in range(len(keys)):
            one = [each[row : row + 1] for each in given]
            try:
                self.function(*one, *self._drawn(keys[row : row + 1]))
            except Exception as error:
                raise self._of_row(error, row) from error

    def _singly(self, columns: list[list[Any]], keys: NDArray[np.uint64]) -> list[Any]:
        out = []
        for row, values in enumerate(zip(*columns, strict=True)):  # batched=False: the user asked for a call per sample
            try:
                out.append(self.function(*values, *self._generators(keys[row])))
            except Exception as error:
                raise self._of_row(error, row) from error
        return out

    def _drawn(self, keys: NDArray[np.uint64]) -> tuple[NDArray[np.uint64], ...]:
        """What a batched function is given to draw from: a key per sample, [S], or several per row, [S, draws]."""
        if self.draws is not None:
            return (combine(keys[:, None], np.arange(self.draws, dtype=np.uint64)),)
        return (keys,) if self.random else ()

    def _generators(self, key: np.uint64) -> tuple[Any, ...]:
        """What a function of one sample is given to draw from: a generator, or a list of several."""
        if self.draws is not None:
            keys = combine(key, np.arange(self.draws, dtype=np.uint64)).tolist()
            return ([np.random.Generator(np.random.Philox(key=each)) for each in keys],)
        return (np.random.Generator(np.random.Philox(key=int(key))),) if self.random else ()

    def _of_row(self, error: Exception, row: int) -> SourceError:
        """The error of one sample: its own fault, or another's."""
        if not is_of_the_row(error):
            return self._fault(error, row)
        return DataError(f"{self._who}: failed: {type(error).__name__}: {error}", row=row)

    def _fault(self, error: Exception, row: int | None = None) -> SourceError:
        """A fault of storage or memory that the function met: no property of the sample."""
        return SourceError(f"{self._who}: failed: {type(error).__name__}: {error}", row=row)


@final
@dataclass(frozen=True, slots=True)
class NamedFunction:
    """A function, and the name of the column that it gives. Made by ``fn(function) >> "name"``."""

    function: Callable[..., Any]
    name: str


@final
@dataclass(frozen=True, slots=True)
class UnnamedFunction:
    """A function that waits for the name of its column. Made by `fn`."""

    function: Callable[..., Any]

    def __rshift__(self, name: str) -> NamedFunction:
        """Name the column that the function gives."""
        if not isinstance(name, str) or not name:
            function_name = spelt_name(self.function)
            msg = f'fn({function_name}) >> {shown(name)}: give the name of the new column, as in fn({function_name}) >> "score"'
            raise PlanError(msg)
        return NamedFunction(self.function, name)


@door(PlanError, excepted=("function",))
def fn(function: Callable[..., Any]) -> UnnamedFunction:
    """Let ``>>`` name the column that a function gives, as it does for `Tokenize`. A bare function of Python has no ``>>``.

    The plan is that of ``map(function, name=...)``.

    Args:
        function: what `Relation.map` takes.

    Raises:
        PlanError: it is no function.

    Examples:
        >>> def words(text):
        ...     return [len(each.split()) for each in text.to_pylist()]
        >>> sampled = texts.sample(order=shuffle)
        >>> sampled.map(spiral.transforms.fn(words) >> "words", columns=["text"], returns=pa.int64()).columns[-1]
        'words'
    """
    return UnnamedFunction(function)


def named_function(what: Any, name: str | None) -> tuple[Any, str | None]:
    """Return the function that `map` is given, and the name of its column: by ``>>`` or by ``name=``.

    Raises:
        PlanError: it is named twice, or waits for its name.
    """
    if isinstance(what, UnnamedFunction):
        spelt = spelt_name(what.function)
        msg = f'map: fn({spelt}) has no name yet. Write fn({spelt}) >> "score", or give the function itself and name="score"'
        raise PlanError(msg)
    if isinstance(what, Transform):
        made = type(what).__name__
        several = f', or {made}(...) >> ("tokens", "loss_mask") for a mask too' if made == "ChatTemplate" else ""
        msg = f'map: {made} has no name for its column yet. Write {made}(...) >> "tokens"{several}'
        raise PlanError(msg)
    if not isinstance(what, NamedFunction):
        return what, name
    if name is not None:
        spelt = spelt_name(what.function)
        msg = (
            f"map: fn({spelt}) >> {what.name!r} names the column, and so does name={shown(name)}. Leave one of them out"
        )
        raise PlanError(msg)
    return what.function, what.name


def need_no_function(what: Named, given: Mapping[str, Any]) -> None:
    """Refuse arguments of functions for a transform, which would not heed them.

    Args:
        what: the transform.
        given: the arguments by name.

    Raises:
        PlanError: names the first that is not as if it were left out.
    """
    for name, value in given.items():
        left_out = value == _LEFT_OUT[name] if name in _LEFT_OUT else value is None
        if not left_out:
            kind = type(what.transform).__name__
            msg = f"map: {name}={shown(value)} is of functions, and {kind} is none: it says itself what it takes. Leave it out"
            raise PlanError(msg)


def spelt_name(function: Callable[..., Any]) -> str:
    """Return a function's own name, for messages."""
    return str(getattr(function, "__qualname__", None) or type(function).__name__)


def is_of_the_row(error: Exception) -> bool:
    """Whether what a function raised may be a property of its row, so that `on_error` may leave the row out.

    Memory that is used up, a fault of storage or network, and our own errors are none. An `OSError` without a number is
    what Pillow raises of a bad image.
    """
    kind = type(error)
    if isinstance(error, MemoryError) or kind.__name__ == "OutOfMemoryError":
        return False
    if isinstance(error, SpiralError):
        return isinstance(error, DataError)
    if isinstance(error, OSError):
        whose = kind.__module__.split(".")[0]
        lost = isinstance(error, ConnectionError | TimeoutError)
        return error.errno is None and not lost and whose in ("builtins", "PIL")
    return True
