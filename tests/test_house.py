"""The layout holds without anybody watching: the door, the rooms' sizes, who imports whom, what is written down."""

import ast
import importlib
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import spiral_stream
from spiral_stream.extras import EXTRA_OF
from tests.fixtures import doors
from tests.fixtures.doors import tree_of

pytestmark = pytest.mark.lint

ROOT = Path(__file__).parents[1]
LONGEST_ROOM = 700  # lines: past it a room answers two questions
MOST_ROOMS = 15  # in a folder: past it nobody guesses the room
MOST_PRIVATE_USES = 34  # of tests; it only becomes less

# A heavy package enters by these rooms only.
DOORS = {
    "accelerate": (),
    "av": (
        "decoders/sound/sound.py",
        *(f"decoders/video/{room}.py" for room in ("contexts", "demuxed", "packets", "probing", "rgb", "video")),
    ),
    "dagster": (),
    "duckdb": ("relational/engine.py", "relational/sql_process.py"),
    "jax": ("adapters/jax.py",),
    "lance": (
        "catalog/database.py",
        "cache/store/part_schema.py",
        "cache/store/store.py",
        "sources/lance/source.py",
        "sources/lance/fragments.py",
        "sources/lance/fragments.py",
    ),
    "lancedb": ("report/vector_table.py",),
    "matplotlib": ("report/charts.py",),
    "simplejpeg": ("decoders/image/image.py",),
    "vortex": ("dialects/vortex.py", "sources/columnar/vortex.py"),
    "torch": ("adapters/cuda.py", "adapters/measured.py", "adapters/pinned_memory.py", "adapters/torch.py"),
    "torchvision": (),
    "tokenizers": (
        "catalog/tokenizers.py",
        *(f"transforms/text/{room}.py" for room in ("encoder", "splitting", "encoding_engine")),
    ),
    "tiktoken": (),
    "transformers": ("adapters/trainer.py", "catalog/tokenizers.py", "transforms/text/jinja.py"),
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


@cache
def rooms(package: str) -> tuple[Path, ...]:
    return tuple(sorted((ROOT / package).rglob("*.py")))


@cache
def imported(room: Path) -> frozenset[str]:
    """Full names of the modules that a room imports anywhere in it, also inside functions."""
    names: set[str] = set()
    for node in ast.walk(tree_of(room)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{room.relative_to(ROOT)}: imports are absolute here"
            names.add(node.module or "")
    return frozenset(names)


def room_imports(package: str) -> dict[str, set[str]]:
    """The rooms of the package that each room imports, also inside functions and for types only."""
    files = {".".join(room.relative_to(ROOT).with_suffix("").parts): room for room in rooms(package)}
    names = {name.removesuffix(".__init__"): room for name, room in files.items()}
    return {name: {each for each in _named(room) if each in names} - {name} for name, room in names.items()}


def _named(room: Path) -> set[str]:
    """Modules that a room imports: ``from a import b`` is ``a.b`` where that is a room, and ``a`` otherwise."""
    out: set[str] = set()
    for node in ast.walk(tree_of(room)):
        if isinstance(node, ast.Import):
            out |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            out |= {name if _is_room(name) else str(node.module) for name in names}
    return out


def _is_room(name: str) -> bool:
    path = ROOT.joinpath(*name.split("."))
    return any(path.with_suffix(end).exists() for end in (".py", ".pyi")) or (path / "__init__.py").exists()


def circle(imports: Mapping[str, set[str]]) -> list[str]:
    """A circle of imports, from a room back to itself; empty if there is none."""
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


# Namespaces that import a name's room when it is first asked for.
NAMESPACES = ("adapters", "batching", "fields", "orders", "profiles", "report", "results", "sources", "transforms")


@pytest.mark.parametrize("place", ["spiral_stream", *(f"spiral_stream.{name}" for name in (*NAMESPACES, "testing"))])
def test_a_door_lists_its_names_in_order_and_has_them_all(place: str) -> None:
    door = importlib.import_module(place)
    names = door.__all__

    assert sorted(names) == sorted(set(names))
    assert [name for name in names if not hasattr(door, name)] == []
    assert set(names) <= set(dir(door))


@pytest.mark.parametrize("name", NAMESPACES)
def test_a_namespace_only_re_exports(name: str) -> None:
    tree = ast.parse((ROOT / "spiral_stream" / name / "__init__.py").read_text())
    for_types, when_asked = (node for node in tree.body if isinstance(node, ast.If))
    (made,) = when_asked.body
    assert isinstance(made, ast.Assign)
    assert isinstance(made.value, ast.Call)
    where, rooms = made.value.args

    assert [ast.unparse(node) for node in (made.targets[0], made.value.func, where)] == [
        "(__all__, __getattr__, __dir__)",
        "door",
        "__name__",
    ]
    assert assigned(tree) == []
    assert imports_of(for_types.body) == room_of(ast.literal_eval(rooms))


def room_of(rooms: Mapping[str, list[str]]) -> dict[str, str]:
    """Name -> its room, of rooms in order with names in order."""
    assert list(rooms) == sorted(rooms)
    assert all(names == sorted(names) for names in rooms.values())
    return {name: f"spiral_stream.{room}" for room, names in rooms.items() for name in names}


def assigned(tree: ast.Module) -> list[Any]:
    return [node for node in tree.body if isinstance(node, ast.Assign | ast.AnnAssign)]


@pytest.mark.parametrize("name", NAMESPACES)
def test_a_namespace_refuses_other_names_and_says_the_near_one(name: str) -> None:
    door = importlib.import_module(f"spiral_stream.{name}")
    some = next(each for each in door.__all__ if each != "ROW")

    with pytest.raises(AttributeError, match=rf"spiral_stream\.{name}: there is no '{some}s'\. Did you mean .*{some}"):
        getattr(door, f"{some}s")


def imports_of(nodes: list[ast.stmt]) -> dict[str, str]:
    """Name -> the room that it is imported from. The alias alone exports a name to type checkers."""
    found = [node for node in nodes if isinstance(node, ast.ImportFrom)]
    assert all(alias.asname == alias.name for node in found for alias in node.names)
    return {alias.name: node.module or "" for node in found for alias in node.names}


def test_the_door_only_re_exports() -> None:
    tree = ast.parse((ROOT / "spiral_stream" / "__init__.py").read_text())
    typed = [node for node in tree.body if isinstance(node, ast.If)]
    named = {
        node.targets[0].id if isinstance(node, ast.Assign) else node.target.id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign | ast.AnnAssign)
    }
    for_types, older, when_asked = typed  # what the first two import for type checkers, the last imports when it runs
    functions = {node.name for node in [*tree.body, *when_asked.body] if isinstance(node, ast.FunctionDef)}

    assert {type(node) for node in tree.body} <= {
        ast.Expr,
        ast.ImportFrom,
        ast.Assign,
        ast.AnnAssign,
        ast.If,
        ast.FunctionDef,
    }
    assert (set(named), functions) == (
        {"_MOVED", "_NAMES", "_NAMESPACES", "_OLDER", "_ROOMS", "_ROOM_OF"},
        {"__getattr__", "__dir__", "_of_namespace"},
    )
    assert [ast.unparse(node.test) for node in typed] == ["TYPE_CHECKING", "TYPE_CHECKING", "not TYPE_CHECKING"]
    namespaces = ast.literal_eval(named["_NAMESPACES"])
    late = imports_of(for_types.body)
    assert late == {**dict.fromkeys(namespaces, "spiral_stream"), **room_of(ast.literal_eval(named["_ROOMS"]))}
    assert imports_of(older.body) == room_of(ast.literal_eval(named["_MOVED"]))
    assert namespaces == tuple(sorted({*NAMESPACES, "errors", "testing"}))
    assert set(late) == set(spiral_stream.__all__)


def test_names_that_are_imported_late_are_seen_and_others_are_refused() -> None:
    assert set(spiral_stream.__all__) <= set(dir(spiral_stream))
    with pytest.raises(AttributeError, match=r"there is no 'Relations'\. Did you mean Relation"):
        _ = spiral_stream.Relations


@pytest.mark.parametrize("package", ["spiral_stream", "spiral_assets", "benchmarks"])
def test_every_room_is_read_in_one_sitting(package: str) -> None:
    lengths = {str(room.relative_to(ROOT)): len(room.read_text().splitlines()) for room in rooms(package)}

    assert lengths
    assert {name: lines for name, lines in lengths.items() if lines > LONGEST_ROOM} == {}


@pytest.mark.parametrize("package", ["spiral_stream", "spiral_assets"])
def test_no_folder_has_more_rooms_than_a_reader_takes_in(package: str) -> None:
    counted = Counter(room.parent.relative_to(ROOT) for room in rooms(package) if room.name[0] != "_")

    assert counted
    assert {str(folder): count for folder, count in counted.items() if count > MOST_ROOMS} == {}


# Imported by nearly every program, and light enough: about 0.2 CPU s together.
LIGHT = {"PIL", "numpy", "pyarrow", "simplejpeg", "xxhash"}  # of Pillow the bare package, to find where it lies
# Rooms that an extra's package may be imported at the top of; whoever imports one of them has asked `need` before.
BEHIND = {"decoders/video/demuxed.py", "decoders/video/packets.py", "decoders/video/probing.py"}
# Rooms that are reached only through one that has asked: a stream of tensors, a codec context, an open tokenizer.
BEHIND_ANOTHER = {
    "decoders/video/video.py",
    "dialects/vortex.py",
    "transforms/text/splitting.py",
}


def at_the_top(nodes: list[ast.stmt]) -> list[ast.Import | ast.ImportFrom]:
    """Imports that run when a room is imported: none that is in a function, or for type checkers only."""
    found: list[ast.Import | ast.ImportFrom] = []
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            found.append(node)
        elif isinstance(node, ast.If) and ast.unparse(node.test) != "TYPE_CHECKING":
            found += at_the_top([*node.body, *node.orelse])
    return found


def packages(nodes: Iterable[ast.AST]) -> set[str]:
    """Top-level packages that import statements name."""
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    return {name.split(".")[0] for name in names}


def test_packages_that_are_not_light_are_imported_in_functions() -> None:
    """Except in rooms that are themselves imported late: adapters, the command, the process that describes SQL."""
    home, late = (
        ROOT / "spiral_stream",
        {
            "adapters/cuda.py",
            "adapters/measured.py",
            "adapters/pinned_memory.py",
            "adapters/torch.py",
            "adapters/trainer.py",
            "commands/cli.py",
            "commands/command_words.py",
            "commands/copy_command.py",
            "commands/init_command.py",
            "commands/node_command.py",
            "commands/run_commands.py",
            "commands/spike_command.py",
            "relational/sql_process.py",
        },
    )
    found = {
        f"{name}: {package}"
        for room in rooms("spiral_stream")
        if (name := room.relative_to(home).as_posix()) not in late | BEHIND
        for package in packages(at_the_top(tree_of(room).body))
        if package not in {"spiral_stream", *sys.stdlib_module_names, *LIGHT}
    }

    assert found == set()


def test_a_room_that_imports_a_package_of_an_extra_asks_for_it_first() -> None:
    """Or is reached only through a room that did."""
    unasked = set()
    for room in rooms("spiral_stream"):
        name, tree = room.relative_to(ROOT / "spiral_stream").as_posix(), tree_of(room)
        typed = {id(each) for node in tree.body if isinstance(node, ast.If) for each in ast.walk(node)}
        wanted = packages([node for node in ast.walk(tree) if id(node) not in typed]) & set(EXTRA_OF)
        if wanted and name not in BEHIND and "spiral_stream.extras" not in imported(room):
            unasked.add(name)

    assert unasked == BEHIND_ANOTHER


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
        for node in ast.walk(tree_of(room)):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(str(room.relative_to(ROOT)))

    assert len(homes) > 100
    assert {name: found for name, found in homes.items() if len(found) > 1} == {}


# What draws data and trains on it: the extra `demo` brings what these folders import. `defs` is the demo's location.
DEMO = ("corpora", "demo", "training", "defs")
OF_DEMO = {"accelerate", "av", "simplejpeg", "tokenizers", "torch", "transformers"}


def test_only_the_demo_of_the_assets_imports_what_its_extra_brings() -> None:
    home = ROOT / "spiral_assets"
    found = {
        room.relative_to(home).as_posix(): packages(list(ast.walk(tree_of(room)))) & OF_DEMO
        for room in rooms("spiral_assets")
    }

    assert {place.split("/")[0] for place, heavy in found.items() if heavy} == {"corpora", "training"}


def test_the_assets_of_users_need_nothing_of_the_demo() -> None:
    """But the progress of a run, which a page shows; it imports the standard library alone."""
    found = {
        f"{room.relative_to(ROOT)}: {name}"
        for room in rooms("spiral_assets")
        if room.relative_to(ROOT).parts[1] not in DEMO
        for name in imported(room)
        if name.startswith(tuple(f"spiral_assets.{folder}" for folder in DEMO))
    }

    assert found == {
        "spiral_assets/model_page.py: spiral_assets.training",
        "spiral_assets/model_page.py: spiral_assets.training.progress",
        "spiral_assets/run_page.py: spiral_assets.training",
    }
    progress = ROOT / "spiral_assets" / "training" / "progress.py"
    assert packages(list(ast.walk(tree_of(progress)))) <= set(sys.stdlib_module_names)


# Nouns that stood for several things each (docs/glossary.md says what to write instead), and how many uses of names with them are
# left: saved forms, public names, and rooms that nobody has come to. A number is only ever lowered; at 0 the word is gone.
RETIRED = {
    "asked": 8,
    "beside": 0,
    "each": 52,
    "kept": 55,
    "own": 40,
    "piece": 151,
    "pieces": 401,
    "place": 108,
    "places": 55,
    "told": 8,
    "whole": 94,
}
# Names that are not written at all, whatever they would stand for.
RETIRED_NAMES = ("runs_of", "places_of", "Facts")


def names_of(tree: ast.AST) -> Iterator[str]:
    """Every name that a room writes: of variables, parameters, attributes, functions and classes, once for each use."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield "" if node.id == "each" else node.id  # the variable of a loop in one line may be called so
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.arg) or (isinstance(node, ast.keyword) and node.arg is not None):
            yield node.arg
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.alias):
            yield node.asname or node.name.rpartition(".")[2]


def words_of(name: str) -> list[str]:
    """The words of a name: of `NarrowColumn`, `narrow_column` and `NARROW_COLUMN` narrow and column."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower().split("_")


@cache
def names_used() -> Counter[str]:
    used: Counter[str] = Counter()
    for package in ("spiral_stream", "spiral_assets"):
        for room in rooms(package):
            used[room.stem] += 1
            used.update(names_of(tree_of(room)))
    return used


def test_names_hold_no_word_that_stood_for_several_things() -> None:
    used: Counter[str] = Counter()
    for name, uses in names_used().items():
        used.update(dict.fromkeys(set(words_of(name)), uses))
    found = {word: used[word] for word in RETIRED}

    assert {word: uses for word, uses in found.items() if uses > RETIRED[word]} == {}, "docs/glossary.md has the word"


def test_names_that_are_retired_are_written_nowhere() -> None:
    found = {name for name in names_used() if name.lstrip("_") in RETIRED_NAMES}

    assert found == set()


def test_no_class_is_called_by_how_it_came_about() -> None:
    """`FoundBatch` is a looked-up batch, `AskedRows` are requested rows: say the noun."""
    classes = {
        node.name
        for package in ("spiral_stream", "spiral_assets")
        for room in rooms(package)
        for node in ast.walk(tree_of(room))
        if isinstance(node, ast.ClassDef)
    }

    assert {name for name in classes if re.match(r"_?(Found|Asked|Told|Kept|Own)([A-Z]|$)", name)} <= {"OwnCheck"}


@pytest.mark.parametrize(
    "text",
    [
        "kept = 1",
        "def f(kept): ...",
        "a.kept_rows",
        "class KeptRows: ...",
        "f(kept=1)",
        "from a import kept",
        "_KEPT = 1",
    ],
)
def test_a_retired_word_is_found_in_a_name(text: str) -> None:
    assert "kept" in {word for name in names_of(ast.parse(text)) for word in words_of(name)}


def test_every_room_that_the_glossary_names_is_there() -> None:
    lines = [line for line in (ROOT / "docs" / "glossary.md").read_text().splitlines() if line.startswith("| **")]
    named = {line.split(" | ")[0]: re.findall(r"`([a-z_/]+)`", line.split(" | ")[2]) for line in lines}

    assert len(named) >= 40
    assert len(named) == len(lines), "a word stands in the glossary twice"
    lost = {word: rooms for word, rooms in named.items() if not rooms or not all(map(_is_room_of, rooms))}
    assert lost == {}


def _is_room_of(path: str) -> bool:
    return (ROOT / "spiral_stream" / f"{path}.py").exists()


def test_the_assets_use_the_library_by_its_door_only() -> None:
    past_the_door = {
        f"{room.relative_to(ROOT)}: {name}"
        for room in rooms("spiral_assets")
        for name in imported(room)
        if name.startswith("spiral_stream.")
        and name.removeprefix("spiral_stream.") not in {"errors", "testing", *NAMESPACES}
    }

    assert past_the_door == set()


def test_the_list_of_inner_rooms_that_tests_import_only_becomes_shorter() -> None:
    """A test of behaviour goes through the door: ``spiral_stream``, ``spiral_stream.testing``, a namespace."""
    listed, found = doors.INNER.read_text().splitlines(), doors.imported_past_the_doors()

    assert listed == sorted(set(listed)), f"{doors.INNER.name}: sort it, each line once"
    assert found - set(listed) == set(), "test what a user can see, by a door; where a room was renamed, list it anew"
    assert set(listed) - found == set(), f"no longer imported: take it off {doors.INNER.name}"


@pytest.mark.parametrize(
    ("text", "rooms_past"),
    [
        ("import spiral_stream as spiral\nfrom spiral_stream import Stack", set()),
        ("from spiral_stream.testing import check_order\nimport spiral_stream.testing.orders", set()),
        ("from spiral_stream.orders import Order, GlobalShuffle", set()),
        ("from spiral_stream.sources import Unit\nimport spiral_stream.sources", set()),
        ("from spiral_stream.sources import Unit, detect", {"spiral_stream.sources.detect"}),
        ("from spiral_stream.sources.source import Unit, SCAN_ROWS", {"spiral_stream.sources.source"}),
        ("from spiral_stream.errors import PlanError", set()),
        ("from spiral_stream.errors import anew", {"spiral_stream.errors"}),
        ("from spiral_stream.sources.columnar.parquet import Parquet", {"spiral_stream.sources.columnar.parquet"}),
        ("def a():\n    from spiral_stream import threads", {"spiral_stream.threads"}),
        ("from spiral_stream.fields import _tokens", {"spiral_stream.fields._tokens"}),
    ],
)
def test_an_import_past_the_doors_is_found(text: str, rooms_past: set[str]) -> None:
    assert doors.inner_rooms(ast.parse(text)) == rooms_past


LAWS_OF_STREAMS = {"check_replay", "check_resume", "check_loops", "check_elastic", "check_even_steps"}
# The suite; and a loop of another library. `tests/stream/testing` breaks the laws, under another name.
OF_LAWS = {"tests/stream/laws/test_laws.py", "tests/stream/adapters/test_lightning.py"}


def test_the_laws_of_streams_are_drawn_in_one_suite() -> None:
    calling = {
        path.relative_to(ROOT).as_posix()
        for path in doors.files_of_tests()
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.ImportFrom) and LAWS_OF_STREAMS & {name.name for name in node.names}
    }

    assert calling == OF_LAWS, "register a subject in tests/stream/laws instead"


