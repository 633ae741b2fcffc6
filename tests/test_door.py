"""The names that people write: where each is, and that those of yesterday still work and say where they are now."""

import ast
import importlib
import inspect
import re
import runpy
import subprocess
import sys
import warnings
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import spiral_stream
from tests.test_documents import DOCS, RECORDS, blocks, of
from tests.test_house import NAMESPACES, ROOT, tracked, tree_of

OLDER: dict[str, str] = spiral_stream._OLDER
PUBLIC = {"errors", "testing", *NAMESPACES}  # what programs import from, beside `spiral_stream` itself
PROGRAMS = sorted((ROOT / "tests" / "e2e" / "programs").glob("*.py"))

# Every name that was at the top on 28 November 2026, before there were namespaces.
YESTERDAY = """
Arrow BatchBudget BindError BoxLabels Boxes BucketKey CacheError CacheStatus Catalog CatalogError CenterCrop
ChatTemplate ColorJitter Csv CuSeqlens DamageError DataError DataParallel DropPartial ExpandedRange Frames
GaussianBlur GlobalShuffle Grayscale HashBucketed HuggingFace ImageFolder Jpeg Jsonl KeepPartial KeyPoints Labels
Lance List Mds MissingExtraError Normalize OneStream Original Packed Pad PadMask PadPartial Parquet Picture
PlanError Positions PreparedData PreparedStream Progress RandAugment RandomAffine RandomCrop RandomErasing
RandomGrayscale RandomHorizontalFlip RandomResizedCrop RandomRotation Raw Relation Report Resize ResumeError
RowIdentity RuntimeParam Segments Sequential ShardAwareShuffle ShiftedLabels ShuffleBuckets Source SourceError
SourceFacts SpiralError SpiralWarning Stack StratifiedByStream Stream StreamError TextFiles Tokenize Tokens
TrustError VideoFolder Vortex WebDataset Weighted WindowShuffle WindowedBucket WithReplacement WithinShards Writer
__version__ cache_fingerprint col concat connect declared_source draw_bars draw_curves fn index_videos len_ lit mix
open_stream report_relation source_facts sql table use_storage written
""".split()  # noqa: SIM905  a name a line is four screens


@pytest.fixture
def forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """The door as a new process finds it: no older name was asked for."""
    for name in OLDER:
        monkeypatch.delitem(vars(spiral_stream), name, raising=False)


def test_every_name_of_yesterday_is_at_the_top_or_older() -> None:
    assert len(YESTERDAY) == 112
    assert set(YESTERDAY) - set(spiral_stream.__all__) == set(OLDER)
    assert set(OLDER.values()) <= PUBLIC


@pytest.mark.usefixtures("forgotten")
@pytest.mark.parametrize("name", OLDER)
def test_an_older_name_is_the_same_object_and_warns_once_of_what_to_write(name: str) -> None:
    with pytest.warns(spiral_stream.SpiralWarning) as warned:
        found = getattr(spiral_stream, name)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert getattr(spiral_stream, name) is found

    (said,) = warned
    assert said.filename == __file__
    (written,) = re.findall(r"Write spiral\.([\w.]+),", str(said.message))
    place, last = written.split(".")
    assert (last, f"from spiral_stream.{place} import {name}" in str(said.message)) == (name, True)
    assert getattr(importlib.import_module(f"spiral_stream.{place}"), name) is found


@pytest.mark.usefixtures("forgotten")
def test_an_older_name_that_is_imported_warns_on_the_line_of_the_import() -> None:
    with pytest.warns(spiral_stream.SpiralWarning, match=r"Write spiral\.sources\.Csv") as warned:
        from spiral_stream import Csv

    assert [said.filename for said in warned] == [__file__]
    assert Csv is spiral_stream.sources.Csv


@pytest.mark.usefixtures("forgotten")
def test_older_names_are_not_listed_but_type_checkers_know_them() -> None:
    assert [name for name in OLDER if name in spiral_stream.__all__ or name in dir(spiral_stream)] == []

    tree = ast.parse((ROOT / "spiral_stream" / "__init__.py").read_text())
    exported = {
        alias.asname: (node.module or "").removeprefix("spiral_stream.")
        for outer in tree.body
        if isinstance(outer, ast.If)
        for node in outer.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.asname == alias.name and alias.name not in spiral_stream.__all__
    }
    assert exported == OLDER


@pytest.mark.usefixtures("forgotten")
def test_a_tool_that_looks_at_every_name_meets_no_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = {name: getattr(spiral_stream, name) for name in dir(spiral_stream)}

    assert set(spiral_stream.__all__) <= set(found)


