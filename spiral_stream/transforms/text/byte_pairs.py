"""The merges of a byte-level BPE tokenizer, as tables for the compiled engine.

The engine (`_encode.c`) does with a word what the tokenizers library does: of all neighbours whose pair is listed it
merges those whose pair is listed first, the leftmost of equal ones, until there are none. The library takes pairs from a
queue ordered by place in the list, then by place in the word, and passes over an entry whose pieces have changed: such a
piece only ever becomes longer, so an entry is out of date exactly if its pair is no longer the one that stands there.
With ``ignore_merges`` a word that is a token is taken whole. Checked against tokenizers 0.22 to 0.24
(Word::merge_all); `spiral_stream.transforms.text.encoding_engine` compares both on every token of the vocabulary.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, final

import numpy as np
from numpy.typing import NDArray

UInt32 = NDArray[np.uint32]

# bytes that never stand in UTF-8; a vocabulary may lack them
NOT_UTF8: Final = frozenset({0xC0, 0xC1, *range(0xF5, 0x100)})
NONE: Final = 0xFFFFFFFF
_MOST_IDS: Final = 0xFFFFF  # the engine holds a pair of them and its place in eight bytes


class Uncovered(Exception):  # noqa: N818  a finding, not an error: the tokenizer is served by its own library
    """The compiled engine is not proven to give a tokenizer's ids; the message says why."""


@final
@dataclass(frozen=True, slots=True)
class Merges:
    """What the engine needs to know of a vocabulary."""

    of_byte: UInt32  # [256] the id of each byte, or NONE
    left: UInt32  # [merges] in the order of the list: the ids that are merged, and the id that they become
    right: UInt32
    made: UInt32
    tokens: Mapping[bytes, int]  # words that are taken whole, and their ids
    characters: Mapping[int, int] = field(
        default_factory=dict
    )  # code point -> id, where a word does not begin as bytes
    unknown: int = NONE  # the id of a character without one; NONE if it is its bytes
    fused: bool = False  # whether unknown neighbours are one
    before: int = 0  # what is put before a document (`sentencepiece`)


def byte_of_letter() -> dict[str, int]:
    """Return the alphabet of byte-level tokenizers: one visible letter per byte (GPT-2, 2019)."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in set(visible)]
    return {chr(byte): byte for byte in visible} | {chr(256 + n): byte for n, byte in enumerate(hidden)}


def merges_of(tokenizer: Mapping[str, Any]) -> Merges:
    """Build the tables of a tokenizer: 0.3 s for 300,000 merges.

    Args:
        tokenizer: the parsed ``tokenizer.json``.

    Raises:
        Uncovered: the model is not a plain byte-level BPE.
    """
    model = tokenizer["model"]
    _check_plain(model)
    if tokenizer.get("normalizer") not in (None, {"type": "NFC"}):  # `encoding_engine` sets apart what NFC may change
        msg = f"it has a normalizer ({tokenizer['normalizer'].get('type')})"
        raise Uncovered(msg)
    letters, vocab = byte_of_letter(), model["vocab"]
    missing = [byte for letter, byte in letters.items() if letter not in vocab and byte not in NOT_UTF8]
    if missing:
        msg = f"its vocabulary lacks {len(missing)} single bytes, the first is 0x{missing[0]:02X}"
        raise Uncovered(msg)
    left, right, made, _ = listed_merges(model)
    of_byte = np.full(256, NONE, np.uint32)
    of_byte[list(letters.values())] = [vocab.get(letter, NONE) for letter in letters]
    tokens = texts_of(vocab) if model.get("ignore_merges") else {}
    return Merges(
        of_byte,
        left,
        right,
        made,
        tokens,
    )


def listed_merges(model: Mapping[str, Any]) -> tuple[UInt32, UInt32, UInt32, list[tuple[str, str]]]:
    """The merges of a model in their order: the ids on the left, on the right, and made; and the texts of both sides.

    Raises:
        Uncovered: an id or a merge is there twice, or ids are too large.
    """
    _check_plain(model)
    vocab = model["vocab"]
    if len(set(vocab.values())) != len(vocab):
        raise Uncovered("two of its tokens have one id")
    if max(vocab.values()) >= _MOST_IDS:
        msg = f"its ids reach {max(vocab.values()):,}"
        raise Uncovered(msg)
    pairs = [_pair(merge) for merge in model["merges"]]
    if len(set(pairs)) != len(pairs):
        msg = f"{len(pairs) - len(set(pairs))} of its merges are listed twice"
        raise Uncovered(msg)
    left, right = (np.array([vocab[pair[side]] for pair in pairs], np.uint32) for side in (0, 1))
    return left, right, np.array([vocab["".join(pair)] for pair in pairs], np.uint32), pairs


def texts_of(vocab: Mapping[str, int]) -> dict[bytes, int]:
    """The bytes of every token that is spelled in the byte-level alphabet, and its id."""
    letters = byte_of_letter()
    return {
        bytes(letters[letter] for letter in text): number
        for text, number in vocab.items()
        if text and all(letter in letters for letter in text)
    }


def _check_plain(model: Mapping[str, Any]) -> None:
    if model.get("type") != "BPE":
        msg = f"its model is {model.get('type')}, not BPE"
        raise Uncovered(msg)
    for name in ("dropout", "continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(name):
            msg = f"its model has {name} {model[name]!r}"
            raise Uncovered(msg)


def _pair(merge: str | Sequence[str]) -> tuple[str, str]:
    """A merge is ``"a b"`` in old files, ``["a", "b"]`` in new ones."""
    left, right = merge.split(" ") if isinstance(merge, str) else merge
    return left, right
