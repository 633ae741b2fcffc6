import json

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spiral_stream.errors import SourceError
from spiral_stream.sources.schema import columns, declared, need_column_names

PLAIN = st.sampled_from(
    [
        pa.int8(),
        pa.uint64(),
        pa.float16(),
        pa.float64(),
        pa.bool_(),
        pa.utf8(),
        pa.large_utf8(),
        pa.binary(),
        pa.date32(),
        pa.time64("us"),
        pa.timestamp("ms"),
        pa.timestamp("us", "Europe/Berlin"),
        pa.decimal128(10, 2),
        pa.null(),
    ]
)
KINDS = st.recursive(
    PLAIN,
    lambda inner: (
        inner.map(pa.list_)
        | inner.map(pa.large_list)
        | inner.map(lambda kind: pa.list_(kind, 3))
        | st.lists(inner, min_size=1, max_size=3).map(
            lambda kinds: pa.struct([(f"f{k}", kind) for k, kind in enumerate(kinds)])
        )
    ),
    max_leaves=5,
)


@given(st.lists(KINDS, min_size=1, max_size=4))
def test_a_schema_survives_json(kinds: list[pa.DataType]) -> None:
    schema = pa.schema([(f"c{k}", kind) for k, kind in enumerate(kinds)])
    kept = declared(schema, "Jsonl")

    assert columns(kept, "Jsonl") == schema
    assert declared(json.loads(json.dumps(kept)), "Jsonl") == kept


def test_a_dict_of_names_and_types_is_a_schema() -> None:
    kept = declared({"text": "string", "n": pa.int64(), "tags": ("list", "string")}, "Csv")
    assert columns(kept, "Csv") == pa.schema([("text", pa.utf8()), ("n", pa.int64()), ("tags", pa.list_(pa.utf8()))])


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({}, "Give a pyarrow.schema"),
        (["text"], "Give a pyarrow.schema"),
        ("text", "Give a pyarrow.schema"),
        ({"text": "strnig"}, "unknown type.*Give pyarrow types"),
        ({"text": ("lost", "string")}, "unknown type"),
        ({"text": 3}, "unknown type"),
        ({"": "string"}, "Give a pyarrow.schema"),
        ([("a", "string"), ("a", "string")], "two columns 'a'.*another name"),
        (pa.schema([("m", pa.map_(pa.utf8(), pa.int64()))]), "column 'm' is map.*Give a number"),
    ],
)
def test_what_is_no_schema_is_refused(schema: object, said: str) -> None:
    with pytest.raises(SourceError, match=f"Csv: .*{said}"):
        declared(schema, "Csv")


@pytest.mark.parametrize("name", ["*", "a`b", "a.b", "", "_rowid"])
def test_names_that_lance_does_not_read_are_refused(name: str) -> None:
    need_column_names(["**", "a *", "n"], "Jsonl", "Leave it out")
    with pytest.raises(SourceError, match=r"Jsonl: a column is called .*Leave it out"):
        need_column_names(["n", name], "Jsonl", "Leave it out")
