"""Run a Dagster job in this process with readable log lines, and kill its training once."""

import json
import logging
import os
import re
import threading
import uuid
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, final

import dagster as dg
from rich.console import Console
from rich.table import Table

from spiral_assets.demo.killer import Killer
from spiral_assets.demo.proof import Proof, prove

CONSOLE: Final = Console(highlight=False)
_NOT_RUN: Final = re.compile(r"Dependencies for step .*Not executing|Skipping step ", re.DOTALL)


@final
@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of a job."""

    job: dg.ExecuteInProcessResult
    result: Mapping[str, Any]  # results of the training process
    killed: Mapping[str, Any] | None  # the last batch of the process that was killed
    ledger: Path

    def prove(self, stream: str, steps: int) -> Proof:
        """Compare the batches of this run with those of an uninterrupted run of the stream."""
        return prove(os.environ["SPIRAL_CATALOG"], self.ledger, stream, steps)

    def metadata(self, node: str) -> Mapping[str, Any]:
        """Return the metadata of an asset by its name in the job (``caches__imagenet_decoded``)."""
        (found,) = self.job.asset_materializations_for_node(node)
        return {name: value.value for name, value in found.metadata.items()}


def run_job(name: str, root: Path, config: Mapping[str, Any]) -> Outcome | None:
    """Run a job and store the run in ``$DAGSTER_HOME``. Return None if it failed.

    Args:
        name: of the job.
        root: folder of checkpoints.
        config: run config, with that of the model.
    """
    # Dagster warns of parts of its own Pipes; `make demo` is no place for it.
    warnings.simplefilter("ignore", dg.PreviewWarning)
    from spiral_assets.definitions import defs

    run_id = str(uuid.uuid4())
    (node,) = config["ops"]
    folder = root / "checkpoints" / run_id / str(node).removeprefix("models__")
    definitions = dg.Definitions.merge(defs(), dg.Definitions(loggers={"brief": dg.LoggerDefinition(brief)}))
    with dg.DagsterInstance.get() as instance, _killing(folder / "ledger.jsonl") as killer:
        job = definitions.resolve_job_def(name).execute_in_process(
            instance=instance, run_config={"loggers": {"brief": {}}, **config}, run_id=run_id, raise_on_error=False
        )
    if not job.success:
        CONSOLE.print("[red]the job failed[/red]; its log is above, and in `make ui`")
        for reason in failures(job):
            CONSOLE.print(reason, markup=False, soft_wrap=True)
        return None
    return Outcome(job, json.loads((folder / "result.json").read_text()), killer.killed, folder / "ledger.jsonl")


def failures(job: dg.ExecuteInProcessResult) -> list[str]:
    """Say why a job failed: what each failed check found, and the first cause of each step that failed otherwise."""
    wrong = [each for each in job.get_asset_check_evaluations() if not each.passed and each.blocking]
    found = [
        f"{each.asset_key.to_user_string()}: check {each.check_name} failed: {each.description or 'it gives no reason'}"
        for each in wrong
    ]
    for event in job.all_events:
        error = event.step_failure_data.error if event.is_step_failure else None
        if error is None or error.cls_name == "DagsterAssetCheckFailedError":
            continue  # a step that did not run, or one of the checks above
        while error.cause is not None:
            error = error.cause
        found.append(f"{(event.step_key or '').replace('__', '/')}: {error.message.strip()}")
    return found


def summary(outcome: Outcome, proof: Proof) -> Table:
    """Return the table that every job shows: checks, the kill, and the proof that it cost no batch."""
    checks = outcome.job.get_asset_check_evaluations()
    table = Table("what", "result")
    assets = {
        event.asset_key for event in outcome.job.get_asset_materialization_events()
    }  # a partitioned asset has several events
    table.add_row("Dagster run", f"{outcome.job.run_id[:8]}, {len(assets)} assets")
    warned = "".join(f"; {warning(check)}" for check in checks if not check.passed)
    table.add_row("asset checks", f"{sum(check.passed for check in checks)} of {len(checks)} passed{warned}")
    if outcome.killed is not None:
        where = f"epoch {outcome.killed['epoch']}, batch {outcome.killed['batch']}"
        table.add_row("killed (SIGKILL)", f"process {outcome.killed['pid']} after {where}")
        table.add_row("resumed", f"at epoch {proof.resumed_at[0]}, batch {proof.resumed_at[1]}, the checkpoint's next")
    table.add_row(
        "batches of the run", f"{proof.run:,} by {proof.processes} processes; uninterrupted {proof.expected:,}"
    )
    table.add_row("same identities, in order", f"{proof.same_ids:,} of {proof.expected:,}")
    table.add_row("same tensors, bit for bit", f"{proof.same_tensors:,} of {proof.expected:,}")
    table.add_row("as predicted from the plan", f"{proof.as_planned:,} of {proof.expected:,}")
    table.add_row("delivered twice (checkpoint to kill)", f"{proof.repeated_alike:,} of {proof.repeated:,} alike")
    return table


def warning(check: dg.AssetCheckEvaluation) -> str:
    """Say what a check warns of; one that a process reported through Pipes has numbers and no description."""
    import spiral_stream as spiral

    numbers = ", ".join(f"{name} {spiral.report.written(value.value)}" for name, value in check.metadata.items())
    return f"{check.check_name} warns: {check.description or numbers or 'it gives no reason'}"


def explain(stream: str) -> None:
    """Print EXPLAIN DATA of a saved stream."""
    import spiral_stream as spiral

    CONSOLE.rule(f"EXPLAIN DATA {stream}")
    with spiral.open_stream(stream, device="cpu", epoch=0) as opened:
        CONSOLE.print(str(opened.explain()), markup=False, soft_wrap=True)


@contextmanager
def _killing(ledger: Path) -> Iterator[Killer]:
    """Run a killer in a thread while the job runs."""
    killer = Killer(ledger, lambda text: CONSOLE.print(f"[bold red]{text}[/bold red]"))
    watching = threading.Thread(target=killer.watch, name="demo-killer", daemon=True)
    watching.start()
    try:
        yield killer
    finally:
        killer.stop()
        watching.join(10)


class _Brief(logging.Handler):
    """Print time, asset and message of each log line; the run's log in Dagster has the rest."""

    def emit(self, record: logging.LogRecord) -> None:
        about: dict[str, Any] = getattr(record, "dagster_meta", {})
        if _NOT_RUN.match(str(about.get("orig_message") or record.getMessage())):
            return  # what failed is told at the end; what waited for it is no news
        step = str(about.get("step_key") or "").replace("__", "/")
        CONSOLE.print(f"{datetime.now(UTC):%H:%M:%S} {step}", style="dim", end="  ")
        CONSOLE.print(about.get("orig_message") or record.getMessage(), markup=False, soft_wrap=True)


def brief(_: dg.InitLoggerContext) -> logging.Logger:
    """A logger that says one line for each step."""
    made = logging.getLogger("spiral-demo")
    made.setLevel(logging.INFO)
    made.handlers = [_Brief()]
    made.propagate = False
    return made
