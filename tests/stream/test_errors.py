"""Errors carry the sample's place from call to call and between processes; values in messages are cut."""

import copy
import pickle
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import spiral_stream as sp
from spiral_stream.errors import MOST_SHOWN, DataError, PlanError, SourceError, SpiralError, cut, renumbered, shown
from spiral_stream.sources.references.policy import ReferenceDataError

LONG = "word " * 1000


@given(rows=st.lists(st.integers(0, 10**9), min_size=1, max_size=20), data=st.data())
def test_a_row_is_translated_to_the_callers_rows(rows: list[int], data: st.DataObject) -> None:
    row = data.draw(st.integers(0, len(rows) - 1))
    error = DataError("bad", row=row)
    with pytest.raises(DataError) as caught, renumbered(range(5, 5 + len(rows))), renumbered(np.arange(len(rows))):
        raise error
    assert caught.value is error
    assert error.row == 5 + row

    again = DataError("bad", row=row)
    with pytest.raises(DataError), renumbered(np.array(rows)):
        raise again
    assert again.row == rows[row]
    assert type(again.row) is int


def test_errors_without_a_row_and_of_other_kinds_pass_unchanged() -> None:
    unknown, other = SourceError("no disk"), PlanError("no plan")
    for error in (unknown, other):
        with pytest.raises(SpiralError) as caught, renumbered([7]):
            raise error
        assert caught.value is error
    assert unknown.row is None


@pytest.mark.parametrize("remade", [lambda error: pickle.loads(pickle.dumps(error)), copy.copy])
@pytest.mark.parametrize(
    "error",
    [
        SourceError("no disk", row=3),
        DataError("bad", row=0, sample=9, samples=lambda: None),  # what a function stands for cannot be pickled
        ReferenceDataError(2, "null"),
    ],
)
def test_an_error_between_processes_keeps_its_message_and_place(error: SourceError, remade: Any) -> None:
    error.add_note("seen by a worker")
    found = remade(error)

    assert type(found) is type(error)
    assert str(found) == str(error)
    assert (found.row, found.sample, found.samples) == (error.row, error.sample, None)
    assert found.__notes__[-1] == "seen by a worker"


@given(
    value=st.one_of(
        st.text(max_size=500), st.binary(max_size=500), st.integers(), st.lists(st.integers(), max_size=200)
    )
)
def test_a_value_is_shown_whole_where_it_is_short_and_cut_where_it_is_long(value: object) -> None:
    text = shown(value)

    assert text == repr(value) if len(repr(value)) <= MOST_SHOWN else text.startswith(repr(value)[:100])
    assert len(text) <= MOST_SHOWN + 30


def test_what_was_left_out_is_said_and_what_cannot_be_shown_is_named() -> None:
    class Silent:
        def __repr__(self) -> str:
            raise RuntimeError

    assert shown("x" * 7000).endswith("... (7,000 characters)")
    assert shown(b"x" * 10**7).endswith("... (10,000,000 bytes)")
    assert shown(["x" * 50] * 100).endswith("... (100 items)")
    assert shown(Silent()) == "<a Silent>"
    assert cut("one\n two\t" + "y" * 10**6) == "one two " + "y" * 142 + " ... " + "y" * 50


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> sp.Catalog:
    catalog = sp.connect(str(tmp_path_factory.mktemp("long") / "catalog"))
    rows = {"sample_id": [LONG + "a", LONG + "b"], "x": [1.0, 2.0]}
    catalog.register("t", sp.Arrow(pa.table(rows)))
    catalog.register("twice", sp.Arrow(pa.table({"sample_id": [LONG + "a"] * 2, "n": [1, 2]})), identity="n")
    return catalog


def stream(catalog: sp.Catalog, **changes: Any) -> sp.PreparedStream:
    plan = catalog.table("t").sample(identity="sample_id", order=sp.Sequential(), epoch=0)
    if changes:
        plan = plan.map(changes["function"], name="y", columns=["x"], returns=pa.float64())
    return plan.collate(batch_size=1, fields={"y": sp.Stack("y" if changes else "x")}).to_numpy()


def refuse(x: float) -> float:
    raise ValueError(LONG[:100])


VALUES: dict[str, Any] = {
    "registration": lambda c: c.register("u", sp.Arrow(pa.table({"sample_id": [LONG] * 2}))),
    "name": lambda c: c.table(LONG),
    "taken": lambda c: c.register(LONG, sp.Arrow(pa.table({"sample_id": [1]}))),
    "stream name": lambda c: c.open_stream(LONG),
    "tokenizer": lambda c: c.tokenizer(LONG.replace(" ", "")),
    "identity": lambda c: c.register("u", sp.Arrow(pa.table({"sample_id": [1]})), identity=LONG),
    "fan-out": lambda c: c.table("t").join(c.table("twice"), on="sample_id").to_arrow(),
    "locate": lambda c: stream(c).locate(LONG),
    "sample": lambda c: list(stream(c, function=refuse)),
    "order": lambda c: c.table("t").sample(identity="sample_id", order=[LONG], epoch=0),
    "fields": lambda c: (
        c.table("t").sample(identity="sample_id", order=sp.Sequential()).collate(batch_size=1, fields=[LONG])
    ),
    "batch_size": lambda c: (
        c.table("t")
        .sample(identity="sample_id", order=sp.Sequential())
        .collate(batch_size=LONG, fields={"x": sp.Stack("x")})
    ),
    "constant": lambda _: sp.col("x") == [LONG] * 1000,
    "array": lambda _: sp.col("x") == np.arange(10**5).astype(object),
    "is_in": lambda _: sp.col("x").is_in(LONG),
    "save_stream": lambda c: c.save_stream("s", {"a": [LONG] * 100}),
    "shuffle": lambda _: sp.GlobalShuffle(seed=LONG),
    "catalog": lambda _: sp.connect("https://" + LONG),
}


@pytest.mark.parametrize("what", VALUES)
def test_messages_show_values_cut(catalog: sp.Catalog, what: str) -> None:
    with pytest.raises((SpiralError, KeyError)) as refused:
        VALUES[what](catalog)

    assert len(str(refused.value)) < 1500
    assert LONG[: 3 * MOST_SHOWN] not in str(refused.value)
