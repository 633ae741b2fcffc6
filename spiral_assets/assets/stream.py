"""The asset of named streams, which training opens by name."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import dagster as dg

from spiral_assets import automation, conventions
from spiral_assets.assets.hooks import PLAIN, AssetProps, Hooks
from spiral_assets.checks import explain_check
from spiral_assets.code_versions import code_version_of
from spiral_assets.conventions import TRAINING_TEAM, Deps
from spiral_assets.facts import lineage, reports
from spiral_assets.facts.folded import OPENED
from spiral_assets.named import Plan
from spiral_assets.reading.code_references import with_code
from spiral_assets.resources import CatalogResource

if TYPE_CHECKING:
    import spiral_stream as spiral


@final
@dataclass(frozen=True, slots=True)
class SavedStream:
    """A stream to save in the catalog.

    Attributes:
        name: the name under which a training job opens it.
        plan: builds its plan, up to `collate`.
        prefetch: batches that a reader prepares ahead.

    Examples:
        >>> from spiral_assets.assets import Named, SavedStream
        >>> SavedStream("photos-train", Named("shop.plans:training"), prefetch=8).name
        'photos-train'
    """

    name: str
    plan: Plan
    prefetch: int = 4


def stream_asset(
    name: str,
    *,
    streams: Sequence[SavedStream],
    deps: Deps,
    description: str,
    domain: str = "",
    metadata: Callable[..., Mapping[str, Any]] = lambda *_: {},
    owners: Sequence[str] = TRAINING_TEAM,
    fresh_within_h: float | None = None,
    automated: bool = True,
    hooks: Hooks = PLAIN,
) -> dg.AssetsDefinition:
    """Return the asset ``streams/<name>``, which saves streams by name and shows EXPLAIN of the first.

    Args:
        name: last part of the asset key.
        streams: the stream to train from, then others such as one for validation.
        deps: caches and statistics that the plans should find.
        description: shown in the UI.
        domain: tag by which jobs select the asset.
        metadata: is called with the prepared streams, in their order, and returns more metadata.
        owners: of the asset.
        fresh_within_h: hours within which it must have been saved; None for no policy.
        automated: whether it is saved again when a plan or its data is new.
        hooks: what a component changes of the asset.

    Examples:
        >>> from spiral_assets.assets import Named, SavedStream, stream_asset
        >>> plan = Named("spiral_assets.plans.standard:image_batches", {"relation": "shop.photos", "batch_size": 8})
        >>> streams = [SavedStream("photos-train", plan)]
        >>> asset = stream_asset("photos", streams=streams, deps=["caches/photos"], description="Photos.")
        >>> run(asset)["open_it"]
        '...stream = catalog.open_stream(...photos-train...'
    """
    spec = dg.AssetSpec(
        key=conventions.stream_key(name),
        group_name=conventions.STREAMS,
        kinds={"pytorch"},
        owners=list(owners),
        tags=conventions.domain_tag(domain),
        description=description,
        code_version="-".join(code_version_of(each.plan)[:16] for each in streams),
        deps=conventions.keys(deps),
        automation_condition=automation.rebuild() if automated else None,
        freshness_policy=automation.freshness(fresh_within_h),
        metadata={"dagster/table_name": streams[0].name, "dagster/storage_kind": lineage.STREAM} if streams else {},
    )

    def saved(context: dg.AssetExecutionContext, catalog: CatalogResource) -> dg.MaterializeResult[None]:
        opened = catalog.open()
        with ExitStack() as stack:
            prepared = []
            for each in streams:
                prepared.append(stack.enter_context(each.plan(opened).to_torch(prefetch=each.prefetch)))
                opened.save_stream(each.name, prepared[-1])
            of_columns = lineage.of_streams(
                context, {each.name: one for each, one in zip(streams, prepared, strict=True)}
            )
            return _saved(opened.uri, streams[0].name, prepared, {**of_columns, **metadata(*prepared)})

    about = {"name": name, "domain": domain, "streams": [each.name for each in streams], "deps": [*map(str, deps)]}
    return hooks.asset(
        AssetProps("stream", about, with_code(spec, [*(each.plan for each in streams), metadata])), saved
    )


def stream_assets(
    name: str, *, streams: Sequence[SavedStream], most_warnings: int | None = 0, **options: Any
) -> dg.Definitions:
    """Return `stream_asset` and the check that EXPLAIN of the streams has no warning.

    Args:
        name: of the asset.
        streams: of the asset.
        most_warnings: how many are allowed before the check warns; None for no check.
        **options: as `stream_asset` takes them.

    Examples:
        >>> from spiral_assets.assets import Named, SavedStream, stream_assets
        >>> plan = Named("spiral_assets.plans.standard:image_batches", {"relation": "shop.photos"})
        >>> streams = [SavedStream("photos-train", plan)]
        >>> made = stream_assets("photos", streams=streams, deps=["caches/photos"], description="Photos.")
        >>> [key.name for each in made.asset_checks for key in each.check_keys]
        ['explains_without_a_warning']
    """
    asset = stream_asset(name, streams=streams, **options)
    plans = {each.name: each.plan for each in streams}
    checks = [] if most_warnings is None else [explain_check(asset, plans, most=most_warnings)]
    return dg.Definitions(assets=[asset], asset_checks=checks)


def _saved(
    catalog: str, name: str, prepared: Sequence["spiral.PreparedStream"], metadata: Mapping[str, Any]
) -> dg.MaterializeResult[None]:
    """Explain the first of the saved streams. Their plans and the data of the first are the data version."""
    train = prepared[0]
    explained = train.explain()
    versions = [version for _, version in sorted(train.data_versions.items())]
    return dg.MaterializeResult(
        data_version=dg.DataVersion(":".join([*(stream.fingerprint for stream in prepared), *versions])),
        metadata={
            "open_it": reports.opens(catalog, f'stream = catalog.open_stream("{name}", epoch=0)'),
            "explain": dg.MetadataValue.md(explained.to_markdown().ljust(OPENED, "\n")),
            "warnings": len(explained.to_dict()["warnings"]),
            "dagster/row_count": train.rows,
            "dagster/table_name": name,
            **metadata,
            "fingerprint": train.fingerprint,
        },
    )
