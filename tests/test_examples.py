"""Every name of the reference has an example that runs: in its docstring, or on its page."""

import doctest
import importlib
import inspect
import io
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.test_documents import DOCS, ENTRY, blocks

PAGES = sorted((DOCS / "reference").glob("*.md"))
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE

# Classes whose methods people call; those of the others are called by the library, or belong to an interface.
CALLED = (
    *("Catalog", "PreparedStream", "Relation", "Report", "Writer", "adapters.torch.StreamLoader", "expr.Expr"),
    *("looking.sheet.Sheet", "row_verbs.Grouped", "runtime.ordered_rows.OrderedRows"),
)

# What lacks an example still. Take a name off when it has one; the test refuses names that have one, and new names without.
LACKING = """
assets.assets: Check Limits Named SavedPlan SavedStream cache_asset cache_assets measure_assets registered_asset
    relation_assets stream_asset stream_assets tokenizer_asset training_asset training_jobs video_index_assets
assets.automation: freshness rebuild rebuild_sensor
assets.checks: cache_check explain_check identity_check import_check missing_values_check row_count_check
    schema_change_check schema_check skew_check
assets.components: Catalog Measure PlanCache Relation RelationCatalog Tokenizer TrainingJob TrainingStream Upkeep
    VideoIndex
assets.model_page: model_page
assets.pages: definition_metadata numbers relation_page shown statistics_page table_schema with_pictures
assets.plans.standard: decoded_images image_batches token_batches tokens
assets.resources: CatalogResource RunsResource standard_resources
assets.training.run: TrainingRun
assets.training.seen: samples_seen
assets.upkeep: failure_sensor retention_job upkeep
assets.watching: Watched watch_sensor
assets.yaml_definitions: definitions_from
stream: Mds VideoFolder index_videos
stream.Relation: to_jax
stream.adapters.jax: JaxStream
stream.adapters.trainer: StreamTrainer
stream.sources.imports: ImportedSource Refused
stream.sources.memory: MemoryReader
stream.sources.source: Reader
"""
WITHOUT = frozenset(
    f"spiral_{place}.{name}"
    for place, names in re.findall(r"^([\w.]+):((?:[ \n]+\w+(?![\w.]*:))+)", LACKING, re.MULTILINE)
    for name in names.split()
)


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
def begun(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """What the examples begin with, as the reference's first page says it."""
    place, before = Path.cwd(), dict(os.environ)
    os.chdir(tmp_path_factory.mktemp("examples"))
    names: dict[str, Any] = {"__name__": "examples"}
    (setup,) = (each.code for each in blocks(DOCS / "reference" / "index.md") if each.language == "python")
    exec(compile(setup, "reference/index.md", "exec"), names)
    yield names
    os.chdir(place)
    os.environ.clear()
    os.environ.update(before)


@pytest.mark.parametrize("name", [name for name in entries() if doctests(name)])
def test_the_example_of_a_docstring_runs(name: str, begun: dict[str, Any]) -> None:
    example, printed = doctests(name), io.StringIO()
    assert example
    example.globs = {**begun, "stream": begun["plan"].to_numpy()}
    stream = example.globs["stream"]
    result = doctest.DocTestRunner(optionflags=FLAGS).run(example, out=printed.write, clear_globs=False)
    stream.close()

    assert result.failed == 0, printed.getvalue()


def test_every_name_of_the_reference_has_an_example() -> None:
    lacking = {name for name, page in entries().items() if not doctests(name) and not on_page(name, page)}

    assert sorted(lacking - WITHOUT) == []
    assert sorted(WITHOUT - lacking) == []
