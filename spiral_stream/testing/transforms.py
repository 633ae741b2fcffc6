"""The laws of transforms and of functions in maps; users find them in `spiral_stream.testing`.

A stream may ask for the values of any samples together, in any order, as slices of other arrays, in threads and in other
processes, and may keep them in a cache under the fingerprint. So the value of a sample is a function of its row and its key.
"""

import os
import pickle
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, Generic, TypeVar, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spiral_stream.errors import PlanError
from spiral_stream.host_dtypes import host_dtype
from spiral_stream.plan.functions.code import stable_name
from spiral_stream.plan.saving.canonical import encode_value
from spiral_stream.plan.saving.fingerprint import value_fingerprint
from spiral_stream.transforms.chain import as_steps, compile_chain
from spiral_stream.transforms.python import Function
from spiral_stream.transforms.text.encoder import TextEncoder
from spiral_stream.transforms.text.tokenize import Tokenize
from spiral_stream.transforms.transform import Transform

UInt64 = NDArray[np.uint64]
Rows = TypeVar("Rows")

_THREADS: Final = 4
_CUTS: Final = 3  # ways to cut the rows into batches
_CHILD: Final = """
import pickle, sys
with open(sys.argv[1], "rb") as file:
    sys.path[:] = pickle.load(file)
    subject, rows, keys = pickle.load(file)
with open(sys.argv[2], "wb") as file:
    pickle.dump((subject.fingerprint(), subject.run(rows, keys)), file)
"""


def check_transform(
    transform: Transform | Sequence[Any] | Callable[..., Any],
    rows: "pa.Table | Sequence[NDArray[np.uint8]]",
    *,
    columns: Sequence[str] = (),
    returns: pa.DataType | None = None,
    batched: bool = True,
    random: bool = False,
    version: str | None = None,
    other: Transform | Sequence[Any] | Callable[..., Any] | None = None,
    dtype: str = "float32",
    layout: str = "nchw",
    seed: int = 0,
) -> None:
    """*transform*: check what is promised of a transform, a chain of them, or a function for `map`, over some rows.

    The value of a row depends on the row and on its random key alone: not on the rows that are asked for with it, their order,
    the batches and chunks that they come in, threads or the process. The rows stay as they are. Values have the declared type
    and shape. What is called deterministic draws nothing. It pickles, and has one fingerprint in every process.

    Args:
        transform: a `Tokenize` whose tokenizer is a file; a list of what ``Stack(transforms=)`` takes; or a function for `map`.
            A function lies in a module, since other processes import it.
        rows: at least two: a table; or, for image transforms, arrays of shape [H, W, 3], uint8.
        columns: of a function, as for `map`; so are ``returns``, ``batched``, ``random`` and ``version``.
        returns: the type of the function's values.
        batched: whether the function takes arrays.
        random: whether the function takes randomness.
        version: stands for the function's code.
        other: the same with other code or options; its fingerprint must be another.
        dtype: of the pixels that a chain of image transforms ends in.
        layout: of the pixels, "nchw" or "nhwc".
        seed: of the keys and of the draws.

    Raises:
        AssertionError: a law is broken.
        DataError: the transform fails on a row.
        PlanError: the arguments are no legal transform.
    """

    def made(what: Any) -> "_Subject[Any]":
        if isinstance(what, Tokenize):
            return _Tokens(what)
        if isinstance(what, Transform) or (isinstance(what, Sequence) and not isinstance(what, str)):
            return _Images(what if isinstance(what, Sequence) else (what,), dtype, layout)
        assert returns is not None, "a function needs columns= and returns=, as for map"
        return _Values(Function(what, tuple(columns), returns, batched, random, version))

    subject = made(transform)
    subject.check()
    _check(subject, rows, np.random.default_rng(seed))
    if other is not None:
        assert made(other).fingerprint() != subject.fingerprint(), (
            "fingerprint: other code or options have the same one"
        )


class _Subject(ABC, Generic[Rows]):
    """What is tested. It pickles if what it holds does."""

    @abstractmethod
    def run(self, rows: Rows, keys: UInt64) -> list[Any]:
        """The value of each row, in a form that `==` compares bit for bit."""

    @abstractmethod
    def fingerprint(self) -> str:
        """The fingerprint, made anew."""

    @abstractmethod
    def check(self) -> None:
        """Check what needs no rows."""

    @property
    @abstractmethod
    def deterministic(self) -> bool:
        """Whether keys do not matter."""

    @abstractmethod
    def chosen(self, rows: Rows, which: Sequence[int]) -> Rows:
        """Some rows, in memory of their own."""

    @abstractmethod
    def otherwise(self, rows: Rows) -> list[Rows]:
        """The same rows, lying in memory in other ways."""

    @abstractmethod
    def seen(self, rows: Rows) -> Any:
        """What the rows hold."""


