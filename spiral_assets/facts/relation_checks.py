"""Checks of a relation's content: references that lead somewhere, and origins of which none has most rows."""

from typing import TYPE_CHECKING, Any, Final

import dagster as dg

from spiral_assets.facts import reports
from spiral_assets.facts.findings import warned
from spiral_assets.facts.rules import Rule

if TYPE_CHECKING:
    import spiral_stream as spiral

JPEG: Final = "image/jpeg-ref"
_SIDE: Final = 16  # pixels of a decoded reference


def references(relation: str, column: str, sampled: int) -> Rule:
    """Return the rule that a random sample of references leads to images that can be decoded. It blocks.

    Args:
        relation: its name in the catalog.
        column: of references to JPEG images.
        sampled: how many to fetch and decode; 4 ms each.
    """

    def references_resolve(catalog: "spiral.Catalog") -> dg.AssetCheckResult:
        import spiral_stream as spiral

        field = spiral.Stack(column, decode="jpeg", transforms=[spiral.transforms.Resize((_SIDE, _SIDE))])
        one_by_one = (
            catalog.table(relation)
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

    words = "A random sample of references leads to images that can be decoded."
    return Rule("references_resolve", words, references_resolve, blocking=True)


def _refused(stream: Any, sampled: int) -> Any:
    """Yield the samples that cannot be read, with the reason."""
    import spiral_stream as spiral

    for number in range(sampled):
        try:
            stream.batch(number)
        except (spiral.errors.DataError, spiral.errors.SourceError) as error:
            yield {"sample": stream.ledger(number)[0], "reason": str(error)}


def shares(relation: str, column: str, limit: float) -> Rule:
    """Return the rule that no single value of a column has most of the rows. It warns.

    Args:
        relation: its name in the catalog.
        column: that says where rows come from.
        limit: largest allowed share of one value.
    """

    def none_has_most(catalog: "spiral.Catalog") -> dg.AssetCheckResult:
        counted = (catalog.entry(relation).identity[0], "count")
        grouped = catalog.table(relation).group_by(column).aggregate(rows=counted)
        rows = {row[column]: row["rows"] for row in grouped.to_arrow().to_pylist()}
        most = max(rows, key=lambda value: (rows[value], str(value)))
        share = rows[most] / sum(rows.values())
        return warned(
            passed=share < limit,
            description=f"{column} {most} has {share:.1%} of the rows",
            metadata={"largest": round(share, 4), "limit": limit},
        )

    words = f"No single {column} has more than {limit:.0%} of the rows: a model would learn that one."
    return Rule(f"no_{column}_has_most", words, none_has_most)
