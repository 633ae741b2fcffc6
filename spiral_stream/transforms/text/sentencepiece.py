r"""Byte-pair encoding in the layouts of SentencePiece (Mistral, Llama 2, Gemma), as tables for the compiled engine.

A blank becomes ``▁``, one may be put before the text, and the text, or each part that begins with ``▁``, is merged
without being cut into words. What the engine needs is made of the vocabulary alone:

* *Pieces*. A character with a token is that token. One without is its bytes, ``<0xE2>`` (``byte_fallback``), or the
  unknown token, of which neighbours may be one (``fuse_unk``).
* *Words*. Two characters that stand side by side in no token that a merge makes are never joined, so a text may be cut
  between them: what merges do on one side does not depend on the other. Characters are put into groups, a text is cut
  between two groups of which no member may be joined with one of the other, and words come out that are short and are
  met again. If a vocabulary joins everything, words are long, and equal all the same.

Checked against tokenizers 0.22 to 0.24 (BPE::merge_word, Metaspace, Prepend, Replace);
`spiral_stream.transforms.text.encoding_engine` compares both on every token and every covered code point.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from spiral_stream.transforms.text.byte_pairs import NONE, NOT_UTF8, Merges, Uncovered, listed_merges
from spiral_stream.transforms.text.splitting import POINTS, Words
from spiral_stream.transforms.text.word_automaton import BEGINS, ENDS, STUCK, Automaton

BLANK: Final = "▁"
BARE, SPACED, SPACED_ONCE = range(3)  # what is put before a text: nothing, a blank, a blank unless there is one

_MOST_GROUPS: Final = 100
_REPLACED: Final = {"type": "Replace", "pattern": {"String": " "}, "content": BLANK}
_PREPENDED: Final = {"type": "Prepend", "prepend": BLANK}


def is_sentencepiece(tokenizer: Mapping[str, Any]) -> bool:
    """Whether a tokenizer merges characters, not bytes: then this room is about it."""
    steps = _steps(tokenizer.get("pre_tokenizer"), "pretokenizers")
    return tokenizer["model"].get("type") == "BPE" and not any(step["type"] == "ByteLevel" for step in steps)


def tables_of(tokenizer: Mapping[str, Any]) -> tuple[Merges, Words]:
    """Build the tables of a tokenizer: 0.3 s for 60,000 merges.

    Args:
        tokenizer: the parsed ``tokenizer.json``.

    Returns:
        merges: the model, by ids.
        words: where a text may be cut.

    Raises:
        Uncovered: it does something else, or does not say what becomes of some characters.
    """
    model = tokenizer["model"]
    before, parted = _before(tokenizer)
    vocab: Mapping[str, int] = model["vocab"]
    left, right, made, pairs = listed_merges(model)
    if BLANK not in vocab:
        msg = f"its vocabulary lacks {BLANK!r}"
        raise Uncovered(msg)
    characters = {ord(text): number for text, number in vocab.items() if len(text) == 1}
    characters[ord(" ")] = vocab[BLANK]
    of_byte, unknown = _without_token(model)
    inert = [text for text in _fallbacks(model) if text in {part for pair in pairs for part in pair}]
    if inert:
        msg = f"its merges join {inert[0]!r}, which stands for what has no token"
        raise Uncovered(msg)
    uncut = bool(model.get("ignore_merges"))
    if uncut and not parted:
        raise Uncovered("it takes a text whole if that is a token (ignore_merges), and cuts none")
    tokens = {text.encode(): number for text, number in vocab.items() if text} if uncut else {}
    tokens |= {text.replace(BLANK.encode(), b" "): number for text, number in tokens.items()}
    joined = {join for one, other in pairs for join in itertools.pairwise(one + other)}
    fused = bool(model.get("fuse_unk")) and unknown != NONE
    words = _parts() if uncut else _words(joined, characters, parted=parted, fused=fused)
    merges = Merges(of_byte, left, right, made, tokens, characters, unknown, fused, before)
    return merges, words


def texts_in(vocab: Mapping[str, int]) -> list[str]:
    """Every token as a text, and with blanks."""
    return list(dict.fromkeys(form for text in vocab for form in (text, text.replace(BLANK, " ")) if form))


def added_texts(tokenizer: Mapping[str, Any]) -> set[str]:
    """Texts of which a document has one if it has an added token.

    A token that is ``normalized`` is looked for behind the normalizer, where a blank may have been ``▁`` before: its
    longest part without blanks stands for it.

    Raises:
        Uncovered: one is nothing but blanks.
    """
    found = set()
    for entry in tokenizer.get("added_tokens", ()):
        text = entry["content"]
        if entry.get("normalized") and tokenizer.get("normalizer") is not None:
            text = max(text.replace(BLANK, " ").split(" "), key=len)
            if not text and entry["content"]:
                msg = f"its added token {entry['content']!r} is nothing but blanks"
                raise Uncovered(msg)
        found.add(text)
    return found


def _before(tokenizer: Mapping[str, Any]) -> tuple[int, bool]:
    """What is put before a text, and whether it is parted where a blank begins.

    Raises:
        Uncovered: the normalizer or the pre-tokenizer does something else.
    """
    normal = _steps(tokenizer.get("normalizer"), "normalizers")
    replaced, prepended = _REPLACED in normal, _PREPENDED in normal
    if [step for step in normal if step not in (_REPLACED, _PREPENDED)] or list(normal).count(_PREPENDED) > 1:
        msg = f"its normalizer is {', '.join(step['type'] for step in normal)}; covered are Prepend and Replace of a blank"
        raise Uncovered(msg)
    before, parted = SPACED if prepended else BARE, False
    for step in _steps(tokenizer.get("pre_tokenizer"), "pretokenizers"):
        if step["type"] == "Split" and step.get("pattern") == {"String": " "} and replaced:
            continue  # there is none left
        if step["type"] != "Metaspace" or step.get("replacement") != BLANK or parted:
            msg = f"its pre-tokenizer is {step['type']}; covered are ByteLevel, Split + ByteLevel, Metaspace and none"
            raise Uncovered(msg)
        replaced, parted = True, bool(step.get("split", True))
        scheme = step.get("prepend_scheme", "always")
        scheme = "never" if step.get("add_prefix_space") is False else scheme
        if before == BARE and scheme != "never":
            before = SPACED_ONCE
    if not replaced:
        raise Uncovered("it has no pre-tokenizer, and its blanks stay what they are")
    return before, parted


def _steps(part: Mapping[str, Any] | None, name: str) -> Sequence[Mapping[str, Any]]:
    """The parts of a normalizer or of a pre-tokenizer."""
    if part is None:
        return []
    return part[name] if part["type"] == "Sequence" else [part]


def _fallbacks(model: Mapping[str, Any]) -> list[str]:
    """The tokens of bytes, and the unknown one."""
    return [*(f"<0x{byte:02X}>" for byte in range(256) if model.get("byte_fallback")), model.get("unk_token") or ""]


def _without_token(model: Mapping[str, Any]) -> tuple[NDArray[np.uint32], int]:
    """What becomes of a character without a token: the id of each byte, and that of what is unknown, or NONE.

    Raises:
        Uncovered: neither is sure.
    """
    of_byte = np.full(256, NONE, np.uint32)
    vocab = model["vocab"]
    names = {byte: f"<0x{byte:02X}>" for byte in range(256) if model.get("byte_fallback")}
    missing = [byte for byte, name in names.items() if name not in vocab and byte not in NOT_UTF8]
    if names and not missing:
        of_byte[list(names)] = [vocab.get(name, NONE) for name in names.values()]
        return of_byte, NONE
    if missing and len(missing) < len(names) - len(NOT_UTF8):
        msg = f"its vocabulary lacks {len(missing)} of the tokens of single bytes, the first is {names[missing[0]]}"
        raise Uncovered(msg)
    if model.get("unk_token") not in vocab:
        raise Uncovered("it has no token for characters outside its vocabulary")
    return of_byte, int(vocab[model["unk_token"]])


def _words(joined: Iterable[tuple[str, str]], characters: Mapping[int, int], *, parted: bool, fused: bool) -> Words:
    """Cut between groups of characters of which no members are joined.

    Args:
        joined: characters that stand side by side in a token that a merge makes.
        characters: code points with a token.
        parted: whether each blank begins a part.
        fused: whether unknown neighbours are one.
    """
    pairs = list(joined)
    firsts, seconds = {one for one, _ in pairs}, {other for _, other in pairs}
    kinds, number = np.zeros(POINTS, np.uint8), 0
    for shift in (7, 10, 13, 21):
        groups = {letter: _group(letter, shift, letter in firsts, letter in seconds) for letter in firsts | seconds}
        names = sorted(set(groups.values()), key=repr)
        number = len(names) + 2  # kind 0: joined with nothing; 1: unknown; then the groups
        if number <= _MOST_GROUPS:
            break
    at = {name: kind for kind, name in enumerate(names, 2)}
    may_join = np.zeros((number + 1, number), bool)  # [kind before, kind]; no kind before the first character
    if fused:
        kinds[:] = 1
        kinds[list(characters)] = 0
        may_join[1, 1] = True
    for letter, name in groups.items():
        kinds[ord(letter)] = at[name]
    for one, other in pairs:
        may_join[kinds[ord(one)], kinds[ord(other)]] = True
    if kinds[ord(BLANK)] < 2:  # noqa: PLR2004  it is joined with nothing
        kinds[ord(BLANK)] = kinds[ord(" ")] = 0
    kinds[ord(" ")] = kinds[ord(BLANK)]
    if parted:
        may_join[:, kinds[ord(BLANK)]] = False
    may_join[number] = True
    return Words(_automaton(may_join), kinds, frozenset())


def _parts() -> Words:
    """Cut before each blank, and nowhere else."""
    kinds = np.zeros(POINTS, np.uint8)
    kinds[[ord(" "), ord(BLANK)]] = 1
    return Words(_automaton(np.array([[True, False], [True, False], [True, True]])), kinds, frozenset())


def _group(letter: str, shift: int, first: bool, second: bool) -> tuple[object, ...]:
    """What a letter shares its fate with: signs of ASCII stand alone."""
    if letter.isascii():
        return ("letter" if letter.isalpha() else "digit" if letter.isdigit() else letter,)
    if letter == BLANK:
        return (letter,)
    return (ord(letter) >> shift, letter.isalpha(), first, second)


def _automaton(may_join: NDArray[np.bool_]) -> Automaton:
    """States are the kinds of the character before; the last one is a word's begin."""
    states, kinds = may_join.shape
    width = kinds + 1
    steps = np.tile(np.arange(kinds + 1, dtype=np.uint32) * np.uint32(width), (states, 1))
    steps[:, :kinds] |= np.where(may_join, np.uint32(0), np.uint32(ENDS | BEGINS))
    steps[:, kinds] = ENDS | STUCK
    return Automaton(steps.ravel(), width, kinds * width)
