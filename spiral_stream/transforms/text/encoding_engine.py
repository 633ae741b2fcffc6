"""Which tokenizers the compiled engine encodes, which documents it must not be given, and the engine itself.

It is used only where it is proven to give the ids of the tokenizers library. The proof has four parts:
`spiral_stream.transforms.text.byte_pairs` (merges), `spiral_stream.transforms.text.splitting` (words; both
`spiral_stream.transforms.text.sentencepiece` in the layouts of SentencePiece), and a test of both on every token of the
vocabulary and on every covered code point, placed among letters, digits, spaces, signs and itself. It is made once per
tokenizer and version of the library, and costs 3 to 5 s. It is stored in a small file next to the tokenizer, and made
again when a version changes.
"""

import hashlib
import json
import os
import tempfile
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spiral_stream.extras import need
from spiral_stream.transforms.text import _encode
from spiral_stream.transforms.text.byte_pairs import Merges, Uncovered, merges_of, texts_of
from spiral_stream.transforms.text.sentencepiece import added_texts, is_sentencepiece, texts_in
from spiral_stream.transforms.text.sentencepiece import tables_of as sentencepiece_tables_of
from spiral_stream.transforms.text.splitting import (
    Words,
    changeable,
    covered_points,
    cuts_theirs,
    letters_of,
    pattern_of,
    short_words,
    uncovered_points,
    words_of,
)
from spiral_stream.transforms.text.word_automaton import APART, TEXT

VERSION: Final = 3  # of the method; a change makes every proof anew
PROOF: Final = "proof.json"
STEPS: Final = 4  # that `prove` reports

_BLOCK: Final = 64  # code points encoded as one document in the confirmation
_MANY: Final = 20_000  # code points set apart above which the engine is not worth it
_ROW: Final = (1 << 24) - 1  # the part of a step that says where it leads
_SLACK: Final = 8  # ids that the engine may write past the last one
SHORT_BITS: Final = 17  # 131,072 lines of 64 bytes, two words of up to 15 bytes each; a quarter as many are 15 % slower
LONG_BITS: Final = 14  # 16,384 lines, one word of up to 31 bytes each
MEMO_BYTES: Final = (64 << SHORT_BITS) + (64 << LONG_BITS)  # for each thread that encodes, whatever it has read
_IDLE_IDS: Final = 1 << 20  # of room for ids that stay between two calls

Report = Callable[[int, str], None]


@final
@dataclass(frozen=True, slots=True)
class Proof:
    """The result of comparing the compiled engine with the tokenizers library, for one tokenizer."""

    covered: bool
    reason: str  # why not, or what was shown
    apart: tuple[tuple[int, int], ...]  # ranges of code points, ends included, that the engine must not see
    versions: Mapping[str, str]

    @property
    def current(self) -> bool:
        """Whether the proof is about the installed version of the library."""
        return dict(self.versions) == installed_versions()


def prove(data: bytes, report: Report = lambda _step, _what: None) -> Proof:
    """Compare both on a tokenizer.

    Args:
        data: the bytes of the ``tokenizer.json``.
        report: called with the number of steps done and the name of the next one.
    """
    tokenizer = json.loads(data)
    try:
        report(0, "merges")
        theirs, by_characters = _open_bare(tokenizer), is_sentencepiece(tokenizer)
        merges, words = tables_of(tokenizer)
        report(1, "words")
        unread = set(words.folded)
        if not by_characters:
            _check_words(words, tokenizer["pre_tokenizer"])
            unread |= changeable() if tokenizer.get("normalizer") is not None else set()
        core = Core(merges, words, ranges_of(unread, uncovered_points()))
        if by_characters:
            _check_texts(theirs, core, short_words(letters_of(words)))
        report(2, "tokens")
        vocab = tokenizer["model"]["vocab"]
        _check_texts(theirs, core, texts_in(vocab) if by_characters else _texts(vocab))
        report(3, "code points")
        differing = _differing(theirs, core, unread)
        if len(differing) > _MANY or any(point < 128 for point in differing):  # noqa: PLR2004  ASCII
            msg = f"the two engines differ on {len(differing):,} code points"
            raise Uncovered(msg)  # noqa: TRY301  one place turns findings into proofs
    except Uncovered as why:
        return Proof(False, str(why), (), installed_versions())
    finally:
        report(STEPS, "done")
    apart = unread | differing
    said = f"equal on {sum(1 for _ in covered_points()) - len(apart):,} code points; {len(apart):,} set apart"
    return Proof(True, said, tuple(ranges_of(apart, uncovered_points())), installed_versions())


def proof_next_to(path: Path, data: bytes) -> Proof:
    """Return the stored proof of a tokenizer file, or make one and store it if the folder can be written.

    Args:
        path: the tokenizer file; ``proof.json`` lies next to it.
        data: its bytes.
    """
    proof_file = path.with_name(PROOF)
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        saved = json.loads(proof_file.read_bytes())
        proof = Proof(
            saved["covered"], saved["reason"], tuple((low, high) for low, high in saved["apart"]), saved["versions"]
        )
        if proof.current and saved["tokenizer"] == _digest(data) and saved["proof"] == _sealed(proof):
            return proof
    proof = prove(data)
    with suppress(OSError):
        save(proof, data, proof_file)
    return proof


