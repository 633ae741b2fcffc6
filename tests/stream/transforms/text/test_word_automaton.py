"""The automaton cuts text where the tokenizers library does, for every pattern that it covers."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, pre_tokenizers

from spiral_stream.transforms.text import splitting
from spiral_stream.transforms.text.byte_pairs import Merges, Uncovered
from spiral_stream.transforms.text.encoding_engine import Core
from spiral_stream.transforms.text.splitting import GPT2, words_of
from spiral_stream.transforms.text.word_automaton import automaton_of, folded_into, program_of
from tests.fixtures.vocabularies import LLAMA

O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
POSSESSIVE = r"(?i:'s|'t)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
ONES = st.sampled_from(["a", "b", r"\s", r"\S", "[^ab]", "(?:a|b)", "(?i:A)", "(?:ab|a)", "(?:a|ab)(?:c|bcd)?"])
LETTERS = st.text("abAcd \n", max_size=12)


@st.composite
def patterns(draw: st.DrawFn) -> str:
    """Patterns of alternatives, repeats of each kind, and looks at what comes next."""
    ways = []
    for _ in range(draw(st.integers(1, 3))):
        parts = [
            draw(ONES) + draw(st.sampled_from(["", "", "?", "*", "+", "??", "+?", "*?", "{2}", "{1,3}", "{2,}"]))
            for _ in range(draw(st.integers(1, 3)))
        ]
        ways.append("".join(parts) + draw(st.sampled_from(["", "", "", r"(?!\S)", "(?=a)", "(?!b)"])))
    return "|".join(ways)


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask the library of the first code points only."""
    monkeypatch.setattr(splitting, "COVERED", (range(0x3100),))


def cuts(pattern: str, texts: list[str]) -> list[list[str]]:
    """The words of each text; the engine gives a word's bytes as ids, and one more in front of each."""
    none = np.empty(0, np.uint32)
    words = words_of(pattern)
    found = []
    for text in texts:
        pieces = {text[low:high].encode(): 0 for low in range(len(text)) for high in range(low + 1, len(text) + 1)}
        whole = {piece: number for number, piece in enumerate(pieces)}
        core = Core(Merges(np.full(256, 1 << 19, np.uint32), none, none, none, whole), words, ())
        names = list(whole)
        found.append([names[number].decode() for number in core.encode(pa.array([text], pa.large_utf8()))[0]])
    return found


def expected(pattern: str, texts: list[str]) -> list[list[str]]:
    split = pre_tokenizers.Split(Regex(pattern), "isolated")
    return [[piece for piece, _ in split.pre_tokenize_str(text)] for text in texts]


@settings(max_examples=300)
@given(pattern=patterns(), texts=st.lists(LETTERS, min_size=1, max_size=4))
def test_any_covered_pattern_cuts_as_the_library_does(pattern: str, texts: list[str]) -> None:
    try:
        program_of(pattern)
    except Uncovered:
        return

    assert cuts(pattern, texts) == expected(pattern, texts)


@pytest.mark.parametrize("pattern", [GPT2, LLAMA, O200K, POSSESSIVE])
@settings(max_examples=60)
@given(text=st.text(st.characters(max_codepoint=0x30FF, exclude_categories=["Cs"]), max_size=40))
def test_patterns_in_use_cut_any_text_as_the_library_does(pattern: str, text: str) -> None:
    text = f"{text} It's {text}\r\n 1234{text}  "

    assert cuts(pattern, [text]) == expected(pattern, [text])


@pytest.mark.parametrize("pattern", [GPT2, LLAMA, O200K])
def test_patterns_in_use_need_few_states(pattern: str) -> None:
    words = words_of(pattern)

    assert len(words.automaton.steps) // words.automaton.width < 40


def test_text_that_no_word_takes_is_a_word_of_its_own() -> None:
    texts = ["ab cd", " ab", "ab ", "  ", "", "a--b", "--", "é a"]

    assert cuts(r"[a-c]+", texts) == expected(r"[a-c]+", texts)


@pytest.mark.parametrize(
    "pattern",
    [
        *(
            r"\bx",
            "^a",
            "a$",
            r"(?<=a)b",
            r"\x41",
            "[[:alpha:]]",
            "[a&&b]",
            r"\h",
            "a{1,3}+",
            "(?s:a)",
            "é",
            ".",
            "a**",
        ),
        *("(?!ab)a", "(?i:[é])", "a)", "(a", "*a"),
    ],
)
def test_constructs_that_engines_may_read_differently_are_not_covered(pattern: str) -> None:
    with pytest.raises(Uncovered, match=r"which is not covered"):
        program_of(pattern)


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("a*", "may match no character"),
        ("(?:a*)+b", "repeats what may be nothing"),
        ("(?:ab)++a", "never gives back more than one character"),
        ("a{5000}", "more than 2,000 instructions"),
    ],
)
def test_patterns_that_cannot_be_an_automaton_are_not_covered(pattern: str, reason: str) -> None:
    with pytest.raises(Uncovered, match=reason):
        program_of(pattern)


def test_what_is_never_given_back_must_not_be_wanted_by_what_follows() -> None:
    kinds = [frozenset({"a", r"\S"}), frozenset({"b", r"\S"}), frozenset()]
    automaton_of(program_of("a++b"), kinds)

    for pattern in (r"a++\S", "a?+a", r"a*+(?!\S)b"):
        with pytest.raises(Uncovered, match="does not give back"):
            automaton_of(program_of(pattern), kinds)
    with pytest.raises(Uncovered, match="more than 1,000 states"):
        automaton_of(program_of(r"(?:a|b)*a(?:a|b){12}"), kinds)


def test_letters_side_by_side_that_ignore_case_are_found() -> None:
    assert folded_into(program_of("x(?i:(?:s|q)t)"), "st")
    assert not folded_into(program_of("x(?i:s|t)"), "st")
    assert not folded_into(program_of("st"), "st")
