"""The assets of one relation: registered, checked and measured."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, final

import dagster as dg

from spiral_assets import automation, conventions, pages
from spiral_assets.assets import observed
from spiral_assets.assets.hooks import PLAIN, AssetProps, Hooks, namespace
from spiral_assets.assets.measure import Check, own_rule
from spiral_assets.assets.steps import MEASURE, REGISTER, StepAsset
from spiral_assets.checks import schema_change_check
from spiral_assets.conventions import DATA_TEAM, Deps
from spiral_assets.facts import lineage, relation_checks, rules
from spiral_assets.facts.learned import Learned
from spiral_assets.facts.rules import Rule
from spiral_assets.reading.code_references import with_code
from spiral_assets.relations import looks
from spiral_assets.relations.registration import Registration, declared_columns, identities, page, register
from spiral_assets.relations.sources import Declared, declared, kind_of
from spiral_assets.resources import CatalogResource
from spiral_assets.watching import Watched, watch_sensor

SKEWED: Final = (
    0.5  # total variation between a shard's labels and all labels; above it a shuffle block needs many shards
)
Body = Callable[[dg.AssetExecutionContext, CatalogResource], dg.MaterializeResult[None]]
MOST: Final = 0.5  # share of the rows that have one origin; above it a model learns that origin


@final
@dataclass(frozen=True)
class Limits:
    """What the checks of a relation allow. None asks for no check.

    Attributes:
        skew: distance of a shard's labels to those of the whole relation, from 0 to 1.
        largest_share: of the rows that have one origin.
        references: how many referenced images are fetched and decoded.
        row_change: largest change of the number of rows since the last time, as a share.
        schema_change: whether to compare the columns with those of the last time.
        missing: largest share of a column's values that are null or NaN.
        refused: largest share of rows that an import could not read.
        learned: limits that the last registrations teach; they need the statistics.

    Examples:
        >>> from spiral_assets.assets import Limits, relation_assets
        >>> source = {"kind": "parquet", "path": "photos.parquet"}
        >>> made = relation_assets("shop.photos", source, limits=Limits(row_change=0.2, missing=0.05))
        >>> sorted(key.name for each in made.asset_checks for key in each.check_keys)
        ['few_values_are_missing', 'identity_is_unique', 'row_count_is_near_the_last']
    """

    skew: float | None = SKEWED
    largest_share: float | None = MOST
    references: int = 0
    row_change: float | None = None
    schema_change: bool = False
    missing: float | None = None
    refused: float | None = None
    learned: Learned | None = None


@final
@dataclass(frozen=True)
class Roles:
    """What the columns of a relation are for, where Spiral cannot know.

    Attributes:
        labels: what is predicted; shards that hold few of them shuffle badly.
        origins: where rows come from, such as a crawl or a creator.
        along: the column along which both may drift, such as the time of ingest.
    """

    labels: Sequence[str] = ()
    origins: Sequence[str] = ()
    along: str | None = None


def relation_assets(
    name: str,
    source: Declared,
    *,
    description: str = "",
    identity: str | Sequence[str] = "sample_id",
    shard: str | None = None,
    semantic: Mapping[str, str] | None = None,
    descriptions: Mapping[str, str] | None = None,
    columns: Mapping[str, str] | None = None,
    labels: Sequence[str] = (),
    origins: Sequence[str] = (),
    along: str | None = None,
    limits: Limits | None = None,
    checks: Sequence[Check] = (),
    deps: Deps = (),
    domain: str = "",
    owners: Sequence[str] = DATA_TEAM,
    statistics: bool = True,
    compare_bytes: bool = True,
    watch_s: int | None = None,
    fresh_within_h: float | None = None,
    hooks: Hooks = PLAIN,
) -> dg.Definitions:
    """Return the assets ``catalog/<name>`` and ``stats/<name>/shard_stats`` of a relation, and its checks.

    Everything that decides what the relation is belongs to the definition. A run has nothing to configure, so whoever
    starts it gets the same relation.

    Args:
        name: of the relation; dots become folders of the asset key.
        source: where its rows lie: ``{"kind": "parquet", "path": "..."}`` or a function that returns a source.
        description: shown in the UI.
        identity: the column (or columns) whose value identifies a row permanently.
        shard: the column that names the storage shards; by default ``storage_shard`` if there is one.
        semantic: column -> semantic type, such as ``image/jpeg-ref``.
        descriptions: column -> its meaning, for people.
        columns: column -> type that plans rely on; gives a check.
        labels: columns that are predicted; each gives a report of skew and a check that warns.
        origins: columns that say where rows come from; each gives a report and a check that warns.
        along: a column along which labels and origins may drift.
        limits: what the checks allow.
        checks: of your own.
        deps: other assets that a function reads to make the source.
        domain: tag by which jobs select the assets.
        owners: of the assets.
        statistics: whether to measure the relation.
        compare_bytes: compare the bytes of files whose size or time changed, so that a mere touch changes nothing. The
            first registration reads all files once.
        watch_s: seconds between two looks of a sensor at the source; None for no sensor.
        fresh_within_h: hours within which it must have been registered; None for no policy.
        hooks: what a component changes of the assets.

    Examples:
        >>> from spiral_assets.assets import relation_assets
        >>> made = relation_assets(
        ...     "shop.photos",
        ...     {"kind": "parquet", "path": "photos.parquet"},
        ...     semantic={"image_ref": "image/jpeg-ref"},
        ...     labels=["label_id"],
        ... )
        >>> relation, statistics = made.assets
        >>> run(relation)["dagster/row_count"]
        24
        >>> [key.name for each in made.asset_checks for key in each.check_keys]
        ['identity_is_unique', 'labels_are_mixed']
    """
    limits, source = limits or Limits(), declared(source)
    roles = Roles(labels, origins, along)
    registration = Registration(
        name, identity, shard, dict(semantic or {}), dict(descriptions or {}), compare_bytes=compare_bytes
    )
    about = {
        "name": name,
        "namespace": namespace(name),
        "kind": kind_of(source),
        "path": pages.definition_metadata(name, source if isinstance(source, Mapping) else {}).get("dagster/uri"),
        "identity": identity,
        "labels": list(labels),
        "origins": list(origins),
        "semantic": registration.semantic,
        "domain": domain,
    }
    tests = [identities(name)]
    if columns:
        tests.append(declared_columns(name, columns))
    if limits.references:
        pictures = [column for column, kind in registration.semantic.items() if kind == relation_checks.JPEG]
        tests += [relation_checks.references(name, each, limits.references) for each in pictures]
    spec = _spec(registration, source, description, deps, domain, owners, fresh_within_h)
    functions = [*([] if isinstance(source, Mapping) else [source]), *(each.function for each in checks)]
    props = AssetProps("relation", about, with_code(spec, functions))
    final = hooks.spec(props)
    needed = [each.asset_key for each in final.deps]
    asset = StepAsset(
        name,
        final,
        _registering(registration, source, needed, watched=watch_s is not None),
        [*tests, *relation_rules(name, limits, checks)],
    )
    measured = measured_assets(
        asset.spec.key,
        name,
        roles,
        limits,
        statistics=statistics,
        domain=domain,
        owners=owners,
        about=about,
        hooks=hooks,
    )
    watched = [Watched(name, source, asset.spec.key)]
    sensors = [] if watch_s is None else [watch_sensor(name, watched, every_s=watch_s, catalog=hooks.catalog)]
    registered = hooks.relation(props, asset, REGISTER)
    return dg.Definitions.merge(registered, measured, dg.Definitions(sensors=sensors))


def measured_assets(
    key: dg.AssetKey,
    name: str,
    roles: Roles,
    limits: Limits,
    *,
    statistics: bool,
    domain: str,
    owners: Sequence[str],
    about: Mapping[str, Any],
    hooks: Hooks,
) -> dg.Definitions:
    """Return the statistics of a relation, and the checks of what it has.

    Args:
        key: of the relation, whoever registers it.
        name: of the relation.
        roles: of its columns.
        limits: what the checks allow.
        statistics: whether to measure it.
        domain: tag by which jobs select the assets.
        owners: of the assets.
        about: what templates know of it.
        hooks: what a component changes of the assets.
    """
    changes = [schema_change_check(key)] if limits.schema_change else []
    made = dg.Definitions(asset_checks=changes)
    if not statistics:
        return made
    return dg.Definitions.merge(made, _statistics(name, roles, key, domain, owners, about, hooks, limits))


def relation_rules(name: str, limits: Limits, checks: Sequence[Check]) -> list[Rule]:
    """Return what must hold of a relation, in addition to its identity and its columns.

    Args:
        name: of the relation.
        limits: what the checks allow.
        checks: of your own.
    """
    found = [] if limits.row_change is None else [rules.row_count(limits.row_change)]
    found += [] if limits.refused is None else [rules.refused_rows(name, limits.refused)]
    return [*found, *map(own_rule, checks)]


def _spec(
    registration: Registration,
    source: Declared,
    description: str,
    deps: Deps,
    domain: str,
    owners: Sequence[str],
    fresh_within_h: float | None,
) -> dg.AssetSpec:
    """The asset that registers a relation as it is now, before a component changes it."""
    return dg.AssetSpec(
        key=conventions.relation_key(registration.name),
        group_name=conventions.CATALOG,
        kinds=conventions.icon(kind_of(source)),
        owners=list(owners),
        tags=conventions.domain_tag(domain),
        description=description or f"The relation {registration.name}, as its source is now.",
        metadata=pages.definition_metadata(registration.name, source if isinstance(source, Mapping) else {}),
        deps=conventions.keys(deps),
        freshness_policy=automation.freshness(fresh_within_h),
    )


def _registering(registration: Registration, source: Declared, needed: Sequence[dg.AssetKey], *, watched: bool) -> Body:
    def relation(context: dg.AssetExecutionContext, catalog: CatalogResource) -> dg.MaterializeResult[None]:
        opened = catalog.open()
        seen = looks.before_reading(source, opened, watched=watched)
        register(opened, registration, source)
        tags = looks.tags(opened, registration.name, seen)
        read = {} if isinstance(source, Mapping) else lineage.of_names(context, opened, registration.name, needed)
        return page(context, opened, registration.name, registration.descriptions, read, tags=tags)

    return relation


def _statistics(
    name: str,
    roles: Roles,
    relation: dg.AssetKey,
    domain: str,
    owners: Sequence[str],
    about: Mapping[str, Any],
    hooks: Hooks,
    limits: Limits,
) -> dg.Definitions:
    """The asset that measures a relation, and its checks."""
    spec = dg.AssetSpec(
        key=conventions.stats_key(name),
        group_name=conventions.STATS,
        kinds={"arrow"},
        owners=list(owners),
        tags=conventions.domain_tag(domain),
        description="Rows, nulls, ranges and histograms of every column, per storage shard. Reads no payload.",
        deps=[relation],
        automation_condition=automation.rebuild(),
    )
    learned, props = limits.learned, AssetProps("relation", about, spec, "shard_stats")
    final = hooks.spec(props)
    key = final.key

    def shard_stats(context: dg.AssetExecutionContext, catalog: CatalogResource) -> dg.MaterializeResult[None]:
        import spiral_stream as spiral

        opened = catalog.open()
        statistics = opened.measure(name)
        report = spiral.report.report_relation(
            opened,
            name,
            labels=roles.labels or None,
            origins=roles.origins or None,
            along=roles.along,
            samples=0,
            pictures=0,
        )
        version = dg.DataVersion(opened.entry(name).data_version)
        chart: dict[str, Any] = {}
        details: dict[str, Any] = {}
        results = []
        if learned is not None:
            values = observed.values_of(opened, statistics, report, learned)
            chart, details, result = observed.looked_at(context, key, report, values, learned)
            results = [result]
        metadata = pages.statistics_page(context, report, chart, details)
        return dg.MaterializeResult(data_version=version, metadata=metadata, check_results=results)

    checks = [] if learned is None else [observed.check_spec(key, learned)]
    asset = StepAsset(name, final, shard_stats, _statistics_rules(name, roles, limits), checks)
    return hooks.relation(props, asset, MEASURE)


def _statistics_rules(name: str, roles: Roles, limits: Limits) -> list[Rule]:
    """Rules of labels and origins, which warn. Names repeat no column where there is one column only."""
    found = [] if limits.missing is None else [rules.missing_values(name, limits.missing, {})]
    if limits.skew is not None:
        for column in roles.labels:
            ending = "" if len(roles.labels) == 1 else f"_{column}"
            found.append(rules.mixed_shards(name, column, limits.skew, f"labels_are_mixed{ending}"))
    if limits.largest_share is not None:
        found += [relation_checks.shares(name, column, limits.largest_share) for column in roles.origins]
    return found
