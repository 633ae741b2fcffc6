import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spiral_stream.transforms.text import splitting
from spiral_stream.transforms.text.byte_pairs import Uncovered
from spiral_stream.transforms.text.encoding_engine import prove
from spiral_stream.transforms.text.splitting import GPT2, letters_of, pattern_of, words_of
from tests.fixtures.vocabularies import LLAMA, by_hand, byte_level, data

LETTERS = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
GPT2_STEP = LETTERS | {"use_regex": True}


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare the first 12,000 code points and words of up to three letters only: a tenth of the time."""
    monkeypatch.setattr(splitting, "COVERED", (range(12_000),))
    monkeypatch.setattr(splitting, "WORDS", 8_000)


def test_the_patterns_of_both_families_are_found_where_the_library_keeps_them() -> None:
    assert pattern_of(json.loads(byte_level(300).to_str())["pre_tokenizer"]) == GPT2
    assert pattern_of(json.loads(byte_level(300, split=LLAMA).to_str())["pre_tokenizer"]) == LLAMA


@pytest.mark.usefixtures("narrow")
def test_code_points_of_a_kind_belong_to_the_same_classes() -> None:
    words = words_of(LLAMA)
    kind = {letter: words.kinds[ord(letter)] for letter in "aZé1٣ \t\n\r.s"}

    assert kind["a"] == kind["Z"] == kind["é"]
    assert kind["1"] == kind["٣"]
    assert len({kind[letter] for letter in "a1 \t\n.s"}) == 7
    assert len(letters_of(words)) == len(set(words.kinds[:12_000]))


@pytest.mark.usefixtures("narrow")
def test_the_patterns_of_both_families_are_proven() -> None:
    for split in (None, LLAMA):
        found = prove(data(byte_level(300, split=split)))
        assert (found.covered, found.reason) == (True, "equal on 12,000 code points; 0 set apart")


@pytest.mark.usefixtures("narrow")
def test_code_points_that_are_encoded_differently_are_set_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = splitting.outside
    monkeypatch.setattr(splitting, "outside", lambda atom, text: asked(atom, text) + ("é" if atom == r"\p{L}" else ""))
    monkeypatch.setattr(
        splitting, "WORDS", 1
    )  # letters alone: longer words would tell at once that the kinds are wrong
    # "a" and the first byte of "é" are merged where both stand in one word
    found = prove(json.dumps(by_hand([("a", "Ã")])).encode())
    assert (found.covered, found.apart) == (True, ((ord("é"), ord("é")), (12_000, 0x10FFFF)))

    found = prove(json.dumps(by_hand([("a", "Ã"), ("aÃ", "©")])).encode())
    assert (found.covered, found.reason) == (False, "the two engines encode 'aé' differently")


@pytest.mark.usefixtures("narrow")
def test_a_letter_that_may_stand_for_two_of_a_pattern_is_set_apart() -> None:
    # under (?i:) Oniguruma takes ß for "ss", and a ligature for "st"
    assert words_of("(?i:ss)|.".replace(".", r"\s|\S")).folded == {ord("ß"), ord("ẞ")}
    assert words_of(LLAMA).folded == frozenset()


@given(text=st.text(st.characters(max_codepoint=0x1FFFF, exclude_categories=["Cs"])))
def test_text_without_changeable_code_points_is_in_nfc(text: str) -> None:
    kept = "".join(letter for letter in text if ord(letter) not in CHANGEABLE)

    assert unicodedata.is_normalized("NFC", kept)


CHANGEABLE = splitting.changeable()


def test_what_nfc_changes_is_changeable() -> None:
    assert {ord(letter) for letter in "\u0301\u0344\u212b\uf900\u1161\u11a8\u0323"} <= CHANGEABLE
    assert not {ord(letter) for letter in "aé東한Ж"} & CHANGEABLE
    assert sum(unicodedata.category(chr(point)) != "Cn" for point in CHANGEABLE) < 2_000


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
