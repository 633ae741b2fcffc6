"""Exact splits: each part has its number of values and each label's share, whatever the order of rows; borders stay in a plan."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import spiral_stream as spiral
from tests.fixtures.examples import few

LABELS: tuple[tuple[pa.DataType, tuple[Any, ...]], ...] = (
    (pa.int64(), (None, -3, 0, 7, 2**60)),
    (pa.string(), (None, "", "cat", "dog", "ä")),
    (pa.binary(), (None, b"", b"\xff", b"a")),
    (pa.bool_(), (None, False, True)),
)


@st.composite
def tables(draw: Any) -> tuple[pa.Table, bool]:
    """Rows in groups of one label each, some of them in no group; and whether the groups decide."""
    kind, labels = draw(st.sampled_from(LABELS))
    groups = draw(st.lists(st.tuples(st.integers(1, 4), st.sampled_from(labels)), min_size=1, max_size=40))
    rows = [(number, label) for number, (size, label) in enumerate(groups) for _ in range(size)]
    lost = draw(st.sets(st.integers(0, len(groups) - 1), max_size=3)) if len(groups) > 3 else set()
    table = pa.table(
        {
            "id": [f"r{at}" for at in range(len(rows))],
            "group": [None if number in lost else number for number, _ in rows],
            "label": pa.array([label for _, label in rows], kind),
        }
    )
    return table, draw(st.booleans())


def related(folder: Path, table: pa.Table) -> spiral.Relation:
    catalog = spiral.connect(folder)
    catalog.register("rows", spiral.Arrow(table), identity="id")
    return catalog.table("rows")


def ids(part: spiral.Relation) -> set[str]:
    return {*part.project("id").to_arrow()["id"].to_pylist()}


def shares(draw: Any, total: int) -> dict[str, Any]:
    """Parts as counts, or as fractions of at least one value."""
    weights = draw(st.lists(st.integers(1, 9), min_size=1, max_size=4))
    if draw(st.booleans()):
        return {f"p{k}": weight / sum(weights) for k, weight in enumerate(weights)}
    counts, left = [], total
    for weight in weights:
        counts.append(max(1, min(left, weight * total // 20)))
        left -= counts[-1]
        if left <= 0:
            break
    return {f"p{k}": count for k, count in enumerate(counts)}


@few(60, 600)
@given(drawn=tables(), seed=st.integers(0, 9), stratified=st.booleans(), data=st.data())
def test_parts_have_their_numbers_and_each_labels_share(
    tmp_path_factory: pytest.TempPathFactory,
    drawn: tuple[pa.Table, bool],
    seed: int,
    stratified: bool,
    data: st.DataObject,
) -> None:
    table, grouped = drawn
    unit = "group" if grouped else "id"
    labels = dict(zip(table[unit].to_pylist(), table["label"].to_pylist(), strict=True))
    labels.pop(None, None)
    parts = shares(data.draw, len(labels))
    options: dict[str, Any] = {"seed": seed, "exact": True, **({"by": "group"} if grouped else {})}
    options |= {"stratify": "label"} if stratified else {}
    rows = related(tmp_path_factory.mktemp("rows"), table)
    try:
        found = rows.split(**options, **parts)
    except spiral.errors.PlanError as error:
        assert "is none. Give a larger share, or a count" in str(error)  # noqa: PT017  few values
        assert min(parts.values()) * len(labels) < 1
        return

    units = {name: set(part.to_arrow()[unit].to_pylist()) for name, part in found.items()}
    for name, share in parts.items():
        own = units[name]
        assert None not in own
        assert len(own) == share if isinstance(share, int) else abs(len(own) - share * len(labels)) < 1
        assert ids(found[name]) == {
            each["id"] for each in table.to_pylist() if each[unit] in own
        }  # all rows of its values, and no others
        if stratified:
            here, off = (
                Counter(labels[each] for each in own),
                max(1, len(parts) - 1 + (sum(map(len, units.values())) < len(labels))),
            )
            for label, count in Counter(labels.values()).items():
                assert abs(here[label] - len(own) * count / len(labels)) < off
    assert sum(map(len, units.values())) == len(set().union(*units.values()))
    if not isinstance(next(iter(parts.values())), int):
        assert set().union(*units.values()) == set(labels)

    shuffled = table.take(np.random.default_rng(seed).permutation(len(table)))
    again = related(tmp_path_factory.mktemp("rows"), shuffled).split(**options, **parts)
    assert {name: ids(part) for name, part in again.items()} == {name: ids(part) for name, part in found.items()}


@few(10, 60)
@given(first=st.integers(20, 60), more=st.integers(1, 60), stratified=st.booleans(), seed=st.integers(0, 9))
def test_a_row_stays_in_its_part_of_a_plan_when_rows_are_added(
    tmp_path_factory: pytest.TempPathFactory, first: int, more: int, stratified: bool, seed: int
) -> None:
    folder = tmp_path_factory.mktemp("grown")

    def write(begin: int, end: int, labels: int) -> None:
        table = pa.table({"id": range(begin, end), "label": [f"c{n % labels}" for n in range(begin, end)]})
        pq.write_table(table, folder / f"part-{begin:05d}.parquet")

    write(0, first, 4)
    catalog = spiral.connect(folder / "catalog")
    catalog.register("rows", spiral.Parquet(str(folder / "*.parquet")), identity="id")
    options: dict[str, Any] = {"seed": seed, "stratify": "label"} if stratified else {"seed": seed}
    rows = catalog.table("rows")
    parts = rows.split(train=first // 2, val=first // 3, **options)
    whole = rows.split(train=0.7, val=0.3, exact=True, **options)
    fields = {"id": spiral.List("id")}
    catalog.save_stream(
        "train", parts["train"].sample(order=spiral.Sequential()).collate(batch_size=1, fields=fields).to_numpy()
    )
    before = [{name: ids(part) for name, part in each.items()} for each in (parts, whole)]

    write(first, first + more, 6)  # with labels that are new
    catalog.refresh("rows")

    old = set(range(first))
    after = [{name: ids(part) for name, part in each.items()} for each in (parts, whole)]
    assert [{name: own & old for name, own in each.items()} for each in after] == before
    assert (
        len(after[1]["train"]) + len(after[1]["val"]) == first + more == len(rows)
    )  # new rows belong to one part, too
    with catalog.open_stream("train") as stream:
        assert {each for batch in stream for each in batch["id"]} == after[0]["train"]
    if not stratified:  # cut anew, rows only leave a part of a fixed number for a later one
        anew = {name: ids(part) for name, part in rows.split(train=first // 2, val=first // 3, seed=seed).items()}
        assert not anew["train"] & old - before[0]["train"]
        assert not anew["val"] & old - before[0]["val"] - before[0]["train"]


def test_few_rows_cross_a_border_that_is_found_anew(tmp_path: Path) -> None:
    """About sqrt(f(1 - f)nm / (n + m)) rows, here 19, of 40,000."""
    kept = []
    for end in (40_000, 44_000):
        rows = related(tmp_path / str(end), pa.table({"id": [str(n) for n in range(end)]}))
        kept.append(ids(rows.split(train=0.9, val=0.1, exact=True)["train"]) & {str(n) for n in range(40_000)})

    assert 0 < len(kept[0] ^ kept[1]) < 5 * 19


def test_many_labels_make_few_borders(tmp_path: Path) -> None:
    """300 labels of 60 rows each: one border serves many labels."""
    table = pa.table({"id": range(18_000), "label": [f"c{n % 300}" for n in range(18_000)]})
    parts = related(tmp_path, table).split(train=0.9, val=0.1, stratify="label")

    counts = parts["val"].to_arrow()["label"].value_counts().to_pylist()
    assert {each["counts"] for each in counts} == {6}
    assert len(counts) == 300
    assert str(parts["train"]).count("hash") < 300 // 4


def test_streams_of_parts_read_their_rows(tmp_path: Path) -> None:
    table = pa.table(
        {"id": range(100), "label": [n % 3 for n in range(100)], "patient": [n // 6 * 3 + n % 3 for n in range(100)]}
    )
    parts = related(tmp_path, table).split(train=0.8, val=0.2, by="patient", stratify="label")

    seen = []
    for part in parts.values():
        plan = part.sample(order=spiral.GlobalShuffle(3)).collate(
            batch_size=4, last=spiral.KeepPartial, fields={"id": spiral.List("id")}
        )
        with plan.to_numpy() as stream:
            seen.append({each for batch in stream for each in batch["id"]})
    assert seen[0] | seen[1] == set(range(100))
    assert not {n // 6 * 3 + n % 3 for n in seen[0]} & {n // 6 * 3 + n % 3 for n in seen[1]}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"a": 900, "b": 101},
            r"a=900, b=101 make 1,001, and 'id' has 1,000 values. Give counts that make at most 1,000",
        ),
        ({"a": 90, "b": 20, "by": "patient"}, r"make 110, and 'patient' has 100 values"),
        ({"a": 900, "b": 0.1}, "b=0.1 is no count, and a=900 is one. Give counts for all parts, or fractions for all"),
        ({"a": 900, "b": 0}, "b=0. Give a count of at least 1"),
        ({"a": -5}, "a=-5. Give a count of at least 1"),
        ({"a": 1}, "a=1 may be one row, or all of them. Give a=1.0 for all, or exact=True for a count"),
        ({"a": 0.0001, "exact": True}, "a=0.0001 of 1,000 values of 'id' is none. Give a larger share, or a count"),
        ({"a": 0.7, "b": 0.4, "exact": True}, "make 1.1, more than 1"),
        ({"exact": True}, "there are no parts"),
        ({"a": 0.5, "stratify": "nix"}, "'nix' is not a column"),
        ({"a": 0.5, "stratify": "x"}, "stratify='x' is double. Give a column of integers, texts, bytes or booleans"),
        (
            {"a": 0.5, "stratify": "label", "by": "mixed"},
            r"rows of mixed=\d, which belong together, have several values of 'label'",
        ),
        ({"a": 0.5, "exact": 1}, "exact=1 is an int. Give True or False"),
        ({"a": 2, "by": "constant"}, "make 2, and 'constant' has 1 values"),
    ],
)
def test_wrong_exact_splits_are_refused(tmp_path: Path, given: dict[str, Any], said: str) -> None:
    count = range(1_000)
    columns = {
        "id": count,
        "patient": [n // 10 for n in count],
        "label": [n % 4 for n in count],
        "mixed": [n % 7 for n in count],
    }
    table = pa.table({**columns, "x": [n / 2 for n in count], "constant": [1] * 1_000})

    with pytest.raises(spiral.errors.PlanError, match=said):
        related(tmp_path, table).split(**given)


def test_equal_values_of_by_are_one_value(tmp_path: Path) -> None:
    rows = related(tmp_path, pa.table({"id": range(4), "k": [1, 1, 1, 2]}))

    found = sorted(part.count() for part in rows.split(by="k", a=1, b=1, exact=True).values())
    assert found == [1, 3]


def test_samples_are_split_by_fractions_alone(tmp_path: Path) -> None:
    sampled = related(tmp_path, pa.table({"id": range(10)})).sample(order=spiral.Sequential())

    with pytest.raises(spiral.errors.PlanError, match=r"split: it comes after sample. Call it before sample"):
        sampled.split(a=5, b=5)