def test_private_names_that_tests_touch_are_few_and_each_has_a_reason() -> None:
    """Lines are ``<test file> <name> <times>: <reason>``."""
    lines = doors.PRIVATE.read_text().splitlines()
    listed = {key.rpartition(" ")[0]: int(key.rpartition(" ")[2]) for key in (line.split(": ")[0] for line in lines)}

    assert [line for line in lines if len(line.partition(": ")[2].split()) < 3] == [], "say why"
    assert list(listed) == sorted(listed), f"{doors.PRIVATE.name}: sort it, one line for each name of a file"
    assert doors.touched() == listed, "go by a door, or give the room a public name; what is gone, take off the list"
    assert sum(listed.values()) <= MOST_PRIVATE_USES


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("stream._open()", ["_open"]),
        ("stream.open()._calling._processes = 3", ["_processes", "_calling"]),
        ("self._own, cls._own, self._own.public", []),
        ("self.stream._open", ["_open"]),
        ("super()._sql(text)", ["_sql"]),
        ("import os\nos._exit(0)", []),
        ("from torchvision import v2\nv2.RandAugment()._apply", []),
        ("sheet._repr_html_, sheet.__class__", []),
        ("from spiral_stream.a import _name", ["_name"]),
        ("from spiral_stream.transforms import _pixels", []),
        ("from spiral_stream.a import room\npatch.setattr(room, '_N', 2)", ["_N"]),
        ("patch.setattr('spiral_stream.a._N', 2)", ["_N"]),
        ("patch.setattr('os._exit', 2)", []),
        ("table['_rowid']", []),
    ],
)
def test_a_private_use_is_found(text: str, names: list[str]) -> None:
    assert list(doors.private_uses(ast.parse(text))) == names


