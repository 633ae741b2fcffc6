"""Rows like these: by a stored column and by a function's values, against NumPy by hand."""

import subprocess
import sys
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import spiral_stream as spiral

pytest.importorskip("lancedb")


def registered(folder: Path, vectors: Any, ids: Any = None) -> spiral.Relation:
    catalog = spiral.connect(str(folder / "catalog"))
    rows = len(vectors)
    flat = pa.array(np.asarray(vectors, np.float32).ravel())
    table = pa.table(
        {
            "id": [f"it's {k}" for k in range(rows)] if ids is None else ids,
            "embedding": pa.FixedSizeListArray.from_arrays(flat, len(vectors[0])),
            "seed": range(rows),
        }
    )
    catalog.register("rows", spiral.Arrow(table), identity="id", replace=True)
    return catalog.table("rows")


def by_hand(vectors: Any, query: Any, metric: str) -> Any:
    vectors, query = np.asarray(vectors, np.float64), np.asarray(query, np.float64)
    if metric == "l2":
        return ((vectors - query) ** 2).sum(axis=1)
    products = vectors @ query
    if metric == "dot":
        return 1 - products
    return 1 - products / np.linalg.norm(vectors, axis=1) / np.linalg.norm(query)


@given(seed=st.integers(0, 99), metric=st.sampled_from(["cosine", "l2", "dot"]))
def test_the_nearest_rows_are_those_that_are_found_by_hand(
    tmp_path_factory: pytest.TempPathFactory, seed: int, metric: Any
) -> None:
    numbers = np.random.default_rng(seed)
    vectors = numbers.normal(size=(60, 5)).astype(np.float32)
    relation = registered(tmp_path_factory.mktemp("nearest"), vectors)
    index = relation.index("embedding", metric=metric)

    found = relation.nearest(["it's 7", "it's 30"], count=8)

    assert (index.rows, index.dimensions, index.approximate) == (60, 5, False)
    for query, row in enumerate((7, 30)):
        distances = by_hand(vectors, vectors[row], metric)
        distances[row] = np.inf
        mine = [each for each in found.to_pylist() if each["query"] == query]
        assert [each["distance"] for each in mine] == pytest.approx(sorted(distances)[:8], abs=1e-4)
        for each in mine:
            assert distances[int(each["id"].split()[1])] == pytest.approx(each["distance"], abs=1e-4)


def test_vectors_may_be_searched_for(tmp_path: Path) -> None:
    relation = registered(tmp_path, np.eye(4), ids=[1, 2, 3, 4])
    relation.index()

    found = relation.nearest(np.array([[0.1, 1.0, 0.0, 0.0], [0.0, 0.0, 0.0, 9.0]]), count=1)

    assert found.select(["query", "id"]).to_pylist() == [{"query": 0, "id": 2}, {"query": 1, "id": 4}]


def test_the_values_of_a_function_are_indexed(tmp_path: Path) -> None:
    relation = registered(tmp_path, np.eye(6), ids=list(range(6)))

    def angle(seed: int) -> Any:
        return [float(np.cos(seed)), float(np.sin(seed))]

    kind = pa.list_(pa.float32(), 2)
    samples = relation.sample(order=spiral.GlobalShuffle(seed=1)).map(
        angle, columns=["seed"], name="angle", returns=kind, batched=False
    )
    index = samples.index("angle")

    assert (index.rows, index.dimensions) == (6, 2)
    assert relation.nearest(0, "angle", 1)["id"].to_pylist() == [min(range(1, 6), key=lambda k: -np.cos(k))]


def test_a_filter_indexes_its_rows_alone(tmp_path: Path) -> None:
    relation = registered(tmp_path, np.eye(6), ids=list(range(6)))

    assert relation.filter(spiral.col("id") < 3).index().rows == 3


def test_other_data_are_refused(tmp_path: Path) -> None:
    registered(tmp_path, np.eye(3)).index()

    relation = registered(tmp_path, np.eye(4))
    with pytest.raises(
        spiral.SpiralError, match=r'has changed since. Make one: catalog.table\("rows"\).index\("embedding"\)'
    ):
        relation.nearest("it's 1")
    relation.index()

    assert len(relation.nearest("it's 1")) == 3


@pytest.mark.parametrize(
    ("call", "way_out"),
    [
        (lambda r: r.nearest("it's 1"), "has no index. Make one"),
        (lambda r: r.vector_index(), "has no index. Make one"),
        (lambda r: r.index("seed"), "is int64, and no vector. Name a column of lists of numbers"),
        (lambda r: r.index("embeding"), "did you mean embedding"),
        (lambda r: r.index(metric="angle"), "Give one of cosine, l2, dot"),
        (lambda r: (r.index(), r.nearest("it's 9")), 'has the identity "it\'s 9". Name another row'),
        (lambda r: (r.index(), r.nearest(np.zeros(7))), "have 3 numbers. Give an array [N, D]"),
        (lambda r: (r.index(), r.nearest(1.5)), "Give a text or an integer for each"),
        (lambda r: (r.index(), r.nearest("it's 1", count=0)), "Give how many rows, from 1 up"),
        (lambda r: r.drop("id").index(), "which names the rows of rows. Keep it in the plan"),
    ],
)
def test_wrong_calls_name_the_way_out(tmp_path: Path, call: Any, way_out: str) -> None:
    relation = registered(tmp_path, np.eye(3))

    with pytest.raises(spiral.SpiralError) as caught:
        call(relation)

    assert way_out in str(caught.value)


