"""The fall-backs give the same bits: no libjpeg-turbo to load, no AVX2 path, and a build that has neither."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from spiral_stream.decoders.image import region
from spiral_stream.transforms import _pixels
from tests.stream.test_replay import GOLDEN, ROWS, digest, relation

ROOT = Path(__file__).parents[2]
KERNELS = (
    "tests/stream/transforms/test_pixels.py",
    "tests/stream/decoders/video/test_rgb.py",
    "tests/stream/decoders/image/test_region.py",
    "tests/stream/batching/test_packing.py",
    "tests/stream/fields/test_sequence.py",
    "tests/stream/integrity/test_blocks.py",
    "tests/stream/derived/kinds/test_gather.py",
    "tests/stream/sampling/orders/test_permutation.py",
    "tests/stream/test_replay.py",
    "tests/stream/test_replay_text.py",
)
IS_PORTABLE = (
    "from spiral_stream.decoders import region; from spiral_stream.transforms import _pixels; "
    "assert not region.available; assert not _pixels.ACCELERATED; print(_pixels.__file__)"
)


def pixels(folder: Path) -> list[str]:
    """Digests of random crops of the golden JPEGs, batch by batch."""
    import spiral_stream as sp
    from tests.fixtures.streams import plan

    rows = relation(folder, json.loads(GOLDEN.read_text())["jpegs"])
    transforms = (sp.RandomResizedCrop(size=24), sp.RandomHorizontalFlip())
    with plan(
        rows, order=sp.Sequential(), last=sp.KeepPartial, batch_size=32, transforms=transforms
    ).to_numpy() as stream:
        return [digest([batch["image"].tobytes()]) for batch in stream]


@pytest.mark.skipif(not region.available, reason="no libjpeg-turbo is found here: there is nothing to switch off")
def test_images_have_the_same_bits_where_no_libjpeg_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    decode = region.decode_regions

    def counted(addresses: Any, *arguments: Any) -> Any:
        calls.append(len(addresses))
        return decode(addresses, *arguments)

    monkeypatch.setattr(region, "decode_regions", counted)
    by_region = pixels(tmp_path / "region")
    assert sum(calls) == ROWS

    monkeypatch.setattr(region, "available", False)
    whole = pixels(tmp_path / "whole")

    assert sum(calls) == ROWS
    assert whole == by_region


@pytest.fixture(scope="module")
def portable(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the library whose compiled rooms are in plain C, next to the tests."""
    place = tmp_path_factory.mktemp("portable")
    shutil.copytree(
        ROOT / "spiral_stream", place / "spiral_stream", ignore=shutil.ignore_patterns("*.so", "__pycache__")
    )
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, place / name)
    (place / "tests").symlink_to(ROOT / "tests")
    build = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
    done = subprocess.run(
        build, cwd=place, env=os.environ | {"SPIRAL_PORTABLE": "1"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return place


def inside(place: Path, *command: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(place), "PYTHONSAFEPATH": "1"}
    return subprocess.run(
        [sys.executable, *command], cwd=place, env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.slow
def test_a_portable_build_has_no_fast_path(portable: Path) -> None:
    done = inside(portable, "-c", IS_PORTABLE)

    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).is_relative_to(portable)
    assert not Path(_pixels.__file__).is_relative_to(portable)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_portable_build_passes_the_kernels_tests_and_the_golden_replays(portable: Path) -> None:
    done = inside(portable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", *KERNELS)

    assert done.returncode == 0, done.stdout[-4000:]
    assert " passed" in done.stdout
    assert " skipped" in done.stdout  # the tests of region decode, which this build does not have