def test_nobody_outside_the_library_reaches_into_the_stages_of_a_stream() -> None:
    inside = {"spiral_stream", "tests"}
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}"
        for path in tracked()
        if path.relative_to(ROOT).parts[0] not in inside
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
        if re.search(r"\.stages\b", line)
    ]

    assert found == [], "use stream.rows, stream.data_versions and stream.caches()"


def test_a_file_that_others_may_remove_is_looked_at_once() -> None:
    twice = re.compile(r"\.stat\(\)[^\n]*\bif\b[^\n]*\.(exists|is_file)\(\)|\.exists\(\) (and|or) [^\n]*\.stat\(\)")
    found = {
        f"{room.relative_to(ROOT)}: {line.strip()}"
        for package in ("spiral_stream", "spiral_assets")
        for room in rooms(package)
        for line in room.read_text().splitlines()
        if twice.search(line)
    }

    assert found == set(), "between the two looks it may go: integrity.one_look has look, size_of and written_at"


# What these do or show now and then is due once a machine goes on that stood still.
INTERVALS = {
    "spiral_assets/training/progress.py",
    "spiral_stream/derived/work/cooperative_build.py",
    "spiral_stream/keeping/share.py",
    "spiral_stream/runtime/forming/cost.py",
}


def test_who_waits_for_others_counts_by_a_stopwatch() -> None:
    by_hand = re.compile(r"= (time\.)?monotonic\(\) \+|monotonic\(\) (- [\w.\[\]]+ )?[<>]|- (time\.)?monotonic\(\)")
    found = {
        str(room.relative_to(ROOT))
        for package in ("spiral_stream", "spiral_assets")
        for room in rooms(package)
        if by_hand.search(room.read_text())
    }

    assert found == INTERVALS, "while the machine stands still others have no time: threads.Stopwatch counts none"


