"""What the page of a trained model shows in Dagster: the curve of the whole run, its speed, and what the model saw.

All of it comes from files in the folder of the run (`spiral_assets.training.progress`), so it covers every process of a run
that was killed and retried, and it is there while the run goes on and after it failed.
"""

import json
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, Final

import dagster as dg

from spiral_assets import pages
from spiral_assets.facts import reports
from spiral_assets.training import progress
from spiral_assets.training.progress import Progress, Values

POINTS: Final = 500  # of a curve
STRETCHES: Final = 20  # of a run in a table
PICTURE: Final = "training_curve"


def model_page(
    context: dg.AssetExecutionContext, folder: Path, streams: Sequence[dg.AssetKey] = ()
) -> tuple[dict[str, dg.MetadataValue[Any]], dict[str, dg.MetadataValue[Any]]]:
    """Return what the page of a trained model shows, and what it folds; empty if the process told no progress.

    Args:
        context: of the run that shows it; the picture is kept with it, and beside the checkpoint.
        folder: of the training run.
        streams: assets of the stream that it trained from.

    Examples:
        >>> from spiral_assets.model_page import model_page
        >>> train("a-model")
        >>> shown, details = model_page(dg.build_asset_context(), Path("a-model"))
        >>> shown["steps"].value, details["stream_name"].value
        (3, 'shop-labels')
    """
    found = progress.read(folder)
    if not found.step:
        return {}, {}
    share, bound_by = found.waiting()
    value, begun = dg.MetadataValue, found.begins[-1]
    small, large = _pictures(context, folder, found)
    names = {("stream" if len(streams) == 1 else f"stream_{key.path[-1]}"): value.asset(key) for key in streams}
    shown: dict[str, dg.MetadataValue[Any]] = {
        "curve": small,
        "last_loss": value.float(float(f"{found.main[-1]['loss']:.4g}")),
        "steps": value.int(found.step),
        f"{found.unit}_per_s": value.float(float(f"{found.rate():.4g}")),
        "waiting_share": value.float(round(share, 4)),
        "bound_by": value.text(bound_by),
        **names,
        "epochs": value.int(_epochs(found)),
        "processes": value.int(len(found.begins)),
        "ranks": value.int(int(begun["world"])),
    }
    details: dict[str, dg.MetadataValue[Any]] = {
        "stream_name": value.text(str(begun["stream"]) or "not saved by name"),
        "fingerprint": value.text(str(begun["fingerprint"])),
        "checkpoint": value.path(str(folder.resolve())),
        "large_curve": large,
        "progress": reports.listed(list(_rows(found))),
        "replay": reports.snippet(_replay(begun.get("catalog"), found.seen())),
    }
    ledgers = sorted(folder.glob("ledger*.jsonl"))
    if ledgers:
        details["ledger"] = value.path(str(ledgers[0].resolve()))
    return shown, details


def _pictures(
    context: dg.AssetExecutionContext, folder: Path, found: Progress
) -> tuple[dg.MetadataValue[Any], dg.MetadataValue[Any]]:
    """Draw loss, speed and waiting over the steps of the run, small and large; lines mark where a process resumed."""
    import spiral_stream as spiral

    resumed = sorted({begun["step"] for begun in found.begins if begun["step"]})
    rows = list(_binned(found, POINTS))

    def drawn(name: str, width: int) -> "spiral.report.Picture":
        return spiral.report.draw_curves(
            name,
            f"{found.step:,} steps, {len(found.begins)} process{'es' * (len(found.begins) > 1)}"
            + (f", of {found.begins[-1]['world']} ranks" if found.begins[-1]["world"] > 1 else ""),
            {
                "mean loss": {"loss": [(row["step"], row["loss"]) for row in rows]},
                f"{found.unit} per s": {found.unit: [(row["step"], row["rate"]) for row in rows]},
                "% of time waiting": {"for batches": [(row["step"], 100 * row["waiting"]) for row in rows]},
            },
            across="step",
            marks=resumed,
            marked="resumed after a kill or failure",
            width=width,
        )

    small, large = drawn(f"small_{PICTURE}", pages.SMALL), drawn(PICTURE, pages.LARGE)
    (folder / f"{PICTURE}.svg").write_bytes(large.data)
    small_shown, large_shown = (
        pages.shown(context, str(folder), [(each.name, each.form, each.data)]) for each in (small, large)
    )
    return small_shown, large_shown


def _rows(found: Progress) -> Iterator[Values]:
    """Yield rows of the table, few enough to be read."""
    for row in _binned(found, STRETCHES):
        yield {
            "step": row["step"],
            "epoch": row["epoch"],
            "loss": float(f"{row['loss']:.4g}"),
            f"{found.unit} per s": float(f"{row['rate']:.4g}"),
            "waiting": f"{row['waiting']:.0%}",
        }


def _binned(found: Progress, most: int) -> Iterator[Values]:
    """Yield loss, speed and waiting of at most so many stretches of the run, of all ranks."""
    width = -(-found.step // most)
    every = sorted((line for lines in found.lines.values() for line in lines), key=lambda line: line["step"])
    for _, group in groupby(every, key=lambda line: (line["step"] - 1) // width):
        lines = list(group)
        steps, seconds = (sum(line[name] for line in lines) for name in ("steps", "seconds"))
        last, ranks = lines[-1], len(found.lines)
        yield {
            "step": last["step"],
            "epoch": last["epoch"] - (last["batch"] == 0),  # a step that ended an epoch belongs to it
            "loss": sum(line["loss"] * line["steps"] for line in lines) / steps,
            "rate": ranks * sum(line["units"] for line in lines) / seconds if seconds else 0.0,
            "waiting": min(1.0, sum(line["consumer_waited_s"] for line in lines) / seconds) if seconds else 0.0,
        }


def _epochs(found: Progress) -> int:
    """Return of how many epochs the model saw samples."""
    last = found.main[-1]
    return int(last["epoch"]) + bool(last["batch"])


def _replay(catalog: str | None, seen: Sequence[Values]) -> str:
    """Return code that lists what the model saw; older runs did not note their catalog."""
    where = "" if catalog is None else repr(catalog)
    return (
        "import json\nimport spiral_stream\nfrom spiral_assets.training.seen import samples_seen\n\n"
        f"seen = json.loads('''{json.dumps(seen, indent=1)}''')\n"
        f"for epoch, batch, samples in samples_seen(spiral_stream.connect({where}), seen):\n    print(epoch, batch, samples)"
    )
