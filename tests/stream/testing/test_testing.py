"""The laws of `spiral_stream.testing` notice what breaks them; `tests/stream/laws` holds every kind of stream to them."""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import spiral_stream as sp
from spiral_stream import testing
from spiral_stream.batching import Formation, Former, Membership, OversizeTally, Packing, Setting, Window
from spiral_stream.batching.packing import STRATEGIES
from spiral_stream.orders import Arrangement, Order, Population
from spiral_stream.sampling.order import UInt64
from tests.fixtures.streams import maker

pytestmark = pytest.mark.usefixtures("no_threads_left")


class Biased(Order):
    """Reads its first row twice and its last never."""

    def arrange(self, population: Population, pass_number: int) -> Arrangement:
        total = population.total

        class Twice(Arrangement):
            size = total

            def rows(self, positions: UInt64) -> UInt64:
                return np.where(positions == total - 1, np.uint64(0), positions)

            def positions(self, rows: UInt64) -> UInt64:
                return rows

        return Twice()


def test_an_order_that_repeats_a_row_is_noticed() -> None:
    population = Population(np.array([10], dtype=np.uint64), np.zeros(1, dtype=np.uint64))

    with pytest.raises(AssertionError, match="does not read every row exactly once"):
        testing.check_order(Biased(), population)


class Broken(Former):
    """Gives what it is told to give, at the chapter's end."""

    def __init__(self, *batches: Membership) -> None:
        self.tally, self._batches = OversizeTally(), list(batches)

    @property
    def room(self) -> int:
        return 100

    def form(self, window: Window, *, final: bool) -> list[Membership]:
        del window, final
        return self._batches


@dataclass(frozen=True)
class BrokenFormation(Formation):
    """A user's formation; of the first chapter it makes other batches than of those after it."""

    batches: tuple[Membership, ...]
    later: tuple[Membership, ...] | None = None
    window_size = 100
    made: list[Former] = field(default_factory=list)

    @property
    def needs_lengths(self) -> bool:
        return True

    def with_composition(self, composition: object) -> "BrokenFormation":
        del composition
        return self

    def former(self, setting: Setting) -> Former:
        del setting
        self.made.append(Broken(*(self.batches if self.later is None or not self.made else self.later)))
        return self.made[-1]


def batch_of(samples: list[int], width: int = 4, packing: Packing | None = None, rows: int | None = None) -> Membership:
    lengths = None if packing else np.full(len(samples), 4)
    return Membership(np.array(samples), len(samples) if rows is None else rows, width, lengths, packing)


def packed(
    samples: list[int], rows: list[int], starts: list[int], offsets: list[int], lengths: list[int]
) -> Membership:
    pieces = Packing(*(np.array(each, dtype=np.int64) for each in (rows, starts, offsets, lengths)))
    return batch_of(samples, 8, pieces, max(rows) + 1)


FORMATIONS_THAT_BREAK_A_LAW = {
    "a sample is in no batch, or in several": BrokenFormation((batch_of([0, 1]), batch_of([1, 2]))),
    "batch 0 has width 8, and its samples need 4": BrokenFormation((batch_of([0, 1, 2], 8),)),
    "batch 1 has 2 samples in 3 rows": BrokenFormation((batch_of([0]), batch_of([1, 2], rows=3))),
    "forming again gives other batches": BrokenFormation((batch_of([0, 1, 2]),), (batch_of([2, 1, 0]),)),
    "batch 0: two pieces overlap in a row": BrokenFormation(
        (packed([0, 1, 2], [0, 0, 1], [0, 3, 0], [0, 0, 0], [4, 4, 4]),)
    ),
    "sample 2: tokens from 0 on are missing or repeated": BrokenFormation(
        (packed([0, 1, 2], [0, 0, 1], [0, 4, 0], [0, 0, 1], [4, 4, 3]),)
    ),
    "sample 2 has 4 tokens, and 3 are in batches": BrokenFormation(
        (packed([0, 1, 2], [0, 0, 1], [0, 4, 0], [0, 0, 0], [4, 4, 3]),)
    ),
    "1 samples are in no batch": BrokenFormation((packed([0, 1], [0, 0], [0, 4], [0, 0], [4, 4]),)),
}


@pytest.mark.parametrize("broken", FORMATIONS_THAT_BREAK_A_LAW)
def test_a_formation_that_breaks_a_law_is_noticed(broken: str) -> None:
    chapter = testing.ChapterSamples(np.full(3, 4), np.zeros(3, np.int32))

    with pytest.raises(AssertionError, match=broken):
        testing.check_formation(FORMATIONS_THAT_BREAK_A_LAW[broken], chapter, chapter.setting())


