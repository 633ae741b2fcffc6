"""Chains of verbs leave the rows that the same verbs leave of plain dicts; and no payload is read to decide."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spiral_stream import Arrow, Catalog, KeepPartial, List, Relation, Sequential, col, len_
from spiral_stream.errors import PlanError
from tests.fixtures import reads, verbs
from tests.fixtures.examples import few
from tests.fixtures.inner import stages_of
from tests.fixtures.texts import SMALL_PLANS

pytestmark = SMALL_PLANS

SOURCES = ["arrow", "lance", "parquet"]


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Catalog:
    return verbs.make_catalog(tmp_path_factory.mktemp("select"))


def streamed(chain: verbs.Chain, batch_size: int = 7) -> list[verbs.Row]:
    """The rows that a sampled stream delivers, with every column fetched late."""
    names = chain.names
    plan = chain.relation.sample(identity="id", order=Sequential()).collate(
        batch_size=batch_size, last=KeepPartial, fields={name: List(name) for name in names}
    )
    with plan.to_numpy() as stream:
        return [dict(zip(names, row, strict=True)) for b in stream for row in zip(*b.values(), strict=True)]


@given(data=st.data(), start=st.sampled_from(SOURCES))
@few(10)  # each may start the process of SQL text, or two
def test_a_chain_leaves_the_rows_that_it_leaves_of_plain_dicts(
    catalog: Catalog, data: st.DataObject, start: str
) -> None:
    chain = data.draw(verbs.chains(catalog, start))

    found = chain.relation.to_arrow()

    assert found.schema.names == chain.names
    assert repr(found.to_pylist()) == repr(chain.expected()), chain.text


@given(data=st.data(), start=st.sampled_from(SOURCES))
@few(5)
def test_a_sampled_chain_delivers_them_in_relation_order(catalog: Catalog, data: st.DataObject, start: str) -> None:
    chain = data.draw(verbs.chains(catalog, start).filter(lambda c: c.sampled and c.rows and "id" in c.names))

    places = [row[verbs.AT] for row in chain.rows]
    expected = [chain.expected()[i] for i in np.argsort(places, kind="stable")]

    assert repr(streamed(chain)) == repr(expected), chain.text


# ---- where work runs


def prepared(relation: Relation) -> tuple[list[tuple[str, int]], str | None]:
    """What a sampled plan says of its selection: (step, rows left) and the pushed condition."""
    plan = relation.sample(identity="id", order=Sequential()).collate(batch_size=4, fields={"id": List("id")})
    with plan.to_numpy() as stream:
        return list(stages_of(stream).streams[0].selected.counts), stages_of(stream).streams[0].selected.pushed


def test_conditions_after_a_join_run_in_the_scan(catalog: Catalog) -> None:
    u = catalog.table("u").project("k", "name")
    condition = (col("x") > 0) & (col("g") == "a")

    _, pushed = prepared(catalog.table("lance").join(u, on="k").with_columns(y=col("k") * 2).filter(condition))
    _, computed = prepared(catalog.table("lance").with_columns(y=col("k") * 2).filter(col("y") > 4))
    _, renamed = prepared(catalog.table("lance").project("id", z=col("x")).filter(col("z") > 0))

    assert pushed == "(x > 0.0) & (g == 'a')"
    assert computed == "(k * 2) > 4"
    assert renamed == "x > 0.0"


def test_each_part_of_a_condition_runs_on_its_side(catalog: Catalog) -> None:
    u = catalog.table("u").project("k", "name", "w")
    both = (col("x") > -9) & (col("name") == "two") & (col("w") < col("k"))

    counts, pushed = prepared(catalog.table("parquet").join(u, on="k").filter(both))

    assert pushed == "x > -9.0"
    assert [what.partition(" (")[0] for what, _ in counts] == [
        "filter x > -9.0",
        "inner join on k",
        "filter cast(w, int64) < k",
    ]
    assert "right rows where name == 'two'" in counts[1][0]


def test_a_left_joins_right_side_takes_no_condition(catalog: Catalog) -> None:
    u = catalog.table("u").project("k", "name")
    joined = catalog.table("arrow").join(u, on="k", how="left").filter(col("name").is_null())

    missed = [row["id"] for row in joined.to_arrow().to_pylist()]

    known = {k for k, row in ((r["k"], r) for r in verbs.RIGHT_ROWS["u"]) if row["name"] is not None and k is not None}
    assert sorted(missed) == sorted(r["id"] for r in verbs.base_rows() if r["k"] not in known)


def test_a_condition_stays_behind_what_chooses_among_rows(catalog: Catalog) -> None:
    t = catalog.table("arrow")

    for chosen in (t.limit(10), t.distinct("g"), t.sort("x").limit(10)):
        everything = chosen.to_arrow().to_pylist()
        found = chosen.filter(col("k") > 2).to_arrow().to_pylist()
        assert repr(found) == repr([row for row in everything if (row["k"] or 0) > 2])


def test_a_column_that_a_join_brings_back_is_the_right_sides(catalog: Catalog) -> None:
    """The base has an ``x`` of its own, which the projection dropped."""
    joined = catalog.table("lance").project("id", "k").join(catalog.table("u").project("k", "x"), on="k")
    values = {row["k"]: row["x"] for row in verbs.RIGHT_ROWS["u"]}

    found = joined.filter(col("x") >= 1.0).to_arrow().to_pylist()

    assert {row["k"] for row in found} == {k for k, x in values.items() if x >= 1.0} & {
        row["k"] for row in verbs.base_rows()
    }
    assert all(row["x"] == values[row["k"]] for row in found)


@pytest.mark.parametrize("start", SOURCES)
def test_payload_is_read_for_delivered_rows_only(catalog: Catalog, start: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither conditions, joins, distinct and sort, nor a computed column that nothing decides on, read it."""
    u = catalog.table("u").project("k", "name", "w")
    relation = (
        catalog.table(start)
        .with_columns(size=len_("payload"), twice=col("k") * 2)
        .join(u, on="k")
        .filter((col("twice") > 0) & (col("w") > -5))
        .distinct("g", "k")
        .sort("x")
        .limit(6)
        .sample(identity="id", order=Sequential())
        .collate(batch_size=4, last=KeepPartial, fields={n: List(n) for n in ("id", "payload", "size", "name")})
    )
    seen = reads.watch(monkeypatch)

    with relation.to_numpy() as stream:
        rows = stages_of(stream).streams[0].selected.total
        assert seen.payload_bytes == 0
        assert {column for name, column in {*seen.scans, *seen.fetches} if name == start} <= {"k", "x", "g", "id"}
        batches = list(stream)

    assert rows == 6
    assert seen.fetches[start, "payload"] == rows
    assert (start, "payload") not in seen.scans
    payload = {row["id"]: row["payload"] for row in verbs.base_rows()}
    assert [p for b in batches for p in b["payload"]] == [payload[i] for b in batches for i in b["id"]]
    assert [n for b in batches for n in b["size"]] == [len(payload[i]) for b in batches for i in b["id"]]


