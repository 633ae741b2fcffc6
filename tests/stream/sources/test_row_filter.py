"""What passes in memory is what the reference says, whatever part of a predicate Arrow cannot decide."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spiral_stream import Expr, col
from spiral_stream.dialects.numpy import passes
from spiral_stream.errors import PlanError
from spiral_stream.sources import needed, passing
from spiral_stream.sources.row_filter import split_without

LARGE = 2**60
PARTS: list[Expr] = [
    col("i") > 1,
    col("i") // col("by") == 1,  # Arrow divides by no column that may be zero
    col("i") % col("by") != 0,
    col("d") != 0.5,
    col("d").is_nan() | (col("s") == "a"),
    col("s").is_null(),
]
PREDICATES = st.lists(st.sampled_from(PARTS), min_size=1, max_size=3).map(
    lambda parts: parts[0] if len(parts) == 1 else parts[0] & (parts[1] if len(parts) == 2 else parts[1] & parts[2])
)
ROWS = st.lists(
    st.tuples(
        st.sampled_from([None, 0, 1, 2, -3, LARGE]),
        st.sampled_from([None, 0, 1, -2]),
        st.sampled_from([None, 0.5, -0.0, float("nan")]),
        st.sampled_from([None, "a", "b"]),
    ),
    max_size=12,
)


def table(rows: list[tuple[int | None, int | None, float | None, str | None]]) -> pa.Table:
    kinds = {"i": pa.int64(), "by": pa.int64(), "d": pa.float64(), "s": pa.string()}
    columns = zip(*rows, strict=True) if rows else [()] * len(kinds)
    return pa.table({n: pa.array(values, kind) for (n, kind), values in zip(kinds.items(), columns, strict=True)})


@given(rows=ROWS, predicate=PREDICATES)
def test_rows_pass_as_the_reference_says_in_their_order(rows: list, predicate: Expr) -> None:
    numbered = table(rows).append_column("row", pa.array(np.arange(len(rows))))
    kept = np.flatnonzero(passes(predicate, {name: numbered[name] for name in predicate.columns()}))

    found = passing(numbered, predicate, ["row", "i"])
    assert found.column_names == ["row", "i"]
    assert found["row"].to_pylist() == kept.tolist()
    assert found["i"].to_pylist() == [rows[at][0] for at in kept]


def test_without_a_predicate_all_rows_of_a_batch_pass() -> None:
    batch = table([(1, 2, 0.5, "a"), (None, 0, None, None)]).to_batches()[0]

    assert passing(batch, None, ["s"]).to_pydict() == {"s": ["a", None]}


def test_a_predicate_of_another_type_is_refused() -> None:
    with pytest.raises(PlanError, match=r"'i' is int64, compared with 'a'\. Compare it with a number"):
        passing(table([]), col("i") > "a", ["i"])


@given(st.lists(st.sampled_from(["i", "by", "d", "s", "other"]), unique=True), st.none() | PREDICATES)
def test_columns_asked_for_come_first_and_each_is_read_once(columns: list[str], predicate: Expr | None) -> None:
    found = needed(columns, predicate)
    more = found[len(columns) :]

    assert found[: len(columns)] == columns
    assert more == sorted(more)
    assert sorted(found) == sorted({*columns, *(predicate.columns() if predicate is not None else ())})


@given(predicate=PREDICATES, hidden=st.frozensets(st.sampled_from(["i", "by", "d", "s"])), rows=ROWS)
def test_a_predicate_is_cut_where_it_names_hidden_columns_and_means_the_same(
    predicate: Expr, hidden: frozenset[str], rows: list
) -> None:
    seen, rest = split_without(predicate, table([]).schema, hidden)
    parts = [each for each in (seen, rest) if each is not None]
    held = {name: table(rows)[name] for name in ("i", "by", "d", "s")}

    assert seen is None or not seen.columns() & hidden
    assert rest is None or rest.columns() & hidden
    both = np.logical_and.reduce([passes(part, held) for part in parts])
    assert both.tolist() == passes(predicate, held).tolist()
