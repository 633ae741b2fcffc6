"""A proof is kept next to its tokenizer and believed only as it was written; what it sets apart is found in any text.

That both engines then encode alike is in `test_encoder`.
"""

import json
import os
import threading
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from spiral_stream.transforms.text import _encode
from spiral_stream.transforms.text import encoding_engine as room
from spiral_stream.transforms.text.byte_pairs import merges_of
from spiral_stream.transforms.text.encoding_engine import (
    MEMO_BYTES,
    PROOF,
    STEPS,
    Core,
    Proof,
    proof_next_to,
    prove,
    save,
    texts_apart,
)
from spiral_stream.transforms.text.splitting import GPT2, words_of
from tests.fixtures.vocabularies import byte_level, data, others

POINTS = st.integers(0, 0x2FF).filter(lambda point: not 0xD800 <= point < 0xE000)
TOKENS = st.text("a?|.\\[^é<", min_size=1, max_size=3)
DATA = b"{}"


def proof(*ranges: tuple[int, int], **changes: Any) -> Proof:
    return Proof(
        **{"covered": True, "reason": "shown", "apart": ranges, "versions": room.installed_versions()} | changes
    )


@pytest.fixture
def proved(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The tokenizers that were proved; the proof itself takes seconds, and `test_encoder` makes a real one."""
    found: list[bytes] = []
    monkeypatch.setattr(room, "prove", lambda data: found.append(data) or proof(reason="anew"))
    return found


@given(apart=st.lists(st.tuples(POINTS, POINTS), max_size=3), covered=st.booleans(), reason=st.text(max_size=5))
def test_a_proof_comes_back_as_it_was_kept(
    apart: list[tuple[int, int]], covered: bool, reason: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.getbasetemp()
    made = proof(*apart, covered=covered, reason=reason)
    save(made, DATA, folder / PROOF)

    assert proof_next_to(folder / "tokenizer.json", DATA) == made
    assert list(folder.glob(".proof-*")) == []


@pytest.mark.parametrize(
    "how", ["missing", "no JSON", "another reason", "no range", "another tokenizer", "other versions"]
)
def test_a_proof_that_is_not_as_it_was_written_is_made_anew(how: str, proved: list[bytes], tmp_path: Path) -> None:
    kept = proof((5, 9), (30, 40))
    save(kept, DATA, tmp_path / PROOF)
    assert (proof_next_to(tmp_path / "tokenizer.json", DATA), proved) == (kept, [])
    held = json.loads((tmp_path / PROOF).read_bytes())
    changes: dict[str, Callable[[], object]] = {
        "missing": (tmp_path / PROOF).unlink,
        "no JSON": lambda: (tmp_path / PROOF).write_text("{"),
        "another reason": lambda: (tmp_path / PROOF).write_text(json.dumps({**held, "reason": "believe me"})),
        "no range": lambda: (tmp_path / PROOF).write_text(json.dumps({**held, "apart": held["apart"][1:]})),
        "another tokenizer": lambda: save(kept, b"[]", tmp_path / PROOF),
        "other versions": lambda: save(proof(versions={"method": "0"}), DATA, tmp_path / PROOF),
    }
    changes[how]()

    assert proof_next_to(tmp_path / "tokenizer.json", DATA).reason == "anew"
    assert proof_next_to(tmp_path / "tokenizer.json", DATA).reason == "anew"
    assert proved == [DATA]  # and kept


def test_where_the_folder_cannot_be_written_a_proof_serves_unkept(proved: list[bytes], tmp_path: Path) -> None:
    assert proof_next_to(tmp_path / "none" / "tokenizer.json", DATA).covered
    assert proved == [DATA]


@pytest.mark.parametrize("kind", ["word_piece", "prefix space"])
def test_a_tokenizer_that_is_not_byte_level_is_not_covered_and_says_why(kind: str) -> None:
    told: list[tuple[int, str]] = []
    found = prove(data(others()[kind]), lambda done, what: told.append((done, what)))

    assert (found.covered, found.apart, found.current) == (False, (), True)
    assert found.reason
    assert (told[0], told[-1]) == ((0, "merges"), (STEPS, "done"))


@given(
    ranges=st.lists(st.tuples(POINTS, st.integers(0, 9)), max_size=4),
    literals=st.lists(TOKENS, max_size=3),
    text=st.text(st.one_of(st.sampled_from("a?|é<"), POINTS.map(chr)), max_size=6),
)
@example(ranges=[(5, 2), (8, 1)], literals=["a?"], text="a")  # ranges that meet
def test_a_text_is_found_exactly_if_it_holds_a_point_or_a_token_that_is_set_apart(
    ranges: list[tuple[int, int]], literals: list[str], text: str
) -> None:
    apart = room.ranges_of(set(), [(low, low + more) for low, more in ranges])
    core = Core(MERGES, WORDS, apart, texts_apart(literals))
    held = any(low <= ord(letter) <= low + more for letter in text for low, more in ranges)
    _, counts = core.encode(pa.array(["", text, text + "a"], pa.large_utf8()))

    assert (counts[1] < 0) == (held or any(literal in text for literal in texts_apart(literals)))
    assert counts[0] == 0
    assert all(low <= high for low, high in apart)
    assert all(one[1] + 1 < other[0] for one, other in pairwise(apart))


TOKENIZER = byte_level(400)
MERGES, WORDS = merges_of(json.loads(TOKENIZER.to_str())), words_of(GPT2)


def ids_of(core: Core, documents: list[str]) -> list[list[int]]:
    ids, counts = core.encode(pa.array(documents, pa.large_utf8()))
    return [part.tolist() for part in np.split(ids, np.cumsum(counts)[:-1])]


def expected(documents: list[str]) -> list[list[int]]:
    return [each.ids for each in TOKENIZER.encode_batch(documents, add_special_tokens=False)]


def test_documents_are_encoded_together_and_counted_each() -> None:
    documents = ["The quick brown fox", "", "jumps over", "  the lazy dog;\n"]

    assert ids_of(Core(MERGES, WORDS, ()), documents) == expected(documents)


def test_thousands_of_added_tokens_are_looked_for() -> None:
    added = [f"<|{number}|>" for number in range(3_000)] + ["<|1|>x", "né"]
    core = Core(MERGES, WORDS, (), added)
    texts = ["<|2999|>", "a<|7|>b", "<|3000|>", "<|7|", "<|", "<", "néz", "ne", "<<|0|>"]

    assert (core.encode(pa.array(texts, pa.large_utf8()))[1] < 0).tolist() == [
        any(token in text for token in added) for text in texts
    ]


def test_a_memo_of_any_size_gives_the_same_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = np.random.default_rng(5)
    words = ["".join(draw.choice(list("abcdefé"), size)) for size in draw.integers(1, 40, 3_000)]
    documents = [" ".join(draw.choice(words, 200)) for _ in range(30)]
    monkeypatch.setattr(room, "SHORT_BITS", 0)
    monkeypatch.setattr(room, "LONG_BITS", 0)
    small = ids_of(Core(MERGES, WORDS, ()), documents)
    monkeypatch.undo()

    assert small == ids_of(Core(MERGES, WORDS, ()), documents) == expected(documents)


STATM = Path("/proc/self/statm")


def resident_bytes() -> int:
    return int(STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not STATM.exists(), reason="reads the memory of this process from Linux")
def test_memory_stays_what_it_is_however_many_words_are_met() -> None:
    core = Core(MERGES, WORDS, ())
    draw = np.random.default_rng(7)

    def read(rounds: int) -> None:
        for _ in range(rounds):
            letters = draw.integers(97, 123, (60_000, 10), dtype=np.uint8)
            letters[:, 0] = 32
            core.encode(pa.array([letters.tobytes().decode()], pa.large_utf8()))

    read(8)
    before = resident_bytes()
    read(40)  # 2.4 million words, hardly one of them twice: 90 MB in a memo that kept them all
    assert resident_bytes() - before < MEMO_BYTES
    (memo, _), *others = core.idle
    assert others == []
    met, merged = _encode.met(memo)
    assert met == 48 * 60_000
    assert merged > 0.99 * met


def test_each_thread_has_a_memo_and_gives_it_back() -> None:
    core = Core(MERGES, WORDS, ())
    documents = ["The quick brown fox " * 500] * 8
    found: list[list[list[int]]] = []
    threads = [threading.Thread(target=lambda: found.append(ids_of(core, documents))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert found == [expected(documents)] * 6
    assert 1 <= len(core.idle) <= 6


@given(data_=st.binary(max_size=40))
def test_bytes_that_are_no_text_are_left_out_or_encoded_without_harm(data_: bytes) -> None:
    core = CORE
    offsets = np.array([0, len(data_)], np.int64)
    array = pa.Array.from_buffers(pa.large_utf8(), 1, [None, pa.py_buffer(offsets), pa.py_buffer(data_)])
    ids, counts = core.encode(array)

    assert len(ids) == max(0, counts[0]) <= len(data_)


CORE = Core(MERGES, WORDS, ())


def test_arrays_that_do_not_agree_are_refused() -> None:
    memo = _encode.memo(0, 0)
    text, counts = b"abc", np.empty(1, np.int64)
    for offsets, room_ids in (([0, 4], 99), ([0, 3], 3), ([2, 1], 99), ([-1, 2], 99), ([0, 1, 2], 99)):
        with pytest.raises(ValueError, match="do not agree"):
            _encode.encode(CORE.tables, memo, text, np.array(offsets), np.empty(room_ids, np.uint32), counts)
    with pytest.raises(ValueError, match="lines of each kind"):
        _encode.memo(27, 0)
    with pytest.raises(ValueError, match=r"incorrect name|called with"):
        _encode.encode(memo, memo, text, np.array([0, 3]), np.empty(99, np.uint32), counts)