def test_imports_go_down_only() -> None:
    lint = Path(sys.executable).parent / "lint-imports"
    done = subprocess.run([lint, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr


def test_the_import_contract_names_the_folders_of_each_folder() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    named = {
        of: {name.strip() for layer in contract["layers"] for name in layer.split("|")}
        for contract in contracts
        if contract["type"] == "layers"
        for of in contract["containers"]
    }
    folders = {each.parent for each in (ROOT / "spiral_stream").rglob("__init__.py")}
    missing = {
        f"{path}.{name}"
        for folder in folders
        if len(names := {each.name for each in folders if each.parent == folder}) > 1
        for path in [".".join(folder.relative_to(ROOT).parts)]
        for name in names - named.get(path, set())
    }

    assert missing == set(), "give the folder a layer in pyproject.toml"


@pytest.mark.parametrize("package", ["spiral_stream", "spiral_assets", "benchmarks"])
def test_no_import_of_a_room_leads_back_to_it(package: str) -> None:
    assert circle(room_imports(package)) == []


def test_a_circle_of_imports_is_found() -> None:
    assert circle({"a": {"b"}, "b": {"c"}, "c": set()}) == []
    assert set(circle({"a": {"b"}, "b": {"c"}, "c": {"a"}})) == {"a", "b", "c"}


def warnings_of(tree: ast.AST) -> Iterator[int]:
    """Lines that warn in another form than ``errors.warn``, under whatever name it was imported."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module in ("warnings", "_warnings"):
            yield from (node.lineno for each in node.names if each.name.startswith("warn"))
        if isinstance(node, ast.Attribute) and node.attr in ("warn", "warn_explicit"):
            yield node.lineno
        if isinstance(node, ast.keyword) and node.arg in ("stacklevel", "skip_file_prefixes"):
            yield node.value.lineno


@pytest.mark.parametrize("package", ["spiral_stream", "spiral_assets"])
def test_every_warning_is_given_in_the_one_form(package: str) -> None:
    """Call ``errors.warn``: it names the caller's line without counting frames."""
    found = {room.relative_to(ROOT).as_posix(): [*warnings_of(tree_of(room))] for room in rooms(package)}
    calls = [node.func for room in rooms(package) for node in ast.walk(tree_of(room)) if isinstance(node, ast.Call)]

    one = found.pop("spiral_stream/errors.py", [])
    assert {name: lines for name, lines in found.items() if lines} == {}
    assert len(one) == (package == "spiral_stream")
    assert len([call for call in calls if isinstance(call, ast.Name) and call.id == "warn"]) >= 35 * len(one)


@pytest.mark.parametrize(
    "text",
    [
        "import warnings\nwarnings.warn('a')",
        "import warnings as w\nw.warn('a', stacklevel=2)",
        "from warnings import warn",
        "from warnings import warn_explicit as tell",
        "logging.getLogger().warn('a')",
    ],
)
def test_another_form_is_found(text: str) -> None:
    assert [*warnings_of(ast.parse(text))]


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


def installed_with(extra: str) -> set[str]:
    """Import names of what `pip install spiral-stream[extra]` brings on this machine."""
    modules_of = {}
    for module, distributions in metadata.packages_distributions().items():
        for each in distributions:
            modules_of.setdefault(canonicalize_name(each), set()).add(module)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    ours = {"": project["dependencies"], **project["optional-dependencies"]}
    left, known = [Requirement(f"spiral-stream[{extra}]")], set()
    while left:
        wanted = left.pop()
        name = canonicalize_name(wanted.name)
        for part in ("", *wanted.extras):
            if (name, part) in known or (name != "spiral-stream" and name not in modules_of):
                continue
            known.add((name, part))
            needs = map(Requirement, ours[part] if name == "spiral-stream" else metadata.requires(name) or ())
            left += [each for each in needs if each.marker is None or each.marker.evaluate({"extra": part})]
    return {module for name, _ in known for module in modules_of.get(name, ())}


def test_what_tests_import_is_installed_for_them() -> None:
    brought = installed_with("dev") | {*sys.stdlib_module_names, "spiral_stream", "spiral_assets", "tests"}
    found = {
        f"{path.relative_to(ROOT)}: {package}"
        for path in doors.files_of_tests()
        for package in packages(at_the_top(tree_of(path).body)) - brought
    }

    assert found == set(), "list the package in `dev` of pyproject.toml"


def test_the_makefile_names_only_targets_that_it_has() -> None:
    text = (ROOT / "Makefile").read_text()
    phony = set(re.search(r"^\.PHONY: (.*)$", text, re.MULTILINE)[1].split())

    assert phony == set(re.findall(r"^([a-z-]+):.*## ", text, re.MULTILINE))
    assert {"install", "demo", "test", "test-nightly", "check", "bench", "ui", "docs", "clean"} <= phony
    for line in (ROOT / ".ci" / "run").read_text().splitlines():
        if line.startswith("make "):
            assert line.split()[1] in phony


def test_what_is_kept_is_never_raised_itself() -> None:
    """An error that a local variable or an attribute holds leads to its keeper: `anew` gives a copy, `pop` takes it out."""
    kept = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for package in ("spiral_stream", "spiral_assets")
        for path in sorted((ROOT / package).rglob("*.py"))
        for node in _raised(tree_of(path), frozenset())
    ]
    assert kept == []


def test_what_was_caught_is_never_returned_itself() -> None:
    """An error that a caller keeps as a value leads to the functions that it came through, and so to its keeper."""
    returned = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for package in ("spiral_stream", "spiral_assets")
        for path in sorted((ROOT / package).rglob("*.py"))
        for caught in ast.walk(tree_of(path))
        if isinstance(caught, ast.ExceptHandler)
        for node in ast.walk(caught)
        if isinstance(node, ast.Return) and isinstance(node.value, ast.Name) and node.value.id == caught.name
    ]
    assert returned == [], "return anew(error)"


