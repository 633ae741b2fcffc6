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


def samples(train: "spiral.PreparedStream", validation: "spiral.PreparedStream") -> Mapping[str, Any]:
    """Return how many samples the two streams have."""
    return {"samples_per_epoch": train.rows, "validation_samples": validation.rows}


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
