"""What must hold of the video relations before anything is built on them."""

import dagster as dg

from spiral_assets import reports
from spiral_assets.checks import identity_check, schema_check
from spiral_assets.defs.relations.video import segment_labels, training_segments
from spiral_assets.plans import video as plans
from spiral_assets.resources import CatalogResource

identity_is_unique = identity_check(training_segments, plans.RELATION)
one_label_a_segment = identity_check(
    segment_labels,
    plans.LABELS,
    name="one_label_a_segment",
    description="Every segment has at most one label. A join with two would duplicate samples.",
)
segments_are_as_declared = schema_check(training_segments, plans.RELATION, plans.DECLARED[plans.RELATION])
labels_are_as_declared = schema_check(segment_labels, plans.LABELS, plans.DECLARED[plans.LABELS])


@dg.asset_check(asset=segment_labels, additional_deps=[training_segments])
def every_segment_is_labelled(catalog: CatalogResource) -> dg.AssetCheckResult:
    """Every segment has a label, so the join drops none, and every label belongs to a segment."""
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
