"""What a user gets who has no checkout: a wheel that needs no compiler, with its types; and what CI says that it runs."""

import contextlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from spiral_stream.extras import DISTRIBUTION

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
WORKFLOWS = ROOT / ".github" / "workflows"
PROGRAMS = ROOT / "tests" / "e2e" / "programs"
CODE = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
TUTORIALS = ROOT / "docs" / "tutorials"
# A user's settings, not ours. torch does not annotate `Tensor.backward`, and pyarrow ships no types.
SETTINGS = "[mypy]\nuntyped_calls_exclude = torch\n[mypy-pyarrow.*]\nignore_missing_imports = True\n"

TYPED = """
from typing import assert_type

import spiral_stream as spiral


def fields(size: int) -> dict[str, spiral.Stack | spiral.List]:
    transforms = [spiral.RandomResizedCrop(size), spiral.RandomHorizontalFlip()]
    return {"image": spiral.Stack("image_ref", decode="jpeg", transforms=transforms), "id": spiral.List("sample_id")}


def steps(catalog: spiral.Catalog, name: str) -> int:
    rows = catalog.table(name).filter(spiral.col("split") == "train")
    assert_type(rows, spiral.Relation)
    plan = rows.sample(identity="sample_id", order=spiral.GlobalShuffle(seed=3)).collate(batch_size=8, fields=fields(32))
    with plan.to_numpy() as stream:
        assert_type(stream, spiral.PreparedStream)
        stream.load_state_dict(stream.state_dict())
        try:
            return sum(1 for _ in stream.bind(epoch=1))
        except spiral.errors.DataError:
            return len(stream)


print(steps(spiral.connect("catalog"), "train"), spiral.__version__)
"""
WRONG = {
    'spiral.GlobalShuffle(seed="three")': "arg-type",
    "spiral.connect(3)": "arg-type",
    "spiral.Stak": "attr-defined",
    'spiral.table("rows").collect()': "attr-defined",
    "spiral.batching.Packed(max_tokens=8).nothing": "attr-defined",
}


