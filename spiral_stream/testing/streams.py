"""The laws of streams: the same plan gives the same batches again, after any stop, on any number of ranks."""

import hashlib
import json
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import wraps
from itertools import chain, islice
from typing import Any, Final, ParamSpec

from spiral_stream.errors import BindError, ResumeError, SpiralWarning
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

    The state is saved and loaded twice in a row. A state saved after the last step begins the next epoch. One that is saved
    inside an optimizer step (``bind(step_batches=)``) begins that step.

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
            began = first.state_dict()["step"]
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
        inside = began + stop - state["step"] if _dealt(state) else 0
        assert 0 <= inside < max(1, _microsteps(state)), (
            f"after step {stop}: the state is no border's, {inside} steps back"
        )
        rest = expected[stop - inside :] if stop - inside < len(expected) else following
        assert len(tail) == len(rest), f"after step {stop}: {len(tail)} batches left, not {len(rest)}"
        for at, batch in enumerate(tail):
            assert same(rest[at], batch), f"resumed after step {stop}: batch {at} of the rest differs"


def _dealt(state: Mapping[str, Any]) -> bool:
    """Whether a state in mid-epoch is of a run that binds optimizer steps."""
    return bool(state["segments"]) and len(state["segments"][-1]) > 5  # noqa: PLR2004  what the deal says comes after these


def _microsteps(state: Mapping[str, Any]) -> int:
    """How many microsteps an optimizer step has."""
    if not _dealt(state):
        return 1
    *_, world_size, merge, step_batches, _ = state["segments"][-1]
    return int(step_batches // (world_size * merge))


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
                way = loop if wanted else LOOPS["exhaustion"]  # a rank may have no batch, and no loop ends after it
                found = [frozen(batch) for batch in way(stream, len(wanted))]
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


@_unwarned
def check_even_steps(make: MakeStream, step_batches: int, worlds: Sequence[int] = (1, 2, 3, 4)) -> None:
    """*even steps*: the ranks of any world size together get the batches of each optimizer step, equally many each.

    Ranks that cannot share a step evenly are refused. A state of one world size leads every other to the steps that are left.

    Args:
        make: returns a new stream.
        step_batches: batches of an optimizer step.
        worlds: numbers of ranks to try.

    Raises:
        AssertionError: the law is broken.
    """
    in_order = _of_rank(make, 0, 1, step_batches=step_batches, deal="order")[0]
    state: dict[str, Any] | None = None
    for world in worlds:
        if step_batches % world:
            _need_refused(make, world, step_batches)
            continue
        _check_sets(make, world, step_batches, in_order, None)
        if state is not None:  # of other ranks, after their first optimizer step
            _check_sets(make, world, step_batches, in_order[step_batches:], state)
        if len(in_order) > step_batches:
            state = _of_rank(make, world - 1, world, step_batches // world, step_batches=step_batches)[1]


@_unwarned
def check_one_shape(make: MakeStream, fields: Sequence[str], worlds: Sequence[int] = (1, 2, 3, 4)) -> None:
    """*one shape*: in each step, all ranks get fields of one shape, apart from the number of rows.

    Ranks that would not are refused. A state of one world size leads the next to such steps as well, or is refused there.

    Args:
        make: returns a new stream.
        fields: whose shapes are compared.
        worlds: numbers of ranks to try.

    Raises:
        AssertionError: the law is broken, or no number of ranks is taken.
    """
    state: Any = None
    for world in worlds:
        try:
            _check_shapes(make, fields, world, None)
            if state is not None:
                with suppress(ResumeError):
                    _check_shapes(make, fields, world, state)
        except BindError:
            continue
        state = _of_rank(make, 0, world, 3)[1]
    assert state is not None, f"none of {worlds} ranks is taken"


def _check_shapes(make: MakeStream, fields: Sequence[str], world: int, state: Any) -> None:
    """Compare the shapes that all ranks get from a state on, or in an epoch."""
    ranks = list[list[list[tuple[int, ...]]]]()
    for rank in range(world):
        with make() as stream:
            stream.bind(rank=rank, world_size=world)
            if state is not None:
                stream.load_state_dict(json.loads(json.dumps(state)))
            ranks.append([[as_array(batch[name]).shape[1:] for name in fields] for batch in stream])
    for step in range(max(map(len, ranks))):
        got = [shapes[step] for shapes in ranks if step < len(shapes)]
        assert got.count(got[0]) == len(got), f"world size {world}: step {step} has shapes {got}"


def _of_rank(make: MakeStream, rank: int, world: int, stop: int | None = None, **bound: Any) -> tuple[list[bytes], Any]:
    """What a rank gets in an epoch, or in some steps of it, one digest per batch; and the state after it."""
    state, out = bound.pop("state", None), list[bytes]()
    with make() as stream:
        stream.bind(rank=rank, world_size=world, **bound)
        if state is not None:
            stream.load_state_dict(json.loads(json.dumps(state)))
        for batch in islice(stream, stop):
            out.append(_digest(batch))
        return out, stream.state_dict()


def _check_sets(make: MakeStream, world: int, step_batches: int, in_order: Sequence[bytes], state: Any) -> None:
    ranks = [_of_rank(make, rank, world, step_batches=step_batches, state=state)[0] for rank in range(world)]
    share = step_batches // world
    for step, first in enumerate(range(0, len(in_order), step_batches)):
        wanted = in_order[first : first + step_batches]
        got = [batches[step * share : (step + 1) * share] for batches in ranks]
        assert sorted(wanted) == sorted(chain.from_iterable(got)), f"world size {world}: step {step} has other batches"
        even = len(wanted) < step_batches or {len(batches) for batches in got} == {share}
        assert even, f"world size {world}: ranks get {[len(batches) for batches in got]} batches of step {step}"
    left = [len(batches) for batches in ranks if len(batches) > -(-len(in_order) // step_batches) * share]
    assert not left, f"world size {world}: ranks go on for {left} steps, after the last optimizer step"


def _need_refused(make: MakeStream, world: int, step_batches: int) -> None:
    with make() as stream:
        try:
            stream.bind(rank=0, world_size=world, step_batches=step_batches)
        except BindError:
            return
    msg = f"world size {world}: it does not divide {step_batches}, and is not refused"
    raise AssertionError(msg)


def _digest(batch: Mapping[str, Any]) -> bytes:
    """A batch as bytes: equal of equal batches."""
    found = hashlib.sha256()
    for name, value in batch.items():
        array = None if isinstance(value, list) else as_array(value)
        found.update(repr((name, value if array is None else (array.dtype.str, array.shape))).encode())
        found.update(b"" if array is None else array.tobytes())
    return found.digest()
