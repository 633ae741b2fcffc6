"""Ctrl-C while helper processes start: the loop's process says so, no helper prints a traceback, and the place is kept."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pytest

import spiral_stream as sp
from tests.fixtures import warm

pytest.importorskip("torch")

WAIT_S = 100
ROWS = 640
PROGRAM = """
import json, signal, sys, time
import pyarrow as pa
import spiral_stream as sp
from spiral_stream.adapters.torch import StreamLoader
from interrupted_functions import slow

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job of a shell inherits that it is ignored
    kind, folder = sys.argv[1:]
    relation = sp.connect(folder + "/catalog").table("numbers")
    fields = {"id": sp.List("sample_id")}
    sampled = relation.sample(order=sp.Sequential())
    delivered = 0  # a fast machine has started the helpers before the signal comes
    try:
        if kind == "functions":
            stream = sampled.map(slow, columns=["x"], name="y", returns=pa.float64(), workers=2)
            loader = stream.collate(batch_size=64, fields={**fields, "y": sp.Stack("y")}).to_torch()
        elif kind == "build":
            kept = sampled.map(slow, columns=["x"], name="y", returns=pa.float64()).cache()
            loader = kept.collate(batch_size=64, fields={**fields, "y": sp.Stack("y")}).to_torch()
        else:
            stream = sampled.collate(batch_size=64, fields=fields).to_torch()
            loader = StreamLoader(stream, 2, multiprocessing_context=kind)
        print("starting", flush=True)
        if kind == "build":
            loader.materialize(executor="processes", workers=1)
        for batch in loader:
            delivered += 1
            time.sleep(600)
    except KeyboardInterrupt:
        print(json.dumps([loader.state_dict(), delivered]), flush=True)
"""
FUNCTIONS = """
import time

def slow(values):
    time.sleep(2)
    return values
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("interrupted")
    (folder / "program.py").write_text(PROGRAM)
    (folder / "interrupted_functions.py").write_text(FUNCTIONS)
    table = pa.table({"sample_id": range(ROWS), "x": [row / ROWS for row in range(ROWS)]})
    sp.connect(str(folder / "catalog")).register("numbers", sp.Arrow(table), identity="sample_id")
    return folder


@pytest.mark.parametrize(
    "after_s", [0.1, pytest.param(0.6, marks=pytest.mark.slow), pytest.param(3.0, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("kind", [pytest.param("spawn", marks=pytest.mark.slow), "fork", "functions", "build"])
def test_ctrl_c_while_helpers_start_is_quiet_and_keeps_the_place(folder: Path, kind: str, after_s: float) -> None:
    command = [sys.executable, "program.py", kind, str(folder)]
    pipe = subprocess.PIPE
    # a process that spawns others imports its main module by its path
    start = subprocess.Popen if kind in {"spawn", "build"} else warm.Popen
    with start(command, cwd=folder, stdout=pipe, stderr=pipe, text=True, start_new_session=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "starting\n", process.communicate()
            time.sleep(after_s)
            os.killpg(process.pid, signal.SIGINT)  # as a terminal and a notebook send it
            out, errors = process.communicate(timeout=WAIT_S)
        finally:
            with_all(process.pid)

    assert "Traceback" not in errors, errors
    state, delivered = json.loads(out)
    assert (state["epoch"], state["batch"]) == (0, delivered)


def with_all(group: int) -> None:
    """End whoever is left of a program and its helpers; nobody should be."""
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return
