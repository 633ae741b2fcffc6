"""Draw videos and write them as relations: MP4 files, a tar, and Parquet.

The columns are those of `video.training_segments` and `video.segment_labels`. A row is a scene: a time range of a file.
The scenes of the last video are files of their own, in a tar. Videos are ordered by upload and cut into storage shards,
so a shard holds what was uploaded together: a source that was busy early fills the first shards. 48 videos, 240
segments, 18 MB: 11 CPU s.
"""

import multiprocessing
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Final, final

import pyarrow as pa
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from spiral_assets.corpora.footage import Row, Studio, Video, planned
from spiral_assets.corpora.writing import Record, worker_count

RECORD: Final = "videos.json"
SEGMENTS: Final = "training_segments"
LABELS: Final = "segment_labels"
FILES: Final = "files"
DRAWING_VERSION: Final = 2  # raise it when the same numbers give different files or rows

REFERENCE: Final = pa.struct([("uri", pa.string()), ("offset", pa.int64()), ("length", pa.int64())])
SEGMENTS_SCHEMA: Final = pa.schema(
    [
        ("sample_id", pa.string()),
        ("video_id", pa.string()),
        ("clip_ref", REFERENCE),
        ("start_time_ms", pa.int64()),
        ("duration_ms", pa.int64()),
        ("frame_count", pa.int32()),
        ("width", pa.int32()),
        ("height", pa.int32()),
        ("fps", pa.float32()),
        ("source", pa.string()),
        ("creator_id", pa.string()),
        ("upload_ts", pa.timestamp("ns")),
        ("storage_shard", pa.string()),
    ]
)
LABELS_SCHEMA: Final = pa.schema(
    [("sample_id", pa.string()), ("label_id", pa.int64()), ("caption", pa.string()), ("confidence", pa.float32())]
)


@final
@dataclass(frozen=True, slots=True)
class DrawnVideos:
    """What was written, and where."""

    root: str  # folder that references start from
    segments_path: str  # folder of Parquet files, one per storage shard
    labels_path: str  # a Parquet file
    videos: int
    segments: int
    shards: int
    video_bytes: int


@final
@dataclass(frozen=True, slots=True)
class _Recipe:
    """Everything that decides which bytes are written."""

    root: str
    count: int
    seed: int
    shards: int
    shorten: float
    version: int = DRAWING_VERSION

    def __post_init__(self) -> None:
        if not 1 <= self.shards <= self.count:
            msg = f"write_video_relations: {self.count} videos in {self.shards} shards. Give each shard a video or more"
            raise ValueError(msg)
        if not 0 < self.shorten <= 1:
            msg = f"write_video_relations: shorten={self.shorten}; it is above 0 and at most 1, which shortens nothing"
            raise ValueError(msg)


def write_video_relations(
    root: Path,
    count: int = 48,
    seed: int = 0,
    shards: int = 6,
    *,
    shorten: float = 1.0,
    workers: int | None = None,
    progress: bool = True,
) -> DrawnVideos:
    """Draw and encode videos under ``root``; an earlier result with the same settings is reused.

    Args:
        root: folder of its own; created if need be.
        count: of videos. The first has frames at uneven times, the second a sound track, the third lies on its side;
            the last is cut into clips.
        seed: the same seed, with the same encoder on the same kind of processor, gives the same bytes.
        shards: storage shards: Parquet files.
        shorten: the part of every scene's length that is left, and so of the cost.
        workers: processes that draw and encode; None is one per core, 0 works in this process. With more than 0 the
            calling script needs the usual ``if __name__ == "__main__"``.
        progress: show a bar.

    Raises:
        ValueError: a number that makes no sense, or ``root`` holds something else.
    """
    root = Path(root).resolve()
    recipe = _Recipe(str(root), count, seed, shards, shorten)
    record = Record(root, RECORD, [SEGMENTS, f"{LABELS}.parquet", FILES])
    found = record.found(asdict(recipe))
    if found is not None:
        return DrawnVideos(**found)
    record.begin()
    (root / FILES).mkdir()
    videos = [planned(seed, number, shorten=shorten, cut=number == count - 1) for number in range(count)]
    by_upload = sorted(videos, key=lambda video: (video.uploaded_ns, video.number))
    columns = [TextColumn("encoding videos"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()]
    with Progress(*columns, disable=not progress) as bar:
        rows = list(bar.track(_filmed(recipe, by_upload, worker_count(workers)), total=count))
    written = _write_tables(root, recipe, rows)
    record.finish(asdict(recipe), asdict(written))
    return written


def _filmed(recipe: _Recipe, videos: Sequence[Video], workers: int) -> Iterator[list[Row]]:
    """Yield the rows of each video, in order, once it is written."""
    if workers == 0:
        yield from map(_studio(recipe).film, videos)
        return
    # Spawned: the parent may hold the threads of Lance or torch, which a fork would leave half alive.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_Worker.start, initargs=(recipe,)) as pool:
        yield from pool.map(_Worker.film, videos)


def _studio(recipe: _Recipe) -> Studio:
    return Studio(recipe.seed, Path(recipe.root), FILES)


@final
class _Worker:
    """The studio of a worker process, whose noise costs 0.2 CPU s once."""

    studio: Studio

    @classmethod
    def start(cls, recipe: _Recipe) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # the pool ends it so; a background job of a shell may ignore it
        cls.studio = _studio(recipe)

    @classmethod
    def film(cls, video: Video) -> list[Row]:
        return cls.studio.film(video)


def _write_tables(root: Path, recipe: _Recipe, videos: Sequence[Sequence[Row]]) -> DrawnVideos:
    """Write one Parquet file per storage shard, and one with all labels."""
    import pyarrow.parquet as pq

    (root / SEGMENTS).mkdir()
    for shard in range(recipe.shards):
        first, last = (at * len(videos) // recipe.shards for at in (shard, shard + 1))
        name = f"part-{shard:04d}"
        rows = [{**row, "storage_shard": name} for row in chain.from_iterable(videos[first:last])]
        pq.write_table(pa.Table.from_pylist(rows, SEGMENTS_SCHEMA), root / SEGMENTS / f"{name}.parquet")
    every = list(chain.from_iterable(videos))
    labels = sorted(every, key=lambda row: row["sample_id"])
    pq.write_table(pa.Table.from_pylist(labels, LABELS_SCHEMA), root / f"{LABELS}.parquet")
    return DrawnVideos(
        root=str(root),
        segments_path=str(root / SEGMENTS),
        labels_path=str(root / f"{LABELS}.parquet"),
        videos=len(videos),
        segments=len(every),
        shards=recipe.shards,
        video_bytes=sum(path.stat().st_size for path in (root / FILES).iterdir()),
    )
