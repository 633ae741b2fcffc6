# ruff: noqa: E402
"""Asset factories: one call per relation, tokenizer, cache, stream or training run, for your own code location.

Each returns ordinary Dagster definitions. The components of `spiral_assets.components` are the same calls in YAML. Give the
resources ``catalog`` and, for training, ``runs`` and ``pipes`` as `spiral_assets.resources` has them::

    import dagster as dg
    import spiral_stream as spiral
    from spiral_assets.assets import cache_assets, relation_assets


    def every_photo(catalog: spiral.Catalog) -> spiral.Relation:
        field = spiral.Stack("photo", decode="jpeg", transforms=[spiral.transforms.Resize((64, 64))])
        photos = catalog.table("shop.photos").cache(photo=spiral.Raw(shorter_side=96))
        return photos.sample(order=spiral.Sequential()).collate(
            batch_size=1, last=spiral.KeepPartial, fields={"image": field}
        )


    photos = relation_assets("shop.photos", {"kind": "parquet", "path": "photos"}, labels=["label_id"])
    decoded = cache_assets(
        "photos_decoded", plan=every_photo, deps=["catalog/shop/photos"], description="Decoded product photos."
    )
    defs = dg.Definitions.merge(photos, decoded)
"""

from spiral_assets import need_dagster

need_dagster()  # the rooms below would say it worse

from spiral_assets.assets.cache import cache_asset, cache_assets
from spiral_assets.assets.hooks import AssetProps, Hooks
from spiral_assets.assets.measure import Check, measure_assets
from spiral_assets.assets.registered import registered_asset
from spiral_assets.assets.relation import Limits, relation_assets
from spiral_assets.assets.stream import SavedStream, stream_asset, stream_assets
from spiral_assets.assets.tokenizer import tokenizer_asset
from spiral_assets.assets.training import training_asset, training_jobs
from spiral_assets.assets.vector_index import recall_check, vector_index_asset, vector_index_assets
from spiral_assets.assets.video_index import video_index_assets
from spiral_assets.facts.learned import Learned
from spiral_assets.named import Named, Plan, SavedPlan

__all__ = [
    "AssetProps",
    "Check",
    "Hooks",
    "Learned",
    "Limits",
    "Named",
    "Plan",
    "SavedPlan",
    "SavedStream",
    "cache_asset",
    "cache_assets",
    "measure_assets",
    "recall_check",
    "registered_asset",
    "relation_assets",
    "stream_asset",
    "stream_assets",
    "tokenizer_asset",
    "training_asset",
    "training_jobs",
    "vector_index_asset",
    "vector_index_assets",
    "video_index_assets",
]