def test_without_lancedb_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    relation = registered(tmp_path, np.eye(3))
    monkeypatch.setitem(sys.modules, "lancedb", None)

    with pytest.raises(spiral.errors.MissingExtraError, match=r"spiral-stream\[lancedb\]"):
        relation.index()


# ---- an index grows with its data


@given(seed=st.integers(0, 999), metric=st.sampled_from(["cosine", "l2", "dot"]))
def test_an_index_that_grew_finds_what_a_new_one_finds_and_writes_what_differs(
    tmp_path_factory: pytest.TempPathFactory, seed: int, metric: Any
) -> None:
    """Rows come, go and change between two registrations, several times."""
    numbers, folder = np.random.default_rng(seed), tmp_path_factory.mktemp("growing")
    rows = {f"it's {k}": numbers.normal(size=4).astype(np.float32) for k in range(30)}
    for turn in range(3):
        before = dict(rows)
        for name in numbers.choice(sorted(rows), numbers.integers(0, 9), replace=False).tolist():
            if numbers.random() < 0.5:
                del rows[name]
            else:
                rows[name] = numbers.normal(size=4).astype(np.float32)
        rows |= {
            f"it's {100 * turn + k + 100}": numbers.normal(size=4).astype(np.float32)
            for k in range(numbers.integers(0, 9))
        }
        order = numbers.permutation(sorted(rows)).tolist()
        grown = registered(folder / "grown", [rows[name] for name in order], order)
        made = grown.index(metric=metric)
        anew = registered(folder / f"new{turn}", [rows[name] for name in order], order)
        anew.index(metric=metric)

        if turn:
            fresh = [name for name, vector in rows.items() if name not in before or before[name] is not vector]
            gone = [name for name, vector in before.items() if name not in rows or rows[name] is not vector]
            assert (made.written, made.removed) == (len(fresh), len(gone))
        assert (made.rows, made.recall(5, queries=7)) == (len(rows), 1.0)
        asked = order[:4]
        mine, theirs = (each.nearest(asked, count=6) for each in (grown, anew))
        assert mine["distance"].to_pylist() == theirs["distance"].to_pylist()
        assert mine["id"].to_pylist() == theirs["id"].to_pylist()


def test_an_index_of_the_same_rows_writes_none(tmp_path: Path) -> None:
    relation = registered(tmp_path, np.eye(5))
    first, again = relation.index(), relation.index()

    assert (first.written, again.written, again.removed, again.rows) == (5, 0, 0, 5)


def test_vectors_of_another_length_are_a_new_index(tmp_path: Path) -> None:
    registered(tmp_path, np.eye(5)).index()

    made = registered(tmp_path, np.eye(6)[:, :4]).index()

    assert (made.written, made.dimensions) == (6, 4)


def test_rows_that_are_there_twice_stay_twice(tmp_path: Path) -> None:
    relation = registered(tmp_path, np.eye(4), ids=list(range(4)))

    def twice(seed: int) -> Any:
        return [[float(seed), 1.0]] * 2

    kind = pa.list_(pa.float32(), 2)
    both = relation.sample(order=spiral.Sequential()).flat_map(
        twice, columns=["seed"], name="v", returns=kind, fan_out=2, batched=False
    )
    made = [both.index("v") for _ in range(2)]

    assert [each.rows for each in made] == [8, 8]


@pytest.mark.parametrize("call", [{"count": 0}, {"queries": 0}, {"queries": True}])
def test_recall_takes_counts(tmp_path: Path, call: Any) -> None:
    index = registered(tmp_path, np.eye(3)).index()

    with pytest.raises(spiral.errors.PlanError, match="Give a number from 1 up"):
        index.recall(**call)


@pytest.mark.slow
def test_an_index_with_partitions_grows_and_keeps_its_recall(tmp_path: Path) -> None:
    """New rows go into the partitions that there are; more of them than half make new ones."""
    numbers = np.random.default_rng(0)
    middles = numbers.normal(size=(100, 12))

    def vectors(rows: int) -> Any:
        near = 0.3 * np.random.default_rng(1).normal(size=(250_000, 12))[:rows]
        return (middles[np.arange(rows) % 100] + near).astype(np.float32)

    recalls, made = [], []
    for rows in (90_000, 110_000, 120_000, 200_000, 80_000):
        made.append(registered(tmp_path, vectors(rows), ids=list(range(rows))).index(metric="l2"))
        recalls.append(made[-1].recall(10, queries=50))

    assert [each.approximate for each in made] == [False, True, True, True, False]
    assert [(each.written, each.removed) for each in made[1:]] == [(20_000, 0), (10_000, 0), (80_000, 0), (0, 120_000)]
    assert recalls[0] == recalls[-1] == 1.0
    assert min(recalls) > 0.9


