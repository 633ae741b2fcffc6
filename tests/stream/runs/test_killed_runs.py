"""The record law with real kills: processes that end at any moment, and go on from the last state on other ranks."""

import json
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final

import pytest

from tests.fixtures import fault_proxy, stores, warm
from tests.fixtures.recorded_plans import BAD, Plan, Rows, unbroken
from tests.stream.keeping.laws.ground import Ground, settings
from tests.stream.runs.training_program import LAST, STATE

ROOT: Final = Path(__file__).parents[3]
KILLED: Final = -int(signal.SIGKILL)
PLANS: Final = (
    {"formed": "fixed", "mixed": True, "filtered": True, "bad": False, "last": "keep"},
    {"formed": "packed", "mixed": True, "filtered": False, "bad": True, "last": "drop"},
    {"formed": "buckets", "mixed": False, "filtered": True, "bad": False, "last": "keep"},
    {"formed": "fixed", "mixed": False, "filtered": False, "bad": True, "last": "drop"},
)
MOMENTS: Final = {"open": 12, "log": 8, "state": 4, "close": 3}  # changes of files in each, about


def started(ground: Ground, do: str, **asked: Any) -> "subprocess.Popen[str]":
    said = json.dumps({"ground": ground.described(), "do": do, **asked})
    command = [sys.executable, "-m", "tests.stream.runs.training_program", said]
    return warm.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)


def done(ground: Ground, do: str, **asked: Any) -> Any:
    process = started(ground, do, **asked)
    out, error = process.communicate(timeout=100)
    assert process.returncode == 0, error
    return json.loads(out.splitlines()[-1])


class Trial:
    """One training that is killed again and again, and what it should have recorded."""

    def __init__(self, ground: Ground, plan: dict[str, Any], seed: int, proxy: fault_proxy.FaultProxy | None) -> None:
        self.ground, self.plan, self.proxy, self.draw = ground, plan, proxy, random.Random(seed)
        self.kills = self.lives = 0
        self.wanted: Rows = {}
        self._epochs = 0
        for folder in ("sources", "kept", "train"):
            (ground.home / folder).mkdir(parents=True)
        done(ground, "make")

    def live(self) -> None:
        """Start all ranks, kill one at a drawn moment and then the others, as a launcher does."""
        draw, ground = self.draw, self.ground
        world, merge = draw.randint(1, 3), draw.randint(1, 2)
        kill, victim = self._drawn_kill(), draw.randrange(world)
        life = {
            "attempt": f"life-{self.lives}", "world": world, "merge": merge, "steps": draw.randint(3, 14),
            "saved_every": draw.randint(1, 4), "every": draw.randint(1, 4), "behind": draw.randint(0, 2),
        }  # fmt: skip
        self.lives += 1
        (ground.home / "train" / "before").write_text(json.dumps(self.saved()["rows"]))
        if self.proxy is not None:
            self.proxy.set()
        on = ground.on(draw.choice("ab")) if ground.endpoint else ground
        plan = self.plan
        ranks = [
            started(on, "train", plan=plan, life={**life, "rank": k}, kill=kill if k == victim else {})
            for k in range(world)
        ]
        for process in ranks:
            process.stdout.close()  # type: ignore[union-attr]
        if "time_s" in kill:
            time.sleep(kill["time_s"])
            ranks[victim].kill()
        code = ranks[victim].wait(100)
        for process in ranks:
            if code == KILLED and process.poll() is None:
                process.kill()
        for process in ranks:
            process.wait(100)
            error = process.stderr.read()  # type: ignore[union-attr]
            process.stderr.close()  # type: ignore[union-attr]
            assert process.returncode == 0 or code == KILLED, error
            assert process.returncode in (0, KILLED), error
        self.kills += code == KILLED
        if self.proxy is not None:
            self.proxy.set()

    def _drawn_kill(self) -> dict[str, Any]:
        draw = self.draw
        how = draw.random()
        if self.ground.endpoint and how < 0.4:
            return {"request": draw.randint(1, 25), "after": draw.random() < 0.5}
        if how < 0.8:
            moment = draw.choice([*MOMENTS])
            return {"moment": moment, "file": draw.randint(1, MOMENTS[moment])}
        return {"time_s": draw.uniform(0.05, 0.8)}

    def saved(self) -> dict[str, Any]:
        """The last state, and the samples that were delivered before it."""
        path = self.ground.home / "train" / STATE
        found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"state": {"epoch": 0}, "rows": []}
        return found

    def check(self) -> None:
        """What is recorded is what an unbroken run records: all up to the last state, maybe more, nothing double."""
        ground, saved = self.ground, self.saved()
        found = done(ground.on("reader") if ground.endpoint else ground, "read")
        rows = {tuple(row[:3]): tuple(row[3:]) for row in found["rows"]}
        self._unbroken(6 + saved["state"]["epoch"])
        wrong = {at: (row, self.wanted.get(at)) for at, row in rows.items() if self.wanted.get(at) != row}
        assert not wrong, f"not of an unbroken run: {dict(sorted(wrong.items())[:5])}"
        lost = Counter(map(tuple, saved["rows"])) - Counter(rows.values())
        said = [(leg[1], number) for leg in found["legs"] for number in range(leg[2], leg[3])]
        more = f"{found['attempts']}, {found['legs']}; {saved['state']}"
        assert not lost, f"lost: {sorted(lost)[:5]} of {sum(lost.values())}; {more}"
        assert len(said) == len(set(said)), f"legs overlap: {more}"
        in_legs = [row for at, row in self.wanted.items() if at[:2] in set(said)]
        lost = Counter(map(tuple, saved["rows"])) - Counter(in_legs)
        assert not lost, f"not in legs: {sorted(lost)[:5]} of {sum(lost.values())}; {more}"
        if not (
            ground.endpoint and self.plan["bad"]
        ):  # each machine has what it could not read in a quarantine of its own
            at = saved["state"]["epoch"], saved["state"].get("batch", 0)
            beyond = any((epoch, end) > at for _, epoch, _, end in found["legs"])
            # Beyond the last state a rank may have been killed before it came to refuse what another rank's batch counts.
            unread = BAD if beyond and self.plan["bad"] else 0
            surplus = found.get("seen", 0) - len(in_legs)
            assert 0 <= surplus <= unread, (found["seen"], len(in_legs), at, found["legs"])

    def _unbroken(self, epochs: int) -> None:
        if epochs > self._epochs:
            with settings(self.ground):
                plan = Plan(**{**self.plan, "last": LAST[self.plan["last"]]})
                self.wanted, self._epochs = unbroken(self.ground.kept_catalog(), plan, epochs + 2), epochs + 2


