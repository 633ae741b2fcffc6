"""Ninety lines that people type by habit: each works, or its error ends with the way out."""

import os
import tomllib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import spiral_stream as spiral
from spiral_stream import habits
from tests.test_documents import DOCS, blocks

ROOT = Path(__file__).parents[1]
LINES = tomllib.loads((ROOT / "tests" / "data" / "typed" / "lines.toml").read_text())["line"]
TABLE = DOCS / "benchmarks" / "first_hour_2026-11-24.md"
RAW = {"next(stream)": "a stream that had __next__ would pass for an iterator, which ends; a loop begins a pass"}


def double(row: dict[str, Any]) -> dict[str, Any]:
    return {"double": row["width"] * 2}


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """The names that the lines have: those of the reference's examples, and what people call them."""
    before = Path.cwd()
    os.chdir(tmp_path_factory.mktemp("typed"))
    names: dict[str, Any] = {"__name__": "typed", "torch": torch, "double": double}
    (setup,) = (each.code for each in blocks(DOCS / "reference" / "index.md") if each.language == "python")
    exec(compile(setup, "reference/index.md", "exec"), names)
    labels = names["pa"].table({"label": [0, 1, 2], "name": ["fox", "owl", "elk"]})
    names["catalog"].register("labels", spiral.Arrow(labels), identity="label")
    fields = {"width": spiral.Stack("width")}
    yield {**names, "r": names["photos"], "names": names["catalog"].table("labels"), "fields": fields}
    os.chdir(before)


@pytest.mark.filterwarnings("ignore::spiral_stream.SpiralWarning")
@pytest.mark.parametrize("line", LINES, ids=lambda line: line["typed"])
def test_a_line_works_or_says_the_way_out(line: dict[str, str], begun: dict[str, Any]) -> None:
    with begun["plan"].to_torch() as stream:
        names = {**begun, "stream": stream}
        if line["now"] == "works":
            eval(line["typed"], names)
            return
        with pytest.raises((spiral.SpiralError, AttributeError, TypeError)) as raised:
            eval(line["typed"], names)

    said = str(raised.value)
    assert line["now"] in said
    if line["typed"] not in RAW:
        assert not any(
            raw in said for raw in ("has no attribute", "object is not", "unexpected keyword", "positional arg")
        )
        assert ": " in said


def test_there_are_ninety_lines_and_the_table_has_each() -> None:
    table = TABLE.read_text()
    missing = [line["typed"] for line in LINES if f"| `{line['typed'].replace('|', chr(92) + '|')}` |" not in table]

    assert len(LINES) == len({(line["peer"], line["typed"]) for line in LINES}) == 90
    assert missing == []


@pytest.mark.parametrize(
    ("words", "ours"),
    [
        (habits.OF_ROWS, spiral.Relation),
        (habits.OF_STREAMS, spiral.PreparedStream),
        (habits.OF_CATALOG, spiral.Catalog),
        (habits.OF_DOOR, spiral),
    ],
    ids=["rows", "streams", "catalog", "door"],
)
def test_no_word_of_another_library_is_one_of_ours(words: dict[str, str], ours: object) -> None:
    assert [name for name in words if name in dir(ours)] == []
    assert [way for way in words.values() if way[0] != way[0].upper()] == []


@given(name=st.text("abcdefghijklmnopqrstuvwxyz_", min_size=1, max_size=12))
def test_any_other_name_is_an_attribute_error_that_names_it(name: str, begun: dict[str, Any]) -> None:
    for owner in (begun["r"], begun["stream"], begun["catalog"], spiral):
        if not hasattr(type(owner), name) and name not in dir(owner):
            with pytest.raises(AttributeError, match=name):
                getattr(owner, name)


def test_a_catalog_has_no_items_and_names_table(begun: dict[str, Any]) -> None:
    for take in (lambda catalog: catalog["photos"], iter, lambda catalog: "photos" in catalog):
        with pytest.raises(TypeError):
            take(begun["catalog"])
    with pytest.raises(TypeError, match=r"Take catalog.table\('photos'\); .tables\(\) lists them"):
        begun["catalog"]["photos"]


def test_a_property_that_fails_says_why_itself(begun: dict[str, Any]) -> None:
    class Broken(type(begun["stream"])):  # type: ignore[misc]
        @property
        def rows(self) -> int:
            msg = "the reason"
            raise AttributeError(msg)

    stream = object.__new__(Broken)
    with pytest.raises(AttributeError, match="the reason"):
        _ = stream.rows
    with suppress(AttributeError):
        stream.close()
