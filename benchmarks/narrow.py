"""Batches of narrow rows and of token lists: CPU milliseconds per batch, with loops by hand in the same run.

``python -m benchmarks.scale narrow FOLDER`` makes the data once in the folder, starts one process per cell, and asks them in
turn for a slice of batches, so that what else the machine does falls on all of them alike. ``--other TREE`` measures the
``spiral_stream`` of another checkout beside this one; ``--together`` asks the processes of all cells in turn.

    rows    1,024 rows of an int64, 32 float32 and a short text, from Lance, in a global shuffle
    lists   batches of at most 32,768 padded tokens from a column list<int32>, 560 tokens per document; ids and mask
    cache   the same documents as texts, from the token cache
    mixed-rows    as rows, from a mixture of 2 streams
    mixed-lists   as lists, from a mixture of 1,000 streams of 20 documents
    numbers       as rows, without the text
    columns       1,024 rows of 32 columns of float32, stacked one by one
    lists-int32, lists-uint16   as lists, as int32; as uint16 with a mask of uint8
    lists-131072, lists-131072-uint16   as lists and lists-uint16, of at most 131,072 tokens
    packed, packed-131072       rows of 2,048 packed tokens with their segments and positions: 32,768 or 131,072 a batch

Bare means the copies alone, in the compiled loop that batches use: rows of 128 bytes by address, 32 columns by address, or
token ids padded without a mask; what is copied where was drawn and formed before.

By hand means NumPy in one thread, without a queue, a saved place, checks or memory that is used again: a permutation drawn
before, the columns in NumPy files and one Arrow array, the same windows and batch sizes.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

DOCUMENTS: Final = 20_000
VOCABULARY: Final = 20_000
BATCH, BUDGET, WINDOW = 1_024, 32_768, 2_048
CELLS: Final = (
    *("rows", "lists", "cache", "mixed-rows", "mixed-lists"),
    *("numbers", "columns", "lists-int32", "lists-uint16", "lists-131072", "lists-131072-uint16"),
    *("packed", "packed-131072"),
)
COLUMNS, PACKED_ROW = 32, 2_048
BARE: Final = "bare"  # in place of a catalog
STREAMS: Final = {"mixed-rows": 2, "mixed-lists": 1_000}
_QUIET_S: Final = 0.02
_FEW_S: Final = 0.002  # CPU seconds within _QUIET_S that count as rest
_WARM: Final = 2  # rounds that are not counted


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--batches", type=int, default=1_000, help="of a slice")
    parser.add_argument("--other", type=Path, help="another checkout")
    parser.add_argument("--cells", nargs="+", choices=CELLS, default=CELLS)
    parser.add_argument("--together", action="store_true", help="ask all cells in turn, to compare one with another")


# ---- the data


def make(folder: Path, rows: int) -> None:
    """Write the data sets, unless they are there."""
    if (folder / "done").exists():
        return
    import lance

    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    vectors = rng.random((rows, 32), dtype=np.float32)
    np.save(folder / "vectors.npy", vectors)
    np.save(folder / "ids.npy", np.arange(rows))
    texts = pa.array([f"text number {row * 7919 % rows}" for row in range(rows)])
    table = pa.table(
        {"id": np.arange(rows), "e": pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), 32), "t": texts}
    )
    lance.write_dataset(table, str(folder / "rows.lance"), max_rows_per_file=max(1, rows // 10), mode="overwrite")

    table = pa.table({"id": np.arange(rows), **{f"c{k}": vectors[:, k] for k in range(COLUMNS)}})
    lance.write_dataset(table, str(folder / "columns.lance"), max_rows_per_file=max(1, rows // 10), mode="overwrite")

    ends = np.concatenate([[0], np.cumsum(rng.integers(280, 841, DOCUMENTS))])
    tokens = rng.integers(0, VOCABULARY, int(ends[-1])).astype(np.int32)
    np.save(folder / "tokens.npy", tokens.astype(np.uint16))
    np.save(folder / "ends.npy", ends)
    lists = pa.ListArray.from_arrays(pa.array(ends.astype(np.int32)), pa.array(tokens))
    words = np.array([f"w{number}" for number in range(VOCABULARY)])
    written = [" ".join(words[tokens[a:b]]) for a, b in pairwise(ends)]
    table = pa.table({"id": np.arange(DOCUMENTS), "tokens": lists, "text": written})
    lance.write_dataset(table, str(folder / "documents.lance"), max_rows_per_file=DOCUMENTS // 5, mode="overwrite")
    _write_tokenizer(folder / "tokenizer.json")
    (folder / "done").touch()


def _write_tokenizer(file: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers

    made = Tokenizer(models.WordLevel({f"w{number}": number for number in range(VOCABULARY)}, unk_token="w0"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.save(str(file))


# ---- the cells


def stream(folder: Path, cell: str, catalog: str) -> Any:
    """The stream of a cell, of the ``spiral_stream`` that this process imports."""
    import spiral_stream as sp

    opened = sp.connect(catalog)
    if cell in STREAMS:
        return mixed(folder, cell, opened)
    if "rows" not in opened.tables():
        opened.register("rows", sp.Lance(str(folder / "rows.lance")), identity="id")
        opened.register("documents", sp.Lance(str(folder / "documents.lance")), identity="id")
        opened.register("columns", sp.Lance(str(folder / "columns.lance")), identity="id")
        opened.register_tokenizer("words", str(folder / "tokenizer.json"))
    order = sp.GlobalShuffle(seed=1)
    if cell in ("rows", "numbers"):
        return of_rows(opened.table("rows").sample(order=order), texts=cell == "rows")
    if cell == "columns":
        fields = {f"c{k}": sp.Stack(f"c{k}") for k in range(COLUMNS)}
        return opened.table("columns").sample(order=order).collate(batch_size=BATCH, fields=fields).to_numpy(prefetch=4)
    sampled = opened.table("documents").sample(order=order)
    if cell.startswith("packed"):
        return of_packed(sampled, budget_of(cell))
    if cell == "cache":
        sampled = sampled.map(sp.Tokenize("text", tokenizer="words", special_tokens=False) >> "ids")
    made = of_lists(sampled, "ids" if cell == "cache" else "tokens", budget_of(cell), dtype_of(cell))
    if cell == "cache":
        made.materialize(lambda _: None)
    return made


def mixed(folder: Path, cell: str, opened: Any) -> Any:
    """A stream of a mixture of equal parts of the data."""
    import lance

    import spiral_stream as sp

    count, kind = STREAMS[cell], cell.removeprefix("mixed-")
    names = [f"{kind}-{number}" for number in range(count)]
    if names[0] not in opened.tables():
        data = lance.dataset(str(folder / ("rows.lance" if kind == "rows" else "documents.lance")))
        table = data.to_table(columns=["id", "e", "t"] if kind == "rows" else ["id", "tokens"])
        each = len(table) // count
        for number, name in enumerate(names):
            opened.register(name, sp.Arrow(table.slice(number * each, each)), identity="id")
    streams = [sp.Stream(name, opened.table(name), proportion=1 / count) for name in names]
    sampled = sp.mix(streams).sample(order=sp.GlobalShuffle(seed=1))
    return of_rows(sampled) if kind == "rows" else of_lists(sampled, "tokens")


def budget_of(cell: str) -> int:
    """Most tokens of a batch."""
    return 131_072 if "-131072" in cell else BUDGET


def dtype_of(cell: str) -> str:
    """Of token ids."""
    return next((each for each in ("int32", "uint16") if cell.endswith(f"-{each}")), "int64")


def mask_of(dtype: str) -> str:
    """Dtype of the mask beside ids."""
    return "uint8" if dtype == "uint16" else dtype


def of_rows(sampled: Any, *, texts: bool = True) -> Any:
    import spiral_stream as sp

    fields = {"id": sp.Stack("id"), "e": sp.Stack("e"), **({"t": sp.List("t")} if texts else {})}
    return sampled.collate(batch_size=BATCH, fields=fields).to_numpy(prefetch=4)


def of_lists(sampled: Any, column: str, budget: int = BUDGET, dtype: str = "int64") -> Any:
    import spiral_stream as sp

    formed = sp.WindowedBucket(WINDOW, [sp.BucketKey(f"len({column})")], sp.BatchBudget(max_tokens=budget))
    fields = {"ids": sp.Pad(column, dtype=dtype), "mask": sp.PadMask(column, dtype=mask_of(dtype))}
    return sampled.collate(batch_size=None, formation=formed, fields=fields).to_numpy(prefetch=4)


def of_packed(sampled: Any, budget: int) -> Any:
    import spiral_stream as sp

    fields = {
        "ids": sp.Pad("tokens"),
        "segments": sp.fields.Segments("tokens"),
        "positions": sp.fields.Positions("tokens"),
    }
    formed = sp.batching.Packed(PACKED_ROW, window_size=4 * WINDOW)
    return sampled.collate(batch_size=budget // PACKED_ROW, formation=formed, fields=fields).to_numpy(prefetch=4)


def copies(folder: Path, cell: str) -> Iterator[dict[str, Any]]:
    """The copies of a cell and nothing else."""
    if is_of_rows(cell):
        return row_copies(folder, 4 if cell == "columns" else 128)
    return list_copies(folder, budget_of(cell), dtype_of(cell))


def row_copies(folder: Path, width: int) -> Iterator[dict[str, Any]]:
    from spiral_stream.derived import _gather

    vectors = np.load(folder / "vectors.npy")
    columns = [np.ascontiguousarray(vectors[:, k]) for k in range(COLUMNS)] if width == 4 else [vectors]
    order = np.random.default_rng(1).permutation(len(vectors)).astype(np.uint64)
    tables = [np.uint64(each.ctypes.data) + order * np.uint64(width) for each in columns]
    outs = [np.empty(BATCH * width, np.uint8) for _ in columns]
    while True:
        for first in range(0, len(order) - BATCH + 1, BATCH):
            for addresses, out in zip(tables, outs, strict=True):
                _gather.copy(addresses[first : first + BATCH], width, out)
            yield {"id": range(BATCH)}


def list_copies(folder: Path, budget: int, dtype: str) -> Iterator[dict[str, Any]]:
    from spiral_stream.fields import Pad
    from spiral_stream.fields.ragged import Ragged
    from spiral_stream.fields.sequence import SequenceLayout

    tokens, ends = np.load(folder / "tokens.npy"), np.load(folder / "ends.npy")
    documents, field = Ragged.of_flat(tokens, ends), Pad("tokens", dtype=dtype)
    formed = []
    for members in windows_by_hand(np.diff(ends), np.random.default_rng(1), budget):
        some = documents.take(members).near()
        formed.append((some, SequenceLayout.at_row_starts(some.lengths, int(some.lengths.max()))))
    out = np.empty(budget, dtype)
    while True:
        for some, layout in formed:
            ids = out[: layout.B * layout.T].reshape(layout.B, layout.T)
            yield {"ids": field.fill_tokens(some, layout, ids)}


def is_of_rows(cell: str) -> bool:
    """Whether a cell counts rows, not tokens."""
    return cell.endswith("rows") or cell in ("numbers", "columns")


def rows_by_hand(folder: Path, cell: str) -> Iterator[dict[str, Any]]:
    import lance

    ids, vectors = (np.load(folder / f"{name}.npy", mmap_mode="r") for name in ("ids", "vectors"))
    texts = lance.dataset(str(folder / "rows.lance")).to_table(columns=["t"])["t"].combine_chunks()
    columns = [np.ascontiguousarray(vectors[:, k]) for k in range(COLUMNS)] if cell == "columns" else []
    order = np.random.default_rng(1).permutation(len(ids))
    while True:
        for first in range(0, len(order) - BATCH + 1, BATCH):
            at = order[first : first + BATCH]
            if columns:
                yield {"id": range(BATCH), **{f"c{k}": column[at] for k, column in enumerate(columns)}}
                continue
            made = {"id": ids[at], "e": vectors[at]}
            yield made if cell == "numbers" else {**made, "t": texts.take(pa.array(at)).to_pylist()}


def lists_by_hand(folder: Path, cell: str) -> Iterator[dict[str, Any]]:
    tokens, ends = np.load(folder / "tokens.npy", mmap_mode="r"), np.load(folder / "ends.npy")
    rng, lengths = np.random.default_rng(1), np.diff(ends)
    while True:
        for members in windows_by_hand(lengths, rng, budget_of(cell)):
            yield _padded(tokens, ends, members, dtype_of(cell))


def windows_by_hand(lengths: np.ndarray, rng: np.random.Generator, budget: int) -> Iterator[np.ndarray]:
    """The documents of each batch of an epoch."""
    order = rng.permutation(len(lengths))
    for first in range(0, len(order), WINDOW):
        window = order[first : first + WINDOW]
        window = window[np.argsort(lengths[window], kind="stable")]
        runs, begin = [], 0
        for at, width in enumerate(lengths[window].tolist()):
            if (at + 1 - begin) * width > budget:
                runs.append((begin, at))
                begin = at
        for run in rng.permutation(len(runs)).tolist():
            yield window[slice(*runs[run])]


def _padded(tokens: np.ndarray, ends: np.ndarray, members: np.ndarray, dtype: str) -> dict[str, Any]:
    begins, sizes = ends[members].tolist(), (ends[members + 1] - ends[members]).tolist()
    ids, mask = (np.zeros((len(members), max(sizes)), kind) for kind in (dtype, mask_of(dtype)))
    for row, (begin, size) in enumerate(zip(begins, sizes, strict=True)):
        ids[row, :size] = tokens[begin : begin + size]
        mask[row, :size] = 1
    return {"ids": ids, "mask": mask}


def child(folder: Path, cell: str, catalog: str) -> None:
    """Read numbers of batches, and print the CPU milliseconds and the rows or tokens per batch, until the input ends."""
    if catalog == BARE:
        batches = copies(folder, cell)
    elif not catalog:
        batches = rows_by_hand(folder, cell) if is_of_rows(cell) else lists_by_hand(folder, cell)
    else:
        source = stream(folder, cell, catalog)
        batches = (batch for _ in iter(int, 1) for batch in source)  # epoch after epoch
    next(batches)
    print("ready", flush=True)
    for line in sys.stdin:
        _rest()
        start, items = time.process_time(), 0
        for _ in range(int(line)):
            batch = next(batches)
            items += BATCH if is_of_rows(cell) else batch["ids"].size
        _rest()
        print(json.dumps([(time.process_time() - start) * 1e3 / int(line), items / int(line)]), flush=True)
    os._exit(0)


def _rest() -> None:
    """Wait until the threads that build ahead have filled the queue."""
    last = time.process_time()
    while True:
        time.sleep(_QUIET_S)
        now = time.process_time()
        if now - last < _FEW_S:
            return
        last = now


# ---- measuring


def main(asked: argparse.Namespace) -> None:
    """Measure the cells, each next to its loop by hand."""
    make(asked.folder, asked.rows)
    trees = [*([("before", asked.other)] if asked.other else []), ("now", Path(__file__).parents[1])]
    print(f"{'':<20} {'ms min':>8} {'median':>8} {'max':>8} {'M/CPU s at min':>16} {'at median':>10}")
    for cells in [asked.cells] if asked.together else [[cell] for cell in asked.cells]:
        kids = [kid for cell in cells for kid in _begun(asked.folder, cell, trees)]
        found = _in_turn([kid for _, kid in kids], asked.rounds, asked.batches)
        for (name, _), slices in zip(kids, found, strict=True):
            spent, items = sorted(each for each, _ in slices), statistics.mean(count for _, count in slices)
            rates = [items / each / 1e3 for each in (spent[0], statistics.median(spent))]
            times = f"{spent[0]:8.3f} {statistics.median(spent):8.3f} {spent[-1]:8.3f}"
            print(f"{name:<20} {times} {rates[0]:16.2f} {rates[1]:10.2f}", flush=True)


def _begun(folder: Path, cell: str, trees: list[tuple[str, Path]]) -> "list[tuple[str, subprocess.Popen[str]]]":
    """Start the processes of a cell; each with its name."""
    here = Path(__file__).parents[1]
    kids = [(f"{cell}, {name}", _start(folder, cell, tree, f"catalog-{name}")) for name, tree in trees]
    if not cell.startswith("packed"):  # which a loop by hand would not form as well
        kids.append((f"{cell}, by hand", _start(folder, cell, here, "")))
    return [*kids, (f"{cell}, bare", _start(folder, cell, here, BARE))]


def _start(folder: Path, cell: str, tree: Path, catalog: str) -> "subprocess.Popen[str]":
    place = str(folder / catalog) if catalog not in ("", BARE) else catalog
    command = [sys.executable, "-P", __file__, str(folder), cell, place]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    started = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(tree.resolve())}, **pipes)
    assert started.stdout is not None
    if started.stdout.readline() != "ready\n":
        msg = f"{cell} of {tree} ended"
        raise SystemExit(msg)
    return started


def _in_turn(kids: "list[subprocess.Popen[str]]", rounds: int, batches: int) -> list[list[tuple[float, float]]]:
    """Ask each process for a slice, round after round; another one begins each time."""
    found: list[list[tuple[float, float]]] = [[] for _ in kids]
    for number in range(_WARM + rounds):
        for at in [*range(number % len(kids), len(kids)), *range(number % len(kids))]:
            stdin, stdout = kids[at].stdin, kids[at].stdout
            assert stdin is not None
            assert stdout is not None
            stdin.write(f"{batches}\n")
            stdin.flush()
            spent = json.loads(stdout.readline())
            if number >= _WARM:
                found[at].append((spent[0], spent[1]))
    for kid in kids:
        kid.kill()
        kid.wait()
    return found


if __name__ == "__main__":
    child(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
