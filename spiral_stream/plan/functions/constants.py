"""Constants as JSON values: values without code, told apart by type and content.

Types are exact, so 1, 1.0, True and "1" differ. Dicts keep their order, because
code that iterates them sees it; sets are sorted by what their items become.
"""

import enum
import hashlib
import json
import logging
import pathlib
import re
import types
from collections.abc import Callable, Iterable
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Encode = Callable[[Any], Any]


def encode_constant(value: Any, inner: Encode) -> Any | None:
    """Return a constant as JSON values; None for what is no constant.

    Args:
        value: anything.
        inner: encodes the items of containers, and the classes of enums.
    """
    exact = _EXACT.get(type(value))
    if exact is not None:
        return [type(value).__name__, exact(value, inner)]
    for kind, encode in _KINDS:
        if isinstance(value, kind):
            return [kind.__name__, encode(value, inner)]
    return None


def _repr(value: Any, _: Encode) -> Any:
    return repr(value)


def _all(values: Iterable[Any], inner: Encode) -> Any:
    return [inner(value) for value in values]


def _sorted(values: Iterable[Any], inner: Encode) -> Any:
    return sorted(_all(values, inner), key=json.dumps)


def _items(values: Any, inner: Encode) -> Any:
    return [_all(values.keys(), inner), _all(values.values(), inner)]


def _dtype(dtype: np.dtype[Any], _: Encode) -> Any:
    return repr(dtype.descr if dtype.fields else dtype.str)


def _array(array: NDArray[Any], inner: Encode) -> Any:
    content = (
        _all(array.ravel().tolist(), inner) if array.dtype.hasobject else hashlib.sha256(array.tobytes()).hexdigest()
    )
    return [_dtype(array.dtype, inner), list(array.shape), content]


def _field(field: Any, inner: Encode) -> Any:
    return [field.name, str(field.type), field.nullable, inner(field.metadata)]


_EXACT: Final[dict[type, Callable[[Any, Encode], Any]]] = {
    **dict.fromkeys((type(None), bool, complex, range, type(...)), _repr),
    **dict.fromkeys((tuple, list), _all),
    **dict.fromkeys((set, frozenset), _sorted),
    **dict.fromkeys((dict, types.MappingProxyType), _items),
    str: lambda value, _: value,
    bytes: lambda value, _: value.hex(),
    int: lambda value, _: hex(value),  # decimal text has a limit of 4,300 digits
    float: lambda value, _: value.hex(),
    np.ndarray: _array,
    re.Pattern: lambda value, inner: [inner(value.pattern), value.flags],
}
_KINDS: Final[tuple[tuple[type, Callable[[Any, Encode], Any]], ...]] = (
    (enum.Enum, lambda value, inner: [inner(type(value)), value.name, inner(value.value)]),
    (np.generic, lambda value, inner: _array(np.asarray(value), inner)),
    (np.dtype, _dtype),
    (pa.DataType, lambda value, _: str(value)),
    (pa.Field, _field),
    (pa.Schema, lambda value, inner: [_all(value, inner), inner(value.metadata)]),
    (pathlib.PurePath, lambda value, _: value.as_posix()),
    (logging.Logger, lambda value, _: value.name),  # it says where messages go, not what is computed
)
