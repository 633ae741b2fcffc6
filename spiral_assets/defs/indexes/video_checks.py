"""What must hold of video files before clips are cached. The plan skips nothing, so a bad file would stop training."""

from typing import Final

import dagster as dg

from spiral_assets.defs.indexes.video import index
from spiral_assets.plans import video as plans
from spiral_assets.registration import SHOWN
from spiral_assets.resources import CatalogResource

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


@dg.asset_check(asset=index, blocking=True)
def files_are_usable(catalog: CatalogResource) -> dg.AssetCheckResult:
    """Every file exists and is complete H.264 video with timestamps."""
    files = catalog.open().table(plans.INDEX).to_arrow().select(["file", "error"]).to_pylist()
    bad = [row for row in files if row["error"] is not None]
    examples = "; ".join(f"{row['file']}: {row['error']}" for row in bad[:SHOWN])
    return dg.AssetCheckResult(
        passed=not bad,
        description=f"{len(bad)} of {len(files)} files cannot be used: {examples}" if bad else f"{len(files):,} files",
        metadata={"files": len(files), "refused": len(bad)},
    )


@dg.asset_check(asset=index, blocking=True)
def segments_lie_in_their_files(catalog: CatalogResource) -> dg.AssetCheckResult:
    """No segment ends after its file. Files that hold exactly one clip are exempt."""
    late = catalog.open().sql(_OUTSIDE).to_arrow().to_pylist()
    examples = ", ".join(f"{row['sample_id']} ends at {row['ends_ms']} ms of {row['lasts_ms']}" for row in late[:SHOWN])
    return dg.AssetCheckResult(
        passed=not late,
        description=f"{len(late):,} segments lie outside their file: {examples}"
        if late
        else "all segments lie in their files",
        metadata={"outside": len(late)},
    )
