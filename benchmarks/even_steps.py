"""How long ranks wait for each other, by the plan's cost and by the clock: in order, dealt, with rows exchanged; and a rival.

    python -m benchmarks.even_steps FOLDER [--rounds 5]

Documents have drawn lengths (log-normal), and real ones: of the Python files of this interpreter, four bytes a token. They are
packed into rows. Shares are of a whole epoch, as `metrics()["step_wait_share"]` says on one rank, which knows what all ranks
have. Real processes sleep as long as their batch costs, and meet at a barrier after each microstep. The rival is an own
reading of torchtitan's pull request 3938 (first-fit decreasing of a step's documents into flat rows of as many tokens as a
batch, rows split by squared lengths, sorted and cut into groups), which was open when this was written; no release has it.
"""

import argparse
import json
import multiprocessing
import sys
import sysconfig
import time
from collections.abc import Sequence
from itertools import chain, islice
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np
import pyarrow as pa

import spiral_stream as spiral
from spiral_stream.sampling.dealing import wait_share

WIDTH: Final = 4_096
ROWS: Final = 4  # of a batch
DOCUMENTS: Final = 24_000
COSTS: Final = {"linear": "len(tokens)", "quadratic": "len(tokens) + len(tokens) ** 2 / 1024"}
HOWS: Final = ("in order", "dealt", "rows exchanged")
SLEEP_S: Final = 0.2  # of a batch of mean cost; long beside what two busy cores take to wake four processes

CLOCKED: Final = 18  # microsteps by the clock: three optimizer steps

Lengths = np.ndarray[Any, np.dtype[np.int64]]


def drawn(count: int) -> Lengths:
    """Documents of a log-normal length: median 400 tokens, some of many thousands."""
    return np.minimum(np.random.default_rng(0).lognormal(6, 1.2, count).astype(np.int64) + 1, 8 * WIDTH)


