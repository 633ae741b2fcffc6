import dagster as dg
from hypothesis import given
from hypothesis import strategies as st

from spiral_assets.facts import reports


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
