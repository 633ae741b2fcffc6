"""Sources beside the libraries whose files they read: CPU milliseconds, all cells in turns in one process.

``python -m benchmarks.sources SECTION FOLDER`` makes the data of a section once in the folder, runs every cell once per
round, each round beginning one cell further, and prints minimum, median and maximum.

    tables   the same rows in Lance, Vortex and Parquet: a filter, single rows, stretches of rows; and a Hugging Face
             dataset beside the library ``datasets``
    texts    JSON lines and CSV beside polars and DuckDB; a tenth of the rows
    tokens   batches of files of token ids beside those of a list<int32> column in Lance
"""

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
from rich.console import Console
from rich.table import Table

from benchmarks.text_sources import texts, tokens

Cells = dict[tuple[str, str], Callable[[], object]]  # (what is done, by whom) -> does it once

CONSOLE: Final = Console(width=120)


def measured(cells: Cells, rounds: int) -> dict[tuple[str, str], list[float]]:
    """CPU milliseconds of each cell in each round, threads included; one round before is not counted."""
    found: dict[tuple[str, str], list[float]] = {name: [] for name in cells}
    names = list(cells)
    for turn in range(rounds + 1):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            before = time.process_time()
            cells[name]()
            if turn:
                found[name].append(1e3 * (time.process_time() - before))
    return found


def show(found: dict[tuple[str, str], list[float]]) -> None:
    table = Table("what", "by", "CPU ms: min", "median", "max")
    for (what, whom), spent in found.items():
        table.add_row(what, whom, *(f"{each:.2f}" for each in (min(spent), statistics.median(spent), max(spent))))
    CONSOLE.print(table)


# ---- tables


def tables(folder: Path, rows: int) -> Cells:
    """Seven narrow columns in 8 files of each format, and one dataset of Hugging Face."""
    import datasets

    import spiral_stream as spiral
    from spiral_stream.expr import col

    datasets.disable_progress_bars()
    _write_tables(folder, rows)
    sources = {
        "Lance": spiral.Lance(str(folder / "rows.lance")),
        "Vortex": spiral.sources.Vortex(str(folder / "vortex")),
        "Parquet": spiral.Parquet(str(folder / "parquet")),
        "HuggingFace": spiral.sources.HuggingFace(str(folder / "saved")),
    }
    readers = {name: source.open() for name, source in sources.items()}
    names = [name for name in readers["Lance"].schema.names if name != "id"]
    rng = np.random.default_rng(5)
    single = rng.integers(0, rows, 1024).astype(np.uint64)
    starts = rng.integers(0, rows - 64, 16)
    stretches = (starts[:, None] + np.arange(64)).ravel().astype(np.uint64)
    rare = (col("k") < 50) & (col("lang") == "en")
    cells: Cells = {}
    for name, reader in readers.items():
        cells["filter: 1.25 % of the rows, which ones", name] = lambda r=reader: list(r.scan([], rare))
        cells["filter: one shard of 200, which rows", name] = lambda r=reader: list(r.scan([], col("shard") == 7))
        cells["1,024 single rows, 6 columns", name] = lambda r=reader: r.fetch(single, names)
        cells["16 stretches of 64 rows, 6 columns", name] = lambda r=reader: r.fetch(stretches, names)
    loaded = datasets.load_from_disk(folder / "saved").with_format("arrow")
    cells["1,024 single rows, 6 columns", "datasets"] = lambda: loaded[single.tolist()]
    cells["16 stretches of 64 rows, 6 columns", "datasets"] = lambda: loaded[stretches.tolist()]
    cells["open", "HuggingFace"] = lambda: sources["HuggingFace"].open().close()
    cells["open", "datasets"] = lambda: datasets.load_from_disk(folder / "saved")
    return dict(sorted(cells.items()))


def _write_tables(folder: Path, rows: int) -> None:
    if (folder / "done").exists():
        return
    import datasets
    import lance
    import pyarrow.parquet as pq
    import vortex

    rng = np.random.default_rng(0)
    table = pa.table(
        {
            "id": np.arange(rows),
            "shard": np.arange(rows) * 200 // rows,
            "k": rng.integers(0, 1000, rows),
            "x": rng.random(rows),
            "y": rng.random(rows, np.float32),
            "lang": np.array(["en", "de", "fr", "zh"])[rng.integers(0, 4, rows)],
            "text": np.char.add("document ", rng.integers(0, 10**6, rows).astype(str)),
        }
    )
    for kind in ("vortex", "parquet"):
        (folder / kind).mkdir(parents=True)
    each = -(-rows // 8)
    lance.write_dataset(table, str(folder / "rows.lance"), max_rows_per_file=each)
    for part in range(8):
        piece = table.slice(part * each, each)
        vortex.io.write(piece, str(folder / "vortex" / f"{part}.vortex"))
        pq.write_table(piece, folder / "parquet" / f"{part}.parquet", row_group_size=65_536)
    datasets.Dataset(table).save_to_disk(folder / "saved", num_shards=8)
    (folder / "done").touch()


SECTIONS: Final = {"tables": tables, "texts": texts, "tokens": tokens}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("section", choices=SECTIONS)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--rounds", type=int, default=9)
    asked = parser.parse_args()
    show(measured(SECTIONS[asked.section](asked.folder, asked.rows), asked.rounds))


if __name__ == "__main__":
    main()
