import importlib.metadata
import itertools
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, normalizers

from spiral_stream import Tokenize
from spiral_stream.errors import DataError, PlanError, SourceError
from spiral_stream.transforms.text import encoder as encoder_room
from spiral_stream.transforms.text import encoding_engine as proof_room
from spiral_stream.transforms.text import splitting
from spiral_stream.transforms.text.encoder import TextEncoder
from spiral_stream.transforms.text.encoding_engine import PROOF, Proof
from tests.fixtures.vocabularies import END, LLAMA, PAD, TEXTS, by_hand, byte_level, data, framed, others

PLAIN = Tokenize("text", tokenizer="t", special_tokens=False)
FULL = Tokenize("text", tokenizer="t")
PIECES = [
    END,
    PAD,
    "<|endof",
    "'S",
    "'ſ",
    "'ll",
    " ",
    "\n",
    "\r\n",
    "\t",
    "a" * 300,
    " " * 700,
    "東京",
    "🙂",
    "\U0002070e",
    "é",
    "1234",
    "\x00",
]
PIECES += ["e\u0301", "\u1112\u1161\u11ab", "\ud558\u11ab", "\u0344", "\uf900", "a\u0323\u0307", "\u212b"]
DOCUMENTS = st.lists(
    st.lists(st.one_of(st.text(max_size=8), st.sampled_from(PIECES)), max_size=6).map("".join),
    max_size=8,
)


