"""A part of an object that a reference names, read by range: a video of which a clip needs some packets.

What the catalog registered says how large the object is and what it is like, so no request is made only to learn that.
Every answer is compared with it. An object that nothing pins is looked at once, and then pinned by what was seen.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import final

import xxhash

from spiral_stream.errors import SourceError
from spiral_stream.sources.pins import FileFacts, ObjectFacts, Pin, pin_of
from spiral_stream.sources.references.objects import NamedObject, read_objects
from spiral_stream.sources.references.policy import Reach
from spiral_stream.sources.references.stamps import Stamps
from spiral_stream.storage.faults import NotThereError
from spiral_stream.storage.open import store_of
from spiral_stream.storage.store import Facts, what_differs
from spiral_stream.storage.uri import printable


@final
@dataclass(frozen=True, slots=True)
class _Seen:
    """Pins the one object that was looked at."""

    seen: Pin

    def fault(self, name: str, facts: FileFacts) -> str | None:
        del name
        if pin_of(facts) == self.seen:
            return None
        etag = facts.etag if isinstance(facts, ObjectFacts) else None
        return (
            f"changed while it is being read: {what_differs(self.seen.size, facts.st_size, etag)}. Restore the object"
        )

    def object_of(self, name: str) -> Facts:
        del name
        return Facts(self.seen.size, marked=self.seen.mtime_ns % 2**64)


@final
@dataclass(frozen=True, slots=True, eq=False)
class ObjectPart:
    """Some bytes of one object. Thread-safe."""

    uri: str  # as the reference spells it
    named: str  # the object's URI
    row: int  # of the reference
    start: int
    size: int
    mark: int  # 64 bits that differ for another object of that name
    whole: int  # bytes of the object
    _reach: Reach = field(repr=False)
    _stamps: Stamps | None = field(repr=False)

    def read(self, ranges: Sequence[tuple[int, int]]) -> list[memoryview]:
        """Read ranges (offset in the part, length) together; near ones are one request.

        Raises:
            ReferenceSourceError: they cannot be read, or the object changed; ``row`` is the reference's.
        """
        asked = [NamedObject(self.row, self.uri, self.named, self.start + at, count) for at, count in ranges]
        found = {id(each): data for each, data in read_objects(asked, self._reach, None, self._stamps)}
        return [found[id(each)] for each in asked]

    def is_gone(self) -> bool:
        """Whether the object is no longer there."""
        store, key = store_of(self.named)
        try:
            store.stat(key)
        except NotThereError:
            return True
        except SourceError:
            return False
        return False

    def stamp(self) -> int:
        """64 bits of what the object is like and of which part it is; asks for nothing."""
        facts = (self.mark % 2**64, self.whole, self.start, self.size)
        return xxhash.xxh3_64_intdigest(b"".join(each.to_bytes(8, "little") for each in facts))


def object_part(
    reach: Reach, uri: str, named: str, row: int, part: tuple[int, int] | None = None, stamps: Stamps | None = None
) -> ObjectPart:
    """Find a part of an object; asks for nothing where the object is pinned.

    Args:
        reach: what pins it.
        uri: the reference.
        named: the object's URI.
        row: of the reference.
        part: its first byte and its length; None for the whole object.
        stamps: what the references say of their objects.

    Raises:
        ReferenceSourceError: it is not there, or changed.
    """
    facts = None if reach.pins is None else reach.pins.object_of(uri)
    if facts is None:
        seen = _Seen(pin_of(reach.stat(uri, row)[1]))
        facts, reach = seen.object_of(uri), replace(reach, pins=seen)
    start, size = part or (0, facts.size)
    # a digest is of all bytes, and some are read
    stamps = None if stamps is None else replace(stamps, digests=None)
    return ObjectPart(uri, named, row, start, size, facts.mark, facts.size, reach, stamps)


def part_name(part: ObjectPart, *, whole: bool) -> str:
    """Return the name of a part, for messages."""
    name = printable(part.named)
    return name if whole else f"{name}[{part.start} + {part.size}]"
