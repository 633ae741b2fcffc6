"""A disk that is full: refused with the folder and the way out, nothing half; once there is room all goes through."""

import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tests.fixtures import stores
from tests.fixtures.fault_proxy import FaultProxy
from tests.stream.keeping.laws.conftest import Base
from tests.stream.keeping.laws.ground import SOURCES, Ground
from tests.stream.keeping.laws.kinds import EVERY
from tests.stream.keeping.laws.trials import Undisturbed, other_files, run, wrong_with

SHARES = (0.1, 0.4, 0.8)  # of what a build needs, that the disk has left
SAID = r"(?si)/ground/.*(no space left|disk (is )?full|bytes left).*free space"


@contextmanager
def disk(folder: Path) -> Iterator[None]:
    """A disk of a few MiB at a folder."""
    folder.mkdir(parents=True)
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=32m", "tmpfs", folder], capture_output=True, check=False)
    if done.returncode:
        pytest.skip("this user may not mount a disk")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def resized(folder: Path, size: int) -> None:
    subprocess.run(["mount", "-o", f"remount,size={size}", folder], check=True)


def tried(made: Undisturbed, folder: Path, place: str, share: float, endpoint: str) -> list[str]:
    """Build with so much room, and then with more; returns what is wrong."""
    ground = Ground(folder / "ground")
    full = ground.home / "kept"
    if place == "store":
        ground = replace(made.ground, home=folder / "ground", bucket=stores.new_bucket(endpoint))
        full = ground.own
    (ground.home / SOURCES).mkdir(parents=True)
    (ground.home / "kept").mkdir(exist_ok=True) if place == "store" else None
    with disk(full):
        if "error" in (found := run(ground, made.kind, "make")):
            return [f"make: {found['error']}"]
        before = shutil.disk_usage(full).used
        resized(full, before + max(4096, int(share * made.disk_bytes)) // 4096 * 4096)
        refused = run(ground, made.kind, "build")
        wrong = [f"raw: {refused['raw']}"] if "raw" in refused else []
        said = [refused.get("error", ""), *refused["warnings"]]
        is_refused = share == SHARES[0] or "error" in refused  # else it may have made room, or needed less
        if is_refused and not any(re.search(SAID, each) for each in said):
            wrong.append(f"not said: {said}")
        resized(full, 32 << 20)
        again = run(ground, made.kind, "build", "read", "tidy")
        machine = ground.on("b") if place == "store" else ground  # a small disk keeps less of what the store has
        return wrong + list(wrong_with(made, again)) + list(other_files(made, machine))


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "place"), EVERY)
def test_a_full_disk_is_named_and_with_more_room_all_goes_through(
    kind: str, place: str, base: Base, faults: FaultProxy | None, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    del faults
    endpoint = request.getfixturevalue("s3_endpoint") if place == "store" else ""
    made, wrong = base(kind, place), {}
    for k, share in enumerate(SHARES):
        found = tried(made, tmp_path / str(k), place, share, endpoint)
        if found:
            wrong[share] = found
    assert wrong == {}
