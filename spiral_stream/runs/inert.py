"""Read pickles that others wrote without running anything of them.

A pickle calls what it names. Here every name but those of plain containers means `Opaque`, a class that does nothing and
keeps what it is given, so a call makes one more of them, and a checkpoint with classes that this process does not have is read
too. Tensors are not read: what names their bytes is an `Opaque` as well. The interpreter in Python (`pickle._Unpickler`) is
used, for that of C allocates whatever size a damaged pickle asks for.

Cost: about 1 us per operation; a checkpoint of 1,000 tensors has 100,000.
"""

import io
import pickle
import struct
import zipfile
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Any, Final, Self

MOST_BYTES: Final = 1 << 28  # of one pickle
_LATIN: Final = ("_codecs", "encode")  # how protocol 2 writes bytes
_BROKEN: Final = (
    *(
        pickle.UnpicklingError,
        EOFError,
        ValueError,
        TypeError,
        AttributeError,
        LookupError,
        ArithmeticError,
        MemoryError,
    ),
    *(RecursionError, AssertionError, struct.error, zipfile.BadZipFile, NotImplementedError, OSError, UnicodeError),
)


class NotReadError(Exception):
    """A file is no pickle, or is damaged."""


class Opaque:
    """A value of a class that is not made; what it was given is kept."""

    def __new__(cls, *_args: Any, **_named: Any) -> Self:
        return object.__new__(cls)

    def __init__(self, *given: Any, **_named: Any) -> None:
        self.given: list[Any] = list(given)

    def __call__(self, *given: Any, **named: Any) -> "Opaque":
        return Opaque(*given, **named)

    def __setstate__(self, state: Any) -> None:
        self._given().append(state)

    def __setitem__(self, key: Any, value: Any) -> None:
        self._given().append({key: value})

    def append(self, value: Any) -> None:
        self._given().append(value)

    def extend(self, values: Any) -> None:
        self._given().extend(values)

    add, update = append, extend

    def _given(self) -> list[Any]:
        if "given" not in self.__dict__:  # made without a call of `__init__`
            self.given = []
        return self.given


def _bytes(text: str, encoding: str = "latin1") -> bytes:
    return text.encode("latin1") if encoding == "latin1" else b""


_PLAIN: Final[Mapping[tuple[str, str], Any]] = {
    ("collections", "OrderedDict"): OrderedDict,
    _LATIN: _bytes,
    **{
        (module, name): kind
        for module in ("builtins", "__builtin__")
        for name, kind in (("set", set), ("frozenset", frozenset))
    },
}


class _Reader(pickle._Unpickler):  # noqa: SLF001  see the docstring of this room
    def find_class(self, module: str, name: str) -> Any:
        return _PLAIN.get((module, name), Opaque)

    def persistent_load(self, pid: Any) -> Any:
        del pid
        return Opaque()

    def get_extension(self, code: int) -> None:
        del code
        self.append(Opaque)  # type: ignore[attr-defined]  # of the interpreter's


def unpickled(data: bytes) -> Any:
    """Return what a pickle holds, with `Opaque` in place of everything but numbers, texts and plain containers.

    Raises:
        NotReadError: it is no pickle, or is damaged.
    """
    try:
        return _Reader(io.BytesIO(data)).load()
    except _BROKEN as error:
        raise NotReadError(str(error)) from error


def torch_saved(data: io.BufferedIOBase | io.BytesIO | Any) -> Any:
    """Return what ``torch.save`` wrote into a file, without its tensors.

    Raises:
        NotReadError: it is no such file, or is damaged.
    """
    try:
        with zipfile.ZipFile(data) as archive:
            names = [each for each in archive.infolist() if each.filename.rpartition("/")[2] == "data.pkl"]
            if len(names) != 1 or names[0].file_size > MOST_BYTES:
                msg = "it holds no data.pkl of a size that can be"
                raise NotReadError(msg)
            with archive.open(names[0]) as member:
                found = member.read(MOST_BYTES + 1)
    except _BROKEN as error:
        raise NotReadError(str(error)) from error
    if len(found) > MOST_BYTES:
        msg = "its data.pkl is larger than it says"
        raise NotReadError(msg)
    return unpickled(found)


def walked(value: Any, most: int = 10_000_000) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield everything in nested containers with the names on the way to it, each object once, outermost first.

    Args:
        value: what was read.
        most: objects that are looked at.
    """
    todo: list[tuple[tuple[str, ...], Any]] = [((), value)]
    known: set[int] = set()
    while todo and most:
        most -= 1
        names, each = todo.pop()
        if isinstance(each, Mapping | list | tuple | set | frozenset | Opaque):
            if id(each) in known:
                continue
            known.add(id(each))
        yield names, each
        todo += reversed([((*names, name) if name else names, inner) for name, inner in _inside(each)])


def _inside(value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, Mapping):
        return [(str(key)[:100], inner) for key, inner in value.items()]
    if isinstance(value, list | tuple):
        return [(str(at), inner) for at, inner in enumerate(value)]
    if isinstance(value, set | frozenset):
        return [("", inner) for inner in value]
    return [("", inner) for inner in value.__dict__.get("given", ())] if isinstance(value, Opaque) else []
