"""A source of one's own is registered, saved, and opened again: by an entry point, or where its class is imported."""

import gc
import json
import multiprocessing
import subprocess
import sys
import textwrap
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import spiral_stream as sp
from spiral_stream.errors import CatalogError, SourceError
from spiral_stream.sources import MemoryReader, Reader, Source, Unit, content_key
from spiral_stream.sources.serialize import source_from_json, source_to_json
from spiral_stream.testing import check_source


@dataclass(frozen=True)
class Countdown(Source):
    """Numbers in a file."""

    KIND: ClassVar[str] = "test-countdown"
    path: str
    tags: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "tags", tuple(self.tags))

    def open(self) -> Reader:
        text = Path(self.path).read_text()
        numbers = [int(line) for line in text.split()]
        unit = Unit("all", len(numbers), len(text), content_key(text), (len(numbers),))
        return MemoryReader(pa.table({"n": numbers}), [unit], str(Path(self.path).parent))


@pytest.fixture
def source(tmp_path: Path) -> Countdown:
    (tmp_path / "n.txt").write_text("3 2 1 0 7 8 9")
    return Countdown(str(tmp_path / "n.txt"), ("a", "b"))


def numbers(catalog: sp.Catalog) -> list[int]:
    fields = {"n": sp.List("n")}
    with catalog.table("t").sample(order=sp.Sequential()).collate(batch_size=7, fields=fields).to_numpy() as stream:
        return [n for batch in stream for n in batch["n"]]


def test_it_keeps_the_laws(source: Countdown) -> None:
    check_source(source, lambda: Path(source.path).write_text("1 1 1"))


def test_it_is_registered_and_opened_again(source: Countdown, tmp_path: Path, caches: Path) -> None:
    sp.connect(str(tmp_path / "catalog")).register("t", source, identity=sp.RowIdentity())
    again = sp.connect(str(tmp_path / "catalog"))

    assert again.entry("t").source == source
    assert numbers(again) == [3, 2, 1, 0, 7, 8, 9]
    Path(source.path).write_text("5 5 5 5 6 6 6")
    assert again.refresh("t").changes
    assert numbers(again) == [5, 5, 5, 5, 6, 6, 6]


def _in_worker(folder: str) -> list[int]:
    return numbers(sp.connect(folder))


def test_a_spawned_process_that_imports_the_class_reads_it(source: Countdown, tmp_path: Path, caches: Path) -> None:
    sp.connect(str(tmp_path / "catalog")).register("t", source, identity="n")
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        assert pool.submit(_in_worker, str(tmp_path / "catalog")).result() == [3, 2, 1, 0, 7, 8, 9]


def test_workers_of_a_data_loader_read_it(source: Countdown, tmp_path: Path, caches: Path) -> None:
    torch = pytest.importorskip("torch.utils.data")
    catalog = sp.connect(str(tmp_path / "catalog"))
    catalog.register("t", source, identity="n")
    fields = {"n": sp.Stack("n")}
    stream = catalog.table("t").sample(order=sp.Sequential()).collate(batch_size=7, fields=fields).to_torch()
    loader = torch.DataLoader(stream, batch_size=None, num_workers=1, multiprocessing_context="spawn")

    assert [batch["n"].tolist() for batch in loader] == [[3, 2, 1, 0, 7, 8, 9]]


PROGRAM = """
    import sys
    import spiral_stream as sp

    catalog = sp.connect(sys.argv[1])
    assert catalog.tables() == ["t"]
    try:
        print(catalog.table("t").to_arrow()["n"].to_pylist())
    except sp.errors.CatalogError as error:
        print(error)
    print("tests.stream.sources.test_own" in sys.modules, "countdown_plugin" in sys.modules)
"""


