"""`sample` after union, distinct, sort, limit, aggregate and SQL text: the rows of `to_arrow`, whatever the order."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import spiral_stream as sp
from spiral_stream.integrity import seal
from spiral_stream.plan.checks import unheeded_sort
from spiral_stream.plan.tree import spine
from spiral_stream.plan.verbs.row_makers import rows_of
from tests.fixtures import streams, warm
from tests.fixtures.derived_plans import COLUMNS, ORDERS, ROWS, Build, make_catalog, plans, rows, stream
from tests.fixtures.examples import few
from tests.fixtures.inner import stages_of
from tests.fixtures.linked import linked

pytestmark = [pytest.mark.usefixtures("no_threads_left"), pytest.mark.timeout(600)]

ROOT: Final = Path(__file__).parents[2]
NEVER: Final = timedelta(0)
FEW: Final = few(3, 166)


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> sp.Catalog:
    return make_catalog(tmp_path_factory.mktemp("derived"))


@pytest.fixture
def own(tmp_path: Path) -> sp.Catalog:
    return linked(make_catalog, tmp_path)


def delivered(made: sp.PreparedStream) -> list[str]:
    """One text per sample, in order."""
    with made:
        return [repr(row) for batch in made for row in zip(*batch.values(), strict=True)]


def collected(relation: sp.Relation) -> list[str]:
    names = [name for name in relation.schema.names if name != "v"]
    return [repr(tuple(row.values())) for row in relation.to_arrow().select(names).to_pylist()]


# ---- drawn plans


def has_the_order_of_its_rows(relation: sp.Relation) -> bool:
    """Whether `Sequential` goes through a plan as `to_arrow` does: a sort that a limit or distinct looks at chooses only."""
    own = [each.VERB for each in spine(relation.node)]
    own = own[: own.index(rows_of(relation.node).VERB)]
    return "sort" not in own or unheeded_sort(relation.node) is not None


@FEW
@given(plan=plans, order=st.sampled_from(ORDERS))
def test_samples_are_the_rows_of_to_arrow(catalog: sp.Catalog, plan: Build, order: Any) -> None:
    relation = plan(catalog).distinct("id")  # the sides of a union share ids
    expected = collected(relation)
    got = delivered(stream(relation, order))

    assert sorted(got) == sorted(expected)
    if isinstance(order, sp.Sequential) and has_the_order_of_its_rows(relation):
        assert got == expected


@FEW
@given(plan=plans)
def test_a_saved_plan_is_the_same_stream(catalog: sp.Catalog, plan: Build) -> None:
    relation = plan(catalog).distinct("id")
    with stream(relation) as made:
        catalog.save_stream("kept", made)
        fingerprint, data = made.fingerprint, made.data_versions
    with catalog.open_stream("kept") as opened:
        assert (opened.fingerprint, opened.data_versions) == (fingerprint, data)


# ---- sort and Sequential


@pytest.mark.parametrize("descending", [False, True])
def test_sequential_goes_through_sorted_rows_in_the_order_of_the_sort(catalog: sp.Catalog, descending: bool) -> None:
    relation = catalog.table("a").filter(sp.col("x") > 2).sort("v", "x", descending=descending).project(*COLUMNS)
    with stream(relation, sp.Sequential()) as made:
        first = made.batch(0)["id"]
        place = made.locate(relation.to_arrow()["id"][9].as_py())

    assert delivered(stream(relation, sp.Sequential())) == collected(relation)
    assert first == relation.to_arrow()["id"].to_pylist()[:7]
    assert place == {"epoch": 0, "batch": 1, "step": 1, "rank": 0}


def test_derived_relations_are_streams_of_a_mixture(catalog: sp.Catalog) -> None:
    union = catalog.table("b").union(catalog.table("c")).distinct("id").project("id", "x")
    groups = catalog.table("a").group_by("id").aggregate(x=("x", "max"))
    mixed = sp.mix([sp.Stream("union", union), sp.Stream("groups", groups)])
    fields = {"id": sp.List("id"), "stream_id": sp.List("stream_id")}
    plan = mixed.sample(identity="id", order=ORDERS[1]).collate(batch_size=8, fields=fields, last=sp.KeepPartial)
    with plan.to_numpy() as made:
        pairs = [pair for batch in made for pair in zip(batch["stream_id"], batch["id"], strict=True)]

    for name, relation in (("union", union), ("groups", groups)):
        assert sorted(id_ for of, id_ in pairs if of == name) == sorted(relation.to_arrow()["id"].to_pylist())


def test_what_a_limit_chooses_comes_as_it_is_stored(catalog: sp.Catalog) -> None:
    relation = catalog.table("a").sort("x", descending=True).limit(20)
    stored = catalog.table("a").to_arrow()["id"].to_pylist()
    got = delivered(stream(relation.project("id"), sp.Sequential()))

    assert got == [repr((each,)) for each in stored if each in set(relation.to_arrow()["id"].to_pylist())]
    assert delivered(stream(relation.sort("x", "id").project("id"), sp.Sequential())) == collected(
        relation.sort("x", "id").project("id")
    )


# ---- identity


def test_ids_that_clash_between_the_sides_are_refused_and_a_column_that_tells_them_apart_helps(
    catalog: sp.Catalog,
) -> None:
    a, b = catalog.table("a"), catalog.table("b")
    with pytest.raises(
        sp.errors.PlanError, match=r"identity id repeats in 15 of 105 rows .*several as identity=\[\.\.\.\]"
    ):
        stream(a.union(b)).batch(0)
    both = a.with_columns(side="a").union(b.with_columns(side="b"))

    assert sorted(delivered(stream(both, identity=["side", "id"]))) == sorted(collected(both))


def test_the_keys_of_groups_are_their_identity(catalog: sp.Catalog) -> None:
    groups = catalog.table("a").group_by("x").aggregate(n=("id", "count"))
    with stream(groups, identity=None) as made:
        assert made.ledger(0, 0) is not None
        assert len(made.batch(0)["x"]) == 7

    one = catalog.table("a").aggregate(n=("id", "count"))
    assert delivered(stream(one, identity="n")) == ["(60,)"]


def test_sql_text_needs_an_identity_of_its_own_columns(catalog: sp.Catalog) -> None:
    query = catalog.sql("select id, x from a order by x")
    with pytest.raises(sp.errors.PlanError, match=r"rows of SQL text have no identity.*sample\(identity="):
        query.sample(order=sp.Sequential())
    with pytest.raises(sp.errors.PlanError, match="identity x repeats in"):
        stream(query, identity="x").batch(0)

    assert delivered(stream(query, sp.Sequential())) == sorted(collected(query))  # by identity
    assert len(delivered(stream(query.with_columns(y=sp.col("x") * 100), identity=["y", "id"]))) == ROWS["a"]
    assert delivered(stream(query.sort("x", "id"), sp.Sequential())) == collected(query.sort("x", "id"))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("select id, x, random() as r from a", r"random\(\)"),
        ("select id, x, current_date as d from a", "current_date"),
        ("select id, x from a using sample 20 rows", r"a sample without REPEATABLE \(seed\)"),
    ],
)
def test_sql_text_whose_rows_differ_by_run_is_refused_unless_they_are_kept(
    own: sp.Catalog, text: str, found: str
) -> None:
    query = own.sql(text)
    for relation in (query, query.filter(sp.col("x") > 1).distinct("id"), own.table("b").join(query, on="id")):
        with pytest.raises(sp.errors.PlanError, match=rf"sample: the SQL text has {found}, so .*catalog.register\("):
            stream(relation)
    with pytest.raises(sp.errors.PlanError, match=found):
        sp.mix([sp.Stream("b", own.table("b").project("id")), sp.Stream("q", query.project("id"))]).sample(
            order=ORDERS[1]
        )
    own.register("once", sp.Arrow(query.to_arrow()), identity="id")
    assert len(delivered(stream(own.table("once")))) == len(own.table("once").to_arrow())


def test_an_interval_in_the_result_of_sql_text_is_refused_with_a_cast(own: sp.Catalog) -> None:
    query = own.sql("select id, interval 1 day as later from a")
    with pytest.raises(sp.errors.PlanError, match=r"column 'later' of the SQL text is .*CAST\(later AS VARCHAR\)"):
        stream(query.project("id", "later").filter(sp.col("id") != "")).batch(0)
    cast = own.sql("select id, cast(interval 1 day as varchar) as later from a")
    assert sorted(delivered(stream(cast))) == sorted(collected(cast))


def test_a_sample_with_a_seed_is_the_same_everywhere(own: sp.Catalog) -> None:
    query = own.sql("select id, x from a using sample reservoir(20 rows) repeatable (7)")
    assert sorted(delivered(stream(query))) == sorted(collected(query))


def test_rows_that_are_not_there_are_refused(catalog: sp.Catalog) -> None:
    none = catalog.table("a").filter(sp.col("x") > 100)
    for relation in (none.union(none), none.group_by("id").aggregate(x=("x", "sum"))):
        with pytest.raises(sp.errors.PlanError, match=r"sample: \w+ .*row.* Loosen what it reads"):
            stream(relation).batch(0)


# ---- payload


def test_images_of_a_union_are_read_where_they_lie(tmp_path: Path) -> None:
    catalog = streams.make_catalog(tmp_path)
    table = catalog.table("lance")
    low, high = table.filter(sp.col("label_id") < 2), table.filter(sp.col("label_id") >= 2)

    def images(relation: sp.Relation) -> dict[str, bytes]:
        made = streams.plan(relation, transforms=streams.FIXED, epoch=0, last=sp.KeepPartial).to_numpy()
        with made:
            return {
                name: np.asarray(image).tobytes()
                for batch in made
                for name, image in zip(batch["id"], batch["image"], strict=True)
            }

    assert images(low.union(high)) == images(table)
    kept = [each for each in catalog.caches() if each.kind == "relation"]
    assert [each.bytes < 20_000 for each in kept] == [True]


# ---- made once, whole, and again where data changed


def test_an_appended_shard_makes_a_new_relation_of_which_only_that_shard_is_new(own: sp.Catalog) -> None:
    union = own.table("a").union(own.table("c").filter(sp.col("x") > 3)).distinct("id")
    with stream(union) as made:
        before = dict(made.data_versions)
        keys = set(stages_of(made).streams[0].base.manifest.content_keys.to_pylist())
    more = pa.concat_tables([rows("c", 30), rows("c", 12, first=500).set_column(3, "storage_shard", [["part-9"] * 12])])
    own.register("c", sp.Arrow(more), identity="id", replace=True)
    union = own.table("a").union(own.table("c").filter(sp.col("x") > 3)).distinct("id")
    with stream(union) as made:
        after = dict(made.data_versions)
        now = set(stages_of(made).streams[0].base.manifest.content_keys.to_pylist())

    assert sorted(delivered(stream(union))) == sorted(collected(union))
    assert {name for name in before if before[name] != after[name]} == {"c", next(n for n in before if "union" in n)}
    assert len(now & keys) >= 4


@pytest.mark.parametrize("kind", ["union", "aggregate", "sql", "sorted"])
def test_a_run_goes_on_over_changed_data(own: sp.Catalog, kind: str) -> None:
    def relation() -> sp.Relation:
        a, c = own.table("a"), own.table("c")
        made = {
            "union": lambda: a.with_columns(of="a").union(c.with_columns(of="c")),
            "aggregate": lambda: a.union(c).group_by("id").aggregate(x=("x", "max")),
            "sql": lambda: own.sql("select id, max(x) as x from (from a union all by name from c) group by id"),
            "sorted": lambda: c.sort("x", "id"),
        }
        return made[kind]()

    order = sp.Sequential() if kind == "sorted" else ORDERS[1]
    identity = ["of", "id"] if kind == "union" else ["id"]

    def ids(batches: Iterable[Any]) -> list[Any]:
        return [each for batch in batches for each in zip(*(batch[name] for name in identity), strict=True)]

    with stream(relation(), order, identity) as made:
        seen = ids(islice(made, 3))
        state = made.state_dict()
    own.register("c", sp.Arrow(rows("c", 41)), identity="id", replace=True)
    with stream(relation(), order, identity) as made:
        with pytest.raises(sp.errors.ResumeError, match="the data changed since"):
            made.load_state_dict(state)
        made.rebase(state)
        rest = ids(made)
    now = ids([{name: relation().to_arrow()[name].to_pylist() for name in identity}])

    assert sorted(rest) == sorted(set(now) - set(seen))
    assert seen


@pytest.mark.parametrize("kind", ["union", "aggregate", "sql"])
def test_what_is_removed_is_made_again_as_the_same_data(own: sp.Catalog, kind: str) -> None:
    relation = {
        "union": own.table("a").union(own.table("c")).distinct("id"),
        "aggregate": own.table("a").group_by("id").aggregate(x=("x", "sum"), v=("v", "avg")),
        "sql": own.sql("select id, x, v from a"),
    }[kind]
    with stream(relation) as made:
        whole = [batch["id"] for batch in made]
    with stream(relation) as made:
        next(iter(made))
        state = made.state_dict()
    listed = [each for each in own.caches(remove_dead=True, older_than=NEVER) if each.kind == "relation"]
    assert [each.removed_bytes > 0 for each in listed] == [True]
    with stream(relation) as made:
        made.load_state_dict(state)
        assert [batch["id"] for batch in made] == whole[1:]


def test_a_relation_that_a_saved_stream_needs_stays(own: sp.Catalog) -> None:
    union = own.table("a").union(own.table("c")).distinct("id")
    groups = union.group_by("x").aggregate(n=("id", "count"))
    for name, relation, identity in (("kept", groups, None), ("other", union.filter(sp.col("x") > 2), "id")):
        with stream(relation, identity=identity) as made:
            own.save_stream(name, made)
            made.batch(0)
    with stream(own.sql("select id, x from b")) as made:
        made.batch(0)
    found = [each for each in own.caches(remove_dead=True, older_than=NEVER) if each.kind == "relation"]

    assert {each.about.split("(")[0]: (each.used_by, each.removed_bytes > 0) for each in found} == {
        "aggregate": (("kept",), False),
        "union": (("kept", "other"), False),
        "sql": ((), True),
    }
    assert sum(each.dead_bytes for each in own.caches(older_than=NEVER)) == 0
    own.drop_stream("kept")
    own.drop_stream("other")
    own.caches(remove_dead=True, older_than=NEVER)
    assert [each for each in own.caches(older_than=NEVER) if each.kind == "relation"] == []


def test_a_damaged_relation_is_made_again(own: sp.Catalog) -> None:
    groups = own.table("a").group_by("x").aggregate(n=("id", "count"))
    whole = delivered(stream(groups, identity="x"))
    (folder,) = [each.path for each in own.caches() if each.kind == "relation"]
    facts = folder / "relation.json"
    facts.write_bytes(facts.read_bytes().replace(b'"rows": ', b'"rows": 1'))
    with pytest.warns(sp.SpiralWarning, match="is damaged.*built again"):
        assert delivered(stream(groups, identity="x")) == whole


def _flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 16
    file.write_bytes(content)


@pytest.mark.crossed
@pytest.mark.parametrize("harm", [_flip, lambda file: os.truncate(file, file.stat().st_size // 2), Path.unlink])
@pytest.mark.parametrize("file", ["rows.lance/data/*", "rows.lance/_versions/*.manifest", "manifests/*"])
def test_damaged_rows_are_never_delivered_but_made_again(own: sp.Catalog, file: str, harm: Any) -> None:
    groups = own.table("a").group_by("id").aggregate(n=("x", "count"), x=("x", "sum"))
    whole = collected(groups.project("id"))
    assert delivered(stream(groups.project("id"))) != []  # nothing but ids is kept
    (folder,) = [each.path for each in own.caches() if each.kind == "relation"]
    (damaged,) = folder.glob(file)
    harm(damaged)

    with pytest.warns(sp.SpiralWarning, match=r"is damaged.*\.damaged-\w+, and is built again"):
        assert sorted(delivered(stream(groups))) == sorted(collected(groups))
    with stream(groups) as made:
        assert sorted(repr((each,)) for batch in made for each in batch["id"]) == sorted(whole)
        assert [each for each in made.verify().files if each.state != "sound"] == []


def test_verify_mends_damaged_rows(own: sp.Catalog) -> None:
    groups = own.table("a").group_by("id").aggregate(n=("x", "count"))
    delivered(stream(groups))
    (folder,) = [each.path for each in own.caches() if each.kind == "relation"]
    (data,) = folder.glob("rows.lance/data/*")
    _flip(data)
    with stream(groups) as made:
        (found,) = made.verify().damaged  # before the plan is opened
        assert (found.path, found.what) == (folder / "rows.lance", "rows of a derived relation")
        assert found.found.endswith("The next stream that opens it sets it aside and builds it again")
        assert made.verify().damaged == ()
        assert sorted(each for batch in made for each in batch["id"]) == sorted(groups.to_arrow()["id"].to_pylist())


def test_rows_from_before_files_had_digests_are_compared_by_shard(own: sp.Catalog) -> None:
    groups = own.table("a").group_by("id").aggregate(n=("x", "count"))
    whole = delivered(stream(groups))
    (folder,) = [each.path for each in own.caches() if each.kind == "relation"]
    facts = seal.read_json(folder / "relation.json")
    (folder / "relation.json").write_bytes(
        seal.sealed_json({name: value for name, value in facts.items() if name not in ("seal", "files")})
    )
    assert delivered(stream(groups)) == whole
    (data,) = folder.glob("rows.lance/data/*")
    content = bytearray(data.read_bytes())
    content[100] ^= 1
    data.write_bytes(content)
    with pytest.warns(sp.SpiralWarning, match="rows of 1 of its shards differ.*built again"):
        assert delivered(stream(groups)) == whole


def test_damaged_rows_are_found_by_verify(own: sp.Catalog) -> None:
    groups = own.table("a").group_by("id").aggregate(v=("v", "avg"), n=("x", "count"))
    query = own.sql("select id, v, x > 3 as large, x from b")
    with stream(groups) as made, stream(query) as other:
        made.batch(0)
        other.batch(0)
        assert [each for each in made.verify().files if each.state != "sound"] == []
        for each in (folder for folder in own.caches() if folder.kind == "relation"):
            (data,) = each.path.glob("rows.lance/data/*.lance")
            content = bytearray(data.read_bytes())
            content[100] ^= 1
            data.write_bytes(content)
        found = [each.what for each in made.verify().files if each.state == "damaged"]

    assert found == ["rows of a derived relation"] * 2


PROGRAM: Final = """
import sys
import spiral_stream as sp
from tests.stream.test_derived_relations import delivered, stream
from tests.fixtures.examples import few
own = sp.connect(sys.argv[1])
union = own.table("a").union(own.table("b"), own.table("c")).distinct("id")
groups = union.group_by("id").aggregate(x=("x", "sum"))
print("begin", flush=True)
sys.stdin.readline()
print(len(delivered(stream(groups))), flush=True)
"""


def started(own: sp.Catalog) -> "subprocess.Popen[str]":
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", PROGRAM, str(own.root)]
    pipe = subprocess.PIPE
    process = warm.Popen(command, stdin=pipe, stdout=pipe, text=True, env=env, cwd=ROOT)
    assert process.stdout is not None
    assert process.stdout.readline() == "begin\n"
    return process


def go(process: "subprocess.Popen[str]") -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def test_two_processes_at_once_make_one_relation(own: sp.Catalog) -> None:
    processes = [started(own) for _ in range(2)]
    for process in processes:
        go(process)
    said = [process.communicate(timeout=300)[0] for process in processes]

    assert said == ["110\n", "110\n"]
    found = [each for each in own.caches(older_than=NEVER) if each.kind in ("relation", "draft", "set aside")]
    assert sorted(each.about.split("(")[0] for each in found) == ["aggregate", "union"]


@pytest.mark.parametrize("after_s", [0.2, *(pytest.param(each, marks=pytest.mark.slow) for each in (0.02, 0.1, 0.4))])
def test_a_process_that_is_killed_leaves_nothing_for_good(own: sp.Catalog, after_s: float) -> None:
    process = started(own)
    go(process)
    try:
        process.wait(after_s)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
    process.communicate(timeout=300)
    other = started(own)
    go(other)

    assert other.communicate(timeout=300)[0] == "110\n"
    own.caches(remove_dead=True, older_than=timedelta(days=7))
    assert [each for each in own.caches() if each.kind == "draft"] == []


# ---- shown


def test_explain_shows_what_a_plan_makes_and_its_cost(catalog: sp.Catalog) -> None:
    union = catalog.table("a").union(catalog.table("c")).distinct("id")
    with stream(union.group_by("x").aggregate(n=("id", "count")), identity=None) as made:
        text = str(made.explain())

    assert "derived relation" in text
    for kept in ("none: read where they lie", "all", "CPU s"):
        assert kept in text
