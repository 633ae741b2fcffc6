"""The cache of decoded images."""

from spiral_assets.assets import cache_asset
from spiral_assets.cache_rebuilds import image_code_version
from spiral_assets.defs.relations.images import imagenet_labels, imagenet_train
from spiral_assets.plans import images as plans

imagenet_decoded = cache_asset(
    "imagenet_decoded",
    domain="images",
    plan=plans.cache_plan,
    code_version=image_code_version(),
    deps=[imagenet_train, imagenet_labels],
    description="Decoded images at a bounded size, for training and validation.",
    metadata=lambda cache: {"profile": cache.form},
)
