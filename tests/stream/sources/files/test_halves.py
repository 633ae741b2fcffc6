import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from spiral_stream.sources.files.units import Record, sound


@given(st.lists(st.booleans(), min_size=1, max_size=60))
def test_the_good_records_are_read_in_order_and_the_others_refused_in_order(good: list[bool]) -> None:
    refused: list[int] = []
    calls = 0

    def parse(records: list[Record]) -> pa.Table | None:
        nonlocal calls
        calls += 1
        return pa.table({"n": [n for n, _ in records]}) if all(data for _, data in records) else None

    records = [(n, b"x" if fine else b"") for n, fine in enumerate(good)]
    tables = list(sound(records, parse, lambda record: refused.append(record[0])))

    assert [n for table in tables for n in table["n"].to_pylist()] == [n for n, fine in enumerate(good) if fine]
    assert refused == [n for n, fine in enumerate(good) if not fine]
    assert calls <= 1 + 2 * len(refused) * len(good).bit_length()
