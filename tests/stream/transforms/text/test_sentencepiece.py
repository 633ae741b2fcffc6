"""Layouts of SentencePiece give the library's ids, whatever is joined, missing, or put before a text."""

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer

from spiral_stream import Tokenize
from spiral_stream.transforms.text import splitting
from spiral_stream.transforms.text.encoder import TextEncoder
from spiral_stream.transforms.text.encoding_engine import prove
from tests.fixtures.merge_lists import merge_lists
from tests.fixtures.vocabularies import (
    BYTES,
    METASPACE,
    MISTRAL,
    REPLACED,
    TEXTS,
    byte_level,
    sentencepiece,
    trained_sentencepiece,
)

PLAIN = Tokenize("text", tokenizer="t", special_tokens=False)
NO_BYTES = {"byte_fallback": False}
LAYOUTS: dict[str, dict[str, Any]] = {
    "mistral": MISTRAL,
    "gemma": {
        "normalizer": REPLACED,
        "pre_tokenizer": {
            "type": "Split",
            "pattern": {"String": " "},
            "behavior": "MergedWithPrevious",
            "invert": False,
        },
    },
    "first": {"normalizer": None, "pre_tokenizer": METASPACE},
    "always": {"normalizer": None, "pre_tokenizer": METASPACE | {"prepend_scheme": "always"}},
    "never": {"normalizer": None, "pre_tokenizer": METASPACE | {"prepend_scheme": "never"}},
    "parted": {"normalizer": None, "pre_tokenizer": METASPACE | {"prepend_scheme": "always", "split": True}},
    "parted, bare": {"normalizer": None, "pre_tokenizer": METASPACE | {"prepend_scheme": "never", "split": True}},
    "both": {"normalizer": MISTRAL["normalizer"], "pre_tokenizer": METASPACE},
}
LETTERS = st.text("ab▁ c\nxé", max_size=90)


@pytest.fixture(scope="module", autouse=True)
def narrow() -> Any:
    """Compare 600 code points and the signs about the blank's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(splitting, "COVERED", (range(600), range(0x2500, 0x2600)))
        patch.setattr(splitting, "WORDS", 2_000)
        yield


def both(tokenizer: dict[str, Any], texts: list[str]) -> tuple[list[list[int]], list[list[int]]]:
    encoder = TextEncoder(json.dumps(tokenizer).encode(), PLAIN)
    assert encoder.engine.startswith("compiled: "), encoder.engine
    values, offsets = encoder.encode(pa.array(texts, pa.large_utf8()))
    theirs = Tokenizer.from_str(json.dumps(tokenizer)).encode_batch_fast(texts, add_special_tokens=False)
    return [each.ids for each in theirs], [part.tolist() for part in np.split(values, offsets[1:-1])]


@settings(max_examples=25)
@given(
    merges=merge_lists("abc▁", 10),
    texts=st.lists(LETTERS, min_size=1, max_size=20),
    layout=st.sampled_from(sorted(LAYOUTS)),
    model=st.sampled_from([{}, NO_BYTES, NO_BYTES | {"fuse_unk": False}]),
)
def test_any_list_of_merges_gives_the_librarys_ids(
    merges: list[tuple[str, str]], texts: list[str], layout: str, model: dict[str, Any]
) -> None:
    tokenizer = sentencepiece(merges, "abc▁", LAYOUTS[layout], **model)
    theirs, found = both(tokenizer, [*texts, "", " ", "▁", "  a", "é x\n", "xé" * 40])

    assert theirs == found


@pytest.mark.parametrize("layout", sorted(LAYOUTS))
def test_a_trained_tokenizer_gives_the_librarys_ids(layout: str) -> None:
    texts = [*TEXTS, "", " ", "  ", " a  b ", "▁", "▁▁a▁", "a▁b c", "東京 " * 300, "\t\n x", "🙂", "x" * 500, "<0x41>"]
    theirs, found = both(trained_sentencepiece(TEXTS, 300, LAYOUTS[layout]), texts)

    assert theirs == found


@pytest.mark.parametrize("layout", ["parted", "parted, bare"])
def test_parts_that_are_tokens_are_taken_whole_where_merges_are_ignored(layout: str) -> None:
    merges = [("a", "b"), ("b", "c"), ("a", "bc"), ("▁", "a"), ("▁a", "bc")]
    for ignored in (False, True):
        tokenizer = sentencepiece(merges, "abc▁", LAYOUTS[layout], ignore_merges=ignored)
        theirs, found = both(tokenizer, ["abc", " abc", "abc abc", "▁abc", "  abcabc"])
        assert theirs == found


def test_a_document_with_an_added_token_goes_to_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = Tokenizer.from_str(json.dumps(trained_sentencepiece(TEXTS, 300, MISTRAL)))
    tokenizer.add_tokens([AddedToken("two words", normalized=True), AddedToken("[X]", lstrip=True, normalized=False)])
    content = tokenizer.to_str().encode()
    encoder = TextEncoder(content, PLAIN)
    seen: list[str] = []
    library = encoder.by_library
    monkeypatch.setattr(
        encoder, "by_library", lambda documents: seen.extend(documents.to_pylist()) or library(documents)
    )
    texts = ["a <s> b", "two words", "the▁two▁words", "two", "a [X] b", "fine", "also words"]
    values, offsets = encoder.encode(pa.array(texts))

    assert [part.tolist() for part in np.split(values, offsets[1:-1])] == [
        each.ids for each in tokenizer.encode_batch(texts, add_special_tokens=False)
    ]
    assert seen == ["a <s> b", "two words", "the▁two▁words", "a [X] b", "also words"]


@pytest.mark.parametrize(
    ("changes", "model", "reason"),
    [
        ({"normalizer": None}, {}, "its blanks stay what they are"),
        ({"normalizer": {"type": "NFKC"}}, {}, "its normalizer is NFKC; covered are Prepend and Replace of a blank"),
        ({"pre_tokenizer": {"type": "Whitespace"}}, {}, "its pre-tokenizer is Whitespace"),
        ({}, {"ignore_merges": True}, "ignore_merges"),
        ({}, {"byte_fallback": False, "unk_token": None}, "no token for characters outside its vocabulary"),
        ({}, {"vocab": {"a": 0, "<unk>": 1}}, "its vocabulary lacks '▁'"),
        ({}, {"vocab": {"▁": 0, "<unk>": 1, **{byte: 2 + n for n, byte in enumerate(BYTES[:99])}}}, "0x63"),
    ],
)
def test_other_layouts_are_not_covered_and_say_why(changes: dict[str, Any], model: dict[str, Any], reason: str) -> None:
    found = prove(json.dumps(sentencepiece([], "abc▁", MISTRAL, **model) | changes).encode())

    assert not found.covered
    assert reason in found.reason


@pytest.mark.parametrize("name", ["<unk>", "<0x41>"])
def test_merges_of_what_stands_for_characters_without_a_token_are_not_covered(name: str) -> None:
    found = prove(json.dumps(sentencepiece([(name, "▁")], "abc▁", MISTRAL)).encode())

    assert found.reason == f"its merges join '{name}', which stands for what has no token"


def test_an_added_token_of_blanks_alone_is_not_covered() -> None:
    tokenizer = Tokenizer.from_str(json.dumps(sentencepiece([], "abc▁", MISTRAL)))
    tokenizer.add_tokens([AddedToken("▁▁", normalized=True)])

    assert prove(tokenizer.to_str().encode()).reason == "its added token '▁▁' is nothing but blanks"


def test_a_byte_level_tokenizer_is_no_such_layout() -> None:
    assert prove(byte_level(300).to_str().encode()).covered
