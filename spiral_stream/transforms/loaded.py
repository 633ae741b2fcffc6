"""Functions that need something costly, such as a model: it is loaded once in each process, and called by one thread at a time.

`loads` makes a function of one that takes what is loaded first. What is loaded belongs to the process: it travels to no other
one, and another process that is given the function loads its own. `draw_variant` and `take_variant` choose among the variants
that such a function made of a row.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, wraps
from queue import SimpleQueue
from typing import Any, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from spiral_stream.arguments import door
from spiral_stream.errors import DataError, PlanError, shown


@door(PlanError, excepted=("load",))
def loads(load: Callable[[], Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Let a function for `Relation.map` take what ``load`` returns, such as a model, before its columns.

    ``load`` is called once in each process, by the first call there; processes of ``workers=``, of
    ``materialize(executor="processes")`` and of Ray each load their own. One thread calls the function at a time. Its code and
    that of ``load`` count in fingerprints; files that ``load`` reads do not, so give those a version
    ([how to](../howto/encoders.md#weights)).

    Args:
        load: takes nothing, and returns what the function needs.

    Raises:
        PlanError: it is no function.

    Examples:
        >>> @spiral.transforms.loads(lambda: {"cat": 1, "dog": 2})
        ... def number(table, words):
        ...     return [table.get(word, 0) for word in words.to_pylist()]
        >>> number(pa.array(["dog", "cow"]))
        [2, 0]
    """
    if not callable(load):
        msg = f"loads: {shown(load)} is no function. Give one that takes nothing and returns what is needed, such as a model"
        raise PlanError(msg)

    def loading(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def call(*given: Any) -> Any:
            with _of_process().lent(load) as loaded:
                return function(loaded, *given)

        return call

    return loading


@final
class _LoadedHere:
    """What functions of this process have loaded, by what loads it. Thread-safe: who has it took it out of a queue of one."""

    def __init__(self) -> None:
        self._loaded: dict[Callable[[], Any], SimpleQueue[tuple[Any, ...]]] = {}

    @contextmanager
    def lent(self, load: Callable[[], Any]) -> Iterator[Any]:
        """Give what ``load`` returned to one thread at a time; the first one calls it."""
        begun = SimpleQueue[tuple[Any, ...]]()
        begun.put(())
        queue = self._loaded.setdefault(load, begun)
        held = queue.get()
        try:
            held = held or (load(),)
            yield held[0]
        finally:
            queue.put(held)


@cache
def _of_process() -> _LoadedHere:
    """Return what this process has loaded; a forked one loads its own, since a device does not outlive a fork."""
    found = _LoadedHere()
    os.register_at_fork(after_in_child=_of_process.cache_clear)
    return found


def draw_variant(variants: pa.Array, keys: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Draw the number of a variant for each sample, another one in each epoch, for `Relation.map` with ``random=True``.

    Args:
        variants: S lists or tensors, at least one variant in each.
        keys: shape [S], the samples' random keys.

    Raises:
        DataError: a list is null or empty.

    Examples:
        >>> drawn = spiral.transforms.draw_variant(pa.array([["a", "b"], ["c"]]), np.array([7, 8], np.uint64))
        >>> drawn.tolist()
        [1, 0]
    """
    count = _counts(variants).astype(np.uint64)
    if len(count) and not count.min():
        msg = "draw_variant: a sample has no variant. Filter it out, or make one"
        raise DataError(msg, row=int(count.argmin()))
    found: NDArray[np.int64] = (keys % np.maximum(count, np.uint64(1))).astype(np.int64)
    return found


def take_variant(variants: pa.Array, number: pa.Array) -> pa.Array | NDArray[Any]:
    """Take one variant of each sample, for `Relation.map`: of the column of variants, and one of their numbers.

    Args:
        variants: S lists, or tensors whose first dimension counts the variants.
        number: S numbers, each of an item of its list, such as `draw_variant` gives.

    Raises:
        DataError: a list has no such item.

    Examples:
        >>> spiral.transforms.take_variant(pa.array([["a", "b"], ["c"]]), pa.array([1, 0])).to_pylist()
        ['b', 'c']
    """
    count = _counts(variants)
    wanted = number.to_numpy(zero_copy_only=False).astype(np.int64)
    wrong = np.flatnonzero((wanted < 0) | (wanted >= count))
    if len(wrong):
        row = int(wrong[0])
        msg = f"take_variant: variant {wanted[row]} of a sample that has {count[row]}. Give a number below that"
        raise DataError(msg, row=row)
    if isinstance(variants.type, pa.FixedShapeTensorType):
        found: NDArray[Any] = variants.to_numpy_ndarray()[np.arange(len(variants)), wanted]
        return found
    return variants.flatten().take(pa.array(np.cumsum(count) - count + wanted))


def _counts(variants: pa.Array) -> NDArray[np.int64]:
    """How many variants each sample has; 0 of null."""
    if isinstance(variants.type, pa.FixedShapeTensorType):
        there = variants.is_valid().to_numpy(zero_copy_only=False)
        return np.where(there, variants.type.shape[0], 0).astype(np.int64)
    lengths = pc.fill_null(pc.list_value_length(variants), 0)
    return np.asarray(lengths.to_numpy(zero_copy_only=False), dtype=np.int64)


draw_variant.__spiral_version__ = "1"  # type: ignore[attr-defined]  # in place of its code, in fingerprints
take_variant.__spiral_version__ = "1"  # type: ignore[attr-defined]
