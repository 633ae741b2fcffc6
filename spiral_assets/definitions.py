"""The code location: everything under ``defs``."""

from pathlib import Path

import dagster as dg


@dg.definitions
def defs() -> dg.Definitions:
    """Assets, checks, jobs, schedules, sensors and resources."""
    return dg.load_from_defs_folder(path_within_project=Path(__file__).parent)
