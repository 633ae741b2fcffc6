"""Rows of an earlier data version: their shards are known, and reading them is refused."""

import numpy as np
import pyarrow as pa
import pytest

from spiral_stream.errors import SourceError
from spiral_stream.sources import Unit
from spiral_stream.sources.internal.former import FormerRows


def test_a_former_source_lists_its_units_and_reads_no_row() -> None:
    units = (Unit("a", 3, None, "0" * 32, ()),)
    with FormerRows("rows", "ab" * 16, pa.schema([("x", pa.int64())]), units).open() as reader:
        assert tuple(reader.units()) == units
        assert reader.schema.names == ["x"]
        refused = r"rows: x of data version abababab must be read.*Put the old data back"
        with pytest.raises(SourceError, match=refused):
            reader.scan(["x"])
        with pytest.raises(SourceError, match=refused):
            reader.fetch(np.zeros(1, np.uint64), ["x"])
