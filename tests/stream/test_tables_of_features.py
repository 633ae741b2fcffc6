"""Tables of features at the public door: what is refused names a way out, and each way out is taken here."""

import decimal
import re
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

import spiral_stream as spiral
from spiral_stream import col
from tests.fixtures import warm
from tests.fixtures.examples import few

ROWS = 12
SHUFFLE = spiral.GlobalShuffle(seed=3)
_NUMBER = count()

FLOATS = pa.array([[k + 0.5, k + 1.5] for k in range(ROWS)], pa.list_(pa.float32()))
WAYS = {  # a column that Stack refuses, and what stands for the dots of the way out
    "decimals": (pa.array([decimal.Decimal(k) / 4 for k in range(ROWS)], pa.decimal128(10, 2)), {}),
    "float_lists": (FLOATS, {"[64]": "[2]"}),
    "integer_lists": (pa.array([[k, -k] for k in range(ROWS)], pa.list_(pa.int8())), {"[64]": "[2]"}),
    "unsigned_lists": (pa.array([[k, k] for k in range(ROWS)], pa.large_list(pa.uint16())), {"[64]": "[2]"}),
    "texts": (pa.array([("a", "b")[k % 2] for k in range(ROWS)]), {"[...]": "['a', 'b']"}),
    "categories": (pa.array([("a", "b")[k % 2] for k in range(ROWS)]).dictionary_encode(), {"[...]": "['a', 'b']"}),
    "missing": (pa.array([None if k % 3 else k / 2 for k in range(ROWS)]), {", ...)": ", 0)"}),
}


@pytest.fixture
def catalog(tmp_path: Path) -> spiral.Catalog:
    catalog = spiral.connect(tmp_path / "catalog")
    named = {name: values for name, (values, _) in WAYS.items()}
    catalog.register("t", spiral.Arrow(pa.table({"id": range(ROWS), **named})), identity="id")
    return catalog


def batch(relation: spiral.Relation, **fields: Any) -> Any:
    order = relation.sample(identity="id", order=SHUFFLE)
    return order.collate(batch_size=ROWS, fields={"id": spiral.Stack("id"), **fields}).to_numpy().batch(0)


def refusal(call: Callable[[], object]) -> str:
    with pytest.raises((spiral.SpiralError, AttributeError)) as found:
        call()
    return str(found.value)


def way(message: str, words: dict[str, str]) -> str:
    """The SQL text that a message names, with the dots filled in."""
    (text,) = re.findall(r'catalog\.sql\("(.*?)"\)', message)
    for dots, word in {"as ... from ...": "as made from t", **words}.items():
        assert dots in text
        text = text.replace(dots, word)
    return text


@pytest.mark.parametrize("name", WAYS)
def test_a_column_that_stack_refuses_is_stacked_by_the_way_that_the_refusal_names(
    name: str, catalog: spiral.Catalog
) -> None:
    message = refusal(lambda: batch(catalog.table("t"), x=spiral.Stack(name)))
    found = batch(catalog.sql(way(message, WAYS[name][1])), made=spiral.Stack("made"))
    values = WAYS[name][0].to_pylist()
    wanted = [{"a": 1, "b": 2, None: 0}.get(v, v) if not isinstance(v, list) else v for v in values]

    assert np.array_equal(found["made"], np.array(wanted, found["made"].dtype)[found["id"]])


@pytest.mark.parametrize("name", ["float_lists", "integer_lists", "unsigned_lists"])
def test_lists_are_padded_by_the_words_of_the_refusal(name: str, catalog: spiral.Catalog) -> None:
    message = refusal(lambda: batch(catalog.table("t"), x=spiral.Stack(name)))
    (column, dtype) = re.findall(r'Pad\("(\w+)"(?:, dtype="(\w+)")?\)', message)[0]
    found = batch(catalog.table("t"), x=spiral.Pad(column, **({"dtype": dtype} if dtype else {})))

    assert found["x"].tolist() == [WAYS[name][0].to_pylist()[row] for row in found["id"]]


