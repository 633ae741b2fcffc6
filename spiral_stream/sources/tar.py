"""Where the members of a tar lie: names, offsets and sizes from the headers alone.

Reads ustar, GNU and pax headers (POSIX.1-2001, and GNU tar's long names and large sizes). Payload is passed over, so a tar
of large files costs a few reads of 4 KiB for each member, about 5 us of CPU. A compressed tar has no offsets that could be
read later: its bytes come in one pass, and payload is read as it passes by.
"""

import bz2
import gzip
import lzma
import os
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Final, NamedTuple, Self, final

from spiral_stream.errors import SourceError, cut, shown
from spiral_stream.sources.paths import open_file

BLOCK: Final = 512
PLAIN: Final = ".tar"
COMPRESSED: Final = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst")
_WINDOW: Final = 8 * BLOCK  # bytes of one read: a header, a small member, and the header after it
_RECORD: Final = 20 * BLOCK  # writers fill the end of a tar with zeros up to a multiple of this
_LONGEST: Final = 1 << 20  # bytes of a long name, or of the pax records of one member
_SKIPPED: Final = 1 << 20  # bytes that are passed over at a time in a compressed tar
_ZEROS: Final = bytes(BLOCK)
_FILES: Final = frozenset((0x30, 0, 0x37))  # "0", NUL, "7": a regular file
_FOLDER: Final = 0x35
_SPARSE: Final = 0x53
_WITHOUT_BYTES: Final = {0x31: "a hard link", 0x32: "a symbolic link", 0x33: "a device", 0x34: "a device", 0x36: "a FIFO"}
_ADLER: Final = 65521
_STARTS: Final = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"BZh": "bzip2", b"\xfd7zXZ\0": "xz"}
_BASE_256: Final = 0x80


class Member(NamedTuple):
    """One member of a tar."""

    name: str
    header: int  # where its header lies: the first of several
    start: int  # where its bytes lie
    size: int
    fault: str | None = None  # why nobody can read its bytes; a clause that follows the name


class TarBytes(ABC):
    """The bytes of an open tar. Not thread-safe; use as a context manager."""

    path: str

    @abstractmethod
    def at(self, offset: int, count: int) -> bytes:
        """Read bytes; fewer where the tar ends.

        Args:
            offset: of the uncompressed tar; a compressed one is read forward only.
            count: most bytes to return.

        Raises:
            SourceError: the compressed bytes are damaged, or end early.
            OSError: the file cannot be read.
        """

    @abstractmethod
    def need(self, member: Member) -> None:
        """Refuse a member that ends after the file does, where the size of the file says so.

        Raises:
            SourceError: names the member, and how many bytes are missing.
        """

    @abstractmethod
    def close(self) -> None:
        """Close the file."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        self.close()


@final
class PlainTar(TarBytes):
    """A tar that is not compressed."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._file, facts = open_file(path)
        self._size = facts.st_size
        self._window, self._begin = b"", 0
        os.posix_fadvise(self._file, 0, 0, os.POSIX_FADV_RANDOM)  # read-ahead would read the payload

    def at(self, offset: int, count: int) -> bytes:
        first = offset - self._begin
        if 0 <= first and first + count <= len(self._window):
            return self._window[first : first + count]
        if count > _WINDOW:
            return self._read(offset, count)
        self._window, self._begin = os.pread(self._file, _WINDOW, offset), offset
        if len(self._window) < count:  # a signal, or the end
            self._window = self._read(offset, count)
        return self._window[:count]

    def need(self, member: Member) -> None:
        missing = member.start + member.size - self._size
        if missing > 0:
            raise _cut_short(self.path, member, f"{missing:,} of the {member.size:,} bytes of its last member are missing")

    def close(self) -> None:
        os.close(self._file)

    def _read(self, offset: int, count: int) -> bytes:
        parts: list[bytes] = []
        while count > 0 and (part := os.pread(self._file, count, offset)):
            parts.append(part)
            offset, count = offset + len(part), count - len(part)
        return b"".join(parts)


@final
class CompressedTar(TarBytes):
    """A tar that is compressed as a whole; read forward only."""

    def __init__(self, path: str) -> None:
        self.path = path
        handle, _ = open_file(path)
        self._raw = os.fdopen(handle, "rb")
        self._file = _decompressed(path, self._raw)
        self._passed = 0

    def at(self, offset: int, count: int) -> bytes:
        while self._passed < offset:
            if not self._read(min(_SKIPPED, offset - self._passed)):
                return b""
        return self._read(count)

    def need(self, member: Member) -> None:
        """Nothing says how many bytes there will be."""

    def close(self) -> None:
        self._file.close()
        self._raw.close()

    def _read(self, count: int) -> bytes:
        parts: list[bytes] = []
        try:
            while count > 0 and (part := self._file.read(count)):
                parts.append(part)
                count -= len(part)
        except (EOFError, zlib.error, lzma.LZMAError, OSError, ValueError) as error:
            raise self._damaged(error) from error
        except Exception as error:  # zstandard has an error of its own
            if type(error).__name__ != "ZstdError":
                raise
            raise self._damaged(error) from error
        found = b"".join(parts)
        self._passed += len(found)
        return found

    def _damaged(self, error: Exception) -> SourceError:
        msg = (
            f"{cut(self.path)} cannot be uncompressed after byte {self._passed:,} of the tar inside "
            f"({cut(str(error)) or type(error).__name__}): it was cut short, or is damaged. Fetch it again, or leave the file out"
        )
        return SourceError(msg)


