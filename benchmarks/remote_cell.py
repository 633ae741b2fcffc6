"""One measurement of a remote data set: one system, in a process of its own; cold or warm is what its cache folder holds."""

import argparse
import importlib
import json
import os
import time
from pathlib import Path

from benchmarks.cell import check, tree_cpu_s
from benchmarks.peers.workload import BATCH, Data


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("module")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--options", type=json.loads, default={})
    parser.add_argument("--batches", type=int, required=True)
    parser.add_argument("--prepare", action="store_true")
    asked = parser.parse_args()
    peer = importlib.import_module(f"benchmarks.peers.{asked.module}")
    if asked.prepare:
        peer.prepare(Data(asked.data), **(asked.options if asked.module.startswith("spiral") else {}))
        print(json.dumps({}))
        return
    if asked.module.startswith("spiral"):  # peers' rooms import what they need before the clock starts
        import lance  # noqa: F401
        import obstore.store  # noqa: F401

        import spiral_stream.adapters.torch  # noqa: F401
    cpu, begun = tree_cpu_s(os.getpid()), time.perf_counter()
    source = iter(peer.batches(Data(asked.data), **asked.options))
    check(*next(source))
    first = time.perf_counter()
    for _ in range(asked.batches - 1):
        next(source)
    end = time.perf_counter()
    images, cpu_s = BATCH * asked.batches, tree_cpu_s(os.getpid()) - cpu
    found = {"first_s": first - begun, "wall_s": end - begun, "cpu_s": cpu_s, "per_s": (images - BATCH) / (end - first)}
    print(json.dumps(found | {"images": images, "per_cpu_s": images / cpu_s}))
    os._exit(0)  # peers' threads and workers may wait for a consumer that has left


if __name__ == "__main__":
    main()
