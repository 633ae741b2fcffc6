from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import spiral_stream as sp
from spiral_stream.explain import sections
from spiral_stream.explain.formed import FirstBatches
from spiral_stream.explain.subject import STOPS, Subject, Warnings, payload_columns
from tests.fixtures.inner import stages_of
from tests.fixtures.texts import SMALL_PLANS
from tests.stream.explain import mixtures, pictures

pytestmark = SMALL_PLANS


@pytest.fixture
def subject(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Subject]:
    """Of the text program; its token cache holds all rows."""
    seen: list[Subject] = []

    def kept(*parts: Any) -> Subject:
        seen.append(Subject(*parts))
        return seen[0]

    monkeypatch.setattr(sections, "Subject", kept)
    with mixtures.program(mixtures.make_catalog(tmp_path)) as stream:
        stream.materialize(lambda _: None)
        stream.explain()
        yield seen[0]


def test_the_worst_warnings_come_first_and_others_as_they_were_found() -> None:
    warnings = Warnings()
    warnings.add("late")
    warnings.add("later")
    warnings.add("stops", STOPS)

    assert warnings.lines() == ["1 stops", "2 late", "3 later"]


def test_what_costs_something_is_found_out_once(subject: Subject) -> None:
    assert subject.first is subject.first
    assert isinstance(subject.first, FirstBatches)
    assert subject.reader is subject.reader
    assert subject.rows_built is subject.rows_built


def test_coverage_counts_the_rows_of_all_streams(subject: Subject) -> None:
    (stage,) = subject.stages.tokens
    held, read = subject.coverage(cache.kind.fingerprint for cache in stage.caches)

    assert held >= read == sum(stream.selected.total for stream in subject.stages.streams)
    assert all(subject.is_built(cache.kind.fingerprint, k) for k, cache in enumerate(stage.caches))


def test_text_that_is_tokenized_and_bytes_are_payload(subject: Subject, tmp_path: Path) -> None:
    assert subject.payload == frozenset({"text"})
    catalog = pictures.make_catalog(tmp_path / "images")
    with (
        catalog.table(pictures.TRAIN)
        .sample(order=sp.Sequential())
        .collate(batch_size=4, fields={"id": sp.List("sample_id")})
        .to_numpy() as one
    ):
        assert payload_columns(stages_of(one).streams[0]) == {"image_ref"}
