"""Where the members of a tar lie: names, offsets and sizes from the headers alone.

Reads ustar, GNU and pax headers (POSIX.1-2001, and GNU tar's long names and large sizes). Payload is passed over, so a tar
of large files costs a few reads of 4 KiB for each member, about 5 us of CPU. A compressed tar has no offsets that could be
read later: its bytes come in one pass, and payload is read as it passes by.
"""

import zlib
from collections.abc import Iterator
from typing import Final, NamedTuple

from spiral_stream.errors import SourceError, cut, shown
from spiral_stream.storage.store import BytesAt

BLOCK: Final = 512
_RECORD: Final = 20 * BLOCK  # writers fill the end of a tar with zeros up to a multiple of this
_LONGEST: Final = 1 << 20  # bytes of a long name, or of the pax records of one member
_ZEROS: Final = bytes(BLOCK)
_FILES: Final = frozenset((0x30, 0, 0x37))  # "0", NUL, "7": a regular file
_FOLDER: Final = 0x35
_SPARSE: Final = 0x53
_NAME: Final = 0x4C  # "L", GNU: the name of the next member
_TARGET: Final = 0x4B  # "K", GNU: the target of the link that the next member is
_FOR_ALL: Final = 0x67  # "g", pax: records for all members that follow
_DESCRIBING: Final = frozenset((0x78, 0x58, _FOR_ALL, _NAME, _TARGET))  # "x" and "X", pax: for the next member
_WITHOUT_BYTES: Final = {
    0x31: "a hard link",
    0x32: "a symbolic link",
    0x33: "a device",
    0x34: "a device",
    0x36: "a FIFO",
}
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


def members(tar: BytesAt) -> Iterator[Member]:
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


def _next(tar: BytesAt, at: int, every: dict[bytes, bytes]) -> tuple[Member | None, int, int]:
    """The member whose headers begin at a byte (None at the end of the tar), where the next begins, and its kind."""
    first, records, name = at, every, None
    while True:
        block = tar.at(at, BLOCK)
        if len(block) < BLOCK:
            raise _no_header(tar, block, at) if at == 0 and block else _no_end(tar.path, at, len(block))
        if block == _ZEROS:
            return None, at + BLOCK, 0
        _check(tar, block, at)
        kind, size = block[156], _number(tar, block[124:136], at)
        if kind not in _DESCRIBING:
            return _member(tar, block, first, at + BLOCK, (records, name, size))
        data = _extra(tar, at + BLOCK, size, at)
        if kind == _NAME:
            name = data.partition(b"\0")[0]
        elif kind == _FOR_ALL:
            every.update(_records(tar, data, at))
            records = {**every, **records}
        elif kind != _TARGET:
            records = {**records, **_records(tar, data, at)}
        at += BLOCK + _padded(size)


def _member(
    tar: BytesAt, block: bytes, first: int, start: int, said: tuple[dict[bytes, bytes], bytes | None, int]
) -> tuple[Member, int, int]:
    """The member of a header, with what the headers before it said: records, a long name, and its own size."""
    (records, name, size), kind = said, block[156]
    if records:
        name = records.get(b"path", name)
        size = _pax_size(tar, records, size, start)
    raw = _header_name(block) if name is None else name
    text = raw.decode("utf-8", "surrogateescape")
    if kind == _SPARSE or any(key.startswith(b"GNU.sparse.") for key in records):
        raise _sparse(tar.path, text, first)
    if kind in _FILES and raw.endswith(b"/"):
        kind = _FOLDER
    has_bytes = kind not in _WITHOUT_BYTES and kind != _FOLDER
    member = Member(text, first, start, size if has_bytes else 0, _fault(kind, block))
    if tar.size is not None and member.start + member.size > tar.size:
        raise _cut_short(tar, member, tar.size)
    return member, start + _padded(member.size), kind


def _check(tar: BytesAt, block: bytes, at: int) -> None:
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


def _number(tar: BytesAt, field: bytes, at: int) -> int:
    if field[0] & _BASE_256:
        return int.from_bytes(bytes([field[0] & 0x7F]) + field[1:], "big")
    try:
        return int(field.strip(b" \0") or b"0", 8)
    except ValueError:
        raise _odd(tar, f"the header at byte {at:,} gives the size {shown(field)}; it would be octal digits") from None


