"""Jobs and schedules: which assets run together, and when."""

from collections.abc import Iterator
from typing import Any, Final

import dagster as dg

from spiral_assets.cache_rebuilds import NIGHTLY

TRAINED: Final = dg.AssetSelection.groups("training")

# dagster.yaml runs one job per tag value at a time, so a cache has one builder at a time.
BUILDERS: Final = {"images": "imagenet_decoded", "text": "text_tokens", "video": "video_clips"}


@dg.definitions
def jobs() -> dg.Definitions:
    """Two jobs per domain: one runs everything, and one prepares all but training, every night."""
    made = [job for domain in BUILDERS for job in _jobs(domain)]
    schedules = [
        dg.ScheduleDefinition(name=f"nightly_{domain}", job_name=f"prepare_{domain}", cron_schedule=when)
        for domain, when in NIGHTLY.items()
    ]
    return dg.Definitions(jobs=made, schedules=schedules)


def _jobs(domain: str) -> Iterator[Any]:
    """Yield the job from data to a trained model, and the same without training."""
    every = dg.AssetSelection.tag("domain", domain)
    tags = {"spiral/cache": BUILDERS[domain]}
    yield dg.define_asset_job(domain, every, description=f"From {domain} to a trained model.", tags=tags)
    yield dg.define_asset_job(
        f"prepare_{domain}",
        every - TRAINED,
        description="Register, check and measure relations, build caches, save streams.",
        tags=tags,
    )
