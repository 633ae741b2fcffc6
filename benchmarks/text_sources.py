"""Sections of `benchmarks.sources`: JSON lines and CSV beside polars and DuckDB, and files of token ids beside lists in Lance."""

import csv
import gzip
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import spiral_stream as spiral
from spiral_stream.sources.import_source import ImportedSource, Refused

Cells = dict[tuple[str, str], Callable[[], object]]

SHARE = 10  # of the rows of the other sections: these rows are larger
DOCUMENTS = 20_000
BATCHES = 50


def texts(folder: Path, rows: int) -> Cells:
    """Rows of an id, numbers, a list, a struct and a text of 40 words: reading all of them into Arrow."""
    import duckdb
    import polars as pl

    rows //= SHARE
    _write_texts(folder, rows)
    cells: Cells = {}
    for name, source in {
        "rows.jsonl": spiral.sources.Jsonl,
        "rows.jsonl.gz": spiral.sources.Jsonl,
        "rows.csv": spiral.sources.Csv,
        "quoted.csv": spiral.sources.Csv,
    }.items():
        path, what = str(folder / name), f"{name}, {rows:,} rows"
        lines = "jsonl" in name
        cells[what, "Spiral, read"] = partial(_read, source(path))
        cells[what, "Spiral, register"] = partial(_register, source(path))
        if not name.endswith(".gz"):
            cells[what, "polars"] = partial(pl.read_ndjson if lines else pl.read_csv, path)
        function = "read_json" if lines else "read_csv"
        cells[what, "DuckDB"] = partial(_query, duckdb, f"select * from {function}('{path}')")
    return cells


def tokens(folder: Path, rows: int) -> Cells:
    """Fifty batches of shuffled documents, 550 ids each: ids where they lie, and as list<int32> in Lance."""
    del rows
    catalog = _catalog(folder)
    cells: Cells = {}
    for what, packed in (("50 batches of 64 padded documents", False), ("50 batches of 16 packed rows of 2,048", True)):
        for name in ("Tokens", "Lance"):
            batches = _batches(catalog, name, packed=packed)
            cells[what, name] = partial(_take, batches)
    return cells


def _read(source: ImportedSource) -> int:
    units = source.import_units()
    schema = source.import_schema(units)
    return sum(len(batch) for unit in units for batch in source.import_rows(unit, schema, Refused(unit)))


def _register(source: ImportedSource) -> None:
    folder = Path(tempfile.mkdtemp())
    spiral.connect(folder).register("rows", source, identity="id")
    shutil.rmtree(folder)


def _query(duckdb: Any, query: str) -> pa.Table:
    with duckdb.connect() as connection:
        return connection.sql(query).to_arrow_table()


def _write_texts(folder: Path, rows: int) -> None:
    if (folder / "texts-done").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    words = np.array([f"w{k}" for k in range(3000)])
    texts = [" ".join(words[each]) for each in rng.integers(0, 3000, (rows, 40))]
    numbers, lengths = rng.random(rows), rng.integers(1, 9000, rows)
    with (folder / "rows.jsonl").open("w") as file:
        for k, text in enumerate(texts):
            row = {"id": k, "score": numbers[k], "tags": text.split()[:3], "text": text}
            file.write(json.dumps({**row, "meta": {"lang": "en", "length": int(lengths[k])}}) + "\n")
    (folder / "rows.jsonl.gz").write_bytes(gzip.compress((folder / "rows.jsonl").read_bytes(), 6))
    for name, quoting in (("rows.csv", csv.QUOTE_MINIMAL), ("quoted.csv", csv.QUOTE_NONNUMERIC)):
        with (folder / name).open("w", newline="") as file:
            writer = csv.writer(file, quoting=quoting)
            writer.writerow(["id", "score", "length", "ok", "text"])
            writer.writerows([k, numbers[k], lengths[k], k % 2 == 0, text] for k, text in enumerate(texts))
    (folder / "texts-done").touch()


def _catalog(folder: Path) -> spiral.Catalog:
    import lance

    catalog = spiral.connect(folder / "catalog")
    if not (folder / "tokens-done").exists():
        rng = np.random.default_rng(0)
        lengths = rng.integers(100, 1000, DOCUMENTS)
        ends = np.concatenate([[0], np.cumsum(lengths)])
        ids = rng.integers(1, 30_000, int(ends[-1])).astype(np.uint16)
        ids[ends[1:] - 1] = 0
        (folder / "ids").mkdir(parents=True, exist_ok=True)
        for part in range(4):
            first, last = (ends[(part + k) * DOCUMENTS // 4] for k in (0, 1))
            ids[first:last].tofile(folder / "ids" / f"{part}.bin")
        lists = pa.ListArray.from_arrays(pa.array(ends, pa.int32()), pa.array(ids.astype(np.int32)))
        table = pa.table({"id": np.arange(DOCUMENTS), "tokens": lists})
        lance.write_dataset(table, str(folder / "lists.lance"), max_rows_per_file=DOCUMENTS // 4)
        (folder / "tokens-done").touch()
    catalog.register("Lance", spiral.Lance(str(folder / "lists.lance")), identity="id")
    catalog.register("Tokens", spiral.sources.Tokens(folder / "ids", separator=0), identity=spiral.RowIdentity())
    return catalog


def _batches(catalog: spiral.Catalog, name: str, *, packed: bool) -> Iterator[Any]:
    rows = catalog.table(name).sample(order=spiral.GlobalShuffle(seed=1))
    if packed:
        formation = spiral.batching.Packed(max_tokens=2048, strategy="best_fit", oversize="split")
        fields: dict[str, Any] = {"ids": spiral.Pad("tokens"), "segments": spiral.fields.Segments("tokens")}
        stream = rows.collate(batch_size=16, formation=formation, fields=fields).to_numpy()
    else:
        fields = {"ids": spiral.Pad("tokens"), "mask": spiral.PadMask("tokens")}
        stream = rows.collate(batch_size=64, fields=fields).to_numpy()
    while True:
        yield from stream


def _take(batches: Iterator[Any]) -> None:
    for _ in range(BATCHES):
        next(batches)
