"""Check that the clip cache is complete before a stream relies on it."""

from spiral_assets.checks import cache_check
from spiral_assets.defs.caches.video import video_clips
from spiral_assets.plans import video as plans

cache_is_complete = cache_check(video_clips, plans.cache_plan)
