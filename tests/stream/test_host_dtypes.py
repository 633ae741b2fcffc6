"""Which NumPy dtype stands for a column's type."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import spiral_stream
from spiral_stream.host_dtypes import numpy_dtype

NUMBERS = [getattr(pa, name)() for name in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")]
NUMBERS += [pa.float16(), pa.float32(), pa.float64(), pa.bool_()]
TIMES = [kind(unit) for kind in (pa.timestamp, pa.duration) for unit in ("s", "ms", "us", "ns")]


@pytest.mark.parametrize("kind", [*NUMBERS, *TIMES], ids=str)
def test_the_dtype_is_the_one_that_arrow_gives_an_array_of_that_type(kind: pa.DataType) -> None:
    found = numpy_dtype(kind)

    assert found == pa.array([], kind).to_numpy(zero_copy_only=False).dtype
    assert np.zeros(2, found).dtype.kind in "iufbMm"


@pytest.mark.parametrize("kind", [pa.string(), pa.binary(), pa.list_(pa.int8()), pa.decimal128(5)], ids=str)
def test_values_of_other_types_are_python_objects(kind: pa.DataType) -> None:
    assert numpy_dtype(kind) == np.dtype(object)


def test_times_of_a_zone_lie_in_the_same_dtype_as_others() -> None:
    assert numpy_dtype(pa.timestamp("us", "UTC")) == np.dtype("M8[us]")


def test_pandas_is_not_asked() -> None:
    program = (
        "import sys; sys.modules['pandas'] = None; import pyarrow as pa; from spiral_stream.host_dtypes import numpy_dtype; "
        "print(numpy_dtype(pa.int32()), numpy_dtype(pa.float16()))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert done.stdout.split() == ["int32", "float16"]


def test_no_room_asks_arrow_for_the_type_of_pandas() -> None:
    rooms = Path(spiral_stream.__file__).parent.rglob("*.py")
    assert [room.name for room in rooms if ".to_pandas_dtype(" in room.read_text()] == []
