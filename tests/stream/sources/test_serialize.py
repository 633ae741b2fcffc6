import json
from pathlib import Path

import pyarrow as pa
import pytest

from spiral_stream import Arrow, ImageFolder, Lance, Parquet
from spiral_stream.errors import SourceError
from spiral_stream.sources import Csv, Jsonl, TextFiles, Tokens
from spiral_stream.sources.serialize import source_from_json, source_to_json


@pytest.mark.parametrize(
    "make",
    [
        lambda p: Lance(p, version=3),
        lambda p: Parquet(f"{p}/*.parquet", base=p),
        ImageFolder,
        lambda p: Jsonl(
            [p, f"{p}/x"], schema={"a": ("struct", ("b", ("list", "int64"))), "c": pa.timestamp("us", "UTC")}
        ),
        lambda p: Csv(p, column_names=["a", "b"], delimiter=";", base=p, on_error="skip"),
        lambda p: TextFiles(p, "*.md"),
        lambda p: Tokens([p], "int32", separator=5),
    ],
)
def test_a_source_survives_json(make: type, tmp_path: Path) -> None:
    source = make(str(tmp_path))

    assert source_from_json(json.loads(json.dumps(source_to_json(source)))) == source


def test_rows_in_memory_have_no_json_form() -> None:
    with pytest.raises(SourceError, match="Register it in a catalog"):
        source_to_json(Arrow(pa.table({"a": [1]})))


def test_an_unknown_kind_is_refused_with_those_there_are() -> None:
    with pytest.raises(
        SourceError,
        match=r"'vertex' is unknown.*in the group spiral\.sources; this version knows .*image_folder, ",
    ):
        source_from_json({"kind": "vertex"})


def test_unknown_fields_are_refused() -> None:
    with pytest.raises(SourceError, match="Register it again"):
        source_from_json({"kind": "lance", "uri": "t.lance", "branch": "main"})
