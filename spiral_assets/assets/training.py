"""The asset of a training run, and the jobs that lead to it."""

import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import dagster as dg

from spiral_assets import automation, conventions
from spiral_assets.assets.hooks import PLAIN, AssetProps, Hooks
from spiral_assets.assets.training_process import run_training
from spiral_assets.caching import TRUSTED
from spiral_assets.conventions import TRAINING_TEAM, Deps
from spiral_assets.facts.folded import folded
from spiral_assets.launching.fields import FIELD, chosen, config_with_launcher, launcher_of, split_config
from spiral_assets.launching.following import LaunchedJob, claimed, follow
from spiral_assets.launching.records import digest_of
from spiral_assets.model_page import model_page
from spiral_assets.reading.code_references import with_command
from spiral_assets.resources import PATIENT, CatalogResource, RunsResource
from spiral_assets.run_page import RECORD, run_page

RETRIES: Final = 2  # of a training process that died
OBSERVED_S: Final = 60.0  # between two looks at a run that goes on


def training_asset(
    name: str,
    domain: str,
    config: type[dg.Config] | Mapping[str, Any],
    *,
    deps: Deps,
    description: str,
    checks: Mapping[str, str] = MappingProxyType({}),
    command: Sequence[str] = (),
    processes: int = 1,
    kinds: frozenset[str] = frozenset({"pytorch"}),
    owners: Sequence[str] = TRAINING_TEAM,
    retries: int = RETRIES,
    fresh_within_h: float | None = None,
    record: bool = True,
    trust: Sequence[str] = (),
    launcher: Mapping[str, Any] | None = None,
    hooks: Hooks = PLAIN,
) -> dg.AssetsDefinition:
    """Return the asset ``models/<name>``, which trains in a process of its own through Dagster Pipes.

    The process gets ``--folder``, ``--catalog``, and one option per field of the config: ``save_every=8`` becomes
    ``--save-every 8``. A retry, or a re-executed run, gets the same folder, so it can resume from the checkpoint there.
    A process that keeps a `spiral_assets.training.run.TrainingRun` gets a page: the loss curve over all retries, speed,
    what bounds it, and which samples the model saw. The page is there after a failed try too, and every minute of a run
    that goes on, as an observation.

    Such a process also records the run in the catalog, as ``models.<name>``: ``catalog.run("models.photos_cnn")``. Each Dagster
    run begins an attempt that has no parent, and each retry goes on with the one before. The page then shows losses by source,
    samples that stand out, what was seen, and how that differs from the run before.

    With a launcher the process is a job of its own, which outlives the run: another run of the same partition and config attaches
    to it. A run's config chooses one too, in its field ``launcher``.

    Args:
        name: last part of the asset key.
        domain: tag by which jobs select the asset, and the training command of this package.
        config: fields of the run config, or their names with default values.
        deps: the saved stream.
        description: shown in the UI.
        checks: descriptions of the asset checks that the process reports, by name: ``beats_chance``. They warn, and so does
            one that the process did not report.
        command: starts the process; empty runs ``python -m spiral_assets.training <domain>``. A first word ``python`` is
            the interpreter of the run.
        processes: how many ranks torchrun starts on this machine. With more than one, the command is ``python`` and a
            script, or ``python -m`` and a module.
        kinds: shown in the UI.
        owners: of the asset.
        retries: of a process that died.
        fresh_within_h: hours within which it must have been trained; None for no policy.
        record: whether the catalog records the run; it needs a catalog that the process can write to.
        trust: modules whose functions the saved stream's plan may name, where the page reads it.
        launcher: where it is trained, apart from the run: ``{"kind": "ray"}`` and fields of that kind. None trains in a process
            that ends with the run.
        hooks: what a component changes of the asset.

    Raises:
        DagsterInvalidDefinitionError: torchrun cannot start the command, or the launcher is wrong.

    Examples:
        >>> from spiral_assets.assets import training_asset
        >>> asset = training_asset(
        ...     "photos_cnn",
        ...     "shop",
        ...     {"epochs": 8},
        ...     deps=["streams/photos"],
        ...     description="Classes of photos.",
        ...     command=["python", "-m", "shop.train"],
        ...     checks={"beats_chance": "It is more accurate than the most frequent class."},
        ... )
        >>> asset.key.path, [key.name for key in asset.check_keys]
        (['models', 'photos_cnn'], ['beats_chance'])
    """
    key = conventions.model_key(name)
    start = partial(started, name, list(command) or ["python", "-m", "spiral_assets.training", domain], processes)
    start()  # refuses what torchrun cannot start
    if launcher is not None:
        launcher_of(launcher)
    streams = [each for each in map(_key, conventions.keys(deps)) if each.path[0] == conventions.STREAMS]
    fields = config_with_launcher(name, config)
    has_choice = FIELD not in (config.model_fields if isinstance(config, type) else config)
    trusted = (*trust, *(() if command else TRUSTED))

    spec = dg.AssetSpec(
        key=key,
        group_name=conventions.TRAINING,
        kinds=set(kinds),
        owners=list(owners),
        tags=conventions.domain_tag(domain),
        description=description,
        deps=conventions.keys(deps),
        freshness_policy=automation.freshness(fresh_within_h),
    )
    spec = with_command(spec, command)

    def model(
        context: dg.AssetExecutionContext,
        config: fields,  # type: ignore[valid-type]  # Dagster reads the class when the asset is defined
        catalog: CatalogResource,
        runs: RunsResource,
        pipes: dg.PipesSubprocessClient,
    ) -> dg.MaterializeResult:  # type: ignore[type-arg]  # with a check there are two outputs, which [None] denies
        said, options = split_config(config, has_choice=has_choice)
        where = chosen(launcher, said)
        folder = runs.folder(context)
        job: LaunchedJob | None = None
        if where is not None:
            digest = digest_of({"catalog": catalog.uri, "config": options})
            job = claimed(context, where, Path(runs.root), digest, folder.absolute())
            folder = job.results
        partition = context.partition_key if context.has_partition_key else None
        run = conventions.run_name(key, partition) if record else ""
        given = ("--folder", str(folder), "--catalog", catalog.uri, *_options(options))
        env = {**PATIENT, RECORD: run}

        def page(*, over: bool, reported: Mapping[str, Any] = MappingProxyType({})) -> dict[str, Any]:
            recorded, more = run_page(context, catalog.open(), run, folder, trusted) if over and run else ({}, {})
            shown, details = model_page(context, folder, streams)
            curve = {name: shown.pop(name) for name in ("curve",) if name in shown}
            return folded({**curve, **recorded, **reported, **shown}, {**details, **more})

        with _observed(context, key, page):
            if job is None:
                ended = run_training(pipes, context, [*start(), *given], env)
            else:
                ended = follow(context, job, [*start(job.launcher.interpreter), *given], env)
        done = ended.get_materialize_result()
        metadata = page(over=True, reported={**(done.metadata or {}), **({} if job is None else job.facts)})
        return dg.MaterializeResult(
            metadata=metadata,
            check_results=_declared(context, checks, done.check_results or ()),
            data_version=done.data_version,
            tags=done.tags,
        )

    return hooks.asset(
        AssetProps("model", {"name": name, "domain": domain, "processes": processes, "deps": [*map(str, deps)]}, spec),
        model,
        retry_policy=dg.RetryPolicy(max_retries=retries),
        check_specs=[dg.AssetCheckSpec(check, asset=key, description=about) for check, about in checks.items()],
    )


