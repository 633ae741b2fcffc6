from typing import Any

import pyarrow as pa
import pytest

import spiral_stream as sp
from spiral_stream.errors import DataError
from spiral_stream.plan.maps import Context, SampleAssembly
from spiral_stream.runtime.assembling import assembled, assembler, called
from tests.fixtures.texts import make_catalog

RETURNS = pa.schema({"sample_id": pa.string(), "size": pa.int32()})
CONTEXT = Context(3, 1, 7)


class Whole:
    """Gives every table back."""

    def __init__(self, context: Any) -> None:
        self.context = context

    def push(self, table: pa.Table) -> pa.Table | None:
        return table

    def finish(self) -> pa.Table | None:
        return None


class Broken:
    def __init__(self, context: Any) -> None:
        msg = "no luck"
        raise RuntimeError(msg)


class Half:
    """Has no ``finish``."""

    def __init__(self, context: Any) -> None: ...

    def push(self, table: pa.Table) -> None: ...


@pytest.fixture(scope="module")
def relation(tmp_path_factory: pytest.TempPathFactory) -> sp.Relation:
    catalog = make_catalog(tmp_path_factory.mktemp("assembling"), {"a": 3})
    return catalog.table("a").sample(order=sp.Sequential())


def step(relation: sp.Relation, factory: type) -> SampleAssembly:
    node = relation.assemble(factory, columns=["sample_id", "size"], returns=RETURNS).node
    assert isinstance(node, SampleAssembly)
    return node


def test_an_assembler_is_created_with_its_chapters_context(relation: sp.Relation) -> None:
    made = assembler(step(relation, Whole), CONTEXT)

    assert isinstance(made, Whole)
    assert made.context == CONTEXT


@pytest.mark.parametrize(
    ("factory", "why"),
    [
        (Broken, r"assemble \(Broken\): RuntimeError: no luck; it is called with a context \(epoch, lane, chapter\)"),
        (Half, r"assemble \(Half\): gave a Half. Give it push\(table\) and finish\(\)"),
    ],
)
def test_what_is_no_assembler_is_refused(relation: sp.Relation, factory: type, why: str) -> None:
    with pytest.raises(DataError, match=why):
        assembler(step(relation, factory), CONTEXT)


def test_samples_come_with_the_columns_and_types_that_the_plan_states(relation: sp.Relation) -> None:
    made = step(relation, Whole)
    table = pa.table({"extra": [1.5], "size": pa.array([4], pa.int64()), "sample_id": ["x"]})

    assert assembled(made, Whole(CONTEXT).push, table) == pa.table({"sample_id": ["x"], "size": [4]}, schema=RETURNS)
    assert assembled(made, Whole(CONTEXT).finish) == RETURNS.empty_table()


@pytest.mark.parametrize("table", [pa.table({"size": [1]}), pa.table({"sample_id": ["x"], "size": ["many"]}), "none"])
def test_samples_of_another_kind_are_refused(relation: sp.Relation, table: Any) -> None:
    with pytest.raises(DataError, match=r"assemble \(Whole\): .*push and finish return a table with sample_id, size"):
        assembled(step(relation, Whole), Whole(CONTEXT).push, table)


def test_a_function_is_named_with_its_module(relation: sp.Relation) -> None:
    assert called(step(relation, Whole).function) == f"a user's function, {__name__}:Whole"
