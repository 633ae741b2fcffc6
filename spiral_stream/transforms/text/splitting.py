r"""How a tokenizer cuts text into words, asked of the tokenizers library character by character.

The library splits with Oniguruma, leftmost-first with backtracking. `spiral_stream.transforms.text.word_automaton`
does the same for patterns of plain constructs, so the two can differ only in what single characters belong to. That is
not kept here but asked: (1) a pattern with any other construct is not covered; (2) each character class and literal of
the pattern is run by the library over every covered code point; (3) code points that belong to the same classes look
alike to either, and all words of up to four letters over one member of each kind are split by both: 0.1 to 1 s each.
"""

import itertools
import json
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, final

import numpy as np
from numpy.typing import NDArray

from spiral_stream.transforms.text.byte_pairs import Uncovered, byte_of_letter
from spiral_stream.transforms.text.word_automaton import Automaton, automaton_of, folded_into, program_of

GPT2: Final = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"  # of ByteLevel itself
POINTS: Final = 0x110000

# Planes 0 and 1 and the tags (flags of emoji); the rest, rare ideographs and private use, is set apart unread, for it
# would double the time of a proof.
COVERED: Final = (range(0xD800), range(0xE000, 0x20000), range(0xE0000, 0xE1000))
WORDS: Final = 150_000  # words of step 3, at most
_LONGEST: Final = 4  # letters of a word
_MOST_ATOMS: Final = 64  # bits of a word
_MOST_KINDS: Final = 120  # a byte, half of it for what added tokens begin with


@final
@dataclass(frozen=True, slots=True)
class Words:
    """How a pattern cuts text."""

    automaton: Automaton
    kinds: NDArray[np.uint8]  # [POINTS] the kind of each covered code point
    folded: frozenset[int]  # code points that an engine may take for several letters: they are set apart


def pattern_of(pre_tokenizer: Mapping[str, Any] | None) -> str:
    """The pattern whose matches are the pre-tokens.

    Raises:
        Uncovered: the pre-tokenizer does something else.
    """
    if pre_tokenizer is None:
        raise Uncovered("it has no pre-tokenizer")
    steps = pre_tokenizer["pretokenizers"] if pre_tokenizer["type"] == "Sequence" else [pre_tokenizer]
    *before, last = steps
    if last["type"] != "ByteLevel" or last.get("add_prefix_space", True) or len(before) > 1:
        found = ", ".join(str(step["type"]) for step in steps)
        msg = f"its pre-tokenizer is {found}; covered are ByteLevel or Split + ByteLevel, without a prefix space"
        raise Uncovered(msg)
    if not before:
        if not last.get("use_regex", True):
            raise Uncovered("it splits no text")
        return GPT2
    split = before[0]
    plain = split["type"] == "Split" and split.get("behavior") == "Isolated" and not split.get("invert")
    pattern = split.get("pattern", {}).get("Regex")
    if not plain or pattern is None or last.get("use_regex", True):
        msg = f"its {split['type']} does not isolate the matches of one regular expression"
        raise Uncovered(msg)
    return str(pattern)


def words_of(pattern: str) -> Words:
    """How a pattern cuts text: 0.1 to 0.5 s.

    Raises:
        Uncovered: it has a construct that is not covered, or too many of them.
    """
    program = program_of(pattern)
    if len(program.atoms) > _MOST_ATOMS:
        msg = f"its pattern has more than {_MOST_ATOMS} classes and literals"
        raise Uncovered(msg)
    text = "".join(map(chr, covered_points()))
    foldable = "".join(filter(_may_fold, text))
    classes = np.zeros(POINTS, dtype=np.uint64)
    for bit, (atom, literal) in enumerate(program.atoms.items()):
        probe = foldable if literal else text
        inside = np.zeros(POINTS, dtype=bool)
        inside[_points_of(probe)] = True
        inside[_points_of(outside(atom, probe))] = False
        classes[inside] |= np.uint64(1 << bit)
    alike, kinds = np.unique(classes, return_inverse=True)
    if len(alike) > _MOST_KINDS:
        msg = f"its pattern tells {len(alike)} kinds of characters apart"
        raise Uncovered(msg)
    members = [frozenset(atom for bit, atom in enumerate(program.atoms) if int(kind) >> bit & 1) for kind in alike]
    several = {ord(letter) for letter in text if len(letter.casefold()) > 1 and folded_into(program, letter.casefold())}
    return Words(automaton_of(program, members), kinds.reshape(-1).astype(np.uint8), frozenset(several))


