"""One trial of a law: processes that build, read and are killed, and what is wrong afterwards, in words."""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.fixtures import fault_proxy, warm
from tests.stream.keeping.laws.ground import SOURCES, Ground, Saved, files_below
from tests.stream.keeping.laws.kinds import KeptKind

ROOT: Final = Path(__file__).parents[4]
DEAD_S: Final = 1.0  # of a builder without a beat, for another machine
# Versions of a Lance table, and the marks of locks: one more build may have made one more, and nobody reads the earlier ones.
# `caches(remove_dead=True)` removes versions of a catalog's own tables when they are a week old.
_MANY: Final = (
    *("_transactions/", "_versions/", "/committed/", "relations.lance/data/", "streams.lance/data/"),
    *("/claims", "/committing", "/entering", "/.settling", "/.lock", "/commits"),
)


def started(ground: Ground, kind: KeptKind, *modes: str, **asked: Any) -> "subprocess.Popen[str]":
    """Start a process that does these, one after the other."""
    said = json.dumps({"ground": ground.described(), "kind": kind.name, "modes": modes, **asked})
    command = [sys.executable, "-m", "tests.stream.keeping.laws.program", said]
    return warm.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)


def ended(process: "subprocess.Popen[str]") -> dict[str, Any] | None:
    """What a process found; None if it was killed."""
    out, error = process.communicate(timeout=200)
    if process.returncode < 0:
        return None
    assert process.returncode == 0, error
    found: dict[str, Any] = json.loads(out.splitlines()[-1])
    return found


def run(ground: Ground, kind: KeptKind, *modes: str, **asked: Any) -> dict[str, Any]:
    """What a process of its own finds."""
    found = ended(started(ground, kind, *modes, **asked))
    assert found is not None, "a process was killed that nobody killed"
    return found


@dataclass(frozen=True)
class Undisturbed:
    """What a build gives that nobody disturbs."""

    ground: Ground
    kind: KeptKind
    made: Saved  # before the build
    built: Saved  # after it
    before: Any  # the values then; of a kind that can be derived None
    values: Any
    warnings: list[str]
    steps: int  # changes of files by the build
    changes: int  # of the store
    left: Counter[str]  # the names of files after the build
    disk_bytes: int  # that the build takes of the disk of the place, or of the machine

    @classmethod
    def of(cls, ground: Ground, kind: KeptKind, proxy: fault_proxy.FaultProxy | None) -> "Undisturbed":
        for folder in (SOURCES, "kept"):
            (ground.home / folder).mkdir(parents=True)
        before = run(ground, kind, "make", *([] if kind.derivable else ["read"]))
        _need_sound(before)
        made, taken = Saved(ground, "made"), disk_bytes(ground)
        if proxy is not None:
            proxy.set()
        build = run(ground, kind, "build")
        changes = 0 if proxy is None else proxy.counts()["changes"]
        _need_sound(build)
        built, taken = Saved(ground, "built"), disk_bytes(ground) - taken
        after = run(ground, kind, "read", "tidy")
        _need_sound(after)
        warnings = sorted({*build["warnings"], *after["warnings"]})
        return cls(
            ground,
            kind,
            made,
            built,
            before.get("read"),
            after["read"],
            warnings,
            build["steps"],
            changes,
            left(ground),
            taken,
        )


def disk_bytes(ground: Ground) -> int:
    """What files take of the disk that is kept on, in whole blocks."""
    folder = ground.own if ground.endpoint else ground.home / "kept"
    return sum(-(-(folder / name).stat().st_size // 4096) * 4096 for name in files_below(folder))


def left(ground: Ground) -> Counter[str]:
    """How many files of each name there are, without versions and locks."""
    found = Counter(f"kept/{name}" for name in ground.alike()) + Counter(f"here/{name}" for name in ground.left_here())
    return Counter({name: count for name, count in found.items() if not any(each in name for each in _MANY)})


def killed(
    base: Undisturbed, kill: dict[str, Any], proxy: fault_proxy.FaultProxy | None, *, elsewhere: bool
) -> Iterator[str]:
    """Kill a build at a step and build again; yields what is wrong.

    Args:
        base: what is right.
        kill: at which step.
        proxy: of the store, which kills too.
        elsewhere: another machine builds again.
    """
    base.made.again()
    ground, kind = base.ground, base.kind
    died = ended(started(ground, kind, "build", kill=kill)) is None
    if proxy is not None:
        proxy.set()
    then = ground.on("b") if elsewhere else ground
    if not kind.derivable:
        found = run(then, kind, "read")
        yield from _wrong(found)
        if "read" in found and not kind.holds(base.before, base.values, found["read"]):
            yield f"what was kept before is lost: {found['read']} of {base.before}"
    again = run(then, kind, "build", "read", "tidy", dead_s=DEAD_S)
    yield from wrong_with(base, again)
    yield from other_files(base, then)
    if not died:
        yield "not killed"


def other_files(base: Undisturbed, ground: Ground) -> Iterator[str]:
    """What is left over, and what is missing, in comparison with an undisturbed build."""
    now = left(ground)
    more, less = now - base.left, base.left - now
    left_over = {name: count for name, count in more.items() if not name.startswith(tuple(base.kind.stays))}
    if not ground.endpoint:
        left_over = dict(more)
    if ground.machine != base.ground.machine:  # it needs less than the one that made it
        less = Counter({name: count for name, count in less.items() if name.startswith("kept/")})
    if left_over:
        yield f"left over: {left_over}"
    if less:
        yield f"missing: {dict(less)}"


def wrong_with(base: Undisturbed, found: dict[str, Any] | None) -> Iterator[str]:
    """What is wrong with what a process found that nothing disturbs any more."""
    if found is None:
        yield "killed"
        return
    yield from _wrong(found)
    if "read" in found and found["read"] != base.values:
        yield f"other values: {found['read']}"
    news = sorted(set(found["warnings"]) - set(base.warnings))
    if news:
        yield f"warnings: {news}"


def _wrong(found: dict[str, Any]) -> Iterator[str]:
    for name in ("raw", "error"):
        if name in found:
            yield f"{name}: {found[name]}"


def _need_sound(found: dict[str, Any]) -> None:
    wrong = list(_wrong(found))
    assert not wrong, wrong[0]
