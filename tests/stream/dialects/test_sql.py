"""Names and texts are quoted in the SQL of every engine."""

import pyarrow as pa

from spiral_stream import col
from spiral_stream.dialects import to_arrow, to_lance
from tests.fixtures.duckdb_dialect import to_duckdb


def test_names_and_texts_are_quoted() -> None:
    schema = pa.schema([('a "b', pa.string()), ("it's", pa.int64())])
    expr = (col('a "b') == "'; DROP TABLE x --") & (col("it's") == 1)

    assert to_duckdb(expr, schema).startswith("((\"a \"\"b\" = '''; DROP TABLE x --')")
    assert to_lance(expr, schema).startswith("((`a \"b` = arrow_cast('''; DROP TABLE x --', 'Utf8'))")
    assert "DROP" in str(to_arrow(expr, schema))
