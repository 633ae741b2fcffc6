"""Check that the image cache is complete before a stream relies on it."""

from spiral_assets.checks import cache_check
from spiral_assets.defs.caches.images import imagenet_decoded
from spiral_assets.plans import images as plans

cache_is_complete = cache_check(imagenet_decoded, plans.cache_plan)
