r"""Whether two regex engines split text into the same pre-tokens, and at which code points they differ.

The tokenizers library splits with Oniguruma, tiktoken with Rust's fancy-regex. Both search leftmost-first with
backtracking, so on a pattern of plain constructs they can differ only in what single characters belong to: the
Unicode version, the meaning of ``\s``, case folding. So (1) a pattern with any other construct is not covered;
(2) each character class and literal of the pattern is run by both engines over every covered code point, and code
points on which they disagree are set apart; (3) code points that belong to the same classes look alike to either
engine, and all words of up to four letters over one member of each kind are split by both: 0.1 to 1 s each.
"""

import itertools
import json
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from spiral_stream.transforms.text.byte_pairs import Uncovered, byte_of_letter

GPT2: Final = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"  # of ByteLevel itself
# The same alternatives, factored: a quarter more speed in tiktoken. The words of step 3 are split by this spelling.
_RESPELLED: Final = {GPT2: r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"}
SEPARATOR: Final = "\x1c\x01\x1c\x02"  # between documents; text that holds it is set apart. ASCII keeps strings narrow

# Planes 0 and 1 and the tags (flags of emoji); the rest, rare ideographs and private use, is set apart unread, for it
# would double the time of a proof.
COVERED: Final = (range(0xD800), range(0xE000, 0x20000), range(0xE0000, 0xE1000))
WORDS: Final = 150_000  # words of step 3, at most
_LONGEST: Final = 4  # letters of a word
_ITEM: Final = re.compile(
    r"""
      (?P<open> \((?:\?(?:i:|:|!|=)|(?!\?)) ) | (?P<close> \) ) | (?P<bar> \| )
    | (?P<repeat> [?*+][?+]? | \{\d+(?:,\d*)?\}(?![?+]) )
    | (?P<kind> \[\^?(?: \\[pP]\{\^?\w+\} | \\[sSdDwrntf] | \\[^\w\s] | [^\[\]\\&^] )+\] | \\[pP]\{\^?\w+\} | \\[sSdDwW] )
    | (?P<literal> \\[rntf] | \\[^\w\s] | (?![^\x00-\x7F])[^\\\[\](){}|?*+.^$] )
    """,
    re.VERBOSE,
)


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


def atoms(pattern: str) -> dict[str, bool]:
    """The patterns of one character that a pattern is made of -> whether each is a literal.

    Raises:
        Uncovered: it has a construct that the two engines may read differently.
    """
    found: dict[str, bool] = {}
    folded = [False]  # whether each open group ignores case
    at = 0
    while at < len(pattern):
        item = _ITEM.match(pattern, at)
        if item is None:
            msg = f"its pattern has {pattern[at : at + 12]!r} at {at}, which is not covered"
            raise Uncovered(msg)
        at = item.end()
        if item["open"]:
            folded.append(folded[-1] or "i" in item["open"])
        elif item["close"]:
            folded.pop()
        elif item["kind"] or item["literal"]:
            found[f"(?i:{item[0]})" if folded[-1] else item[0]] = item["literal"] is not None
    return found


def disagreements(pattern: str, pre_tokenizer: Mapping[str, Any]) -> set[int]:
    """The covered code points on which the engines disagree.

    Raises:
        Uncovered: the pattern is not plain, or the engines split plain words differently.
    """
    points = [point for part in COVERED for point in part]
    text = "".join(map(chr, points))
    foldable = "".join(filter(_may_fold, text))
    differing: set[int] = set()
    classes = np.zeros(0x110000, dtype=np.uint64)
    found = atoms(pattern)
    if len(found) > 64:  # noqa: PLR2004  bits of a word
        raise Uncovered("its pattern has more than 64 classes and literals")
    for bit, (atom, literal) in enumerate(found.items()):
        probe = foldable if literal else text
        theirs, ours = _outside_theirs(atom, probe), matched_ours(atom, probe)
        differing |= set(map(ord, set(theirs) & set(ours) | set(probe) - set(theirs) - set(ours)))
        classes[[ord(letter) for letter in ours]] |= np.uint64(1 << bit)
    alike: dict[int, str] = {}
    for point in points:
        if point not in differing:
            alike.setdefault(int(classes[point]), chr(point))
    _check_words(pattern, pre_tokenizer, list(alike.values()))
    return differing


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


def respelled(pattern: str) -> str:
    """The pattern as tiktoken runs it fastest."""
    return _RESPELLED.get(pattern, pattern)


def uncovered_points() -> list[tuple[int, int]]:
    """Ranges of code points, ends included, that nothing is known of; surrogates, which no text has, may be among them."""
    ends = [0, *(end for part in COVERED for end in (part.start, part.stop)), 0x110000]
    return [(low, high - 1) for low, high in zip(ends[::2], ends[1::2], strict=True) if low < high]


def covered_points() -> Iterable[int]:
    """The code points that are compared."""
    return itertools.chain(*COVERED)


def _outside_theirs(atom: str, text: str) -> str:
    """The letters that the tokenizers library does not match."""
    from tokenizers import Regex, pre_tokenizers

    return "".join(part for part, _ in pre_tokenizers.Split(Regex(atom), "removed").pre_tokenize_str(text))


def matched_ours(atom: str, text: str) -> str:
    """The letters that tiktoken matches."""
    from tiktoken._tiktoken import CoreBPE

    core = CoreBPE({bytes([byte]): byte for byte in range(256)}, {}, atom)
    found = np.frombuffer(core.encode_to_tiktoken_buffer(text, set()), dtype=np.uint32)
    return found.astype(np.uint8).tobytes().decode()


def _check_words(pattern: str, pre_tokenizer: Mapping[str, Any], letters: Sequence[str]) -> None:
    """Split all short words over these letters with both engines.

    Every word stands whole in the vocabulary, so each pre-token is one id and the ids tell the cuts.
    """
    length = max(n for n in range(1, _LONGEST + 1) if n == 1 or len(letters) ** n <= WORDS)
    words = ["".join(word) for n in range(1, length + 1) for word in itertools.product(letters, repeat=n)]
    theirs, ours = _cuts_theirs(pre_tokenizer, words), _cuts_ours(pattern, words)
    for word, one, other in zip(words, theirs, ours, strict=True):
        if one != other:
            msg = f"the two regex engines split {word!r} differently"
            raise Uncovered(msg)


def _cuts_theirs(pre_tokenizer: Mapping[str, Any], words: Sequence[str]) -> list[list[int]]:
    from tokenizers import Tokenizer

    letter_of = {byte: letter for letter, byte in byte_of_letter().items()}
    vocab = {"".join(letter_of[byte] for byte in word.encode()): n for n, word in enumerate(words)}
    model = {"type": "WordLevel", "vocab": vocab | {"<unk>": len(words)}, "unk_token": "<unk>"}
    document = {"version": "1.0", "added_tokens": [], "pre_tokenizer": pre_tokenizer, "model": model}
    none = dict.fromkeys(("truncation", "padding", "normalizer", "post_processor", "decoder"))
    found = Tokenizer.from_str(json.dumps({**none, **document})).encode_batch_fast(words, add_special_tokens=False)
    return [encoding.ids for encoding in found]


def _cuts_ours(pattern: str, words: Sequence[str]) -> list[list[int]]:
    from tiktoken._tiktoken import CoreBPE

    ranks = {word.encode(): n for n, word in enumerate(words)}
    rest = (bytes([byte]) for byte in range(256) if bytes([byte]) not in ranks)
    ranks |= {byte: len(words) + n for n, byte in enumerate(rest)}
    between = len(ranks)
    core = CoreBPE(ranks, {SEPARATOR: between}, respelled(pattern))
    flat = np.frombuffer(core.encode_to_tiktoken_buffer(SEPARATOR.join(words), {SEPARATOR}), dtype=np.uint32)
    return [part[part != between].tolist() for part in np.split(flat, np.flatnonzero(flat == between))]
