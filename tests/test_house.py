"""The layout holds without anybody watching: the door, the rooms' sizes, who imports whom, what is written down."""

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import spiral_stream

ROOT = Path(__file__).parents[1]
LONGEST_ROOM = 500  # lines: one sitting

# A heavy package enters by these rooms only.
DOORS = {
    "dagster": (),
    "duckdb": ("relational/engine.py", "relational/sql_process.py"),
    "jax": ("adapters/jax.py",),
    "lance": ("sources/lance.py", "cache/store.py"),
    "lancedb": ("catalog/database.py",),
    "simplejpeg": ("decoders/image.py",),
    "torch": ("adapters/torch.py",),
    "torchvision": (),
    "tokenizers": (
        "catalog/tokenizers.py",
        *(f"transforms/{room}.py" for room in ("byte_pairs", "encoder", "proof", "splitting")),
    ),
    "tiktoken": ("transforms/proof.py", "transforms/splitting.py"),
    "transformers": ("adapters/trainer.py", "catalog/tokenizers.py"),
}

# Machines and registries have no place in a file; written in pieces so that this one passes.
PLACES = re.compile(
    "|".join(
        [r"(?<![\w.])/" + folder + r"/\w" for folder in ("work", "root", "home", "Users")]
        + ["pypi" + r"\.org", "python" + "hosted", "npm" + r"js\.(org|com)", "index" + "-url", "extra" + "-index"]
    )
)
TOOLING = ("Makefile", ".ci/run", "pyproject.toml", "setup.py", "workspace.yaml", "dagster_home/dagster.yaml")


@cache
def tracked() -> tuple[Path, ...]:
    """Every file of the repository that is text; those not yet added are left to their authors."""
    git = ["git", "ls-files", "-z"]
    done = subprocess.run(git, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip("not a git checkout: which files belong to the repository cannot be told")
    paths = [ROOT / name for name in done.stdout.split("\0") if name]
    return tuple(path for path in paths if path.is_file() and path.suffix not in {".png", ".jpg"})


def rooms(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def imported(room: Path) -> set[str]:
    """Full names of the modules that a room imports anywhere in it, also inside functions."""
    names = set()
    for node in ast.walk(ast.parse(room.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{room.relative_to(ROOT)}: imports are absolute here"
            names.add(node.module or "")
    return names


def test_the_door_lists_its_names_in_order_and_has_them_all() -> None:
    names = spiral_stream.__all__

    assert names == sorted(set(names))
    assert [name for name in names if not hasattr(spiral_stream, name)] == []


def test_the_door_only_re_exports() -> None:
    tree = ast.parse((ROOT / "spiral_stream" / "__init__.py").read_text())
    kinds = {type(node) for node in tree.body}

    assert kinds <= {ast.Expr, ast.ImportFrom, ast.Assign}
    assert [node.targets[0].id for node in tree.body if isinstance(node, ast.Assign)] == ["__all__"]
    came_in = {
        alias.asname or alias.name for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    assert came_in == set(spiral_stream.__all__)


@pytest.mark.parametrize("package", ["spiral_stream", "spiral_assets", "benchmarks"])
def test_every_room_is_read_in_one_sitting(package: str) -> None:
    lengths = {str(room.relative_to(ROOT)): len(room.read_text().splitlines()) for room in rooms(package)}

    assert lengths
    assert {name: lines for name, lines in lengths.items() if lines > LONGEST_ROOM} == {}


@pytest.mark.parametrize("heavy", DOORS)
def test_a_heavy_package_has_one_door(heavy: str) -> None:
    home = ROOT / "spiral_stream"
    found = {
        room.relative_to(home).as_posix()
        for room in rooms("spiral_stream")
        if any(name.split(".")[0] == heavy for name in imported(room))
    }

    assert found == set(DOORS[heavy])


def test_no_public_class_name_stands_for_two_things() -> None:
    homes: dict[str, list[str]] = {}
    for room in rooms("spiral_stream"):
        for node in ast.walk(ast.parse(room.read_text())):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(str(room.relative_to(ROOT)))

    assert len(homes) > 100
    assert {name: found for name, found in homes.items() if len(found) > 1} == {}


def test_the_assets_use_the_library_by_its_door_only() -> None:
    past_the_door = {
        f"{room.relative_to(ROOT)}: {name}"
        for room in rooms("spiral_assets")
        for name in imported(room)
        if name.startswith("spiral_stream.")
    }

    assert past_the_door == set()


def test_imports_go_down_only() -> None:
    lint = Path(sys.executable).parent / "lint-imports"
    done = subprocess.run([lint, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr


def test_no_file_names_a_machine_or_a_registry() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}"
        for path in tracked()
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
        if PLACES.search(line)
    ]

    assert found == []


@pytest.mark.parametrize("name", TOOLING)
def test_installing_and_running_name_no_network_address(name: str) -> None:
    assert "://" not in (ROOT / name).read_text()


def test_documents_link_to_what_is_there() -> None:
    links = (
        (document, target)
        for document in tracked()
        if document.suffix == ".md"
        for target in re.findall(
            r"\]\(([^)#\s]+)[^)]*\)", re.sub(r"```.*?```", "", document.read_text(), flags=re.DOTALL)
        )
        if "://" not in target
    )
    broken = [
        f"{document.relative_to(ROOT)}: {target}"
        for document, target in links
        if not (document.parent / target).exists()
    ]

    assert broken == []


def test_the_makefile_names_only_targets_that_it_has() -> None:
    text = (ROOT / "Makefile").read_text()
    phony = set(re.search(r"^\.PHONY: (.*)$", text, re.MULTILINE)[1].split())

    assert phony == set(re.findall(r"^([a-z-]+):.*## ", text, re.MULTILINE))
    assert {"install", "demo", "test", "test-all", "check", "bench", "ui", "docs", "clean"} <= phony
    for line in (ROOT / ".ci" / "run").read_text().splitlines():
        if line.startswith("make "):
            assert line.split()[1] in phony