def real(count: int, packages: Path | None = None) -> Lengths:
    """Sizes of the Python files of this interpreter and its packages, four bytes a token, again and again in a fixed order."""
    files = (packages or Path(sysconfig.get_path("purelib"))).rglob("*.py")
    sizes = sorted(each.stat().st_size // 4 + 1 for each in files)
    return np.random.default_rng(1).permutation(np.resize(np.array(sizes, dtype=np.int64), count))


def registered(folder: Path, name: str, lengths: Lengths) -> Any:
    catalog = spiral.connect(str(folder / "catalog"))
    if name not in catalog.tables():
        flat = pa.array(np.ones(int(lengths.sum()), dtype=np.uint8))
        offsets = pa.array(np.concatenate(([0], np.cumsum(lengths))), pa.int32())
        table = pa.table({"id": np.arange(len(lengths)), "tokens": pa.ListArray.from_arrays(offsets, flat)})
        catalog.register(name, spiral.Arrow(table), identity="id")
    return catalog


def stream_of(catalog: Any, name: str, cost: str, how: str, step: int, rank: int, world: int) -> Any:
    exchange: dict[str, Any] = {"balance": "rows", "step_batches": step} if how == "rows exchanged" else {}
    plan = catalog.table(name).sample(order=spiral.GlobalShuffle(seed=1), identity="id")
    formation = spiral.batching.Packed(max_tokens=WIDTH, oversize="split", window_size=4_096)
    fields = {"id": spiral.List("id"), "ids": spiral.Pad("tokens"), "cu": spiral.fields.CuSeqlens("tokens")}
    made = plan.collate(batch_size=ROWS, formation=formation, fields=fields, cost=cost, **exchange)
    deal = "order" if how == "in order" else "cost"
    return made.to_numpy(prefetch=2).bind(rank=rank, world_size=world, step_batches=step, deal=deal)


# ---- by the plan's cost


def shares(folder: Path, name: str, lengths: Lengths) -> None:
    catalog = registered(folder, name, lengths)
    for kind, cost in COSTS.items():
        for step in (24, 192):
            for world in (8, 64):
                if step % world:
                    continue
                found = {}
                for how in HOWS:
                    with stream_of(catalog, name, cost, how, step, 0, world) as stream:
                        batches = sum(1 for _ in stream)
                        found[how] = stream.metrics()["step_wait_share"]
                found["torchtitan 3938, own reading"] = rival_share(catalog, name, cost, step, world)
                line = ", ".join(f"{how} {share:.1%}" for how, share in found.items())
                print(f"{name}, {kind}, G {step}, {world} ranks, {batches} microsteps a rank: {line}", flush=True)


# ---- the rival


def rival_share(catalog: Any, name: str, cost: str, step: int, world: int) -> float:
    """The share that ranks wait where each step's documents are packed anew, for all ranks."""
    per_rank = []
    quadratic = "**" in cost
    with stream_of(catalog, name, cost, "in order", step, 0, 1) as stream:
        while True:
            documents: list[int] = []
            for batch in islice(stream, step):
                documents += np.diff(batch["cu"]).tolist()
            if not documents:
                break
            rows = rival_rows(documents, world)
            work = np.array([sum(n + (n * n / 1024 if quadratic else 0) for n in row) for row in rows])
            square = np.array([sum(n * n for n in row) for row in rows])
            per_rank.append(work[np.argsort(-square, kind="stable")].reshape(-1, world))
            if stream.epoch:
                break
    return wait_share(per_rank)


def rival_rows(documents: Sequence[int], unit: int) -> list[list[int]]:
    """First-fit decreasing into rows; the row of most work is split in two until they are a multiple of ``unit``."""
    rows: list[list[int]] = []
    room: list[int] = []
    for length in sorted(documents, reverse=True):
        at = next((k for k, left in enumerate(room) if left >= length), None)
        if at is None:
            rows.append([])
            room.append(WIDTH * ROWS)
            at = len(rows) - 1
        rows[at].append(length)
        room[at] -= length
    target = -(-max(len(rows), 1) // unit) * unit
    while len(rows) < target:
        at = max(
            (k for k, row in enumerate(rows) if len(row) > 1), key=lambda k: sum(n * n for n in rows[k]), default=None
        )
        if at is None:
            rows.append([])
            continue
        halves: list[list[int]] = [[], []]
        for length in sorted(rows[at], key=lambda n: -n * n):
            min(halves, key=lambda half: sum(n * n for n in half)).append(length)
        rows[at] = halves[0]
        rows.append(halves[1])
    return rows


# ---- by the clock, in real processes


def one_rank(folder: str, name: str, how: str, rank: int, world: int, scale: float, barrier: Any, out: Any) -> None:
    catalog = spiral.connect(folder)
    waited = worked = 0.0
    with stream_of(catalog, name, COSTS["quadratic"], how, 24, rank, world) as stream:
        batches = islice(stream, CLOCKED)
        first = next(batches)
        barrier.wait()  # the interpreters of four processes do not start together, which no plan can help
        for batch in chain([first], batches):
            lengths = np.diff(batch["cu"]).astype(np.float64)
            busy = float((lengths + lengths**2 / 1024).sum()) * scale
            time.sleep(busy)
            begun = time.perf_counter()
            barrier.wait()
            waited, worked = waited + time.perf_counter() - begun, worked + busy
    out.put((rank, waited, worked))


def by_the_clock(folder: Path, name: str, rounds: int, world: int = 4) -> None:
    catalog = registered(folder, name, drawn(1))
    with stream_of(catalog, name, COSTS["quadratic"], "in order", 24, 0, 1) as stream:
        costs = [float((n + n**2 / 1024).sum()) for n in (np.diff(b["cu"]).astype(float) for b in islice(stream, 192))]
    scale = SLEEP_S / float(np.mean(costs))
    spawn = multiprocessing.get_context("spawn")
    seconds: dict[str, list[float]] = {how: [] for how in HOWS}
    portions: dict[str, list[float]] = {how: [] for how in HOWS}
    for _ in range(rounds):
        for how in HOWS:
            barrier, out = spawn.Barrier(world), spawn.Queue()
            given = [(str(folder / "catalog"), name, how, rank, world, scale, barrier, out) for rank in range(world)]
            ranks = [spawn.Process(target=one_rank, args=each) for each in given]
            for each in ranks:
                each.start()
            found = [out.get(timeout=300) for _ in ranks]
            for each in ranks:
                each.join()
            waited, worked = (sum(each[k] for each in found) for k in (1, 2))
            seconds[how].append((waited + worked) / world)
            portions[how].append(waited / (waited + worked))
    for how in HOWS:
        spread = "/".join(f"{value:.2f}" for value in (min(seconds[how]), median(seconds[how]), max(seconds[how])))
        share = "/".join(f"{value:.1%}" for value in (min(portions[how]), median(portions[how]), max(portions[how])))
        print(
            f"{world} processes, {CLOCKED} microsteps, {how}: {spread} s, waited {share} (min/median/max of {rounds})",
            flush=True,
        )


# ---- resume on other ranks, and what it costs


def resumed(folder: Path, name: str) -> None:
    """4 ranks, then 3, then 8, an optimizer step each: the samples of three steps, as the plan numbers them."""
    catalog = registered(folder, name, drawn(1))
    for how in ("dealt", "rows exchanged"):
        with stream_of(catalog, name, COSTS["quadratic"], how, 24, 0, 1) as plan:
            wanted = [sorted(str(x) for n in range(24 * k, 24 * k + 24) for x in plan.ledger(n)) for k in range(3)]
        state: Any = None
        for k, world in enumerate((4, 3, 8)):
            got: list[str] = []
            for rank in range(world):
                with stream_of(catalog, name, COSTS["quadratic"], how, 24, rank, world) as stream:
                    if state is not None:
                        stream.load_state_dict(json.loads(json.dumps(state)))
                    for batch in islice(stream, 24 // world):
                        got += [str(each) for row in batch["id"] for each in row]
                    after = stream.state_dict()
            state = after
            assert sorted(got) == wanted[k], f"step {k} on {world} ranks has other samples"
        print(f"resume 4 -> 3 -> 8, {how}: the samples of each step are those of the plan", flush=True)


def cost_of(folder: Path, name: str, rounds: int) -> None:
    catalog = registered(folder, name, drawn(1))
    spent: dict[str, list[float]] = {how: [] for how in HOWS}
    for _ in range(rounds):
        for how in HOWS:
            with stream_of(catalog, name, COSTS["quadratic"], how, 192, 0, 8) as stream:
                next(iter(stream))
                stream.seek(epoch=0, batch=0)
                begun = time.process_time()
                count = sum(1 for _ in islice(stream, 96))
                spent[how].append((time.process_time() - begun) / count)
    for how in HOWS:
        line = "/".join(f"{1e3 * value:.2f}" for value in (min(spent[how]), median(spent[how]), max(spent[how])))
        print(f"CPU ms per delivered batch of {ROWS} rows on one of 8 ranks, G 192, {how}: {line}", flush=True)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("folder", type=Path)
    arguments.add_argument("--rounds", type=int, default=5)
    given = arguments.parse_args()
    print(sys.version.split()[0], np.__version__, pa.__version__)
    for name, lengths in (("drawn", drawn(DOCUMENTS)), ("real", real(DOCUMENTS))):
        longest = " ".join(f"{np.percentile(lengths, at):,.0f}" for at in (50, 90, 99, 100))
        print(f"{name}: {len(lengths):,} documents, {lengths.sum():,} tokens; p50 p90 p99 max {longest}", flush=True)
        shares(given.folder, name, lengths)
    resumed(given.folder, "drawn")
    by_the_clock(given.folder, "drawn", given.rounds)
    cost_of(given.folder, "drawn", given.rounds)


if __name__ == "__main__":
    main()
