"""Documents hold: their code runs and prints what they say, their links lead somewhere, their commands exist."""

import ast
import contextlib
import importlib
import inspect
import re
import runpy
import shlex
import textwrap
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import typer.main
import yaml

import spiral_stream
from spiral_assets import (
    assets,
    automation,
    checks,
    components,
    model_page,
    pages,
    resources,
    run_page,
    upkeep,
    watching,
    yaml_definitions,
)
from spiral_assets.launching import finding, kubernetes, local, ray, slurm
from spiral_assets.plans import standard
from spiral_assets.training import run, seen
from spiral_stream.commands.cli import app
from tests.fixtures.pages import Runner
from tests.test_house import NAMESPACES

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
RECORDS = {DOCS / "decisions", DOCS / "benchmarks"}  # pages that say what was, and run nothing
PAGES = sorted(page for page in DOCS.rglob("*.md") if RECORDS.isdisjoint(page.parents))
DOCUMENTS = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])
BLOCK = re.compile(r"^( *)```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#:\s]*)(?:#([^)\s]*))?\)")
TORCHRUN = re.compile(r"torchrun --nproc-per-node (\d+) (\S+)")
ENTRY = re.compile(r"^::: (spiral_(?:stream|assets)\.\S+)$", re.MULTILINE)
HOW = {"torchtitan": ": make recipes installs it and runs the page", "trl": ": make install installs it"}
WIDTH = 100  # columns of a line of prose
FIRST = ("README.md", "AGENTS.md", "docs/index.md")


class Block(NamedTuple):
    language: str
    title: str
    code: str


def blocks(document: Path) -> list[Block]:
    found = BLOCK.findall(document.read_text())
    return [Block(language, title, textwrap.dedent(code)) for _, language, title, code in found]


def running() -> list[Path]:
    return [
        document
        for document in DOCUMENTS
        if RECORDS.isdisjoint(document.parents) and any(block.language == "python" for block in blocks(document))
    ]


def of(document: Path) -> str:
    return document.relative_to(ROOT).as_posix()


@pytest.fixture(scope="module")
def ran() -> dict[str, str]:
    """What scripts have printed: README and the landing page have one program."""
    return {}


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    made = Runner()
    yield made
    made.close()


def each_night(document: Path) -> Any:
    """Those that a reader begins with run at each push, all at night: `make docs` runs them here."""
    return pytest.param(document, marks=() if of(document) in FIRST else pytest.mark.slow)


@pytest.mark.parametrize("document", [each_night(document) for document in running()], ids=of)
def test_the_code_of_a_document_runs(document: Path, tmp_path: Path, runner: Runner, ran: dict[str, str]) -> None:
    for package in re.findall(r"\Arequires: (\S+)", document.read_text().removeprefix("---\n")):
        pytest.importorskip(package, reason=f"{package} is not installed{HOW.get(package, '')}")
    script, commands, expected = "", "", ""
    for block in blocks(document):
        if block.title and block.title != "Output":
            (tmp_path / block.title).write_text(block.code)
        elif block.language == "python":
            script += block.code + "\n"
        elif block.language == "bash":
            commands += block.code
        elif block.title == "Output":
            expected += block.code
    (tmp_path / "document.py").write_text(script)

    printed = ran[script] if script in ran else runner.run(tmp_path, "document.py", light=of(document) in FIRST)
    ran[script] = printed
    for ranks, name in TORCHRUN.findall(commands):
        printed += runner.run(tmp_path, name, int(ranks))

    lines = [line.rstrip() for line in printed.splitlines()]
    for line in expected.splitlines():
        pattern = re.escape(line.rstrip()).replace(re.escape("..."), ".*")
        assert any(re.fullmatch(pattern, each) for each in lines), f"not printed: {line}\nprinted:\n{printed[-3_000:]}"


def anchors(document: Path) -> set[str]:
    """What a link may name in a document: its headings, as both GitHub and MkDocs call them."""
    prose = re.sub(r"^ *```.*?^ *```", "", document.read_text(), flags=re.MULTILINE | re.DOTALL)
    named = re.findall(r"^#+ +(.*?)\s*(?:\{ *#([\w-]+) *\})?$", prose, re.MULTILINE)
    return {given or re.sub(r"[\s]+", "-", re.sub(r"[^\w\s-]", "", title.lower()).strip()) for title, given in named}