def open_tar(path: str) -> TarBytes:
    """Open a tar; its name says whether it is compressed.

    Raises:
        OSError: it cannot be opened.
    """
    return CompressedTar(path) if is_compressed(path) else PlainTar(path)


def is_compressed(path: str) -> bool:
    """Whether the name of a tar says that it is compressed."""
    return path.lower().endswith(COMPRESSED)


def members(tar: TarBytes) -> Iterator[Member]:
    """Yield the members in the order of the tar, without folders; links and devices carry a fault.

    Raises:
        SourceError: this is no tar, it is cut short or damaged, or a member is sparse; says at which byte.
        OSError: the file cannot be read.
    """
    at = 0
    every: dict[bytes, bytes] = {}  # pax records for all members that follow
    while True:
        member, at, kind = _next(tar, at, every)
        if member is None:
            _need_end(tar, at)
            return
        if kind != _FOLDER:
            yield member


def _next(tar: TarBytes, at: int, every: dict[bytes, bytes]) -> tuple[Member | None, int, int]:
    """The member whose headers begin at a byte (None at the end of the tar), where the next begins, and its kind."""
    first, own, name = at, every, None
    while True:
        block = tar.at(at, BLOCK)
        if len(block) < BLOCK:
            raise _no_end(tar.path, at, len(block))
        if block == _ZEROS:
            return None, at + BLOCK, 0
        _check(tar, block, at)
        kind, size = block[156], _number(tar, block[124:136], at)
        start = at + BLOCK
        if kind in (0x78, 0x58):  # "x", "X"
            own = {**own, **_records(tar, _extra(tar, start, size, at), at)}
        elif kind == 0x67:  # noqa: PLR2004  "g"
            every.update(_records(tar, _extra(tar, start, size, at), at))
            own = {**every, **own}
        elif kind == 0x4C:  # noqa: PLR2004  "L"
            name = _extra(tar, start, size, at).partition(b"\0")[0]
        elif kind == 0x4B:  # noqa: PLR2004  "K": the target of a link
            _extra(tar, start, size, at)
        else:
            break
        at = start + _padded(size)
    if own:
        name = own.get(b"path", name)
        size = _pax_size(tar, own, size, at)
    raw = _header_name(block) if name is None else name
    text = raw.decode("utf-8", "surrogateescape")
    if kind == _SPARSE or any(key.startswith(b"GNU.sparse.") for key in own):
        raise _sparse(tar.path, text, first)
    if kind in _FILES and raw.endswith(b"/"):
        kind = _FOLDER
    has_bytes = kind not in _WITHOUT_BYTES and kind != _FOLDER
    member = Member(text, first, start, size if has_bytes else 0, _fault(kind, block))
    tar.need(member)
    return member, start + _padded(member.size), kind


def _check(tar: TarBytes, block: bytes, at: int) -> None:
    """Compare the sum of a header with what it says; Adler-32 sums bytes faster than a loop does."""
    field = block[148:156]
    try:
        said = int(field.strip(b" \0"), 8)
    except ValueError:
        raise _no_header(tar, block, at) from None
    found = (zlib.adler32(block) & 0xFFFF) - 1 - sum(field) + 256
    if (found - said) % _ADLER and said != _signed_sum(block):
        raise _no_header(tar, block, at)


def _signed_sum(block: bytes) -> int:
    """The sum of a header whose bytes count as signed, as some old writers had it."""
    rest = block[:148] + block[156:]
    return sum(byte - 256 if byte > 127 else byte for byte in rest) + 256  # noqa: PLR2004


def _number(tar: TarBytes, field: bytes, at: int) -> int:
    if field[0] & _BASE_256:
        return int.from_bytes(bytes([field[0] & 0x7F]) + field[1:], "big")
    try:
        return int(field.strip(b" \0") or b"0", 8)
    except ValueError:
        msg = f"{cut(tar.path)}: the header at byte {at:,} gives the size {shown(field)}; it would be octal digits"
        raise SourceError(f"{msg}. Write the tar again, or leave the file out") from None


def _header_name(block: bytes) -> bytes:
    name = block[:100].partition(b"\0")[0]
    if block[257:263] == b"ustar\0" and block[345]:  # GNU keeps times where POSIX has a prefix
        return block[345:500].partition(b"\0")[0] + b"/" + name
    return name


