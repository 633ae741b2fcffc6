"""What a reference states about its bytes beyond where they lie: the file's size and time, and a digest.

Further fields of struct<uri, offset, length>. Each is optional, and a null says nothing:

* ``size``: bytes of the whole file, a whole number
* ``mtime``: when the file was changed, in nanoseconds as a whole number, or a timestamp, compared in its unit
* ``etag``: of the object, as text, where the file is an object of a store
* ``digest``: of the bytes that are named, as text: ``sha256:<hex>``, or any other name of `hashlib` or `xxhash`
"""

import hashlib
from dataclasses import dataclass
from typing import Any, Final, final

import pyarrow as pa
import xxhash

from spiral_stream.errors import cut, shown
from spiral_stream.semantic import is_text
from spiral_stream.sources.references.policy import ReferenceDataError, ReferenceSourceError
from spiral_stream.storage.store import ObjectStat

SIZE: Final = "size"
MTIME: Final = "mtime"
DIGEST: Final = "digest"
ETAG: Final = "etag"
_NS: Final = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
_XXHASHES: Final = frozenset(("xxh32", "xxh64", "xxh128", "xxh3_64", "xxh3_128"))
_WAY_OUT: Final = "Restore the file, or write the relation again"


@final
@dataclass(frozen=True, slots=True, eq=False)
class Stamps:
    """What P references say; each field is a list of P values, or None where the references have no such field."""

    sizes: list[int | None] | None
    mtimes: list[int | None] | None  # in units of ``unit_ns``
    unit_ns: int
    digests: list[str | None] | None
    etags: list[str | None] | None = None

    def need_file(self, row: int, path: str, facts: ObjectStat) -> None:
        """Compare a file that was opened with what a reference says of it.

        Raises:
            ReferenceSourceError: it differs.
        """
        size = None if self.sizes is None else self.sizes[row]
        if size is not None and size != facts.size:
            msg = f"{cut(path)} has {facts.size:,} bytes, and its reference says {size:,}. {_WAY_OUT}"
            raise ReferenceSourceError(row, msg)
        mtime = None if self.mtimes is None else self.mtimes[row]
        found = facts.modified_ns // self.unit_ns
        if mtime is not None and mtime != found:
            msg = f"{cut(path)} was changed: its time is {found}, and its reference says {mtime}. {_WAY_OUT}"
            raise ReferenceSourceError(row, msg)
        etag = None if self.etags is None or facts.inode is not None else self.etags[row]  # a file has none
        if etag is not None and etag.strip('"') != (facts.etag or "").strip('"'):
            msg = f"{cut(path)} was changed: its etag is {facts.etag}, and its reference says {shown(etag)}. {_WAY_OUT}"
            raise ReferenceSourceError(row, msg)

    def pinned(self, row: int, pin: ObjectStat | None) -> ObjectStat | None:
        """Return what an object is to be like; None where a look at it has to say.

        Args:
            row: of the reference.
            pin: what was registered.
        """
        if self.mtimes is not None and self.mtimes[row] is not None:
            return None
        etag = None if self.etags is None else self.etags[row]
        size = None if self.sizes is None else self.sizes[row]
        size = pin.size if size is None and pin is not None else size
        if etag is None or size is None:
            return pin if etag is None else None
        return ObjectStat(size, etag if etag.endswith('"') else f'"{etag}"')

    def has_bytes(self, row: int, data: memoryview) -> bool:
        """Whether bytes are those that a reference has the digest of; true where it has none.

        Raises:
            ReferenceDataError: it is no digest that is known.
        """
        said = None if self.digests is None else self.digests[row]
        if said is None:
            return True
        name, _, digits = said.partition(":")
        return _hashed(row, name, said, data) == digits.lower()

    def need_bytes(self, row: int, path: str, data: memoryview) -> None:
        """Compare bytes with the digest that a reference has.

        Raises:
            ReferenceSourceError: it differs.
            ReferenceDataError: it is no digest that is known.
        """
        said = None if self.digests is None else self.digests[row]
        if said is None:
            return
        name, _, digits = said.partition(":")
        found = _hashed(row, name, said, data)
        if found != digits.lower():
            msg = f"{cut(path)}: the {name} of the bytes is {found}, and the reference says {shown(digits)}. {_WAY_OUT}"
            raise ReferenceSourceError(row, msg)


def stamps_of(array: pa.StructArray) -> Stamps | None:
    """Return what references say beyond where bytes lie; None if they say nothing.

    Raises:
        ReferenceSourceError: a field is of a type that says nothing.
    """
    kinds = {field.name: field.type for field in array.type}
    if not kinds.keys() & {SIZE, MTIME, DIGEST, ETAG}:
        return None
    mtime = kinds.get(MTIME)
    unit = _NS[mtime.unit] if mtime is not None and pa.types.is_timestamp(mtime) else 1
    return Stamps(
        _values(array, SIZE, "int64"),
        _values(array, MTIME, "int64 (ns) or a timestamp"),
        unit,
        _values(array, DIGEST, "utf8"),
        _values(array, ETAG, "utf8"),
    )


def _values(array: pa.StructArray, name: str, right: str) -> list[Any] | None:
    index = array.type.get_field_index(name)
    if index < 0:
        return None
    kind = array.type.field(index).type
    is_time = name == MTIME and pa.types.is_timestamp(kind)
    if not (is_time or (is_text(kind) if name in (DIGEST, ETAG) else pa.types.is_integer(kind))):
        msg = f"the reference's {name} is {cut(str(kind))}; it would be {right}. Store it so, and register the column again"
        raise ReferenceSourceError(0, msg)
    values = array.field(index)
    found: list[Any] = (values.cast(pa.int64()) if is_time else values).to_pylist()
    return found


def _hashed(row: int, name: str, said: str, data: memoryview) -> str:
    if name in _XXHASHES:
        found: str = getattr(xxhash, name)(data).hexdigest()
        return found
    if name in hashlib.algorithms_available and not name.startswith("shake_"):
        return hashlib.new(name, data, usedforsecurity=False).hexdigest()
    msg = f"the reference's digest {shown(said)} names no known algorithm. Give sha256:<hex>, or xxh3_128:<hex>"
    raise ReferenceDataError(row, msg)
