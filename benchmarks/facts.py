"""What facts of columns cost: `measure` of 2,000 Parquet files, and the same facts of a shard by us and by DuckDB.

    python -m benchmarks.facts measure FOLDER
    python -m benchmarks.facts engines FOLDER

The files have 1,000 rows each and five columns: int64 identity, int32 label of 1,000 values, float64, text of 20 values,
text that never repeats. Figures are CPU seconds of 2 million rows. ``measure`` runs each step in a fresh process and
leaves imports out. ``engines`` takes the rows from memory, in one thread: `ColumnFacts`; DuckDB's aggregates with sketches
(approx_count_distinct, approx_quantile, approx_top_k); and those of its aggregates that are exact and can be merged.
"""

import argparse
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

FILES: Final = 2_000
ROWS: Final = 1_000
TOGETHER: Final = 128  # shards that DuckDB groups at once, as many as a chunk of a build has
MOST: Final = {"id": 0, "label": 10_000, "quality": 0, "kind": 10_000, "name": 0}  # values that `measure` keeps


def make(folder: Path) -> Path:
    """Write the files, unless they are there."""
    place, random = folder / "facts", np.random.default_rng(0)
    place.mkdir(parents=True, exist_ok=True)
    for k in range(FILES):
        numbers = np.arange(k * ROWS, (k + 1) * ROWS)
        rows = {
            "id": 7919 * numbers + 13,
            "label": random.integers(0, 1000, ROWS).astype(np.int32),
            "quality": random.random(ROWS),
            "kind": [f"kind-{each:02}" for each in random.integers(0, 20, ROWS).tolist()],
            "name": [f"sample-{each}" for each in numbers.tolist()],
        }
        if not (place / f"{k:06}.parquet").exists():
            pq.write_table(pa.table(rows), place / f"{k:06}.parquet")
    return place


def step(what: str, folder: Path) -> None:
    """Register or measure here, and print what it cost."""
    import duckdb  # noqa: F401  imports are not measured

    import spiral_stream as sp

    catalog = sp.connect(folder / "catalog")
    start, wall = time.process_time(), time.perf_counter()
    if what == "register":
        catalog.register("rows", sp.Parquet(str(folder / "facts")), identity="id")
    else:
        catalog.measure("rows")
    spent, load = time.process_time() - start, os.getloadavg()[0]
    print(f"{what:<10} {spent:6.2f} CPU s {time.perf_counter() - wall:6.2f} s, load {load:.0f}", flush=True)


def measure(folder: Path) -> None:
    """Measure the files three times from nothing."""
    for _ in range(3):
        shutil.rmtree(folder / "catalog", ignore_errors=True)
        for what in ("register", "first", "again"):
            subprocess.run([sys.executable, "-m", "benchmarks.facts", "step", str(folder), what], check=True)


def engines(place: Path) -> None:
    """Compare what makes the facts of shards."""
    import duckdb

    tables = [pq.read_table(each, use_threads=False) for each in sorted(place.glob("*.parquet"))]
    chunks = []
    for at in range(0, len(tables), TOGETHER):
        some = tables[at : at + TOGETHER]
        shards = np.repeat(np.arange(at, at + len(some), dtype=np.int32), [len(each) for each in some])
        chunks.append(pa.concat_tables(some).combine_chunks().append_column("shard", pa.array(shards)))
    session = duckdb.connect(":memory:", config={"threads": 1})
    print(f"{'':<8} {'ours':>6} {'sketches':>9} {'exact':>6}")
    for column in MOST:
        sketches, exact = queries(column, numbers=column not in ("kind", "name"))
        found = min(
            (ours(tables, column), by_duckdb(session, chunks, sketches), by_duckdb(session, chunks, exact))
            for _ in range(3)
        )
        print(f"{column:<8} {found[0]:6.2f} {found[1]:9.2f} {found[2]:6.2f}", flush=True)


def queries(column: str, *, numbers: bool) -> tuple[list[str], list[str]]:
    """DuckDB's words for the facts of a column: by sketches, and by what is exact and merges."""
    plain = f"shard, count(*), count({column}), min({column}), max({column})"
    size = f"sum({column}::DOUBLE)" if numbers else f"sum(strlen({column}))"
    about = f", approx_quantile({column}, [0.25, 0.5, 0.75])" if numbers else ""
    points = f", quantile_disc({column}, [i / 64 for i in range(65)])" if numbers else ""
    distinct = f"count(DISTINCT {column})" if MOST[column] else f"list(DISTINCT hash({column}))"
    tail = "FROM rows GROUP BY shard"
    sketches = [f"SELECT {plain}, {size}, approx_count_distinct({column}), approx_top_k({column}, 16){about} {tail}"]
    exact = [f"SELECT {plain}, {size}, {distinct}{points} {tail}"]
    if MOST[column]:
        exact.append(f"SELECT shard, {column}, count(*) {tail}, {column} ORDER BY shard, {column}")
    return sketches, exact


def ours(tables: list[pa.Table], column: str) -> float:
    """CPU seconds of our facts of a column."""
    from spiral_stream.derived.derivation import ShardRows
    from spiral_stream.derived.kinds.column_facts import ColumnFacts

    facts = ColumnFacts(column, tables[0].schema.field(column).type, MOST[column])
    rows = [ShardRows(len(each), np.arange(len(each), dtype=np.uint64), each.select([column])) for each in tables]
    start = time.process_time()
    for each in rows:
        facts.piece(each)
    return time.process_time() - start


def by_duckdb(session: Any, chunks: list[pa.Table], texts: list[str]) -> float:
    """CPU seconds of some statements over all shards."""
    start = time.process_time()
    for rows in chunks:
        session.register("rows", rows)
        for text in texts:
            session.sql(text).to_arrow_table()
        session.unregister("rows")
    return time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("measure", "engines", "step"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("what", nargs="?", choices=("register", "first", "again"), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.command == "step":
        step(asked.what, asked.folder)
        return
    place = make(asked.folder)
    measure(asked.folder) if asked.command == "measure" else engines(place)


if __name__ == "__main__":
    main()