def _check(subject: _Subject[Rows], rows: Rows, draw: np.random.Generator) -> None:
    count = len(rows)  # type: ignore[arg-type]  # a table or a list
    assert count > 1, f"rows: there are {count}. Give two or more"
    keys = draw.integers(0, 1 << 64, count, np.uint64)
    held = subject.seen(rows)
    together = subject.run(rows, keys)
    assert len(together) == count, f"rows: {len(together)} values for {count} rows"
    assert subject.seen(rows) == held, "pure: it changes the rows that it is given"
    _need_same(subject.run(rows, keys), together, "pure: asked again, the values differ")
    if subject.deterministic:
        other = draw.integers(0, 1 << 64, count, np.uint64)
        _need_same(subject.run(rows, other), together, "deterministic: the values depend on the random keys")
    for number, again in enumerate(subject.otherwise(rows)):
        _need_same(
            subject.run(again, keys), together, f"chunks: the values depend on how the rows lie in memory ({number})"
        )
    _check_batches(subject, rows, keys, together, draw)
    copy = pickle.loads(pickle.dumps(subject))  # noqa: S301  our own bytes
    _need_same(copy.run(rows, keys), together, "pickle: a copy gives other values")
    assert copy.fingerprint() == subject.fingerprint(), "fingerprint: a copy has another one"
    mark, values = _in_another_process(subject, rows, keys)
    assert mark == subject.fingerprint(), "fingerprint: another process has another one"
    _need_same(values, together, "process: another process gives other values")


def _check_batches(
    subject: _Subject[Rows], rows: Rows, keys: UInt64, whole: list[Any], draw: np.random.Generator
) -> None:
    def values(which: NDArray[np.intp]) -> list[Any]:
        return subject.run(subject.chosen(rows, which.tolist()), keys[which])

    count = len(whole)
    orders = [np.arange(count), *(draw.permutation(count) for _ in range(_CUTS))]
    batches = [order[a:b] for order in orders for a, b in pairwise(sorted({0, *draw.integers(1, count, 2), count}))]
    batches += [np.array([row]) for row in range(min(count, 16))] + [np.array([0, 0, count - 1, 0])]
    for which in batches:
        law = f"batches: rows {which.tolist()} together have other values than among all rows"
        _need_same(values(which), [whole[row] for row in which], law)
    with ThreadPoolExecutor(_THREADS) as pool:
        for which, found in zip(batches, pool.map(values, batches), strict=True):
            _need_same(
                found, [whole[row] for row in which], "threads: values differ when they are made at the same time"
            )


def _need_same(found: list[Any], expected: list[Any], law: str) -> None:
    assert len(found) == len(expected), f"{law}: {len(found)} values, not {len(expected)}"
    for row, (one, other) in enumerate(zip(found, expected, strict=True)):
        assert one == other, f"{law}: row {row} is {str(one)[:200]}, not {str(other)[:200]}"


def _in_another_process(subject: _Subject[Rows], rows: Rows, keys: UInt64) -> tuple[str, list[Any]]:
    """The fingerprint and the values that a fresh interpreter finds, with another seed of hashes."""
    with TemporaryDirectory(prefix="spiral-") as folder:
        question, answered = Path(folder, "asked"), Path(folder, "answered")
        question.write_bytes(pickle.dumps(sys.path) + pickle.dumps((subject, rows, keys)))
        seed = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
        done = subprocess.run(  # noqa: S603  this interpreter, and a text of our own
            [sys.executable, "-c", _CHILD, str(question), str(answered)],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=False,
        )
        assert not done.returncode, f"process: another process cannot run it: {done.stderr.strip()[-500:]}"
        found: tuple[str, list[Any]] = pickle.loads(answered.read_bytes())  # noqa: S301  our own bytes
        return found


class _OfTable(_Subject[pa.Table]):
    """What takes columns."""

    def chosen(self, rows: pa.Table, which: Sequence[int]) -> pa.Table:
        return rows.take(pa.array(which, pa.int64()))

    def otherwise(self, rows: pa.Table) -> list[pa.Table]:
        middle = len(rows) // 2
        padded = pa.concat_tables([rows.slice(middle), rows, rows.slice(0, middle)])
        return [
            pa.concat_tables([rows.slice(0, middle), rows.slice(middle)]),  # two chunks
            padded.combine_chunks().slice(len(rows) - middle, len(rows)),  # a part of larger arrays
        ]

    def seen(self, rows: pa.Table) -> Any:
        return repr(rows.to_pylist())


