"""What a process of the record law does: train one rank and be killed, or say what a catalog has of the run.

    python -m tests.stream.runs.training_program '{"do": "train", "ground": {...}, "plan": {...}, "life": {...}, "kill": {...}}'

prints what came of it as JSON. The state is saved as a loop of several ranks saves it: each rank asks for it, and the first one
writes it, whole or not at all, once all have.
"""

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import spiral_stream as sp
from tests.fixtures.file_changes import changes_below
from tests.fixtures.recorded_plans import Plan, Rows, losses, recorded, register, rows_of
from tests.stream.keeping.laws.ground import Ground, settings
from tests.stream.keeping.laws.program import kill_at_request

NAME: Final = "law"
STATE: Final = "state.json"
ENDED: Final = "ended"
LAST: Final = {"drop": sp.DropPartial, "keep": sp.KeepPartial}
_PATIENCE_S: Final = 60.0  # with ranks that were killed


@dataclass(frozen=True)
class Life:
    """One rank of one start of a training."""

    attempt: str
    rank: int
    world: int
    merge: int
    steps: int
    saved_every: int
    every: int
    behind: int


class Moments:
    """Ends the process before the n-th change of a file in a kind of moment: ``open``, ``log``, ``state`` or ``close``."""

    def __init__(self, folder: str, kill: dict[str, Any]) -> None:
        self._folder, self._wanted, self._last = folder, kill.get("moment"), kill.get("file", 0)
        self._lock, self._now, self._taken = threading.Lock(), "", 0

    @contextmanager
    def of(self, moment: str) -> Iterator[None]:
        self._now = moment
        try:
            yield
        finally:
            self._now = ""

    def __call__(self, event: str, args: tuple[Any, ...]) -> None:
        if self._now != self._wanted or not self._now:
            return
        if changes_below(self._folder, event, args):
            with self._lock:
                self._taken += 1
                if self._taken == self._last:
                    os.kill(os.getpid(), signal.SIGKILL)


def train(ground: Ground, plan: Plan, life: Life, kill: dict[str, Any]) -> None:
    """Train a rank from the last state that was saved, for some steps."""
    place, moments = ground.home / "train", Moments(str(ground.home), kill)
    sys.addaudithook(moments)
    if "request" in kill:
        kill_at_request(ground.endpoint, kill["request"], kill["after"])
    with moments.of("open"):
        catalog = ground.kept_catalog()
        stream = plan.open(catalog).bind(rank=life.rank, world_size=life.world, merge=life.merge)
        anew = not (place / STATE).exists()
        if not anew:
            stream.load_state_dict(json.loads((place / STATE).read_text())["state"])
        run = catalog.run(NAME, stream, attempt=life.attempt, every=life.every, anew=anew)
    had = list[Any]()
    waiting, batches = list[Any](), iter(stream)

    def log(left: int) -> None:
        with moments.of("log"):
            while len(waiting) > left:
                batch = waiting.pop(0)
                run.log(batch=batch, loss=losses(batch))

    passed, step = 0, 0  # epochs that are over, and steps of the present one
    for _ in range(life.steps):
        batch, step = next(batches, None), step + 1
        over = batch is None
        waiting += [] if over else [batch]
        had += [] if over else rows_of(batch)
        log(life.behind)
        if over or step % life.saved_every == 0:
            log(0)
            with moments.of("state"):
                state = stream.state_dict()
            save(place, life, f"{passed}-{'end' if over else step}", state, had, over=over)
        if over:
            batches, passed, step = iter(stream), passed + 1, 0
    with moments.of("close"):
        run.close()
    said(place, life, ENDED, had)
    stream.close()


def save(place: Path, life: Life, at: str, state: Any, had: list[Any], *, over: bool) -> None:
    """Write the state once all ranks have asked for it, and go on when it is written. A rank may have a step fewer.

    Beside the state stands which samples were delivered before it, by the ranks themselves.
    """

    names = (at, *([f"over-{at.partition('-')[0]}"] if over else []))
    for name in names:
        said(place, life, name, had)
    if life.rank == 0:
        rows = [row for rank in range(life.world) for row in json.loads(wait(marks(place, life, at, rank)).read_text())]
        draft = place / "draft"
        draft.write_text(json.dumps({"state": state, "rows": [*before(place), *rows]}))
        draft.replace(place / STATE)
        said(place, life, f"{at}.saved", [])
    wait([mark(place, life, f"{at}.saved", 0), *marks(place, life, at, 0)[1:]])


def mark(place: Path, life: Life, what: str, rank: int) -> Path:
    return place / f"{life.attempt}.{what}.{rank}"


def marks(place: Path, life: Life, at: str, rank: int) -> list[Path]:
    """What a rank says that asks for the state of a step, or has had all of the epoch, or has ended."""
    return [mark(place, life, what, rank) for what in (at, f"over-{at.partition('-')[0]}", ENDED)]


def said(place: Path, life: Life, what: str, had: list[Any]) -> None:
    path = mark(place, life, what, life.rank)
    draft = path.with_name(f"{path.name}.draft")
    draft.write_text(json.dumps(had))
    draft.replace(path)


def before(place: Path) -> list[Any]:
    """Samples that were delivered before this life, up to the state that it went on from."""
    path = place / "before"
    return json.loads(path.read_text()) if path.exists() else []


def wait(paths: list[Path]) -> Path:
    """Wait until there is one of them, and return it."""
    until = time.monotonic() + _PATIENCE_S
    while time.monotonic() < until:
        for path in paths:
            if path.exists():
                return path
        time.sleep(0.002)
    msg = f"{paths} never came"
    raise AssertionError(msg)


def read(ground: Ground) -> dict[str, Any]:
    """What the catalog says of the run: the rows of its trained branch, its attempts and what they delivered."""
    catalog = ground.kept_catalog()
    if NAME not in catalog.runs():
        return {"rows": [], "attempts": [], "legs": []}
    run = catalog.run(NAME)
    attempts = run.attempts()
    try:
        rows: Rows = recorded(catalog, NAME) if attempts else {}
    except sp.errors.RunError as error:
        if "recorded nothing" not in str(error):
            raise
        rows = {}
    legs = run.legs() if attempts else []
    return {
        "rows": [[*at, *row] for at, row in rows.items()],
        "attempts": [
            [each.name, each.parent, str(each.cut), str(each.reached), *map(_said, each.changes)] for each in attempts
        ],
        "legs": [[leg.attempt, leg.epoch, leg.first, leg.end] for leg in legs],
        "seen": catalog.seen(run).samples if legs else 0,
    }


def _said(change: Any) -> str:
    at = change.state["epoch"], change.state["batch"]
    return f"{change.why} {change.leg}: {at} of {change.segment}; before {change.before}"


def main(asked: dict[str, Any]) -> Any:
    ground = Ground.of(asked["ground"])
    os.fsync = os.fstat  # type: ignore[assignment]  # nobody cuts the power
    with settings(ground):
        if asked["do"] == "make":
            register(ground.kept_catalog())
            return None
        if asked["do"] == "read":
            return read(ground)
        said = {**asked["plan"], "last": LAST[asked["plan"]["last"]]}
        return train(ground, Plan(**said), Life(**asked["life"]), asked.get("kill", {}))


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(json.loads(sys.argv[1]))) + "\n")
