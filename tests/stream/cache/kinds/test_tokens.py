"""What is kept of a text column: each row's tokens, end to end; unreadable rows are refused, whatever stands beside them."""

import itertools

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import spiral_stream as sp
from spiral_stream.cache.kinds import tokens
from spiral_stream.cache.kinds.tokens import TokenKind
from tests.fixtures.kinds import INVALID_UTF8, ByteEncoder, text_column

TEXTS = st.lists(st.one_of(st.none(), st.just(INVALID_UTF8), st.text(max_size=30)), max_size=40)


@settings(max_examples=60)
@given(
    texts=TEXTS,
    cuts=st.lists(st.integers(0, 40), max_size=3),
    piece_bytes=st.integers(1, 64),
    dtype=st.sampled_from([np.uint16, np.uint32]),
)
def test_every_row_is_its_own_tokens_or_refused(
    texts: list[str | bytes | None], cuts: list[int], piece_bytes: int, dtype: type
) -> None:
    encoder = ByteEncoder(dtype=dtype)
    whole = text_column(texts)
    borders = sorted({0, *(min(cut, len(texts)) for cut in cuts), len(texts)})
    chunks = [whole.slice(a, b - a) for a, b in itertools.pairwise(borders)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokens, "ENCODE_BYTES", piece_bytes)
        rows = TokenKind("r", "text", encoder).keep_rows(
            pa.table({"text": pa.chunked_array(chunks, pa.large_utf8())}), ""
        )

    payload = np.asarray(rows.payload)
    assert payload.dtype == dtype
    assert payload.nbytes == rows.sizes.sum()
    ends = np.cumsum(rows.sizes) // payload.itemsize
    for at, text in enumerate(texts):
        if isinstance(text, str):
            mine = payload[ends[at] - rows.sizes[at] // payload.itemsize : ends[at]]
            assert mine.tolist() == [256 + each for each in text.encode()]
            assert at not in rows.refused
        else:
            assert rows.sizes[at] == 0
            assert ("null" if text is None else "not UTF-8 (byte 3 is 0xe9)") in rows.refused[at]
    assert rows.source_bytes == sum(len(t.encode()) for t in texts if isinstance(t, str))


@pytest.mark.parametrize("kind", [pa.utf8(), pa.large_utf8(), pa.binary(), pa.large_binary(), pa.string_view()])
def test_every_type_of_text_gives_the_same_tokens(kind: pa.DataType) -> None:
    column = pa.chunked_array([pa.array(["", "grün", "b"], pa.utf8()).cast(kind)])
    rows = TokenKind("r", "text", ByteEncoder()).keep_rows(pa.table({"text": column}), "")

    assert rows.sizes.tolist() == [0, 10, 2]
    assert rows.refused == {}


def test_the_encoder_is_given_about_a_megabyte_at_a_time() -> None:
    sizes: list[int] = []

    class Watched(ByteEncoder):
        def encode(self, texts: pa.Array) -> tuple[np.ndarray, np.ndarray]:
            values, offsets = super().encode(texts)
            sizes.append(len(values))
            return values, offsets

    texts = pa.chunked_array([pa.array(["x" * 5_000_000, *["y" * 300_000] * 7])])
    TokenKind("r", "text", Watched()).keep_rows(pa.table({"text": texts}), "")

    assert sizes == [5_000_000, 900_000, 900_000, 300_000]


def test_reasons_of_refusal_show_the_way_out() -> None:
    column = pa.chunked_array([text_column([None, INVALID_UTF8])])
    refused = TokenKind("r", "text", ByteEncoder()).keep_rows(pa.table({"text": column}), "").refused

    assert refused[0] == "text: the text is null. Filter the row out (~col('text').is_null()), or fill it in"
    assert refused[1].endswith("(byte 3 is 0xe9). Write it again as UTF-8, or filter the row out")


def test_a_column_that_holds_no_text_is_an_error() -> None:
    with pytest.raises(
        sp.errors.SourceError, match=r"a column of int64 holds no text. Tokenize one of utf8, or cast it before"
    ):
        TokenKind("r", "text", ByteEncoder()).keep_rows(pa.table({"text": [1]}), "")


def test_a_fingerprint_covers_relation_column_and_encoder() -> None:
    encoders = [ByteEncoder(), ByteEncoder(1), ByteEncoder(dtype=np.uint32)]
    variants = [TokenKind(r, c, e).fingerprint for r in "ab" for c in ("text", "title") for e in encoders]

    assert len(set(variants)) == len(variants)
    assert TokenKind("a", "text", ByteEncoder()).fingerprint == variants[0]


def test_the_facts_are_what_the_fingerprint_covers() -> None:
    kind = TokenKind("docs", "text", ByteEncoder())

    assert kind.facts() == {
        "kind": ["tokens", 1],
        "relation": "docs",
        "column": "text",
        "encoder": "bytes-256-uint16",
        "item_bytes": 2,
    }
