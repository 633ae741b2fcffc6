"""The resources and the executor of this code location."""

import dagster as dg

from spiral_assets.resources import CatalogResource, ImagesResource, RunsResource, TextsResource, VideosResource


@dg.definitions
def resources() -> dg.Definitions:
    """Resources, and an executor that runs steps in one process: there are few, and they start in milliseconds."""
    return dg.Definitions(
        resources={
            "catalog": CatalogResource(uri=dg.EnvVar("SPIRAL_CATALOG")),
            "images": ImagesResource(root=dg.EnvVar("SPIRAL_DATA_ROOT")),
            "texts": TextsResource(root=dg.EnvVar("SPIRAL_DATA_ROOT")),
            "videos": VideosResource(root=dg.EnvVar("SPIRAL_DATA_ROOT")),
            "runs": RunsResource(root=dg.EnvVar("SPIRAL_DATA_ROOT")),
            "pipes": dg.PipesSubprocessClient(),
        },
        executor=dg.in_process_executor,
    )