def test_decimals_are_compared_and_cast_by_sql(catalog: spiral.Catalog) -> None:
    table = catalog.table("t")
    compared = refusal(lambda: table.filter(col("decimals") > 1).count())
    cast = refusal(lambda: table.with_columns(x=col("decimals").cast("float64")).count())

    assert "nothing" not in compared
    for message in (compared, cast):
        assert catalog.sql(way(message, {})).filter(col("made") > 1).count() == 7


KINDS = [pa.int8(), pa.uint8(), pa.int16(), pa.uint16(), pa.int32(), pa.uint32(), pa.int64(), pa.uint64()]
KINDS += [pa.float16(), pa.float32(), pa.float64(), pa.string(), pa.large_string(), pa.bool_()]


@few(40, 400, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(have=st.sampled_from([kind for kind in KINDS[:-3] if kind != pa.float16()]), want=st.sampled_from(KINDS))
def test_a_cast_is_done_or_the_refusal_names_sql_that_does_it(
    have: pa.DataType, want: pa.DataType, tmp_path: Path
) -> None:
    catalog = spiral.connect(tmp_path / f"catalog-{next(_NUMBER)}")
    catalog.register("t", spiral.Arrow(pa.table({"id": range(3), "x": pa.array([0, 1, 3], have)})), identity="id")
    try:
        made = catalog.table("t").with_columns(made=col("x").cast(want)).to_arrow()["made"]
    except spiral.errors.PlanError as error:
        made = catalog.sql(way(str(error), {})).to_arrow()["made"]

    wanted = [bool(v) if pa.types.is_boolean(want) else v for v in (0, 1, 3)]
    texts = pa.types.is_string(want) or pa.types.is_large_string(want)
    assert [float(v) if texts else v for v in made.to_pylist()] == wanted


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("isna", "is_null()"),
        ("notna", "~x.is_null()"),
        ("isnan", "is_nan()"),
        ("fillna", "coalesce(x, 0)"),
        ("fill_null", "coalesce(x, 0)"),
        ("fill_nan", "if(isnan(x), 0, x)"),
        ("mean", "avg(x) over ()"),
        ("std", "stddev(x) over ()"),
        ("log", "ln(x)"),
        ("astype", ".cast("),
    ],
)
def test_words_of_pandas_name_what_does_it_here(name: str, wanted: str, catalog: spiral.Catalog) -> None:
    message = refusal(lambda: getattr(col("missing"), name))

    assert wanted in message
    if "catalog.sql" in message:
        sql = re.findall(r'catalog\.sql\("(.*?)"\)', message)[0]
        made = catalog.sql(
            sql.replace("select *, ", "select id + 1 as x, ").replace("as ... from ...", "as made from t")
        )
        assert made.count() == ROWS


def test_a_weight_given_as_an_expression_is_given_as_the_text_that_the_refusal_names(catalog: spiral.Catalog) -> None:
    message = refusal(lambda: spiral.orders.Weighted(1 + 18 * col("id"), seed=1))  # type: ignore[arg-type]
    (text,) = re.findall(r'as a text: weights="(.*?)"', message)
    by_text = catalog.table("t").sample(order=spiral.orders.Weighted(text, seed=1)).order()
    by_hand = catalog.table("t").sample(order=spiral.orders.Weighted("1 + 18*id", seed=1)).order()

    assert by_text.rows(range(ROWS))["id"] == by_hand.rows(range(ROWS))["id"]


def test_files_with_other_columns_are_put_together_as_the_refusal_says(tmp_path: Path) -> None:
    plain, more = pa.table({"id": [0, 1], "x": [0.5, 1.5]}), pa.table({"id": [2], "x": [2.5], "crp": [9.0]})
    for name, table in (("a", plain), ("b", more)):
        (tmp_path / name).mkdir()
        pq.write_table(table, tmp_path / name / f"{name}.parquet")
    catalog = spiral.connect(tmp_path / "catalog")
    both = spiral.Parquet([str(tmp_path / name) for name in "ab"])
    message = refusal(lambda: catalog.register("both", both, identity="id"))
    a, b = (
        catalog.register(name, spiral.Parquet(tmp_path / name), identity="id") and catalog.table(name) for name in "ab"
    )
    (text,) = re.findall(r'catalog\.sql\("(.*?)"\)', message)

    assert "a.union(b.drop('crp'))" in message
    assert a.union(b.drop("crp")).select("id", "x").to_arrow().to_pydict() == {"id": [0, 1, 2], "x": [0.5, 1.5, 2.5]}
    assert sorted(catalog.sql(text).to_arrow()["crp"].to_pylist(), key=str) == [9.0, None, None]


