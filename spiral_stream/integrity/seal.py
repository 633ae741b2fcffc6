"""Seal files: a digest in the file shows whether it is as it was written.

A sealed file ends with 32 bytes: the size of its content, the content's 128-bit XXH3 digest, and a mark. JSON, which
people read, begins with ``{"seal": "<digest of what follows>", `` instead. The digest tells damage, not forgery.
A file without a seal, from before there were any, opens as well, unverified, unless its name (``.sealed.``) or whoever
opens it says that it was written with one, so that a seal cannot be lost without a word. Verifying reads the file once,
at about 8 GB/s from memory, through a small buffer, so that what is resident does not grow.
"""

import json
import os
import struct
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from spiral_stream.errors import DamageError, SpiralError
from spiral_stream.integrity import _mapped
from spiral_stream.integrity.faults import failed

MENDED: Final = "The next stream that opens it sets it aside and builds it again"
MARK: Final = b"\x93SEAL\r\n\x01"
_TRAILER: Final = struct.Struct("<Q16s8s")
_SEALED: Final = ".sealed"  # before the suffix
HEAD: Final = b'{"seal": "'
_DIGITS: Final = 32
_READ: Final = 1 << 20  # bytes at a time
SMALL: Final = 1 << 16  # bytes: of a mapping, the kernel maps as many at the first touch
SMALL_TABLE: Final = 1 << 20  # bytes: Arrow follows offsets in mapped memory wherever they point, so few tables are


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Name what goes wrong while a derived file is read: `DamageError` if its bytes are at fault.

    Raises:
        DamageError: the bytes are not what was written.
        CacheError: the operating system refuses; says which way out there is.
    """
    try:
        yield
    except FileNotFoundError as error:
        raise damaged(path, "it is missing") from error
    except OSError as error:
        raise failed(error, "See that it is a file on a disk that works", path, "cannot be read") from error
    except SpiralError:
        raise
    except Exception as error:  # parsers of foreign bytes raise what they like
        raise damaged(path, f"it cannot be parsed ({type(error).__name__}: {str(error)[:150]})") from error


def damaged(path: Path, found: str) -> DamageError:
    """Return the error for a derived file that is not what was written."""
    return DamageError(f"{path} is damaged: {found}; it would have to be as it was written. {MENDED}")


def seal(path: Path, suffix: str) -> None:
    """Seal a file that is complete and that nobody else reads yet.

    Args:
        path: where it lies now.
        suffix: of the name that it will have.
    """
    if suffix == ".json":
        path.write_bytes(sealed_json(json.loads(path.read_bytes())))
        return
    size, digest = path.stat().st_size, digest_of(path)
    with path.open("ab") as file:
        file.write(_TRAILER.pack(size, digest, MARK))


def sealed_json(value: Mapping[str, Any]) -> bytes:
    """Return a JSON object as the bytes of a sealed file."""
    body = json.dumps(value).encode()[1:]
    return _head(xxhash.xxh3_128_hexdigest(body)) + body if value else b"{}"


def _head(digest: str) -> bytes:
    return HEAD + digest.encode() + b'", '


def parse_json(path: Path, data: bytes, keys: AbstractSet[str] | None = None) -> dict[str, Any]:
    """Return the object in the bytes of a JSON file.

    Args:
        path: of the file, for errors.
        data: what is in it.
        keys: that the object of a file without a seal has, all of them and no others; None takes any.

    Raises:
        DamageError: it is not what was written.
    """
    with reading(path):
        head = len(HEAD) + _DIGITS + 3
        if data.startswith(HEAD):
            found = xxhash.xxh3_128_hexdigest(data[head:])
            if data[:head] != _head(found):
                written = data[len(HEAD) :][:_DIGITS].decode("ascii", "replace")
                raise damaged(path, f"its digest is {found}, and it was sealed with {written}")
            return dict(json.loads(b"{" + data[head:]))
        value = json.loads(data)
        if not isinstance(value, dict) or _nearly(data, HEAD) or (keys is not None and value.keys() != keys):
            raise damaged(path, "it has neither a seal nor the keys of a file from before there were seals")
        return value


def read_json(path: Path, keys: AbstractSet[str] | None = None) -> dict[str, Any]:
    """Return a sealed JSON file, or one from before there were seals; see `parse_json`."""
    with reading(path):
        data = path.read_bytes()
    return parse_json(path, data, keys)


def json_has_seal(path: Path) -> bool:
    """Verify a JSON file; returns whether it has a seal.

    Raises:
        DamageError: it is not what was written, or no JSON.
        CacheError: the operating system refuses.
    """
    with reading(path):
        data = path.read_bytes()
        sealed = data.startswith(HEAD)
        if sealed or _nearly(data, HEAD):
            parse_json(path, data)
        else:
            json.loads(data)
        return sealed


def _nearly(data: bytes | memoryview, mark: bytes) -> bool:
    """Whether bytes are a mark but for one or two, so that a mark cannot be lost without a word."""
    return sum(a == b for a, b in zip(data, mark, strict=False)) >= len(mark) - 2


def named(folder: Path, stem: str, suffix: str) -> Path:
    """Return the path of a file: an unsealed one of an earlier version if it exists, else the sealed one."""
    old = folder / f"{stem}{suffix}"
    return old if old.exists() else folder / f"{stem}{_SEALED}{suffix}"


def content(path: Path, small: int = SMALL, *, sealed: bool = False) -> tuple[memoryview, bool]:
    """Return the verified content of a sealed file, and whether it had a seal; mapped, unless it is small.

    Args:
        path: of the file.
        small: files of at most this many bytes are read into memory.
        sealed: whether it was written with a seal, whatever its name says.

    Raises:
        DamageError: it is missing, or not what was written.
        CacheError: the operating system refuses.
    """
    with reading(path):
        in_memory = path.stat().st_size <= small
        sealed_bytes = memoryview(path.read_bytes() if in_memory else _mapped.Mapped(str(path)))
        mark = bytes(sealed_bytes[-len(MARK) :])
        if len(sealed_bytes) < _TRAILER.size or mark != MARK:
            if sealed or path.stem.endswith(_SEALED) or _nearly(mark, MARK):
                raise damaged(path, f"it ends with {mark.hex()}, and not with a seal")
            return sealed_bytes, False
        size, written, _ = _TRAILER.unpack(sealed_bytes[-_TRAILER.size :])
        if size != len(sealed_bytes) - _TRAILER.size:
            raise damaged(path, f"it has {len(sealed_bytes) - _TRAILER.size:,} bytes, and was sealed with {size:,}")
        found = xxhash.xxh3_128_digest(sealed_bytes[:size]) if in_memory else digest_of(path, size)
        if found != written:
            raise damaged(path, f"its digest is {found.hex()}, and it was sealed with {written.hex()}")
        return sealed_bytes[:size], True


def array(path: Path, *, sealed: bool = False) -> NDArray[Any]:
    """Return the array of a ``.npy`` file, mapped; see `content`."""
    data, _ = content(path, sealed=sealed)
    with reading(path):
        head = BytesIO(bytes(data[: 1 << 12]))
        version = np.lib.format.read_magic(head)
        if version != (1, 0):
            raise damaged(path, f"it is of version {version} of its format")
        shape, fortran, kind = np.lib.format.read_array_header_1_0(head)
        if kind.hasobject or fortran or len(shape) != 1 or len(data) - head.tell() != shape[0] * kind.itemsize:
            raise damaged(path, f"it has {len(data) - head.tell():,} bytes of values, {shape} of {kind}")
        return np.frombuffer(data, kind, shape[0], head.tell())


def table(path: Path, *, sealed: bool = False) -> pa.Table:
    """Return the table of an Arrow file, mapped; see `content`."""
    data, verified = content(path, SMALL_TABLE, sealed=sealed)
    with reading(path):
        found = pa.ipc.open_file(pa.BufferReader(pa.py_buffer(data))).read_all()
        if not verified:
            found.validate(full=True)  # offsets of damaged texts would end the process
        return found


def digest_of(path: Path, size: int | None = None) -> bytes:
    """Return the digest of a file's first bytes, all of them by default: 16 bytes.

    Raises:
        OSError: it cannot be read.
    """
    running, buffer = xxhash.xxh3_128(), bytearray(_READ)
    left = path.stat().st_size if size is None else size
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        while left > 0 and (count := os.readv(handle, [memoryview(buffer)[: min(_READ, left)]])):
            running.update(memoryview(buffer)[:count])
            left -= count
    finally:
        os.close(handle)
    return running.digest()
