from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import spiral_stream as sp
from spiral_stream.planner.columns.streams import StreamStage, fetch, ordinals, split
from spiral_stream.sampling.epoch import StreamRows
from tests.fixtures.inner import stages_of
from tests.fixtures.texts import documents, make_catalog, mixed

SIZES = {"a": 20, "b": 7, "one": 1}


@pytest.fixture(scope="module")
def streams(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[StreamStage, ...]]:
    catalog = make_catalog(tmp_path_factory.mktemp("streams"), SIZES)
    docs = mixed(catalog, {"a": 0.5, "b": 0.4, "one": 0.1}, 50).filter(sp.col("size") > 0)
    plan = docs.sample(order=sp.GlobalShuffle(seed=0)).collate(batch_size=2, fields={"id": sp.List("sample_id")})
    with plan.to_numpy() as stream:
        yield stages_of(stream).streams


@given(picks=st.lists(st.tuples(st.integers(0, 2), st.floats(0, 0.999)), max_size=30))
def test_columns_come_in_the_order_asked(streams: tuple[StreamStage, ...], picks: list[tuple[int, float]]) -> None:
    sizes = list(SIZES.values())
    rows = [int(part * sizes[k]) for k, part in picks]
    nothing = np.zeros(len(picks), dtype=np.uint64)
    places = StreamRows(np.array([k for k, _ in picks], dtype=np.int32), np.array(rows, dtype=np.uint64), nothing)

    table = fetch(streams, places, ["sample_id", "size", "stream_id"])

    names = list(SIZES)
    assert table["sample_id"].to_pylist() == [f"{names[k]}-{row}" for (k, _), row in zip(picks, rows, strict=True)]
    assert table["stream_id"].to_pylist() == [names[k] for k, _ in picks]
    sizes_of = {name: documents(name, n)["size"].to_pylist() for name, n in SIZES.items()}
    assert table["size"].to_pylist() == [sizes_of[names[k]][row] for (k, _), row in zip(picks, rows, strict=True)]


@given(of=st.lists(st.integers(0, 5), max_size=40))
def test_split_says_where_each_stream_stands(of: list[int]) -> None:
    nothing = np.zeros(len(of), dtype=np.uint64)
    found = split(StreamRows(np.array(of, dtype=np.int32), nothing, nothing))

    assert [stream for stream, _ in found] == sorted(set(of))
    for stream, at in found:
        assert at.tolist() == [i for i, each in enumerate(of) if each == stream]


def test_ordinals_are_of_the_relation_that_owns_the_rows(streams: tuple[StreamStage, ...]) -> None:
    rows = np.arange(streams[1].selected.total, dtype=np.uint64)

    assert ordinals(streams, 1, rows).tolist() == list(range(7))
