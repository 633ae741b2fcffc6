"""A payload column is found in the relation that owns it, row by row and shard by shard."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import spiral_stream as sp
from spiral_stream.catalog.relation.reader import OpenRelation
from spiral_stream.planner.columns.payload import Payload, base_payload, payload_of
from spiral_stream.planner.stages import Stages
from tests.fixtures.inner import lower_plan

ROWS = 24


@pytest.fixture(scope="module")
def stages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stages]:
    """Rows of four files, of which every third is left out, each joined to one of a second relation in three files."""
    folder: Path = tmp_path_factory.mktemp("payload")
    catalog = sp.connect(str(folder / "catalog"))
    own = {"id": [f"r{i}" for i in range(ROWS)], "at": [(7 * i) % 9 for i in range(ROWS)], "n": list(range(ROWS))}
    beside = {"at": list(range(9)), "text": [f"text {i}" for i in range(9)]}
    for name, rows, files in (("own", own, 4), ("beside", beside, 3)):
        (folder / name).mkdir()
        for part in range(files):
            table = pa.table(rows)
            size = len(table) // files
            pq.write_table(table.slice(part * size, size), folder / name / f"{part}.parquet")
        catalog.register(name, sp.Parquet(f"{folder / name}/*.parquet"), identity=next(iter(rows)))
    small = catalog.table("beside").filter(sp.col("at") != 4)
    catalog.register("memory", sp.Arrow(pa.table({"at": range(9), "more": range(9)})), identity="at")
    computed = catalog.table("memory").with_columns(more=sp.col("more") + 1)
    rows = catalog.table("own").filter(sp.col("n") % 3 != 0).join(small, on="at").join(computed, on="at")
    rows = rows.with_columns(twice=sp.col("n") * 2, renamed=sp.col("text"))
    sampled = rows.sample(identity="id", order=sp.Sequential(), epoch=0)
    found = lower_plan(sampled.collate(batch_size=2, fields={"id": sp.List("id")}).to_numpy().plan, catalog.registry)
    yield found
    found.close()


def found(stages: Stages, name: str) -> Payload | None:
    return payload_of(stages.streams[0].selected, stages.streams[0].base, name)


def the(stages: Stages, name: str) -> Payload:
    payload = found(stages, name)
    assert payload is not None
    return payload


@given(rows=st.lists(st.integers(0, 13), max_size=9), name=st.sampled_from(["n", "id", "text", "renamed"]))
def test_ordinals_lead_to_the_values_that_the_plan_has(rows: list[int], name: str, stages: Stages) -> None:
    payload, selected = the(stages, name), stages.streams[0].selected
    asked = np.array(rows, np.uint64)
    values = payload.relation.fetch(payload.ordinals(asked), [payload.column])[payload.column].to_pylist()

    assert selected.total == 14
    assert values == selected.columns.fetch(asked, [name])[name].to_pylist()
    assert (payload.column, payload.relation.entry.name) == (
        "text" if name == "renamed" else name,
        "beside" if name in ("text", "renamed") else "own",
    )


@pytest.mark.parametrize("name", ["n", "text"])
def test_what_is_needed_is_every_row_that_the_stream_reads_and_no_other(name: str, stages: Stages) -> None:
    payload = the(stages, name)
    relation, works = payload.relation, payload.needed()
    read = np.unique(payload.ordinals(np.arange(stages.streams[0].selected.total, dtype=np.uint64)))

    assert isinstance(relation, OpenRelation)
    names = relation.manifest.shard_names.to_pylist()
    assert [names.index(work.name) for work in works] == sorted({names.index(work.name) for work in works})
    assert np.concatenate([work.offsets + np.uint64(work.first) for work in works]).tolist() == read.tolist()
    for work in works:
        at = names.index(work.name)
        assert work.key == relation.manifest.content_keys[at].as_py()
        assert (work.first, work.rows) == (int(relation.manifest.starts[at]), int(relation.manifest.shard_rows[at]))
        assert work.offsets.tolist() == sorted(set(work.offsets.tolist()))
        assert work.offsets.max() < work.rows


def test_what_is_computed_lies_nowhere(stages: Stages) -> None:
    assert found(stages, "twice") is None
    assert found(stages, "more") is None


def test_columns_of_the_owning_relation_need_no_plan_to_name_them(stages: Stages) -> None:
    stream = stages.streams[0]
    payload = base_payload(stream.selected, stream.base, "at")

    assert sum(len(work.offsets) for work in payload.needed()) == stream.selected.total
    assert payload.ordinals(np.array([0], np.uint64)).tolist() == [1]
