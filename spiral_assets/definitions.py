"""The code location: everything under ``defs``."""

# ruff: noqa: E402
from pathlib import Path

from spiral_assets import need_dagster

need_dagster()  # the import below would say it worse

import dagster as dg


@dg.definitions
def defs() -> dg.Definitions:
    """Assets, checks, jobs, schedules, sensors and resources."""
    return dg.load_from_defs_folder(path_within_project=Path(__file__).parent)
