"""Checks of the demo's video: labels for every segment, segments within their files, and few short clips."""

from typing import TYPE_CHECKING, Final

import dagster as dg

from spiral_assets.facts import reports
from spiral_assets.plans import video as plans

if TYPE_CHECKING:
    import spiral_stream as spiral

SHORT: Final = 0.1  # share of the segments that are shorter than the plan's clips
SHOWN: Final = 5  # examples in a description

# A frame's duration, or a millisecond, may be missing at the end. A file that holds one clip lasts as long as its segment.
_OUTSIDE: Final = f"""
select s.sample_id, s.start_time_ms + s.duration_ms as ends_ms, f.duration_ms as lasts_ms
from "{plans.RELATION}" s join "{plans.INDEX}" f
    on s.{plans.COLUMN}.uri = f.uri and s.{plans.COLUMN}."offset" = f."offset" and s.{plans.COLUMN}."length" = f."length"
where f.error is null
    and s.start_time_ms + s.duration_ms > f.duration_ms + greatest(1, f.duration_ms / f.frames)
    and abs(s.duration_ms - f.duration_ms) > greatest(1, f.duration_ms / f.frames)
order by s.sample_id
"""  # noqa: S608  names of our own catalog


def every_segment_is_labelled(catalog: "spiral.Catalog") -> dg.AssetCheckResult:
    """Check that every segment has a label, and that every label belongs to a segment."""
    found = {}
    for one, other in ((plans.RELATION, plans.LABELS), (plans.LABELS, plans.RELATION)):
        query = f'select s.sample_id from "{one}" s anti join "{other}" o using (sample_id) order by 1'  # noqa: S608  names of our own catalog
        found[one] = catalog.sql(query).to_arrow()["sample_id"].to_pylist()
    bare, loose = found[plans.RELATION], found[plans.LABELS]
    return dg.AssetCheckResult(
        passed=not bare and not loose,
        severity=dg.AssetCheckSeverity.WARN,
        description=f"{len(bare):,} segments without a label, {len(loose):,} labels without a segment",
        metadata={
            "without_label": reports.table([{"sample_id": name} for name in bare]),
            "without_segment": reports.table([{"sample_id": name} for name in loose]),
        },
    )


def segments_lie_in_their_files(catalog: "spiral.Catalog") -> dg.AssetCheckResult:
    """Check that no segment ends after its file."""
    late = catalog.sql(_OUTSIDE).to_arrow().to_pylist()
    examples = ", ".join(f"{row['sample_id']} ends at {row['ends_ms']} ms of {row['lasts_ms']}" for row in late[:SHOWN])
    return dg.AssetCheckResult(
        passed=not late,
        description=f"{len(late):,} segments lie outside their file: {examples}"
        if late
        else "all segments lie in their files",
        metadata={"outside": len(late)},
    )


def few_clips_are_short(catalog: "spiral.Catalog") -> dg.AssetCheckResult:
    """Check that few segments have fewer frames than a clip."""
    frames = catalog.table(plans.RELATION).project("frame_count").to_arrow()["frame_count"].to_numpy()
    short = int((frames < plans.FRAMES).sum())
    return dg.AssetCheckResult(
        passed=short <= SHORT * len(frames),
        severity=dg.AssetCheckSeverity.WARN,
        description=f"{short:,} of {len(frames):,} segments have fewer than {plans.FRAMES} frames",
        metadata={"short": short, "limit": SHORT},
    )
