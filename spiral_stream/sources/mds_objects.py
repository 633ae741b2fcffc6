"""Folders of MDS shards on an object store: found by one list, and read whole, shard by shard, while rows are imported.

Payload of shards that are not compressed is not copied: streams read it by range, as of local shards.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import Final, NamedTuple

from spiral_stream.errors import SourceError, cut
from spiral_stream.sources.mds_index import INDEX_FILE, Shard, ShardFile, shards_in
from spiral_stream.sources.remote_bytes import object_bytes
from spiral_stream.sources.remote_file import look
from spiral_stream.sources.remote_folder import listed_below
from spiral_stream.storage.store import Facts

_WAY_OUT: Final = "Write the folder again"


class FoundShard(NamedTuple):
    """One shard of a folder."""

    folder: str  # of the index, relative to the path; "." for the path itself
    listing: str  # the URI of the index
    shard: Shard
    file: ShardFile  # the one that is there: the raw one where both are
    facts: Facts


def found_shards(path: str) -> Iterator[FoundShard]:
    """Yield the shards of a folder, or of the folders below it, as their indexes list them.

    Raises:
        SourceError: there is no index, or a shard is not there or has another size.
    """
    there = {each.name: each.facts for each in listed_below(path, "Mds")}
    names = [INDEX_FILE] if INDEX_FILE in there else [name for name in there if name.endswith(f"/{INDEX_FILE}")]
    if not names:
        msg = f"Mds: there is no {INDEX_FILE} below {cut(path)}. Give the folder that MDSWriter wrote"
        raise SourceError(msg)
    for name in sorted(names):
        folder = name.removesuffix(INDEX_FILE)
        index = f"{path}/{name}"
        for shard in object_shards(index, there[name]):
            file = shard.raw if f"{folder}{shard.raw.name}" in there else shard.packed or shard.raw
            facts = there.get(f"{folder}{file.name}")
            if facts is None:
                msg = f"Mds: {cut(index)} lists {cut(file.name)}, which is not there. {_WAY_OUT}"
                raise SourceError(msg)
            if facts.size != file.size:
                where = f"{cut(path)}/{cut(folder)}{cut(file.name)}"
                msg = f"Mds: {where} has {facts.size:,} bytes, and the index says {file.size:,}. {_WAY_OUT}"
                raise SourceError(msg)
            yield FoundShard(folder.rstrip("/") or ".", index, shard, file, facts)


def object_shards(index: str, facts: Facts | None = None) -> tuple[Shard, ...]:
    """Return the shards that an index lists.

    Args:
        index: its URI.
        facts: what it is like, if a list said so.

    Raises:
        SourceError: it cannot be read, or is no index of MDS shards.
    """
    return _shards(index, look(index) if facts is None else facts)


@lru_cache(maxsize=8)
def _shards(index: str, facts: Facts) -> tuple[Shard, ...]:
    """The shards of an index as it is at one time: every unit asks for them."""
    return shards_in(index, object_bytes(index, facts))
