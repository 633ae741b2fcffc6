"""The named text stream: the plan that a training job opens by name."""

import dagster as dg

from spiral_assets import reports
from spiral_assets.defs.caches.text import CACHES
from spiral_assets.defs.statistics.text import token_lengths
from spiral_assets.plans import text as plans
from spiral_assets.resources import CatalogResource


@dg.asset(
    key=["streams", plans.TRAIN],
    group_name="streams",
    kinds={"pytorch"},
    owners=["team:training"],
    tags={"domain": "text"},
    deps=[*CACHES.values(), token_lengths],
)
def text_stream(catalog: CatalogResource) -> dg.MaterializeResult[None]:
    """The mixture, saved under its name, explained."""
    opened = catalog.open()
    with plans.training(opened).to_torch(prefetch=4) as train:
        opened.save_stream(plans.TRAIN, train)
        explained = train.explain()
        versions = ":".join(version for _, version in sorted(train.data_versions.items()))
        return dg.MaterializeResult(
            data_version=dg.DataVersion(f"{train.fingerprint}:{versions}"),
            metadata={
                "explain": dg.MetadataValue.md(explained.to_markdown()),
                "fingerprint": train.fingerprint,
                "samples_per_epoch": plans.EPOCH_SIZE,
                "warnings": len(explained.to_dict()["warnings"]),
                "open_it": reports.snippet(f'spiral_stream.open_stream("{plans.TRAIN}", epoch=0)'),
            },
        )
