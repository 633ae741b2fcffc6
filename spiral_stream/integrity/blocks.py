"""Checksums of mapped files, one per 64 KiB block, verified when a block is first read.

A block is hashed at its first touch in a process (3 us of a block in memory, about what mapping its pages costs), by
whoever reads rows of it; from then on a row costs one look at a byte. 64 KiB is what the kernel maps at one fault.
"""

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, final

import numpy as np
import xxhash
from numpy.typing import NDArray

from spiral_stream.errors import DamageError
from spiral_stream.integrity import _mapped

Mapped = _mapped.Mapped  # a file mapped for reading, which knows its sums
moment = _mapped.now  # when something begins, for `sound`
SHIFT: Final = 16
BLOCK: Final = 1 << SHIFT  # bytes


def sums_of(mapped: Mapped) -> NDArray[np.uint64]:
    """Return the sum of each block of a file: 64-bit XXH3."""
    data = memoryview(mapped)
    return np.array(
        [xxhash.xxh3_64_intdigest(data[at : at + BLOCK]) for at in range(0, len(data), BLOCK)], dtype=np.uint64
    )


def verify_rows(
    addresses: NDArray[np.uint64], sizes: NDArray[np.int64], damage: Callable[[Path, str], DamageError]
) -> None:
    """Verify the blocks of mapped files that rows touch, except those verified before.

    Args:
        addresses: shape [P]; rows that lie in no mapped file with sums are passed over.
        sizes: shape [P] or [1]: their bytes.
        damage: makes the error for a file, from its path and what was found.

    Raises:
        DamageError: a block is not what was written.
    """
    todo: Any = _mapped.unverified(np.ascontiguousarray(addresses), np.ascontiguousarray(sizes))
    for mapped, block in todo:
        found = verify_block(mapped, block)
        if found is not None:
            raise damage(Path(mapped.path), found)


def verify_block(mapped: Mapped, block: int) -> str | None:
    """Verify one block; what is wrong with it, or None."""
    start, stop, written = mapped.block(block)
    found = xxhash.xxh3_64_intdigest(memoryview(mapped)[start:stop])
    if found != written:
        return f"bytes {start:,} to {stop:,} sum to {found:016x}, and were written with {written:016x}"
    mapped.mark(block)
    return None


@final
class sound:  # noqa: N801  read as a word: ``with sound(since):``
    """Check at the end that what was read from mapped files inside were their bytes; an error there may come from zeros.

    Args:
        since: when the reading began: files that nobody looked rows up in since then are passed over.

    Raises:
        DamageError: see `need_sound`.
    """

    __slots__ = ("_since",)

    def __init__(self, since: int = 0) -> None:
        self._since = since

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if kind is None:
            need_sound(self._since)
        elif issubclass(kind, Exception):
            try:
                need_sound(self._since)
            except DamageError as damage:
                raise damage from error


def need_sound(since: int = 0) -> None:
    """Refuse to go on where a mapped file could not be read: what was made of it is made of zeros.

    Args:
        since: see `sound`.

    Raises:
        DamageError: names the file.
    """
    if not _mapped.faulted(since):
        return
    gc.collect()  # a stream that was closed may not be gone yet, and nobody reads what it mapped
    for path in _mapped.faulted(since):
        msg = (
            f"{path} could not be read: it became shorter, or its disk failed, while it was in use; it would have to stay as it "
            "was written. Close the stream and open it again, which mends selections and indexes; stream.materialize() builds "
            "its caches again"
        )
        raise DamageError(msg)