def test_answers_to_names_that_are_lacking_are_hidden_from_type_checkers() -> None:
    """A ``__getattr__`` that a type checker sees makes every misspelt name legal."""
    seen = []
    for path in rooms("spiral_stream"):
        hidden = {
            id(below)
            for node in ast.walk(tree_of(path))
            if isinstance(node, ast.If) and ast.unparse(node.test) == "not TYPE_CHECKING"
            for below in ast.walk(node)
        }
        seen += [
            f"{path.relative_to(ROOT)}:{node.lineno}"
            for node in ast.walk(tree_of(path))
            if isinstance(node, ast.FunctionDef) and node.name == "__getattr__" and id(node) not in hidden
        ]
    assert seen == []


def test_no_property_writes() -> None:
    found = [
        f"{room.relative_to(ROOT)}:{line}"
        for package in ("spiral_stream", "spiral_assets")
        for room in (ROOT / package).rglob("*.py")
        for line in writing_properties(room.read_text())
    ]

    assert not found, (
        f"reading a property changes nothing: give it when the object is made, or make it a method: {found}"
    )


def writing_properties(text: str) -> list[int]:
    """The lines of properties that assign to an attribute, of their own object or of another one."""
    return [
        each.lineno
        for function in ast.walk(ast.parse(text))
        if isinstance(function, ast.FunctionDef)
        and any(isinstance(by, ast.Name) and by.id == "property" for by in function.decorator_list)
        for each in ast.walk(function)
        if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store | ast.Del)
    ]


