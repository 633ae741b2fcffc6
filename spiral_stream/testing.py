"""The laws every order, formation and stream must keep, for a user's own policies too.

Each law takes a function that makes a fresh stream and raises `AssertionError`
with the first place where the law breaks.
"""

import json
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import wraps
from itertools import islice
from typing import Any, Final, ParamSpec

import numpy as np

from spiral_stream.errors import SpiralWarning
from spiral_stream.prepared import PreparedStream
from spiral_stream.sampling.order import Order, Population

MakeStream = Callable[[], PreparedStream]
Loop = Callable[
    [PreparedStream, int], Iterator[Any]
]  # the batches of one pass, of a stream and the steps that are left


P = ParamSpec("P")


def _unwarned(law: Callable[P, None]) -> Callable[P, None]:
    """The law, which tries more ranks than a small stream feeds on purpose, without the warnings about that."""

    @wraps(law)
    def checked(*args: P.args, **kwargs: P.kwargs) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SpiralWarning)
            law(*args, **kwargs)

    return checked


def _broken_off(stream: PreparedStream, steps: int) -> Iterator[Any]:
    for number, batch in enumerate(stream, 1):
        yield batch
        if number == steps:
            break


LOOPS: Final[Mapping[str, Loop]] = {
    "exhaustion": lambda stream, _: iter(stream),
    "break": _broken_off,
    "islice": islice,
    "zip": lambda stream, steps: (batch for _, batch in zip(range(steps), stream, strict=False)),
}  # each ends behind the last batch of an epoch


def same(a: Any, b: Any) -> bool:
    """Whether two batches are equal, bit for bit."""
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[name], b[name]) for name in a)
    if isinstance(a, list):
        return bool(a == b)
    left, right = np.asarray(a), np.asarray(b)
    return left.dtype == right.dtype and left.shape == right.shape and left.tobytes() == right.tobytes()


def frozen(batch: dict[str, Any]) -> dict[str, Any]:
    """A copy that does not hold the batch's slot."""
    return {name: value if isinstance(value, list) else np.asarray(value).copy() for name, value in batch.items()}


def check_order(order: Order, population: Population, passes: Sequence[int] = (0, 1)) -> None:
    """*cover* and *pure*: each pass reads every row once, and any split of the positions reads the same."""
    everything = np.arange(population.total, dtype=np.uint64)
    for number in passes:
        arranged = order.arrange(population, number)
        rows = arranged.rows(everything)
        assert np.array_equal(np.sort(rows), everything), f"pass {number} does not read every row exactly once"
        assert np.array_equal(arranged.positions(rows), everything), f"pass {number}: positions() is not the inverse"
        half = everything[: len(everything) // 2]
        assert np.array_equal(arranged.rows(half), rows[: len(half)]), (
            f"pass {number}: rows depend on what else is asked"
        )


@_unwarned
def check_replay(make: MakeStream) -> None:
    """*replay*: the same plan gives the same bytes twice, and `list` equals one by one (slots are not reused early)."""
    with make() as first, make() as second:
        held = list(first)
        for at, batch in enumerate(second):
            assert same(held[at], batch), f"batch {at} differs when the stream is replayed"


@_unwarned
def check_resume(make: MakeStream, steps: Sequence[int] | None = None) -> None:
    """*resume*: stopping after any step and loading the state, twice in a row, gives the same tail.

    After the last step that is the next epoch: a state saved there begins it.
    """
    with make() as whole:
        expected = [frozen(batch) for batch in whole]
        following = [frozen(batch) for batch in whole] if expected and (steps is None or len(expected) in steps) else []
    for stop in range(len(expected) + 1) if steps is None else steps:
        with make() as first:
            run = iter(first)
            for _ in range(stop):
                next(run)
            state = first.state_dict()
            run.close()  # type: ignore[attr-defined]  # a generator
            assert _place(first.state_dict()) == _place(state), f"after step {stop}: leaving the loop moves the place"
        with make() as second, make() as third:
            second.load_state_dict(json.loads(json.dumps(state)))
            again = second.state_dict()
            assert _place(again) == _place(state), f"after step {stop}: loading the state moves the place"
            third.load_state_dict(again)
            tail = [frozen(batch) for batch in third]
        rest = expected[stop:] if stop < len(expected) else following
        assert len(tail) == len(rest), f"after step {stop}: {len(tail)} batches left, not {len(rest)}"
        for at, batch in enumerate(tail):
            assert same(rest[at], batch), f"resumed after step {stop}: batch {at} of the rest differs"


def _place(state: Mapping[str, Any]) -> tuple[Any, ...]:
    return state["epoch"], state["batch"], state["step"]


@_unwarned
def check_loops(make: MakeStream, loops: Mapping[str, Loop] = LOOPS, passes: int = 2) -> None:
    """*loops*: however a loop ends behind the last batch of an epoch, the next one reads the next epoch."""
    with make() as whole:
        expected = [[frozen(batch) for batch in whole] for _ in range(passes)]
    for name, loop in loops.items():
        with make() as stream:
            for number, wanted in enumerate(expected):
                found = [frozen(batch) for batch in loop(stream, len(wanted))]
                assert len(found) == len(wanted), f"{name}: pass {number} has {len(found)} batches, not {len(wanted)}"
                for at, batch in enumerate(found):
                    assert same(wanted[at], batch), f"{name}: batch {at} of pass {number} differs"


@_unwarned
def check_elastic(make: MakeStream, worlds: Sequence[int] = (1, 2, 3, 4)) -> None:
    """*elastic*: the ranks of any world size give one global batch sequence."""
    with make() as stream:
        stream.bind(data_parallel_rank=0, data_parallel_world_size=1)
        whole = [frozen(batch) for batch in stream]
    for world in worlds:
        ranks = []
        for rank in range(world):
            with make() as stream:
                stream.bind(data_parallel_rank=rank, data_parallel_world_size=world)
                ranks.append([frozen(batch) for batch in stream])
        steps = max(map(len, ranks))
        merged = [ranks[r][s] for s in range(steps) for r in range(world) if s < len(ranks[r])]
        for at, batch in enumerate(merged[: len(whole)]):
            assert same(whole[at], batch), f"world size {world}: global batch {at} differs"
