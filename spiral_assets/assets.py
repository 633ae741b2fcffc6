"""Asset factories: one call per cache, named stream or training run, for this project's relations and for your own.

Each returns an ordinary Dagster asset. Put the calls into a module that your code location loads, give the resources
``catalog`` (and, for training, ``runs`` and ``pipes``) as `spiral_assets.resources` has them, and add the checks of
`spiral_assets.checks`::

    import dagster as dg
    import spiral_stream as spiral
    from spiral_assets.assets import cache_asset
    from spiral_assets.checks import cache_check


    def every_photo(catalog: spiral.Catalog) -> spiral.Relation:
        field = spiral.Stack("photo", decode="jpeg", transforms=[spiral.Resize((64, 64))])
        photos = catalog.table("shop.photos").cache(photo=spiral.Raw(shorter_side=96))
        return photos.sample(order=spiral.Sequential()).collate(
            batch_size=1, last=spiral.KeepPartial, fields={"image": field}
        )


    photos_decoded = cache_asset(
        "photos_decoded",
        domain="images",
        plan=every_photo,
        code_version=spiral.cache_fingerprint("shop.photos", "photo", spiral.Raw(shorter_side=96)),
        deps=[dg.AssetKey(["catalog", "shop", "photos"])],
        description="Decoded product photos, at most 96 pixels on the shorter side.",
    )
    photos_are_complete = cache_check(photos_decoded, every_photo)
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, final

import dagster as dg

from spiral_assets import reports
from spiral_assets.caching import build
from spiral_assets.resources import PATIENT, CatalogResource, RunsResource

if TYPE_CHECKING:
    import spiral_stream as spiral

Plan = Callable[["spiral.Catalog"], "spiral.Relation"]  # a plan, written over the relations of a catalog
Deps = Sequence[dg.AssetsDefinition | dg.AssetSpec | dg.AssetKey]
RETRIES: Final = 2  # of a training process that died


@final
@dataclass(frozen=True, slots=True)
class SavedStream:
    """A stream to save in the catalog.

    Attributes:
        name: the name under which a training job opens it.
        plan: builds its plan, up to `collate`.
        prefetch: batches that a reader prepares ahead.
    """

    name: str
    plan: Plan
    prefetch: int = 4


def cache_asset(
    name: str,
    *,
    domain: str,
    plan: Plan,
    code_version: str,
    deps: Deps,
    description: str,
    metadata: Callable[["spiral.CacheStatus"], Mapping[str, Any]] = lambda _: {},
    owners: Sequence[str] = ("team:data",),
) -> dg.AssetsDefinition:
    """Return the asset ``caches/<name>``, which builds one cache shard by shard.

    A run builds what is missing, so a retry continues after the last whole shard. The data version is the cache's
    fingerprint and the relation's data version: an identical rebuild leaves everything downstream in sync.

    Args:
        name: last part of the asset key.
        domain: tag by which jobs select the asset.
        plan: reads every row that the cache should hold, of one relation, and has exactly one cache.
        code_version: changes when settings or library code change the stored bytes: `spiral_stream.cache_fingerprint`.
        deps: the relation, and everything else that must be registered or checked first.
        description: shown in the UI.
        metadata: returns more metadata of the built cache.
        owners: of the asset.
    """

    @dg.asset(
        key=["caches", name],
        group_name="caches",
        kinds={"lance"},
        owners=owners,
        tags={"domain": domain},
        description=description,
        code_version=code_version,
        deps=deps,
        pool="decode",
    )
    def cache(context: dg.AssetExecutionContext, catalog: CatalogResource) -> dg.MaterializeResult[None]:
        with plan(catalog.open()).to_numpy() as stream:
            return build(context, stream, metadata)

    return cache


def stream_asset(
    name: str,
    *,
    domain: str,
    streams: Sequence[SavedStream],
    deps: Deps,
    description: str,
    metadata: Callable[..., Mapping[str, Any]] = lambda *_: {},
    owners: Sequence[str] = ("team:training",),
) -> dg.AssetsDefinition:
    """Return the asset ``streams/<name>``, which saves streams by name and shows EXPLAIN of the first.

    Args:
        name: last part of the asset key.
        domain: tag by which jobs select the asset.
        streams: the stream to train from, then others such as one for validation.
        deps: caches and statistics that the plans should find.
        description: shown in the UI.
        metadata: is called with the prepared streams, in their order, and returns more metadata.
        owners: of the asset.
    """

    @dg.asset(
        key=["streams", name],
        group_name="streams",
        kinds={"pytorch"},
        owners=owners,
        tags={"domain": domain},
        description=description,
        deps=deps,
    )
    def saved(catalog: CatalogResource) -> dg.MaterializeResult[None]:
        opened = catalog.open()
        with ExitStack() as stack:
            prepared = []
            for each in streams:
                prepared.append(stack.enter_context(each.plan(opened).to_torch(prefetch=each.prefetch)))
                opened.save_stream(each.name, prepared[-1])
            return _saved(streams[0].name, prepared, metadata(*prepared))

    return saved


def training_asset(
    name: str,
    domain: str,
    config: type[dg.Config],
    *,
    deps: Deps,
    description: str,
    check: str,
    command: Sequence[str] = (),
    kinds: frozenset[str] = frozenset({"pytorch"}),
    owners: Sequence[str] = ("team:training",),
) -> dg.AssetsDefinition:
    """Return the asset ``models/<name>``, which trains in a process of its own through Dagster Pipes.

    The process gets ``--folder``, ``--catalog``, and one option per field of the config: ``save_every=8`` becomes
    ``--save-every 8``. A retry, or a re-executed run, gets the same folder, so it can resume from the checkpoint there.
    The process reports the asset check ``beats_chance``, which warns.

    Args:
        name: last part of the asset key.
        domain: tag by which jobs select the asset, and the training command of this package.
        config: fields of the run config.
        deps: the saved stream.
        description: shown in the UI.
        check: description of ``beats_chance``.
        command: starts the process; empty runs ``python -m spiral_assets.training <domain>``.
        kinds: shown in the UI.
        owners: of the asset.
    """
    key = dg.AssetKey(["models", name])

    @dg.asset(
        key=key,
        group_name="training",
        kinds=set(kinds),
        owners=owners,
        tags={"domain": domain},
        description=description,
        deps=deps,
        check_specs=[dg.AssetCheckSpec("beats_chance", asset=key, description=check)],
        retry_policy=dg.RetryPolicy(max_retries=RETRIES),
    )
    def model(
        context: dg.AssetExecutionContext,
        config: config,  # type: ignore[valid-type]  # Dagster reads the class when the asset is defined
        catalog: CatalogResource,
        runs: RunsResource,
        pipes: dg.PipesSubprocessClient,
    ) -> dg.MaterializeResult:  # type: ignore[type-arg]  # with a check there are two outputs, which [None] denies
        start = command or (sys.executable, "-m", "spiral_assets.training", domain)
        where = ("--folder", str(runs.folder(context)), "--catalog", catalog.uri)
        run = pipes.run(context=context, command=[*start, *where, *_options(config)], env=PATIENT)
        return run.get_materialize_result()

    return model


def _saved(
    name: str, prepared: Sequence["spiral.PreparedStream"], metadata: Mapping[str, Any]
) -> dg.MaterializeResult[None]:
    """Explain the first of the saved streams. Their plans and the data of the first are the data version."""
    train = prepared[0]
    explained = train.explain()
    versions = [version for _, version in sorted(train.data_versions.items())]
    return dg.MaterializeResult(
        data_version=dg.DataVersion(":".join([*(stream.fingerprint for stream in prepared), *versions])),
        metadata={
            "explain": dg.MetadataValue.md(explained.to_markdown()),
            "fingerprint": train.fingerprint,
            **metadata,
            "warnings": len(explained.to_dict()["warnings"]),
            "open_it": reports.snippet(f'spiral_stream.open_stream("{name}", epoch=0)'),
        },
    )


def _options(config: dg.Config) -> Iterator[str]:
    """Yield the fields of a config as command-line options."""
    for name, value in config.model_dump().items():
        yield from (f"--{name.replace('_', '-')}", str(value))