def save(proof: Proof, data: bytes, path: Path) -> None:
    """Write a proof atomically.

    Raises:
        OSError: the folder cannot be written.
    """
    text = json.dumps({**asdict(proof), "tokenizer": _digest(data), "proof": _sealed(proof)}, indent=1)
    handle, draft = tempfile.mkstemp(dir=path.parent, prefix=".proof-")
    with os.fdopen(handle, "w") as file:
        file.write(text)
        os.fchmod(handle, 0o644)  # the proof serves every user who may read the tokenizer
    Path(draft).replace(path)


@final
class Core:
    """The compiled engine with the tables of a tokenizer. Thread-safe.

    It keeps `MEMO_BYTES` for each thread that encodes at the same time as others, and room for the ids of one call.
    """

    def __init__(
        self, merges: Merges, words: Words, apart: Iterable[tuple[int, int]], texts: Iterable[str] = ()
    ) -> None:
        """Build the tables: 0.1 s for 128,000 tokens.

        Args:
            merges: what becomes of a word.
            words: what is a word.
            apart: ranges of code points, ends included; a document with one of them is left out.
            texts: a document with one of them is left out too.
        """
        held = sorted({text.encode() for text in texts if text})
        width, kinds, steps = _tables(words, apart, {text.decode()[0] for text in held})
        tokens = list(merges.tokens)
        self.tables = _encode.engine(
            *(width, words.automaton.start // words.automaton.width * width, kinds, steps),
            *(merges.of_byte, merges.left, merges.right, merges.made),
            *(b"".join(tokens), _ends(tokens), np.array(list(merges.tokens.values()), np.uint32)),
            *(b"".join(held), _ends(held)),
            np.array(list(merges.characters.items()), np.uint32).ravel(),
            merges.unknown,
            merges.fused,
            merges.before,
        )
        self.idle: list[tuple[Any, NDArray[np.uint32]]] = []  # a memo, and room for ids

    def encode(self, documents: pa.Array, dtype: Any = np.uint32) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Encode documents.

        Args:
            documents: S texts, large_utf8, none null; they are valid UTF-8.
            dtype: of the ids.

        Returns:
            ids: shape [N], of ``dtype``: the ids of all documents that are not left out, end to end.
            counts: shape [S], int64: the number of ids per document; -1 for one that is left out.
        """
        _, ends, text = documents.buffers()
        offsets = np.frombuffer(ends, np.int64)[documents.offset : documents.offset + len(documents) + 1]
        counts = np.empty(len(documents), np.int64)
        room = int(offsets[-1] - offsets[0]) + len(documents) + _SLACK
        try:
            memo, out = self.idle.pop()
        except IndexError:  # as many threads encode as never before
            memo, out = _encode.memo(SHORT_BITS, LONG_BITS), np.empty(0, np.uint32)
        if len(out) < room:
            out = np.empty(room, np.uint32)
        number, _ = _encode.encode(self.tables, memo, text if text is not None else b"", offsets, out, counts)
        ids = out[:number].astype(dtype)
        self.idle.append((memo, out if len(out) <= _IDLE_IDS else np.empty(0, np.uint32)))
        return ids, counts


def _tables(
    words: Words, apart: Iterable[tuple[int, int]], begin: Iterable[str]
) -> tuple[int, NDArray[np.uint8], NDArray[np.uint32]]:
    """The automaton's table with a kind for what is set apart, and kinds for code points that added tokens begin with."""
    automaton = words.automaton
    plain = automaton.steps.reshape(-1, automaton.width)
    kinds, kinds_number = words.kinds.copy(), automaton.width - 1
    points = sorted(map(ord, begin))
    doubled = np.unique(kinds[points])
    kinds[points] = kinds_number + np.searchsorted(doubled, kinds[points])
    lost = kinds_number + len(doubled)
    for low, high in apart:
        kinds[low : high + 1] = lost
    width = lost + 2
    steps = np.empty((len(plain), width), np.uint32)
    steps[:, :kinds_number], steps[:, -1] = plain[:, :-1], plain[:, -1]
    steps[:, kinds_number:lost] = plain[:, doubled] | TEXT
    steps[:, lost] = APART
    rows = (steps & np.uint32(_ROW)) // np.uint32(automaton.width) * np.uint32(width)
    return width, kinds, (steps & ~np.uint32(_ROW) | rows).ravel().astype(np.uint32)


def _ends(texts: Sequence[bytes]) -> NDArray[np.int64]:
    return np.cumsum(np.fromiter(map(len, texts), np.int64, len(texts)))


def _check_words(words: Words, pre_tokenizer: Mapping[str, Any]) -> None:
    """Split all short words over one letter of each kind with both.

    Every word is a token that is taken whole, so each pre-token is one id and the ids tell the cuts.

    Raises:
        Uncovered: they split one differently.
    """
    texts = short_words(letters_of(words))
    none = np.empty(0, np.uint32)
    tokens = {text.encode(): number for number, text in enumerate(texts)}
    merges = Merges(np.full(256, len(texts), np.uint32), none, none, none, tokens)
    for text, one, other in zip(
        texts, cuts_theirs(pre_tokenizer, texts), _lists(Core(merges, words, ()), texts), strict=True
    ):
        if one != other:
            msg = f"the two engines split {text!r} differently"
            raise Uncovered(msg)


def _texts(vocab: Mapping[str, int]) -> list[str]:
    """Every token of the vocabulary that is text."""
    texts = []
    for token in texts_of(vocab):
        with suppress(UnicodeDecodeError):
            texts.append(token.decode())
    return texts


def _check_texts(theirs: Any, core: Core, texts: Sequence[str]) -> None:
    """Encode texts with both.

    Raises:
        Uncovered: they encode one differently.
    """
    found = theirs.encode_batch_fast(texts, add_special_tokens=False)
    for text, one, other in zip(texts, found, _lists(core, texts), strict=True):
        if other is not None and one.ids != other:
            msg = f"the two engines encode {text!r} differently"
            raise Uncovered(msg)


def _differing(theirs: Any, core: Core, known: set[int]) -> set[int]:
    """The code points, besides the known ones, whose documents the two encode differently."""
    points = [point for point in covered_points() if point not in known]
    blocks = [points[at : at + _BLOCK] for at in range(0, len(points), _BLOCK)]
    suspects = [point for block in _unequal(theirs, core, blocks) for point in block]
    return {block[0] for block in _unequal(theirs, core, [[point] for point in suspects])}


def _unequal(theirs: Any, core: Core, blocks: Sequence[Sequence[int]]) -> list[Sequence[int]]:
    """The blocks whose documents are encoded differently."""
    documents = ["".join(_surrounded(chr(point)) for point in block) for block in blocks]
    found = theirs.encode_batch_fast(documents, add_special_tokens=False)
    ours = _lists(core, documents)
    return [block for block, one, other in zip(blocks, found, ours, strict=True) if one.ids != other]


def _lists(core: Core, texts: Sequence[str]) -> list[list[int] | None]:
    """The ids of each text; None for one that is left out."""
    ids, counts = core.encode(pa.array(texts, pa.large_utf8()))
    ends = np.cumsum(np.maximum(counts, 0)).tolist()
    flat = ids.tolist()
    return [flat[end - count : end] if count >= 0 else None for end, count in zip(ends, counts.tolist(), strict=True)]


def _open_bare(tokenizer: Mapping[str, Any]) -> Any:
    """The tokenizer without added tokens, and without what comes behind its model."""
    from tokenizers import Tokenizer

    none = dict.fromkeys(("truncation", "padding", "post_processor", "decoder"))
    parts = {name: tokenizer.get(name) for name in ("normalizer", "pre_tokenizer", "model")}
    return Tokenizer.from_str(json.dumps({**none, **parts, "version": "1.0", "added_tokens": []}))


def _surrounded(letter: str) -> str:
    """A code point among a letter, a digit, blanks, an apostrophe, itself and a line's end."""
    return f"a{letter}1 {letter}{letter}'{letter}\n{letter}  "


def ranges_of(points: Iterable[int], more: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The points as ranges, in order."""
    found: list[tuple[int, int]] = []
    for low, high in sorted([*((point, point) for point in points), *more]):
        if found and low <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(high, found[-1][1]))
        else:
            found.append((low, high))
    return found


def tables_of(tokenizer: Mapping[str, Any]) -> tuple[Merges, Words]:
    """What becomes of a word, and what is a word: 0.5 to 1 s.

    Raises:
        Uncovered: the engine does not do what the tokenizer does.
    """
    if is_sentencepiece(tokenizer):
        added_texts(tokenizer)
        return sentencepiece_tables_of(tokenizer)
    pattern = pattern_of(tokenizer.get("pre_tokenizer"))
    return merges_of(tokenizer), words_of(pattern)


def core_of(tokenizer: Mapping[str, Any], proof: Proof) -> "Core":
    """The engine of a tokenizer that a proof covers."""
    contents = (entry["content"] for entry in tokenizer.get("added_tokens", ()))
    added = added_texts(tokenizer) if is_sentencepiece(tokenizer) else texts_apart(contents)
    return Core(*tables_of(tokenizer), proof.apart, added)


def texts_apart(literals: Iterable[str]) -> set[str]:
    """The texts of added tokens, as they stand in a document and as NFC would have them."""
    literals = set(literals)
    return literals | {unicodedata.normalize("NFC", text) for text in literals}


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _sealed(proof: Proof) -> str:
    """The digest of a proof, by which damage to its file is found."""
    return _digest(json.dumps(asdict(proof), sort_keys=True).encode())


def installed_versions() -> dict[str, str]:
    """Return what a proof depends on: its method, and the version of the tokenizers library."""
    from importlib.metadata import version

    need("tokenizers", "Tokenize")
    return {"method": str(VERSION), "tokenizers": version("tokenizers")}
