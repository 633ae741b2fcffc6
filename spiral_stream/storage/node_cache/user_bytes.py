"""A user's own bytes in the node cache: read by the user's function once, then from the local disk.

They come through `NodeStore`, as those of streams do. So processes share them, the limit holds, and what was altered on the
disk is read again.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, final

from spiral_stream.errors import CacheError, SourceError, SpiralError, anew
from spiral_stream.storage.counters import count
from spiral_stream.storage.local import too_short
from spiral_stream.storage.node_cache.file import printable
from spiral_stream.storage.node_cache.store import NodeStore
from spiral_stream.storage.store import Buffer, Get, Got, ObjectStat, Store

Download = Callable[[int, int], Buffer | Iterable[Buffer]]
TOGETHER: Final = 8  # calls of the function


def read_kept(
    uri: str, version: str, size: int, download: Download, ranges: Sequence[tuple[int, int]] | None = None
) -> list[memoryview]:
    """Return bytes of a file, from the node cache where they are here.

    Args:
        uri: which file, without secrets.
        version: its etag or version; another one is another file.
        size: its bytes.
        download: called as ``download(offset, length)`` for bytes that are not here, also by other threads; returns exactly
            these, or an iterator of them.
        ranges: offsets and lengths; by default one, the whole file.

    Raises:
        CacheError: there is no version to know the file by.
        DamageError: what is written here does not stay.
        SourceError: the function failed, or gave other than it was asked for; or a range is none of the file.

    Examples:
        >>> def download(offset, length):
        ...     return bytes(length)
        >>> [found] = spiral.sources.read_kept("hdfs://lab/zeros.bin", "version 1", 1_000, download, ranges=[(50, 100)])
        >>> len(found)
        100
    """
    if not version:
        msg = f"{printable(uri)}: without a version nobody could tell when it changes. Give its etag, or a time"
        raise CacheError(msg)
    for start, length in ranges or ():
        if min(start, length) < 0 or start + length > size:
            raise too_short(printable(uri), size, start, length)
    root, _, name = uri.rpartition("/")
    facts = ObjectStat(size, etag=version)
    store = NodeStore(_OneFile(uri, facts, download), root)
    gets = [Get(name, at, length, pinned=facts) for at, length in ([(0, size)] if ranges is None else ranges)]
    out = []
    for got in store.read(gets):
        if isinstance(got, SourceError):
            raise anew(got)
        out.append(got.data or memoryview(b""))
    return out


@final
class _OneFile(Store):
    """A store that has one file, which a function reads."""

    def __init__(self, uri: str, facts: ObjectStat, download: Download) -> None:
        self._uri, self._facts, self._download = uri, facts, download

    def stat(self, key: str) -> ObjectStat:
        del key
        return self._facts

    def read(self, wanted: Sequence[Get]) -> list[Got | SourceError]:
        if len(wanted) == 1:
            found = [self._read(wanted[0])]
        else:
            with ThreadPoolExecutor(TOGETHER, "spiral-own-bytes") as pool:
                found = list(pool.map(self._read, wanted))
        came = sum(len(each.data) for each in found if isinstance(each, Got) and each.data is not None)
        count(requests=len(wanted), bytes=came)
        return found

    def _read(self, get: Get) -> Got | SourceError:
        length = self._facts.size - get.start if get.length is None else get.length
        try:
            return Got(memoryview(self._fetched(get.start, length) if length else b""), self._facts)
        except SourceError as error:
            return anew(error)

    def _fetched(self, offset: int, length: int) -> bytes:
        """Call the function.

        Raises:
            SourceError: it failed, or other than was asked for came.
        """
        try:
            got = self._download(offset, length)
            data = bytes(got) if isinstance(got, bytes | bytearray | memoryview) else b"".join(got)
        except SpiralError:
            raise
        except Exception as error:
            said = f"{type(error).__name__}: {printable(str(error))}"
            raise SourceError(self._unfetched(offset, length, said)) from error
        if len(data) != length:
            raise SourceError(self._unfetched(offset, length, f"{len(data):,} came of {length:,}"))
        return data

    def _unfetched(self, offset: int, length: int, said: str) -> str:
        return (
            f"{printable(self._uri)}: bytes {offset:,} to {offset + length:,} cannot be fetched ({said}). "
            "The function that reads it has to give exactly what it is asked for"
        )

    def list(self, prefix: str, ending: str = "") -> Iterator[tuple[str, ObjectStat]]:
        del prefix, ending
        yield self._uri.rpartition("/")[2], self._facts

    def put(
        self, key: str, data: Buffer, *, absent: bool = False, unchanged: ObjectStat | None = None
    ) -> ObjectStat | None:
        del key, data, absent, unchanged
        raise SourceError(self._read_only())

    def delete(self, key: str) -> None:
        del key
        raise SourceError(self._read_only())

    def _read_only(self) -> str:
        return f"{printable(self._uri)}: a function reads it, and nothing writes it. Write it where it lies"
