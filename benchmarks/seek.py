"""What it costs to go on in the middle: state -> first batch anywhere in an epoch, and the order of 10^10 rows.

    .venv/bin/python -m benchmarks.seek [--rows 2000000]

CPU seconds of this process, best of several, since interruptions only add. The relation is real: a Lance dataset of
`--rows` rows in 200 fragments, filtered, so that positions go through order and selection to row addresses.
"""

import resource
import tempfile
import time
from pathlib import Path
from typing import Annotated

import lance
import numpy as np
import pyarrow as pa
import typer
from rich.console import Console
from rich.table import Table

import spiral_stream as spiral
from spiral_stream.sampling.order import Population

REPEATS = 7


def cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def relation(folder: Path, rows: int) -> spiral.Catalog:
    ids = np.arange(rows)
    table = pa.table(
        {
            "sample_id": pa.array([f"s{i:09d}" for i in ids]),
            "split": pa.array(np.where(ids % 10 == 0, "val", "train")),
            "features": pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(rows * 8, np.float32)), 8),
            "storage_shard": pa.array([f"shard-{i:05d}" for i in ids * 200 // rows]),
        }
    )
    lance.write_dataset(table, str(folder / "rows.lance"), max_rows_per_file=rows // 200)
    catalog = spiral.connect(str(folder / "catalog"))
    catalog.register("rows", spiral.Lance(str(folder / "rows.lance")))
    return catalog


def first_batch_ms(plan: spiral.Relation, share: float) -> float:
    with plan.to_numpy() as stream:
        epoch = len(stream)
        state = stream.state_dict()
        step = int(epoch * share)
        state |= {"batch": step, "step": step}
        begun = cpu_s()
        stream.load_state_dict(state)
        run = iter(stream)
        next(run)
        spent = cpu_s() - begun
        run.close()  # type: ignore[attr-defined]  # a generator
    return spent * 1e3


def main(rows: Annotated[int, typer.Option(help="Rows of the relation.")] = 2_000_000) -> None:
    """Print the costs."""
    shards = np.full(100_000, 100_000, dtype=np.uint64)
    population = Population(shards, np.arange(100_000, dtype=np.uint64))
    listing = Table("10^10 rows in 10^5 shards, 1,000 positions anywhere", "wall s", "peak RSS of the process, MB")
    for order in (spiral.ShardAwareShuffle(seed=1, shuffle_block_size=1_000_000), spiral.GlobalShuffle(seed=1)):
        begun = time.perf_counter()
        positions = np.linspace(0, population.total - 1, 1_000).astype(np.uint64)
        arranged = order.arrange(population, 3)
        found = arranged.positions(arranged.rows(positions))
        spent = time.perf_counter() - begun
        assert (found == positions).all()
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        listing.add_row(type(order).__name__, f"{spent:.3f}", f"{peak:,.0f}")
    Console().print(listing)

    with tempfile.TemporaryDirectory() as folder:
        catalog = relation(Path(folder), rows)
        plan = (
            catalog.table("rows")
            .filter(spiral.col("split") == "train")
            .sample(order=spiral.ShardAwareShuffle(seed=1, shuffle_block_size=250_000))
            .collate(batch_size=256, fields={"x": spiral.Stack("features"), "id": spiral.List("sample_id")})
        )
        shares = (0.01, 0.5, 0.99)
        costs = {share: [first_batch_ms(plan, share) for _ in range(REPEATS)] for share in shares}
    listing = Table("state at", "CPU ms to first batch: min", "median", "max")
    for share, spent in costs.items():
        listing.add_row(f"{share:.0%}", f"{min(spent):.1f}", f"{np.median(spent):.1f}", f"{max(spent):.1f}")
    Console().print(listing)


if __name__ == "__main__":
    typer.run(main)