@pytest.mark.lint
@pytest.mark.parametrize("document", DOCUMENTS, ids=of)
def test_the_links_of_a_document_lead_somewhere(document: Path) -> None:
    for path, anchor in LINK.findall(document.read_text()):
        target = document.parent / path if path else document
        assert target.exists(), path
        if anchor and target.suffix == ".md":
            assert anchor in anchors(target), f"{path}#{anchor}: it has {sorted(anchors(target))}"


@pytest.mark.lint
@pytest.mark.parametrize(
    "document", [each for each in DOCUMENTS if any(block.language == "bash" for block in blocks(each))], ids=of
)
def test_the_commands_of_a_document_exist(document: Path) -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    subcommands = typer.main.get_command(app).commands  # type: ignore[attr-defined]  # a group
    written = {block.title for block in blocks(document)}
    for line in "".join(block.code for block in blocks(document) if block.language == "bash").splitlines():
        words = shlex.split(line, comments=True)
        if not words:
            continue
        if words[0] == "make":
            assert words[1] in targets, line
        elif words[0] == "torchrun":
            assert TORCHRUN.fullmatch(line), line
            assert words[-1] in written, line
        else:
            assert words[0] in (".venv/bin/spiral", "spiral"), f"{line!r}: documents call make, spiral or torchrun"
            assert words[1] in subcommands, line


def navigation(entries: object) -> Iterator[str]:
    """Every path that a navigation names."""
    if isinstance(entries, str):
        yield entries
    else:
        for each in entries.values() if isinstance(entries, dict) else entries:  # type: ignore[attr-defined]
            yield from navigation(each)


@pytest.mark.lint
def test_every_page_is_in_the_navigation() -> None:
    settings = re.sub(r"!!python/name:\S+", "''", (ROOT / "mkdocs.yml").read_text())
    named = list(navigation(yaml.safe_load(settings)["nav"]))
    whole = [DOCS / name for name in named if name.endswith("/")]

    assert len(named) == len(set(named))
    assert [name for name in named if not (DOCS / name).exists()] == []
    left = [each for each in DOCS.rglob("*.md") if each.relative_to(DOCS).as_posix() not in named]
    assert [of(each) for each in left if each.parent not in whole] == []


@pytest.mark.lint
def test_the_list_for_programs_is_that_of_the_navigation() -> None:
    settings = re.sub(r"!!python/name:\S+", "''", (ROOT / "mkdocs.yml").read_text())
    nav = yaml.safe_load(settings)["nav"]
    made = runpy.run_path(str(DOCS / "hooks.py"))["list_for_programs"](DOCS, nav)
    pages = {name for name in navigation(nav) if name.endswith(".md")} - {"index.md"}
    listed, fresh = (
        re.findall(r"^- \[(.+?)\]\((\S+?)\)", text, re.MULTILINE) for text in ((DOCS / "llms.txt").read_text(), made)
    )

    assert {path for _, path in fresh} == pages
    assert len(fresh) == len(pages)
    assert listed == fresh, "write it again: .venv/bin/python docs/hooks.py"


@pytest.mark.lint
def test_the_map_of_the_house_is_that_of_its_folders() -> None:
    hooks, package = runpy.run_path(str(DOCS / "hooks.py")), ROOT / "spiral_stream"
    page = (DOCS / "architecture.md").read_text()

    assert page == hooks["in_place"](page, hooks["folders"](package)), "write it again: .venv/bin/python docs/hooks.py"
    assert (DOCS / "rooms.md").read_text() == hooks["rooms"](package), "write it again: .venv/bin/python docs/hooks.py"


@pytest.mark.lint
def test_a_map_leads_to_a_room_or_folder_that_is_there() -> None:
    for place in (ROOT / "spiral_stream").rglob("__init__.py"):
        said = ast.get_docstring(ast.parse(place.read_text())) or ""
        for name in re.findall(r"`([\w/]+)`", " ".join(re.findall(r"^Start at: .*$", said, re.MULTILINE))):
            assert (place.parent / f"{name}.py").exists(), f"{place}: {name}"


@pytest.mark.lint
def test_what_people_look_for_leads_to_names_that_exist() -> None:
    rows = re.findall(r"^\| (.+?) \| (.+) \|$", (DOCS / "howto" / "names.md").read_text(), re.MULTILINE)
    found = [name for old, new in rows for name in re.findall(r"`([A-Za-z_.]+)`", LINK.sub("]", new)) if old[0] == "`"]
    missing = [name for name in found if name[0] != "." and not exists(name)]

    assert len(found) > 80
    assert missing == []


