"""What must hold of the image relations before anything is built on them."""

from typing import Final

import dagster as dg

from spiral_assets import reports
from spiral_assets.checks import identity_check
from spiral_assets.defs.relations.images import imagenet_labels, imagenet_train
from spiral_assets.plans import images as plans
from spiral_assets.registration import as_declared
from spiral_assets.resources import CatalogResource

SAMPLED: Final = 64  # references to fetch and decode; 4 ms each


identity_is_unique = identity_check(imagenet_train, plans.RELATION)
label_is_unique = identity_check(
    imagenet_labels,
    plans.LABELS,
    name="label_is_unique",
    description="Every label has one name. A join with two would duplicate samples.",
)


@dg.asset_check(asset=imagenet_train, blocking=True)
def references_resolve(catalog: CatalogResource) -> dg.AssetCheckResult:
    """A random sample of references leads to images that can be decoded."""
    import spiral_stream as spiral

    field = spiral.Stack(plans.COLUMN, decode="jpeg", transforms=[spiral.Resize((16, 16))])
    one_by_one = (
        catalog.open()
        .table(plans.RELATION)
        .sample(order=spiral.GlobalShuffle(seed=0))
        .collate(batch_size=1, last=spiral.KeepPartial, fields={"image": field})
    )
    refused = []
    try:
        with one_by_one.to_numpy() as stream:
            sampled = min(SAMPLED, len(stream))
            for number in range(sampled):
                try:
                    stream.batch(number)
                except (spiral.DataError, spiral.SourceError) as error:
                    refused.append({"sample": stream.ledger(number)[0], "reason": str(error)})
    except spiral.SourceError as error:  # the relation as a whole
        return dg.AssetCheckResult(passed=False, description=str(error))
    return dg.AssetCheckResult(
        passed=not refused,
        description=f"{len(refused)} of {sampled} sampled references lead to no image: {refused[0]['reason']}"
        if refused
        else f"{sampled} sampled references lead to images",
        metadata={"sampled": sampled, "refused": reports.table(refused)},
    )


@dg.asset_check(asset=imagenet_train, blocking=True)
def schema_is_as_declared(catalog: CatalogResource) -> dg.AssetCheckResult:
    """The columns have the types that the plans were written for, by kind of source."""
    opened = catalog.open()
    return as_declared(opened, plans.RELATION, plans.DECLARED[opened.entry(plans.RELATION).source.KIND])
