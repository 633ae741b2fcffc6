"""What must hold of the video relations before anything is built on them."""

import dagster as dg

from spiral_assets import reports
from spiral_assets.defs.relations.video import segment_labels, training_segments
from spiral_assets.plans import video as plans
from spiral_assets.registration import as_declared, unique
from spiral_assets.resources import CatalogResource


@dg.asset_check(asset=training_segments, blocking=True)
def identity_is_unique(catalog: CatalogResource) -> dg.AssetCheckResult:
    """Every identity stands once: a sample that is two rows could not be found again."""
    return unique(catalog.open(), plans.RELATION)


@dg.asset_check(asset=segment_labels, blocking=True)
def one_label_a_segment(catalog: CatalogResource) -> dg.AssetCheckResult:
    """Every segment has one label at most: a join with two would multiply samples."""
    return unique(catalog.open(), plans.LABELS)


@dg.asset_check(asset=segment_labels, additional_deps=[training_segments])
def every_segment_is_labelled(catalog: CatalogResource) -> dg.AssetCheckResult:
    """No segment is left out by the join with its label, and no label is of a segment that is not there."""
    opened = catalog.open()
    found = {}
    for one, other in ((plans.RELATION, plans.LABELS), (plans.LABELS, plans.RELATION)):
        query = f'select s.sample_id from "{one}" s anti join "{other}" o using (sample_id) order by 1'  # noqa: S608  names of our own catalog
        found[one] = opened.sql(query).to_arrow()["sample_id"].to_pylist()
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


@dg.asset_check(asset=training_segments, blocking=True, name="schema_is_as_declared")
def segments_are_as_declared(catalog: CatalogResource) -> dg.AssetCheckResult:
    """The columns have the types that the plans were written for."""
    return as_declared(catalog.open(), plans.RELATION, plans.DECLARED[plans.RELATION])


@dg.asset_check(asset=segment_labels, blocking=True, name="schema_is_as_declared")
def labels_are_as_declared(catalog: CatalogResource) -> dg.AssetCheckResult:
    """The columns have the types that the plans were written for."""
    return as_declared(catalog.open(), plans.LABELS, plans.DECLARED[plans.LABELS])