def exists(name: str) -> bool:
    """Whether a dotted name is at the door, or in a room of the library."""
    parts = name.split(".")
    for cut in range(len(parts), -1, -1):
        with contextlib.suppress(ImportError):
            found: object = importlib.import_module(".".join(["spiral_stream", *parts[:cut]]))
            try:
                for part in parts[cut:]:
                    found = getattr(found, part)
            except AttributeError:
                continue
            return True
    return False


@pytest.mark.lint
@pytest.mark.parametrize(
    "word",
    [
        *(
            "shuffle",
            "map_batches",
            "DataLoader",
            "StreamingDataset",
            "num_workers",
            "predownload",
            "is_in",
            "collate_fn",
        ),
        *("DistributedSampler", "WeightedRandomSampler", "load_dataset", "train_test_split", "set_epoch", "groupby"),
    ],
)
def test_the_search_finds_the_word_of_another_library(word: str) -> None:
    assert re.search(rf"^\| .*`{word}`.* \| .+ \|$", (DOCS / "howto" / "names.md").read_text(), re.MULTILINE)


@pytest.mark.lint
def test_the_reference_has_every_name_at_the_top_once() -> None:
    entries = [name for page in (DOCS / "reference").glob("*.md") for name in ENTRY.findall(page.read_text())]
    kinds = {
        name: f"spiral_stream.{place}.{name}"
        for place in NAMESPACES
        for name in importlib.import_module(f"spiral_stream.{place}").__all__
    }
    names = (name for name in spiral_stream.__all__ if not inspect.ismodule(getattr(spiral_stream, name)))
    door = [kinds.get(name, f"spiral_stream.{name}") for name in names if not name.startswith("_")]

    values = {"spiral_stream.sources.ROW"}  # a text, which has no docstring
    assert [name for name in {*door, *kinds.values()} - values if name not in entries] == []
    assert len(entries) == len(set(entries))


@pytest.mark.lint
def test_the_reference_names_each_thing_by_its_namespace() -> None:
    entries = [name for page in (DOCS / "reference").glob("*.md") for name in ENTRY.findall(page.read_text())]
    inner = re.compile(rf"spiral_stream\.(?!(?:{'|'.join((*NAMESPACES, 'errors', 'testing'))})\b)[a-z_]+\.")

    assert [name for name in entries if inner.match(name)] == []


@pytest.mark.lint
def test_the_page_of_dagster_has_every_factory_component_and_resource() -> None:
    page = (DOCS / "reference" / "dagster.md").read_text()
    public = [
        f"{room.__name__}.{name}"
        for room in (
            *(automation, checks, model_page, pages, resources, run, run_page, seen),
            *(standard, upkeep, watching, yaml_definitions, finding, kubernetes, local, ray, slurm),
        )
        for name, value in vars(room).items()
        if not name.startswith("_") and getattr(value, "__module__", "") == room.__name__
    ]
    public += [f"{room.__name__}.{name}" for room in (assets, components) for name in room.__all__ if name != "Plan"]

    assert len(public) > 30
    assert sorted(ENTRY.findall(page)) == sorted(public)


@pytest.mark.lint
@pytest.mark.parametrize("document", [ROOT / "README.md", *PAGES], ids=of)
def test_prose_is_wrapped_where_an_editor_shows_it(document: Path) -> None:
    prose = re.sub(r"^ *```.*?^ *```", "", document.read_text(), flags=re.MULTILINE | re.DOTALL)
    long = [line for line in prose.splitlines() if len(line) > WIDTH and not re.match(r" *(\||\[|!\[|<)", line)]

    assert long == []


@pytest.mark.lint
def test_the_page_of_the_command_has_every_command() -> None:
    page = (DOCS / "reference" / "command.md").read_text()
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]  # a group

    assert set(re.findall(r"^\| `spiral ([a-z-]+)", page, re.MULTILINE)) == set(commands)


@pytest.mark.lint
def test_the_floors_are_drawn_as_the_import_contract_says() -> None:
    drawn = next(block.code for block in blocks(DOCS / "architecture.md") if block.title == "Floors")
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(each["layers"] for each in contracts if each["type"] == "layers")

    assert [re.split(r" {2,}", line)[0] for line in drawn.splitlines()] == layers


@pytest.mark.lint
def test_the_files_to_read_first_are_there() -> None:
    named = re.findall(r"^\d\. `(\S+\.py)`", (DOCS / "architecture.md").read_text(), re.MULTILINE)

    assert len(named) == 8
    assert [name for name in named if not (ROOT / name).is_file()] == []


@pytest.mark.lint
def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150