def test_the_default_identity_is_said_to_be_the_default_and_the_columns_are_listed(tmp_path: Path) -> None:
    catalog = spiral.connect(tmp_path / "catalog")
    table = pa.table({"row_id": [0, 1], "patient_id": [5, 5], "age": [1.0, 2.0]})
    message = refusal(lambda: catalog.register("visits", spiral.Arrow(table)))

    assert "identity 'sample_id', the default, is not a column; there are row_id, patient_id, age" in message
    assert "did you mean" not in message


def test_counting_rows_of_groups_is_said_where_it_is_typed_wrong(catalog: spiral.Catalog) -> None:
    message = refusal(lambda: catalog.table("t").group_by("texts").aggregate(n="count"))  # type: ignore[arg-type]

    assert 'n=("x", "sum"); rows are ("x", "count")' in message
    assert catalog.table("t").group_by("texts").aggregate(n=("id", "count")).to_arrow()["n"].to_pylist() == [6, 6]


def test_explain_names_a_way_to_statistics_of_rows_that_the_plan_makes(catalog: spiral.Catalog) -> None:
    made = catalog.sql("select id, id % 2 as label from t")
    fields = {"label": spiral.Stack("label")}
    text = str(made.sample(identity="id", order=SHUFFLE).collate(batch_size=4, fields=fields).to_numpy().explain())

    assert "measure(" not in text
    assert 'catalog.register("...", spiral.Arrow(relation.to_arrow()), identity="...")' in " ".join(text.split())
    catalog.register("made", spiral.Arrow(made.to_arrow()), identity="id")
    assert catalog.measure("made").marks["label"] == "known"


def test_look_at_a_stream_into_a_file_writes_no_wide_blanks(catalog: spiral.Catalog) -> None:
    rows = catalog.table("t").sample(order=SHUFFLE)
    catalog.save_stream("fit", rows.collate(batch_size=8, fields={"id": spiral.Stack("id")}).to_numpy())
    command = [sys.executable, "-m", "spiral_stream", "look", "fit", "--catalog", str(catalog.root)]
    out = warm.run(command, check=True, capture_output=True, text=True).stdout

    assert max(map(len, out.splitlines())) < 400
    assert out.count("batch 0 row") == 8


@pytest.mark.parametrize(
    ("name", "way_out"),
    [
        ("visits", r'Register it first, catalog\.register\("visits", ...\)'),
        ("tt", "Did you mean t"),
        ("a.visits", "The query may read t"),
    ],
)
def test_sql_of_a_relation_that_is_not_registered_says_so(name: str, way_out: str, catalog: spiral.Catalog) -> None:
    with pytest.raises(spiral.errors.PlanError, match=way_out) as found:
        catalog.sql(f"select count(*) from {name}")

    assert f"sql: no relation is called '{name}'" in str(found.value)
    assert "pg_" not in str(found.value)


def test_a_saved_stream_whose_relation_is_forgotten_says_which_one(catalog: spiral.Catalog) -> None:
    made = catalog.sql("select id, id % 2 as label from t")
    rows = made.sample(identity="id", order=SHUFFLE)
    with rows.collate(batch_size=4, fields={"label": spiral.Stack("label")}).to_numpy() as stream:
        catalog.save_stream("fit", stream)
        stream.batch(0)
    catalog.drop("t")

    with pytest.raises(spiral.errors.PlanError, match=r"no relation is called 't'.*Register it first"):
        catalog.open_stream("fit")
    rows = next(each for each in catalog.caches() if each.kind == "relation")
    assert (
        rows.note
        == "the plan of fit cannot be read here, so it may need this: trust it, register what it reads, or drop it"
    )
    assert all("plan of fit" not in each.note for each in catalog.caches() if "fit" not in each.used_by)
