"""Several catalogs in one code location: which resources an asset, a check and a sensor take."""

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, Final

import dagster as dg

from spiral_assets.conventions import CATALOG_OF

CATALOG: Final = "catalog"  # key of the resource, where a location has one catalog
RUNS: Final = "runs"


def runs_key(catalog: str) -> str:
    """Return the key of the folder of checkpoints that goes with a catalog."""
    return RUNS if catalog == CATALOG else f"{catalog}_{RUNS}"


def renamed(catalog: str) -> Callable[[Callable[..., Any]], Any]:
    """Return a decorator that lets a body's parameters ``catalog`` and ``runs`` take the resources of another catalog.

    Args:
        catalog: key of its resource.
    """
    keys = {CATALOG: catalog, RUNS: runs_key(catalog)}
    names = {key: name for name, key in keys.items()}

    def bind(body: Callable[..., Any]) -> Callable[..., Any]:
        if catalog == CATALOG:
            return body

        @wraps(body)
        def bound(*args: Any, **resources: Any) -> Any:
            return body(*args, **{names.get(key, key): each for key, each in resources.items()})

        said = inspect.signature(body)
        changed = [each.replace(name=keys.get(name, name)) for name, each in said.parameters.items()]
        bound.__signature__ = said.replace(parameters=changed)  # type: ignore[attr-defined]  # inspect reads it
        bound.__annotations__ = {keys.get(name, name): each for name, each in body.__annotations__.items()}
        return bound

    return bind


def in_catalog_of(asset: dg.AssetsDefinition) -> Callable[[Callable[..., Any]], Any]:
    """Return a decorator that lets the body of a check take the catalog of the asset that it is of.

    Args:
        asset: that the check is of.
    """
    return renamed(
        next((str(each[CATALOG_OF]) for each in asset.metadata_by_key.values() if CATALOG_OF in each), CATALOG)
    )
