"""What keeps a code location in order: caches that nobody uses are removed, and failed runs are reported."""

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import dagster as dg

from spiral_assets import automation
from spiral_assets.caching import TRUSTED
from spiral_assets.conventions import RESOURCE, renamed
from spiral_assets.facts import reports
from spiral_assets.resources import CatalogResource

if TYPE_CHECKING:
    import spiral_stream as spiral

GRACE_DAYS: Final = 7.0
WEEKLY: Final = "0 6 * * 0"

Alert = Callable[[dict[str, Any]], object]


def retention_job(
    *,
    older_than_days: float = GRACE_DAYS,
    schedule: str | None = WEEKLY,
    trust: tuple[str, ...] = (),
    running: bool = True,
    catalog: str = RESOURCE,
) -> dg.Definitions:
    """Return the job ``remove_dead_caches`` and its schedule.

    Dead is what no saved stream names, and what was made of shards that no relation has any more. What a process has open,
    and what was used or written not long ago, stays. So a saved stream, a lease or a running reader keeps its cache.

    Args:
        older_than_days: what was used or written within them stays.
        schedule: cron expression; None for a job without a schedule.
        trust: modules whose functions saved plans may name; a plan that cannot be read keeps everything of its relations.
        running: whether the schedule is on until somebody turns it off.
        catalog: key of the resource that is the catalog; another than ``catalog`` stands in the names.

    Examples:
        >>> from spiral_assets.upkeep import retention_job
        >>> defs = dg.Definitions.merge(retention_job(schedule=None), dg.Definitions(resources=resources))
        >>> defs.resolve_job_def("remove_dead_caches").execute_in_process().success
        True
    """

    @dg.op(name=_named("remove_dead", catalog), description="Remove what no saved stream names and no relation has.")
    @renamed(catalog)
    def remove_dead(context: dg.OpExecutionContext, catalog: CatalogResource) -> None:
        found = catalog.open().caches(
            remove_dead=True, older_than=timedelta(days=older_than_days), trust=(*TRUSTED, *trust)
        )
        removed = sum(each.removed_bytes for each in found)
        context.log.info(f"{removed:,} bytes removed of {len(found):,} entries")  # noqa: G004  Dagster's own logger
        context.add_output_metadata(
            {
                "removed_bytes": removed,
                "live_bytes": sum(each.live_bytes for each in found),
                "dead_bytes": sum(each.dead_bytes for each in found),
                "entries": reports.table([_row(each) for each in found]),
            }
        )

    @dg.job(
        name=_named("remove_dead_caches", catalog),
        description="Remove caches and derived data that nobody uses.",
        executor_def=dg.in_process_executor,
    )
    def remove_dead_caches() -> None:
        remove_dead()

    status = dg.DefaultScheduleStatus.RUNNING if running else dg.DefaultScheduleStatus.STOPPED
    schedules = (
        []
        if schedule is None
        else [
            dg.ScheduleDefinition(
                name=_named("weekly_removal", catalog),
                job=remove_dead_caches,
                cron_schedule=schedule,
                default_status=status,
            )
        ]
    )
    return dg.Definitions(jobs=[remove_dead_caches], schedules=schedules)


def _row(each: "spiral.results.PreparedData") -> dict[str, Any]:
    return {
        "what": f"{each.kind} {each.name[:8]}",
        "of": ", ".join(each.relations) or each.about,
        "live": each.live_bytes,
        "dead": each.dead_bytes,
        "removed": each.removed_bytes,
        "used by": ", ".join(each.used_by) or each.note,
    }


def _named(name: str, catalog: str) -> str:
    """Return the name of a job, a schedule or a sensor of a catalog."""
    return name if catalog == RESOURCE else f"{name}_{catalog}"


def failure_sensor(alert: Alert, *, running: bool = True, name: str = "tell_failures") -> dg.SensorDefinition:
    """Return the sensor ``tell_failures``, which calls a function of yours for each failed run.

    Args:
        alert: gets ``run_id``, ``job``, ``error``, ``assets`` and ``tags`` in one dictionary; it may send a message.
        running: whether it is on until somebody turns it off.
        name: of the sensor.

    Examples:
        >>> from spiral_assets.upkeep import failure_sensor
        >>> failure_sensor(alert=print).name  # gives it run_id, job, error, assets and tags
        'tell_failures'
    """

    @dg.run_failure_sensor(
        name=name,
        default_status=dg.DefaultSensorStatus.RUNNING if running else dg.DefaultSensorStatus.STOPPED,
        description="Tell somebody about each failed run.",
    )
    def tell_failures(context: dg.RunFailureSensorContext) -> None:
        run = context.dagster_run
        alert(
            {
                "run_id": run.run_id,
                "job": run.job_name,
                "error": context.failure_event.message or "",
                "assets": sorted(key.to_user_string() for key in run.asset_selection or ()),
                "tags": dict(run.tags),
            }
        )

    return tell_failures


def upkeep(
    *,
    retention: dg.Definitions | None = None,
    alert: Alert | None = None,
    rebuilding: bool = True,
    catalog: str = RESOURCE,
    others: Sequence[str] = (),
) -> dg.Definitions:
    """Return the automation sensor, the retention job, and the failure sensor of a code location.

    Args:
        retention: from `retention_job`; None for none.
        alert: gets each failed run; None for no sensor.
        rebuilding: whether the sensor that rebuilds what changed is on until somebody turns it off.
        catalog: whose assets are rebuilt; ``catalog`` rebuilds those of all but the others.
        others: catalogs with sensors of their own.

    Examples:
        >>> from spiral_assets.upkeep import retention_job, upkeep
        >>> defs = upkeep(retention=retention_job(), alert=print)
        >>> [job.name for job in defs.jobs], [sensor.name for sensor in defs.sensors]
        (['remove_dead_caches'], ['rebuild_what_changed', 'tell_failures'])
    """
    only = None if catalog == RESOURCE else catalog
    rebuilds = _named("rebuild_what_changed", catalog)
    sensors: list[Any] = [automation.rebuild_sensor(rebuilds, running=rebuilding, catalog=only, others=others)]
    if alert is not None:
        sensors.append(failure_sensor(alert, name=_named("tell_failures", catalog)))
    return dg.Definitions.merge(dg.Definitions(sensors=sensors), *([] if retention is None else [retention]))
