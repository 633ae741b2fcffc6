"""What must hold of a relation, as values: a step of its own evaluates a rule, or the step that registers the relation does."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, final

import dagster as dg

from spiral_assets import conventions
from spiral_assets.conventions import Deps, in_catalog_of
from spiral_assets.facts.findings import missing, mixed, refused, warned
from spiral_assets.resources import CatalogResource

if TYPE_CHECKING:
    import spiral_stream as spiral

NEAR: Final = "row_count_is_near_the_last"  # names of checks
FEW_MISSING: Final = "few_values_are_missing"
FEW_REFUSED: Final = "few_rows_were_refused"
_BOTH: Final = 2  # materializations that are compared


@final
@dataclass(frozen=True)
class Rule:
    """What must hold of an asset.

    Attributes:
        name: of the check.
        description: shown in the UI.
        judge: what is found in the catalog; None for a rule of materializations.
        blocking: whether nothing is built on the asset while it fails.
        compare: what is found among the materializations of an asset, where ``judge`` is None.
        deps: other assets that it reads.
    """

    name: str
    description: str
    judge: "Callable[[spiral.Catalog], dg.AssetCheckResult] | None" = None
    blocking: bool = False
    compare: Callable[[dg.DagsterInstance, dg.AssetKey], dg.AssetCheckResult] | None = None
    deps: Deps = ()

    def spec(self, key: dg.AssetKey) -> dg.AssetCheckSpec:
        """Return the check as part of another step.

        Args:
            key: of the asset.
        """
        return dg.AssetCheckSpec(self.name, asset=key, description=self.description or None, blocking=self.blocking)

    def found(self, instance: dg.DagsterInstance, key: dg.AssetKey, catalog: CatalogResource) -> dg.AssetCheckResult:
        """Return what is found, named as part of another step names it.

        Args:
            instance: that has the materializations.
            key: of the asset.
            catalog: of the asset.
        """
        found = self.compare(instance, key) if self.compare is not None else self._judged(catalog)
        return found._replace(asset_key=key, check_name=self.name)

    def check(self, asset: dg.AssetsDefinition) -> dg.AssetChecksDefinition:
        """Return the check as a step of its own.

        Args:
            asset: that it is of.
        """
        decorate = dg.asset_check(
            asset=asset,
            name=self.name,
            blocking=self.blocking,
            description=self.description or None,
            additional_deps=conventions.keys(self.deps) or None,
        )
        compare = self.compare
        if compare is not None:

            def compared(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
                return compare(context.instance, asset.key)

            return decorate(compared)

        @in_catalog_of(asset)
        def judged(catalog: CatalogResource) -> dg.AssetCheckResult:
            return self._judged(catalog)

        return decorate(judged)

    def _judged(self, catalog: CatalogResource) -> dg.AssetCheckResult:
        assert self.judge is not None
        return self.judge(catalog.open())


def row_count(most_change: float, name: str = NEAR) -> Rule:
    """A relation has about as many rows as the last time."""

    def compare(instance: dg.DagsterInstance, key: dg.AssetKey) -> dg.AssetCheckResult:
        found = _row_counts(instance, key)
        if len(found) < _BOTH:
            return warned(passed=True, description="there is no earlier number of rows to compare with")
        now, before = found
        change = abs(now - before) / max(1, before)
        return warned(
            passed=change <= most_change,
            description=f"{now:,} rows, {before:,} before",
            metadata={"rows": now, "before": before, "change": round(change, 4), "limit": most_change},
        )

    words = f"The number of rows changed by at most {most_change:.0%} since the last materialization."
    return Rule(name, words, compare=compare)


def missing_values(relation: str, limit: float, limits: Mapping[str, float], name: str = FEW_MISSING) -> Rule:
    """Few values of each column are null or NaN."""
    words = f"At most {limit:.0%} of a column's values are null or NaN."
    return Rule(name, words, lambda catalog: missing(catalog, relation, limit, limits))


def mixed_shards(relation: str, column: str, limit: float, name: str) -> Rule:
    """Each storage shard has a mix of values similar to the whole."""
    words = f"Each storage shard has a mix of {column} similar to the whole, so blocks of a few shards shuffle well."
    return Rule(name, words, lambda catalog: mixed(catalog, relation, column, limit))


def refused_rows(relation: str, limit: float, name: str = FEW_REFUSED) -> Rule:
    """An import could read nearly all rows of its source."""
    words = f"At most {limit:.0%} of the rows could not be read."
    return Rule(name, words, lambda catalog: refused(catalog, relation, limit))


def _row_counts(instance: dg.DagsterInstance, key: dg.AssetKey) -> list[int]:
    """The rows of the last two materializations, the latest first."""
    found = []
    for record in instance.fetch_materializations(limit=_BOTH, records_filter=key).records:
        made = record.asset_materialization
        value = None if made is None else made.metadata.get("dagster/row_count")
        if value is not None and isinstance(value.value, int):
            found.append(value.value)
    return found
