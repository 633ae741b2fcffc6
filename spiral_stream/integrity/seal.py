"""Seal files: a digest in the file shows whether it is as it was written.

A sealed file ends with 32 bytes: the size of its content, the content's 128-bit XXH3 digest, and a mark. JSON, which
people read, begins with ``{"seal": "<digest of what follows>", `` instead. The digest tells damage, not forgery.
A file without a seal is damaged. Verifying reads the file once, at about 8 GB/s from memory, through a small buffer, so
that what is resident does not grow.
"""

import json
import os
import struct
from collections.abc import Iterator, Mapping
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
    return _head(xxhash.xxh3_128_hexdigest(body)) + body


def _head(digest: str) -> bytes:
    return HEAD + digest.encode() + b'", '


def parse_json(path: Path, data: bytes) -> dict[str, Any]:
    """Return the object in the bytes of a sealed JSON file.

    Args:
        path: of the file, for errors.
        data: what is in it.

    Raises:
        DamageError: it is not what was written.
    """
    with reading(path):
        head = len(HEAD) + _DIGITS + 3
        found = xxhash.xxh3_128_hexdigest(data[head:])
        if data[:head] != _head(found):
            written = data[len(HEAD) :][:_DIGITS].decode("ascii", "replace")
            said = f"it was sealed with {written}" if data.startswith(HEAD) else "it does not begin with its seal"
            raise damaged(path, f"its digest is {found}, and {said}")
        return dict(json.loads(b"{" + data[head:]))


def read_json(path: Path) -> dict[str, Any]:
    """Return a sealed JSON file; see `parse_json`."""
    with reading(path):
        data = path.read_bytes()
    return parse_json(path, data)


def content(path: Path, small: int = SMALL) -> memoryview:
    """Return the verified content of a sealed file; mapped, unless it is small.

    Args:
        path: of the file.
        small: files of at most this many bytes are read into memory.

    Raises:
        DamageError: it is missing, or not what was written.
        CacheError: the operating system refuses.
    """
    with reading(path):
        return _verified(path, small)


def _verified(path: Path, small: int) -> memoryview:
    in_memory = path.stat().st_size <= small
    sealed_bytes = memoryview(path.read_bytes() if in_memory else _mapped.Mapped(str(path)))
    mark = bytes(sealed_bytes[-len(MARK) :])
    if len(sealed_bytes) < _TRAILER.size or mark != MARK:
        raise damaged(path, f"it ends with {mark.hex()}, and not with a seal")
    size, written, _ = _TRAILER.unpack(sealed_bytes[-_TRAILER.size :])
    if size != len(sealed_bytes) - _TRAILER.size:
        raise damaged(path, f"it has {len(sealed_bytes) - _TRAILER.size:,} bytes, and was sealed with {size:,}")
    found = xxhash.xxh3_128_digest(sealed_bytes[:size]) if in_memory else digest_of(path, size)
    if found != written:
        raise damaged(path, f"its digest is {found.hex()}, and it was sealed with {written.hex()}")
    return sealed_bytes[:size]


def verify(path: Path) -> None:
    """Verify a sealed file.

    Raises:
        DamageError: it is missing, or not what was written.
        CacheError: the operating system refuses.
    """
    if path.suffix == ".json":
        read_json(path)
    else:
        content(path)


def array(path: Path) -> NDArray[Any]:
    """Return the array of a ``.npy`` file, mapped; see `content`."""
    with reading(path):
        data = _verified(path, SMALL)
        head = BytesIO(bytes(data[: 1 << 12]))
        version = np.lib.format.read_magic(head)
        if version != (1, 0):
            raise damaged(path, f"it is of version {version} of its format")
        shape, fortran, kind = np.lib.format.read_array_header_1_0(head)
        if kind.hasobject or fortran or len(shape) != 1 or len(data) - head.tell() != shape[0] * kind.itemsize:
            raise damaged(path, f"it has {len(data) - head.tell():,} bytes of values, {shape} of {kind}")
        return np.frombuffer(data, kind, shape[0], head.tell())


def table(path: Path) -> pa.Table:
    """Return the table of an Arrow file, mapped; see `content`."""
    with reading(path):
        data = _verified(path, SMALL_TABLE)
        return pa.ipc.open_file(pa.BufferReader(pa.py_buffer(data))).read_all()


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
