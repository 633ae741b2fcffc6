"""The laws of streams, over every kind of stream: replay, resume, loops, elastic.

A feature that makes another kind of stream registers a `Subject` in the room of its theme, and calls no law in its own
tests. `tests/stream/testing` shows that each law notices what breaks it.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spiral_stream.testing import (
    LOOPS,
    check_elastic,
    check_even_steps,
    check_loops,
    check_one_shape,
    check_replay,
    check_resume,
)
from tests.stream.laws import edits, even_steps, functions, images, numbers, recordings, shapes, texts
from tests.stream.laws.subject import Subject

pytestmark = [
    pytest.mark.usefixtures("no_threads_left"),
    pytest.mark.filterwarnings("ignore::spiral_stream.SpiralWarning"),
    pytest.mark.timeout(600),
]

ROOMS = (numbers, texts, functions, images, recordings, edits, even_steps, shapes)
SUBJECTS = tuple(subject for room in ROOMS for subject in room.SUBJECTS)
Shelves = Callable[[Subject], Any]
T = TypeVar("T")


@pytest.fixture(scope="module")
def shelves(tmp_path_factory: pytest.TempPathFactory) -> Shelves:
    """What the streams of a subject read, made when it is first asked for."""
    made: dict[Callable[..., Any], Any] = {}

    def of(subject: Subject) -> Any:
        if subject.shelf not in made:
            made[subject.shelf] = subject.shelf(tmp_path_factory.mktemp("shelf"))
        return made[subject.shelf]

    return of


def rotated(choices: Sequence[T], subject: Subject) -> st.SearchStrategy[T]:
    """One of these; what is drawn first is another for the next subject, so that few examples by day try all."""
    at = SUBJECTS.index(subject) % len(choices)
    return st.sampled_from([*choices[at:], *choices[:at]])


def ranks(subject: Subject, drawn: Any) -> st.SearchStrategy[tuple[int, int]]:
    """A rank and the number of ranks, of which each resumes for itself."""
    if subject.alone or not subject.shared(drawn):
        return st.just((0, 1))
    worlds = rotated((1, *subject.worlds), subject)
    return worlds.flatmap(lambda world: st.tuples(rotated(range(world), subject), st.just(world)))


def each(subjects: Sequence[Subject]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("subject", subjects, ids=lambda subject: subject.name)


def test_every_subject_has_a_name_of_its_own() -> None:
    names = [subject.name for subject in SUBJECTS]

    assert sorted(names) == sorted(set(names))


@each(SUBJECTS)
def test_the_same_plan_gives_the_same_batches(subject: Subject, shelves: Shelves) -> None:
    shelf = shelves(subject)

    @subject.examples()
    @given(drawn=subject.drawn)
    def replay(drawn: Any) -> None:
        check_replay(subject.make(shelf, drawn))

    replay()


@each(SUBJECTS)
def test_a_state_leads_to_the_batches_that_were_left(subject: Subject, shelves: Shelves) -> None:
    shelf = shelves(subject)

    @subject.examples()
    @given(drawn=subject.drawn, data=st.data())
    def resume(drawn: Any, data: st.DataObject) -> None:
        rank, world = data.draw(ranks(subject, drawn), label="rank, ranks")
        make = subject.at(subject.make(shelf, drawn), rank, world)
        with make() as stream:
            steps = sum(1 for _ in stream)
        last = steps if world == 1 else max(0, steps - 1)  # of several ranks some have no batch in the last step
        stops = rotated([steps // 2, last, 0, min(1, last)], subject) | st.integers(0, last)
        check_resume(make, [data.draw(stops, label="stop")])

    resume()


@each(SUBJECTS)
def test_the_loop_after_an_epoch_reads_the_next_epoch(subject: Subject, shelves: Shelves) -> None:
    shelf = shelves(subject)

    @subject.examples(at_most=1)
    @given(drawn=subject.drawn, way=rotated([*LOOPS], subject), data=st.data())
    def loops(drawn: Any, way: str, data: st.DataObject) -> None:
        rank, world = data.draw(ranks(subject, drawn), label="rank, ranks")
        check_loops(subject.at(subject.make(shelf, drawn), rank, world), {way: LOOPS[way]})

    loops()


@each([subject for subject in SUBJECTS if not (subject.alone or subject.step_batches)])
def test_ranks_together_deliver_the_batches_of_one(subject: Subject, shelves: Shelves) -> None:
    shelf = shelves(subject)

    @subject.examples()
    @given(drawn=subject.drawn.filter(subject.shared), world=rotated(subject.worlds, subject))
    def elastic(drawn: Any, world: int) -> None:
        check_elastic(subject.make(shelf, drawn), (world,), subject.ranks_per_node)

    elastic()


@each([subject for subject in SUBJECTS if subject.step_batches])
def test_ranks_share_every_optimizer_step_evenly(subject: Subject, shelves: Shelves) -> None:
    shelf = shelves(subject)

    @subject.examples()
    @given(drawn=subject.drawn, worlds=st.permutations((1, 5, *subject.worlds)))
    def even_steps(drawn: Any, worlds: list[int]) -> None:
        assert subject.step_batches is not None
        check_even_steps(subject.make(shelf, drawn), subject.step_batches, worlds)

    even_steps()


@each([subject for subject in SUBJECTS if subject.one_shape])
def test_ranks_of_a_step_work_on_one_shape(subject: Subject, shelves: Shelves) -> None:
    shelf = shelves(subject)

    @subject.examples()
    @given(drawn=subject.drawn, worlds=st.permutations((1, 5, *subject.worlds)))
    def one_shape(drawn: Any, worlds: list[int]) -> None:
        check_one_shape(subject.make(shelf, drawn), subject.one_shape, worlds)

    one_shape()
