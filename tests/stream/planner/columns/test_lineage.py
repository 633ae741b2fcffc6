"""Lineage says which map makes which column, from the plan alone."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import spiral_stream as sp
from spiral_stream.plan.verbs.maps import PART, SampleFilter
from spiral_stream.planner.columns.lineage import (
    Key,
    Lengths,
    Lineage,
    Made,
    Refusal,
    Stored,
    identity_keys,
    length_column,
    made_by,
    with_lengths,
)
from tests.fixtures.inner import stages_of
from tests.fixtures.texts import make_catalog, tokenized

NAMES = ["body", "size", "tokens", "twice", "drawn", "again", "parity", PART]


def draw(size: int) -> float:
    return float(size)


def pieces(size: int) -> list[int]:
    return [size, size]


@pytest.fixture(scope="module")
def stages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    catalog = make_catalog(tmp_path_factory.mktemp("lineage"), {"a": 20})
    plan = (
        tokenized(catalog.table("a"), sp.Sequential())  # 0: tokens
        .with_columns(twice=sp.col("size") * 2)  # 1
        .map(draw, columns=["twice"], name="drawn", returns=pa.float64(), batched=False)  # 2
        .filter(sp.len_("tokens") > 2)  # 3
        .with_columns(size=sp.len_("tokens") + sp.col("size"))  # 4: replaces a stored column
        .map(draw, columns=["size"], name="again", returns=pa.float64(), batched=False)  # 5
        .flat_map(pieces, columns=["twice"], name="parity", returns=pa.list_(pa.int64()), fan_out=2, batched=False)  # 6
    )
    with plan.collate(batch_size=4, fields={"d": sp.List("drawn"), "p": sp.List("parity")}).to_numpy() as stream:
        yield stages_of(stream)


@pytest.fixture(scope="module")
def lineage(stages: Any) -> Lineage:
    return Lineage.of(stages)


# ---- laws


@given(name=st.sampled_from(NAMES), upto=st.integers(0, 7))
def test_a_name_means_the_last_column_made_before_else_the_stored_one(
    stages: Any, lineage: Lineage, name: str, upto: int
) -> None:
    makers = [at for at in range(upto) if name in made_by(stages.maps[at])]

    assert lineage.key(name, upto) == (Made(name, makers[-1]) if makers else Stored(name))


@given(asked=st.sets(st.sampled_from(NAMES)), had=st.sets(st.sampled_from(NAMES)))
def test_what_is_missing_together_with_what_exists_is_enough_to_compute_what_is_asked(
    lineage: Lineage, asked: set[str], had: set[str]
) -> None:
    keys, have = lineage.keys(sorted(asked), lineage.end), set[Key](lineage.keys(sorted(had), lineage.end))
    missing = lineage.missing(keys, have)

    assert len(set(missing)) == len(missing)
    assert not set(missing) & have
    assert set(keys) <= set(missing) | have
    assert all(set(lineage.inputs(key)) <= set(missing) | have for key in missing)
    assert lineage.missing(keys, have | set(missing)) == []
    assert set(missing) <= lineage.rests_on(keys)


# ---- examples


def test_a_column_rests_on_its_inputs_and_on_theirs(lineage: Lineage) -> None:
    assert lineage.rests_on([Made("drawn", 2)]) == {Made("drawn", 2), Made("twice", 1), Stored("size")}
    assert lineage.rests_on([Made("size", 4)]) == {Made("size", 4), Made("tokens", 0), Stored("size")}
    assert lineage.rests_on([Made("again", 5)]) == {Made("again", 5)} | lineage.rests_on([Made("size", 4)])


def test_tokens_rest_on_their_text_only_where_it_is_computed(stages: Any, lineage: Lineage) -> None:
    computed = Lineage(stages.maps, stages.streams[0].node.schema())

    assert lineage.inputs(Made("tokens", 0)) == []
    assert computed.inputs(Made("tokens", 0)) == [Stored(stages.maps[0].transform.column)]


def test_columns_that_are_read_or_made_with_the_samples_have_no_inputs(lineage: Lineage) -> None:
    for key in (Stored("size"), Lengths("size"), Refusal(0), Made("parity", 6), Made(PART, 6)):
        assert lineage.inputs(key) == []


def test_a_filter_reads_the_columns_of_its_place(stages: Any, lineage: Lineage) -> None:
    step = stages.maps[3]
    assert isinstance(step, SampleFilter)

    assert lineage.test_keys(step, 3) == [Made("tokens", 0)]
    assert lineage.expression_keys(sp.col("size") + sp.len_("tokens"), 3) == [Stored("size"), Made("tokens", 0)]
    assert lineage.expression_keys(sp.col("size") + sp.len_("tokens"), 5) == [Made("size", 4), Made("tokens", 0)]


def test_of_a_stored_list_only_the_lengths_are_read() -> None:
    lineage = Lineage((), pa.schema({"ids": pa.list_(pa.int32()), "size": pa.int64()}))

    assert lineage.length_key("ids") == Lengths("ids")
    assert lineage.key("ids", 0) == Stored("ids")
    assert lineage.length_key("size") == Stored("size")


def test_functions_of_one_name_are_counted_and_fan_out_multiplies(lineage: Lineage) -> None:
    assert [lineage.same_before(at) for at in range(lineage.end)] == [0, 0, 0, 0, 0, 1, 0]
    assert [lineage.fan_out(start) for start in (0, 6, 7)] == [2, 2, 1]


def test_the_identity_is_the_relations_where_nothing_is_assembled(stages: Any) -> None:
    assert identity_keys(stages) == [Stored(name) for name in stages.identity]


def test_lengths_stand_for_lists_wherever_they_are_in_an_expression() -> None:
    expr = (sp.len_("tokens") * 2 + sp.len_("other")).alias("x")
    found = with_lengths(expr, {"tokens"})

    assert found.columns() == {length_column("tokens"), "other"}
    assert length_column("tokens") not in NAMES
