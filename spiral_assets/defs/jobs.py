"""What runs together, and when."""

import dagster as dg

EVERYTHING = dg.AssetSelection.groups("catalog", "stats", "caches", "streams", "training")
PREPARATION = dg.AssetSelection.groups("catalog", "stats", "caches", "streams")

ONE_BUILDER = {"spiral/cache": "imagenet_decoded"}  # dagster.yaml lets one run a value go ahead, the others wait


@dg.definitions
def jobs() -> dg.Definitions:
    """One job runs it all; another prepares every night."""
    prepare = dg.define_asset_job(
        "prepare_images", PREPARATION, description="Register, measure, build caches, save streams.", tags=ONE_BUILDER
    )
    return dg.Definitions(
        jobs=[
            dg.define_asset_job(
                "images", EVERYTHING, description="From images to a trained network.", tags=ONE_BUILDER
            ),
            prepare,
        ],
        schedules=[dg.ScheduleDefinition(name="nightly", job=prepare, cron_schedule="0 3 * * *")],
    )
