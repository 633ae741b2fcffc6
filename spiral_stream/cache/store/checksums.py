"""The checksums of one part of a cache, by which a reader tells damage from data.

    sums/<stem>      little-endian uint64 words, sealed: form, size and digest (2 words) of the data file, digest of the
                     shard's content key (2 words), size of the payload, and the sum of each of its 64 KiB blocks
    damaged/<stem>   an empty file: a reader found the part damaged; the next build looks at it, and makes it again

The data file has 12 to 20 bytes per row and is verified when the part is opened, before Lance parses it. Payload is verified
block by block where it is touched.
"""

import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

import numpy as np
import xxhash
from numpy.typing import NDArray

from spiral_stream.errors import DamageError
from spiral_stream.integrity import seal
from spiral_stream.integrity.blocks import SHIFT, Mapped, sums_of, verify_block
from spiral_stream.integrity.one_look import size_of
from spiral_stream.integrity.publish import publish_file

_FORM: Final = 1
HEAD: Final = 7  # words before the sums of the blocks
BLOB: Final = f"{1:032b}"[::-1] + ".blob"  # Lance names packed files by the reversed bits of a 32-bit id from 1 up


@final
@dataclass(frozen=True, slots=True)
class PartFiles:
    """The files of one part in a cache's folder."""

    folder: Path  # of the cache
    key: str  # content key of the source shard
    file: str  # the data file's name
    sums: str = ""  # digest of its sums, once they are written

    @property
    def stem(self) -> str:
        """The beginning of the names of its files."""
        return Path(self.file).stem

    @property
    def data(self) -> Path:
        """The columns next to the payload: one row per payload."""
        return self.folder / "data.lance" / "data" / self.file

    @property
    def blob(self) -> Path:
        """The payload, end to end; a part without any has none."""
        return self.data.with_suffix("") / BLOB

    @property
    def mark(self) -> Path:
        """Made by a reader that found damage."""
        return self.folder / "damaged" / self.stem

    @property
    def sums_file(self) -> Path:
        """Its sums."""
        return self.folder / "sums" / self.stem

    def write_sums(self) -> str:
        """Sum up files that are complete; returns the digest of the sums.

        Raises:
            OSError: they cannot be read, or the sums not be written.
        """
        mapped = Mapped(str(self.blob)) if self.blob.exists() else None
        size = 0 if mapped is None else mapped.size
        blocks = np.empty(0, dtype=np.uint64) if mapped is None else sums_of(mapped)
        data = np.frombuffer(seal.digest_of(self.data), dtype="<u8")
        head = np.array([_FORM, self.data.stat().st_size, size], dtype="<u8")
        words = np.concatenate([head[:2], data, _key_words(self.key), head[2:], blocks]).astype("<u8")
        with publish_file(self.sums_file) as draft:
            draft.write_bytes(words.tobytes())
        return xxhash.xxh3_128_hexdigest(words.tobytes())

    def damage(self, path: Path | str, found: str) -> DamageError:
        """Return the error for a file of this part; marks the part, so that the next build makes it again."""
        with suppress(OSError):
            self.mark.parent.mkdir(exist_ok=True)
            self.mark.touch()
        whose = ""
        with suppress(Exception):  # for people only
            facts = seal.read_json(self.folder / "cache.json")
            whose = f" of {facts['relation']}.{facts['column']}"
        msg = (
            f"cache{whose}: {path} is damaged: {found}; it holds rows of the shard with content key {self.key[:16]}. "
            "Build that shard again with stream.materialize()"
        )
        return DamageError(msg)

    def verify_data(self) -> NDArray[np.uint64]:
        """Verify the columns next to the payload; returns the sums of the payload's blocks.

        Raises:
            DamageError: the sums, the data file or the size of the payload is not what was written.
            CacheError: the operating system refuses.
        """
        words = self._words(self.sums)
        with seal.reading(self.data):
            found = wrong_data(self.data, words)
            if found is not None:
                raise self.damage(self.data, found)
        if not np.array_equal(words[4:6], _key_words(self.key)):
            raise self.damage(self.data, "it was written for another shard")
        held = size_of(self.blob)
        if held != int(words[6]):
            raise self.damage(self.blob, f"it has {held:,} bytes, {int(words[6]):,} were written")
        return words[HEAD:]

    def verify(self, report: Callable[[int], None] = lambda _: None) -> None:
        """Verify all bytes of the part.

        Args:
            report: called with bytes that were read.

        Raises:
            DamageError: a file is not what was written.
            CacheError: the operating system refuses.
        """
        sums = self.verify_data()
        report(size_of(self.data))
        if not len(sums):
            return
        mapped = Mapped(str(self.blob))
        mapped.expect(sums, SHIFT)
        for block in range(len(sums)):
            found = verify_block(mapped, block)
            if found is not None:
                raise self.damage(self.blob, found)
            start, stop, _ = mapped.block(block)
            report(stop - start)

    def remove(self) -> None:
        """Remove all files of the part."""
        for path in (self.data, self.sums_file, self.mark):
            path.unlink(missing_ok=True)
        shutil.rmtree(self.blob.parent, ignore_errors=True)

    def _words(self, digest: str) -> NDArray[np.uint64]:
        words = words_in(self.sums_file, digest)
        if words is None:
            raise self.damage(self.sums_file, "it is missing, or not what was written")
        return words


def words_in(path: Path, digest: str) -> NDArray[np.uint64] | None:
    """Return the words of a part's sums; None if they are missing, or not those with this digest."""
    data: Any = b""
    with suppress(DamageError):
        data = seal.content(path)
    words = np.frombuffer(data, "<u8") if len(data) % 8 == 0 else np.empty(0, dtype="<u8")
    return words if xxhash.xxh3_128_hexdigest(data) == digest and len(words) >= HEAD and words[0] == _FORM else None


def wrong_data(draft: Path, words: NDArray[np.uint64]) -> str | None:
    """Say what is wrong with the data file of a part, by its sums, if anything is."""
    size = draft.stat().st_size
    if size == int(words[1]) and seal.digest_of(draft) == words[2:4].tobytes():
        return None
    return f"it has {size:,} of {int(words[1]):,} bytes, or others than were written"


def _key_words(key: str) -> NDArray[np.uint64]:
    return np.frombuffer(xxhash.xxh3_128_digest(key.encode()), dtype="<u8")
