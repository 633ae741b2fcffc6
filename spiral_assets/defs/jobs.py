"""What runs together, and when."""

from collections.abc import Iterator
from typing import Any, Final

import dagster as dg

TRAINED: Final = dg.AssetSelection.groups("training")

# By dagster.yaml one run of a value goes ahead and the others wait: a cache has one builder at a time.
BUILDERS: Final = {"images": "imagenet_decoded", "text": "text_tokens", "video": "video_clips"}
NIGHTLY: Final = {"images": "0 3 * * *", "text": "0 4 * * *", "video": "0 5 * * *"}


@dg.definitions
def jobs() -> dg.Definitions:
    """For images, text and video, one job runs it all; another prepares every night."""
    made = [job for domain in BUILDERS for job in _jobs(domain)]
    schedules = [
        dg.ScheduleDefinition(name=f"nightly_{domain}", job_name=f"prepare_{domain}", cron_schedule=when)
        for domain, when in NIGHTLY.items()
    ]
    return dg.Definitions(jobs=made, schedules=schedules)


def _jobs(domain: str) -> Iterator[Any]:
    """From data to a trained network, and the same without the training."""
    every = dg.AssetSelection.tag("domain", domain)
    tags = {"spiral/cache": BUILDERS[domain]}
    yield dg.define_asset_job(domain, every, description=f"From {domain} to a trained network.", tags=tags)
    yield dg.define_asset_job(
        f"prepare_{domain}", every - TRAINED, description="Register, measure, build caches, save streams.", tags=tags
    )