@given(
    lengths=st.lists(st.integers(1, 40), max_size=120),
    strategy=st.sampled_from(STRATEGIES),
    window_size=st.integers(1, 30),
    overlong=st.sampled_from(["split", "truncate"]),
)
def test_packing_keeps_the_law_of_formations(
    lengths: list[int], strategy: Any, window_size: int, overlong: Any
) -> None:
    values = np.array(lengths, dtype=np.int64)
    chapter = testing.ChapterSamples(values, np.zeros(len(values), np.int32))
    policy = sp.batching.Packed(
        16, strategy, None, window_size, "split" if strategy == "concat_and_split" else overlong
    )

    testing.check_formation(policy, chapter, chapter.setting(batch_size=3))


def forgetful(make: Callable[[], sp.PreparedStream]) -> Callable[[], sp.PreparedStream]:
    """Streams that cannot be resumed."""

    def made() -> sp.PreparedStream:
        stream = make()
        stream.load_state_dict = lambda _: None  # type: ignore[method-assign]
        return stream

    return made


def every_second(loop: testing.Loop) -> testing.Loop:
    """A loop whose every second pass is empty."""
    turns = itertools.count()
    return lambda stream, steps: loop(stream, steps) if next(turns) % 2 == 0 else iter(())


def restless(make: Callable[[], sp.PreparedStream]) -> Callable[[], sp.PreparedStream]:
    """Streams that give other random bits each time."""
    seeds: Iterator[int] = itertools.count()
    return lambda: make().bind(run_seed=next(seeds))


def test_streams_that_break_a_law_are_noticed(catalog: sp.Catalog) -> None:
    make = maker(catalog, batch_size=40)

    with pytest.raises(AssertionError, match="after step 2: loading the state moves the place"):
        testing.check_resume(forgetful(make), [2])
    with pytest.raises(AssertionError, match="islice: pass 1 has 0 batches, not 6"):
        testing.check_loops(make, {"islice": every_second(testing.LOOPS["islice"])})
    with pytest.raises(AssertionError, match="batch 0 differs when the stream is replayed"):
        testing.check_replay(restless(make))
    with pytest.raises(AssertionError, match="world size 2: global batch 0 differs"):
        testing.check_elastic(restless(make), (2,))


def uneven(make: Callable[[], sp.PreparedStream]) -> Callable[[], sp.PreparedStream]:
    """Streams whose ranks do not bind their steps, so that a rank of several reads on as it likes."""

    def made() -> sp.PreparedStream:
        stream = make()
        bind = stream.bind

        def loose(**bound: Any) -> sp.PreparedStream:
            return bind(**{name: value for name, value in bound.items() if name not in ("step_batches", "deal")})

        stream.bind = loose  # type: ignore[method-assign]
        return stream

    return made


def selfish(make: Callable[[], sp.PreparedStream]) -> Callable[[], sp.PreparedStream]:
    """Streams of which every rank takes the batches of rank 0."""

    def made() -> sp.PreparedStream:
        stream = make()
        bind = stream.bind
        stream.bind = lambda **bound: bind(**{**bound, "rank": 0})  # type: ignore[method-assign]
        return stream

    return made


def test_steps_that_are_not_shared_evenly_are_noticed(catalog: sp.Catalog) -> None:
    make = maker(catalog, batch_size=20)  # 13 batches

    testing.check_even_steps(make, 6, (1, 2, 3, 4))
    with pytest.raises(AssertionError, match="world size 2: step 0 has other batches"):
        testing.check_even_steps(selfish(make), 6, (2,))
    with pytest.raises(AssertionError, match="world size 4: it does not divide 6, and is not refused"):
        testing.check_even_steps(uneven(make), 6, (4,))
    with pytest.raises(AssertionError, match="world size 3: step 0 has other batches"):
        testing.check_even_steps(forgetful(make), 6, (2, 3))


def test_steps_of_several_shapes_are_noticed(tmp_path: Path) -> None:
    sizes, count = [8, 16, 8, 8], 60
    columns = {"id": range(count), "width": sizes * 15, "height": [8] * count}
    table = pa.table({**columns, "tokens": [[*range(size)] for size in sizes * 15]})
    catalog = sp.connect(str(tmp_path))
    catalog.register("texts", sp.Arrow(table), identity="id")
    sampled = catalog.table("texts").sample(order=sp.Sequential())

    def make(batches: int) -> Callable[[], sp.PreparedStream]:
        formed = sp.batching.OneShape([(8, 8), (8, 16)], batches=batches)
        fields = {"x": sp.Pad("tokens")}
        return sampled.collate(batch_size=2, fields=fields, formation=formed, last=sp.DropPartial).to_numpy

    testing.check_one_shape(make(4), ["x"], (1, 2, 3, 4))
    with pytest.raises(AssertionError, match=r"world size 2: step \d+ has shapes"):
        testing.check_one_shape(make(1), ["x"], (2,))
    with pytest.raises(AssertionError, match=r"none of \(3, 8\) ranks is taken"):
        testing.check_one_shape(make(4), ["x"], (3, 8))