def run(catalog: Path, path: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PROGRAM), str(catalog)],
        env={"PYTHONPATH": f"{path}:{Path(__file__).parents[3]}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def plugin(folder: Path, *kinds: str) -> Path:
    """An installed package with entry points."""
    (folder / "plugin-1.0.dist-info").mkdir(parents=True)
    (folder / "plugin-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: plugin\nVersion: 1.0\n")
    points = "".join(f"{kind} = countdown_plugin:Countdown\n" for kind in kinds)
    (folder / "plugin-1.0.dist-info" / "entry_points.txt").write_text(f"[spiral.sources]\n{points}")
    (folder / "countdown_plugin.py").write_text("from tests.stream.sources.test_own import Countdown\n")
    return folder


def test_a_catalog_never_causes_an_import_and_says_what_is_missing(source: Countdown, tmp_path: Path) -> None:
    sp.connect(str(tmp_path / "catalog")).register("t", source, identity="n")
    said, modules = run(tmp_path / "catalog", tmp_path).splitlines()

    assert "source kind 'test-countdown' is unknown. Import the module of its class, or install the package" in said
    assert modules == "False False"


def test_an_entry_point_leads_to_the_class(source: Countdown, tmp_path: Path) -> None:
    sp.connect(str(tmp_path / "catalog")).register("t", source, identity="n")

    read, modules = run(tmp_path / "catalog", plugin(tmp_path / "site", "test-countdown")).splitlines()
    assert (read, modules) == ("[3, 2, 1, 0, 7, 8, 9]", "True True")


def test_an_entry_point_to_something_else_is_refused(
    source: Countdown, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(plugin(tmp_path / "site", "test-other", "test-gone")))
    (tmp_path / "site" / "plugin-1.0.dist-info" / "entry_points.txt").write_text(
        "[spiral.sources]\ntest-other = countdown_plugin:Countdown\ntest-gone = not_there:X\n"
    )

    with pytest.raises(
        SourceError, match=r"'test-other' of plugin .* is no source of this KIND\. Name the entry point"
    ):
        source_from_json({"kind": "test-other", "path": "x"})
    with pytest.raises(
        SourceError, match=r"'test-gone' of plugin .* cannot be imported: .*not_there.*Repair or update"
    ):
        source_from_json({"kind": "test-gone", "path": "x"})


def subclass(name: str, **body: Any) -> type[Source]:
    def of_memory(self: Any) -> Reader:
        del self
        return MemoryReader(pa.table({"n": [1]}), [Unit("u", 1, 8, content_key("u"), (1,))], "")

    return dataclass(frozen=True)(type(name, (Source,), {"open": of_memory, "__module__": __name__, **body}))


def test_two_classes_with_one_kind_are_refused(source: Countdown, tmp_path: Path) -> None:
    other = subclass("Other", KIND="test-countdown", __annotations__={"path": str})
    try:
        with pytest.raises(SourceError, match=r"'test-countdown': two classes have it, .*Countdown and .*Other"):
            source_from_json(source_to_json(source))
        with pytest.raises(
            CatalogError, match=r"register 't': source kind 'test-countdown': two classes.*another KIND"
        ):
            sp.connect(str(tmp_path / "catalog")).register("t", source, identity="n")
    finally:
        del other
        gc.collect()  # so that other tests find one class


def test_a_class_that_is_defined_again_takes_the_place_of_the_former() -> None:
    first = subclass("Again", KIND="test-again")
    second = subclass("Again", KIND="test-again")

    assert type(source_from_json({"kind": "test-again"})) is second is not first


def test_a_relation_is_opened_by_the_class_as_it_was_defined_last(tmp_path: Path) -> None:
    catalog = sp.connect(str(tmp_path / "catalog"))
    first = subclass("Anew", KIND="test-anew")
    catalog.register("t", first(), identity="n")
    assert type(catalog.entry("t").source) is first

    second = subclass("Anew", KIND="test-anew")

    assert type(catalog.entry("t").source) is second


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ({}, r"it has no KIND of its own\. .*KIND: ClassVar\[str\] = \"lacking\""),
        ({"KIND": "lance"}, r"its KIND is 'lance', which is Lance's\."),
        ({"KIND": ""}, "it has no KIND of its own"),
    ],
)
def test_a_class_without_a_kind_of_its_own_is_refused(body: dict[str, Any], found: str, tmp_path: Path) -> None:
    with pytest.raises(CatalogError, match=f"register 't': Lacking: {found}"):
        sp.connect(str(tmp_path / "catalog")).register("t", subclass("Lacking", **body)())


def test_a_class_that_is_no_frozen_dataclass_is_refused(tmp_path: Path) -> None:
    @dataclass
    class Open(Source):
        KIND: ClassVar[str] = "test-open"

        def open(self) -> Reader:
            raise NotImplementedError

    with pytest.raises(CatalogError, match=r"Open: .*@dataclass\(frozen=True\)"):
        sp.connect(str(tmp_path / "catalog")).register("t", Open())


@dataclass(frozen=True)
class Holding(Source):
    KIND: ClassVar[str] = "test-holding"
    held: Any = field(default=None)

    def open(self) -> Reader:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (Path("x"), r"its field 'held' is PosixPath\('x'\), which JSON does not hold"),
        (float("nan"), "its field 'held' is nan, which JSON does not hold"),
        ((1, 2), r"opened again it is .*turn them into tuples in __post_init__"),
    ],
)
def test_fields_that_json_does_not_give_back_are_refused(value: object, found: str, tmp_path: Path) -> None:
    with pytest.raises(CatalogError, match=f"Holding: {found}|Holding: saved and {found}"):
        sp.connect(str(tmp_path / "catalog")).register("t", Holding(value))


def test_a_field_that_the_class_does_not_know_is_refused(source: Countdown) -> None:
    saved = json.loads(json.dumps(source_to_json(source)))

    with pytest.raises(SourceError, match=r"source test-countdown: .*'colour'. Register it again"):
        source_from_json({**saved, "colour": "red"})


