"""The laws of streams: the same plan gives the same batches again, after any stop, on any number of ranks."""

import json
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import wraps
from itertools import islice
from typing import Any, Final, ParamSpec

from spiral_stream.errors import SpiralWarning
from spiral_stream.host_dtypes import as_array
from spiral_stream.prepared import PreparedStream
from spiral_stream.sampling.nodes import Nodes

MakeStream = Callable[[], PreparedStream]
Loop = Callable[[PreparedStream, int], Iterator[Any]]  # (stream, steps left in the epoch) -> batches of one pass

P = ParamSpec("P")


def _unwarned(law: Callable[P, None]) -> Callable[P, None]:
    """Silence the warnings of a law that tries more ranks than a small stream can feed."""

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
}  # each ends after the last batch of an epoch


def same(a: Any, b: Any) -> bool:
    """Return whether two batches, or two fields of them, are equal bit for bit."""
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[name], b[name]) for name in a)
    if isinstance(a, list):
        return bool(a == b)
    left, right = as_array(a), as_array(b)
    return left.dtype == right.dtype and left.shape == right.shape and left.tobytes() == right.tobytes()


def frozen(batch: dict[str, Any]) -> dict[str, Any]:
    """Copy a batch, so that its memory may be used again."""
    return {name: value if isinstance(value, list) else as_array(value).copy() for name, value in batch.items()}


@_unwarned
def check_replay(make: MakeStream) -> None:
    """*replay*: the same plan gives the same bytes twice, also when every batch of an epoch is held at the same time.

    Args:
        make: returns a new stream.

    Raises:
        AssertionError: the law is broken.
    """
    with make() as first, make() as second:
        held = list(first)
        for at, batch in enumerate(second):
            assert same(held[at], batch), f"batch {at} differs when the stream is replayed"


@_unwarned
def check_resume(make: MakeStream, steps: Sequence[int] | None = None) -> None:
    """*resume*: stop after any step, load the state into a new stream, and the remaining batches are the same.

    The state is saved and loaded twice in a row. A state saved after the last step begins the next epoch.

    Args:
        make: returns a new stream.
        steps: numbers of steps to stop after; None tries all of the epoch.

    Raises:
        AssertionError: the law is broken.
    """
    with make() as uninterrupted:
        expected = [frozen(batch) for batch in uninterrupted]
        following = (
            [frozen(batch) for batch in uninterrupted] if expected and (steps is None or len(expected) in steps) else []
        )
    for stop in range(len(expected) + 1) if steps is None else steps:
        with make() as first:
            run = iter(first)
            for _ in range(stop):
                next(run)
            state = first.state_dict()
            run.close()  # type: ignore[attr-defined]  # a generator
            assert _turn(first.state_dict()) == _turn(state), f"after step {stop}: leaving the loop moves the place"
        with make() as second, make() as third:
            second.load_state_dict(json.loads(json.dumps(state)))
            again = second.state_dict()
            assert _turn(again) == _turn(state), f"after step {stop}: loading the state moves the place"
            third.load_state_dict(again)
            tail = [frozen(batch) for batch in third]
        rest = expected[stop:] if stop < len(expected) else following
        assert len(tail) == len(rest), f"after step {stop}: {len(tail)} batches left, not {len(rest)}"
        for at, batch in enumerate(tail):
            assert same(rest[at], batch), f"resumed after step {stop}: batch {at} of the rest differs"


def _turn(state: Mapping[str, Any]) -> tuple[Any, ...]:
    return state["epoch"], state["batch"], state["step"]


@_unwarned
def check_loops(make: MakeStream, loops: Mapping[str, Loop] = LOOPS, passes: int = 2) -> None:
    """*loops*: however a loop ends after the last batch of an epoch, the next loop reads the next epoch.

    Args:
        make: returns a new stream.
        loops: ways to loop, by name.
        passes: epochs to read in a row.

    Raises:
        AssertionError: the law is broken.
    """
    with make() as uninterrupted:
        expected = [[frozen(batch) for batch in uninterrupted] for _ in range(passes)]
    for name, loop in loops.items():
        with make() as stream:
            for number, wanted in enumerate(expected):
                found = [frozen(batch) for batch in loop(stream, len(wanted))]
                assert len(found) == len(wanted), f"{name}: pass {number} has {len(found)} batches, not {len(wanted)}"
                for at, batch in enumerate(found):
                    assert same(wanted[at], batch), f"{name}: batch {at} of pass {number} differs"


@_unwarned
def check_elastic(make: MakeStream, worlds: Sequence[int] = (1, 2, 3, 4), ranks_per_node: int | None = None) -> None:
    """*elastic*: the ranks of any world size together deliver the batches of one rank, in the same order.

    Args:
        make: returns a new stream.
        worlds: numbers of ranks to try.
        ranks_per_node: also bound; divides each of ``worlds``.

    Raises:
        AssertionError: the law is broken.
    """
    with make() as stream:
        single = [frozen(batch) for batch in stream.bind(rank=0, world_size=1)]
    for world in worlds:
        ranks: list[Any] = []
        for rank in range(world):
            with make() as stream:
                ranks.append([*map(frozen, stream.bind(rank=rank, world_size=world, ranks_per_node=ranks_per_node))])
        by_node = [ranks[Nodes(world, ranks_per_node or 1).rank_at(at)] for at in range(world)]
        merged = [batches[s] for s in range(len(single)) for batches in by_node if s < len(batches)]
        for at, batch in enumerate(merged[: len(single)]):
            assert same(single[at], batch), f"world size {world}: global batch {at} differs"
