"""`join(validate=)`: what pandas' `merge` accepts and refuses, by its words."""

import tempfile
from typing import Any, get_args

import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import spiral_stream as sp
from spiral_stream.errors import PlanError
from spiral_stream.plan.combining import JoinRule
from tests.fixtures.examples import few

pytestmark = pytest.mark.timeout(300)

NUMBERS = st.lists(st.one_of(st.none(), st.integers(0, 6)), min_size=1, max_size=9)
FLOATS = st.lists(st.sampled_from([None, 0.0, -0.0, float("nan"), 1.5, 2.5]), min_size=1, max_size=7)
TEXTS = st.lists(st.one_of(st.none(), st.sampled_from(["a", "b", "A", "äö", ""])), min_size=1, max_size=7)


def relations(left: list[Any], right: list[Any], kind: pa.DataType, second: bool) -> tuple[sp.Relation, sp.Relation]:
    catalog = sp.connect(tempfile.mkdtemp())
    out = []
    for name, values in (("left", left), ("right", right)):
        columns = {"k": pa.array(values, kind), f"{name}_id": range(len(values))}
        if second:
            columns["j"] = pa.array([at % 2 for at in range(len(values))])
        catalog.register(name, sp.Arrow(pa.table(columns)), identity=f"{name}_id")
        out.append(catalog.table(name))
    return out[0], out[1]


def by_pandas(left: sp.Relation, right: sp.Relation, keys: list[str], rule: str) -> bool:
    """Whether pandas takes it; it matches null keys, and ours match nothing."""
    try:
        left.to_pandas().dropna().merge(right.to_pandas().dropna(), on=keys, validate=rule)
    except pd.errors.MergeError:
        return False
    return True


@few(40, 400)
@given(data=st.data())
def test_a_rule_accepts_and_refuses_what_pandas_does(data: st.DataObject) -> None:
    """Of one key or two, of numbers, floats and texts; after a filter too. A refusal counts the keys and names the first."""
    kind, values = data.draw(st.sampled_from([(pa.int32(), NUMBERS), (pa.float64(), FLOATS), (pa.utf8(), TEXTS)]))
    second = data.draw(st.booleans())
    left, right = relations(data.draw(values), data.draw(values), kind, second)
    if data.draw(st.booleans()):
        left = left.filter(sp.col("left_id") > 1)
    keys, rule = ["k", "j"] if second else ["k"], data.draw(st.sampled_from(get_args(JoinRule)))

    said = None
    try:
        left.join(right, on=keys, validate=rule, how=data.draw(st.sampled_from(["inner", "left", "semi", "anti"])))
    except PlanError as error:
        said = str(error)

    assert (said is None) == by_pandas(left, right, keys, rule), said
    if said is not None:
        counts = left.to_pandas().dropna().value_counts(keys), right.to_pandas().dropna().value_counts(keys)
        asked = [rule[0] == "o" or rule[0] == "1", rule.endswith(("one", ":1"))]
        for side, count, unique in zip(("left", "right"), counts, asked, strict=True):
            repeated = int((count > 1).sum()) if unique else 0
            assert (f"several rows on the {side}" in said) == (repeated > 0)
            assert not repeated or f"{repeated} key" in said
        weaker = said.rpartition('validate="')[2].rstrip('"')
        assert by_pandas(left, right, keys, weaker)  # the way out is one


def test_a_refusal_names_the_first_keys_and_the_ways_out() -> None:
    left, right = relations([3, 1, 1, 2, 3], [1, 2, 3, 3], pa.int64(), second=False)

    with pytest.raises(
        PlanError, match=r"2 keys .* left: 3 \(2 rows\), 1 \(2 rows\).*\.distinct\('k'\), or give .*many_to_many"
    ):
        left.join(right, on="k", validate="1:1")
    with pytest.raises(PlanError, match=r'left: 1 \(2 rows\)\. Keep one .* or give validate="many_to_one"'):
        left.filter("k < 3").join(right.filter("k < 3"), on="k", validate="one_to_one")
    with pytest.raises(PlanError, match=r"validate='1-1' is unknown\. Give \"one_to_one\" or \"1:1\""):
        left.join(right, on="k", validate="1-1")  # type: ignore[arg-type]  # the wrong word


def test_a_rule_is_no_part_of_the_plan() -> None:
    left, right = relations([1, 2], [1, 2], pa.int64(), second=False)

    assert left.join(right, on="k", validate="1:1").fingerprint == left.join(right, on="k").fingerprint
