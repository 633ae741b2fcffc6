"""NumPy dtypes on the host: which one holds a field, how bfloat16 is stored, and which time zones the host knows.

A bfloat16 is the upper half of a float32. Until batches are delivered, it lies in an array of `BFLOAT16`: 16 bits under a
name of their own, so that no other room takes them for integers. Frameworks see the same memory as their own type.
"""

import re
from contextlib import suppress
from importlib import import_module
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

BFLOAT16: Final = np.dtype([("bfloat16", "<u2")])
_HALF: Final = np.uint32(
    0x7FFF
)  # rounds to nearest; one more where the bit that stays last is set, so that ties go to even
_CODE: Final = re.compile(r"[<=|]?[?biuf][1248]?")  # as NumPy writes a dtype: "<f4"
_OF_ARROW: Final = {"halffloat": "float16", "float": "float32", "double": "float64"}
_SHORT: Final = {
    "half": "float16", "fp16": "float16", "bf16": "bfloat16", "fp32": "float32", "fp64": "float64", "double": "float64",
}  # fmt: skip  # "float" is float32 in torch and float64 in NumPy, so it is neither
_NAN: Final = np.uint16(0x7FC0)


def host_dtype(name: str) -> np.dtype[Any]:
    """Return the NumPy dtype that holds values of this name on the host."""
    return BFLOAT16 if name == "bfloat16" else np.dtype(name)


def numpy_dtype(kind: pa.DataType) -> np.dtype[Any]:
    """Return the NumPy dtype of a column's numbers, booleans, dates, times or durations; object for values of other types.

    Arrow's own ``to_pandas_dtype`` needs pandas before Arrow 26, also for numbers.
    """
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind):
        return np.dtype(_OF_ARROW.get(str(kind), str(kind)))
    if pa.types.is_timestamp(kind) or pa.types.is_duration(kind):
        return np.dtype(f"{'M' if pa.types.is_timestamp(kind) else 'm'}8[{kind.unit}]")
    return np.dtype("M8[ms]" if pa.types.is_date(kind) else object)


def dtype_name(given: Any) -> Any:
    """Return the name of a dtype of NumPy, torch or Arrow, of a class of numbers, or of a short name such as "half".

    What is none of them is returned as it is.

    A plan holds names, so that it is the same however its dtypes are given.
    """
    if isinstance(given, pa.DataType):
        return _OF_ARROW.get(str(given), str(given))
    if isinstance(given, str) and given in _SHORT:
        return _SHORT[given]
    if isinstance(given, type | np.dtype) or (isinstance(given, str) and _CODE.fullmatch(given)):
        with suppress(TypeError):
            return np.dtype(given).name
    return str(given).removeprefix("torch.") if type(given).__module__ == "torch" else given


def rounded(values: NDArray[Any]) -> NDArray[np.uint16]:
    """Return the bits of numbers as bfloat16, rounded to the nearest as torch does.

    Args:
        values: numbers of any shape and dtype; float64 and integers pass through float32.

    Returns:
        the same shape, uint16. What is too large becomes infinite.
    """
    with np.errstate(over="ignore"):
        wide = np.ascontiguousarray(values, dtype=np.float32)
    bits = wide.view(np.uint32)
    odd = (bits >> np.uint32(16)) & np.uint32(1)
    upper = ((bits + _HALF + odd) >> np.uint32(16)).astype(np.uint16)
    upper[np.isnan(wide)] = _NAN
    return upper


def widened(values: NDArray[Any]) -> NDArray[np.float32]:
    """Return bfloat16 values (an array of `BFLOAT16`) as float32, without loss."""
    return (np.ascontiguousarray(values).view("<u2").astype(np.uint32) << np.uint32(16)).view(np.float32)


def is_bfloat16(value: Any) -> bool:
    """Whether a field of a batch on the host is an array of bfloat16."""
    return isinstance(value, np.ndarray) and value.dtype.kind == "V" and value.dtype == BFLOAT16


def as_array(value: Any) -> NDArray[Any]:
    """Return an array or a tensor of the host as a NumPy array; of bfloat16, as `BFLOAT16`."""
    if str(getattr(value, "dtype", "")) == "torch.bfloat16":
        bits: NDArray[Any] = value.view(import_module("torch").int16).numpy()
        return bits.view(BFLOAT16)
    return np.asarray(value)


def unknown_zone(kind: pa.DataType) -> str | None:
    """Return the time zone of a timestamp, however deep it lies, that this machine does not know; None if there is none."""
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        try:
            pa.scalar(0, kind).as_py()
            pc.hour(pa.scalar(0, kind))
        except (pa.ArrowInvalid, KeyError, ValueError):  # pytz raises KeyError, zoneinfo its subclass
            return str(kind.tz)
        return None
    inside = (kind.field(at).type for at in range(kind.num_fields))
    return next((zone for each in inside if (zone := unknown_zone(each)) is not None), None)
