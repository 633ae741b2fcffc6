"""Streams over every source that the library reads: each row once, and again where data changed."""

from pathlib import Path

import pytest

import spiral_stream as spiral
from spiral_stream.sources.serialize import library_kinds
from tests.fixtures.every_source import changed, made

pytestmark = pytest.mark.filterwarnings("ignore::spiral_stream.SpiralWarning")


def stream_of(catalog: spiral.Catalog) -> spiral.PreparedStream:
    sampled = catalog.table("rows").sample(order=spiral.GlobalShuffle(seed=3))
    fields = {"id": spiral.List("__row_id__")}
    return sampled.collate(batch_size=3, fields=fields, last=spiral.KeepPartial()).to_numpy()


def delivered(catalog: spiral.Catalog) -> list[str]:
    with stream_of(catalog) as stream:
        return [name for batch in stream for name in batch["id"]]


@pytest.mark.parametrize("kind", sorted(library_kinds()))
def test_streams_of_every_source_deliver_each_row_and_follow_its_changes(kind: str, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    catalog = spiral.connect(tmp_path / "catalog")
    source = made(kind, folder)
    before = catalog.register("rows", source, identity=spiral.RowIdentity())

    first = delivered(catalog)
    assert len(set(first)) == len(first) == before.manifest().total

    changed(kind, folder)
    after = catalog.refresh("rows")
    assert after.changes
    second = delivered(catalog)
    assert len(set(second)) == len(second) == after.manifest().total
    assert set(second) != set(first)


@pytest.mark.parametrize("kind", sorted(library_kinds()))
def test_relations_of_every_source_answer_alike(kind: str, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    catalog = spiral.connect(tmp_path / "catalog")
    catalog.register("rows", made(kind, folder), identity=spiral.RowIdentity())
    relation = catalog.table("rows")
    whole = relation.to_arrow()
    every = whole.to_pylist()

    assert len(relation) == relation.count() == len(every)
    assert [row for batch in relation.batches(4) for row in batch.to_pylist()] == every
    assert relation.head(2).to_arrow().to_pylist() == every[:2]
    assert all(row in every for row in relation.sample_rows(3).to_pylist())
    odd = relation.filter(spiral.col("__row_id__").hash() % 2 == 1)
    assert odd.count() == len(odd.to_arrow()) == sum(batch.num_rows for batch in odd.batches(4))
    assert len(relation.to_pandas()) == len(every)
    assert relation.describe().to_dict()["notes"]
