"""The asset of a training run, and the jobs that lead to it."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import dagster as dg
from pydantic import create_model

from spiral_assets import automation, conventions
from spiral_assets.conventions import TRAINING_TEAM, Deps
from spiral_assets.resources import PATIENT, CatalogResource, RunsResource

RETRIES: Final = 2  # of a training process that died


def training_asset(
    name: str,
    domain: str,
    config: type[dg.Config] | Mapping[str, Any],
    *,
    deps: Deps,
    description: str,
    check: str,
    command: Sequence[str] = (),
    kinds: frozenset[str] = frozenset({"pytorch"}),
    owners: Sequence[str] = TRAINING_TEAM,
    retries: int = RETRIES,
    fresh_within_h: float | None = None,
) -> dg.AssetsDefinition:
    """Return the asset ``models/<name>``, which trains in a process of its own through Dagster Pipes.

    The process gets ``--folder``, ``--catalog``, and one option per field of the config: ``save_every=8`` becomes
    ``--save-every 8``. A retry, or a re-executed run, gets the same folder, so it can resume from the checkpoint there.
    The process reports the asset check ``beats_chance``, which warns.

    Args:
        name: last part of the asset key.
        domain: tag by which jobs select the asset, and the training command of this package.
        config: fields of the run config, or their names with default values.
        deps: the saved stream.
        description: shown in the UI.
        check: description of ``beats_chance``.
        command: starts the process; empty runs ``python -m spiral_assets.training <domain>``. A first word ``python`` is
            the interpreter of the run.
        kinds: shown in the UI.
        owners: of the asset.
        retries: of a process that died.
        fresh_within_h: hours within which it must have been trained; None for no policy.
    """
    key = conventions.model_key(name)
    fields = config if isinstance(config, type) else config_of(name, config)

    @dg.asset(
        key=key,
        group_name=conventions.TRAINING,
        kinds=set(kinds),
        owners=owners,
        tags=conventions.domain_tag(domain),
        description=description,
        deps=conventions.keys(deps),
        check_specs=[dg.AssetCheckSpec("beats_chance", asset=key, description=check)],
        retry_policy=dg.RetryPolicy(max_retries=retries),
        freshness_policy=automation.freshness(fresh_within_h),
    )
    def model(
        context: dg.AssetExecutionContext,
        config: fields,  # type: ignore[valid-type]  # Dagster reads the class when the asset is defined
        catalog: CatalogResource,
        runs: RunsResource,
        pipes: dg.PipesSubprocessClient,
    ) -> dg.MaterializeResult:  # type: ignore[type-arg]  # with a check there are two outputs, which [None] denies
        start = _started(command) or [sys.executable, "-m", "spiral_assets.training", domain]
        where = ("--folder", str(runs.folder(context)), "--catalog", catalog.uri)
        run = pipes.run(context=context, command=[*start, *where, *_options(config)], env=PATIENT)
        return run.get_materialize_result()

    return model


def training_jobs(
    domain: str, *, schedule: str | None = None, running: bool = False, name: str | None = None
) -> dg.Definitions:
    """Return the jobs of a domain: one runs everything, and one prepares all but training, on a schedule.

    The assets carry their whole definition, so neither the jobs nor the schedule have a run config to forget.

    Args:
        domain: tag of the assets.
        schedule: cron expression of the nightly preparation; None for no schedule.
        running: whether the schedule is on until somebody turns it off.
        name: of the jobs; by default that of the domain.
    """
    name = name or domain
    every = dg.AssetSelection.tag(conventions.DOMAIN, domain)
    prepare = dg.define_asset_job(
        f"prepare_{name}",
        every - dg.AssetSelection.groups(conventions.TRAINING),
        description="Register, check and measure relations, build caches, save streams.",
    )
    status = dg.DefaultScheduleStatus.RUNNING if running else dg.DefaultScheduleStatus.STOPPED
    schedules = (
        []
        if schedule is None
        else [dg.ScheduleDefinition(name=f"nightly_{name}", job=prepare, cron_schedule=schedule, default_status=status)]
    )
    whole = dg.define_asset_job(name, every, description=f"From {domain} to a trained model.")
    return dg.Definitions(jobs=[whole, prepare], schedules=schedules)


def config_of(name: str, defaults: Mapping[str, Any]) -> type[dg.Config]:
    """Return the run config of a training asset, from names and default values.

    Args:
        name: of the asset.
        defaults: each gives a field of its type.
    """
    fields: dict[str, Any] = {field: (type(value), value) for field, value in defaults.items()}
    return create_model(f"{name.title().replace('_', '')}Config", __base__=dg.Config, **fields)


def _started(command: Sequence[str]) -> list[str]:
    return [sys.executable, *command[1:]] if command and command[0] == "python" else list(command)


def _options(config: dg.Config) -> Iterator[str]:
    """Yield the fields of a config as command-line options."""
    for name, value in config.model_dump().items():
        yield from (f"--{name.replace('_', '-')}", str(value))
