"""Golden replays and drawn plans have the same bits whatever the processor can do, and however the kernels are compiled.

What a library does on a processor without AVX2, AVX-512 or FMA it does here when it is told so; and the compiled rooms are
built with other flags. `tests.fixtures.bits` runs in a process of its own each time.
"""

import json
import os
import platform
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import pytest
from numpy._core._multiarray_umath import __cpu_dispatch__, __cpu_features__  # numpy has no other door to them

from spiral_stream.transforms import _pixels
from tests.fixtures.bits import FFMPEG_ENV, WHICH

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

ROOT: Final = Path(__file__).parents[2]
EXAMPLES: Final = 15  # plans of images, text, sounds and clips each
RESAMPLED: Final = 1e-6  # of full scale: how far sound at another rate may be (docs/howto/sound.md)
X86: Final = platform.machine() in ("x86_64", "AMD64")
FEATURES: Final = [name for name in __cpu_dispatch__ if __cpu_features__.get(name)]
MASKS: Final[dict[str, dict[str, str]]] = {
    "NumPy's loops": {"NPY_DISABLE_CPU_FEATURES": " ".join(FEATURES)},
    "libjpeg-turbo": {"JSIMD_FORCENONE": "1"},
    "torch": {"ATEN_CPU_CAPABILITY": "default"},
    "OpenBLAS": {"OPENBLAS_CORETYPE": "Prescott" if X86 else "ARMV8"},
    "the C library's functions": {"GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX512F,-AVX2,-FMA,-FMA4"},
    "Arrow": {"ARROW_USER_SIMD_LEVEL": "NONE"},
    "FFmpeg": {FFMPEG_ENV: "1"},
}
ALL: Final = {name: value for mask in MASKS.values() for name, value in mask.items()}
BUILDS: Final[dict[str, tuple[str, dict[str, str]]]] = {  # flags behind those of setup.py, and the environment
    "-O0": ("-O0", {}),
    "-O3": ("-O3", {}),
    "portable": ("", {"SPIRAL_PORTABLE": "1"}),
    "portable -O0": ("-O0", {"SPIRAL_PORTABLE": "1"}),
    **({f"-march={each}": (f"-march={each}", {}) for each in ("x86-64-v2", "x86-64-v3")} if X86 else {}),
}


def bits(folder: Path, place: Path = ROOT, **environment: str) -> dict[str, Any]:
    """What `tests.fixtures.bits` writes."""
    (folder / "bits").mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "tests.fixtures.bits", str(folder / "bits"), str(EXAMPLES)],
        cwd=place,
        env=os.environ | {"PYTHONPATH": str(place), "PYTHONSAFEPATH": "1", **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["machine"]["rooms"] == str(place)
    return found


def need_same(found: dict[str, Any], plain: dict[str, Any]) -> None:
    recorded, now = (
        {name.removesuffix(which): each for name, each in found["golden"].items() if name.endswith(which)}
        for which in WHICH
    )
    assert now == recorded
    assert len(now) == 6
    for kind, expected in plain["plans"].items():
        assert len(expected) >= 12, kind  # of sounds there are no more
        assert [each for each in found["plans"][kind] if each not in set(expected)] == [], kind
        assert found["plans"][kind] == expected
    assert found["resampled"] == pytest.approx(plain["resampled"], abs=RESAMPLED)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The bits of this machine as it is."""
    found = bits(tmp_path_factory.mktemp("plain"))
    need_same(found, found)
    return found


def masked(found: dict[str, Any], plain: dict[str, Any], names: Iterable[str]) -> None:
    """See that a mask is one, where the processor has what it masks."""
    here, there = plain["machine"], found["machine"]
    if "NPY_DISABLE_CPU_FEATURES" in names:
        assert there["numpy"] == []
    if "ATEN_CPU_CAPABILITY" in names:
        assert there["torch"] == "DEFAULT"
    if FFMPEG_ENV in names:
        assert there["ffmpeg"] == 0
    if "GLIBC_TUNABLES" in names and here["numpy"] and platform.libc_ver()[0] == "glibc" and X86:
        assert there["libm"] != here["libm"]


@pytest.mark.parametrize("name", [*MASKS, "all of them"])
def test_bits_do_not_depend_on_what_the_processor_can_do(name: str, plain: dict[str, Any], tmp_path: Path) -> None:
    mask = MASKS.get(name, ALL)
    if not all(mask.values()):
        pytest.skip("this processor has none of it")

    found = bits(tmp_path, **mask)

    masked(found, plain, mask)
    need_same(found, plain)


def built(place: Path, flags: str, environment: dict[str, str]) -> None:
    """Copy the library, and compile it with flags behind its own."""
    shutil.copytree(
        ROOT / "spiral_stream", place / "spiral_stream", ignore=shutil.ignore_patterns("*.so", "__pycache__")
    )
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, place / name)
    (place / "tests").symlink_to(ROOT / "tests")
    (place / "spiral_assets").symlink_to(ROOT / "spiral_assets")
    compiler = place / "cc"  # setup.py's flags come last on a command line, but for this
    compiler.write_text(f'#!/bin/sh\necho "$@" >> {place}/calls\nexec {os.environ.get("CC", "cc")} "$@" {flags}\n')
    compiler.chmod(compiler.stat().st_mode | stat.S_IXUSR)
    done = subprocess.run(
        [sys.executable, "setup.py", "-q", "build_ext", "--inplace"],
        cwd=place,
        env=os.environ | environment | {"CC": str(compiler)},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    compiled = [line for line in (place / "calls").read_text().splitlines() if " -c " in line]
    assert len(compiled) == len(list((ROOT / "spiral_stream").rglob("*.c")))


@pytest.mark.parametrize("name", BUILDS)
def test_bits_do_not_depend_on_how_the_kernels_are_compiled(name: str, plain: dict[str, Any], tmp_path: Path) -> None:
    flags, environment = BUILDS[name]
    place = tmp_path / "place"
    place.mkdir()
    built(place, flags, environment)

    found = bits(tmp_path, place)

    if "SPIRAL_PORTABLE" in environment:
        assert found["machine"]["fast"] == [False, False]
    else:
        assert found["machine"]["fast"][1] == bool(_pixels.ACCELERATED)
    need_same(found, plain)
