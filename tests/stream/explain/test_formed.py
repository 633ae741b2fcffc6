import sys
from typing import Any

import numpy as np
import pytest

import spiral_stream as sp
from spiral_stream.explain import formed
from spiral_stream.explain.formed import FirstBatches, first_batches
from tests.fixtures.inner import batches_of, drawn_of
from tests.fixtures.texts import make_catalog, mixed

WINDOW = 16


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> sp.Catalog:
    return make_catalog(tmp_path_factory.mktemp("formed"), {"a": 300, "b": 40})


def stream(catalog: sp.Catalog, size: int = 10**9, **options: Any) -> Any:
    """A mixture so large that a chapter, which ends at a slice's border, has many windows."""
    docs = mixed(catalog, {"a": 0.7, "b": 0.3}, size)
    settings = {"formation": sp.WindowedBucket(window_size=WINDOW, keys=[sp.BucketKey("size")]), **options}
    sampled = docs.sample(identity="sample_id", order=sp.GlobalShuffle(seed=1))
    return sampled.collate(
        batch_size=4, fields={"id": sp.List("sample_id")}, last=sp.KeepPartial, **settings
    ).to_numpy()


def first_of(one: Any, payload: frozenset[str] = frozenset()) -> FirstBatches | str:
    return first_batches(batches_of(one).forming, batches_of(one), 0, payload)


def test_the_first_batches_are_those_that_a_run_delivers(catalog: sp.Catalog) -> None:
    with stream(catalog, size=900) as one:
        first = first_of(one)
        assert isinstance(first, FirstBatches)
        assert first.is_complete
        assert (first.positions, first.joined, first.filtered) == (900, 900, 0)
        assert len(first.batches) == one.count()
        for number, batch in enumerate(first.batches):
            drawn = drawn_of(one, 0, number).membership
            assert drawn.samples.tolist() == batch.samples.tolist()
        assert first.rows.tolist() == [len(batch["id"]) for batch in one]


@pytest.mark.parametrize("names", ["rows", "widths", "tokens"])
def test_figures_are_one_number_per_batch(catalog: sp.Catalog, names: str) -> None:
    with stream(catalog, size=900) as one:
        first = first_of(one)
        assert isinstance(first, FirstBatches)
        assert getattr(first, names).shape == (len(first.batches),)
        assert sum(map(len, first.streams)) == first.samples.sum() == 900


def test_twice_as_many_windows_take_about_twice_as_many_steps(
    catalog: sp.Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps are Python calls, generators' resumptions included: a walk over all windows after each one would show."""

    def steps(samples: int) -> int:
        monkeypatch.setattr(formed, "SAMPLES", samples)
        monkeypatch.setattr(formed, "DRAWN", samples)
        calls = 0

        def count(frame: object, event: str, argument: object) -> None:
            nonlocal calls
            calls += event == "call"

        with stream(catalog) as one:
            first_of(one)  # what is opened once
            sys.setprofile(count)
            try:
                first = first_of(one)
            finally:
                sys.setprofile(None)
        assert isinstance(first, FirstBatches)
        assert samples <= first.joined < samples + WINDOW
        return calls

    few, some, many = (steps(count * WINDOW) for count in (20, 60, 180))
    assert (many - some) / (some - few) < 1.1 * 3


def test_payload_that_decides_is_not_read(catalog: sp.Catalog) -> None:
    with stream(catalog) as one:
        before = one.metrics()["source_bytes"]
        assert first_of(one, frozenset({"size"})) == (
            "unknown: size decides, and is payload: keep what decides as a column of the relation"
        )
        assert one.metrics()["source_bytes"] == before


def test_a_map_that_decides_is_not_run(catalog: sp.Catalog) -> None:
    def odd(size: Any) -> Any:
        return np.ones(len(size), dtype=bool)

    docs = mixed(catalog, {"a": 0.7, "b": 0.3}, 900)
    sampled = docs.sample(identity="sample_id", order=sp.GlobalShuffle(seed=0)).filter(odd, columns=["size"])
    formation = sp.WindowedBucket(window_size=WINDOW, keys=[sp.BucketKey("size")])
    plan = sampled.collate(batch_size=4, formation=formation, fields={"id": sp.List("sample_id")})
    with plan.to_numpy() as one:
        why = first_of(one)
        assert isinstance(why, str)
        assert why.startswith("unknown: filter ")
        assert "is in no cache: no cache holds what" in why
