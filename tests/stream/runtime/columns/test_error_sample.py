"""An error that carries a row becomes one that names the sample."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import spiral_stream as sp
from spiral_stream.errors import DataError, PlanError, SourceError
from spiral_stream.runtime.columns.error_sample import blaming, identities, read_identity
from spiral_stream.runtime.columns.samples import Samples
from tests.fixtures.inner import drawn_of, stages_of
from tests.fixtures.texts import fields, make_catalog, mixed, tokenized


@pytest.fixture(scope="module")
def streams(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    folder: Path = tmp_path_factory.mktemp("blame")
    catalog = make_catalog(folder, {"a": 20, "b": 20})
    plans = {
        "one": tokenized(catalog.table("a"), sp.Sequential()),
        "mixed": tokenized(mixed(catalog, {"a": 0.5, "b": 0.5}, 20), sp.GlobalShuffle(seed=1)),
    }
    made: dict[str, Any] = {k: p.collate(batch_size=4, fields=fields()).to_numpy() for k, p in plans.items()}
    yield made
    for stream in made.values():
        stream.close()


def samples_of(stream: Any) -> Samples:
    samples: Samples = drawn_of(stream, 0, 0).samples
    return Samples(samples.stream_rows, samples.parts, samples.origins)


@pytest.mark.parametrize("name", ["one", "mixed"])
def test_the_sample_is_named_with_the_ways_out(streams: dict[str, Any], name: str) -> None:
    stages, samples = stages_of(streams[name]), samples_of(streams[name])
    read_identity(stages, samples)
    who = identities(stages, samples)[2]
    sample_id = who[-1] if isinstance(who, tuple) else who

    for start, row in ((0, 2), (2, 0)):
        wanted = f"sample_id='{sample_id}': broken.*filter"
        given = blaming(stages, samples_of(streams[name]), start, skippable=True)
        with pytest.raises(DataError, match=wanted) as caught, given:
            raise DataError("broken", row=row)
        assert 'on_error="skip"' in str(caught.value)
        if name == "mixed":
            assert str(caught.value).startswith(f"{who[0]}: ")


def test_an_error_with_a_sample_of_its_own_is_about_that_sample(streams: dict[str, Any]) -> None:
    stages, samples = stages_of(streams["one"]), samples_of(streams["one"])
    own = samples_of(streams["one"]).take(np.array([3]))
    read_identity(stages, samples)
    with pytest.raises(SourceError, match=str(identities(stages, samples)[3])), blaming(stages, samples):
        raise SourceError("no disk", row=0, samples=own)


def test_errors_that_say_no_row_pass_unchanged(streams: dict[str, Any]) -> None:
    stages, samples = stages_of(streams["one"]), samples_of(streams["one"])
    for error, given in ((SourceError("x"), samples), (SourceError("x", row=1), None), (PlanError("x"), samples)):
        with pytest.raises(type(error)) as caught, blaming(stages, given):
            raise error
        assert caught.value is error
