"""``make demo``: data -> Dagster -> a trained model, killed once and resumed at the exact next batch; images, text, video."""

import os
import time
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from spiral_assets import need
from spiral_assets.plans import images as image_plans
from spiral_assets.plans import text as text_plans
from spiral_assets.plans import video as video_plans


class Act(StrEnum):
    """One act of the demo."""

    IMAGES = "images"
    TEXT = "text"
    VIDEO = "video"


def main(
    only: Annotated[Act | None, typer.Option(help="Run this act alone.")] = None,
    images: Annotated[Path | None, typer.Option(help="Folder of your own images, one subfolder per class.")] = None,
    count: Annotated[int, typer.Option(min=200, help="Images to draw.")] = 3_000,
    epochs: Annotated[int, typer.Option(min=2, help="Epochs to train on images.")] = image_plans.EPOCHS,
    characters: Annotated[int, typer.Option(min=200_000, help="Characters of text per relation.")] = 4_000_000,
    steps: Annotated[int, typer.Option(min=20, help="Steps to train on text.")] = text_plans.STEPS,
    videos: Annotated[int, typer.Option(min=12, help="Videos to draw.")] = 48,
    video_steps: Annotated[int, typer.Option(min=20, help="Steps to train on video.")] = video_plans.STEPS,
    data: Annotated[bool, typer.Option("--data", help="Write the data that is not there yet, and stop.")] = False,
) -> None:
    """Run everything, kill each training once, and prove that it resumed exactly."""
    for package in ("dagster", "torch", "transformers", "av"):
        need(package, "demo", "spiral_assets.demo")
    # Here, not above: each process that draws images imports this module, and has no use for Dagster and torch.
    from spiral_assets.demo.acts import images_act, text_act, video_act, write_data
    from spiral_assets.demo.job import CONSOLE

    begun = time.monotonic()
    root = _folders()
    if data:
        write_data(root, count, characters, videos)
        return
    shown = []
    if only in {None, Act.IMAGES}:
        shown.append(images_act(root, images, count, epochs))
    if only in {None, Act.TEXT}:
        shown.append(text_act(root, characters, steps))
    if only in {None, Act.VIDEO}:
        shown.append(video_act(root, videos, video_steps))
    CONSOLE.print(f"{time.monotonic() - begun:,.0f} s. `make ui` shows the assets and the runs in Dagster")
    if not all(shown):
        raise typer.Exit(1)


def _folders() -> Path:
    """Create the folders of this run: from the environment that `make` sets, or under the working directory."""
    root = Path(os.environ.setdefault("SPIRAL_DATA_ROOT", str(Path("demo").resolve())))
    os.environ.setdefault("SPIRAL_CATALOG", str(root / "catalog"))
    os.environ.setdefault("SPIRAL_CACHE", str(root / "caches"))
    home = Path(os.environ.setdefault("DAGSTER_HOME", str(Path("dagster_home").resolve())))
    for folder in (root, home):
        folder.mkdir(parents=True, exist_ok=True)
    return root


if __name__ == "__main__":
    typer.run(main)
