"""Groups of shards: others stay as they are when one changes, and what is damaged is made again."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import spiral_stream as sp
from spiral_stream.catalog.statistics import groups as room
from spiral_stream.catalog.statistics import merge as merging
from spiral_stream.catalog.statistics.groups import Members, members_of
from spiral_stream.derived.kinds.column_facts import ColumnFacts
from spiral_stream.errors import CatalogError

FACTS = [ColumnFacts("n", pa.int64(), 10)]


def groups_of(names: list[int]) -> list[Members]:
    keys = np.array([[each, 1] for each in names], np.uint64).reshape(-1, 2)
    places = np.arange(len(names))
    return members_of(pa.array([f"{each:05d}" for each in names]), places, places, keys, FACTS)


@given(names=st.sets(st.integers(0, 99_999), min_size=2, max_size=300), at=st.integers(0))
def test_a_shard_less_changes_its_group_and_perhaps_the_next(names: set[int], at: int) -> None:
    every = sorted(names)
    fewer = [*every[: at % len(every)], *every[at % len(every) + 1 :]]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(room, "SHARDS_EACH", 4)
        before, after = groups_of(every), groups_of(fewer)

    assert [name for each in before for name in each.names.to_pylist()] == [f"{each:05d}" for each in every]
    assert len({each.key for each in before} - {each.key for each in after}) <= 2
    assert groups_of([])[:1] == []


def test_no_group_is_long() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(room, "SHARDS_EACH", 1 << 40)
        found = groups_of(list(range(600)))

    assert [len(each.names) for each in found] == [256, 256, 88]


def write(folder: Path, k: int, shift: int = 0) -> None:
    folder.mkdir(exist_ok=True)
    pq.write_table(
        pa.table({"sample_id": [f"s{k}-{i}" for i in range(4)], "n": [i + shift for i in range(4)]}),
        folder / f"{k}.parquet",
    )


def test_a_changed_shard_merges_its_group_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "SHARDS_EACH", 3)
    for k in range(12):
        write(tmp_path / "files", k)
    catalog = sp.connect(tmp_path / "catalog")
    catalog.register("t", sp.Parquet(str(tmp_path / "files")))
    made: list[int] = []
    original = merging.made_group

    def recorded(members: Members, *rest: object) -> object:
        made.append(len(members.names))
        return original(members, *rest)

    monkeypatch.setattr(merging, "made_group", recorded)
    catalog.measure("t")
    assert sum(made) == 12
    assert len(made) > 2
    made.clear()
    write(tmp_path / "files", 5, shift=1)
    catalog.refresh("t")
    counted = catalog.measure("t").histograms

    assert len(made) == 1
    assert counted.filter(pa.compute.equal(counted["shard"], "5.parquet"))["value"].to_pylist() == list("1234")


def test_a_damaged_histogram_is_removed_and_counted_again(tmp_path: Path) -> None:
    for k in range(2):  # facts of one small shard are kept in no group
        write(tmp_path / "files", k)
    catalog = sp.connect(tmp_path / "catalog")
    catalog.register("t", sp.Parquet(str(tmp_path / "files")))
    found = catalog.measure("t").histograms
    file, *_ = (tmp_path / "catalog" / "statistics" / "t" / "groups").glob("*.values")
    file.write_bytes(file.read_bytes()[:-50])

    with pytest.raises(CatalogError, match="Count again"):
        _ = catalog.measure("t").histograms
    assert catalog.measure("t").histograms == found


def test_groups_that_cannot_be_read_are_merged_again(tmp_path: Path) -> None:
    for k in range(2):  # facts of one small shard are kept in no group
        write(tmp_path / "files", k)
    catalog = sp.connect(tmp_path / "catalog")
    catalog.register("t", sp.Parquet(str(tmp_path / "files")))
    found = catalog.measure("t")
    statistics = tmp_path / "catalog" / "statistics" / "t"
    for file in (statistics / "groups").glob("*.facts"):
        file.write_bytes(b"ARROW1")
    for kept in statistics.glob("*.columns"):
        kept.write_bytes(b"")

    assert catalog.measure("t").columns == found.columns
