"""What a relation says of itself and of its rows: the verbs that everybody types first, at the public door."""

import copy
import math
import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import spiral_stream as spiral
from spiral_stream import col
from spiral_stream.errors import PlanError
from tests.fixtures.examples import few

Draw = Callable[[st.SearchStrategy[Any]], Any]
ROWS = 90
TABLE = pa.table(
    {
        "id": pa.array(range(ROWS)),
        "x": pa.array([None if at % 11 == 0 else (at * 7) % 13 - 6 for at in range(ROWS)], pa.int64()),
        "f": pa.array([math.nan if at % 17 == 3 else at / 8 for at in range(ROWS)]),
        "g": pa.array(["a", "b", "é", None, "b"] * (ROWS // 5)),
        "place": pa.array([f"place-{(at * 31) % 4}" for at in range(ROWS)]),
    }
)
KINDS = pa.table({"g": ["a", "b", "é"], "kind": ["first", "second", "third"], "weight": [1.5, math.nan, 3.0]})


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> spiral.Catalog:
    """Rows in six files, the same rows in shards that lie scattered, and a table to join."""
    folder: Path = tmp_path_factory.mktemp("answers")
    lance.write_dataset(TABLE, str(folder / "t.lance"), max_rows_per_file=16)
    opened = spiral.connect(str(folder / "catalog"))
    opened.register("t", spiral.Lance(str(folder / "t.lance")), identity="id")
    opened.register("scattered", spiral.Lance(str(folder / "t.lance")), identity="id", shard="place")
    opened.register("kinds", spiral.Arrow(KINDS), identity="g")
    return opened


def _filtered(draw: Draw, relation: Any) -> Any:
    condition = draw(st.sampled_from([col("x") > 0, col("f") < 5, col("g").isin(["a", "é"]), col("id") >= ROWS]))
    return relation.filter(condition)


def _joined(draw: Draw, relation: Any) -> Any:
    how = draw(st.sampled_from(["inner", "left"]))
    kinds = relation_of(relation, "kinds")
    joined = relation.join(kinds.project("g", "kind"), on="g", how=how)
    return joined.filter(col("kind") != "second").drop("kind") if draw(st.booleans()) else joined.drop("kind")


def _cut(draw: Draw, relation: Any) -> Any:
    return relation.head(draw(st.integers(1, 60)))


def _unified(draw: Draw, relation: Any) -> Any:
    other = relation_of(relation, "t").project(*relation.columns)
    return relation.union(draw(st.sampled_from([other, other.filter(col("x") > 0), other.head(7), other.sort("x")])))


def _sorted(draw: Draw, relation: Any) -> Any:
    return relation.sort(draw(st.sampled_from(["x", "id", "g"])), descending=draw(st.booleans()))


def _distinct(draw: Draw, relation: Any) -> Any:
    return relation.distinct(draw(st.sampled_from(["x", "g"])))


def _computed(draw: Draw, relation: Any) -> Any:
    return relation.with_columns(
        f=draw(st.sampled_from([col("f") * 2, (col("f") / 3).floor(), col("x").cast("float64")]))
    )


VERBS = [_filtered, _joined, _cut, _unified, _sorted, _distinct, _computed]


def relation_of(relation: Any, name: str) -> spiral.Relation:
    return relation.catalog.table(name)


def drawn_plan(draw: Draw, catalog: spiral.Catalog) -> spiral.Relation:
    """A chain of verbs over one of the relations; it may end with a group."""
    relation = catalog.table(draw(st.sampled_from(["t", "scattered"]))).project("id", "x", "f", "g")
    for verb in draw(st.lists(st.sampled_from(VERBS), max_size=4)):
        relation = verb(draw, relation)
    if draw(st.booleans()):
        return relation.group_by("g").aggregate(n=("id", "count"), least=("x", "min")).filter(col("n") > 1)
    return relation


def plain(table: pa.Table) -> list[str]:
    """Rows as they are compared: NaN is NaN."""
    return [repr(row) for row in table.to_pylist()]


@few(60, 400, deadline=None)
@given(data=st.data(), rows=st.integers(1, 70), few_rows=st.integers(0, 12), seed=st.integers(-3, 3))
def test_every_way_to_read_rows_gives_those_of_to_arrow(
    catalog: spiral.Catalog, data: st.DataObject, rows: int, few_rows: int, seed: int
) -> None:
    relation = drawn_plan(data.draw, catalog)
    whole = relation.to_arrow()
    expected = plain(whole)

    batches = list(relation.batches(rows))
    assert all(batch.num_rows == rows for batch in batches[:-1])
    assert not batches or 0 < batches[-1].num_rows <= rows
    assert all(batch.schema.equals(relation.schema) for batch in batches)
    assert [row for batch in batches for row in plain(pa.table(batch))] == expected
    assert relation.count() == len(expected)
    with suppress(TypeError):  # where no metadata says it
        assert len(relation) == len(expected)
    assert plain(relation.head(few_rows + 1).to_arrow()) == expected[: few_rows + 1]
    drawn = plain(relation.sample_rows(few_rows, seed=seed))
    assert len(drawn) == min(few_rows, len(expected))
    assert plain(relation.sample_rows(few_rows, seed=seed)) == drawn
    left = iter(expected)
    assert all(row in left for row in drawn), "they come in the order of the rows"
    assert bool(relation)


def test_rows_are_counted_without_a_scan_where_metadata_says_them(catalog: spiral.Catalog) -> None:
    t, kinds = catalog.table("t"), catalog.table("kinds")

    assert len(t) == ROWS
    assert len(t.drop("x").with_columns(y=col("f") + 1).sort("f")) == ROWS
    assert len(t.head(7)) == 7
    assert len(t.head(10_000)) == ROWS
    assert len(t.union(t)) == 2 * ROWS
    assert len(t.join(kinds, on="g", how="left")) == ROWS
    assert len(t.aggregate(n=("x", "count"))) == 1
    assert bool(t.filter(col("id") < 0))


@pytest.mark.parametrize("verb", ["filter", "join", "aggregate", "distinct", "sql"])
def test_len_never_scans_and_names_count(catalog: spiral.Catalog, verb: str) -> None:
    t = catalog.table("t")
    made = {
        "filter": lambda: t.filter(col("x") > 0),
        "join": lambda: t.join(catalog.table("kinds"), on="g"),
        "aggregate": lambda: t.group_by("g").aggregate(n=("x", "count")),
        "distinct": lambda: t.distinct("g"),
        "sql": lambda: catalog.sql("select x from t where x > 0"),
    }[verb]()

    with pytest.raises(TypeError, match=rf"how many rows {verb} leaves .* Call \.count\(\)"):
        len(made)
    assert made.count() == len(made.to_arrow())
    assert made


@pytest.mark.parametrize("verb", ["count", "batches", "sample_rows", "to_pandas", "to_polars", "describe", "to_arrow"])
def test_verbs_of_rows_come_before_sample(catalog: spiral.Catalog, verb: str) -> None:
    sampled = catalog.table("t").sample(order=spiral.Sequential())

    with pytest.raises(PlanError, match=f"{verb}: it comes after sample. Call it before sample"):
        getattr(sampled, verb)()
    with pytest.raises(TypeError, match=r"Ask its stream for batches: len\(plan\.to_torch\(\)\)"):
        len(sampled)


def test_frames_hold_the_rows_of_to_arrow(catalog: spiral.Catalog) -> None:
    relation = catalog.table("t").filter(col("x") > 0).join(catalog.table("kinds"), on="g")
    whole = relation.to_arrow()

    assert isinstance(relation.to_pandas(), pd.DataFrame)
    pd.testing.assert_frame_equal(relation.to_pandas(), whole.to_pandas())
    assert isinstance(relation.to_polars(), pl.DataFrame)
    assert relation.to_polars().equals(pl.DataFrame(pl.from_arrow(whole)))


def test_columns_with_dictionaries_lists_and_structs_come_whole_from_every_source(tmp_path: Path) -> None:
    parts = [
        pa.table(
            {
                "id": range(10 * part, 10 * part + 10),
                "k": pa.array([f"v{part}{at % 3}" for at in range(10)]).dictionary_encode(),
                "list": pa.array([[at / 2] * 3 for at in range(10)], pa.list_(pa.float32(), 3)),
                "struct": [{"a": str(at), "b": [at] * (at % 3)} for at in range(10)],
                "half": np.arange(10).astype(np.float16),
            }
        )
        for part in range(3)
    ]
    lance.write_dataset(pa.concat_tables(parts), str(tmp_path / "t.lance"), max_rows_per_file=7)
    (tmp_path / "files").mkdir()
    for at, part in enumerate(parts):
        pq.write_table(part, tmp_path / "files" / f"{at}.parquet", row_group_size=4)
    catalog = spiral.connect(str(tmp_path / "catalog"))
    catalog.register("lance", spiral.Lance(str(tmp_path / "t.lance")), identity="id")
    catalog.register("parquet", spiral.Parquet(str(tmp_path / "files")), identity="id")
    catalog.register("arrow", spiral.Arrow(pa.concat_tables(parts)), identity="id")

    for name in ("lance", "parquet", "arrow"):
        relation = catalog.table(name).drop("storage_shard")
        for each in (relation, relation.filter("id % 2 = 0"), relation.union(relation)):
            rows = each.to_arrow().to_pylist()
            assert pa.Table.from_batches(each.batches(7), each.schema).to_pylist() == rows
            assert each.head(11).to_arrow().to_pylist() == rows[:11]
            assert all(row in rows for row in each.sample_rows(4).to_pylist())
            assert each.to_pandas()["k"].tolist() == each.to_polars()["k"].to_list() == [row["k"] for row in rows]


MISSING = """
import sys
from importlib.abc import MetaPathFinder

class Missing(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("pandas", "polars"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
import pyarrow as pa
import spiral_stream as spiral
catalog = spiral.connect(sys.argv[1])
catalog.register("t", spiral.Arrow(pa.table({"id": [1, 2]})), identity="id")
for verb in ("to_pandas", "to_polars"):
    try:
        getattr(catalog.table("t"), verb)()
    except spiral.errors.MissingExtraError as error:
        print(error)
print(catalog.table("t").count(), catalog.table("t").filter("id > 1").sample_rows(5).num_rows)
"""


def test_without_pandas_and_polars_the_error_names_the_extra_and_to_arrow(tmp_path: Path) -> None:
    command = [sys.executable, "-c", MISSING, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=280)

    assert done.stdout.splitlines() == [
        'to_pandas needs the package pandas, which is not installed. Run: pip install "spiral-stream[pandas]"; or use to_arrow()',
        'to_polars needs the package polars, which is not installed. Run: pip install "spiral-stream[polars]"; or use to_arrow()',
        "2 1",
    ]


def test_another_seed_draws_other_rows(catalog: spiral.Catalog) -> None:
    t = catalog.table("t")

    assert t.sample_rows(5)["id"].to_pylist() == t.sample_rows(5, seed=0)["id"].to_pylist()
    assert t.sample_rows(5)["id"].to_pylist() != t.sample_rows(5, seed=1)["id"].to_pylist()
    drawn = [t.sample_rows(10, seed=seed)["id"].to_pylist() for seed in range(90)]
    counts = np.bincount(np.concatenate(drawn), minlength=ROWS)
    assert counts.sum() == 900
    assert counts.max() < 26  # of 90 times 10 of 90 rows: 10 each, with a deviation of 3


# ---- columns


def test_drop_and_rename_are_projections_of_todays_plans(catalog: spiral.Catalog) -> None:
    t = catalog.table("t")

    assert t.drop("x", "storage_shard").columns == ["id", "f", "g", "place"]
    assert t.drop("x").fingerprint == t.select("id", "f", "g", "place", "storage_shard").fingerprint
    assert t.drop().fingerprint == t.fingerprint
    one, other = t.rename(number="x"), t.rename({"x": "number"})
    by_hand = t.select("id", col("x").alias("number"), "f", "g", "place", "storage_shard")
    assert one.fingerprint == other.fingerprint == by_hand.fingerprint
    assert one.columns == ["id", "number", "f", "g", "place", "storage_shard"]
    assert one.to_arrow()["number"].to_pylist() == TABLE["x"].to_pylist()
    swapped = t.rename({"x": "f", "f": "x"}).to_arrow()
    assert swapped["f"].to_pylist() == TABLE["x"].to_pylist()
    assert t.columns == t.schema.names
    assert t.head().fingerprint == t.limit(5).fingerprint


@pytest.mark.parametrize(
    ("made", "way_out"),
    [
        (lambda t: t.drop("idd"), "drop: 'idd' is not a column of the input; did you mean 'id'"),
        (lambda t: t.drop(["x", "f"]), r'drop: .* is a list. Give the names one by one: drop\("x", "f"\)'),
        (lambda t: t.drop(*t.columns), "project: no columns"),
        (lambda t: t.rename(y="z"), "rename: 'z' is not a column"),
        (lambda t: t.rename(x="y"), r'Write it the other way round: rename\(y="x"\)'),
        (lambda t: t.rename({"y": "x"}), r'Write it the other way round: rename\({"x": "y"}\)'),
        (lambda t: t.rename(f="x"), r"two columns would be called 'f'. Drop the other one first: \.drop"),
        (lambda t: t.rename({"x": "a"}, b="x"), r"'x' gets two names. Copy it first: \.with_columns"),
        (lambda t: t.batches(0), "batches: rows=0. Give an integer of at least 1"),
        (lambda t: t.batches(2.5), r"batches: rows=2\.5. Give an integer of at least 1"),
        (lambda t: t.sample_rows(-1), "sample_rows: count=-1. Give an integer of at least 0"),
        (lambda t: t.sample_rows(2, seed="a"), "sample_rows: seed='a'. Give an integer"),
    ],
)
def test_what_does_not_fit_names_the_way_out(
    catalog: spiral.Catalog, made: Callable[[spiral.Relation], object], way_out: str
) -> None:
    with pytest.raises(PlanError, match=way_out):
        made(catalog.table("t"))


def test_a_renamed_identity_tells_samples_apart(catalog: spiral.Catalog) -> None:
    renamed = catalog.table("t").rename(key="id", number="x").filter("number > 0")
    order = spiral.GlobalShuffle(seed=3)
    plan = renamed.sample(order=order).collate(batch_size=4, fields={"id": spiral.List("key")})
    before = catalog.table("t").filter("x > 0").sample(order=order)

    with plan.to_numpy() as one, before.collate(batch_size=4, fields={"id": spiral.List("id")}).to_numpy() as other:
        assert [batch["id"] for batch in one] == [batch["id"] for batch in other]
    parts = renamed.split(train=0.5, val=0.5)
    whole = catalog.table("t").filter("x > 0").split(train=0.5, val=0.5)
    assert parts["val"].to_arrow()["key"].equals(whole["val"].to_arrow()["id"])


# ---- conditions as text

X, F, G = col("x"), col("f"), col("g")
SAME = [
    ("x > 2 and g like 'b%'", (X > 2) & G.like("b%")),
    ("X IS NOT NULL AND NOT (g = 'a' OR g = 'b')", ~X.is_null() & ~((G == "a") | (G == "b"))),
    ("g in ('a', 'é') or x not in (1, 2)", G.isin(["a", "é"]) | ~X.isin([1, 2])),
    ("f between 1 and 2.5", F.between(1, 2.5)),
    ("x % 3 = 1 and x // 2 < 2 and -x < 3", (X % 3 == 1) & (X // 2 < 2) & (-X < 3)),
    ("x * 2 - 1 <> 5 and x + 1 > 0", (X * 2 - 1 != 5) & (X + 1 > 0)),
    ("lower(g) = 'é' and length(g) = 1 and trim(g) = g", (G.lower() == "é") & (G.len() == 1) & (G.strip(" ") == G)),
    ("round(f) >= 3 and floor(f / 2) < 4 and abs(x) = 2", (F.round() >= 3) & ((F / 2).floor() < 4) & (X.abs() == 2)),
    ("not isnan(f) and cast(x as double) > 0.5", ~F.is_nan() & (X.cast("float64") > 0.5)),
    ("g || '!' = 'a!' -- or not", G.concat("!") == "a!"),
    ("regexp_matches(g, '^[ab]$') and replace(g, 'a', 'b') = 'b'", G.regexp("^[ab]$") & (G.replace("a", "b") == "b")),
]


@pytest.mark.parametrize(("text", "expr"), SAME)
def test_a_condition_in_sql_is_the_expression(catalog: spiral.Catalog, text: str, expr: Any) -> None:
    t = catalog.table("t")

    assert t.filter(text).fingerprint == t.filter(expr).fingerprint
    assert t.filter(text).to_arrow()["id"].to_pylist() == t.filter(expr).to_arrow()["id"].to_pylist()
    sampled = t.sample(order=spiral.Sequential())
    assert sampled.filter(text).fingerprint == sampled.filter(expr).fingerprint


def test_text_passes_the_rows_of_a_query_where_no_nan_and_no_negative_number_decides(catalog: spiral.Catalog) -> None:
    for text, _ in SAME:
        if "%" in text or "//" in text or "f " in text or "(f" in text:
            continue
        queried = catalog.sql(f"select id from t where {text}\n order by id").to_arrow()["id"].to_pylist()
        assert catalog.table("t").filter(text).to_arrow()["id"].to_pylist() == queried, text


@pytest.mark.parametrize(
    ("text", "way_out"),
    [
        ("x > ", "syntax error .* Write a condition, such as"),
        ("x > 1 order by x", "more than a condition. Write a condition"),
        ("x > 1 union select 1", "more than a condition|it is no"),
        ("x = 1; drop table t", "Write a condition"),
        ("x > 1) or (x < 0", "syntax error"),
        ("case when x > 1 then true end", r"expressions have no CASE. Write it in a query: catalog\.sql"),
        ("x > (select 1)", r"expressions have no SUBQUERY. Write it in a query: catalog\.sql"),
        ("g ilike 'A'", r"expressions have no ILIKE. Write it in a query: catalog\.sql"),
        ("read_text('/etc/hostname') = 'x'", r"expressions have no read_text\(\.\.\.\)"),
        ("y > 1", "'y' is not a column"),
        ('g = "a_"', "A text stands in single quotes: 'a_'"),
        ("x", "Compare it"),
        ("x = 'a'", "Compare it with a number"),
        ("x = null", r"Use \.is_null\(\)"),
        ("x = ?", "expressions have no PARAMETER"),
        ("", "Write a condition"),
        (f"{'x = 1 or ' * 2000}x = 2", "at most 10,000 are read"),
        ("\0", "filter"),
        ("g = '\ud800'", "filter"),
    ],
)
def test_text_that_is_no_condition_names_the_way_out(catalog: spiral.Catalog, text: str, way_out: str) -> None:
    with pytest.raises(PlanError, match=way_out):
        catalog.table("t").filter(text)


PIECES = [*"xgf()'\"<>=%_ .,;-+*/1a\n\0é", " and ", " or ", " not ", " in ", " like ", " is null", "lower(", "x > 1"]


@few(60, 600, deadline=None)
@given(text=st.lists(st.sampled_from(PIECES), max_size=12).map("".join))
def test_whatever_text_is_given_it_is_a_condition_or_refused_by_us(catalog: spiral.Catalog, text: str) -> None:
    with suppress(PlanError):
        catalog.table("t").filter(text).count()


# ---- statistics, and memory


def test_describe_says_what_is_measured_what_is_not_and_how_to(tmp_path: Path) -> None:
    catalog = spiral.connect(str(tmp_path / "catalog"))
    catalog.register("t", spiral.Arrow(TABLE.append_column("b", pa.array([b"x"] * ROWS))), identity="id")

    before = catalog.table("t").describe()
    assert 'id, x, f, g, place, b: not measured yet. Call catalog.measure("t")' in str(before)
    assert [row["nulls"] for row in before.to_dict()["describe"]] == ["-"] * 7
    catalog.measure("t")
    relation = catalog.table("t").filter(col("x") > 0).rename(y="x").with_columns(z=col("f") * 2)
    found = relation.describe().to_dict()
    by_name = {row["column"]: row for row in found["describe"]}

    y = by_name["y"]
    assert (y["of"], y["type"], y["min"], y["max"]) == ("t.x", "int64", "-6", "6")
    assert (y["rows"]["value"], y["nulls"]["value"], y["NaN"]["value"], y["distinct"]["value"]) == (ROWS, 9, 0, 13)
    assert by_name["f"]["NaN"]["value"] == 6
    assert by_name["z"]["of"] == "computed"
    notes = "\n".join(found["notes"])
    assert "figures are of all rows of t: filter may leave fewer" in notes
    assert "z: computed by the plan. Measure it with .aggregate(" in notes
    assert "b: payload, bytes or nested values" in notes


def test_batches_hold_one_batch_of_payload_and_head_stops_reading(tmp_path: Path) -> None:
    size, rows = 1 << 20, 64
    payload = pa.array([bytes([at]) * size for at in range(rows)])
    table = pa.table({"id": range(rows), "x": [at % 3 for at in range(rows)], "b": payload})
    lance.write_dataset(table, str(tmp_path / "t.lance"), max_rows_per_file=16)
    catalog = spiral.connect(str(tmp_path / "catalog"))
    catalog.register("t", spiral.Lance(str(tmp_path / "t.lance")), identity="id")
    relation = catalog.table("t").filter("x > 0").union(catalog.table("t").filter("x = 0"))
    del table, payload
    held = pa.total_allocated_bytes()
    most, seen = 0, 0

    for batch in relation.batches(4):
        seen += batch.num_rows
        most = max(most, pa.total_allocated_bytes() - held)
        del batch

    assert seen == rows
    assert most < 24 * size, f"{most / size:.1f} MiB for batches of 4 MiB out of {rows} MiB"
    assert len(relation.head(2).to_arrow()) == 2


AT_A_PROMPT = """
import sys
import spiral_stream as spiral
r = spiral.connect(sys.argv[1]).table("r")
print("HEAD")
r.head(3)
print("ALL")
r
r.head(50)
"""


def test_at_a_prompt_head_shows_its_rows_and_nothing_else_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(sys, "ps1", raising=False)  # IPython sets it
    catalog = spiral.connect(str(tmp_path))
    catalog.register("r", spiral.Arrow(pa.table({"n": range(100), "s": ["word"] * 100})), identity="n")
    assert "word" not in repr(catalog.table("r").head(3))  # in a program, a message, a debugger

    command = [sys.executable, "-q", "-i", "-", str(tmp_path)]
    said = subprocess.run(command, input=AT_A_PROMPT, capture_output=True, text=True, timeout=280, check=True).stdout
    head, rest = said.partition("HEAD")[2].split("ALL")
    assert [line.split()[:2] for line in head.splitlines() if "word" in line] == [[str(n), "word"] for n in range(3)]
    assert "Limit count 50" in rest
    assert "word" not in rest


def test_a_column_asked_for_as_an_attribute_names_col(catalog: spiral.Catalog) -> None:
    relation = catalog.table("t")
    for name in ("place", "g", "f"):
        with pytest.raises(AttributeError, match=rf'col\("{name}"\) in an expression, or \.select\("{name}"\)'):
            getattr(relation, name)
    assert not hasattr(relation.sample(identity="id", order=spiral.Sequential()), "place")
    assert copy.copy(relation).count() == ROWS
    with pytest.raises(TypeError, match=r"Write \.filter"):
        relation[relation.count == 1]  # a comparison of a verb with a value is False


@pytest.mark.parametrize(
    ("source", "way_out"),
    [
        ("/data/photos", "ImageFolder(path), Parquet(path)"),
        (Path("/data/photos"), "`spiral init PATH`"),
        (pd.DataFrame({"id": [1]}), "Arrow(pyarrow.table(data))"),
        (pl.DataFrame({"id": [1]}), "Arrow(pyarrow.table(data))"),
        ({"id": [1]}, "Arrow(pyarrow.table(data))"),
        (7, "Lance(uri), Parquet(path) or Arrow(table)"),
    ],
)
def test_what_is_no_source_names_the_source_to_write(catalog: spiral.Catalog, source: Any, way_out: str) -> None:
    with pytest.raises(spiral.errors.CatalogError, match=re.escape(way_out)):
        catalog.register("given", source)
    if "pyarrow.table" in way_out:
        assert catalog.register("given", spiral.Arrow(pa.table(source)), identity="id")
        catalog.drop("given")
