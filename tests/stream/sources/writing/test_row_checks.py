"""A row that does not fit the schema is refused by number and field, and leaves no trace."""

import datetime as dt
from collections import OrderedDict
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spiral_stream.errors import SourceError
from spiral_stream.sources.writing.row_checks import RowChecks

SCHEMA = pa.schema(
    [
        pa.field("n", pa.int8(), nullable=False),
        ("f", pa.float32()),
        ("b", pa.bool_()),
        ("text", pa.utf8()),
        ("data", pa.binary()),
        ("many", pa.list_(pa.int32())),
        ("pair", pa.struct([("x", pa.int64()), ("y", pa.utf8())])),
        ("when", pa.timestamp("us")),
    ]
)
GOOD: dict[str, Any] = {
    "n": 1,
    "f": 0.5,
    "b": True,
    "text": "a",
    "data": b"b",
    "many": [1, 2],
    "pair": {"x": 1, "y": "z"},
    "when": dt.datetime(2026, 1, 1),  # noqa: DTZ001  as the column has none
}


@pytest.mark.parametrize(
    ("row", "found"),
    [
        ({**GOOD, "n": "1"}, "row 7: field 'n' is '1', a str; the schema says int8. Convert it, or change the schema"),
        ({**GOOD, "n": True}, "row 7: field 'n' is True, a bool; the schema says int8"),
        ({**GOOD, "n": 1.0}, "row 7: field 'n' is 1.0, a float"),
        ({**GOOD, "n": None}, "row 7: field 'n' is None, and the schema allows no null. Fill it in"),
        ({**GOOD, "f": "1"}, "row 7: field 'f' is '1'"),
        ({**GOOD, "b": 1}, "row 7: field 'b' is 1, a int; the schema says bool"),
        ({**GOOD, "text": b"a"}, "row 7: field 'text' is b'a', a bytes; the schema says string"),
        ({**GOOD, "data": "a" * 5000}, r"row 7: field 'data' is 'a+\.\.\. \(5,000 characters\), a str"),
        ({**GOOD, "many": ["a"]}, r"row 7: field 'many' is \['a'\], a list; the schema says list<item: int32>"),
        ({**GOOD, "many": 3}, "row 7: field 'many' is 3"),
        ({**GOOD, "pair": {"x": "1"}}, "row 7: field 'pair' is {'x': '1'}, a dict; the schema says struct"),
        ({**GOOD, "when": "today"}, "row 7: field 'when' is 'today'"),
        ({k: v for k, v in GOOD.items() if k != "text"}, "row 7 has no field 'text'. Give it, or None"),
        ({**GOOD, "more": 1}, "row 7 has a field 'more', which the schema has not. Leave it out, or add it there"),
        ([1, 2], "row 7 is a list. Give a dictionary: name of the column -> value"),
    ],
)
def test_a_row_that_does_not_fit_is_refused_and_the_next_one_is_taken(row: Any, found: str) -> None:
    checks = RowChecks(SCHEMA)
    with pytest.raises(SourceError, match=f"Writer: {found}"):
        checks.add(row, 7)
    checks.add(GOOD, 7)

    assert checks.held == 1
    assert checks.taken(7).to_pylist() == [GOOD]
    assert (checks.held, checks.held_bytes) == (0, 0)


def test_an_integer_beyond_its_type_is_found_when_the_column_is_made() -> None:
    checks = RowChecks(SCHEMA)
    for number in (1, 2, 300, 4):
        checks.add({**GOOD, "n": number}, 10 + number)

    with pytest.raises(SourceError, match=r"row 12: field 'n' is 300, a int; the schema says int8\. Convert"):
        checks.taken(10)


def test_values_of_numpy_and_nulls_and_any_mapping_are_taken() -> None:
    row = OrderedDict(dict.fromkeys(reversed(SCHEMA.names))) | {
        "n": np.int64(3),
        "f": np.float32(0.25),
        "b": np.bool_(True),
        "data": memoryview(b"xy"),
        "many": np.array([4, 5]),
    }
    checks = RowChecks(SCHEMA)
    checks.add(row, 0)

    [found] = checks.taken(0).to_pylist()
    assert found == {**dict.fromkeys(SCHEMA.names), "n": 3, "f": 0.25, "b": True, "data": b"xy", "many": [4, 5]}


def test_held_bytes_grow_with_payload() -> None:
    checks = RowChecks(SCHEMA)
    checks.add({**GOOD, "data": bytes(1000), "many": list(range(1000))}, 0)

    assert 5000 <= checks.held_bytes < 6000


@pytest.mark.parametrize(
    ("table", "found"),
    [
        (pa.table({"a": [1]}), "rows from 5 on have no column 'b'. Give the columns a, b"),
        (pa.table({"a": [1], "b": ["x"], "c": [1]}), "have a column 'c' that is not in the schema"),
        (
            pa.Table.from_arrays([pa.array([1]), pa.array(["x"]), pa.array(["x"])], ["a", "b", "b"]),
            "have a column twice",
        ),
        (
            pa.table({"a": pa.array([1], pa.int8()), "b": ["x"]}),
            r"column 'a' is int8, not int64\. Cast it: table\.cast",
        ),
        (pa.table({"a": [1, 2, None], "b": ["x"] * 3}), "row 7: field 'a' is null, and the schema allows no null"),
    ],
)
def test_a_table_that_does_not_fit_is_refused(table: pa.Table, found: str) -> None:
    checks = RowChecks(pa.schema([pa.field("a", pa.int64(), nullable=False), ("b", pa.utf8())]))
    with pytest.raises(SourceError, match=found):
        checks.table(table, 5)