class Broken(MemoryReader):
    """Breaks the laws in the way that a test asks for."""

    how = ""

    def fetch(self, rows: Any, columns: Any) -> pa.Table:
        found = super().fetch(rows, columns)
        return found.slice(0, max(0, len(found) - 1)) if self.how == "fetch" else found

    def scan(self, columns: Any, predicate: Any = None, units: Any = None) -> Any:
        return super().scan(
            columns, None if self.how == "predicate" else predicate, None if self.how == "units" else units
        )

    def units(self) -> Any:
        return [
            Unit(u.name, u.rows, 1, u.content_key[:30], u.groups) if self.how == "key" else u for u in super().units()
        ]


@dataclass(frozen=True)
class Lawless(Source):
    KIND: ClassVar[str] = "test-lawless"
    how: str

    def open(self) -> Reader:
        table = pa.table({"n": range(10), "s": [None if k % 3 else f"s{k}" for k in range(10)]})
        units = [Unit(name, 5, 8, content_key(name), (5,)) for name in "ab"]
        found = Broken(table, units, "")
        found.how = self.how
        return found


@pytest.mark.parametrize(
    ("how", "law"),
    [
        ("fetch", "fetch: .* rows, not"),
        ("predicate", "scan: columns .* where"),
        ("units", "scan: columns .* of units"),
        ("key", "a content key is not 32 hex digits"),
    ],
)
def test_a_source_that_breaks_a_law_is_found(how: str, law: str) -> None:
    check_source(Lawless(""))
    with pytest.raises(AssertionError, match=law):
        check_source(Lawless(how))


def test_a_content_key_that_does_not_change_is_found() -> None:
    with pytest.raises(AssertionError, match="rows changed, and no content key did"):
        check_source(Lawless(""), lambda: None)


CALLS: list[int] = []  # rows of each call that fetched texts


class CountingReader(MemoryReader):
    """Rows in memory, which count how many are asked for at a time."""

    def fetch(self, rows: Any, columns: Any) -> pa.Table:
        if "text" in columns:
            CALLS.append(len(rows))
        return super().fetch(rows, columns)


@dataclass(frozen=True)
class Texts(Source):
    """A thousand texts, too long to be kept as a narrow column."""

    KIND: ClassVar[str] = "test-texts"
    count: int = 1_000

    def open(self) -> Reader:
        unit = Unit("all", self.count, 200 * self.count, content_key("texts"), (self.count,))
        texts = [f"{row} " + "long " * 40 for row in range(self.count)]
        return CountingReader(pa.table({"n": range(self.count), "text": texts}), [unit], ".")


@pytest.mark.crossed
@pytest.mark.parametrize("framework", ["to_numpy", "to_torch", "to_jax"])
@pytest.mark.parametrize(
    ("batch_size", "rows", "most", "calls"),
    [(1, None, 64, 120), (8, None, 64, 25), (50, 10, 10, 100), (50, None, 50, 20)],
)
def test_columns_of_a_source_are_fetched_many_rows_at_a_time(
    tmp_path: Path, caches: Path, framework: str, batch_size: int, rows: int | None, most: int, calls: int
) -> None:
    """Small batches share a call, and `read_batch_size` holds for columns that are only copied."""
    if framework != "to_numpy":
        pytest.importorskip(framework.removeprefix("to_"))
    catalog = sp.connect(str(tmp_path / "catalog"))
    catalog.register("t", Texts(), identity="n")
    fields = {"text": sp.List("text")}
    plan = catalog.table("t").sample(order=sp.GlobalShuffle(seed=1)).collate(batch_size=batch_size, fields=fields)
    with plan.to_numpy() as plain:
        wanted = [each["text"] for each in plain]
    CALLS.clear()
    with getattr(plan, framework)(read_batch_size=rows) as stream:
        found = [each["text"] for each in stream]

    assert found == wanted
    assert sum(CALLS) == 1_000
    assert max(CALLS) <= most
    assert len(CALLS) <= calls


@settings(max_examples=15)
@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=4),
    rows=st.none() | st.integers(1, 70),
    stop=st.integers(0, 30),
)
def test_rows_that_are_fetched_ahead_change_no_batch(
    sizes: list[int], rows: int | None, stop: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Batches of any size, a loop that is left and goes on, and one batch by itself in between."""
    catalog = sp.connect(str(tmp_path_factory.mktemp("ahead")))
    catalog.register("t", Texts(120), identity="n")
    sampled = catalog.table("t").sample(order=sp.GlobalShuffle(seed=1))
    for size in sizes:
        plan = sampled.collate(batch_size=size, fields={"text": sp.List("text"), "n": sp.Stack("n")})
        with plan.to_numpy(read_batch_size=rows) as stream:
            wanted = [stream.batch(number)["text"] for number in range(len(stream))]
            found = []
            for batch in stream:
                found.append(batch["text"])
                if len(found) == stop:
                    break
            if 0 < stop < len(wanted):
                assert stream.batch(0)["text"] == wanted[0]
                found += [batch["text"] for batch in stream]
        assert found == wanted
