"""Content of messages that is now a text and now a list of parts: one type, whatever comes first."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import spiral_stream as sp
from spiral_stream.errors import SourceError
from tests.fixtures.examples import few
from tests.fixtures.imported_rows import rows_of
from tests.stream.sources.mds.test_source import shard
from tests.stream.sources.tar.test_webdataset import members

TEXTS = st.text(max_size=6) | st.sampled_from(['"content": "x"', "\\ud83d", "]", "0.1"])
PART = st.one_of(
    st.fixed_dictionaries({"type": st.just("text"), "text": TEXTS}),
    st.fixed_dictionaries({"type": st.just("image_url"), "image_url": st.fixed_dictionaries({"url": TEXTS})}),
)
CONTENT = st.none() | TEXTS | st.lists(PART, max_size=3)
MESSAGE = st.fixed_dictionaries({"role": st.just("user"), "content": CONTENT})
CHATS = st.lists(
    st.fixed_dictionaries(
        {"messages": st.lists(MESSAGE, max_size=3), "score": st.floats(allow_nan=False, allow_infinity=False)}
    ),
    min_size=1,
    max_size=8,
)
PARTS = ("list", ("struct", ("type", "string"), ("text", "string"), ("image_url", ("struct", ("url", "string")))))
SCHEMA = {"messages": ("list", ("struct", ("role", "string"), ("content", PARTS))), "score": "double"}


def in_parts(content: Any) -> Any:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def contents(rows: Any) -> list[Any]:
    """The content of all messages, without the fields of a part that are null."""
    return [[without_nulls(message["content"]) for message in row["messages"] or []] for row in rows]


def without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: without_nulls(each) for name, each in value.items() if each is not None}
    return [without_nulls(each) for each in value] if isinstance(value, list) else value


def both_forms(rows: list[Any]) -> tuple[bool, bool]:
    all_of = [message["content"] for row in rows for message in row["messages"]]
    return any(isinstance(each, str) for each in all_of), any(isinstance(each, list) for each in all_of)


@few(60, 600)
@given(rows=CHATS, is_array=st.booleans())
def test_texts_and_parts_are_read_as_parts(
    tmp_path_factory: pytest.TempPathFactory, rows: list[Any], is_array: bool
) -> None:
    path = tmp_path_factory.mktemp("chats") / "chats.json"
    path.write_text(json.dumps(rows) if is_array else "".join(json.dumps(row) + "\n" for row in rows))
    wanted = contents([{"messages": [{"content": in_parts(m["content"])} for m in row["messages"]]} for row in rows])

    declared = rows_of(sp.sources.Jsonl(path, schema=SCHEMA))
    assert contents(declared.to_pylist()) == wanted
    assert declared["score"].to_pylist() == [row["score"] for row in rows]
    found = rows_of(sp.sources.Jsonl(path)).to_pylist()
    has_texts, has_lists = both_forms(rows)
    plain = contents(rows) if not (has_texts and has_lists) else wanted
    if has_texts or has_lists:
        assert contents(found) == plain


@few(30, 300)
@given(rows=CHATS.filter(lambda rows: both_forms(rows) == (True, True)))
def test_json_in_tars_and_mds_is_read_alike(tmp_path_factory: pytest.TempPathFactory, rows: list[Any]) -> None:
    folder = tmp_path_factory.mktemp("chats")
    docs = [json.dumps(row).encode() for row in rows]
    members(folder / "a.tar", [(f"{at}.json", doc) for at, doc in enumerate(docs)])
    data, entry = shard([[doc] for doc in docs], {"m": "json"})
    (folder / "shard.00000.mds").write_bytes(data)
    (folder / "index.json").write_text(json.dumps({"version": 2, "shards": [entry]}))
    wanted = contents([{"messages": [{"content": in_parts(m["content"])} for m in row["messages"]]} for row in rows])

    for source, name in ((sp.sources.WebDataset, "json_messages"), (sp.sources.Mds, "m_messages")):
        for schema in (None, {name: SCHEMA["messages"]}):
            found = rows_of(source(folder, schema=schema))[name].to_pylist()
            assert contents([{"messages": messages} for messages in found]) == wanted


def test_a_late_form_is_read_or_refused_by_name(tmp_path: Path) -> None:
    def written(first: Any, last: Any) -> Path:
        rows = [json.dumps({"messages": [{"role": "user", "content": content}]}) for content in (first, last)]
        path = tmp_path / "chats.jsonl"
        path.write_text(rows[0] + " " * (4 << 20) + "\n" + rows[1] + "\n")  # the second is not looked at
        return path

    part = {"type": "text", "text": "hi"}
    late_text = rows_of(sp.sources.Jsonl(written([part], "ho")))
    assert contents(late_text.to_pylist())[1] == [[{"type": "text", "text": "ho"}]]
    path = written("hi", [part])
    with pytest.raises(
        SourceError, match=r"line 2: column 'messages\[\]\.content' holds .* \(list\), and is string\. .*schema="
    ):
        rows_of(sp.sources.Jsonl(path))
    assert contents(rows_of(sp.sources.Jsonl(path, schema={"messages": SCHEMA["messages"]})).to_pylist()) == [
        [[part]],
        [[part]],
    ]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"content": "a"}, {"content": ["a", "b"]}),
        ({"content": "a"}, {"content": [{"x": 1}]}),
        ({"tags": "a"}, {"tags": []}),
    ],
)
def test_other_mixtures_are_refused_by_name(tmp_path: Path, first: Any, second: Any) -> None:
    for rows in ((first, second), (second, first)):
        path = tmp_path / "a.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        with pytest.raises(
            SourceError, match=r"line 2: column '(content|tags)' holds .*before\. Give the columns: schema="
        ):
            rows_of(sp.sources.Jsonl(path))


def test_numbers_beside_a_text_keep_their_digits(tmp_path: Path) -> None:
    parts = '[{"type": "text", "text": "a"}]'
    digits = "0.12345678901234567890123"
    path = tmp_path / "a.jsonl"
    path.write_text(
        f'{{"content": "a", "n": 0.1, "i": 18446744073709551615}}\n{{"content": {parts}, "n": {digits}, "i": 1}}\n'
    )
    found = rows_of(sp.sources.Jsonl(path))
    assert found["n"].to_pylist() == [0.1, float(digits)]
    assert found["i"].to_pylist() == [2**64 - 1, 1]
    schema = {"content": PARTS, "n": ("decimal128", 30, 23)}
    path.write_text(f'{{"content": "a", "n": 0.5}}\n{{"content": {parts}, "n": {digits}}}\n')
    assert [str(each) for each in rows_of(sp.sources.Jsonl(path, schema=schema))["n"].to_pylist()] == [
        "0.50000000000000000000000",
        digits,
    ]
    path.write_text(f'{{"content": "a", "n": {digits}}}\n')
    with pytest.raises(SourceError, match=r"a\.jsonl, line 1: "):
        rows_of(sp.sources.Jsonl(path, schema=schema))
