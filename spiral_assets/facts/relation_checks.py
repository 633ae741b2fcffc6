"""Checks of a relation's content: references that lead somewhere, and origins of which none has most rows."""

from typing import Any, Final

import dagster as dg

from spiral_assets.conventions import in_catalog_of
from spiral_assets.facts import reports
from spiral_assets.facts.findings import warned
from spiral_assets.resources import CatalogResource

JPEG: Final = "image/jpeg-ref"
_SIDE: Final = 16  # pixels of a decoded reference


def references_check(asset: dg.AssetsDefinition, relation: str, column: str, sampled: int) -> dg.AssetChecksDefinition:
    """Return a check that a random sample of references leads to images that can be decoded. It blocks.

    Args:
        asset: the asset that registers the relation.
        relation: its name in the catalog.
        column: of references to JPEG images.
        sampled: how many to fetch and decode; 4 ms each.
    """

    @dg.asset_check(
        asset=asset,
        name="references_resolve",
        blocking=True,
        description="A random sample of references leads to images that can be decoded.",
    )
    @in_catalog_of(asset)
    def references_resolve(catalog: CatalogResource) -> dg.AssetCheckResult:
        import spiral_stream as spiral

        field = spiral.Stack(column, decode="jpeg", transforms=[spiral.transforms.Resize((_SIDE, _SIDE))])
        one_by_one = (
            catalog.open()
            .table(relation)
            .sample(order=spiral.GlobalShuffle(seed=0))
            .collate(batch_size=1, last=spiral.KeepPartial, fields={"image": field})
        )
        try:
            with one_by_one.to_numpy() as stream:
                found = min(sampled, len(stream))
                refused = list(_refused(stream, found))
        except spiral.errors.SourceError as error:  # the relation as a whole
            return dg.AssetCheckResult(passed=False, description=str(error))
        return dg.AssetCheckResult(
            passed=not refused,
            description=f"{len(refused)} of {found} sampled references lead to no image: {refused[0]['reason']}"
            if refused
            else f"{found} sampled references lead to images",
            metadata={"sampled": found, "refused": reports.table(refused)},
        )

    return references_resolve


def _refused(stream: Any, sampled: int) -> Any:
    """Yield the samples that cannot be read, with the reason."""
    import spiral_stream as spiral

    for number in range(sampled):
        try:
            stream.batch(number)
        except (spiral.errors.DataError, spiral.errors.SourceError) as error:
            yield {"sample": stream.ledger(number)[0], "reason": str(error)}


def share_check(asset: dg.AssetsDefinition, relation: str, column: str, limit: float) -> dg.AssetChecksDefinition:
    """Return a check that no single value of a column has most of the rows. It warns.

    Args:
        asset: the asset that measures the relation.
        relation: its name in the catalog.
        column: that says where rows come from.
        limit: largest allowed share of one value.
    """

    @dg.asset_check(
        asset=asset,
        name=f"no_{column}_has_most",
        description=f"No single {column} has more than {limit:.0%} of the rows: a model would learn that one.",
    )
    @in_catalog_of(asset)
    def none_has_most(catalog: CatalogResource) -> dg.AssetCheckResult:
        opened = catalog.open()
        grouped = opened.table(relation).group_by(column).aggregate(rows=(opened.entry(relation).identity[0], "count"))
        rows = {row[column]: row["rows"] for row in grouped.to_arrow().to_pylist()}
        most = max(rows, key=lambda value: (rows[value], str(value)))
        share = rows[most] / sum(rows.values())
        return warned(
            passed=share < limit,
            description=f"{column} {most} has {share:.1%} of the rows",
            metadata={"largest": round(share, 4), "limit": limit},
        )

    return none_has_most
