"""The video plans of this code location, shared by the cache, the streams, training and the demo.

The training plan is that of a segment classifier at demo size. It joins segments with their labels, drops short ones and
uncertain labels, reads in hash-bucketed order, and forms batches of similar clips under a budget of frames and bytes.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import spiral_stream as spiral

RELATION: Final = "video.training_segments"
LABELS: Final = "video.segment_labels"
INDEX: Final = "video.index"  # one row per file, for statistics and for people
TRAIN: Final = "video-train"
VALIDATION: Final = "video-validation"
COLUMN: Final = "clip_ref"
LABEL: Final = "label_id"
H264: Final = "video/h264-ref"
CACHED_SIDE: Final = 72  # pixels: 8 frames of 72 x 96 take 166 KB raw; as H.264, 60 KB and the decoding of 100 frames
SIDE: Final = 64
FRAMES: Final = 8
BATCH: Final = 16
WINDOW: Final = 64  # samples considered together when batches of similar clips are formed
STEPS: Final = 120
SAVE_EVERY: Final = 8
SHORTEST_MS: Final = 2_000
SURE: Final = 0.7
HELD_OUT: Final = ("3", "7")  # last digits of the videos used for validation only

DESCRIPTIONS: Final[Mapping[str, str]] = {
    "sample_id": "Stable sample ID: the video, and the number of the scene in it.",
    "video_id": "Video that contains the segment.",
    COLUMN: "The MP4 video: a file, or a byte range inside a tar.",
    "start_time_ms": "Start of the segment within the video, in milliseconds.",
    "duration_ms": "Duration of the segment in milliseconds.",
    "frame_count": "Frames shown during the segment.",
    "width": "Width in pixels, as shown upright.",
    "height": "Height in pixels, as shown upright.",
    "fps": "Frames per second; the mean if the rate varies.",
    "source": "Source of the video: upload, crawl, archive or broadcast.",
    "creator_id": "Creator of the video.",
    "upload_ts": "Time of upload.",
    "storage_shard": "Storage shard: the group of rows stored and read together.",
    LABEL: "Class number, from 0.",
    "caption": "Description of the scene.",
    "confidence": "Confidence of the annotator, from 0 to 1.",
    "file": "File that holds the video: path, or path[offset+length].",
    "segments": "Segments that refer to the file.",
    "frames": "Frames in the whole file.",
    "rotation": "Clockwise rotation in degrees that shows the video upright.",
    "key_distance": "Largest distance between key frames, in frames. A seek may decode this many.",
    "error": "Reason why the file is unusable; null if it is usable.",
}

_SEGMENTS: Final = {
    "sample_id": "string",
    "video_id": "string",
    COLUMN: H264,
    "start_time_ms": "int64",
    "duration_ms": "int64",
    "frame_count": "int32",
    "width": "int32",
    "height": "int32",
    "fps": "float",
    "source": "string",
    "creator_id": "string",
    "upload_ts": "timestamp[ns]",
    "storage_shard": "string",
}
_LABELS: Final = {"sample_id": "string", LABEL: "int64", "caption": "string", "confidence": "float"}

# The schema that the plans below expect, by relation: column -> type.
DECLARED: Final[Mapping[str, Mapping[str, str]]] = {RELATION: _SEGMENTS, LABELS: _LABELS}


def profile() -> "spiral.Frames":
    """The form in which the cache stores decoded clips."""
    import spiral_stream as spiral

    return spiral.Frames(shorter_side=CACHED_SIDE)


def cache_plan(catalog: "spiral.Catalog") -> "spiral.Relation":
    """Read every segment in storage order. The cache is built and checked with this plan."""
    import spiral_stream as spiral

    relation = catalog.table(RELATION).cache(**{COLUMN: profile()})
    return relation.sample(order=spiral.Sequential()).collate(
        batch_size=1, last=spiral.KeepPartial, fields={"frames": clips(random_crop=False)}
    )


def segments(catalog: "spiral.Catalog", *, held_out: bool) -> "spiral.Relation":
    """Return labelled segments of sufficient length and confidence, from held-out videos or from the others."""
    import spiral_stream as spiral

    digits = [spiral.col("video_id").str.ends_with(digit) for digit in HELD_OUT]
    of_held_out = digits[0] | digits[1]
    return (
        catalog.table(RELATION)
        .join(catalog.table(LABELS), on="sample_id")
        .filter((spiral.col("duration_ms") >= SHORTEST_MS) & (spiral.col("confidence") >= SURE))
        .filter(of_held_out if held_out else ~of_held_out)
        .cache(**{COLUMN: profile()})
    )


def training(catalog: "spiral.Catalog") -> "spiral.Relation":
    """Random crops in hash-bucketed order, in batches of clips of similar length and size."""
    import spiral_stream as spiral

    order = spiral.HashBucketed(seed=23, bucket_count=64, bucket_order=spiral.ShuffleBuckets(seed=23))
    return (
        segments(catalog, held_out=False)
        .sample(identity="sample_id", order=order)
        .collate(
            batch_size=BATCH,
            formation=spiral.WindowedBucket(
                window_size=WINDOW,
                keys=[spiral.BucketKey("frame_count"), spiral.BucketKey("width * height")],
                budget=spiral.BatchBudget(max_frames=BATCH * FRAMES, max_bytes=16_000_000),
            ),
            last=spiral.KeepPartial,
            fields=_fields(random_crop=True),
        )
    )


def validation(catalog: "spiral.Catalog") -> "spiral.Relation":
    """Centre crops in storage order, each sample once."""
    import spiral_stream as spiral

    return (
        segments(catalog, held_out=True)
        .sample(identity="sample_id", order=spiral.Sequential())
        .collate(batch_size=BATCH, last=spiral.KeepPartial, fields=_fields(random_crop=False))
    )


def clips(*, random_crop: bool) -> "spiral.Stack":
    """Frames spread over the segment, as uint8; the network scales them."""
    import spiral_stream as spiral

    return spiral.Stack(
        COLUMN,
        decode="h264",
        sequence_length=FRAMES,
        resize_shorter=CACHED_SIDE,
        crop=SIDE,
        random_crop=random_crop,
        dtype="uint8",
        layout="ntchw",
    )


def _fields(*, random_crop: bool) -> dict[str, Any]:
    import spiral_stream as spiral

    return {
        "frames": clips(random_crop=random_crop),
        "label": spiral.Stack(LABEL, dtype="int64"),
        "caption": spiral.List("caption"),
        "video_id": spiral.List("video_id"),
        "sample_id": spiral.List("sample_id"),
    }
