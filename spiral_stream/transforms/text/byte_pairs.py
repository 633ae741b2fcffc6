"""Whether a byte-level BPE tokenizer has an exact equivalent in tiktoken, and the table of it.

The tokenizers library merges *listed pairs*, lowest place in the list first; tiktoken merges *any neighbours whose
concatenation is a token*, lowest rank first, and is about four times as fast. The twin below gives equal results on
every pre-token, for any list of merges:

    Run the listed merges on a word. Call ``t`` *stable* if its own run ends at the one token ``t``. While no merge
    crosses the ends of a span, the steps inside it are the first steps of that span's own run: what is lowest and
    leftmost of all is so among the span's candidates too, and those depend on the span alone. Hence
    (1) only stable tokens ever appear, since a token that appears was made by its span's own run;
    (2) if neighbours ``x, y`` spell a stable ``t``, that is the last state but one of t's own run, so (x, y) is the
        one *final pair* of t, it is listed, and merging it is a candidate of both algorithms;
    (3) if neighbours ``x, y`` form a listed pair, merging them is a step of that span's own run, so x+y is stable.
    Give every stable token the place of its final pair as rank. By (2) and (3) both algorithms have the same
    candidates in the same order with the same leftmost rule, so by induction over the steps they do the same.

So the twin's table holds the stable tokens only, ranked by final pair, and a table leads back from ranks to ids.
Whole words that stand in the vocabulary are taken at once by tiktoken (and by the library with ``ignore_merges``):
for stable tokens that changes nothing; a word that is not stable makes ``ignore_merges`` ineligible here.
Stability is found by running the library's own model on every token: 0.2 s for 128,000. Checked against
tokenizers 0.22 to 0.24 (Word::merge_all) and tiktoken 0.12 to 0.14.
"""

import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, final

import numpy as np
from numpy.typing import NDArray

UInt32 = NDArray[np.uint32]

# bytes that never stand in UTF-8; a vocabulary may lack them
_NOT_UTF8: Final = frozenset({0xC0, 0xC1, *range(0xF5, 0x100)})


class Uncovered(Exception):  # noqa: N818  a finding, not an error: the tokenizer is served by its own library
    """A tokenizer has no proven twin; the message says why."""


@final
@dataclass(frozen=True, slots=True)
class Twin:
    """The tables with which tiktoken gives a tokenizer's ids."""

    ranks: Mapping[bytes, int]  # stable token -> rank; ranks are 0, 1, 2, ...
    ids: UInt32  # [ranks] the tokenizer's id of each rank


def byte_of_letter() -> dict[str, int]:
    """Return the alphabet of byte-level tokenizers: one visible letter per byte (GPT-2, 2019)."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in set(visible)]
    return {chr(byte): byte for byte in visible} | {chr(256 + n): byte for n, byte in enumerate(hidden)}


def bare(tokenizer: Mapping[str, Any], *, pre_tokenizer: bool) -> str:
    """The tokenizer's JSON with its model alone and merges never ignored, or with all that cuts text into its words."""
    model = {**tokenizer["model"], "ignore_merges": False} if not pre_tokenizer else tokenizer["model"]
    reduced = {"version": tokenizer.get("version", "1.0"), "model": model, "added_tokens": []}
    none = dict.fromkeys(("truncation", "padding", "normalizer", "pre_tokenizer", "post_processor", "decoder"))
    if pre_tokenizer:
        none |= {name: tokenizer.get(name) for name in ("normalizer", "pre_tokenizer")}
    return json.dumps({**none, **reduced})


def twin_of(tokenizer: Mapping[str, Any]) -> Twin:
    """Build the table of a tokenizer's twin.

    Args:
        tokenizer: the parsed ``tokenizer.json``.

    Raises:
        Uncovered: the model is not a plain byte-level BPE.
    """
    model = tokenizer["model"]
    _check_plain(tokenizer, model)
    letters = byte_of_letter()
    vocab: dict[str, int] = model["vocab"]
    missing = [byte for letter, byte in letters.items() if letter not in vocab and byte not in _NOT_UTF8]
    if missing:
        msg = f"its vocabulary lacks {len(missing)} single bytes, the first is 0x{missing[0]:02X}"
        raise Uncovered(msg)
    merge_ranks = _merge_ranks(model["merges"])
    spelled = [text for text in vocab if all(letter in letters for letter in text) and text]
    stable = _stable(tokenizer, vocab, spelled)
    if model.get("ignore_merges"):
        _check_full_words(tokenizer, spelled, stable)
    final_ranks = _final_ranks(merge_ranks, stable, model["merges"])
    order = [letter for letter in letters if letter in vocab]
    order += sorted(final_ranks, key=final_ranks.__getitem__)
    ranks = {bytes(letters[letter] for letter in text): rank for rank, text in enumerate(order)}
    return Twin(ranks, np.array([vocab[text] for text in order], dtype=np.uint32))


