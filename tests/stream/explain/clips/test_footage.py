from pathlib import Path

import pytest

from spiral_stream.explain import sections
from spiral_stream.explain.clips import footage as room
from spiral_stream.explain.clips.footage import Footage, first_reasons, footage
from spiral_stream.explain.subject import Subject
from tests.fixtures.inner import stages_of
from tests.stream.explain import footages


def test_over_read_is_frames_decoded_per_frame_kept() -> None:
    assert Footage(needed_frames=[4, 4], decoded=[10, 30]).over_read == 5
    assert Footage().over_read == 0


@pytest.mark.parametrize(
    ("found", "whole"),
    [
        (Footage(total=10, indexed=10), True),
        (Footage(total=10, cached_rows=10), True),
        (Footage(total=10, indexed=9), False),
        (Footage(total=10, indexed=10, planned=5, out_of_file=True), False),
        (Footage(total=10, indexed=10, planned=9, refused=["bad"], out_of_file=True), True),
    ],
)
def test_what_is_wrong_is_known_of_all_rows_or_estimated(found: Footage, whole: bool) -> None:
    assert found.is_complete == whole


def test_the_same_reason_is_named_once() -> None:
    text = first_reasons(["no video", "no video", "cut off"])

    assert text.count("no video") == 1
    assert "cut off" in text


def test_without_cache_and_index_only_the_relations_own_column_speaks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Subject] = []

    def kept(*parts: object) -> Subject:
        seen.append(Subject(*parts))  # type: ignore[arg-type]  # as the sections give them
        return seen[-1]

    monkeypatch.setattr(sections, "Subject", kept)
    monkeypatch.setattr(room, "MOST_ROWS", 20)
    with footages.program(footages.made_up(tmp_path, rows=120)) as stream:
        stream.explain()
        (clip,) = (each for each in stages_of(stream).fields if each.frames)
        found = footage(seen[0], clip)

    assert found.total > 20 >= found.rows == found.counted > 0
    assert (found.cached_rows, found.indexed, found.planned, found.known) == (0, 0, 0, 0)
    assert not found.is_complete
