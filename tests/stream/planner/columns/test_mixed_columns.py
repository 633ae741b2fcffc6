"""Columns of a mixture that are gathered for all streams at once are those that each stream reads by itself."""

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import spiral_stream as sp
from spiral_stream.errors import DamageError
from spiral_stream.fields.ragged import Ragged
from spiral_stream.planner.columns.mixed_columns import MixedColumns
from spiral_stream.planner.columns.streams import read
from spiral_stream.sampling.epoch import StreamRows
from tests.fixtures.examples import few
from tests.fixtures.inner import stages_of
from tests.fixtures.named_shards import flip

ROWS = 40
RELATIONS = 4
NAMES = ("id", "x", "holes", "text", "tokens", "signs", "moved")


def table(k: int) -> pa.Table:
    rng = np.random.default_rng(k)
    lists = [rng.integers(0, 300, rng.integers(0, 5)).tolist() for _ in range(ROWS)]
    return pa.table(
        {
            "id": np.arange(ROWS) + 1_000 * k,
            "x": rng.random(ROWS).astype(np.float32),
            "holes": pa.array([None if k % 2 and n % 5 == k else n for n in range(ROWS)], pa.int32()),
            "text": [None if k == 3 and n == 7 else "ä" * (n % 4) for n in range(ROWS)],
            "tokens": pa.array(lists, pa.list_(pa.int64())),
            "signs": pa.array([[-v for v in each] if k == 1 else each for each in lists], pa.list_(pa.int64())),
        }
    )


def plan(catalog: sp.Catalog) -> sp.PreparedStream:
    """Six streams over four relations: whole, filtered, and one that gives a column another name."""
    rows = [catalog.table(f"r{k}").with_columns(moved=sp.col("x")) for k in range(RELATIONS)]
    rows += [rows[0].filter(sp.col("id") % 3 == 1), rows[2].filter(sp.col("x") < 0.5)]
    parts = [sp.Stream(f"s{k}", each, proportion=1 / len(rows)) for k, each in enumerate(rows)]
    fields = {name: sp.List(name) for name in NAMES}
    made: sp.PreparedStream = (
        sp.mix(parts, epoch_size=200)
        .sample(order=sp.GlobalShuffle(seed=1))
        .collate(batch_size=10, fields=fields)
        .to_numpy()
    )
    return made


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> sp.Catalog:
    folder = tmp_path_factory.mktemp("mixed")
    catalog = sp.connect(str(folder / "catalog"))
    for k in range(RELATIONS):
        (folder / f"r{k}").mkdir()
        for at in range(2):
            pq.write_table(table(k).slice(at * ROWS // 2, ROWS // 2), folder / f"r{k}" / f"{at}.parquet")
        catalog.register(f"r{k}", sp.Parquet(str(folder / f"r{k}")), identity="id")
    return catalog


@pytest.fixture(scope="module")
def stream(catalog: sp.Catalog) -> Iterator[sp.PreparedStream]:
    with plan(catalog) as made:
        yield made


def plain(column: Any) -> list[Any]:
    values: list[Any] = (column.arrow() if isinstance(column, Ragged) else column).to_pylist()
    return values


@few(40, 400)
@given(data=st.data(), samples=st.integers(0, 25), ragged=st.sets(st.sampled_from(["tokens", "signs"])))
def test_one_gather_gives_what_each_stream_reads(
    stream: sp.PreparedStream, data: st.DataObject, samples: int, ragged: set[str]
) -> None:
    streams = stages_of(stream).streams
    of = data.draw(st.lists(st.integers(0, len(streams) - 1), min_size=samples, max_size=samples))
    rows = [data.draw(st.integers(0, streams[k].selected.total - 1)) for k in of]
    places = StreamRows(np.array(of, np.int64), np.array(rows, np.uint64), np.zeros(samples, np.uint64))
    mixed = MixedColumns(streams)

    found = mixed.read(places, NAMES, ragged)

    assert {"id", "x", "holes", "text", "tokens", "signs", "moved"} <= set(found)
    expected = read(streams, places, list(found), ragged)
    for name, column in found.items():
        assert plain(column) == plain(expected[name]), name
        assert isinstance(column, Ragged) == (name in ragged)
        if name not in ragged:
            assert column.type == expected[name].type


def test_batches_hold_the_rows_of_their_streams(stream: sp.PreparedStream) -> None:
    whole = {row["id"]: row for k in range(RELATIONS) for row in table(k).to_pylist()}
    seen = 0
    for batch in stream:
        for at, identity in enumerate(batch["id"]):
            row = whole[identity]
            for name in NAMES[2:-1]:
                assert batch[name][at] == row[name]
            assert batch["moved"][at] == batch["x"][at] == row["x"]
            seen += 1
    assert seen == 200


def test_damage_is_found_and_mended(catalog: sp.Catalog) -> None:
    with plan(catalog) as made:
        expected = list(made)
    parts = sorted((catalog.root / "prepared" / "derived" / "columns").rglob("*.piece"))
    for part in parts:
        flip(part, 0)
    with plan(catalog) as made, pytest.raises(DamageError):
        list(made)
    for _ in parts:
        with warnings.catch_warnings(), plan(catalog) as made:
            warnings.simplefilter("ignore")
            try:
                assert list(made) == expected
            except DamageError:
                continue
            break
    else:
        pytest.fail("it is not mended")
