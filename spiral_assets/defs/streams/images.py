"""Named streams: plans that a training job opens by name."""

import dagster as dg

from spiral_assets import reports
from spiral_assets.defs.caches.images import imagenet_decoded
from spiral_assets.defs.statistics.images import shard_stats
from spiral_assets.plans import images as plans
from spiral_assets.resources import CatalogResource


@dg.asset(
    key=["streams", "images"],
    group_name="streams",
    kinds={"pytorch"},
    owners=["team:training"],
    tags={"domain": "images"},
    deps=[imagenet_decoded, shard_stats],
)
def images_stream(catalog: CatalogResource) -> dg.MaterializeResult[None]:
    """The training and the validation stream, saved under their names, explained."""
    opened = catalog.open()
    train, validation = plans.training(opened).to_torch(prefetch=4), plans.validation(opened).to_torch(prefetch=2)
    with train, validation:
        opened.save_stream(plans.TRAIN, train)
        opened.save_stream(plans.VALIDATION, validation)
        explained = train.explain()
        warnings = explained.to_dict()["warnings"]
        versions = ":".join(version for _, version in sorted(train.data_versions.items()))
        return dg.MaterializeResult(
            data_version=dg.DataVersion(f"{train.fingerprint}:{validation.fingerprint}:{versions}"),
            metadata={
                "explain": dg.MetadataValue.md(explained.to_markdown()),
                "fingerprint": train.fingerprint,
                "steps_per_epoch": len(train),
                "validation_steps": len(validation),
                "warnings": len(warnings),
                "open_it": reports.snippet(f'spiral_stream.open_stream("{plans.TRAIN}", epoch=0)'),
            },
        )