def letters_of(words: Words) -> list[str]:
    """One covered code point of each kind."""
    points = np.array([point for point in covered_points() if point not in words.folded])
    _, first = np.unique(words.kinds[points], return_index=True)
    return [chr(points[at]) for at in first]


def _points_of(text: str) -> NDArray[np.uint32]:
    return np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)


def _may_fold(letter: str) -> bool:
    """Whether a letter is ASCII, or some fold of it has ASCII: all that a literal may match, in any case."""
    return any(map(str.isascii, letter + letter.lower() + letter.upper() + letter.casefold()))


def changeable() -> set[int]:
    """The covered code points without which a text is in NFC.

    Those that are not NFC themselves, that may compose with one before them, that are reordered, or that this
    Python knows nothing of: a text of others passes the quick check of UAX #15.
    """
    jamo = {*range(0x1161, 0x1176), *range(0x11A8, 0x11C3)}  # Hangul vowels and finals compose by arithmetic
    parts = (unicodedata.decomposition(chr(point)).split() for point in covered_points())
    seconds = {int(part[1], 16) for part in parts if len(part) == 2 and not part[0].startswith("<")}  # noqa: PLR2004
    alone = map(chr, covered_points())
    return jamo | seconds | {ord(letter) for letter in alone if _may_change(letter)}


def _may_change(letter: str) -> bool:
    moved = unicodedata.combining(letter) or not unicodedata.is_normalized("NFC", letter)
    return bool(moved) or unicodedata.category(letter) == "Cn"


def uncovered_points() -> list[tuple[int, int]]:
    """Ranges of code points, ends included, that nothing is known of; surrogates, which no text has, may be among them."""
    ends = [0, *(end for part in COVERED for end in (part.start, part.stop)), POINTS]
    return [(low, high - 1) for low, high in zip(ends[::2], ends[1::2], strict=True) if low < high]


def covered_points() -> Iterable[int]:
    """The code points that are compared."""
    return itertools.chain(*COVERED)


def outside(atom: str, text: str) -> str:
    """The letters that a pattern of one character does not match, in the tokenizers library."""
    from tokenizers import Regex, normalizers

    return str(normalizers.Replace(Regex(atom), "").normalize_str(text))


def short_words(letters: Sequence[str]) -> list[str]:
    """All words over these letters that are short enough to be compared: of up to four letters, and `WORDS` in number."""
    length = max(n for n in range(1, _LONGEST + 1) if n == 1 or len(letters) ** n <= WORDS)
    return ["".join(word) for n in range(1, length + 1) for word in itertools.product(letters, repeat=n)]


def cuts_theirs(pre_tokenizer: Mapping[str, Any], words: Sequence[str]) -> list[list[int]]:
    """What the tokenizers library cuts words into; each piece is one of the words, by its number."""
    from tokenizers import Tokenizer

    letter_of = {byte: letter for letter, byte in byte_of_letter().items()}
    vocab = {"".join(letter_of[byte] for byte in word.encode()): n for n, word in enumerate(words)}
    model = {"type": "WordLevel", "vocab": vocab | {"<unk>": len(words)}, "unk_token": "<unk>"}
    document = {"version": "1.0", "added_tokens": [], "pre_tokenizer": pre_tokenizer, "model": model}
    none = dict.fromkeys(("truncation", "padding", "normalizer", "post_processor", "decoder"))
    found = Tokenizer.from_str(json.dumps({**none, **document})).encode_batch_fast(words, add_special_tokens=False)
    return [encoding.ids for encoding in found]
