"""The video stream of this code location: one plan, used by the cache, the stream and the demo.

It is the plan of a classifier of segments at the size of a demo: segments joined with their labels, long and sure
enough only, in hash-bucketed order, batches of like clips under a budget of frames and bytes.
"""

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import spiral_stream as spiral

RELATION: Final = "video.training_segments"
LABELS: Final = "video.segment_labels"
INDEX: Final = "video.index"  # a row a file: what statistics and people look at
TRAIN: Final = "video-train"
VALIDATION: Final = "video-validation"
COLUMN: Final = "clip_ref"
LABEL: Final = "label_id"
H264: Final = "video/h264-ref"
CACHED_SIDE: Final = (
    72  # pixels: 8 frames of 72 x 96 are 166 KB raw, beside 60 KB of H.264 that takes 100 frames to decode
)
SIDE: Final = 64
FRAMES: Final = 8
BATCH: Final = 16
WINDOW: Final = 64  # samples that wait for neighbours like them
STEPS: Final = 120
SAVE_EVERY: Final = 8
SHORTEST_MS: Final = 2_000
SURE: Final = 0.7
HELD_OUT: Final = ("3", "7")  # last digits of the videos that are validated on: no video is in both

DESCRIPTIONS: Final[Mapping[str, str]] = {
    "sample_id": "Tells samples apart for good: the video and the place of the scene in it.",
    "video_id": "The video that the segment is of.",
    COLUMN: "The MP4: a file, or a clip's bytes inside a tar.",
    "start_time_ms": "Where the segment begins in the video.",
    "duration_ms": "How long it is.",
    "frame_count": "Frames that are shown in it.",
    "width": "Pixels, upright.",
    "height": "Pixels, upright.",
    "fps": "Frames a second; the mean where they are uneven.",
    "source": "How the video came in.",
    "creator_id": "Who made it.",
    "upload_ts": "When it came in.",
    "storage_shard": "The unit in which rows lie together and are read.",
    LABEL: "The class, from 0.",
    "caption": "What is seen, in words.",
    "confidence": "How sure the annotator was, from 0 to 1.",
    "file": "Where the video lies: a path, or path[offset+length].",
    "segments": "Rows that name it.",
    "frames": "Of the whole file.",
    "rotation": "Degrees to the right that show it upright.",
    "key_distance": "Most frames from one key frame to the next: what has to be decoded before a frame in between.",
    "error": "Why the file cannot be used; null where it can.",
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

# What the plans below were written for, by relation: column -> type.
DECLARED: Final[Mapping[str, Mapping[str, str]]] = {RELATION: _SEGMENTS, LABELS: _LABELS}


def profile() -> "spiral.Frames":
    """The form in which decoded clips are kept."""
    import spiral_stream as spiral

    return spiral.Frames(shorter_side=CACHED_SIDE)


def cache_code_version() -> str:
    """What the clip cache is made by, as far as code decides it; needs no data."""
    return hashlib.blake2b(f"{RELATION} {COLUMN} {FRAMES} {profile()}".encode(), digest_size=16).hexdigest()


def cache_plan(catalog: "spiral.Catalog") -> "spiral.Relation":
    """Every segment on its own, in storage order: what the cache is built and checked by."""
    import spiral_stream as spiral

    relation = catalog.table(RELATION).cache(**{COLUMN: profile()})
    return relation.sample(order=spiral.Sequential()).collate(
        batch_size=1, last=spiral.KeepPartial, fields={"frames": clips(random_crop=False)}
    )


def segments(catalog: "spiral.Catalog", *, held_out: bool) -> "spiral.Relation":
    """Segments with their labels, long and sure enough; those of held-out videos, or the others."""
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
    """Random crops in hash-bucketed order, clips of like length and size together."""
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
    """Centre crops in storage order, every sample once."""
    import spiral_stream as spiral

    return (
        segments(catalog, held_out=True)
        .sample(identity="sample_id", order=spiral.Sequential())
        .collate(batch_size=BATCH, last=spiral.KeepPartial, fields=_fields(random_crop=False))
    )


def clips(*, random_crop: bool) -> "spiral.Stack":
    """Frames spread over the segment, as bytes: the network makes numbers of them."""
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
