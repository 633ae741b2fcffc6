"""torchtitan's own trainer on a stream: a rank is killed at 2 ranks, 3 go on; no sample is lost or comes twice.

The programs are those of the page, so what a reader copies is what runs here.
"""

import importlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

import spiral_stream as sp
from spiral_stream.errors import BindError

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "howto" / "torchtitan.md").read_text()
STEP = 12  # batches of an optimizer step
LOGGED = """
import json, os, sys
from dataclasses import dataclass
import train
from loader import StreamDataLoader
from torchtitan.tools.logging import init_logger

class Logged(StreamDataLoader):
    @dataclass(kw_only=True, slots=True)
    class Config(StreamDataLoader.Config):
        pass

    def __iter__(self):
        rank, world = os.environ["RANK"], os.environ["WORLD_SIZE"]
        with open(f"pid-{rank}", "w") as out:
            out.write(str(os.getpid()))
        with open(f"seen-{world}-{rank}", "a") as seen:
            for batch in super().__iter__():
                print(json.dumps(sum(self.delivered[-1], [])), file=seen, flush=True)
                yield batch

init_logger()
train.StreamDataLoader = Logged
run = train.trainer(steps=int(sys.argv[1]))
run.train()
run.close()
"""

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """What the page writes: a catalog with a saved stream, and the programs."""
    pytest.importorskip("torchtitan", reason="torchtitan is not installed: make recipes installs it and runs this")
    for name, code in re.findall(r"```python title=\"(\w+\.py)\"\n(.*?)```", PAGE, re.DOTALL):
        (tmp_path / name).write_text(code)
    (tmp_path / "logged.py").write_text(LOGGED)
    (tmp_path / "prepare.py").write_text("".join(re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)))
    subprocess.run([sys.executable, "prepare.py"], cwd=tmp_path, env=environment(), check=True, timeout=300)
    return tmp_path


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}


def started(folder: Path, ranks: int, steps: int) -> subprocess.Popen[bytes]:
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    with (folder / f"output-{ranks}.txt").open("wb") as out:
        return subprocess.Popen(
            [*launch, "logged.py", str(steps)], cwd=folder, env=environment(), stdout=out, stderr=subprocess.STDOUT
        )


def seen(folder: Path, ranks: int) -> list[list[list[Any]]]:
    """By rank, the samples of each batch that torchtitan's trainer had."""
    files = [folder / f"seen-{ranks}-{rank}" for rank in range(ranks)]
    return [[json.loads(line) for line in file.read_text().splitlines()] if file.exists() else [] for file in files]


def steps_of(batches: list[list[list[Any]]]) -> list[list[Any]]:
    """The samples of each optimizer step that every rank made."""
    each = STEP // len(batches)
    count = min(len(rank) for rank in batches) // each
    return [
        sorted(chain.from_iterable(chain.from_iterable(rank[k * each : (k + 1) * each] for rank in batches)))
        for k in range(count)
    ]


def test_a_run_whose_rank_was_killed_goes_on_with_three(folder: Path) -> None:
    saved = folder / "outputs" / "checkpoint" / "step-4" / ".metadata"
    running = started(folder, 2, 50)
    until = time.monotonic() + 400
    while not (saved.exists() and len(seen(folder, 2)[1]) > 4 * STEP // 2 + 2):  # in the midst of a later step
        assert running.poll() is None, (folder / "output-2.txt").read_text()[-3_000:]
        assert time.monotonic() < until
        time.sleep(0.05)
    os.kill(int((folder / "pid-1").read_text()), signal.SIGKILL)
    assert running.wait(timeout=120) != 0
    reached = max(int(each.parent.name[5:]) for each in saved.parents[1].glob("step-*/.metadata"))
    assert started(folder, 3, reached + 3).wait(timeout=400) == 0, (folder / "output-3.txt").read_text()[-3_000:]

    with sp.connect(str(folder / "catalog")).open_stream("text-v1") as plan:
        steps = range(reached + 3)
        expected = [sorted(chain.from_iterable(map(plan.ledger, range(k * STEP, (k + 1) * STEP)))) for k in steps]
    before, after = steps_of(seen(folder, 2)), steps_of(seen(folder, 3))
    assert reached >= 4
    assert len(after) == 3
    assert before[:reached] + after == expected
    losses = re.findall(r"step: *(\d+).*?loss: *([\d.]+)", (folder / "output-3.txt").read_text())
    assert {int(step) for step, _ in losses} == set(range(reached + 1, reached + 4))


def test_ranks_that_do_not_divide_the_step_are_refused_with_those_that_do(folder: Path) -> None:
    with (
        sp.connect(str(folder / "catalog")).open_stream("text-v1") as stream,
        pytest.raises(BindError, match="3, 4"),
    ):
        stream.bind(rank=0, world_size=5, step_batches=STEP)


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated", "ignore::DeprecationWarning")  # torchdata's
def test_torchtitans_own_loader_refuses_another_number_of_ranks(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "texts").mkdir()
    (folder / "texts" / "data.json").write_text("".join(json.dumps({"text": f"a {k}"}) + "\n" for k in range(64)))
    monkeypatch.setenv("HF_DATASETS_CACHE", str(folder / "cache"))
    monkeypatch.chdir(folder)
    texts = importlib.import_module("torchtitan.hf_datasets.text_datasets")

    class Letters:
        def encode(self, text: str, **_: bool) -> list[int]:
            return [ord(each) for each in text]

    def loader(rank: int, ranks: int) -> Any:
        config = texts.HuggingFaceTextDataLoader.Config(dataset_path=str(folder / "texts"))
        sizes = {"seq_len": 4, "local_batch_size": 2}
        return config.build(dp_rank=rank, dp_world_size=ranks, tokenizer=Letters(), **sizes)

    one = loader(0, 2)
    next(iter(one))

    with pytest.raises(AssertionError, match="dataloader resharding is not supported yet"):
        loader(0, 3).load_state_dict(one.state_dict())