@pytest.mark.slow
def test_an_index_of_many_rows_finds_nearly_all(tmp_path: Path) -> None:
    numbers = np.random.default_rng(0)
    middles = numbers.normal(size=(200, 16))
    vectors = (middles[numbers.integers(0, 200, 120_000)] + 0.3 * numbers.normal(size=(120_000, 16))).astype(np.float32)
    relation = registered(tmp_path, vectors, ids=list(range(120_000)))

    index = relation.index(metric="l2")

    assert index.approximate
    hits = 0
    for row in range(0, 120_000, 6_000):
        distances = by_hand(vectors, vectors[row], "l2")
        distances[row] = np.inf
        nearest = set(np.argsort(distances)[:10].tolist())
        hits += len(nearest & set(relation.nearest(row, count=10)["id"].to_pylist()))
    assert hits >= 0.9 * 200


# ---- an index is kept like what else Spiral keeps


def vectors_of(catalog: spiral.Catalog, **options: Any) -> list[spiral.results.PreparedData]:
    return [each for each in catalog.caches(**options) if each.kind == "vectors"]


@pytest.fixture
def indexed(tmp_path: Path) -> spiral.Relation:
    relation = registered(tmp_path, np.random.default_rng(0).normal(size=(20, 4)))
    relation.index("embedding")
    return relation


def test_an_index_is_listed_with_its_relation_and_its_bytes(indexed: spiral.Relation) -> None:
    [found] = vectors_of(indexed.catalog)
    assert (found.relations, found.columns, found.used_by) == (("rows",), ("embedding",), ("rows",))
    assert found.about == "20 vectors of 4 numbers"
    assert found.bytes == found.live_bytes > 0
    [kept] = vectors_of(indexed.catalog, remove_dead=True, older_than=timedelta(0))
    assert kept.path.exists()


def test_an_index_of_data_that_changed_is_dead_and_removed(indexed: spiral.Relation, tmp_path: Path) -> None:
    changed = registered(tmp_path, np.random.default_rng(1).normal(size=(20, 4)))
    [young] = vectors_of(changed.catalog, remove_dead=True)
    assert young.dead_bytes == 0
    [removed] = vectors_of(changed.catalog, remove_dead=True, older_than=timedelta(0))
    assert (removed.note, removed.path.exists()) == ("removed", False)
    with pytest.raises(spiral.errors.PlanError, match=r'Make one: catalog\.table\("rows"\)\.index\("embedding"\)'):
        changed.nearest("it's 1")


def test_an_index_goes_with_its_relation(indexed: spiral.Relation) -> None:
    indexed.catalog.drop("rows")
    assert vectors_of(indexed.catalog) == []


def test_an_index_that_is_searched_stays_and_one_that_is_made_waits_for_it(indexed: spiral.Relation) -> None:
    [found] = vectors_of(indexed.catalog)
    program = (
        "import sys, fcntl\nfrom spiral_stream.catalog.vector_indexes import searching\nfrom pathlib import Path\n"
    )
    program += "shared = searching(Path(sys.argv[1]))\nprint('shared', flush=True)\nsys.stdin.readline()\n"
    with subprocess.Popen(
        [sys.executable, "-c", program, found.path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as reader:
        assert reader.stdout is not None
        assert reader.stdin is not None
        assert reader.stdout.readline() == "shared\n"
        indexed.catalog.drop("rows")
        assert found.path.exists()
        [dead] = vectors_of(indexed.catalog, remove_dead=True, older_than=timedelta(0))
        assert dead.note == "a process has it open"
        reader.stdin.write("go\n")
        reader.stdin.flush()
        reader.wait()
    [dead] = vectors_of(indexed.catalog, remove_dead=True, older_than=timedelta(0))
    assert not dead.path.exists()


def test_builders_at_once_leave_one_index_and_no_draft(indexed: spiral.Relation, tmp_path: Path) -> None:
    threads = [threading.Thread(target=indexed.index, args=("embedding",)) for _ in range(3)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    [found] = vectors_of(indexed.catalog)
    assert sorted(each.name for each in found.path.parent.iterdir() if each.is_dir()) == [found.path.name]
    assert len(indexed.nearest("it's 3", count=5)) == 5


@pytest.mark.parametrize("damaged", ["index.json", "data", "_versions"])
def test_a_damaged_index_says_how_to_make_it_again(indexed: spiral.Relation, damaged: str) -> None:
    [found] = vectors_of(indexed.catalog)
    for path in found.path.rglob("*"):
        if path.is_file() and damaged in str(path.relative_to(found.path)):
            path.write_bytes(path.read_bytes()[:10])
    with pytest.raises(spiral.errors.PlanError, match=r'Make one: catalog\.table\("rows"\)\.index\("embedding"\)'):
        indexed.nearest("it's 1")
    vectors_of(indexed.catalog)
    indexed.index("embedding")
    assert len(indexed.nearest("it's 1", count=3)) == 3
