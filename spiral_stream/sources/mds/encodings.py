"""The encodings of MDS columns by their name in the index, and the column type of each."""

from dataclasses import dataclass
from enum import Enum
from typing import Final, final

import numpy as np
import pyarrow as pa

from spiral_stream.errors import SourceError, shown
from spiral_stream.semantic import BYTES_REF, JPEG_REF


class MdsForm(Enum):
    """How the bytes of a value are read."""

    PAYLOAD = "payload"  # bytes, jpeg, png
    PIXELS = "pixels"  # pil: raw pixels after a header
    IMAGES = "images"  # several payloads
    PIXEL_LISTS = "pixel lists"
    TEXT = "text"
    NUMBER = "number"
    WRITTEN = "written"  # a number as text
    JSON = "json"
    ARRAY = "array"


@final
@dataclass(frozen=True, slots=True)
class Encoding:
    """One column of a shard."""

    name: str  # as the index has it
    form: MdsForm
    dtype: str | None = None  # NumPy's, of numbers and arrays; None where each array says its own
    shape: tuple[int, ...] | None = None  # of arrays; None where each says its own
    semantic: str | None = None
    prefix: int = 0  # bytes before the number of images of a list
    is_bare: bool = False  # an array without a head: bytes that the user calls an array

    @property
    def size(self) -> int | None:
        """Bytes of a value; None where they vary."""
        if self.dtype is None or self.form is MdsForm.WRITTEN or (self.form is MdsForm.ARRAY and self.shape is None):
            return None
        return int(np.dtype(self.dtype).itemsize * np.prod(self.shape or (), dtype=np.int64))


ARRAY_TYPES: Final = {
    8: "uint8",
    9: "int8",
    16: "uint16",
    17: "int16",
    18: "float16",
    32: "uint32",
    33: "int32",
    34: "float32",
    64: "uint64",
    65: "int64",
    66: "float64",
}
_NUMBERS: Final = frozenset(ARRAY_TYPES.values())
_PICKLE: Final = "pkl"


def encoding_of(name: str, column: str) -> Encoding:
    """Return what an encoding of the index means.

    Raises:
        SourceError: it is not known, or is one that runs code.
    """
    fixed = {
        "bytes": Encoding(name, MdsForm.PAYLOAD, semantic=BYTES_REF),
        "jpeg": Encoding(name, MdsForm.PAYLOAD, semantic=JPEG_REF),
        "png": Encoding(name, MdsForm.PAYLOAD, semantic=JPEG_REF),
        "pil": Encoding(name, MdsForm.PIXELS, semantic=JPEG_REF),
        "jpeg_array": Encoding(name, MdsForm.IMAGES, semantic=JPEG_REF),
        "jpegarray": Encoding(name, MdsForm.IMAGES, semantic=JPEG_REF),
        "list[jpeg]": Encoding(name, MdsForm.IMAGES, semantic=JPEG_REF, prefix=4),
        "list[png]": Encoding(name, MdsForm.IMAGES, semantic=JPEG_REF, prefix=4),
        "list[pil]": Encoding(name, MdsForm.PIXEL_LISTS, semantic=JPEG_REF, prefix=4),
        "str": Encoding(name, MdsForm.TEXT),
        "str_decimal": Encoding(name, MdsForm.TEXT),
        "int": Encoding(name, MdsForm.NUMBER, "int64"),
        "str_int": Encoding(name, MdsForm.WRITTEN, "int64"),
        "str_float": Encoding(name, MdsForm.WRITTEN, "float64"),
        "json": Encoding(name, MdsForm.JSON),
    }.get(name)
    if fixed is not None:
        return fixed
    if name in _NUMBERS:
        return Encoding(name, MdsForm.NUMBER, name)
    if name.partition(":")[0] == "ndarray":
        return _array_of(name, column)
    if name == _PICKLE:
        msg = (
            f"Mds: column {column!r} is pkl: unpickling runs whatever code the file holds, so it is never read here. Leave the "
            "column out with columns=[...], or write it again as json or ndarray"
        )
        raise SourceError(msg)
    msg = f"Mds: column {column!r} has encoding {shown(name)}, which is not known here. Leave it out with columns=[...]"
    raise SourceError(msg)


def bare_array(dtype: str) -> Encoding:
    """Return the encoding of bytes that are the values of an array, and nothing else."""
    return Encoding("bytes", MdsForm.ARRAY, dtype, is_bare=True)


def need_dtype(column: str, dtype: object = None, *more: object) -> str:
    """Return a NumPy type that arrays may have: one for a column.

    Raises:
        SourceError: it is none.
    """
    if isinstance(dtype, str) and dtype in _NUMBERS and not more:
        return dtype
    msg = f"Mds: arrays has {shown(dtype)} for column {column!r}. Give one of {', '.join(sorted(_NUMBERS))}"
    raise SourceError(msg)


def arrow_type(dtype: str) -> pa.DataType:
    """Return Arrow's type of numbers."""
    return pa.from_numpy_dtype(np.dtype(dtype))


def _array_of(name: str, column: str) -> Encoding:
    _, *args = name.split(":")
    dtype = args[0] if args else None
    dims = args[1].split(",") if len(args) == 2 else []  # noqa: PLR2004
    if (dtype is not None and dtype not in _NUMBERS) or len(args) > 2 or not all(_is_size(each) for each in dims):  # noqa: PLR2004
        msg = f"Mds: column {column!r} has encoding {shown(name)}; it would be ndarray, ndarray:int32 or ndarray:int32:3,224,224"
        msg += ". Correct the index, or leave the column out with columns=[...]"
        raise SourceError(msg)
    return Encoding(name, MdsForm.ARRAY, dtype, tuple(map(int, dims)) or None)


def _is_size(text: str) -> bool:
    return text.isdigit() and len(text) < 10 and int(text) > 0  # noqa: PLR2004
