"""A training run in YAML, and the jobs that lead to it."""

from collections.abc import Iterator, Sequence
from typing import Any

import dagster as dg
from pydantic import Field

from spiral_assets import conventions
from spiral_assets.assets.training import RETRIES, training_asset, training_jobs
from spiral_assets.checks import unseen_check
from spiral_assets.components.parts import (
    Owned,
    wrong_check,
    wrong_deps,
    wrong_key,
    wrong_name,
    wrong_schedule,
)
from spiral_assets.components.scaffolding import example
from spiral_assets.launching.fields import DESCRIPTION, launcher_schema, wrong_launcher
from spiral_assets.launching.finding import following_sensor
from spiral_assets.reading.bounds import Count, Hours, Positive
from spiral_assets.reading.location import Path
from spiral_assets.reading.positions import Wrong


@example(
    name="photos_cnn",
    domain="shop",
    command=["python", "-m", "shop.train"],
    config={"epochs": 8},
    deps=["streams/photos"],
    schedule="0 3 * * *",
)
class TrainingJob(Owned):
    """A model that a process of its own trains, a job that leads to it, and a job that prepares all but the training.

    Examples:
        >>> defs = load('''
        ... type: spiral_assets.components.TrainingJob
        ... attributes:
        ...   name: photos_cnn
        ...   command: [python, -m, shop.train]
        ...   config: {epochs: 8}
        ...   deps: [streams/photos]
        ... ''')
        >>> names(defs), sorted(job.name for job in defs.jobs)
        (['models/photos_cnn'], ['photos_cnn', 'prepare_photos_cnn'])
    """

    name: str = Field(description="The asset is models/<name>.", examples=["photos_cnn"])
    command: Sequence[str] = Field(
        default=(),
        description="Starts the process; python is the interpreter of the run. It gets --folder, --catalog, and the config.",
        examples=[["python", "-m", "shop.train"]],
    )
    processes: Positive = Field(default=1, description="How many ranks torchrun starts on this machine.")
    config: dict[str, Any] = Field(default_factory=dict, description="Fields of the run config, with default values.")
    checks: dict[str, str] = Field(
        default_factory=dict,
        description="Describes the asset checks that the process reports, by name; they warn.",
        examples=[{"beats_chance": "It is more accurate than the most frequent class."}],
    )
    kinds: Sequence[str] = Field(default=("pytorch",), description="Icons.")
    deps: Sequence[str] = Field(default=(), description="The saved stream: streams/photos.")
    retries: Count = Field(default=RETRIES, description="Of a process that died; each continues at its checkpoint.")
    schedule: str | None = Field(default=None, description="Cron expression of the nightly preparation.")
    job: str | None = Field(default=None, description="Name of the jobs; by default the domain.")
    fresh_within_h: Hours | None = Field(default=None, description="Hours within which it must be trained.")

    record: bool = Field(default=True, description="Whether the catalog records the run, as models.<name>.")
    launcher: dict[str, Any] | None = Field(
        default=None,
        description=DESCRIPTION,
        examples=[{"kind": "ray", "address": "http://ray-head:8265"}],
        json_schema_extra=launcher_schema(),
    )
    trust: Sequence[str] = Field(
        default=(), description="Modules whose functions the saved stream's plan may name, where the page reads it."
    )
    unseen: Sequence[str] = Field(
        default=(),
        description="Relations of rows that the model must not have seen, by identity: an evaluation set, removed rows.",
        examples=[["shop.test_photos"]],
    )

    def wrong(self) -> Iterator[Wrong]:
        """Yield what is wrong in the attributes."""
        yield from super().wrong()
        yield from wrong_key(("name",), self.name)
        yield from wrong_deps(("deps",), self.deps, "/".join(conventions.model_key(self.name).path))
        yield from wrong_schedule(("schedule",), self.schedule)
        for at, relation in enumerate(self.unseen):
            yield from wrong_name(("unseen", at), relation)
        for name, value in self.config.items():
            if value is None:
                said = "null has no type. Give a default: a text, a number, true or false, a list or a mapping"
                yield Wrong(("config", name), said)
        for name in self.checks:
            yield from wrong_check(("checks", name), name)
        yield from wrong_launcher(self.launcher)

    def needed_assets(self) -> Sequence[tuple[Path, str]]:
        """Return the saved streams that it is trained on."""
        return [(("deps", at), dep) for at, dep in enumerate(self.deps) if dep.startswith(f"{conventions.STREAMS}/")]

    def definitions_of(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Return the model's asset, and the jobs and the schedule of its domain."""
        del context
        owned = {"description": f"The model {self.name}.", **self.owned()}
        domain = owned.pop("domain") or self.name
        asset = training_asset(
            self.name,
            domain,
            self.config,
            deps=self.deps,
            checks=self.checks,
            command=self.command,
            processes=self.processes,
            kinds=frozenset(self.kinds),
            retries=self.retries,
            fresh_within_h=self.fresh_within_h,
            record=self.record,
            trust=self.trust,
            launcher=self.launcher,
            **owned,
        )
        checks = [unseen_check(asset, each, trust=self.trust) for each in self.unseen]
        return dg.Definitions.merge(
            dg.Definitions(assets=[asset], asset_checks=checks, sensors=self._sensors(asset)),
            training_jobs(domain, schedule=self.schedule, name=self.job),
        )

    def _sensors(self, asset: dg.AssetsDefinition) -> list[dg.SensorDefinition]:
        if self.launcher is None:
            return []
        return [following_sensor(f"models_{self.name}", asset, catalog=self.catalog)]
