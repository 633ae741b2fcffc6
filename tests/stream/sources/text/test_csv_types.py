"""What a column of texts becomes says all that the texts say, or is refused with the way out."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import spiral_stream as sp
from spiral_stream.errors import SourceError
from spiral_stream.sources import Csv, Jsonl, Refused
from tests.fixtures.imports import rows_of

NULLS = {"", "NA", "null", "nan", "NaN"}
DIGITS = st.text("0123456789", min_size=1, max_size=22)
TEXTS = st.one_of(
    DIGITS,
    DIGITS.map(lambda text: f"-{text}"),
    DIGITS.map(lambda text: f"+{text}"),
    st.text("0123456789abcdefABCDEF", min_size=1, max_size=6).map(lambda text: f"0x{text}"),
    st.integers(-(1 << 66), 1 << 66).map(str),
    st.sampled_from([1 << 53, 1 << 63, 1 << 64]).flatmap(lambda at: st.integers(at - 2, at + 2)).map(str),
    st.floats(allow_nan=False).map(str),
    st.tuples(DIGITS, DIGITS).map(".".join),
    st.tuples(DIGITS, st.integers(-400, 400)).map(lambda parts: f"{parts[0]}e{parts[1]}"),
    st.sampled_from(["true", "False", "TRUE", "0", "1", "inf", "-Infinity", "1.", ".5", "2024-01-05", "12:00:00", "x"]),
    st.sampled_from(sorted(NULLS)),
)
FEW = st.one_of(TEXTS, st.integers(0, 30).map(str), st.sampled_from(["0.5", "1.5", "-2.25"]))
COLUMN = st.one_of(*(st.lists(each, min_size=1, max_size=8) for each in (TEXTS, FEW, st.integers(0, 1 << 64).map(str))))


def says_the_same(value: Any, text: str) -> bool:
    """Whether a value of a column says all that its text says."""
    if value is None:
        return text in NULLS
    if isinstance(value, str):
        return value == text
    if isinstance(value, bool):
        return text.lower() == str(value).lower()
    if isinstance(value, int):
        return text == str(value)
    digits = text.lstrip("+-")
    zeros = digits[:1] == "0" and digits[1:2].isdigit()
    whole = digits.isdigit() and int(text) != value
    endless = value in (float("inf"), float("-inf")) and "inf" not in text.lower()
    return float(text) == value and not (zeros or whole or endless or (text[0] == "+" and digits.isdigit()))


def written(path: Path, texts: list[str], delimiter: str = ",") -> Path:
    path.write_text(f"z{delimiter}v\n" + "".join(f"0{delimiter}{text}\n" for text in texts))
    return path


def refusal(read: Callable[[], object]) -> str | None:
    """What an error says; None if there is none."""
    try:
        read()
    except SourceError as error:
        return str(error)
    return None


@given(texts=COLUMN, delimiter=st.sampled_from(",\t;"), quoted=st.booleans())
@example(["0012"], ",", False)
@example(["0x1F"], ",", True)
@example(["18446744073709551615", "1"], ",", False)
@example(["1.5", "9007199254740993"], ",", False)
@example(["+4917012345"], "\t", False)
@example(["true", "1"], ",", False)
def test_every_value_says_what_its_text_says(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], delimiter: str, quoted: bool
) -> None:
    path = written(tmp_path_factory.mktemp("csv") / "a.csv", texts, delimiter)
    if quoted:
        path.write_text(f"z{delimiter}v\n" + "".join(f'0{delimiter}"{text}"\n' for text in texts))

    found = rows_of(Csv(path, delimiter=delimiter))["v"].to_pylist()

    assert [pair for pair in zip(found, texts, strict=True) if not says_the_same(*pair)] == []


@given(first=COLUMN, later=COLUMN)
@example(["1"], ["0012"])
@example(["1"], ["0x1F"])
@example(["1.5"], ["9007199254740993"])
@example(["true"], ["1"])
@example(["18446744073709551615"], ["-1"])
def test_a_later_row_says_what_its_text_says_or_is_refused_with_the_way_out(
    tmp_path_factory: pytest.TempPathFactory, first: list[str], later: list[str]
) -> None:
    folder = tmp_path_factory.mktemp("csv")
    source = Csv(written(folder / "a.csv", first))
    schema = source.import_schema(source.import_units())
    other = Csv(written(folder / "b.csv", later))
    [unit] = other.import_units()
    refused = refusal(lambda: list(other.import_rows(unit, schema, Refused(unit))))
    if refused is not None:
        assert "Give the columns: schema=" in refused
        return
    batches = list(other.import_rows(unit, schema, Refused(unit)))
    found = pa.Table.from_batches(batches, schema)["v"].to_pylist()
    assert [pair for pair in zip(found, later, strict=True) if not says_the_same(*pair)] == []


@pytest.mark.parametrize(
    ("texts", "kind"),
    [
        (["0012", "7"], pa.utf8()),
        (["0x1F"], pa.utf8()),
        (["1", "18446744073709551615"], pa.uint64()),
        (["-1", "18446744073709551615"], pa.utf8()),
        (["18446744073709551616"], pa.utf8()),
        (["1.5", "9007199254740993"], pa.utf8()),
        (["1.5", "2"], pa.float64()),
        (["0", "10", "-20"], pa.int64()),
        (["0.5", "-0.25", "1e-05"], pa.float64()),
        ([" 12", "7"], pa.int64()),
        (["2024-01-05"], pa.utf8()),
    ],
)
def test_the_type_is_the_narrowest_that_keeps_the_texts(tmp_path: Path, texts: list[str], kind: pa.DataType) -> None:
    assert rows_of(Csv(written(tmp_path / "a.csv", texts))).schema.field("v").type == kind


def test_files_agree_on_a_type_that_keeps_the_texts_of_all(tmp_path: Path) -> None:
    written(tmp_path / "a.csv", ["5"])
    written(tmp_path / "b.csv", [str((1 << 64) - 1)])
    assert rows_of(Csv(tmp_path))["v"].to_pylist() == [5, (1 << 64) - 1]
    written(tmp_path / "c.csv", ["-1"])
    assert rows_of(Csv(tmp_path))["v"].to_pylist() == ["5", str((1 << 64) - 1), "-1"]
    written(tmp_path / "d.csv", ["0.5"])
    assert rows_of(Csv(tmp_path))["v"].to_pylist()[-1] == "0.5"


def test_identities_keep_their_digits(tmp_path: Path) -> None:
    """Three hashes of 64 bits that are one double, as pandas' and DuckDB's users know."""
    hashes = [str(0xCBF29CE484222325 + k) for k in range(3)]
    (tmp_path / "a.csv").write_text("id,zip\n" + "".join(f"{each},0{k}017\n" for k, each in enumerate(hashes)))
    catalog = sp.connect(str(tmp_path / "catalog"))
    catalog.register("a", sp.sources.Csv(tmp_path / "a.csv"), identity="id")
    table = catalog.table("a").to_arrow()
    assert [str(each) for each in table["id"].to_pylist()] == hashes
    assert table["zip"].to_pylist() == ["00017", "01017", "02017"]


WHOLE = st.one_of(
    st.integers(-(1 << 65), 1 << 65),
    st.sampled_from([1 << 53, 1 << 63, 1 << 64]).flatmap(lambda at: st.integers(at - 2, at + 2)),
    st.integers(-9, 9),
)
JSON_COLUMN = st.lists(st.one_of(WHOLE, st.floats(allow_nan=False, allow_infinity=False)), min_size=1, max_size=5)


@given(values=JSON_COLUMN, nested=st.booleans())
@example([1.5, (1 << 53) + 1], False)
@example([1 << 64], True)
def test_json_keeps_every_digit_of_integers_or_says_the_way_out(
    tmp_path_factory: pytest.TempPathFactory, values: list[Any], nested: bool
) -> None:
    path = tmp_path_factory.mktemp("json") / "a.jsonl"
    rows = [{"v": {"in": [each]}} if nested else {"v": each} for each in values]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    refused = refusal(lambda: rows_of(Jsonl(path)))
    if refused is not None:
        assert "schema=" in refused
        return
    found = rows_of(Jsonl(path))["v"].to_pylist()
    found = [each["in"][0] for each in found] if nested else found
    assert [(one, other) for one, other in zip(found, values, strict=True) if int(one) != int(other)] == []


def test_an_integer_that_no_64_bits_hold_is_read_as_it_is_declared(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"v": 18446744073709551616}\n')
    with pytest.raises(SourceError, match=r'declare it as \("decimal128", 38, 0\)'):
        rows_of(Jsonl(tmp_path / "a.jsonl"))
    [value] = rows_of(Jsonl(tmp_path / "a.jsonl", schema={"v": ("decimal128", 38, 0)}))["v"].to_pylist()
    assert value == 1 << 64