def killed(ground: Ground, plan: dict[str, Any], seed: int, kills: int, proxy: Any = None) -> None:
    trial = Trial(ground, plan, seed, proxy)
    try:
        while trial.kills < kills:
            trial.live()
            trial.check()
    except AssertionError as error:
        error.add_note(f"{ground.place}, {plan}, seed {seed}, after {trial.kills} kills in {trial.lives} lives")
        raise
    finally:
        shutil.rmtree(ground.home, ignore_errors=True)


def on_store(home: Path, endpoint: str, proxy: fault_proxy.FaultProxy) -> Ground:
    return Ground(home, proxy.address, stores.new_bucket(endpoint))


def test_a_run_that_is_killed_goes_on_and_records_what_an_unbroken_one_does(tmp_path: Path) -> None:
    killed(Ground(tmp_path / "ground"), PLANS[1], 5, 3)


def test_a_run_on_a_store_that_is_killed_goes_on(tmp_path: Path, s3_endpoint: str) -> None:
    with fault_proxy.fault_proxy(s3_endpoint) as proxy:
        killed(on_store(tmp_path / "ground", s3_endpoint, proxy), PLANS[0], 3, 2, proxy)


@pytest.mark.slow
@pytest.mark.timeout(3_000)
@pytest.mark.parametrize("plan", range(len(PLANS)))
def test_a_run_that_is_killed_many_times_records_what_an_unbroken_one_does(plan: int, tmp_path: Path) -> None:
    killed(Ground(tmp_path / "ground"), PLANS[plan], 100 + plan, 15)


@pytest.mark.slow
@pytest.mark.timeout(3_000)
@pytest.mark.parametrize("plan", range(len(PLANS)))
def test_a_run_on_a_store_that_is_killed_many_times(plan: int, tmp_path: Path, s3_endpoint: str) -> None:
    with fault_proxy.fault_proxy(s3_endpoint) as proxy:
        killed(on_store(tmp_path / "ground", s3_endpoint, proxy), PLANS[plan], 200 + plan, 8, proxy)
