import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spiral_stream.transforms.text import splitting
from spiral_stream.transforms.text.byte_pairs import Uncovered
from spiral_stream.transforms.text.splitting import GPT2, atoms, disagreements, pattern_of
from tests.fixtures.vocabularies import LLAMA, byte_level

LETTERS = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
GPT2_STEP = LETTERS | {"use_regex": True}


def llama_steps(pattern: str = LLAMA) -> dict[str, object]:
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return {"type": "Sequence", "pretokenizers": [split, LETTERS]}


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare the first 12,000 code points and words of up to three letters only: a tenth of the time."""
    monkeypatch.setattr(splitting, "COVERED", (range(12_000),))
    monkeypatch.setattr(splitting, "WORDS", 8_000)


def test_the_patterns_of_both_families_are_found_where_the_library_keeps_them() -> None:
    assert pattern_of(json.loads(byte_level(300).to_str())["pre_tokenizer"]) == GPT2
    assert pattern_of(json.loads(byte_level(300, split=LLAMA).to_str())["pre_tokenizer"]) == LLAMA


def test_a_pattern_is_made_of_classes_and_literals() -> None:
    assert atoms(r"(?i:'s|x)| ?\p{L}+|[^\s\p{N}]{1,3}|\s+(?!\S)|\.[a-z]") == {
        "(?i:')": True,
        "(?i:s)": True,
        "(?i:x)": True,
        " ": True,
        r"\p{L}": False,
        r"[^\s\p{N}]": False,
        r"\s": False,
        r"\S": False,
        r"\.": True,
        "[a-z]": False,
    }


@pytest.mark.parametrize(
    "pattern", [r"\bx", "^a", "a$", r"(?<=a)b", r"\x41", "[[:alpha:]]", "[a&&b]", r"\h", "a{1,3}+", "(?s:a)", "é", "."]
)
def test_constructs_that_engines_may_read_differently_are_not_covered(pattern: str) -> None:
    with pytest.raises(Uncovered, match=r"which is not covered"):
        atoms(pattern)


@pytest.mark.usefixtures("narrow")
def test_engines_agree_on_the_patterns_of_both_families() -> None:
    assert disagreements(GPT2, GPT2_STEP) == set()
    assert disagreements(LLAMA, llama_steps()) == set()


@pytest.mark.usefixtures("narrow")
def test_code_points_on_which_the_engines_disagree_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = splitting.matched_ours
    monkeypatch.setattr(
        splitting,
        "matched_ours",
        lambda atom, text: asked(atom, text).replace("é", "") if "L" in atom else asked(atom, text),
    )

    assert disagreements(LLAMA, llama_steps()) == {ord("é")}


@given(text=st.text(st.characters(max_codepoint=0x1FFFF, exclude_categories=["Cs"])))
def test_text_without_changeable_code_points_is_in_nfc(text: str) -> None:
    kept = "".join(letter for letter in text if ord(letter) not in CHANGEABLE)

    assert unicodedata.is_normalized("NFC", kept)


CHANGEABLE = splitting.changeable()


def test_what_nfc_changes_is_changeable() -> None:
    assert {ord(letter) for letter in "\u0301\u0344\u212b\uf900\u1161\u11a8\u0323"} <= CHANGEABLE
    assert not {ord(letter) for letter in "aé東한Ж"} & CHANGEABLE
    assert sum(unicodedata.category(chr(point)) != "Cn" for point in CHANGEABLE) < 2_000


@pytest.mark.usefixtures("narrow")
def test_a_pattern_that_leaves_text_unmatched_is_not_covered() -> None:
    # the library makes a word of what lies between matches, tiktoken would drop it
    with pytest.raises(Uncovered, match=r"split .* differently"):
        disagreements(r"\p{L}+", llama_steps(r"\p{L}+"))


@pytest.mark.parametrize(
    ("steps", "reason"),
    [
        (None, "it has no pre-tokenizer"),
        ({"type": "Metaspace"}, "its pre-tokenizer is Metaspace"),
        (GPT2_STEP | {"add_prefix_space": True}, "without a prefix space"),
        (LETTERS, "it splits no text"),
        ({"type": "Sequence", "pretokenizers": [{"type": "Digits"}, LETTERS]}, "its Digits does not isolate"),
        (
            {"type": "Sequence", "pretokenizers": [{"type": "Digits"}, {"type": "Punctuation"}, LETTERS]},
            "is Digits, Pun",
        ),
    ],
)
def test_other_pre_tokenizers_are_not_covered(steps: dict[str, object] | None, reason: str) -> None:
    with pytest.raises(Uncovered, match=reason):
        pattern_of(steps)
