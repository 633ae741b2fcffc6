"""One process per GPU under torchrun, with NCCL: each rank's batches lie on its own device, and together they are the epoch."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import spiral_stream as sp

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]

TRAIN = """
import json, os, sys
import torch, torch.distributed as dist
import spiral_stream as sp

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1).cuda())
seen = []
with sp.connect(sys.argv[1]).open_stream("rows").bind(device="cuda") as stream:
    for batch in stream:
        assert batch["x"].device == torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        model(batch["x"][:, None].float()).sum().backward()
        seen.append(batch["x"])
out = torch.cat(seen)
every = [torch.empty_like(out) for _ in range(dist.get_world_size())]
dist.all_gather(every, out)
if dist.get_rank() == 0:
    print(json.dumps(sorted(torch.cat(every).tolist())))
dist.destroy_process_group()
"""


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="NCCL is tried with two devices")
def test_ranks_share_an_epoch_each_on_its_device(tmp_path: Path) -> None:
    import pyarrow as pa

    catalog = sp.connect(str(tmp_path / "catalog"))
    catalog.register("rows", sp.Arrow(pa.table({"x": range(640)})), identity="x")
    plan = catalog.table("rows").sample(order=sp.GlobalShuffle(seed=1))
    catalog.save_stream("rows", plan.collate(batch_size=16, fields={"x": sp.Stack("x")}).to_torch())
    (tmp_path / "train.py").write_text(TRAIN)
    run = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*run, str(tmp_path / "train.py"), str(tmp_path / "catalog")],
        capture_output=True,
        text=True,
        timeout=500,
        check=True,
    )
    assert done.stdout.strip().splitlines()[-1] == str(list(range(640)))
