"""Images, token lists, ids of 16 bits and clips: what a device delivers is what the host delivers.

Recorded batches travel to a machine that has a GPU and PyTorch alone. Where all of Spiral is installed, the programs run whole.
"""

import importlib.util
import json
import subprocess
import sys
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import spiral_stream as sp
from spiral_stream.adapters import cuda
from spiral_stream.adapters.cuda import CudaLink, Finisher, MakeFinish, numbered, tensor, widened
from spiral_stream.adapters.device_copies import CopiesAhead
from spiral_stream.adapters.pinned_memory import pinned_for
from spiral_stream.runtime.batch.pending_batch import Batch
from spiral_stream.runtime.delivery import OneBatch
from spiral_stream.runtime.slots import Slots
from tests.fixtures.tensor_moves import Moves

NAMES = ("image", "text", "video", "ids")
ROOT = Path(__file__).parents[2]
RECORDED = Path(__file__).parent / "recorded"
WHOLE = all(importlib.util.find_spec(name) for name in ("lance", "duckdb", "av"))


def recorded(name: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]], dict[str, Any]]:
    """Batches as they are sent, as they are expected, and what finishes their images and ids."""
    with np.load(RECORDED / f"{name}.npz") as file:
        ends = json.loads(str(file["ends"]))
        parts: dict[str, dict[int, dict[str, Any]]] = {"sent": {}, "expected": {}}
        for each in file.files:
            if each != "ends":
                number, kind, field = each.split(".")
                parts[kind].setdefault(int(number), {})[field] = file[each]
    return [*parts["sent"].values()], [*parts["expected"].values()], ends


def finishers(ends: dict[str, Any]) -> dict[str, MakeFinish]:
    def maker(mean: Any, std: Any, dtype: str, layout: str) -> MakeFinish:
        return partial(Finisher, np.float32(mean), np.float32(std), dtype, layout)

    return {name: maker(*each) if each else lambda _: widened for name, each in ends.items()}


def ulps(found: torch.Tensor, expected: torch.Tensor) -> int:
    """The most units in the last place between float16 values."""
    bits = [each.contiguous().view(torch.int16).int() for each in (found, expected)]
    ordered = [torch.where(each < 0, -32_768 - each, each) for each in bits]
    return int((ordered[0] - ordered[1]).abs().max())


def need_alike(found: dict[str, Any], expected: dict[str, Any]) -> None:
    for name, wanted in expected.items():
        if isinstance(wanted, np.ndarray):
            on_host, host = found[name].cpu(), tensor(wanted)
            host = host.to(torch.int64) if host.dtype == torch.uint16 else host
            assert on_host.dtype == host.dtype, name
            if host.dtype == torch.float16:
                assert ulps(on_host, host) <= 1, name
            else:
                assert torch.equal(on_host, host), name
        else:
            assert found[name] == wanted, name


@pytest.mark.parametrize("name", NAMES)
def test_recorded_batches_are_finished_to_what_the_host_delivers(name: str) -> None:
    sent, expected, ends = recorded(name)
    makers = finishers(ends)
    for fields, wanted in zip(sent, expected, strict=True):
        cpu = torch.device("cpu")
        finished = {
            each: makers[each](cpu)(tensor(value)) if each in makers else tensor(value)
            for each, value in fields.items()
        }
        need_alike(finished, wanted)
    assert len(sent) == 2


def test_the_device_path_needs_nothing_that_reads_data() -> None:
    program = """
import importlib.abc, importlib.util, sys

MISSING, found = {"lance", "lancedb", "duckdb", "av", "transformers", "torchvision", "obstore", "typer"}, importlib.util.find_spec

class Missing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in MISSING:
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Missing())
importlib.util.find_spec = lambda name, *rest: None if name.split(".")[0] in MISSING else found(name, *rest)
import tests.gpu.test_copies, tests.gpu.test_families
"""
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, timeout=300)


class Stream:
    """Stands for a CUDA stream and its events, which this machine may lack."""

    def record(self, stream: Any) -> None:
        del stream

    def wait_event(self, event: Any) -> None:
        del event

    def synchronize(self) -> None:
        pass

    def query(self) -> bool:
        return True


