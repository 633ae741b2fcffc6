"""Automation of a code location in YAML."""

from collections.abc import Iterator, Sequence

import dagster as dg
from dagster.components.core.decl import YamlDecl
from pydantic import Field

from spiral_assets.components.face import Face
from spiral_assets.components.parts import FunctionByName, function_of, wrong_named, wrong_schedule
from spiral_assets.components.scaffolding import example
from spiral_assets.conventions import RESOURCE
from spiral_assets.reading.bounds import Amount
from spiral_assets.reading.positions import Wrong
from spiral_assets.upkeep import GRACE_DAYS, WEEKLY, retention_job, upkeep


class Retention(dg.Model, dg.Resolvable):
    """When caches that nobody uses are removed."""

    schedule: str | None = Field(default=WEEKLY, description="Cron expression; null for a job without a schedule.")
    older_than_days: Amount = Field(default=GRACE_DAYS, description="What was used or written within them stays.")
    trust: Sequence[str] = Field(default=(), description="Modules whose functions saved plans may name.")


@example(retention={"schedule": "0 6 * * 0", "older_than_days": 7})
class Upkeep(Face):
    """Rebuilds what changed, removes caches that nobody uses, and tells about failed runs. One per catalog of a location.

    Examples:
        >>> defs = load('''
        ... type: spiral_assets.components.Upkeep
        ... attributes: {retention: {schedule: 0 6 * * 0, older_than_days: 7}}
        ... ''')
        >>> [job.name for job in defs.jobs], [sensor.name for sensor in defs.sensors]
        (['remove_dead_caches'], ['rebuild_what_changed'])
    """

    catalog: str = Field(default=RESOURCE, description="Name of the Catalog, where the location has several.")
    rebuilding: bool = Field(default=True, description="Whether the sensor that rebuilds what changed is on.")
    retention: Retention | None = Field(default_factory=Retention)
    on_failure: str | FunctionByName | None = Field(
        default=None, description="A function that gets each failed run: run_id, job, error, assets, tags."
    )

    def catalog_name(self) -> str:
        """Return the name of its catalog."""
        return self.catalog

    def wrong(self) -> Iterator[Wrong]:
        """Yield what is wrong in the attributes."""
        if self.retention is not None:
            yield from wrong_schedule(("retention", "schedule"), self.retention.schedule)
        if self.on_failure is not None:
            yield from wrong_named(("on_failure",), self.on_failure, 1)

    def definitions_of(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Return sensors, jobs and schedules."""
        others = []
        if isinstance(context.component_decl, YamlDecl) and self.catalog == RESOURCE:
            found = context.component_tree.get_all_components(of_type=Upkeep)
            others = [each.catalog for each in found if each.catalog != RESOURCE]
        retention = self.retention
        job = (
            None
            if retention is None
            else retention_job(
                older_than_days=retention.older_than_days,
                schedule=retention.schedule,
                trust=tuple(retention.trust),
                catalog=self.catalog,
            )
        )
        alert = None if self.on_failure is None else function_of(self.on_failure)
        return upkeep(retention=job, alert=alert, rebuilding=self.rebuilding, catalog=self.catalog, others=others)
