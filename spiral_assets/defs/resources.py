"""The resources and the executor of this code location, and the definitions of your own images, if the demo got some."""

import dagster as dg

from spiral_assets.demo.own_images import own_definitions
from spiral_assets.resources import standard_resources


@dg.definitions
def resources() -> dg.Definitions:
    """Steps run in one process: they are few, and they start in milliseconds."""
    location = dg.Definitions(resources=standard_resources(), executor=dg.in_process_executor)
    return dg.Definitions.merge(location, own_definitions())
