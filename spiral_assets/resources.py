"""Resources: the catalog, and the folder of checkpoints."""

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import dagster as dg
from pydantic import Field

from spiral_assets.conventions import RESOURCE, runs_key

if TYPE_CHECKING:
    import spiral_stream as spiral

# OpenMP's threads spin while they wait. On shared cores, sleeping is 5 times as fast (two cores under load 3.5:
# 740 images/s instead of 145); on idle cores it is 25 % slower. The stream's own threads share the cores too.
PATIENT: Final = {"OMP_WAIT_POLICY": "PASSIVE"}


class CatalogResource(dg.ConfigurableResource):  # type: ignore[type-arg]  # yields itself
    """A catalog. Caches are stored under ``$SPIRAL_CACHE``, or next to the catalog; of one on a store, on this machine.

    Examples:
        >>> from spiral_assets.resources import CatalogResource
        >>> "shop.photos" in CatalogResource(uri="catalog").open().tables()
        True
    """

    uri: str = Field(default=dg.EnvVar("SPIRAL_CATALOG"), description="Folder or URI of the catalog.")

    def open(self) -> "spiral.Catalog":
        """Open the catalog; create it if it does not exist."""
        import spiral_stream as spiral

        return spiral.connect(self.uri)


class RunsResource(dg.ConfigurableResource):  # type: ignore[type-arg]  # yields itself
    """The folder of training checkpoints.

    Examples:
        >>> from spiral_assets.resources import RunsResource
        >>> @dg.asset
        ... def model(context: dg.AssetExecutionContext, runs: RunsResource):
        ...     context.add_output_metadata({"folder": runs.folder(context).name})
        >>> run(model)
        {'folder': 'model'}
    """

    root: str = Field(default=dg.EnvVar("SPIRAL_DATA_ROOT"), description="Checkpoints lie in its folder checkpoints.")

    def folder(self, context: dg.AssetExecutionContext) -> Path:
        """Return the folder of a model in a run. Retries and re-executions of a run share one folder."""
        run = str(context.run.root_run_id or context.run.run_id)
        return Path(self.root) / "checkpoints" / run / str(context.asset_key.path[-1])


def standard_resources(catalog: str | None = None, root: str | None = None, name: str = RESOURCE) -> dict[str, Any]:
    """Return the resources that the assets ask for: the catalog, the folder of checkpoints, and Dagster's Pipes.

    Args:
        catalog: folder or URI of the catalog; None for ``$SPIRAL_CATALOG``.
        root: checkpoints lie in its folder ``checkpoints``; None for ``$SPIRAL_DATA_ROOT``.
        name: of the catalog, by which components name it, where a location has several.

    Examples:
        >>> from spiral_assets.resources import standard_resources
        >>> sorted(standard_resources("catalog", "."))
        ['catalog', 'pipes', 'runs']
    """
    return {
        name: CatalogResource(uri=catalog or dg.EnvVar("SPIRAL_CATALOG")),
        runs_key(name): RunsResource(root=root or dg.EnvVar("SPIRAL_DATA_ROOT")),
        "pipes": _pipes(),
    }


@lru_cache(1)
def _pipes() -> dg.PipesSubprocessClient:
    """One for all catalogs: definitions that are merged may not differ in a resource."""
    return dg.PipesSubprocessClient()
