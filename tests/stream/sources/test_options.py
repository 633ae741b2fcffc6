"""Options of a source as a command line gives them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, final

import pytest

from spiral_stream.errors import SourceError
from spiral_stream.sources import Csv, Jsonl, Source, Tokens, WebDataset
from spiral_stream.sources.detect import options_of, source_at


@pytest.mark.parametrize(
    ("kind", "given", "found"),
    [
        (Csv, ["delimiter=;"], {"delimiter": ";"}),
        (Csv, ['delimiter="1"', "quote=null"], {"delimiter": "1", "quote": None}),
        (Csv, ["delimiter=1"], {"delimiter": "1"}),
        (Csv, ['column_names=["a", "b"]', "newlines_in_values=false"], {"column_names": ["a", "b"], "newlines_in_values": False}),
        (Jsonl, ['schema={"n": "int64"}', "on_error=skip"], {"schema": {"n": "int64"}, "on_error": "skip"}),
        (Jsonl, ['references=["image"]', "base=/data=new"], {"references": ["image"], "base": "/data=new"}),
        (Tokens, ["separator=0", "dtype=uint32"], {"separator": 0, "dtype": "uint32"}),
        (WebDataset, ['columns={"jpg": "image"}', "key=last"], {"columns": {"jpg": "image"}, "key": "last"}),
    ],
)  # fmt: skip
def test_values_are_of_the_types_that_the_fields_take(
    kind: type[Source], given: list[str], found: dict[str, Any]
) -> None:
    assert options_of(kind, "path", given) == found


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            ["delimeter=;"],
            "'delimeter' is no option of csv; it has schema, column_names, delimiter, .*newlines_in_values",
        ),
        (["path=/x"], "'path' is no option of csv"),
        (["delimiter"], "'delimiter' is no name=value"),
        (["newlines_in_values=0"], "newlines_in_values=0: the value would be true or false"),
        (["column_names=a"], "column_names=a: the value would be a JSON list or null"),
        (["quote=a", "quote=b"], "quote is given twice"),
    ],
)
def test_what_is_no_option_is_refused_with_what_there_is(given: list[str], said: str) -> None:
    with pytest.raises(SourceError, match=said):
        options_of(Csv, "path", given)


def test_a_source_takes_its_options(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("a;b\n1;2\n")

    assert source_at(str(tmp_path / "rows.csv"), None, ["delimiter=;"]) == Csv(tmp_path / "rows.csv", delimiter=";")
    with pytest.raises(SourceError, match="delimiter"):
        source_at(str(tmp_path / "rows.csv"), None, ["delimiter=;;"])


@final
@dataclass(frozen=True)
class Odd(Source):
    """Its hints name what is not there."""

    KIND: ClassVar[str] = "odd"
    path: str
    level: "Missing" = None  # type: ignore[name-defined]  # noqa: F821

    def open(self) -> Any:
        raise NotImplementedError


def test_hints_that_cannot_be_read_take_any_value() -> None:
    assert options_of(Odd, "path", ["level=3"]) == {"level": 3}
    assert options_of(Odd, "path", ["level=high"]) == {"level": "high"}
