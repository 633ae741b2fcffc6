"""``make demo``: images -> Dagster -> a trained network, killed once and resumed at the exact next batch."""

import json
import logging
import os
import threading
import time
import uuid
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final

import dagster as dg
import typer
from rich.console import Console
from rich.table import Table

from spiral_assets import plans
from spiral_assets.demo.killer import Killer
from spiral_assets.demo.proof import Proof, prove

CONSOLE: Final = Console(highlight=False)


def main(
    images: Annotated[Path | None, typer.Option(help="Class folders of your own images; else some are drawn.")] = None,
    count: Annotated[int, typer.Option(min=200, help="Images to draw.")] = 3_000,
    epochs: Annotated[int, typer.Option(min=2, help="Epochs to train.")] = plans.EPOCHS,
) -> None:
    """Run everything, kill the training once, prove that it went on exactly."""
    begun = time.monotonic()
    root = _place()
    if images is None:
        CONSOLE.rule("Images")
        _draw(root, count)
    CONSOLE.rule("Dagster job: register, check, measure, build the cache, save the streams, train")
    run_id = str(uuid.uuid4())
    folder = root / "checkpoints" / run_id
    with _killing(folder / "ledger.jsonl") as killer:
        result = _run(run_id, images, count, epochs)
    if not result.success:
        CONSOLE.print("[red]the job failed[/red]; its log is above, and in `make ui`")
        raise typer.Exit(1)
    outcome = json.loads((folder / "result.json").read_text())
    CONSOLE.rule(f"EXPLAIN DATA {plans.TRAIN}")
    _explain()
    CONSOLE.rule("Summary")
    proof = prove(os.environ["SPIRAL_CATALOG"], folder / "ledger.jsonl", epochs)
    CONSOLE.print(_summary(result, outcome, proof, killer.killed))
    CONSOLE.print(f"{time.monotonic() - begun:,.0f} s. `make ui` shows the assets and this run in Dagster")
    if killer.killed is None or not proof.exact or not outcome["beats_chance"]:
        CONSOLE.print("[red]the demo did not show what it should[/red]")
        raise typer.Exit(1)


def _place() -> Path:
    """The folders of this run, by the environment that `make` sets, else under the working directory."""
    root = Path(os.environ.setdefault("SPIRAL_DATA_ROOT", str(Path("demo").resolve())))
    os.environ.setdefault("SPIRAL_CATALOG", str(root / "catalog"))
    os.environ.setdefault("SPIRAL_CACHE", str(root / "caches"))
    home = Path(os.environ.setdefault("DAGSTER_HOME", str(Path("dagster_home").resolve())))
    for folder in (root, home):
        folder.mkdir(parents=True, exist_ok=True)
    return root


def _draw(root: Path, count: int) -> None:
    from spiral_assets.demo.images import write_image_relation

    drawn = write_image_relation(root / "images", count)
    CONSOLE.print(f"{drawn.count:,} JPEGs in {drawn.shards} storage shards, {drawn.image_bytes / 1e6:,.0f} MB")


@contextmanager
def _killing(ledger: Path) -> Iterator[Killer]:
    """A killer that waits for its moment beside the job."""
    killer = Killer(ledger, lambda text: CONSOLE.print(f"[bold red]{text}[/bold red]"))
    watching = threading.Thread(target=killer.watch, name="demo-killer", daemon=True)
    watching.start()
    try:
        yield killer
    finally:
        killer.stop()
        watching.join(10)


def _run(run_id: str, images: Path | None, count: int, epochs: int) -> dg.ExecuteInProcessResult:
    """The job, in this process; its run is kept in ``$DAGSTER_HOME``."""
    # Dagster warns of parts of its own Pipes; `make demo` is no place for it.
    warnings.simplefilter("ignore", dg.PreviewWarning)
    from spiral_assets.definitions import defs

    config: dict[str, Any] = {
        "loggers": {"brief": {}},
        "ops": {"models__images_cnn": {"config": {"epochs": epochs}}},
        "resources": {"images": {"config": {"folder": str(images.resolve()) if images else "", "count": count}}},
    }
    with dg.DagsterInstance.get() as instance:
        job = dg.Definitions.merge(
            defs(), dg.Definitions(loggers={"brief": dg.LoggerDefinition(_brief)})
        ).resolve_job_def("images")
        return job.execute_in_process(instance=instance, run_config=config, run_id=run_id, raise_on_error=False)


class _Brief(logging.Handler):
    """Log lines that a person reads: the time, the asset, what it said; the run's log in Dagster has the rest."""

    def emit(self, record: logging.LogRecord) -> None:
        about: dict[str, Any] = getattr(record, "dagster_meta", {})
        step = str(about.get("step_key") or "").replace("__", "/")
        CONSOLE.print(f"{datetime.now(UTC):%H:%M:%S} {step}", style="dim", end="  ")
        CONSOLE.print(about.get("orig_message") or record.getMessage(), markup=False, soft_wrap=True)


def _brief(_: dg.InitLoggerContext) -> logging.Logger:
    made = logging.getLogger("spiral-demo")
    made.setLevel(logging.INFO)
    made.handlers = [_Brief()]
    made.propagate = False
    return made


def _explain() -> None:
    import spiral_stream as spiral

    with spiral.open_stream(plans.TRAIN, device="cpu", epoch=0) as stream:
        CONSOLE.print(str(stream.explain()), markup=False, soft_wrap=True)


def _summary(
    result: dg.ExecuteInProcessResult, outcome: dict[str, Any], proof: Proof, killed: dict[str, Any] | None
) -> Table:
    checks = result.get_asset_check_evaluations()
    built = result.asset_materializations_for_node("caches__imagenet_decoded")[0].metadata
    table = Table("what", "result")
    table.add_row("Dagster run", f"{result.run_id[:8]}, {len(result.get_asset_materialization_events())} assets")
    warned = "".join(f"; {check.check_name} warns: {check.description}" for check in checks if not check.passed)
    table.add_row("asset checks", f"{sum(check.passed for check in checks)} of {len(checks)} passed{warned}")
    rows, new = built["dagster/row_count"].value, built["rows_built"].value
    table.add_row("cache", f"{rows:,} rows of decoded images, {new:,} of them built now")
    if killed is not None:
        where = f"epoch {killed['epoch']}, batch {killed['batch']} of {killed['steps']}"
        table.add_row("killed (SIGKILL)", f"process {killed['pid']} after {where}")
        table.add_row("resumed", f"at epoch {proof.resumed_at[0]}, batch {proof.resumed_at[1]}, the checkpoint's next")
    table.add_row(
        "batches of the run", f"{proof.run:,} by {proof.processes} processes; uninterrupted {proof.expected:,}"
    )
    table.add_row("same identities, in order", f"{proof.same_ids:,} of {proof.expected:,}")
    table.add_row("same pixels, bit for bit", f"{proof.same_pixels:,} of {proof.expected:,}")
    table.add_row("as the plan's arithmetic says", f"{proof.as_planned:,} of {proof.expected:,}")
    table.add_row("delivered twice (checkpoint to kill)", f"{proof.repeated_alike:,} of {proof.repeated:,} alike")
    accuracy = f"{outcome['accuracy']:.1%} of {outcome['validated_on']:,} unseen images; chance {outcome['chance']:.1%}"
    table.add_row("accuracy", accuracy)
    table.add_row("training", f"{outcome['samples_per_s']:,.0f} images/s; bound by {outcome['bound_by']}")
    return table


if __name__ == "__main__":
    typer.run(main)
