"""Conventions that every asset follows: keys, groups, owners, icons and pools.

Keys are paths: ``catalog/<relation>``, ``stats/<relation>/<what>``, ``indexes/<relation>/<column>``, ``caches/<name>``,
``streams/<name>``, ``tokenizers/<name>`` and ``models/<name>``; dots of a relation's name become folders. The first part is
the group, with two exceptions: models are in `TRAINING`, and video indexes in `INDEXES`, because a cache and a relation of one
index in their own groups would make the lineage a circle.
"""

import inspect
import re
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, Final

import dagster as dg

CATALOG: Final = "catalog"
STATS: Final = "stats"
INDEXES: Final = "indexes"
CACHES: Final = "caches"
STREAMS: Final = "streams"
TOKENIZERS: Final = "tokenizers"
TRAINING: Final = "training"

DATA_TEAM: Final = ("team:data",)
TRAINING_TEAM: Final = ("team:training",)
MOVED: Final = "spiral/group"  # tag of an asset in another group than Spiral's, by which automation and jobs find it
CATALOG_OF: Final = (
    "spiral/catalog"  # tag and metadata of an asset in another catalog than that of the resource ``catalog``
)
DOMAIN: Final = "domain"  # tag by which jobs select what belongs together

RESOURCE: Final = "catalog"  # key of the resource, where a location has one catalog
RUNS: Final = "runs"

Dep = dg.AssetsDefinition | dg.AssetSpec | dg.AssetKey | str
Deps = Sequence[Dep]

# Icons of sources whose kind is none that Dagster draws. Other kinds are shown as they are called.
_ICONS: Final = {"image_folder": "jpeg", "video_folder": "mp4", "imported": "lance"}


def relation_key(relation: str) -> dg.AssetKey:
    """``vision.photos`` is ``catalog/vision/photos``."""
    return dg.AssetKey([CATALOG, *relation.split(".")])


def stats_key(relation: str, what: str = "shard_stats") -> dg.AssetKey:
    """``vision.photos`` is ``stats/vision/photos/shard_stats``."""
    return dg.AssetKey([STATS, *relation.split("."), what])


def index_key(relation: str, column: str) -> dg.AssetKey:
    """The vectors in ``embedding`` of ``vision.photos`` are ``indexes/vision/photos/embedding``."""
    return dg.AssetKey([INDEXES, *relation.split("."), column])


def cache_key(name: str) -> dg.AssetKey:
    """``photos`` is ``caches/photos``."""
    return dg.AssetKey([CACHES, name])


def stream_key(name: str) -> dg.AssetKey:
    """``photos`` is ``streams/photos``."""
    return dg.AssetKey([STREAMS, name])


def tokenizer_key(name: str) -> dg.AssetKey:
    """``llama-tokenizer`` is ``tokenizers/llama_tokenizer``."""
    return dg.AssetKey([TOKENIZERS, name.replace("-", "_")])


def model_key(name: str) -> dg.AssetKey:
    """``photos`` is ``models/photos``."""
    return dg.AssetKey(["models", name])


def run_name(key: dg.AssetKey, partition: str | None = None) -> str:
    """The name of the run that a training asset records: ``models/photos`` is ``models.photos``, of a partition with its name."""
    parts = [*key.path, *([] if partition is None else [partition])]
    return ".".join(re.sub(r"[^\w.-]+", "-", part, flags=re.ASCII).strip(".") or "-" for part in parts)


def pool_of(name: str) -> str:
    """The pool of one cache. Its limit is the instance's default of 1, so a cache has one builder at a time."""
    return f"build_{name}"


def keys(deps: Deps) -> list[dg.AssetsDefinition | dg.AssetSpec | dg.AssetKey]:
    """Return dependencies as Dagster takes them; text is a key: ``caches/photos``."""
    return [dg.AssetKey(each.split("/")) if isinstance(each, str) else each for each in deps]


def icon(kind: str | None) -> set[str]:
    """Return the kinds of an asset whose source is of this kind; empty if it is not known before it runs."""
    return {_ICONS.get(kind, kind)} if kind else set()


def domain_tag(domain: str) -> dict[str, str]:
    """Return the tag of a domain; none for no domain."""
    return {DOMAIN: domain} if domain else {}


def runs_key(catalog: str) -> str:
    """Return the key of the folder of checkpoints that goes with a catalog."""
    return RUNS if catalog == RESOURCE else f"{catalog}_{RUNS}"


def lancedb_key(catalog: str) -> str:
    """Return the key of the tables that go with a catalog, as LanceDB opens them."""
    return "lancedb" if catalog == RESOURCE else f"{catalog}_lancedb"


def renamed(catalog: str) -> Callable[[Callable[..., Any]], Any]:
    """Return a decorator that lets a body's parameters ``catalog`` and ``runs`` take the resources of another catalog.

    Args:
        catalog: key of its resource.
    """
    keys = {RESOURCE: catalog, RUNS: runs_key(catalog)}
    names = {key: name for name, key in keys.items()}

    def bind(body: Callable[..., Any]) -> Callable[..., Any]:
        if catalog == RESOURCE:
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
        next((str(each[CATALOG_OF]) for each in asset.metadata_by_key.values() if CATALOG_OF in each), RESOURCE)
    )
