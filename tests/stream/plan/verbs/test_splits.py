"""Splits: parts share no row, together they are all rows, and a row's part depends on nothing but its value."""

from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import spiral_stream as spiral

SHARES = st.lists(st.integers(1, 100), min_size=1, max_size=6)


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> spiral.Catalog:
    catalog = spiral.connect(tmp_path_factory.mktemp("splits"))
    rows = pa.table({"id": [f"r{i}" for i in range(2000)], "video": [i // 10 for i in range(2000)]})
    catalog.register("rows", spiral.Arrow(rows), identity="id")
    return catalog


def ids(relation: spiral.Relation) -> list[str]:
    found: list[str] = relation.project("id").to_arrow()["id"].to_pylist()
    return found


@settings(deadline=None, max_examples=15)
@given(shares=SHARES, seed=st.integers(-(2**63), 2**63 - 1))
def test_parts_share_no_row_and_together_are_all_rows(catalog: spiral.Catalog, shares: list[int], seed: int) -> None:
    fractions = {f"p{k}": share / sum(shares) for k, share in enumerate(shares)}

    parts = catalog.table("rows").split(seed=seed, **fractions)

    found = [name for part in parts.values() for name in ids(part)]
    assert len(found) == 2000
    assert len(set(found)) == 2000


def test_parts_have_about_their_fractions(catalog: spiral.Catalog) -> None:
    parts = catalog.table("rows").split(train=0.7, val=0.2, test=0.1)

    sizes = {name: len(ids(part)) for name, part in parts.items()}
    for name, share in {"train": 0.7, "val": 0.2, "test": 0.1}.items():
        assert abs(sizes[name] - 2000 * share) < 5 * (2000 * share * (1 - share)) ** 0.5


def test_rows_with_one_value_stay_together(catalog: spiral.Catalog) -> None:
    parts = catalog.table("rows").split(train=0.5, val=0.5, by="video")

    videos = {name: set(part.to_arrow()["video"].to_pylist()) for name, part in parts.items()}
    assert not videos["train"] & videos["val"]
    assert len(videos["train"]) + len(videos["val"]) == 200


def test_a_row_keeps_its_part_when_rows_are_added(catalog: spiral.Catalog, tmp_path: Path) -> None:
    other = spiral.connect(tmp_path)
    rows = pa.table({"id": [f"r{i}" for i in range(1000, 3000)], "x": [0] * 2000})
    other.register("rows", spiral.Parquet(str(_parquet(rows, tmp_path))), identity="id")

    first, second = (set(ids(each.table("rows").split(a=0.3)["a"])) for each in (catalog, other))

    shared = {f"r{i}" for i in range(1000, 2000)}
    assert first & shared == second & shared


def _parquet(rows: pa.Table, folder: Path) -> Path:
    import pyarrow.parquet as pq

    pq.write_table(rows, folder / "rows.parquet")
    return folder / "rows.parquet"


def test_each_row_is_validated_in_one_fold(catalog: spiral.Catalog) -> None:
    folds = catalog.table("rows").folds(4, by="video")

    validated = [name for _, validation in folds for name in ids(validation)]
    assert sorted(validated) == sorted(ids(catalog.table("rows")))
    for training, validation in folds:
        assert sorted(ids(training) + ids(validation)) == sorted(validated)


def test_a_stream_of_a_part_reads_its_rows(catalog: spiral.Catalog) -> None:
    part = catalog.table("rows").split(train=0.01)["train"]
    sampled = part.sample(order=spiral.GlobalShuffle(seed=1), identity="id")

    with sampled.collate(batch_size=1, fields={"id": spiral.List("id")}).to_numpy() as stream:
        assert sorted(name for batch in stream for name in batch["id"]) == sorted(ids(part))


def test_saved_splits_are_the_same(catalog: spiral.Catalog) -> None:
    names = ids(catalog.table("rows").split(a=0.004)["a"])
    assert names == [f"r{n}" for n in (187, 612, 676, 869, 889, 1147, 1239, 1573, 1798, 1817, 1897)]
    assert len(ids(catalog.table("rows").split(a=0.1, by="video")["a"])) == 200


@pytest.mark.parametrize(
    ("fractions", "by", "said"),
    [
        ({}, None, "there are no parts"),
        ({"a": 0.0}, None, "a=0.0. Give a fraction above 0"),
        ({"a": "x"}, None, "a='x'. Give a fraction"),
        ({"a": 0.8, "b": 0.3}, None, r"a=0.8, b=0.3 make 1.1, more than 1"),
        ({"a": 0.8}, "nix", "'nix' is not a column"),
    ],
)
def test_wrong_splits_are_refused(
    catalog: spiral.Catalog, fractions: dict[str, float], by: str | None, said: str
) -> None:
    with pytest.raises(spiral.errors.PlanError, match=said):
        catalog.table("rows").split(by=by, **fractions)


def test_a_split_of_rows_without_one_identity_names_the_way_out(catalog: spiral.Catalog) -> None:
    with pytest.raises(spiral.errors.PlanError, match=r'no identity of their own\. Name the column .* by="\.\.\."'):
        catalog.sql('select video, count(*) as n from "rows" group by video').split(a=0.5)
    with pytest.raises(spiral.errors.PlanError, match="the number of folds is 1"):
        catalog.table("rows").folds(1)
