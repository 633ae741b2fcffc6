"""What must hold of the image relations before anything is built on them."""

from typing import Final

import dagster as dg

from spiral_assets import reports
from spiral_assets.defs.relations.images import imagenet_labels, imagenet_train
from spiral_assets.plans import images as plans
from spiral_assets.registration import as_declared, unique
from spiral_assets.resources import CatalogResource

SAMPLED: Final = 64  # references that are fetched and decoded; 4 ms each


@dg.asset_check(asset=imagenet_train, blocking=True)
def identity_is_unique(catalog: CatalogResource) -> dg.AssetCheckResult:
    """Every identity stands once: a sample that is two rows could not be found again."""
    return unique(catalog.open(), plans.RELATION)


@dg.asset_check(asset=imagenet_labels, blocking=True)
def label_is_unique(catalog: CatalogResource) -> dg.AssetCheckResult:
    """Every label has one name: a join with two would multiply samples."""
    return unique(catalog.open(), plans.LABELS)


@dg.asset_check(asset=imagenet_train, blocking=True)
def references_resolve(catalog: CatalogResource) -> dg.AssetCheckResult:
    """A sample of references, spread over the relation, leads to images that can be decoded."""
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
    """The columns have the types that the plans were written for."""
    opened = catalog.open()
    return as_declared(opened, plans.RELATION, plans.DECLARED[opened.entry(plans.RELATION).source.KIND])
