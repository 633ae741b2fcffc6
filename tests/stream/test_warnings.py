"""A warning names the line that called the library, by whatever way it came. Its one form: tests/test_house.py."""

import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial, wraps

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import spiral_stream as sp
from spiral_stream.errors import warn
from tests.fixtures import streams

SHUFFLED = sp.GlobalShuffle(seed=1)


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> sp.Catalog:
    made = streams.make_catalog(tmp_path_factory.mktemp("warnings"))
    made.register("plain", sp.Arrow(pa.table({"sample_id": np.arange(40), "v": [np.nan, 1.0] * 20})))
    return made


# ---- real warnings, from the public door


def alike(catalog: sp.Catalog) -> None:
    field = sp.Stack("image_ref", decode="jpeg", transforms=streams.RANDOM)
    catalog.table("lance").sample(order=SHUFFLED).collate(batch_size=4, fields={"a": field, "b": field})


def sorted_for_nothing(catalog: sp.Catalog) -> None:
    catalog.table("plain").sort("v").sample(order=SHUFFLED)


def mixed(catalog: sp.Catalog) -> None:
    plain = catalog.table("plain")
    sp.mix([sp.Stream("a", plain, proportion=0.5), sp.Stream("b", plain, proportion=0.7)])


def source(_: sp.Catalog) -> None:
    sp.sources.Source()  # type: ignore[abstract]  # as programs before 0.2 do


def nan(catalog: sp.Catalog) -> None:
    catalog.sql("SELECT sample_id FROM plain WHERE v >= 0.5").to_arrow()


def nothing_kept(catalog: sp.Catalog) -> None:
    fields = {"v": sp.Stack("v")}
    with catalog.table("plain").sample(order=SHUFFLED).collate(batch_size=4, fields=fields).to_numpy() as stream:
        stream.materialize(lambda _: None)


def no_batch(catalog: sp.Catalog) -> None:
    fields = {"v": sp.Stack("v")}
    with catalog.table("plain").sample(order=SHUFFLED).collate(batch_size=41, fields=fields).to_numpy() as stream:
        assert list(stream) == []


def a_rank_without_a_batch(catalog: sp.Catalog) -> None:
    fields = {"v": sp.Stack("v")}
    with catalog.table("plain").sample(order=SHUFFLED).collate(batch_size=20, fields=fields).to_numpy() as stream:
        for _ in stream.bind(rank=3, world_size=4):
            raise AssertionError


def files_left_out(catalog: sp.Catalog) -> None:
    folder = catalog.root.parent / "classes"
    (folder / "cat").mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (8, 8)).save(folder / "cat" / "1.png")
    (folder / "README").write_text("x")
    catalog.register("classes", sp.ImageFolder(str(folder)), replace=True)


def rows_left_out(catalog: sp.Catalog) -> None:
    file = catalog.root.parent / "rows.jsonl"
    file.write_text('{"sample_id": 1}\n{"sample_id": \n{"sample_id": 3}\n')
    catalog.register("lines", sp.sources.Jsonl(str(file), on_error="skip"), replace=True)


REAL = [
    alike,
    sorted_for_nothing,
    mixed,
    source,
    nan,
    nothing_kept,
    no_batch,
    a_rank_without_a_batch,
    files_left_out,
    rows_left_out,
]


def told(call: Callable[[], object]) -> list[warnings.WarningMessage]:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        call()
    return [each for each in found if issubclass(each.category, sp.SpiralWarning | DeprecationWarning)]


def called_here(call: Callable[[], object]) -> object:
    return call()


def in_a_context(call: Callable[[], object]) -> object:
    @contextmanager
    def opened() -> Iterator[None]:
        call()
        yield

    with ExitStack() as stack:
        return stack.enter_context(opened())


def in_a_thread(call: Callable[[], object]) -> object:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result()


def in_a_wrapper(call: Callable[[], object]) -> object:
    @wraps(call)
    def wrapped() -> object:
        return call()

    return wrapped()


@pytest.mark.crossed
@pytest.mark.parametrize("way", [called_here, in_a_context, in_a_thread, in_a_wrapper])
@pytest.mark.parametrize("warns", REAL, ids=lambda each: each.__name__)
def test_a_warning_names_the_line_that_called_the_library(
    catalog: sp.Catalog, warns: Callable[[sp.Catalog], None], way: Callable[..., object]
) -> None:
    found = told(partial(way, partial(warns, catalog)))
    first = warns.__code__.co_firstlineno
    lines = range(first, 1 + max(line for _, _, line in warns.__code__.co_lines() if line is not None))

    assert found
    assert {each.filename for each in found} == {__file__}
    assert {each.lineno for each in found} <= set(lines)


# ---- whatever stands between


OURS = [
    "spiral_stream",
    "spiral_stream.plan.verbs.mix",
    "contextlib",
    "threading",
    "concurrent.futures.thread",
    "typing",
]
CALLERS = [
    "__main__",
    "train",
    "spiral_streams",
    "spiral_assets.defs",
    "torch.utils.data",
    "contextlib2",
    "typing_extensions",
]


def chain(names: list[str], call: Callable[[], object]) -> Callable[[], object]:
    """A call through a function of each of some modules, the first is the outermost."""
    for name in reversed(names):
        space = {"__name__": name, "call": call}
        exec(compile("def through(call=call):\n    call()", f"<{name}>", "exec"), space)
        call = space["through"]  # type: ignore[assignment]  # a function
    return call


@given(names=st.lists(st.sampled_from([*OURS, *CALLERS]), max_size=12))
def test_the_caller_is_the_first_frame_outside_the_library(names: list[str]) -> None:
    found = told(chain([*names, "spiral_stream.room"], partial(warn, "it is so")))
    outside = [f"<{name}>" for name in names if name in CALLERS]

    assert [each.filename for each in found] == [outside[-1] if outside else __file__]
    assert [str(each.message) for each in found] == ["it is so"]
    assert [each.category for each in found] == [sp.SpiralWarning]


def test_where_nobody_called_the_library_names_its_own_line() -> None:
    def works() -> None:
        thread = threading.Thread(target=chain(["spiral_stream.room"], partial(warn, "it is so")))
        thread.start()
        thread.join()

    assert [each.filename for each in told(works)] == ["<spiral_stream.room>"]


def test_a_filter_by_module_meets_the_module_of_the_caller() -> None:
    call = chain(["train", "spiral_stream.room"], partial(warn, "it is so"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.filterwarnings("error", module="train")
        with pytest.raises(sp.SpiralWarning, match="it is so"):
            call()
        chain(["other", "spiral_stream.room"], partial(warn, "it is so"))()