def _check_plain(tokenizer: Mapping[str, Any], model: Mapping[str, Any]) -> None:
    if model.get("type") != "BPE":
        msg = f"its model is {model.get('type')}, not BPE"
        raise Uncovered(msg)
    if tokenizer.get("normalizer") not in (None, {"type": "NFC"}):  # `proof` sets apart what NFC may change
        msg = f"it has a normalizer ({tokenizer['normalizer'].get('type')})"
        raise Uncovered(msg)
    for name in ("dropout", "continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(name):
            msg = f"its model has {name} {model[name]!r}"
            raise Uncovered(msg)


def _merge_ranks(merges: Sequence[Any]) -> dict[tuple[str, str], int]:
    """Pair -> place in the list of merges."""
    pairs = [_pair(merge) for merge in merges]
    ranks = {pair: rank for rank, pair in enumerate(pairs)}
    if len(ranks) != len(pairs):
        msg = f"{len(pairs) - len(ranks)} of its merges are listed twice"
        raise Uncovered(msg)
    return ranks


def _pair(merge: Any) -> tuple[str, str]:
    """A merge is ``"a b"`` in old files, ``["a", "b"]`` in new ones."""
    left, right = merge.split(" ") if isinstance(merge, str) else merge
    return left, right


def _stable(tokenizer: Mapping[str, Any], vocab: Mapping[str, int], spelled: Sequence[str]) -> set[str]:
    """The tokens whose own encoding by the library's model is themselves."""
    from tokenizers import Tokenizer

    model = Tokenizer.from_str(bare(tokenizer, pre_tokenizer=False))
    found = model.encode_batch_fast(list(spelled), add_special_tokens=False)
    return {text for text, encoding in zip(spelled, found, strict=True) if encoding.ids == [vocab[text]]}


def _check_full_words(tokenizer: Mapping[str, Any], spelled: Iterable[str], stable: set[str]) -> None:
    """With ``ignore_merges`` a whole word that is a token is taken at once, stable or not.

    A word that is also the text of an added token never comes as a word: documents that contain it are set apart.
    """
    letters = byte_of_letter()
    added = {entry["content"].encode() for entry in tokenizer.get("added_tokens", ())}
    for text in spelled:
        if text not in stable and bytes(letters[letter] for letter in text) not in added:
            msg = f"it ignores merges, and its merges do not make token {text!r} whole"
            raise Uncovered(msg)


def _final_ranks(ranks: Mapping[tuple[str, str], int], stable: set[str], merges: Sequence[Any]) -> dict[str, int]:
    """Each stable token of more than one byte -> the place of its final pair.

    Only where several listed pairs of stable parts make one token, with other tokens' places between them,
    must its run be followed here: none in trained vocabularies, about 30 us each.
    """
    ways: dict[str, list[int]] = {}
    made: list[str] = []  # by place, for stable tokens of stable parts
    for (left, right), rank in ranks.items():
        text = left + right
        if text in stable and left in stable and right in stable:
            ways.setdefault(text, []).append(rank)
            made.append(text)
    runs = sum(1 for n, text in enumerate(made) if n == 0 or made[n - 1] != text)
    if runs == len(ways):
        return {text: found[0] for text, found in ways.items()}
    return {text: found[0] if len(found) == 1 else _last_merge(text, ranks, merges) for text, found in ways.items()}


def _last_merge(text: str, ranks: Mapping[tuple[str, str], int], merges: Sequence[Any]) -> int:
    """Follow the listed merges on one stable token; the place of the last one."""
    parts = list(text)
    none = len(merges)
    last = none
    while len(parts) > 1:
        found = [ranks.get(pair, none) for pair in itertools.pairwise(parts)]
        last = min(found)
        at = found.index(last)
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return last