@pytest.mark.parametrize("name", sorted({*spiral_stream.__all__} - PUBLIC))
def test_a_name_at_the_top_that_a_namespace_has_too_is_the_same(name: str) -> None:
    others = [importlib.import_module(f"spiral_stream.{place}") for place in NAMESPACES]

    assert [each for each in others if name in each.__all__ and getattr(each, name) is not vars(each)[name]] == []
    assert all(getattr(each, name) is getattr(spiral_stream, name) for each in others if name in each.__all__)


def test_no_name_is_in_two_namespaces() -> None:
    places = [name for place in NAMESPACES for name in importlib.import_module(f"spiral_stream.{place}").__all__]

    assert len(places) == len(set(places))


@pytest.mark.usefixtures("forgotten")
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_the_example_programs_begin_without_a_warning(program: Path, tmp_path: Path) -> None:
    tree = ast.parse(program.read_text())
    begun = tmp_path / "begun.py"
    used = sorted(
        {
            f"spiraldb.{node.attr}"
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "spiraldb"
        }
    )
    lines = [ast.unparse(node) for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    begun.write_text("\n".join([*lines, *used, ""]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        runpy.run_path(str(begun))

    assert len(PROGRAMS) == 3
    assert used


def test_the_door_and_a_namespace_import_no_room_before_a_name_is_asked_for() -> None:
    places = ", ".join(f"spiral_stream.{name}" for name in NAMESPACES)
    script = (
        "import sys, spiral_stream; first = {each for each in sys.modules if each.startswith('spiral_stream')}\n"
        f"import {places}; print(*first, '|', *(each for each in sys.modules if each.startswith('spiral_stream')))"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    first, then = (set(part.split()) for part in done.stdout.split("|"))

    assert first == {"spiral_stream"}
    assert then == first | {"spiral_stream.habits", *(f"spiral_stream.{name}" for name in NAMESPACES)}


def test_a_namespace_is_an_attribute_of_the_door() -> None:
    script = "import spiral_stream as spiral; print(spiral.sources.Parquet.__name__, spiral.errors.PlanError.__name__)"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)

    assert done.stdout.split() == ["Parquet", "PlanError"]


ATTRIBUTE = re.compile(rf"(?<![\w./])(?:spiral|spiral_stream|spiraldb|sp)\.({'|'.join(OLDER)})\b(?!\.py)")
IMPORT = re.compile(r"from spiral_stream import (\([^)]*\)|[^\n(]*)")
# They say what was, or what older names are; `compatibility` also runs under commits that have no namespaces.
OF_THEIR_DAY = (
    *("docs/decisions/", "docs/benchmarks/", "CHANGELOG.md", "tests/test_door.py"),
    "benchmarks/compatibility.py",
)


def test_no_file_writes_an_older_name() -> None:
    found = []
    for path in tracked():
        name = path.relative_to(ROOT).as_posix()
        if name.startswith(OF_THEIR_DAY):
            continue
        text = path.read_text(errors="replace")
        lines = [f"{name}: {each}" for each in ATTRIBUTE.findall(text)]
        lines += [
            f"{name}: {each}" for body in IMPORT.findall(text) for each in re.findall(r"\w+", body) if each in OLDER
        ]
        found += lines

    assert found == []


def imports(document: Path) -> Iterator[str]:
    """Modules of the library that the code blocks of a document import."""
    for block in blocks(document):
        if block.language == "python" or (block.title or "").endswith(".py"):
            for node in ast.walk(ast.parse(block.code)):
                if isinstance(node, ast.Import):
                    yield from (alias.name for alias in node.names)
                elif isinstance(node, ast.ImportFrom):
                    yield node.module or ""


def test_documents_import_by_the_door_only() -> None:
    pages = [ROOT / "README.md", *(page for page in DOCS.rglob("*.md") if RECORDS.isdisjoint(page.parents))]
    found = {(of(page), module) for page in pages for module in imports(page) if module.startswith("spiral_stream")}
    allowed = {"spiral_stream", *(f"spiral_stream.{name}" for name in PUBLIC)}

    assert {module for _, module in found} >= {"spiral_stream", "spiral_stream.orders", "spiral_stream.testing"}
    assert sorted(each for each in found if each[1] not in allowed) == []


def test_examples_in_docstrings_import_by_the_door_only() -> None:
    allowed = "|".join(sorted(PUBLIC))
    inner = re.compile(
        rf"^\s*(?:>>>|\.\.\.) (?:from|import) spiral_stream\.(?!(?:{allowed})(?: |$))(\S+)", re.MULTILINE
    )
    rooms = sorted((ROOT / "spiral_stream").rglob("*.py"))

    assert [(of(room), name) for room in rooms for name in inner.findall(room.read_text())] == []


# Classes whose methods people call, and those that they derive from.
CALLED = (
    *("Catalog", "Relation", "PreparedStream", "Grouped", "OrderedRows", "Sheet", "Report", "ColumnSkew", "Writer"),
    *(
        "TorchStream",
        "StreamLoader",
        "StreamTrainer",
        "JaxStream",
        "Entry",
        "Statistics",
        "Skew",
        "Verified",
        "Verification",
    ),
)
DERIVED_FROM = (
    *("Order", "Arrangement", "Field", "Formation", "Former", "Source", "Reader", "ImportedSource"),
    *("Transform", "PixelTransform", "ImageTransform"),
)
# For the library's own rooms: nodes of a plan, markup of pages, tables of shards and pins, the place of a worker. `Pixels`
# is an array in what transforms take; the class of the name is a decoder's. `AnyCatalog` is the interface of `Catalog`, and a
# catalog holds a `Registry`. `stages` and `numbering` of a stream, and the registry, are read by rooms above; nobody outside
# may (tests/test_house.py).
OWN = {"AnyCatalog", "Deliver", "Html", "Manifest", "Node", "Numbering", "Pins", "Pixels", "Reached", "Registry"}
OWN |= {"Stages"}


@cache
def classes() -> dict[str, ast.ClassDef]:
    """Every public class of the library; no name stands for two."""
    rooms = (ROOT / "spiral_stream").rglob("*.py")
    found = (node for room in rooms for node in ast.walk(tree_of(room)) if isinstance(node, ast.ClassDef))
    return {node.name: node for node in found if not node.name.startswith("_")}


def methods(name: str, known: dict[str, ast.ClassDef]) -> Iterator[ast.FunctionDef]:
    """Public methods of a class and of its bases, with those that it forwards to an object that it holds."""
    for base in known[name].bases:
        if isinstance(base, ast.Name) and base.id in known:
            yield from methods(base.id, known)
    for each in known[name].body:
        if isinstance(each, ast.FunctionDef) and each.name[0] != "_":
            yield each
        elif isinstance(each, ast.Assign) and ast.unparse(each.value).startswith("forwarded("):
            holder, method = ast.unparse(each.value.args[1]).split(".")  # type: ignore[attr-defined]  # of a call
            yield next(found for found in methods(holder, known) if found.name == method)


def words(annotation: ast.expr | None) -> set[str]:
    """Names that an annotation has, also in texts."""
    nodes = list(ast.walk(annotation)) if annotation else []
    texts = [each.value for each in nodes if isinstance(each, ast.Constant) and isinstance(each.value, str)]
    return {each.id for each in nodes if isinstance(each, ast.Name)} | {
        word for text in texts for word in re.findall(r"\w+", text)
    }


@pytest.mark.lint
@pytest.mark.parametrize("name", [*CALLED, *DERIVED_FROM])
def test_what_methods_return_and_interfaces_take_has_a_public_name(name: str) -> None:
    known = classes()
    public = {each for place in NAMESPACES for each in importlib.import_module(f"spiral_stream.{place}").__all__}
    public |= {*spiral_stream.__all__, *OWN}
    hidden = []
    for method in methods(name, known):
        needed = words(method.returns)
        if name in DERIVED_FROM:
            needed |= {word for each in [*method.args.args, *method.args.kwonlyargs] for word in words(each.annotation)}
        hidden += [f"{name}.{method.name}: {each}" for each in sorted(needed & set(known) - public)]

    assert name in public
    assert hidden == []


@pytest.mark.lint
def test_methods_are_also_those_that_a_class_forwards() -> None:
    for kind in (spiral_stream.PreparedStream, spiral_stream.Catalog):
        names = {method.name for method in methods(kind.__name__, classes())}
        assert {each.__name__ for name, each in inspect.getmembers(kind, inspect.isfunction) if name[0] != "_"} <= names


def test_what_the_library_alone_calls_of_a_stream_has_an_underscore() -> None:
    from spiral_stream.adapters import JaxStream, TorchStream

    inner = {"numbering", "stages", "follow", "forked", "reached", "state_following", "worker_batches"}
    for kind in (spiral_stream.PreparedStream, TorchStream, JaxStream):
        assert inner & set(dir(kind)) == set()
