"""What the files of a relation were like when it was registered: size, time of change, inode.

A reference names a file whose bytes nobody holds. Its pin tells, at the cost of one look-up (3 us) and one ``fstat``,
whether they may have changed since. Pins lie in one file next to the manifest (`numbers`), 32 bytes for each distinct
reference. A file that was not there when the relation was registered is not pinned: it may still come. Damage to the
file of pins can only make a file look changed.

Size and time are part of the shard's content key. The inode is not, since a copy of the same files has others; it is
compared on the host that registered it, for file systems that keep inodes.
"""

import os
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Final, NamedTuple, Protocol, final

from spiral_stream.errors import SourceError
from spiral_stream.sources.numbers import Numbers
from spiral_stream.storage.store import Facts, what_differs

ABSENT: Final = -1  # size of a file that was not there, or no file
SUFFIX: Final = ".pins"
_LASTING: Final = frozenset(("ext2", "ext3", "ext4", "xfs", "zfs", "f2fs", "tmpfs"))  # keep their inodes


class Pin(NamedTuple):
    """One file at one time."""

    size: int
    mtime_ns: int
    inode: int  # 0 where it says nothing


NOT_THERE: Final = Pin(ABSENT, 0, 0)


@final
@dataclass(frozen=True, slots=True)
class ObjectFacts:
    """What a store says of an object, in the words of ``stat``. Its pin has 64 bits of its etag in place of a time."""

    st_size: int
    st_mtime_ns: int
    mark: int  # 64 bits of the etag, or the time where the store gives none
    etag: str | None = None


FileFacts = os.stat_result | ObjectFacts


def pin_of(facts: FileFacts) -> Pin:
    """Return the pin of a file, from its ``stat``."""
    if isinstance(facts, ObjectFacts):
        return Pin(facts.st_size, _time_of(facts), 0)
    inode = facts.st_ino if facts.st_ino < 1 << 63 and _keeps_inodes(facts.st_dev) else 0
    return Pin(facts.st_size, _time_of(facts), inode)


class Pinned(Protocol):
    """What pins files."""

    def fault(self, name: str, facts: FileFacts) -> str | None:
        """Say how a file differs from what was registered, and the way out; None if it does not."""
        ...

    def object_of(self, name: str) -> Facts | None:
        """Return what an object was like; None if it was not there, or more than one pin may be its."""
        ...


@final
class Pins:
    """The pins of one relation. Thread-safe."""

    def __init__(self, path: Path, relation: str) -> None:
        """Open a file of pins.

        Raises:
            SourceError: it is missing or cut.
        """
        self._relation = relation
        try:
            self._numbers = Numbers(path)
        except (OSError, ValueError) as error:
            msg = f'{relation}: pins {path}: {error}. Write them again with catalog.refresh("{relation}")'
            raise SourceError(msg) from error

    def __len__(self) -> int:
        return len(self._numbers)

    def size(self, name: str) -> int | None:
        """Return the bytes that a file had when it was registered; None if nobody knows."""
        sizes = [size for size, _, _ in self._numbers.find(name) if size != ABSENT]
        return sizes[0] if sizes else None

    def fault(self, name: str, facts: FileFacts) -> str | None:
        """Say how a file differs from what was registered, and the way out; None if it does not."""
        pins = [Pin(*found) for found in self._numbers.find(name)]  # more than one where hashes collide
        if any(self._fits(pin, facts) for pin in pins):
            return None
        way_out = f'Take the data as it is now with catalog.refresh("{self._relation}"), or restore the file'
        if not pins:
            return f"was not among the files of {self._relation} when it was registered. {way_out}"
        size, when, _ = pins[0]
        if isinstance(facts, ObjectFacts):
            what = what_differs(size, facts.st_size, facts.etag)
        elif (size, when) == (facts.st_size, _time_of(facts)):
            what = f"another file of {size:,} bytes and the same time took its place"
        else:
            what = f"it had {size:,} bytes of {_shown(when)}, now {facts.st_size:,} of {_shown(facts.st_mtime_ns)}"
        return f"changed since registration: {what}. {way_out}"

    def object_of(self, name: str) -> Facts | None:
        """Return what an object was like; None if it was not there, or more than one pin may be its."""
        pins = [Pin(*found) for found in self._numbers.find(name)]
        if len(pins) != 1 or pins[0].size == ABSENT:
            return None
        return Facts(pins[0].size, marked=pins[0].mtime_ns % 2**64)

    def _fits(self, pin: Pin, facts: FileFacts) -> bool:
        if pin.size == ABSENT:
            return True
        inode = pin.inode if self._numbers.same_host else 0
        same = (pin.size, pin.mtime_ns) == (facts.st_size, _time_of(facts))
        return same and (isinstance(facts, ObjectFacts) or inode in (0, facts.st_ino))


def _time_of(facts: FileFacts) -> int:
    """Return the time of change (of an object its mark) as 64 bits hold it: some damaged files are dated after 2262."""
    when = facts.mark if isinstance(facts, ObjectFacts) else facts.st_mtime_ns
    return (when + 2**63) % 2**64 - 2**63


def _shown(mtime_ns: int) -> str:
    try:
        return f"{datetime.fromtimestamp(mtime_ns // 10**9, UTC):%Y-%m-%d %H:%M:%S}.{mtime_ns % 10**9:09d}"
    except (OverflowError, OSError, ValueError):
        return f"time {mtime_ns} ns"


@lru_cache(maxsize=64)
def _keeps_inodes(device: int) -> bool:
    """Whether the file system of a device keeps the inode of a file; network and FUSE ones may not."""
    wanted = f"{os.major(device)}:{os.minor(device)}"
    try:
        lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return False
    for line in lines:
        left, _, right = line.partition(" - ")
        if left.split(" ")[2:3] == [wanted]:
            return right.split(" ", 1)[0] in _LASTING
    return False
