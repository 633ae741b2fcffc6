from typing import Any

import pyarrow as pa
import pytest

import spiral_stream as sp
from spiral_stream.errors import DataError
from spiral_stream.plan.functions.context import Context
from spiral_stream.plan.verbs.maps import SampleAssembly
from spiral_stream.runtime.columns.functions import assembler, called, finished, pushed
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

    assert pushed(made, Whole(CONTEXT), table) == pa.table({"sample_id": ["x"], "size": [4]}, schema=RETURNS)
    assert finished(made, Whole(CONTEXT)) == RETURNS.empty_table()


@pytest.mark.parametrize("table", [pa.table({"size": [1]}), pa.table({"sample_id": ["x"], "size": ["many"]}), "none"])
def test_samples_of_another_kind_are_refused(relation: sp.Relation, table: Any) -> None:
    with pytest.raises(DataError, match=r"assemble \(Whole\): .*push and finish return a table with sample_id, size"):
        pushed(step(relation, Whole), Whole(CONTEXT), table)


class Asks:
    """Asks for what belongs to a process."""

    def __init__(self, context: Any) -> None:
        self.rank = context.rank


class Rows:
    """Takes one sample at a time."""

    def __init__(self, context: Any) -> None:
        self.held: list[dict[str, Any]] = []

    def push(self, row: dict[str, Any]) -> list[dict[str, Any]]:
        self.held.append(row)
        return []

    def finish(self, drop_last: bool) -> list[dict[str, Any]]:
        return [] if drop_last else self.held


def test_a_context_has_slots_and_no_rank(relation: sp.Relation) -> None:
    context = Context(3, 1, 7, 4, 11)

    assert (context.slot, context.total_slots) == (1, 4)
    assert context.generator().random() == context.generator().random()
    with pytest.raises(sp.errors.PlanError, match=r"context.rank: samples may not depend .*Use context.slot"):
        assembler(step(relation, Asks), context)


@pytest.mark.parametrize("drop_last", [False, True])
def test_one_sample_at_a_time_and_what_is_left_at_the_end(relation: sp.Relation, drop_last: bool) -> None:
    plan = relation.assemble(Rows, columns=["sample_id", "size"], returns=RETURNS, batched=False, drop_last=drop_last)
    made, held = plan.node, Rows(CONTEXT)
    assert isinstance(made, SampleAssembly)

    assert not len(pushed(made, held, pa.table({"sample_id": ["x", "y"], "size": [1, 2]})))
    assert finished(made, held).to_pylist() == ([] if drop_last else held.held)


def test_a_function_is_named_with_its_module(relation: sp.Relation) -> None:
    assert called(step(relation, Whole).function) == f"a user's function, {__name__}:Whole"
