"""What must hold of a registered relation before anything is built on it."""

from typing import Final

import dagster as dg

from spiral_assets import plans
from spiral_assets.defs.relations.assets import imagenet_train
from spiral_assets.resources import CatalogResource

SAMPLED: Final = 64  # references that are fetched and whose headers are read
DECLARED: Final = {
    "sample_id": "string",
    "label_id": "int64",
    plans.COLUMN: "image/jpeg-ref",
    "storage_shard": "string",
}


@dg.asset_check(asset=imagenet_train, blocking=True)
def identity_is_unique(catalog: CatalogResource) -> dg.AssetCheckResult:
    """Registration found every identity once."""
    entry = catalog.open().entry(plans.RELATION)
    return dg.AssetCheckResult(
        passed=entry.identity_unique, metadata={"identity": ", ".join(entry.identity), "rows": entry.manifest().total}
    )


@dg.asset_check(asset=imagenet_train, blocking=True)
def references_resolve(catalog: CatalogResource) -> dg.AssetCheckResult:
    """A sample of references, spread over the relation, leads to decodable images."""
    import spiral_stream as spiral

    relation = catalog.open().table(plans.RELATION)
    sampled = relation.sample(order=spiral.GlobalShuffle(seed=0)).collate(
        batch_size=SAMPLED,
        last=spiral.KeepPartial,
        fields={"image": spiral.Stack(plans.COLUMN, decode="jpeg", transforms=[spiral.Resize((16, 16))])},
    )
    try:
        with sampled.to_numpy() as stream:
            checked = len(stream.batch(0)["image"])
    except spiral.SourceError as error:
        return dg.AssetCheckResult(passed=False, description=str(error), metadata={"sampled": SAMPLED})
    return dg.AssetCheckResult(passed=True, metadata={"sampled": checked})


@dg.asset_check(asset=imagenet_train, blocking=True)
def schema_is_as_declared(catalog: CatalogResource) -> dg.AssetCheckResult:
    """The columns that the plans use have the declared types."""
    found = {}
    for field in catalog.open().entry(plans.RELATION).schema:
        semantic = (field.metadata or {}).get(b"spiral:semantic")
        found[field.name] = semantic.decode() if semantic else str(field.type)
    wrong = {name: found.get(name, "missing") for name, kind in DECLARED.items() if found.get(name) != kind}
    return dg.AssetCheckResult(
        passed=not wrong,
        description="; ".join(f"{name} is {kind}, declared {DECLARED[name]}" for name, kind in wrong.items()) or None,
        metadata={"declared": DECLARED, "wrong": wrong},
    )
