import pyarrow as pa
import pytest

from spiral_stream import Expr, col
from spiral_stream.dialects import all_of, conjuncts, split, to_lance

SCHEMA = pa.schema([("d", pa.float64()), ("i", pa.int64()), ("by", pa.int64()), ("s", pa.string())])


def test_only_what_lowers_is_pushed() -> None:
    predicate = (col("i") > 1) & ((col("i") % col("by") == 0) & (col("d") >= 0.5))

    pushed, residual = split(predicate, SCHEMA, to_lance)

    assert str(pushed) == "(i > 1) & (d >= 0.5)"
    assert str(residual) == "(i % by) == 0"


@pytest.mark.parametrize("predicate", [None, col("s") == "a"])
def test_nothing_is_left_when_all_is_pushed(predicate: Expr | None) -> None:
    pushed, residual = split(predicate, SCHEMA, to_lance)

    assert residual is None
    assert str(pushed) == str(predicate)


def test_an_or_is_not_cut() -> None:
    pushed, residual = split((col("i") == 1) | (col("i") // col("by") == 1), SCHEMA, to_lance)

    assert pushed is None
    assert residual is not None


def test_joining_conjuncts_again_changes_nothing() -> None:
    predicate = (col("i") > 1) & (col("s") == "a") & (col("d") < 1.0)
    joined = all_of(conjuncts(predicate))

    assert joined is not None
    assert joined.same_as(predicate)
    assert all_of([]) is None
