import pyarrow as pa
import pytest

from spiral_stream.dialects import Inexpressible, all_of, conjuncts, split, to_lance, to_parquet
from spiral_stream.expr import Expr, col

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


@pytest.mark.parametrize(
    "predicate",
    [col("d") != 0.7, ~(col("d") >= 0.7), col("d").is_nan(), ~((col("i") > 1) & (col("d") * 2 > col("i")))],
)
def test_row_group_statistics_never_decide_about_nan(predicate: Expr) -> None:
    with pytest.raises(Inexpressible):
        to_parquet(predicate, SCHEMA)


@pytest.mark.parametrize("predicate", [col("d") >= 0.7, ~col("d").is_null(), ~(col("i") > 1), col("d").is_in([1.0])])
def test_what_nan_cannot_meet_prunes_row_groups(predicate: Expr) -> None:
    to_parquet(predicate, SCHEMA)


def test_joining_conjuncts_again_changes_nothing() -> None:
    predicate = (col("i") > 1) & (col("s") == "a") & (col("d") < 1.0)
    joined = all_of(conjuncts(predicate))

    assert joined is not None
    assert joined.same_as(predicate)
    assert all_of([]) is None