def _extra(tar: TarBytes, start: int, size: int, at: int) -> bytes:
    """The bytes of a header that describes the next one."""
    if size > _LONGEST:
        msg = f"{cut(tar.path)}: the header at byte {at:,} claims a name or records of {size:,} bytes; at most {_LONGEST:,} are read"
        raise SourceError(f"{msg}. Write the tar again, or leave the file out")
    found = tar.at(start, size)
    if len(found) < size:
        raise _no_end(tar.path, start, len(found))
    return found


def _records(tar: TarBytes, data: bytes, at: int) -> dict[bytes, bytes]:
    """Pax records: ``<length> <key>=<value>\\n``, the length in digits and of the whole record."""
    found: dict[bytes, bytes] = {}
    while data.strip(b"\0"):
        digits, blank, _ = data.partition(b" ")
        length = int(digits) if blank and digits.isdigit() and len(digits) < 8 else 0  # noqa: PLR2004
        record = data[len(digits) + 1 : length - 1]
        key, equals, value = record.partition(b"=")
        if not equals or data[length - 1 : length] != b"\n":
            msg = f"{cut(tar.path)}: the pax records of the header at byte {at:,} are damaged"
            raise SourceError(f"{msg}. Write the tar again, or leave the file out")
        found[key] = value
        data = data[length:]
    return found


def _pax_size(tar: TarBytes, own: dict[bytes, bytes], size: int, at: int) -> int:
    said = own.get(b"size")
    if said is None:
        return size
    if not said.isdigit() or len(said) > 19:  # noqa: PLR2004  digits of 2**63
        msg = f"{cut(tar.path)}: the pax records before byte {at:,} give the size {shown(said)}; it would be a whole number"
        raise SourceError(f"{msg}. Write the tar again, or leave the file out")
    return int(said)


def _fault(kind: int, block: bytes) -> str | None:
    if kind in _FILES or kind == _FOLDER:
        return None
    if kind not in _WITHOUT_BYTES:
        return f"is of type {shown(bytes([kind]))}, which is no file. Leave it out when the tar is written"
    target = block[157:257].partition(b"\0")[0].decode("utf-8", "replace")
    to = f" to {shown(target)}" if kind in (0x31, 0x32) else ""
    return (
        f"is {_WITHOUT_BYTES[kind]}{to}, which has no bytes of its own. Write the tar again with the file itself: "
        "tar --hard-dereference --dereference"
    )


def _padded(size: int) -> int:
    return -(-size // BLOCK) * BLOCK


def _need_end(tar: TarBytes, at: int) -> None:
    """Refuse a tar that goes on after its end mark."""
    rest = tar.at(at, _RECORD)
    if rest.strip(b"\0"):
        msg = (
            f"{cut(tar.path)} goes on after the mark of its end, at byte {at:,}: several tars in one file, of which readers see "
            "the first only. Keep them as files of their own"
        )
        raise SourceError(msg)


def _no_header(tar: TarBytes, block: bytes, at: int) -> SourceError:
    packed = next((kind for start, kind in _STARTS.items() if block.startswith(start)), None)
    if at == 0 and packed is not None:
        name = {"gzip": ".tar.gz", "zstd": ".tar.zst", "bzip2": ".tar.bz2", "xz": ".tar.xz"}[packed]
        return SourceError(f"{cut(tar.path)} is compressed with {packed}, and its name ends otherwise. Rename it to ...{name}")
    found = "is no tar" if at == 0 else f"is damaged: there is no header at byte {at:,}"
    return SourceError(f"{cut(tar.path)} {found} (the sum of the 512 bytes is wrong). Fetch it again, or leave the file out")


def _no_end(path: str, at: int, left: int) -> SourceError:
    found = "is empty" if at + left == 0 else f"was cut short: it ends at byte {at + left:,} without the mark of its end"
    return SourceError(f"{cut(path)} {found} (two blocks of zeros). Fetch or write it again, or leave the file out")


def _cut_short(path: str, member: Member, found: str) -> SourceError:
    return SourceError(
        f"{cut(path)} was cut short: {found} ({shown(member.name)}, which begins at byte {member.header:,}). "
        "Fetch it again, or leave the file out"
    )


def _sparse(path: str, name: str, at: int) -> SourceError:
    msg = (
        f"{cut(path)}: member {shown(name)} at byte {at:,} is sparse: its zeros are left out, so its bytes do not lie in one "
        "piece. Write the tar again without --sparse"
    )
    return SourceError(msg)


def _decompressed(path: str, raw: Any) -> Any:
    name = path.lower()
    if name.endswith((".gz", ".tgz")):
        return gzip.GzipFile(fileobj=raw)
    if name.endswith(".bz2"):
        return bz2.BZ2File(raw)
    if name.endswith(".xz"):
        return lzma.LZMAFile(raw)
    from spiral_stream.extras import need

    need("zstandard", f"{cut(path)}")
    import zstandard

    return zstandard.ZstdDecompressor().stream_reader(raw, read_across_frames=True)
