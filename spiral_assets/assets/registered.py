"""The asset of a relation that the catalog has: registered by the command line, by Python or by another location."""

from collections.abc import Mapping, Sequence
from typing import Any

import dagster as dg

from spiral_assets import conventions
from spiral_assets.assets.hooks import PLAIN, AssetProps, Hooks, namespace
from spiral_assets.assets.steps import StepAsset
from spiral_assets.conventions import DATA_TEAM
from spiral_assets.facts.rules import Rule
from spiral_assets.relations.registration import page
from spiral_assets.resources import CatalogResource


def registered_asset(
    name: str,
    facts: Mapping[str, Any],
    *,
    description: str = "",
    domain: str = "",
    owners: Sequence[str] = DATA_TEAM,
    hooks: Hooks = PLAIN,
) -> dg.AssetsDefinition:
    """Return the asset ``catalog/<name>`` of a relation that the catalog has. A run takes its data as it is now.

    The source is the one that was registered; a run cannot change it.

    Args:
        name: of the relation.
        facts: ``kind`` and ``place`` of its source.
        description: shown in the UI.
        domain: tag by which jobs select the asset.
        owners: of the asset.
        hooks: what a component changes of the asset.

    Examples:
        >>> from spiral_assets.assets import registered_asset
        >>> run(registered_asset("shop.texts", {"kind": "parquet"}))["dagster/row_count"]
        24
    """
    props, asset = registered(name, facts, (), description=description, domain=domain, owners=owners, hooks=hooks)
    return hooks.asset(props, asset.body, spec=asset.spec)


def registered(
    name: str,
    facts: Mapping[str, Any],
    rules: Sequence[Rule],
    *,
    description: str = "",
    domain: str = "",
    owners: Sequence[str] = DATA_TEAM,
    hooks: Hooks = PLAIN,
) -> tuple[AssetProps, StepAsset]:
    """Return a relation that the catalog has, for a step that it may share.

    Args:
        name: of the relation.
        facts: ``kind`` and ``place`` of its source.
        rules: must hold of it.
        description: shown in the UI.
        domain: tag by which jobs select the asset.
        owners: of the asset.
        hooks: what a component changes of the asset.
    """
    metadata = {
        "dagster/table_name": name,
        "dagster/storage_kind": facts.get("kind"),
        "dagster/uri": facts.get("place"),
    }

    spec = dg.AssetSpec(
        key=conventions.relation_key(name),
        group_name=conventions.CATALOG,
        kinds=conventions.icon(facts.get("kind")),
        owners=list(owners),
        tags=conventions.domain_tag(domain),
        description=description
        or f"The relation {name}, as it was registered in the catalog. A run takes its present data.",
        metadata={name: value for name, value in metadata.items() if value},
    )

    def relation(context: dg.AssetExecutionContext, catalog: CatalogResource) -> dg.MaterializeResult[None]:
        opened = catalog.open()
        opened.refresh(name, same_bytes=True)
        return page(context, opened, name, {})

    about = {"name": name, "namespace": namespace(name), "domain": domain, **facts}
    props = AssetProps("relation", about, spec)
    return props, StepAsset(name, hooks.spec(props), relation, rules)
