"""Read the bytes of objects that references name: all that one call asks for is read together, or an object part by part.

Each answer carries the size and the etag of its object, which are compared with what was registered, so that a changed
object is named and costs no request of its own. Bytes with another digest than their reference says are read once more.

An `ObjectPart` is read by range: a clip needs some packets of a video. Its size is known from registration, so no request is
made only to learn it. An object that nothing pins is looked at once, and then pinned by what was seen.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import final

import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from spiral_stream.errors import SourceError, anew, cut, warn
from spiral_stream.semantic import file_names, is_list
from spiral_stream.sources.pins import SeenPins
from spiral_stream.sources.references.policy import Reach, ReferenceDataError, ReferenceSourceError
from spiral_stream.sources.references.stamps import Stamps
from spiral_stream.storage.faults import AwayError, NotThereError
from spiral_stream.storage.node_cache.store import NodeStore
from spiral_stream.storage.open import payload_store_of, store_of
from spiral_stream.storage.store import Get, Got, Store
from spiral_stream.storage.uri import printable
from spiral_stream.threads import doing


@final
@dataclass(frozen=True, slots=True)
class NamedObject:
    """What one reference names."""

    row: int
    uri: str  # as the reference spells it
    named: str  # the object's URI
    start: int = 0
    length: int | None = None  # None: all of it


def read_objects(
    requests: Sequence[NamedObject], reach: Reach, most_bytes: int | None, stamps: Stamps | None = None
) -> Iterator[tuple[NamedObject, memoryview]]:
    """Read what references name, and yield the bytes of each.

    Args:
        requests: the references.
        reach: what pins them.
        most_bytes: of one of them; None reads any.
        stamps: what the references say of their objects.

    Raises:
        ReferenceDataError: one names more bytes than that.
        ReferenceSourceError: one cannot be read, or changed since registration.
        SourceError: a store stayed away until the deadline.
    """
    by_store: dict[int, tuple[Store, list[tuple[NamedObject, Get]]]] = {}
    for each in requests:
        if each.length is not None:
            need_fewer(each.row, printable(each.named), each.length, most_bytes)
        try:
            store, key = payload_store_of(each.named)
        except SourceError as error:
            raise ReferenceSourceError(each.row, str(error)) from None
        pinned = reach.pinned(each.uri) if stamps is None else stamps.pinned(each.row, reach.pinned(each.uri))
        get = Get(key, each.start, each.length, most_bytes, pinned)
        by_store.setdefault(id(store), (store, []))[1].append((each, get))
    for store, parts in by_store.values():
        with doing(f"reading {len(parts):,} objects, such as {cut(printable(parts[0][0].named))}"):
            answers = store.read([get for _, get in parts])
        for (each, get), got in zip(parts, answers, strict=True):
            data = _checked(each, got, reach, most_bytes, stamps)
            if stamps is None or stamps.has_bytes(each.row, data):
                yield each, data
            else:
                yield each, _read_again(each, (store, get), reach, most_bytes, stamps)


def _read_again(
    named: NamedObject, target: tuple[Store, Get], reach: Reach, most_bytes: int | None, stamps: Stamps
) -> memoryview:
    """The bytes of a reference that came with another digest: once more from the store, whatever this node keeps.

    Raises:
        ReferenceSourceError: they differ again, or cannot be read.
    """
    store, get = target
    name, pinned = printable(named.named), stamps.pinned(named.row, reach.pinned(named.uri))
    if isinstance(store, NodeStore) and pinned is not None:
        store.forget(get, pinned)
    data = _checked(named, store.read([get])[0], reach, most_bytes, stamps)
    if not stamps.has_bytes(named.row, data) and isinstance(store, NodeStore) and pinned is not None:
        store.forget(get, pinned)
    stamps.need_bytes(named.row, name, data)
    msg = f"{cut(name)}: {len(data):,} bytes from {named.start:,} were damaged on their way, and right when read again"
    warn(msg)
    return data


def _checked(
    named: NamedObject, got: Got | SourceError, reach: Reach, most_bytes: int | None, stamps: Stamps | None
) -> memoryview:
    if isinstance(got, AwayError):
        raise anew(got)  # of no row: the others would fail too, each after the deadline
    if isinstance(got, SourceError):
        raise ReferenceSourceError(named.row, str(got)) from None
    name = printable(named.named)
    reach.need_pinned(named.uri, name, got.facts, named.row)
    if stamps is not None:
        stamps.need_file(named.row, name, got.facts)
    if got.data is None:
        need_fewer(named.row, name, got.facts.size, most_bytes)
        msg = f"{cut(name)} has {got.facts.size:,} bytes, and was not read"
        raise ReferenceSourceError(named.row, msg)
    return got.data


def names_objects(values: pa.Array | pa.ChunkedArray, reach: Reach) -> bool:
    """Whether references (or lists of them) name objects of stores, so that reading them waits for a network."""
    texts = file_names(pc.list_flatten(values) if is_list(values.type) else values)
    if texts is None or (len(texts) and texts.null_count == len(texts)):
        return False
    if reach.is_remote:
        return True
    if pa.types.is_dictionary(texts.type):
        texts = texts.cast(texts.type.value_type)
    return bool(
        pc.any(pc.match_substring_regex(texts, "^(s3|s3a|gs|az|azure|abfss?|https?|memory)://"), min_count=0).as_py()
    )


def need_fewer(row: int, name: str, size: int, most_bytes: int | None) -> None:
    """Refuse a reference that names more bytes than a sample may have.

    Raises:
        ReferenceDataError: says how many, and the way out.
    """
    if most_bytes is not None and size > most_bytes:
        msg = (
            f"{cut(name)}: the reference names {size:,} bytes, more than the {most_bytes:,} that a sample may have. "
            "Correct it, filter the row out, or raise max_bytes of the field"
        )
        raise ReferenceDataError(row, msg)


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
    object_size: int  # bytes of the object
    _reach: Reach = field(repr=False)
    _stamps: Stamps | None = field(repr=False)

    def read(self, ranges: Sequence[tuple[int, int]]) -> list[memoryview]:
        """Read ranges (offset in the part, length) together; near ones are one request.

        Raises:
            ReferenceSourceError: they cannot be read, or the object changed; ``row`` is the reference's.
        """
        requests = [NamedObject(self.row, self.uri, self.named, self.start + at, count) for at, count in ranges]
        found = {id(each): data for each, data in read_objects(requests, self._reach, None, self._stamps)}
        return [found[id(each)] for each in requests]

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
        facts = (self.mark % 2**64, self.object_size, self.start, self.size)
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
        pins = SeenPins("Restore the object")
        facts = pins.seen[uri] = reach.stat(uri, row)[1]
        reach = replace(reach, pins=pins)
    start, size = part or (0, facts.size)
    # a digest is of all bytes, and some are read
    stamps = None if stamps is None else replace(stamps, digests=None)
    return ObjectPart(uri, named, row, start, size, facts.mark, facts.size, reach, stamps)
