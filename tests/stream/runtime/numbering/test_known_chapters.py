from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spiral_stream.batching.lanes import Lanes
from spiral_stream.errors import ResumeError
from spiral_stream.runtime.numbering import known_chapters
from spiral_stream.runtime.numbering.formation_index import FormationIndex
from spiral_stream.runtime.numbering.known_chapters import KnownChapters

SPAN = 10
COUNTS = st.lists(st.integers(0, 4), min_size=1, max_size=12)  # batches of each chapter of a lane


def known(file: Path, lanes: int = 1, chapters: int = 12) -> KnownChapters:
    """Chapters of lanes that have this many each."""
    return KnownChapters(FormationIndex(file), Lanes(lanes * chapters * SPAN, lanes), SPAN)


# ---- laws


@given(batches=COUNTS, learned=st.permutations(range(12)), asked=st.integers(0, 50))
def test_the_nearest_beginning_is_the_last_known_one_that_is_not_after(
    tmp_path_factory: pytest.TempPathFactory, batches: list[int], learned: list[int], asked: int
) -> None:
    one = known(tmp_path_factory.mktemp("index") / "epoch-0.index", lanes=2)
    firsts = [sum(batches[:chapter]) for chapter in range(len(batches))]
    begun = {0}
    for chapter in learned[: len(learned) // 2]:
        if chapter < len(batches):
            one.begin(1, chapter, firsts[chapter])
            begun.add(chapter)

    expected = max(chapter for chapter in begun if firsts[chapter] <= asked)
    assert one.nearest(1, asked) == (expected, firsts[expected])
    assert one.nearest(0, asked) == (0, 0)


@given(batches=COUNTS, formed=st.integers(0, 12), number=st.integers(0, 60))
def test_anchors_are_certain_where_all_chapters_before_them_are_known(
    tmp_path_factory: pytest.TempPathFactory, batches: list[int], formed: int, number: int
) -> None:
    one = known(tmp_path_factory.mktemp("index") / "epoch-0.index", chapters=len(batches))
    for chapter, count in enumerate(batches[:formed]):
        one.enter(0, chapter, count)
    (anchor,) = one.anchors(number)
    _, chapter, first = anchor

    assert first == sum(batches[:chapter]) <= number or chapter == first == 0
    assert one.certain(number, [anchor]) == [anchor]
    other = known(tmp_path_factory.mktemp("index") / "epoch-0.index", chapters=len(batches))
    assert other.certain(number, [anchor]) == ([anchor] if chapter == 0 else [])
    other.follow([anchor])
    assert other.nearest(0, number) == (chapter, first)


# ---- examples


def test_what_is_entered_is_written_to_the_index_once(tmp_path: Path) -> None:
    file = tmp_path / "epoch-0.index"
    one = known(file)
    for _ in range(2):
        one.enter(0, 3, 17)

    assert (one.batches(0, 3), one.batches(0, 2), one.unknown) == (17, None, 11)
    assert known(file).batches(0, 3) == 17
    assert file.stat().st_size == 32


def test_another_state_replaces_the_beginnings_of_the_one_before(tmp_path: Path) -> None:
    one = known(tmp_path / "epoch-0.index")
    one.follow([(0, 5, 50)])
    one.rounds = 60
    one.follow([(0, 3, 30)])

    assert one.nearest(0, 70) == (3, 30)
    assert one.rounds == 0


@pytest.mark.parametrize(
    ("anchor", "why"),
    [
        ((1, 0, 0), "the plan has no such chapter"),
        ((0, 13, 0), "the plan has no such chapter"),
        ((0, 1, 21), "it begins after batch 20, where the state stands"),
        ((0, 2, 9), "the chapters before it have 10 batches"),
        ((0, 2, 11), "the chapters before it have 10 batches"),
        ((0, 3, 9), "the chapters before it have 10 batches"),
    ],
)
def test_anchors_that_cannot_be_are_refused(tmp_path: Path, anchor: tuple[int, int, int], why: str) -> None:
    one = known(tmp_path / "epoch-0.index")
    one.enter(0, 0, 4)
    one.enter(0, 1, 6)

    assert one.certain(20, [(0, 2, 10), (0, 3, 12)]) == [(0, 2, 10)]
    with pytest.raises(ResumeError, match=f"{why}. Pass what state_dict"):
        one.certain(20, [anchor])


@given(
    batches=st.lists(st.integers(0, 4), min_size=1, max_size=30),
    unknown=st.sets(st.integers(0, 29), max_size=4),
    k=st.integers(0, 130),
    at_once=st.integers(1, 40),
)
def test_a_walk_ends_at_the_chapter_of_the_batch_or_where_counts_end(
    tmp_path_factory: pytest.TempPathFactory, batches: list[int], unknown: set[int], k: int, at_once: int
) -> None:
    one = known(tmp_path_factory.mktemp("index") / "epoch-0.index", chapters=len(batches))
    for chapter, count in enumerate(batches):
        if chapter not in unknown:
            one.enter(0, chapter, count)
    chapter = first = 0
    while chapter < len(batches) and chapter not in unknown and first + batches[chapter] <= k:
        first, chapter = first + batches[chapter], chapter + 1

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(known_chapters, "AT_ONCE", at_once)
        assert one.walk(0, k) == (chapter, first)
        assert one.walk(0, k) == (chapter, first)  # from the beginning that it has learned
    assert one.unknown == len([each for each in unknown if each < len(batches)])
    assert one.unknown_of(0).tolist() == sorted(each for each in unknown if each < len(batches))
    assert one.total == sum(count for each, count in enumerate(batches) if each not in unknown)


def test_what_another_process_entered_is_seen_by_looking(tmp_path: Path) -> None:
    one, other = (known(tmp_path / "epoch-0.index") for _ in range(2))
    other.enter(0, 2, 5)

    assert one.batches(0, 2) is None
    assert one.look()
    assert not one.look()
    assert (one.batches(0, 2), one.unknown) == (5, 11)
