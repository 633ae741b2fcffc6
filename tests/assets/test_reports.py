import dagster as dg
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from spiral_assets import reports


@given(values=st.lists(st.floats(0, 1e9), max_size=200))
def test_a_bar_chart_is_shown_inline(values: list[float]) -> None:
    text = reports.bars(values).value

    assert text is not None
    assert text.startswith("![bars](data:image/png;base64,")
    assert len(text) < reports.INLINE


@given(
    rows=st.lists(st.fixed_dictionaries({"a": st.text(), "b": st.floats(allow_nan=False), "c": st.none()}), max_size=80)
)
def test_a_table_is_short_in_both_directions(rows: list[dict[str, object]]) -> None:
    made = reports.table(rows)

    if not rows:
        assert made.value == "none"
        return
    assert isinstance(made, dg.TableMetadataValue)
    assert len(made.records) == min(len(rows), reports.ROWS)
    assert all(len(str(record.data["a"])) <= reports.CELL for record in made.records)


def test_extremes_of_numbers_are_compared_as_numbers() -> None:
    schema = pa.schema([("n", pa.int64()), ("name", pa.string())])
    shared = {"mark": "known", "rows": 2, "nulls": 1, "bytes": 8}
    rows = [
        {"column": "n", "min": "9", "max": "9", **shared},
        {"column": "n", "min": "-3", "max": "10", **shared},
        {"column": "name", "min": "9", "max": "9", **shared},
        {"column": "name", "min": "10", "max": "10", **shared},
    ]

    number, name = reports.column_rows(pa.Table.from_pylist(rows), schema)

    assert (number["range"], number["nulls"]) == ("-3 to 10", 2)
    assert name["range"] == "10 to 9"


def test_a_column_that_nobody_read_has_unknown_figures() -> None:
    schema = pa.schema([("image_ref", pa.binary())])
    rows = [
        {"column": "image_ref", "mark": "unknown", "rows": 2, "nulls": None, "bytes": None, "min": None, "max": None}
    ]

    (only,) = reports.column_rows(pa.Table.from_pylist(rows), schema)

    assert (only["nulls"], only["range"]) == (None, None)