def _declared(
    context: dg.AssetExecutionContext, checks: Mapping[str, str], reported: Sequence[dg.AssetCheckResult]
) -> list[dg.AssetCheckResult]:
    """Return one result per declared check; a reported check that the asset does not declare goes to the log."""
    by_name = {str(result.check_name): result for result in reported}
    for name in by_name.keys() - checks.keys():
        context.log.warning(
            "the process reported the check %r, which the asset does not declare, so no page shows it. "
            "Declare it: `checks: {%s: what it says}`",
            name,
            name,
        )
    return [by_name.get(name) or _unreported(name) for name in checks]


def _unreported(check: str) -> dg.AssetCheckResult:
    reason = f"the process did not report it. Call `run.check({check!r}, passed, facts)` before it ends, or declare no such check"
    return dg.AssetCheckResult(check_name=check, passed=False, severity=dg.AssetCheckSeverity.WARN, description=reason)


@contextmanager
def _observed(
    context: dg.AssetExecutionContext, key: dg.AssetKey, page: Callable[..., Mapping[str, Any]]
) -> Iterator[None]:
    """Observe a run every minute, and once more if it fails: the asset's page shows how far it came."""
    over = threading.Event()

    def observe(*, failed: bool = False) -> None:
        found = page(over=failed)
        if found:
            context.instance.report_runless_asset_event(dg.AssetObservation(key, metadata=found))

    def watch() -> None:
        while not over.wait(OBSERVED_S):
            observe()

    watching = threading.Thread(target=watch, name="training-page", daemon=True)
    watching.start()
    try:
        yield
    except Exception:
        observe(failed=True)
        raise
    finally:
        over.set()
        watching.join()


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

    Examples:
        >>> from spiral_assets.assets import training_jobs
        >>> made = training_jobs("shop", schedule="0 3 * * *")
        >>> [job.name for job in made.jobs], [each.name for each in made.schedules]
        (['shop', 'prepare_shop'], ['nightly_shop'])
    """
    name = name or domain
    every = dg.AssetSelection.tag(conventions.DOMAIN, domain)
    prepare = dg.define_asset_job(
        f"prepare_{name}",
        every
        - dg.AssetSelection.groups(conventions.TRAINING)
        - dg.AssetSelection.tag(conventions.MOVED, conventions.TRAINING),
        description="Register, check and measure relations, build caches, save streams.",
    )
    status = dg.DefaultScheduleStatus.RUNNING if running else dg.DefaultScheduleStatus.STOPPED
    schedules = (
        []
        if schedule is None
        else [dg.ScheduleDefinition(name=f"nightly_{name}", job=prepare, cron_schedule=schedule, default_status=status)]
    )
    full_job = dg.define_asset_job(name, every, description=f"From {domain} to a trained model.")
    return dg.Definitions(jobs=[full_job, prepare], schedules=schedules)


def started(name: str, command: list[str], processes: int, python: str = sys.executable) -> list[str]:
    """Return the command under torchrun if there are several processes.

    Args:
        name: of the asset.
        command: a first word ``python`` stands for the interpreter.
        processes: how many ranks there are.
        python: the interpreter where it runs.

    Raises:
        DagsterInvalidDefinitionError: torchrun cannot start it.
    """
    is_python = command[0] == "python"
    if processes == 1:
        return [python, *command[1:]] if is_python else command
    if processes < 1 or not is_python or len(command) == 1 or (command[1].startswith("-") and command[1] != "-m"):
        msg = (
            f"training {name!r}: {processes} processes of {' '.join(command)!r}. torchrun starts one or more of a script or "
            "module: give python and its file, or python -m and its name; or start torchrun in the command yourself"
        )
        raise dg.DagsterInvalidDefinitionError(msg)
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes))
    return [python, *torchrun, *command[1:]]


def _key(dep: dg.AssetsDefinition | dg.AssetSpec | dg.AssetKey) -> dg.AssetKey:
    return dep if isinstance(dep, dg.AssetKey) else dep.key


def _options(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield the fields of a config as command-line options."""
    for name, value in config.items():
        yield from (f"--{name.replace('_', '-')}", str(value))