def _header_name(block: bytes) -> bytes:
    name = block[:100].partition(b"\0")[0]
    if block[257:263] == b"ustar\0" and block[345]:  # GNU keeps times where POSIX has a prefix
        return block[345:500].partition(b"\0")[0] + b"/" + name
    return name


def _extra(tar: BytesAt, start: int, size: int, at: int) -> bytes:
    """The bytes of a header that describes the next one."""
    if size > _LONGEST:
        raise _odd(tar, f"the header at byte {at:,} claims {size:,} bytes of names or records; {_LONGEST:,} are read")
    found = tar.at(start, size)
    if len(found) < size:
        raise _no_end(tar.path, start, len(found))
    return found


def _records(tar: BytesAt, data: bytes, at: int) -> dict[bytes, bytes]:
    """Pax records: a length in digits, which is that of the whole record, a blank, ``key=value``, and a new line."""
    found: dict[bytes, bytes] = {}
    while data.strip(b"\0"):
        digits, blank, _ = data.partition(b" ")
        length = int(digits) if blank and digits.isdigit() and len(digits) < 8 else 0  # noqa: PLR2004
        record = data[len(digits) + 1 : length - 1]
        key, equals, value = record.partition(b"=")
        if not equals or data[length - 1 : length] != b"\n":
            raise _odd(tar, f"the pax records of the header at byte {at:,} are damaged")
        found[key] = value
        data = data[length:]
    return found


def _pax_size(tar: BytesAt, records: dict[bytes, bytes], size: int, at: int) -> int:
    said = records.get(b"size")
    if said is None:
        return size
    if not said.isdigit() or len(said) > 19:  # noqa: PLR2004  digits of 2**63
        raise _odd(tar, f"the pax records before byte {at:,} give the size {shown(said)}; it would be a whole number")
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


def _need_end(tar: BytesAt, at: int) -> None:
    """Refuse a tar that goes on after its end mark."""
    rest = tar.at(at, _RECORD)
    if rest.strip(b"\0"):
        msg = (
            f"{cut(tar.path)} goes on after the mark of its end, at byte {at:,}: several tars in one file, of which readers see "
            "the first only. Keep them as files of their own"
        )
        raise SourceError(msg)


def _no_header(tar: BytesAt, block: bytes, at: int) -> SourceError:
    packed = next((kind for start, kind in _STARTS.items() if block.startswith(start)), None)
    if at == 0 and packed is not None:
        name = {"gzip": ".tar.gz", "zstd": ".tar.zst", "bzip2": ".tar.bz2", "xz": ".tar.xz"}[packed]
        return SourceError(
            f"{cut(tar.path)} is compressed with {packed}, and its name ends otherwise. Rename it to ...{name}"
        )
    found = "is no tar" if at == 0 else f"is damaged: there is no header at byte {at:,}"
    return SourceError(
        f"{cut(tar.path)} {found} (the sum of the 512 bytes is wrong). Fetch it again, or leave the file out"
    )


def _no_end(path: str, at: int, left: int) -> SourceError:
    found = (
        "is empty" if at + left == 0 else f"was cut short: it ends at byte {at + left:,} without the mark of its end"
    )
    return SourceError(f"{cut(path)} {found} (two blocks of zeros). Fetch or write it again, or leave the file out")


def _cut_short(tar: BytesAt, member: Member, size: int) -> SourceError:
    msg = (
        f"{cut(tar.path)} was cut short: {member.start + member.size - size:,} of the {member.size:,} bytes of its last member "
        f"are missing ({shown(member.name)}, which begins at byte {member.header:,}). Fetch it again, or leave the file out"
    )
    return SourceError(msg)


def _odd(tar: BytesAt, found: str) -> SourceError:
    return SourceError(f"{cut(tar.path)}: {found}. Write the tar again, or leave the file out")


def _sparse(path: str, name: str, at: int) -> SourceError:
    msg = (
        f"{cut(path)}: member {shown(name)} at byte {at:,} is sparse: its zeros are left out, so its bytes do not lie in one "
        "piece. Write the tar again without --sparse"
    )
    return SourceError(msg)
