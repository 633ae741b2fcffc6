"""The named video streams: plans that a training job opens by name."""

import dagster as dg

from spiral_assets import reports
from spiral_assets.defs.caches.video import video_clips
from spiral_assets.defs.relations.video import segment_labels
from spiral_assets.defs.statistics.video import clip_stats, shard_stats
from spiral_assets.plans import video as plans
from spiral_assets.resources import CatalogResource


@dg.asset(
    key=["streams", "video"],
    group_name="streams",
    kinds={"pytorch"},
    owners=["team:training"],
    tags={"domain": "video"},
    deps=[video_clips, segment_labels, clip_stats, shard_stats],
)
def video_stream(catalog: CatalogResource) -> dg.MaterializeResult[None]:
    """The training and the validation stream, saved under their names, explained."""
    opened = catalog.open()
    train, validation = plans.training(opened).to_torch(prefetch=4), plans.validation(opened).to_torch(prefetch=2)
    with train, validation:
        opened.save_stream(plans.TRAIN, train)
        opened.save_stream(plans.VALIDATION, validation)
        explained = train.explain()
        versions = ":".join(version for _, version in sorted(train.data_versions.items()))
        return dg.MaterializeResult(
            data_version=dg.DataVersion(f"{train.fingerprint}:{validation.fingerprint}:{versions}"),
            metadata={
                "explain": dg.MetadataValue.md(explained.to_markdown()),
                "fingerprint": train.fingerprint,
                "samples_per_epoch": train.rows,
                "validation_samples": validation.rows,
                "warnings": len(explained.to_dict()["warnings"]),
                "open_it": reports.snippet(f'spiral_stream.open_stream("{plans.TRAIN}", epoch=0)'),
            },
        )