def test_ids_go_to_a_device_as_16_bits_and_are_widened_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "side_stream", lambda _: Stream())
    monkeypatch.setattr(torch.cuda, "stream", lambda _: nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: Stream())
    monkeypatch.setattr(torch.cuda, "Event", Stream)
    fields = {
        "ids": np.arange(6, dtype=np.uint16),
        "stays": np.arange(6, dtype=np.uint16),
        "mask": np.ones(6, np.uint8),
    }
    device = torch.device("meta")
    ends: dict[str, MakeFinish] = dict.fromkeys(("ids", "stays"), lambda _: widened)

    with Moves() as moves:
        link = CudaLink(device, frozenset({"ids", "mask"}), ends)
        (out,) = CopiesAhead(link.begin, 1).run(OneBatch(Batch(range(1), fields)))

    assert moves.seen == [
        ("cpu", "meta", "uint16", "uint16"),  # over the bus
        ("meta", "meta", "uint16", "int64"),
        ("cpu", "cpu", "uint16", "int64"),
        ("cpu", "meta", "uint8", "uint8"),
    ]
    assert {name: (each.device.type, each.dtype) for name, each in out.items()} == {
        "ids": ("meta", torch.int64),
        "stays": ("cpu", torch.int64),
        "mask": ("meta", torch.uint8),
    }


@pytest.mark.skipif(not WHOLE, reason="Lance, DuckDB and PyAV make the batches")
@pytest.mark.usefixtures("no_encoder")
@pytest.mark.parametrize("name", NAMES)
def test_the_recorded_batches_are_those_of_the_programs(name: str, tmp_path: Path) -> None:
    from tests.gpu.families import record

    now = record(name, tmp_path)
    with np.load(RECORDED / f"{name}.npz") as file:
        assert sorted(file.files) == sorted(now), "record them anew: python -m tests.gpu.families"
        assert all(np.array_equal(file[each], now[each]) for each in file.files)


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
def test_recorded_batches_arrive_as_the_host_delivers_them(name: str) -> None:
    sent, expected, ends = recorded(name)
    device = numbered(torch.device("cuda"))
    slots, runs = Slots(pinned_for(device)), []
    for _ in range(2):
        for fields, wanted in zip(sent, expected, strict=True):
            held = {each: slots.take(value.shape, str(value.dtype), len(value)) for each, value in fields.items()}
            for each, value in fields.items():
                held[each][:] = value
            link = CudaLink(device, frozenset(held), finishers(ends))
            (found,) = CopiesAhead(link.begin, 1).run(OneBatch(Batch(range(1), held)))
            need_alike(found, wanted)
            runs.append({each: value.cpu() for each, value in found.items()})
    first, again = runs[: len(sent)], runs[len(sent) :]
    for one, other in zip(first, again, strict=True):
        assert all(torch.equal(one[each], other[each]) for each in one)


@pytest.mark.gpu
@pytest.mark.skipif(not WHOLE, reason="Lance, DuckDB and PyAV make the batches")
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("workers", [0, 2])
def test_a_program_delivers_the_same_to_the_device(name: str, workers: int, tmp_path: Path) -> None:
    from spiral_stream.adapters import StreamLoader, TorchStream
    from tests.gpu.families import FAMILIES

    node, catalog = FAMILIES[name](tmp_path)
    with sp.PreparedStream(node, catalog) as host, TorchStream(node, catalog).bind(device="cuda") as stream:
        loader = StreamLoader(stream, workers, **({"multiprocessing_context": "spawn"} if workers else {}))
        compared = 0
        for wanted, found in zip(host, loader, strict=True):
            assert all(each.is_cuda for each in found.values() if isinstance(each, torch.Tensor))
            need_alike(found, wanted)
            compared += 1
        assert compared == len(host) > 1
        loader.close()


@pytest.mark.gpu
@pytest.mark.skipif(not WHOLE, reason="Lance, DuckDB and PyAV make the batches")
def test_page_locked_memory_is_what_explain_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from spiral_stream.adapters import torch as adapter
    from tests.gpu.families import FAMILIES

    taken: list[int] = []

    def counted(nbytes: int) -> Any:
        taken.append(1 << (nbytes - 1).bit_length())
        return pinned_for(numbered(torch.device("cuda")))(nbytes)

    monkeypatch.setattr(adapter, "memory_for", lambda _: counted)
    node, catalog = FAMILIES["image"](tmp_path)
    with adapter.TorchStream(node, catalog).bind(device="cuda") as stream:
        assert len(list(stream)) > 3
        said = str(stream.explain().facts["deliver"]["on the device"])
    assert 0 < sum(taken) <= int(said.split("up to ")[1].split(" bytes", maxsplit=1)[0].replace(",", ""))
