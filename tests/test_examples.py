"""Every name of the reference has an example that runs: in its docstring, or on its page."""

import doctest
import importlib
import inspect
import io
import os
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.test_documents import DOCS, ENTRY, blocks

PAGES = sorted((DOCS / "reference").glob("*.md"))
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE

# Classes whose methods people call; those of the others are called by the library, or belong to an interface.
CALLED = (
    *("Catalog", "Expr", "PreparedStream", "Relation", "adapters.StreamLoader", "report.Report", "sources.Writer"),
    *("results.Grouped", "results.OrderedRows", "results.Sheet", "results.VectorIndex"),
)

# What the example of a name needs beside the library; without it, the example is skipped.
NEEDED = {
    "spiral_stream.Relation.to_jax": ("jax",),
    "spiral_stream.adapters.JaxStream": ("jax",),
    "spiral_stream.adapters.StreamTrainer": ("transformers", "accelerate"),
    "spiral_stream.index_videos": ("av",),
}


def named(name: str) -> Any:
    """What a dotted name of the reference means."""
    parts = name.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:cut]))
        except ImportError:
            continue
        for part in parts[cut:]:
            found = inspect.getattr_static(found, part) if inspect.isclass(found) else getattr(found, part)
        return found
    raise ImportError(name)


@cache
def entries() -> dict[str, Path]:
    """Names of the reference, and the page of each; with the methods of classes that people call."""
    out: dict[str, Path] = {}
    for page in PAGES:
        for name in ENTRY.findall(page.read_text()):
            if inspect.ismodule(named(name)):
                continue  # a heading over names of its own
            out[name] = page
            if name.removeprefix("spiral_stream.") in CALLED:
                kind = named(name)
                out |= {
                    f"{name}.{each}": page for each in dir(kind) if is_shown(inspect.getattr_static(kind, each), each)
                }
    return out


def is_shown(member: Any, name: str) -> bool:
    return not name.startswith("_") and (callable(member) or isinstance(member, property))


def doctests(name: str) -> doctest.DocTest | None:
    """The examples of a docstring that run; None if it has none."""
    found = named(name)
    text = inspect.getdoc(found.fget if isinstance(found, property) else inspect.unwrap(found))
    made = doctest.DocTestParser().get_doctest(text or "", {}, name, None, 0)
    run = [each for each in made.examples if not each.options.get(doctest.SKIP)]
    return made if run else None


def on_page(name: str, page: Path) -> bool:
    """Whether a block of the page that runs has the name."""
    short = name.rsplit(".", 1)[-1]
    return any(re.search(rf"\b{short}\b", each.code) for each in blocks(page) if each.language == "python")


@pytest.fixture(scope="module")
def begin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Path], dict[str, Any]]]:
    """Go to the folder of a page's examples, and return what they begin with: what the page says, or the first page."""
    place, before = Path.cwd(), dict(os.environ)
    made: dict[Path, tuple[Path, dict[str, Any]]] = {}

    def begun(page: Path) -> dict[str, Any]:
        page = page if any(each.language == "python" for each in blocks(page)) else DOCS / "reference" / "index.md"
        if page in made:
            os.chdir(made[page][0])
            return dict(made[page][1])
        folder, names = tmp_path_factory.mktemp("examples"), {"__name__": "examples"}
        os.chdir(folder)
        (setup,) = (each.code for each in blocks(page) if each.language == "python")
        exec(compile(setup, page.name, "exec"), names)
        made[page] = folder, names
        return dict(names)

    yield begun
    os.chdir(place)
    os.environ.clear()
    os.environ.update(before)


@pytest.mark.filterwarnings(
    "ignore:`parse_obj_as` is deprecated", "ignore::dagster.BetaWarning", "ignore::dagster.PreviewWarning"
)
@pytest.mark.parametrize("name", [name for name in entries() if doctests(name)])
def test_the_example_of_a_docstring_runs(name: str, begin: Callable[[Path], dict[str, Any]]) -> None:
    for package in NEEDED.get(name, ()):
        pytest.importorskip(package)
    example, printed, begun = doctests(name), io.StringIO(), begin(entries()[name])
    assert example
    stream = begun["plan"].to_numpy() if "plan" in begun else None
    example.globs = begun if stream is None else {**begun, "stream": stream}
    result = doctest.DocTestRunner(optionflags=FLAGS).run(example, out=printed.write, clear_globs=False)
    if stream is not None:
        stream.close()

    assert result.failed == 0, printed.getvalue()


@pytest.mark.lint
def test_every_name_of_the_reference_has_an_example() -> None:
    lacking = [name for name, page in entries().items() if not doctests(name) and not on_page(name, page)]

    assert lacking == []
