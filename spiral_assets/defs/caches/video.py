"""The cache of decoded clips: the frames that the plan takes, at a bounded size."""

from spiral_assets.assets import cache_asset
from spiral_assets.cache_rebuilds import clip_code_version
from spiral_assets.defs.indexes.video import index
from spiral_assets.plans import video as plans

video_clips = cache_asset(
    "video_clips",
    domain="video",
    plan=plans.cache_plan,
    code_version=clip_code_version(),
    deps=[index],
    description="Decoded frames of every segment at a bounded size, for training and validation.",
    metadata=lambda cache: {"profile": cache.form, "frames_of_a_clip": plans.FRAMES},
)
