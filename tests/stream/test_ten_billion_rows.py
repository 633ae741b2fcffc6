"""Ten billion rows in 100,000 shards, filtered: what a process reads and holds does not grow with the rows."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from tests.fixtures import huge

SHARDS: Final = 100_000
ROWS: Final = 100_000
PROGRAM: Final = """
import json, sys
import pyarrow as pa
from pathlib import Path
from tests.fixtures import huge

def facts(name, file):
    lines = Path("/proc/self", file).read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name))

folder, order = Path(sys.argv[1]), sys.argv[2]
pa.array([1])  # imports pandas, where it is installed
before = facts("rchar", "io")
with huge.plan_of(folder, order) as stream:
    stream.bind(data_parallel_rank=9_999, data_parallel_world_size=10_000)
    steps = len(stream)
    read = facts("rchar", "io") - before
    found = {str(n): stream.ledger(n) for n in (0, 55_802, 2_790_136, 5_524_470)}
    same = all(stream.batch(int(n))["id"].tolist() == ids for n, ids in found.items())
    loop = iter(stream)
    mine = next(loop)["id"].tolist()
    loop.close()
    state = json.loads(json.dumps(stream.state_dict()))
with huge.plan_of(folder, order) as stream:
    stream.load_state_dict(state)
    second = next(iter(stream))["id"].tolist() == stream.ledger(10_000)  # one rank goes on for all
    first = stream.ledger(9_999)
print(json.dumps({
    "steps": steps, "read": read, "same": same, "mine": mine == first,
    "second": second, "state": len(json.dumps(state)), "anonymous": facts("RssAnon", "status") << 10,
    "descriptors": len(list(Path("/proc/self/fd").iterdir())),
}))
"""


@pytest.fixture(scope="module")
def relation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("huge")
    huge.write(folder, SHARDS, ROWS)
    return folder


@pytest.mark.parametrize("order", huge.ORDERS)
def test_a_plan_opens_enters_anywhere_and_resumes_in_little_memory(relation: Path, order: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(relation), order], capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)

    assert found["steps"] == SHARDS * 57_142 // 1_024 // 10_000
    assert found["same"]
    assert found["mine"]
    assert found["second"]
    assert found["state"] < 1_000
    assert found["anonymous"] < 500 << 20
    assert found["descriptors"] < 100
    assert found["read"] < 600 * SHARDS  # bytes that each of 10,000 ranks reads at the start
