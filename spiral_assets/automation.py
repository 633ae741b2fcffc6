"""When assets are rebuilt without being asked for: when the code or the data is new, and never because something ran again.

`rebuild` is the condition; Dagster evaluates it while `rebuild_sensor` is on. `freshness` says by when an asset must have
been built. Dagster's own ``eager()`` looks at neither data versions nor code versions.
"""

from collections.abc import Sequence
from datetime import timedelta
from functools import lru_cache
from typing import Any, Final

import dagster as dg

from spiral_assets import conventions

EVERY_S: Final = 30
AUTOMATED: Final = (conventions.STATS, conventions.INDEXES, conventions.CACHES, conventions.STREAMS)


@lru_cache(1)
def rebuild() -> dg.AutomationCondition:  # type: ignore[type-arg]  # of any entity
    """Request an asset whose code version or whose dependencies' data versions changed.

    It waits while a dependency is missing or being built, and while a blocking check of one fails. A rematerialization
    that gives the same data version requests nothing, nor does a dependency that the same run built before the asset; if
    the asset's step failed there, it is requested once more. What became new while a build ran is requested after it; so is
    what a build of the asset alone has covered since the last look, and that run finds nothing to do. An asset that was
    missing when the condition was first evaluated is not requested: the first build is asked for by hand, by a job or by a
    backfill.

    Examples:
        >>> from spiral_assets.automation import rebuild
        >>> @dg.asset(automation_condition=rebuild(), deps=[photos])
        ... def thumbnails(): ...
        >>> thumbnails.automation_conditions_by_key[thumbnails.key].get_label()
        'rebuild_on_new_plan_or_data'
    """
    when = dg.AutomationCondition
    changed, together = when.data_version_changed(), when.executed_with_root_target()
    uncovered = when.any_deps_match(changed & together).since(when.newly_updated()) & when.execution_failed()
    news: Any = (
        when.newly_missing()
        | when.code_version_changed()
        | when.any_deps_match((changed & ~together) | when.will_be_requested())
        | uncovered.newly_true()
    )
    # Not `since_last_handled`: a build that ends counts as handling, also of what became new while it ran. And what is new at
    # the look after a request came after it.
    news = news.since((when.newly_requested() & ~news) | when.initial_evaluation())
    ready = ~when.any_deps_missing() & ~when.any_deps_in_progress() & ~when.in_progress()
    condition: Any = when.in_latest_time_window() & news & ready & when.all_deps_blocking_checks_passed()
    labelled: dg.AutomationCondition = condition.with_label("rebuild_on_new_plan_or_data")  # type: ignore[type-arg]  # as above
    return labelled


@lru_cache(1)
def with_its_asset() -> dg.AutomationCondition:  # type: ignore[type-arg]  # of any entity
    """Request a check whenever its asset is requested: for a check that the asset's own step evaluates.

    Dagster adds such a check to a run by itself, and takes it for what was asked for: other checks of the run's assets, the
    blocking ones too, are then left out. Of assets of which a check has a condition it adds the checks that have none.

    Examples:
        >>> from spiral_assets.automation import with_its_asset
        >>> with_its_asset().get_label()
        'with_its_asset'
    """
    condition: Any = dg.AutomationCondition.any_deps_match(dg.AutomationCondition.will_be_requested())
    labelled: dg.AutomationCondition = condition.with_label("with_its_asset")  # type: ignore[type-arg]  # as above
    return labelled


def rebuild_sensor(
    name: str = "rebuild_what_changed",
    *,
    running: bool = True,
    catalog: str | None = None,
    others: Sequence[str] = (),
) -> dg.AutomationConditionSensorDefinition:
    """Return the sensor that evaluates the condition of statistics, indexes, caches and streams; on by default.

    Args:
        name: of the sensor.
        running: whether it is on until somebody turns it off.
        catalog: of the assets, where a location has several; None for assets of any.
        others: catalogs whose assets it leaves to sensors of their own.

    Examples:
        >>> from spiral_assets.automation import rebuild_sensor
        >>> rebuild_sensor(running=False).name
        'rebuild_what_changed'
    """
    target: dg.AssetSelection = dg.AssetSelection.groups(*AUTOMATED)
    for group in AUTOMATED:
        target = target | dg.AssetSelection.tag(conventions.MOVED, group)
    if catalog is not None:
        target = target & dg.AssetSelection.tag(conventions.CATALOG_OF, catalog)
    for other in others:
        target = target - dg.AssetSelection.tag(conventions.CATALOG_OF, other)
    return dg.AutomationConditionSensorDefinition(
        name,
        target=target,
        default_status=dg.DefaultSensorStatus.RUNNING if running else dg.DefaultSensorStatus.STOPPED,
        minimum_interval_seconds=EVERY_S,
        description="Rebuild what has a new plan or new data.",
    )


def freshness(hours: float | None) -> dg.FreshnessPolicy | None:
    """Return the policy that an asset was built within so many hours; None for no hours.

    Args:
        hours: within which it must have been built; it warns after three quarters of them.

    Examples:
        >>> from spiral_assets.automation import freshness
        >>> freshness(hours=36)
        TimeWindowFreshnessPolicy(...)
    """
    if hours is None:
        return None
    return dg.FreshnessPolicy.time_window(timedelta(hours=hours), timedelta(hours=0.75 * hours))
