"""The video index of a relation: built for its storage shards, and returned as a table for people and statistics."""

import shutil
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spiral_stream.arguments import door
from spiral_stream.cache.kinds.video_index import IndexKind
from spiral_stream.cache.materialize import build
from spiral_stream.cache.row_workers import ShardWork
from spiral_stream.cache.store.reader import CachedShard
from spiral_stream.cache.store.store import CacheStore
from spiral_stream.catalog.registry import AnyCatalog
from spiral_stream.catalog.relation.reader import OpenRelation
from spiral_stream.display.progress import Progress, working
from spiral_stream.errors import CacheError, PlanError, shown
from spiral_stream.extras import need
from spiral_stream.plan.fields.clips import TIMES, check_times
from spiral_stream.planner.prepared_data.folder import cache_root
from spiral_stream.semantic import H264_REF, file_names, is_media, semantic_of
from spiral_stream.threads import thread_share


@door(CacheError)
def index_videos(
    catalog: AnyCatalog,
    relation: str,
    column: str,
    shards: Sequence[str] | None = None,
    report: Callable[[Progress], None] | None = None,
    *,
    afresh: bool = False,
) -> pa.Table:
    """Build what is missing of the video index, and tell what it holds. Streams of the relation then use it.

    A stream looks for itself at files that were not there; this table tells what was found when the index was built,
    until it is built afresh.

    Args:
        catalog: where the relation is registered.
        relation: its name.
        column: a column of type ``video/h264-ref``.
        shards: names of storage shards; None takes all.
        report: called with what is done so far.
        afresh: drop the whole index first, of all shards: where files came, or the index is damaged.

    Returns:
        a row for each of the relation's: ``row`` (int64, its ordinal), ``uri``, ``offset``, ``length`` (null for inline
        bytes), int32 ``frames``, ``duration_ms``, ``height``, ``width`` (upright), ``milli_fps``, ``key_distance`` (most
        frames between key frames), ``rotation``, ``segment_frames`` (of the row's segment; of the file without times), all
        null where a row cannot be used, and ``error``, which says why.

    Raises:
        PlanError: the column is no reference to videos, or a shard is unknown.
        SourceError: storage failed.
        CacheError: the cache folder cannot be written.
        MissingExtraError: PyAV is not installed.

    Examples:
        >>> import av
        >>> Path("films", "fox").mkdir(parents=True)
        >>> with av.open("films/fox/1.mp4", "w") as file:
        ...     film = file.add_stream("libx264", rate=24)
        ...     film.width, film.height, film.pix_fmt = 96, 64, "yuv420p"
        ...     for frame in [av.VideoFrame(96, 64, "yuv420p") for _ in range(12)] + [None]:
        ...         file.mux(film.encode(frame))
        >>> entry = catalog.register("films", spiral.sources.VideoFolder("films"))
        >>> spiral.index_videos(catalog, "films", "clip_ref").select(["uri", "frames", "error"]).to_pylist()
        [{'uri': 'fox/1.mp4', 'frames': 12, 'error': None}]
    """
    need("av", "index_videos")
    with OpenRelation(catalog.entry(relation)) as base:
        if column not in base.schema.names or semantic_of(base.schema.field(column)) != H264_REF:
            msg = (
                f"index_videos: {relation}.{column} is no column of type {H264_REF}. Register the relation with "
                f"semantic={{{column!r}: {H264_REF!r}}}"
            )
            raise PlanError(msg)
        check_times(relation, base.schema)
        works = _works(base, shards)
        kind = IndexKind(relation, column, set(TIMES) <= set(base.schema.names))
        store = CacheStore(cache_root(catalog.registry) / "caches" / kind.fingerprint, kind.facts())
        if afresh and store.parts.share is not None:
            shown = store.parts.share.shown
            msg = (
                f"index_videos: afresh=True would drop what others share at {shown}. Set $SPIRAL_CACHE to another place"
            )
            raise CacheError(msg)
        if afresh:
            shutil.rmtree(store.folder, ignore_errors=True)
        with working(f"index_videos {relation}.{column}"):
            build(base, kind, store, works, thread_share().working(), report)
        reader = store.open()
        tables = []
        for work in works:
            stored = None if reader is None else reader.shard(work.key)
            if stored is None:
                msg = f"index_videos: shard {work.name!r} is not in the index just built. Drop {store.folder} and build it again"
                raise CacheError(msg)
            tables.append(_table(base, column, work, stored))
        return pa.concat_tables(tables)


def _works(base: OpenRelation, shards: Sequence[str] | None) -> list[ShardWork]:
    manifest = base.manifest
    names = manifest.shard_names.to_pylist()
    if isinstance(shards, str):
        msg = f"index_videos: shards={shown(shards)}. Give a list of names: [{shown(shards)}]"
        raise PlanError(msg)
    unknown = sorted(set(shards or ()) - set(names))
    if unknown:
        msg = f"index_videos: {base.entry.name} has no storage shard {unknown[0]!r}; it has {', '.join(map(repr, names[:10]))}"
        raise PlanError(msg)
    return [
        ShardWork(
            name, manifest.content_keys[i].as_py(), int(manifest.starts[i]), rows, np.arange(rows, dtype=np.uint64)
        )
        for i, name in enumerate(names)
        if (shards is None or name in shards) and (rows := int(manifest.shard_rows[i]))
    ]


def _table(base: OpenRelation, column: str, work: ShardWork, stored: CachedShard) -> pa.Table:
    ordinals = work.offsets + np.uint64(work.first)
    at = stored.find(work.offsets)
    reasons = [stored.refused(each) for each in at.tolist()]
    bad = np.array([reason is not None for reason in reasons], dtype=np.bool_)
    named = _named(base.fetch(ordinals, [column])[column].combine_chunks())
    facts = {name: pa.array(values[at], mask=bad) for name, values in stored.narrow.items()}
    return pa.table({"row": ordinals.astype(np.int64), **named, **facts, "error": pa.array(reasons, pa.string())})


def _named(references: Any) -> dict[str, pa.Array]:
    """Return what references name: uri, offset and length, null where there is none."""
    kinds = {"uri": pa.string(), "offset": pa.int64(), "length": pa.int64()}
    if is_media(references.type):
        references = file_names(references)
    if pa.types.is_struct(references.type):
        inside = {field.name for field in references.type}
        return {
            name: pc.struct_field(references, name).cast(kind) if name in inside else pa.nulls(len(references), kind)
            for name, kind in kinds.items()
        }
    out = {name: pa.nulls(len(references), kind) for name, kind in kinds.items()}
    if pa.types.is_string(references.type) or pa.types.is_large_string(references.type):
        out["uri"] = references.cast(pa.string())
    return out
