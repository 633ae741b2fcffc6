"""Folders of Mosaic's shards on an object store: found by one list, and read whole, shard by shard, while rows are imported.

Payload of shards that are not compressed is not copied: streams read it by range, as of local shards.
"""

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Final, NamedTuple

from spiral_stream.display.progress import working
from spiral_stream.errors import SourceError, cut
from spiral_stream.sources.files.remote_folder import listed_below
from spiral_stream.sources.mds.index import INDEX_FILE, Shard, ShardFile, shards_in
from spiral_stream.storage.remote_bytes import object_bytes
from spiral_stream.storage.store import Facts
from spiral_stream.threads import Workers, thread_share

_WAY_OUT: Final = "Write the folder again"
_THREADS: Final = 8  # at most, to read indexes


class FoundShard(NamedTuple):
    """One shard of a folder."""

    folder: str  # of the index, relative to the path; "." for the path itself
    listing: str  # the URI of the index
    shard: Shard
    file: ShardFile  # the one that is there: the raw one where both are
    seen: tuple[Facts, ...]  # of objects: what the file, the index and the meta file are like
    meta: ShardFile | None = None  # of lines: the one that is there


def found_shards(path: str) -> Iterator[FoundShard]:
    """Yield the shards of a folder, or of the folders below it, as their indexes list them.

    Raises:
        SourceError: there is no index, or a shard is not there or has another size.
    """
    there = {each.name: each.facts for each in listed_below(path, "Mds")}
    names = [INDEX_FILE] if INDEX_FILE in there else [name for name in there if name.endswith(f"/{INDEX_FILE}")]
    if not names:
        msg = f"Mds: there is no {INDEX_FILE} below {cut(path)}. Give the folder that a writer wrote"
        raise SourceError(msg)
    names.sort()
    indexes = [f"{path}/{name}" for name in names]
    with (
        working("reading the indexes of MDS", "files"),
        Workers(thread_share().waiting(_THREADS), "spiral-indexes") as pool,
    ):
        found = list(pool.map(object_shards, indexes, [there[name] for name in names]))
    for name, index, shards in zip(names, indexes, found, strict=True):
        folder = name.removesuffix(INDEX_FILE)
        for shard in shards:
            file, facts = _there(index, folder, shard.raw, shard.packed, there)
            meta, seen = None, [facts, there[name]]
            if shard.lines is not None:
                meta, of_meta = _there(index, folder, shard.lines.raw, shard.lines.packed, there)
                seen.append(of_meta)
            yield FoundShard(folder.rstrip("/") or ".", index, shard, file, tuple(seen), meta)


def _there(
    index: str, folder: str, raw: ShardFile, packed: ShardFile | None, there: Mapping[str, Facts]
) -> tuple[ShardFile, Facts]:
    """The file that is there, the raw one where both are, and what it is like.

    Raises:
        SourceError: neither is, or it has another size.
    """
    file = raw if f"{folder}{raw.name}" in there else packed or raw
    facts = there.get(f"{folder}{file.name}")
    if facts is None:
        msg = f"Mds: {cut(index)} lists {cut(file.name)}, which is not there. {_WAY_OUT}"
        raise SourceError(msg)
    if facts.size != file.size:
        where = f"{cut(index.removesuffix(INDEX_FILE))}{cut(file.name)}"
        msg = f"Mds: {where} has {facts.size:,} bytes, and the index says {file.size:,}. {_WAY_OUT}"
        raise SourceError(msg)
    return file, facts


@lru_cache(maxsize=32)
def object_shards(index: str, facts: Facts) -> tuple[Shard, ...]:
    """Return the shards that an index lists; those of the indexes used last are kept, since every unit asks for them.

    Args:
        index: its URI.
        facts: what it is like.

    Raises:
        SourceError: it cannot be read, or is no index of shards.
    """
    return shards_in(index, object_bytes(index, facts))
