"""``make demo``: images -> Dagster -> a trained network, killed once and resumed at the exact next batch."""

import json
import os
import shutil
import threading
import time
from pathlib import Path
from typing import Annotated, Any

import dagster as dg
import typer
from rich.console import Console
from rich.table import Table

from spiral_assets import plans
from spiral_assets.demo.killer import Killer
from spiral_assets.demo.proof import Proof, prove

CONSOLE = Console()


def main(
    images: Annotated[str, typer.Option(help="A folder of class folders instead of drawn images.")] = "",
    count: Annotated[int, typer.Option(help="Images to draw.")] = 3_000,
    epochs: Annotated[int, typer.Option(help="Epochs to train.")] = 8,
) -> None:
    """Run everything, kill the training once, prove that it went on exactly."""
    root = Path(os.environ.setdefault("SPIRAL_DATA_ROOT", str(Path("demo").resolve())))
    os.environ.setdefault("SPIRAL_CATALOG", str(root / "catalog"))
    os.environ.setdefault("SPIRAL_CACHE", str(root / "caches"))
    home = Path(os.environ.setdefault("DAGSTER_HOME", str((Path("dagster_home")).resolve())))
    root.mkdir(parents=True, exist_ok=True)
    home.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    if not images:
        _draw(root, count)
    shutil.rmtree(root / "checkpoints", ignore_errors=True)
    killer = Killer(root / "checkpoints", epoch=1)
    CONSOLE.rule("Dagster job: register, measure, build the cache, save the stream, train")
    result = _run(images, count, epochs, killer)
    if not result.success:
        CONSOLE.print("[red]the job failed[/red]; its log is above, its run in `make ui`")
        raise typer.Exit(1)
    outcome = json.loads((root / "checkpoints" / "result.json").read_text())
    CONSOLE.rule("EXPLAIN DATA")
    proof = prove(os.environ["SPIRAL_CATALOG"], root / "checkpoints", epochs, _print_explanation)
    CONSOLE.rule("Summary")
    CONSOLE.print(_summary(result, outcome, proof, killer, time.monotonic() - begun))
    if not proof.exact or outcome["accuracy"] < 2 * outcome["chance"]:
        CONSOLE.print("[red]the demo did not show what it should[/red]")
        raise typer.Exit(1)


def _draw(root: Path, count: int) -> None:
    from spiral_assets.demo.images import write_image_relation

    drawn = write_image_relation(root / "images", count)
    CONSOLE.print(f"{drawn.count:,} images in {drawn.shards} storage shards, {drawn.image_bytes / 1e6:,.0f} MB of JPEG")


def _run(images: str, count: int, epochs: int, killer: Killer) -> dg.ExecuteInProcessResult:
    from spiral_assets.definitions import defs

    config: dict[str, Any] = {
        "ops": {"models__images_cnn": {"config": {"epochs": epochs, "fresh": True}}},
        "resources": {"images": {"config": {"folder": str(Path(images).resolve()) if images else "", "count": count}}},
    }
    watching = threading.Thread(target=killer.watch, name="demo-killer", daemon=True)
    watching.start()
    try:
        with dg.DagsterInstance.get() as instance:
            job = defs().resolve_job_def("images")
            return job.execute_in_process(instance=instance, run_config=config, raise_on_error=False)
    finally:
        killer.stop()
        watching.join(10)


def _print_explanation(text: str) -> None:
    CONSOLE.print(text, markup=False, highlight=False, soft_wrap=True)


def _summary(
    result: dg.ExecuteInProcessResult, outcome: dict[str, Any], proof: Proof, killer: Killer, seconds: float
) -> Table:
    table = Table("what", "result", title=f"demo, {seconds:,.0f} s")
    table.add_row(
        "Dagster run", f"{result.run_id[:8]}, {len(result.get_asset_materialization_events())} materializations"
    )
    table.add_row(
        "killed", f"process {killer.killed} with SIGKILL after batch {killer.after_batch} of epoch {killer.epoch}"
    )
    table.add_row("resumed", f"process {proof.resumed_pid} at epoch {proof.resumed_epoch}, batch {proof.resumed_batch}")
    table.add_row("identities as in an uninterrupted run", f"{proof.equal:,} of {proof.batches:,} batches")
    table.add_row("batches before the checkpoint, seen once", f"{proof.before:,}")
    table.add_row("accuracy on unseen images", f"{outcome['accuracy']:.1%} (chance {outcome['chance']:.1%})")
    table.add_row("training", f"{outcome['samples_per_s']:,} images/s, bound by {outcome['bound_by']}")
    table.add_row("stream", f"spiral explain {plans.TRAIN}; make ui shows the assets")
    return table


if __name__ == "__main__":
    typer.run(main)