def test_a_batch_takes_one_fetch_a_relation(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    joined = catalog.table("lance").join(catalog.table("h").project("g", "rank"), on="g", how="left")
    plan = joined.sample(identity="id", order=Sequential())
    fields = {name: List(name) for name in ("id", "payload", "rank")}
    with plan.collate(batch_size=15, fields=fields).to_numpy(prefetch=1) as stream:
        assert len(stream) == 3
        seen = reads.watch(monkeypatch)
        list(stream)

    assert seen.calls.count("fetch lance") == 3
    assert seen.calls.count("fetch h") == 0  # a narrow column of the survivors is kept beside the selection


# ---- what cannot be prepared


def refusal(relation: Relation) -> str:
    with pytest.raises(PlanError) as refused:
        prepared(relation)
    return str(refused.value)


def test_a_join_that_multiplies_rows_shows_five_of_them_and_the_ways_out(tmp_path: Path) -> None:
    catalog = verbs.make_catalog(tmp_path)
    many = pa.table({"k": [k for k in range(8) for _ in range(k)], "n": range(28)})
    catalog.register("many", Arrow(many), identity="n")

    text = refusal(catalog.table("arrow").join(catalog.table("many").project("k", "n"), on="k"))

    assert "join on k: 6 keys have several rows on the right" in text
    assert "2 (2 rows), 3 (3 rows), 4 (4 rows), 5 (5 rows), 6 (6 rows)." in text
    for way_out in (".distinct('k')", ".group_by('k').aggregate(...)", "make each pair a sample"):
        assert way_out in text
    fixed = catalog.table("arrow").join(catalog.table("many").project("k", "n").distinct("k"), on="k")
    assert fixed.to_arrow().num_rows == sum((row["k"] or 0) > 0 for row in verbs.base_rows())


def test_a_condition_on_the_right_side_may_make_it_unique(catalog: Catalog) -> None:
    """As in the video program: several labels a segment, one of them trusted."""
    joined = catalog.table("lance").join(catalog.table("f").project("k", "v"), on="k")

    assert "2 keys have several rows" in refusal(joined)
    assert {row["v"] for row in joined.filter(col("v").is_in(["p", "r", "s"])).to_arrow().to_pylist()} == {
        "p",
        "r",
        "s",
    }


def test_an_empty_selection_names_the_verb_that_emptied_it(catalog: Catalog) -> None:
    u = catalog.table("u").project("k", "w")

    assert "no row of lance is left (filter k > 100 (in the scan): 0 rows left). Loosen the filter" in refusal(
        catalog.table("lance").filter(col("k") > 100)
    )
    text = refusal(catalog.table("lance").filter(col("k") >= 0).join(u.filter(col("w") > 100), on="k"))
    assert (
        "filter k >= 0 (in the scan): 41 rows left; inner join on k (41 left rows without a match): 0 rows left" in text
    )


def test_columns_may_not_be_nullable_and_relations_empty(tmp_path: Path) -> None:
    catalog = verbs.make_catalog(tmp_path)
    schema = pa.schema([pa.field("id", pa.utf8(), nullable=False), pa.field("k", pa.int64(), nullable=False)])
    catalog.register("strict", Arrow(pa.table({"id": ["a", "b"], "k": [1, 2]}, schema=schema)), identity="id")
    strict, u = catalog.table("strict").project("id", "k"), catalog.table("u").project("k", "name")

    assert strict.filter(col("k") > 1).to_arrow().to_pylist() == [{"id": "b", "k": 2}]
    assert strict.union(strict.project("id", k=col("k") * 1)).to_arrow().num_rows == 4
    assert strict.join(u.filter(col("k") > 900), on="k", how="left").to_arrow()["name"].null_count == 2
    assert strict.filter(col("k") > 9).distinct("k").sort("k").to_arrow().num_rows == 0
    assert strict.filter(col("k") > 9).aggregate(n=("k", "count"), s=("k", "sum")).to_arrow().to_pylist() == [
        {"n": 0, "s": None}
    ]
