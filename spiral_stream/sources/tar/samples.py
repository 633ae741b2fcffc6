"""Rows of a tar as WebDataset names them: neighbouring members whose names begin alike are one row.

``dir/0001.seg.png`` has the key ``dir/0001`` and the field ``seg.png`` (split at the first dot of the file's name), or the key
``dir/0001.seg`` and the field ``png`` (at the last). Fields are lower case. Passed over are folders, names without a dot or
that begin with one, and ``__...__``, as the webdataset library passes over them.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, final

from spiral_stream.errors import shown
from spiral_stream.sources.tar.headers import Member, members
from spiral_stream.sources.tar.stream import TarBytes

_META: Final = re.compile(r"__[^/]*__($|/)")


class RowError(ValueError):
    """Why a row cannot be read; the text says what was found, and what would be right."""


@final
@dataclass(slots=True)
class Group:
    """The members of one key."""

    key: str
    at: int  # byte of its first header
    fields: dict[str, Any] = field(default_factory=dict)  # what `take` made of each
    fault: str | None = None  # why the row cannot be read

    @property
    def where(self) -> str:
        """The place, for messages."""
        return f"key {shown(self.key)} (byte {self.at:,})"


def split_name(name: str, *, last: bool) -> tuple[str, str] | None:
    """Return the key and the field of a member; None for one that is passed over."""
    folder, slash, file = name.rpartition("/")
    key, dot, kind = file.rpartition(".") if last else file.partition(".")
    if not key or not dot or file.startswith(".") or _META.match(name):
        return None
    return f"{folder}{slash}{key}", kind.lower()


def groups(tar: TarBytes, take: Callable[[str, Member], Any], *, last: bool) -> Iterator[Group]:
    """Yield the rows of a tar in its order; memory holds the keys.

    Args:
        tar: that is read.
        take: is asked for what is kept of a member, as the member passes by, faulty ones too; `RowError` makes the row one
            that cannot be read, and None leaves the member out.
        last: whether names are split at their last dot.

    Raises:
        SourceError: the tar cannot be read.
    """
    seen: set[str] = set()
    group: Group | None = None
    for member in members(tar):
        named = split_name(member.name, last=last)
        if named is None:
            continue
        if group is None or named[0] != group.key:
            if group is not None:
                yield group
            group = Group(named[0], member.header)
            if group.key in seen:
                group.fault = (
                    "the key was there before, further up in the tar; the members of a key follow each other, and keys are "
                    "used once. Sort the tar by name"
                )
            seen.add(group.key)
        _add(group, named[1], member, take)
    if group is not None:
        yield group


def _add(group: Group, name: str, member: Member, take: Callable[[str, Member], Any]) -> None:
    if group.fault is None and name in group.fields:
        group.fault = f"there are two members {shown(name)}, the second at byte {member.header:,}; one per key is read"
    if group.fault is not None:
        return
    try:
        _need_text(member.name)
        group.fields[name] = take(name, member)
    except RowError as error:
        group.fault = str(error)


def _need_text(name: str) -> None:
    try:
        name.encode()
    except UnicodeEncodeError:
        msg = f"the name of member {shown(name.encode('utf-8', 'surrogateescape'))} is not UTF-8"
        raise RowError(msg) from None