@pytest.mark.parametrize("line", ["self._a = 1", "self.every.in_lanes = True", "self._a, b = 1, 2", "self.a += 1"])
def test_a_property_that_writes_is_found(line: str) -> None:
    text = f"class A:\n    @{{}}\n    def a(self):\n        {line}\n"

    assert writing_properties(text.format("property")) == [4]
    assert writing_properties(text.format("cached_property")) == []


def test_what_ends_with_the_interpreter_asks_first_whether_it_does() -> None:
    """At the exit modules are emptied before objects go: a ``__del__`` that names others prints a traceback."""
    builtin = {"AttributeError", "OSError", "len", "range"}
    unguarded = []
    for path in rooms("spiral_stream"):
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.FunctionDef) and node.name == "__del__":
                own = {
                    each.id for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)
                }
                own |= {each.arg for each in node.args.args} | builtin
                body = [each for line in node.body for each in ast.walk(line)]
                strange = {each.id for each in body if isinstance(each, ast.Name)} - own
                calls = {
                    each.func.attr
                    for each in body
                    if isinstance(each, ast.Call)
                    and isinstance(each.func, ast.Attribute)
                    and ast.unparse(each.func.value) == "self"
                }
                guarded = ast.unparse(node.body[0]).startswith("if not _ending()")
                if (strange or calls) and not guarded:
                    unguarded.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert unguarded == []


def _raised(tree: ast.AST, fleeting: frozenset[str]) -> Iterator[ast.Raise]:
    """Each ``raise`` of a variable that is neither caught here nor deleted after it, or of an attribute or an item."""
    if isinstance(tree, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        fleeting = frozenset()
    if isinstance(tree, ast.ExceptHandler) and tree.name:
        fleeting |= {tree.name}
    if isinstance(tree, ast.Try):
        deleted = [target for each in tree.finalbody if isinstance(each, ast.Delete) for target in each.targets]
        fleeting |= {target.id for target in deleted if isinstance(target, ast.Name)}
    if isinstance(tree, ast.Raise) and isinstance(tree.exc, ast.Name | ast.Attribute | ast.Subscript):
        name = ast.unparse(tree.exc).rpartition(".")[2].lstrip("_")
        if isinstance(tree.exc, ast.Subscript) or (not name[0].isupper() and name not in fleeting):
            yield tree
    for child in ast.iter_child_nodes(tree):
        yield from _raised(child, fleeting)
