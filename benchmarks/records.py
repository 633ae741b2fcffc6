"""What recording a run costs: CPU time of a loop with and without it, bytes per sample, and a table of 10^8 records.

    python -m benchmarks.records FOLDER [--rounds 5] [--rivals PYTHON]    a loop of 64 samples a batch, in turns
    python -m benchmarks.records FOLDER --large 100000000                 record, build the table, filter and group it

Each cell of the loop is a process of its own; CPU seconds are those of its loop, on all threads. ``--rivals`` names an
interpreter that has MLflow and W&B, outside of ours; they log the same values from memory, with no loader beside them.
"""

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

BATCH: Final = 64
STEPS: Final = 4_000
RIVAL_STEPS: Final = 300
ROOT: Final = Path(__file__).parents[1]
LARGE: Final = (
    *("source", "record", "table", "again", "filter"),
    *("groups", "where", "ids", "verbs", "outliers", "spikes", "figures"),
)


def cpu_s() -> float:
    """CPU seconds of this process and of children that ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def peak_mb() -> float:
    """The largest of this process and its children, each by itself."""
    return max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)) / 1024


# ---- the loop


def prepared(folder: Path) -> Any:
    import numpy as np
    import pyarrow as pa

    import spiral_stream as sp

    catalog = sp.connect(str(folder / "catalog"))
    rows = STEPS * BATCH
    if "numbers" not in catalog.tables():
        table = pa.table({"id": np.arange(rows), "x": np.arange(rows, dtype=np.float32)})
        catalog.register("numbers", sp.Arrow(table), identity="id")
    sampled = catalog.table("numbers").sample(order=sp.GlobalShuffle(seed=1))
    return catalog, sampled.collate(batch_size=BATCH, fields={"x": sp.Stack("x")}).to_torch()


def loop(folder: Path, how: str) -> dict[str, float]:
    """A loop: ``bare``, ``key`` (a run is open, and nothing is logged) or ``log``."""
    catalog, stream = prepared(folder)
    name = f"bench-{how}"
    if name in catalog.runs():
        catalog.drop_run(name)
    run = None if how == "bare" else catalog.run(name, stream)
    calls = list[float]()
    for _ in zip(range(50), stream, strict=False):  # first touches
        pass
    stream.seek(epoch=0, batch=0)
    begun = time.process_time()
    for batch in stream:
        if how == "log":
            assert run is not None
            at = time.thread_time()
            run.log(batch=batch, loss=batch["x"])
            calls.append(time.thread_time() - at)
    if run is not None:
        at = time.thread_time()
        run.close()
        calls.append(time.thread_time() - at)
    used = time.process_time() - begun
    stream.close()
    parts = list((folder / "catalog" / "runs" / name / "records").glob("*.part"))
    out = {"us_per_step": 1e6 * used / STEPS, "bytes_per_sample": sum(p.stat().st_size for p in parts) / STEPS / BATCH}
    if how == "log":
        calls.sort()
        out |= {
            "call_us": 1e6 * statistics.median(calls),
            "call_mean_us": 1e6 * sum(calls) / STEPS,
            "flush_us": 1e6 * sum(calls[-max(1, len(parts)) :]) / STEPS,
        }
    return out


def rival(folder: Path, how: str) -> dict[str, float]:
    """MLflow or W&B log 64 values and their 64 identities a step."""
    import numpy as np

    place = folder / how
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    draws = np.random.default_rng(1)
    ids, losses = draws.permutation(RIVAL_STEPS * BATCH).reshape(RIVAL_STEPS, BATCH), draws.random((RIVAL_STEPS, BATCH))
    if how == "mlflow":
        os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
        import mlflow
        from mlflow.entities import Metric

        mlflow.set_tracking_uri(place.as_uri())
        mlflow.set_experiment("bench")
        mlflow.start_run()
        client, run_id = mlflow.MlflowClient(), mlflow.active_run().info.run_id
        begun = cpu_s()
        for step in range(RIVAL_STEPS):
            pairs = zip(ids[step].tolist(), losses[step].tolist(), strict=True)
            client.log_batch(run_id, [Metric(f"loss.{each}", value, 0, step) for each, value in pairs])
        mlflow.end_run()
    else:
        import wandb

        begun = cpu_s()
        with wandb.init(mode="offline", dir=place, settings=wandb.Settings(silent=True)) as run:
            for step in range(RIVAL_STEPS):
                run.log({"id": ids[step].tolist(), "loss": losses[step].tolist()})
        wandb.teardown()
    used = cpu_s() - begun
    size = sum(each.stat().st_size for each in place.rglob("*") if each.is_file())
    return {"us_per_step": 1e6 * used / RIVAL_STEPS, "bytes_per_sample": size / RIVAL_STEPS / BATCH}


def rounds(folder: Path, count: int, rivals: str | None) -> None:
    systems = [("bare", sys.executable), ("key", sys.executable), ("log", sys.executable)]
    systems += [] if rivals is None else [("mlflow", rivals), ("wandb", rivals)]
    found: dict[str, list[dict[str, float]]] = {name: [] for name, _ in systems}
    prepared(folder)[1].close()
    for turn in range(count):
        for name, python in [*systems[turn % len(systems) :], *systems[: turn % len(systems)]]:
            command = [python, __file__, str(folder), "--cell", name]
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
            if done.returncode:
                raise RuntimeError(done.stderr)
            found[name].append(json.loads(done.stdout.splitlines()[-1]))
    for name, cells in found.items():
        for figure in cells[0]:
            values = sorted(cell[figure] for cell in cells)
            print(f"{name:8} {figure:18} {values[0]:10.1f} {statistics.median(values):10.1f} {values[-1]:10.1f}")
    ratios = sorted(a["us_per_step"] / b["us_per_step"] for a, b in zip(found["log"], found["bare"], strict=True))
    print(f"log / bare, CPU of the loop: {ratios[0]:.3f} {statistics.median(ratios):.3f} {ratios[-1]:.3f}")


# ---- a large run


@contextmanager
def measured(what: str) -> Iterator[None]:
    begun, used = time.perf_counter(), cpu_s()
    yield
    print(
        f"{what:40} {time.perf_counter() - begun:8.1f} s {cpu_s() - used:8.1f} CPU s, peak {peak_mb():7,.0f} MB",
        flush=True,
    )


def large(folder: Path, rows: int, step: str) -> None:
    """Record a run of so many samples in batches of 65,536; build its table; filter and group it. A process per step."""
    import numpy as np
    import pyarrow as pa

    import spiral_stream as sp

    catalog = sp.connect(str(folder / "catalog"))
    if step == "source":
        import lance

        at = range(0, rows, 1 << 20)
        batches = (pa.record_batch({"id": np.arange(k, min(rows, k + (1 << 20)))}) for k in at)
        with measured("write and register the source"):
            schema = pa.schema({"id": pa.int64()})
            lance.write_dataset(pa.RecordBatchReader.from_batches(schema, batches), folder / "source.lance")
            catalog.register("source", sp.Lance(str(folder / "source.lance")), identity="id")
    elif step == "record":
        sampled = catalog.table("source").sample(order=sp.Sequential())
        plan = sampled.collate(batch_size=1 << 16, fields={"x": sp.Stack("id")}, last=sp.KeepPartial)
        with measured("the loop with run.log"), plan.to_numpy() as stream:
            run = catalog.run("large", stream, every=16)
            for batch in stream:
                run.log(batch=batch, loss=(batch["x"] * 2_654_435_761 % 1_000).astype(np.float32))
            run.close()
        parts = list((folder / "catalog" / "runs" / "large" / "records").glob("*.part"))
        size = sum(each.stat().st_size for each in parts)
        print(f"{len(parts)} parts, {size / rows:.2f} bytes a sample")
    elif step == "table":
        with measured("build the table and register it"):
            print(f"{catalog.table('runs.large').count():,} rows")
    elif step == "again":
        with measured("open the table that is up to date"):
            catalog.table("runs.large")
    elif step == "filter":
        with measured("filter(loss > 998), to Arrow"):
            found = catalog.table("runs.large").filter(sp.col("loss") > 998).select("id", "step", "loss").to_arrow()
            print(f"{len(found):,} rows")
    else:
        reads(catalog, step)


def reads(catalog: Any, step: str) -> None:
    """Read a large run in one of the ways that there are."""
    table = '"runs.large"'
    if step == "groups":
        with measured("SQL: mean loss by step"):
            text = (
                f"select step, avg(loss) as loss, count(*) as n from {table} group by step order by loss desc limit 5"
            )
            print(catalog.sql(text).to_arrow().to_pylist()[0])
    elif step == "where":
        with measured("SQL: mean loss by step, of one step in ten"):
            text = f"select step, avg(loss) as loss from {table} where step between 10 and 10 + 9 and applied group by step"
            print(len(catalog.sql(text).to_arrow()))
    elif step == "ids":
        with measured("SQL: the largest loss of each sample"):
            text = f"select id, max(loss) as loss from {table} group by id order by loss desc, id limit 5"
            print(catalog.sql(text).to_arrow().to_pylist()[0])
    elif step == "verbs":
        with measured("group_by(step).aggregate(mean loss)"):
            print(len(catalog.table("runs.large").group_by("step").aggregate(loss=("loss", "avg")).to_arrow()))
    elif step == "outliers":
        with measured("run.outliers()"):
            print(str(catalog.run("large").outliers())[:200])
    elif step == "spikes":
        with measured("run.spikes()"):
            print(str(catalog.run("large").spikes())[:200])
    else:
        with measured("run.figures()"):
            print(len(catalog.run("large").figures()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rivals")
    parser.add_argument("--large", type=int)
    parser.add_argument("--cell")
    asked = parser.parse_args()
    if asked.large and asked.cell:
        large(asked.folder, asked.large, asked.cell)
    elif asked.cell:
        print(json.dumps((rival if asked.cell in ("mlflow", "wandb") else loop)(asked.folder, asked.cell)))
    elif asked.large:
        for step in LARGE:
            subprocess.run(
                [sys.executable, __file__, str(asked.folder), "--large", str(asked.large), "--cell", step], check=False
            )
    else:
        rounds(asked.folder, asked.rounds, asked.rivals)


if __name__ == "__main__":
    main()