@final
@dataclass(frozen=True)
class _Values(_OfTable):
    """A user's function."""

    function: Function

    def run(self, rows: pa.Table, keys: UInt64) -> list[Any]:
        values = self.function.run(rows, keys)
        values.validate(full=True)
        assert values.type == self.function.kind, f"type: values are {values.type}, and returns={self.function.kind}"
        return [repr(value) for value in values.to_pylist()]

    def fingerprint(self) -> str:
        return value_fingerprint(self.function)

    def check(self) -> None:
        _check_importable(self.function)

    @property
    def deterministic(self) -> bool:
        return not self.function.random


@final
class _Tokens(_OfTable):
    """A `Tokenize`."""

    def __init__(self, tokenize: Tokenize) -> None:
        self._tokenize, self._encoder = tokenize, TextEncoder(tokenize.tokenizer, tokenize)

    def run(self, rows: pa.Table, keys: UInt64) -> list[Any]:
        del keys
        ids, ends = self._encoder.encode(rows[self._tokenize.column])
        assert ids.dtype == self._encoder.dtype, f"type: ids are {ids.dtype}, not {self._encoder.dtype}"
        return [ids[begin:end].tolist() for begin, end in pairwise(ends)]

    def fingerprint(self) -> str:
        return TextEncoder(self._tokenize.tokenizer, self._tokenize).digest

    def check(self) -> None:
        _check_value(self._tokenize)

    @property
    def deterministic(self) -> bool:
        return self._tokenize.deterministic


@final
class _Images(_Subject[Sequence[NDArray[np.uint8]]]):
    """A chain of image transforms."""

    def __init__(self, given: Sequence[Any], dtype: str, layout: str) -> None:
        self._chain = as_steps(given)
        self._program = compile_chain(self._chain, dtype=dtype, layout=layout)

    def run(self, rows: Sequence[NDArray[np.uint8]], keys: UInt64) -> list[Any]:
        shape = self._program.output_shape
        if shape is None:  # each image has a size of its own, so each is a batch of its own
            single = [self._program.stacked([image], keys[row : row + 1])[0] for row, image in enumerate(rows)]
            return [(image.shape, image.tobytes()) for image in single]
        out = np.empty((len(rows), *shape), host_dtype(self._program.dtype))
        self._program.run(rows, keys, out)
        return [(image.shape, image.tobytes()) for image in out]

    def fingerprint(self) -> str:
        return value_fingerprint(self._chain)

    def check(self) -> None:
        for step in self._chain:
            if isinstance(step, Function):
                _check_importable(step)
                continue
            _check_value(step)
            for each in step.evaluation():
                assert each.deterministic, f"evaluation: {type(step).__name__} is replaced by {each}, which draws"

    @property
    def deterministic(self) -> bool:
        return self._program.deterministic

    def chosen(self, rows: Sequence[NDArray[np.uint8]], which: Sequence[int]) -> list[NDArray[np.uint8]]:
        return [rows[row].copy() for row in which]

    def otherwise(self, rows: Sequence[NDArray[np.uint8]]) -> list[Sequence[NDArray[np.uint8]]]:
        one = np.concatenate([np.zeros(1, np.uint8), *(image.ravel() for image in rows)])  # at an odd address
        ends = np.cumsum([1, *(image.size for image in rows)])
        return [[one[a:b].reshape(image.shape) for image, (a, b) in zip(rows, pairwise(ends), strict=True)]]

    def seen(self, rows: Sequence[NDArray[np.uint8]]) -> Any:
        return [image.tobytes() for image in rows]


def _check_importable(function: Function) -> None:
    """Another process finds a function by its name."""
    try:
        stable_name(function.function)
    except PlanError as error:
        msg = f"process: {error}"
        raise AssertionError(msg) from error


def _check_value(transform: Transform) -> None:
    """A transform is a frozen value that a plan can hold."""
    name = type(transform).__name__
    copy = pickle.loads(pickle.dumps(transform))  # noqa: S301  our own bytes
    assert copy == transform, f"pickle: a copy of {name} is another value"
    assert hash(copy) == hash(transform), f"value: equal {name} have different hashes"
    try:
        encode_value(transform)
    except PlanError as error:
        msg = f"value: a plan cannot hold {name}: {error}"
        raise AssertionError(msg) from error