@pytest.fixture(scope="module", params=["gpt2", "qwen"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer that a proof covers, with added tokens, in a folder of its own."""
    made = byte_level() if request.param == "gpt2" else byte_level(ignore_merges=True, split=LLAMA)
    made.normalizer = normalizers.NFC() if request.param == "qwen" else None
    made.add_tokens([AddedToken("qux", lstrip=True, rstrip=True), AddedToken("lone", single_word=True)])
    place: Path = tmp_path_factory.mktemp(request.param)
    (place / "tokenizer.json").write_bytes(data(framed(made)))
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "gpt2":  # code points up to CJK signs; the rest is set apart, which saves seconds
            patch.setattr(splitting, "COVERED", (range(0x3100),))
        assert TextEncoder(place / "tokenizer.json", FULL).engine.startswith("compiled: equal on ")
    return place


def expected(tokenizer: Tokenizer, texts: list[str], *, special: bool = True) -> list[list[int]]:
    return [encoding.ids for encoding in tokenizer.encode_batch(texts, add_special_tokens=special)]


def lists(found: tuple[Any, Any]) -> list[list[int]]:
    values, offsets = found
    return [values[low:high].tolist() for low, high in itertools.pairwise(offsets)]


@given(texts=DOCUMENTS)
def test_ids_are_the_librarys_own_with_either_engine(folder: Path, texts: list[str]) -> None:
    texts = [*texts, *(f"{text}qux " for text in texts[:1]), *(f" lone{text}" for text in texts[:1])]
    path = folder / "tokenizer.json"
    theirs = expected(Tokenizer.from_file(str(path)), texts)
    column = pa.array(texts, pa.utf8())

    assert lists(encoder_of(path).encode(column)) == theirs
    assert lists(TextEncoder(path, FULL, fast=False).encode(column)) == theirs


ENCODERS: dict[Path, TextEncoder] = {}


def encoder_of(path: Path) -> TextEncoder:
    return ENCODERS.setdefault(path, TextEncoder(path, FULL))


@given(texts=DOCUMENTS, length=st.integers(4, 12), special=st.booleans(), ended=st.booleans())
def test_rows_are_cut_to_leave_room_for_what_stands_around(
    folder: Path, texts: list[str], length: int, special: bool, ended: bool
) -> None:
    path = folder / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(path))
    end = [tokenizer.token_to_id(END)] if ended else []
    tokenizer.enable_truncation(length - len(end))
    transform = Tokenize("text", "t", special_tokens=special, max_length=length, separator=END if ended else None)
    found = lists(TextEncoder(path, transform, fast=False).encode(pa.array(texts, pa.large_utf8())))

    assert found == [ids + end for ids in expected(tokenizer, texts, special=special)]


def test_many_documents_in_many_runs_keep_their_order(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoder_room, "CALL_BYTES", 200)
    monkeypatch.setattr(encoder_room, "CALL_ROWS", 3)
    path = folder / "tokenizer.json"
    texts = [TEXTS[n % 4][: n % 37] + (END if n % 5 == 0 else "") for n in range(200)]
    theirs = expected(Tokenizer.from_file(str(path)), texts)
    chunks = pa.chunked_array([pa.array(texts[:50]), pa.array(texts[50:])])

    assert lists(TextEncoder(path, FULL).encode(chunks)) == theirs
    sliced = pa.array(["none", *texts], pa.utf8()).slice(1)
    assert lists(TextEncoder(path, FULL).encode(sliced)) == theirs
    assert lists(TextEncoder(path, FULL).encode(pa.array([t.encode() for t in texts], pa.binary()))) == theirs


def test_threads_give_the_same(folder: Path) -> None:
    path = folder / "tokenizer.json"
    encoder = TextEncoder(path, FULL)  # its engine is built by whichever thread comes first
    parts = [pa.array([f"{n} {text}" for text in TEXTS] * 10) for n in range(16)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda part: lists(encoder.encode(part)), parts))

    alone = TextEncoder(path, FULL, fast=False)
    assert found == [lists(alone.encode(part)) for part in parts]


def test_other_threads_run_while_text_is_encoded(folder: Path) -> None:
    encoder = encoder_of(folder / "tokenizer.json")
    column = pa.array(["".join(TEXTS) * 60] * 50)
    encoder.encode(column.slice(0, 1))
    ticks, done = 0, threading.Event()

    def encode() -> None:
        encoder.encode(column)
        done.set()

    thread = threading.Thread(target=encode, name="test-encode")
    thread.start()
    while not done.wait(0.001):
        ticks += 1
    thread.join()

    assert ticks >= 3


@pytest.mark.parametrize("run", ["a", " ", "\n", "!", "1", "é", " \n", "\t "])
def test_very_long_runs_are_encoded_as_the_library_does(folder: Path, run: str) -> None:
    path = folder / "tokenizer.json"
    texts = ["before", run * 20_000 + "x", "after"]

    assert lists(encoder_of(path).encode(pa.array(texts))) == expected(Tokenizer.from_file(str(path)), texts)


@pytest.mark.parametrize(("kind", "tokenizer"), others().items())
def test_tokenizers_that_are_not_covered_go_to_their_own_library(kind: str, tokenizer: Tokenizer) -> None:
    encoder = TextEncoder(data(tokenizer), FULL)
    texts = [*TEXTS, "", f"a{END}b", " "]

    assert encoder.engine.startswith("tokenizers: its ") or kind == "normalized"
    assert lists(encoder.encode(pa.array(texts))) == expected(tokenizer, texts)


def test_whole_words_that_no_merge_makes_are_encoded_as_the_library_does() -> None:
    tokenizer = by_hand([("a", "b"), ("b", "c"), ("a", "bc")], ignore_merges=True)
    encoder = TextEncoder(json.dumps(tokenizer).encode(), PLAIN)
    texts = ["abc", "xabc", "abc abc"]

    assert encoder.engine.startswith("compiled: ")
    assert lists(encoder.encode(pa.array(texts))) == expected(Tokenizer.from_str(json.dumps(tokenizer)), texts)


def test_code_points_set_apart_go_to_the_library(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder / "tokenizer.json"
    apart = Proof(True, "", ((0x61, 0x62), (0x1F642, 0x10FFFF)), {})
    monkeypatch.setattr(encoder_room, "proof_next_to", lambda *_: apart)
    encoder = TextEncoder(path, PLAIN)
    seen: list[str] = []
    library = encoder.by_library
    monkeypatch.setattr(
        encoder, "by_library", lambda documents: seen.extend(documents.to_pylist()) or library(documents)
    )
    texts = ["xa", "xyz", "🙂", "é", "", "(b)", "[x]", f"x{PAD}", "xquxx", "\U0010ffff"]
    found = lists(encoder.encode(pa.array(texts)))

    assert found == expected(Tokenizer.from_file(str(path)), texts, special=False)
    assert seen == ["xa", "🙂", "(b)", f"x{PAD}", "xquxx", "\U0010ffff"]


def test_a_kept_proof_is_used_until_a_version_changes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder / "tokenizer.json"
    kept = (folder / PROOF).read_bytes()
    proofs: list[bytes] = []

    def proved(data: bytes) -> Proof:
        proofs.append(data)
        return Proof(False, "seen", (), proof_room.installed_versions())

    monkeypatch.setattr(proof_room, "prove", proved)
    assert TextEncoder(path, FULL).engine.startswith("compiled")
    assert proofs == []

    monkeypatch.setattr(importlib.metadata, "version", lambda _package: "99")
    try:
        assert TextEncoder(path, FULL).engine == "tokenizers: seen"
        assert TextEncoder(path, FULL).engine == "tokenizers: seen"
        assert proofs == [path.read_bytes()]
        (folder / PROOF).write_text("{")
        assert TextEncoder(path, FULL).engine == "tokenizers: seen"
        assert len(proofs) == 2
    finally:
        (folder / PROOF).write_bytes(kept)
    assert sorted(each.name for each in folder.iterdir()) == [PROOF, "tokenizer.json"]


def test_the_digest_covers_content_and_options_only() -> None:
    content, other = data(byte_level(300)), data(byte_level(310))
    digest = TextEncoder(content, FULL).digest

    assert digest == TextEncoder(content, Tokenize("body", tokenizer="renamed"), fast=False).digest
    options = [{"special_tokens": False}, {"max_length": 9}, {"separator": END}, {"separator": PAD}]
    digests = [TextEncoder(content, Tokenize("text", "t", **each)).digest for each in options]  # type: ignore[arg-type]
    assert len({digest, TextEncoder(other, FULL).digest, *digests}) == 6


def test_ids_take_the_narrowest_integer_that_holds_the_vocabulary() -> None:
    tokenizer = json.loads(byte_level(300).to_str())
    assert TextEncoder(json.dumps(tokenizer).encode(), FULL).dtype == np.uint16

    entry = tokenizer["added_tokens"][0]
    tokenizer["model"]["vocab"] |= {f"filler{n}": n for n in range(300, 65_536)}
    assert TextEncoder(json.dumps(tokenizer).encode(), FULL).dtype == np.uint16
    tokenizer["added_tokens"].append(entry | {"id": 65_536, "content": "<|last|>"})
    encoder = TextEncoder(json.dumps(tokenizer).encode(), FULL, fast=False)
    assert encoder.dtype == np.uint32
    assert lists(encoder.encode(pa.array(["<|last|>"]))) == [[65_536]]


def test_no_documents_and_empty_documents() -> None:
    tokenizer = framed(byte_level(300))
    end, pad = tokenizer.token_to_id(END), tokenizer.token_to_id(PAD)
    encoder = TextEncoder(data(tokenizer), Tokenize("text", "t", separator=PAD), fast=False)

    values, offsets = encoder.encode(pa.array([], pa.utf8()))
    assert (values.dtype, values.tolist(), offsets.dtype, offsets.tolist()) == (np.uint16, [], np.int64, [0])
    assert lists(encoder.encode(pa.chunked_array([], pa.utf8()))) == []
    assert lists(encoder.encode(pa.array(["", ""]))) == [[pad, end, pad]] * 2
    assert lists(TextEncoder(data(tokenizer), PLAIN, fast=False).encode(pa.array(["", ""]))) == [[], []]


def test_truncation_and_padding_that_a_file_asks_for_are_not_done() -> None:
    tokenizer = byte_level(300)
    plain = expected(tokenizer, ["a long text", "b"])
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(length=64)

    assert lists(TextEncoder(data(tokenizer), FULL, fast=False).encode(pa.array(["a long text", "b"]))) == plain


def test_bad_options_are_refused_when_the_tokenizer_is_read() -> None:
    content = data(framed(byte_level(300)))
    with pytest.raises(
        PlanError, match=r"separator '</s>' is no token .* special tokens are <\|endoftext\|>, <\|pad\|>\. Name"
    ):
        TextEncoder(content, Tokenize("text", "t", separator="</s>"))
    with pytest.raises(PlanError, match=r"max_length is 3, but .* already take 3. Give at least 4"):
        TextEncoder(content, Tokenize("text", "t", separator=END, max_length=3))
    twice = json.loads(content)
    twice["post_processor"]["single"].append({"Sequence": {"id": "A", "type_id": 0}})
    with pytest.raises(PlanError, match=r"more than put special tokens around .* Pass special_tokens=False"):
        TextEncoder(json.dumps(twice).encode(), FULL)


def test_bad_rows_are_named() -> None:
    encoder = TextEncoder(data(byte_level(300)), FULL, fast=False)
    with pytest.raises(DataError, match=r"the text is null. Filter nulls out") as null:
        encoder.encode(pa.array(["a", "b", None, None]))
    assert null.value.row == 2
    with pytest.raises(DataError, match=r"byte 0xFF at byte offset 3 .* Re-encode it, or filter the row out") as bytes_:
        encoder.encode(pa.array([b"a", b"abc\xff", b"\xff"], pa.binary()))
    assert bytes_.value.row == 1
    buffers = pa.array([b"fine", b"\xed\xa0\x80"], pa.binary()).buffers()
    with pytest.raises(DataError, match=r"byte 0xED at byte offset 0") as text:
        encoder.encode(pa.Array.from_buffers(pa.utf8(), 2, buffers))
    assert text.value.row == 1
    with pytest.raises(DataError, match=r"a column of int64. Give one of text"):
        encoder.encode(pa.array([1]))


def test_bad_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"No such file.* Give the path of a tokenizer.json"):
        TextEncoder(tmp_path / "none.json", FULL)
    (tmp_path / "bad.json").write_text('{"model": 1}')
    with pytest.raises(SourceError, match=r"bad.json: not of the tokenizers library .* Give the tokenizer.json that"):
        TextEncoder(tmp_path / "bad.json", FULL)
