"""A proof is kept next to its tokenizer and believed only as it was written; what it sets apart is found in any text.

That both engines then encode alike is in `test_encoder`.
"""

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from spiral_stream.transforms.text import encoding_engine as room
from spiral_stream.transforms.text.byte_pairs import twin_of
from spiral_stream.transforms.text.encoding_engine import (
    PROOF,
    STEPS,
    Core,
    Proof,
    apart_pattern,
    proof_next_to,
    prove,
    save,
)
from spiral_stream.transforms.text.splitting import SEPARATOR, pattern_of
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
def test_a_tokenizer_without_a_twin_is_not_covered_and_says_why(kind: str) -> None:
    told: list[tuple[int, str]] = []
    found = prove(data(others()[kind]), lambda done, what: told.append((done, what)))

    assert (found.covered, found.apart, found.current) == (False, (), True)
    assert found.reason
    assert (told[0], told[-1]) == ((0, "merges"), (STEPS, "done"))


@given(
    ranges=st.lists(st.tuples(POINTS, st.integers(0, 9)), max_size=4),
    literals=st.lists(TOKENS, max_size=2),
    text=st.text(POINTS.map(chr), max_size=6),
)
@example(ranges=[(5, 2), (8, 1)], literals=["a?"], text="a")  # ranges that meet, and a sign of patterns
def test_a_text_is_found_exactly_if_it_holds_a_point_or_a_token_that_is_set_apart(
    ranges: list[tuple[int, int]], literals: list[str], text: str
) -> None:
    apart = room.ranges_of(set(), [(low, low + more) for low, more in ranges])
    pattern = apart_pattern(proof(*apart), literals)
    held = any(low <= ord(letter) <= low + more for letter in text for low, more in ranges)

    assert pc.match_substring_regex(pa.array([text]), pattern)[0].as_py() == (
        held or any(literal in text for literal in [*literals, SEPARATOR])
    )
    assert all(low <= high for low, high in apart)
    assert all(one[1] + 1 < other[0] for one, other in pairwise(apart))


def test_documents_are_encoded_together_and_counted_each() -> None:
    tokenizer = byte_level(400)
    held = json.loads(tokenizer.to_str())
    core = Core(twin_of(held), pattern_of(held["pre_tokenizer"]))
    documents = ["The quick brown fox", "", "jumps over", "  the lazy dog;\n"]
    ids, counts = core.encode(SEPARATOR.join(documents))

    expected = [each.ids for each in tokenizer.encode_batch(documents, add_special_tokens=False)]
    assert [part.tolist() for part in np.split(ids, np.cumsum(counts)[:-1])] == expected