def run(*command: str | Path, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if k not in {"PYTHONPATH", "MYPYPATH"}}
    return subprocess.run(
        list(map(str, command)), cwd=cwd, env=environment | variables, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of what git knows, built outside the checkout."""
    place = tmp_path_factory.mktemp("build")
    names = run("git", "ls-files", "-z", "spiral_stream", "spiral_assets", cwd=ROOT).stdout.split("\0")
    if names == [""]:
        pytest.skip("not a git checkout: which files belong to the repository cannot be told")
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE", *filter(None, names)):
        if (ROOT / name).exists():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, place / name)
    command = ("wheel", ".", "--no-deps", "--no-build-isolation", "--no-index", "-w", "dist")
    done = run(sys.executable, "-m", "pip", *command, cwd=place)
    assert done.returncode == 0, done.stdout + done.stderr
    return next((place / "dist").glob("*.whl"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter that has the wheel, installed without a compiler, and behind it what this one has."""
    place = tmp_path_factory.mktemp("installed")
    made = run(sys.executable, "-m", "venv", "--without-pip", "venv", cwd=place)
    assert made.returncode == 0, made.stderr
    python = place / "venv" / "bin" / "python"
    home = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=place).stdout.strip()
    done = run(
        *(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", wheel),
        cwd=place,
        PATH=str(place / "venv" / "bin"),
        CC="false",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (Path(home) / "behind.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    return python


# Of a process and of those that it starts: no import finds what REFUSED names, as if it were not installed.
ONLY = """
import os, sys
from importlib.machinery import PathFinder

REFUSED = set(os.environ["REFUSED"].split())


class Only(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in REFUSED else PathFinder.find_spec(name, path, target)


sys.meta_path = [Only if each is PathFinder else each for each in sys.meta_path]
"""
EXTRAS = re.compile(r'pip install "spiral-stream\[([a-z,-]+)\]"')
FIRST = [ROOT / "README.md", ROOT / "docs" / "index.md", *sorted(TUTORIALS.glob("*.md"))]


def brought(name: str, extras: Iterable[str]) -> set[str]:
    """The distributions that an installation of one with some extras brings, by their normal names."""
    found: set[tuple[str, str]] = set()
    left = [(canonicalize_name(name), extra) for extra in ("", *extras)]
    while left:
        name, extra = left.pop()
        if (name, extra) in found:
            continue
        found.add((name, extra))
        with contextlib.suppress(metadata.PackageNotFoundError):  # of another platform, or not installed
            for each in map(Requirement, metadata.requires(name) or ()):
                if each.marker is None or each.marker.evaluate({"extra": extra}):
                    left += [(canonicalize_name(each.name), more) for more in ("", *each.extras)]
    return {name for name, _ in found}


def named_by(extra: str) -> set[tuple[str, str]]:
    """The distributions that an extra of ours names, through other extras of ours, each with an extra of its own or none."""
    found = set()
    for each in map(Requirement, PROJECT["optional-dependencies"].get(extra, PROJECT["dependencies"])):
        if canonicalize_name(each.name) == DISTRIBUTION:
            found |= {pair for more in each.extras for pair in named_by(more)}
        else:
            found |= {(each.name, more) for more in ("", *each.extras)}
    return found


def test_torch_comes_with_those_extras_alone_that_compute_with_it() -> None:
    """Whoever runs a code location of Dagster installs no framework; its training runs elsewhere."""
    extras = {"": named_by(""), **{extra: named_by(extra) for extra in PROJECT["optional-dependencies"]}}
    comes = {
        extra: {name for package, more in named for name in brought(package, [more])} for extra, named in extras.items()
    }

    assert {extra for extra, names in comes.items() if "torch" in names} == {
        *("torch", "vision", "trainer", "demo", "all"),  # of users
        *("bench", "dev", "recipes"),
    }
    assert comes["dagster"] >= {"dagster", "dagster-dg-cli", "dagster-webserver", "lancedb", "matplotlib"}
    assert not comes["dagster"] & {"torchvision", "transformers", "tokenizers", "av", "triton", "jax", "ray"}


@pytest.fixture(scope="module")
def only(installed: Path) -> Path:
    """The same; its processes that have REFUSED in their environment do not find these packages."""
    home = run(installed, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=ROOT).stdout.strip()
    (Path(home) / "only.py").write_text(ONLY)
    (Path(home) / "only.pth").write_text("import os; os.environ.get('REFUSED') and __import__('only')\n")
    return installed


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in FIRST if CODE.search(page.read_text())], ids=lambda page: page.name)
def test_the_first_programs_run_with_the_extra_that_their_page_names(only: Path, page: Path, tmp_path: Path) -> None:
    extras = EXTRAS.findall(page.read_text())[0].split(",")
    there = brought("spiral-stream", extras) | {"pip", "setuptools"}
    refused = [
        name
        for name, owners in metadata.packages_distributions().items()
        if name != "spiral_assets" and there.isdisjoint(map(canonicalize_name, owners))
    ]
    assert "dagster" in refused
    (tmp_path / "program.py").write_text("\n".join(CODE.findall(page.read_text())))

    done = run(only, "program.py", cwd=tmp_path, REFUSED=" ".join(refused))

    assert done.returncode == 0, done.stdout + done.stderr


def clean(wheel: Path, extras: str, place: Path) -> Path:
    """The interpreter of an environment that has nothing but the wheel with some extras, as a package index gives them."""
    assert run(sys.executable, "-m", "venv", "venv", cwd=place).returncode == 0
    python = place / "venv" / "bin" / "python"
    done = run(python, "-m", "pip", "install", "--quiet", "--retries", "1", f"{wheel}[{extras}]", cwd=place)
    if "No matching distribution" in done.stderr or "Failed to establish" in done.stderr:
        pytest.skip("no package index can be reached")
    assert done.returncode == 0, done.stderr
    return python


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_program_of_the_readme_runs_in_an_empty_environment(wheel: Path, tmp_path: Path) -> None:
    readme = (ROOT / "README.md").read_text()
    python = clean(wheel, EXTRAS.findall(readme)[0], tmp_path)
    (tmp_path / "program.py").write_text("\n".join(CODE.findall(readme)))

    done = run(python, "program.py", cwd=tmp_path)

    assert done.returncode == 0, done.stdout + done.stderr


PHOTOS = """
from pathlib import Path
from PIL import Image

for k, name in enumerate(["ape", "bee"]):
    folder = Path("photos") / name
    folder.mkdir(parents=True)
    for n in range(8):
        Image.new("RGB", (48, 40), (90 * k, 20 * n, 60)).save(folder / f"{n}.jpg")
"""


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_dagster_location_is_checked_where_neither_torch_nor_a_codec_is(wheel: Path, tmp_path: Path) -> None:
    python = clean(wheel, "dagster", tmp_path)
    listed = run(python, "-m", "pip", "list", "--format=freeze", cwd=tmp_path).stdout.split()
    there = {canonicalize_name(each.partition("==")[0]) for each in listed}
    assert there >= {
        "spiral-stream",
        "dagster",
        "dagster-dg-cli",
        "dagster-webserver",
        "lancedb",
        "matplotlib",
        "pyyaml",
    }
    assert there & {"torch", "torchvision", "transformers", "accelerate", "tokenizers", "tiktoken", "av"} == set()
    assert run(python, "-c", PHOTOS, cwd=tmp_path).returncode == 0

    commands = (["spiral", "init", "photos", "--dagster"], ["dg", "check", "yaml"], ["dg", "check", "defs"])
    for command, *words in commands:
        done = run(python.parent / command, *words, cwd=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_the_location_of_dagster_says_what_to_install(only: Path, tmp_path: Path) -> None:
    for room, extra in {"assets": "dagster", "components": "dagster", "demo.__main__": "demo"}.items():
        call = ".main()" if room.endswith("__main__") else ""
        done = run(only, "-c", f"import spiral_assets.{room} as it; it{call}", cwd=tmp_path, REFUSED="dagster")
        said = f'needs the package dagster, which is not installed. Run: pip install "spiral-stream[{extra}]"'
        assert said in done.stderr


@pytest.mark.slow
def test_the_wheel_serves_every_version_and_holds_the_types(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    rooms = sorted(str(path.relative_to(ROOT).with_suffix("")) for path in (ROOT / "spiral_stream").rglob("_*.c"))

    assert re.fullmatch(rf"spiral_stream-{re.escape(PROJECT['version'])}-cp311-abi3-\w+\.whl", wheel.name)
    assert rooms
    assert [f"{room}.abi3.so" for room in rooms] == sorted(name for name in names if name.endswith(".so"))
    assert [f"{room}.pyi" for room in rooms] == sorted(name for name in names if name.endswith(".pyi"))
    assert {"spiral_stream/py.typed", "spiral_assets/py.typed"} <= set(names)
    assert {name.split("/")[0] for name in names} == {
        "spiral_stream",
        "spiral_assets",
        f"spiral_stream-{PROJECT['version']}.dist-info",
    }


@pytest.mark.slow
def test_an_installed_wheel_is_imported_where_no_compiler_is(installed: Path, tmp_path: Path) -> None:
    told = (
        "import spiral_stream as s; from spiral_stream.transforms import _pixels as p; "
        "print(s.__file__, p.__file__, s.__version__)"
    )
    done = run(installed, "-c", told, cwd=tmp_path, PATH=str(installed.parent))

    assert done.returncode == 0, done.stderr
    package, room, version = done.stdout.split()
    assert Path(package).is_relative_to(installed.parents[1])
    assert Path(room).is_relative_to(installed.parents[1])
    assert version == PROJECT["version"]
    spiral = run(installed.parent / "spiral", "--version", cwd=tmp_path, PATH=str(installed.parent))
    assert spiral.stdout == f"spiral {version}\n"


def checked(installed: Path, folder: Path, *, checkout: str = "", **programs: str) -> subprocess.CompletedProcess[str]:
    for name, program in programs.items():
        (folder / f"{name}.py").write_text(program)
    ours = "[mypy-spiral_stream.*]\nfollow_imports = silent\n" if checkout else ""  # a checkout has its own settings
    (folder / "mypy.ini").write_text(SETTINGS + ours)
    options = ("--strict", "--python-executable", installed)
    return run(
        sys.executable, "-m", "mypy", *options, *(f"{name}.py" for name in programs), cwd=folder, MYPYPATH=checkout
    )


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_typed_user_programs_pass_mypy_strict_and_wrong_ones_do_not(installed: Path, tmp_path: Path) -> None:
    programs = {f"seen_{path.stem}": path.read_text() for path in sorted(PROGRAMS.glob("*.py"))}
    assert len(programs) == 3
    shown = [ROOT / "README.md", *sorted(TUTORIALS.glob("*.md"))]
    written = {f"page_{page.stem.lower()}": "\n".join(CODE.findall(page.read_text())) for page in shown}
    assert written.pop("page_dagster") == ""  # a project of YAML
    assert sorted(written) == ["page_images", "page_readme", "page_spike", "page_text", "page_video"]
    assert all("import spiral_stream" in program for program in written.values())
    done = checked(installed, tmp_path, typed=TYPED, **written, **programs)
    assert done.returncode == 0, done.stdout + done.stderr

    done = checked(installed, tmp_path, wrong="\n".join(["import spiral_stream as spiral", *WRONG, ""]))
    assert re.findall(r"^wrong\.py:(\d+): error: .*\[([\w-]+)\]$", done.stdout, re.MULTILINE) == [
        (str(line), code) for line, code in enumerate(WRONG.values(), 2)
    ], done.stdout


# How a reader or a program asks for a distribution: `pip install NAME`, "NAME[extra]", "NAME==1.0", name = "NAME".
ASKED = re.compile(
    r"""\binstall\b(?:\s+-[-\w=.]+)*\s+["'`]?spiral(?![\w/.-])  # the name itself, and none that goes on
    | (?<![\w./-])spiral\\?\[ (?:[a-z{])
    | (?<![\w./-])spiral (?:==|~=|>=)
    | ^[Nn]ame\s*[=:]\s*"?spiral"?$
    | (?:\bversion|\bdistribution|\brequires)\("spiral"\)""",
    re.VERBOSE | re.MULTILINE,
)


@pytest.mark.parametrize(
    "text", ["pip install -U {}", "pip install '{}[torch]'", '"{}[text]"', "{}==0.1", 'name = "{}"', 'version("{}")']
)
def test_the_old_name_is_told_from_the_new_one(text: str) -> None:
    assert ASKED.search(text.format("spiral"))
    assert not ASKED.search(text.format("spiral-stream"))


def test_no_file_asks_for_the_distribution_of_that_name_which_is_somebody_elses() -> None:
    names = [*filter(None, run("git", "ls-files", "-z", cwd=ROOT).stdout.split("\0"))]
    if not names:
        pytest.skip("not a git checkout: which files belong to the repository cannot be told")
    recorded = {"tests/stream/plan/functions/test_origin.py", "tests/test_packaging.py"}  # what fingerprints say of us
    found = []
    for name in names:
        if name not in recorded and (ROOT / name).is_file():
            text = (ROOT / name).read_bytes().decode(errors="ignore")
            found += [f"{name}: {each[0].strip()}" for each in ASKED.finditer(text)]

    assert PROJECT["name"] == DISTRIBUTION == "spiral-stream"
    assert found == []


def test_ci_runs_every_version_that_the_classifiers_name() -> None:
    jobs = yaml.safe_load((WORKFLOWS / "ci.yml").read_text())["jobs"]
    wheels = yaml.safe_load((WORKFLOWS / "wheels.yml").read_text())["jobs"]
    said = [line.rpartition(" ")[2] for line in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", line)]

    assert PROJECT["requires-python"] == f">={said[0]}"
    assert jobs["test"]["strategy"]["matrix"]["python"] == [said[0], said[-1]]
    assert jobs["nightly"]["strategy"]["matrix"]["python"] == said
    assert wheels["install"]["strategy"]["matrix"]["python"] == said


def test_workflows_and_hooks_call_targets_and_tests_that_are_there() -> None:
    targets = re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE)
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    steps = [
        step["run"]
        for workflow in WORKFLOWS.glob("*.yml")
        for job in yaml.safe_load(workflow.read_text())["jobs"].values()
        for step in job["steps"]
        if "run" in step
    ]
    called = [
        found
        for line in [*steps, *(hook["entry"] for hook in hooks)]
        for found in re.findall(r"\bmake ([a-z-]+)", line)
    ]

    assert {"check", "test", "test-nightly", "install"} <= set(called) <= set(targets)
    assert [hook["entry"] for hook in hooks] == ["make check"]
    paths = [word for line in steps for word in line.split() if word.startswith("tests/")]
    assert paths
    assert [path for path in paths if not (ROOT / path).exists()] == []
