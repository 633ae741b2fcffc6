"""Which engine may encode a tokenizer's documents, and which documents it must not be given.

The proof has three parts: `spiral_stream.transforms.text.byte_pairs` (merges), `spiral_stream.transforms.text.splitting`
(pre-tokens), and a test of both engines on every covered code point, placed among letters, digits, spaces, signs and
itself. It is made once per tokenizer and versions of the two libraries, and costs 3 to 5 s. It is stored in a small file
next to the tokenizer, and made again when a version changes. tiktoken serves only what is proven. It comes with the extra
``fast-text``: without it nothing is compared or kept, and the tokenizers library encodes everything, to the same ids.
"""

import hashlib
import json
import os
import re
import tempfile
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, final

import numpy as np

from spiral_stream.extras import is_installed, need
from spiral_stream.transforms.text.byte_pairs import Twin, Uncovered, bare, twin_of
from spiral_stream.transforms.text.splitting import (
    SEPARATOR,
    changeable,
    covered_points,
    disagreements,
    pattern_of,
    respelled,
    uncovered_points,
)

VERSION: Final = 1  # of the method; a change makes every proof anew
PROOF: Final = "proof.json"
STEPS: Final = 4  # that `prove` reports

UNCOMPARED: Final = (
    "tiktoken was not installed; spiral-stream[fast-text] brings it, and it encodes faster, to the same ids"
)

_BLOCK: Final = 64  # code points encoded as one document in the confirmation
_MANY: Final = 20_000  # code points set apart above which the twin is not worth it

Report = Callable[[int, str], None]


@final
@dataclass(frozen=True, slots=True)
class Proof:
    """The result of comparing a tokenizer with its twin."""

    covered: bool
    reason: str  # why not, or what was shown
    apart: tuple[tuple[int, int], ...]  # ranges of code points, ends included, that the twin must not see
    versions: Mapping[str, str]

    @property
    def compared(self) -> bool:
        """Whether both engines were there; if not, the proof says so and is worth no file."""
        return bool(self.versions)

    @property
    def current(self) -> bool:
        """Whether the proof is about the installed versions of the libraries."""
        return dict(self.versions) == installed_versions()


def prove(data: bytes, report: Report = lambda _step, _what: None) -> Proof:
    """Compare both engines on a tokenizer.

    Args:
        data: the bytes of the ``tokenizer.json``.
        report: called with the number of steps done and the name of the next one.
    """
    if not is_installed("tiktoken"):
        report(STEPS, "done")
        return Proof(False, UNCOMPARED, (), {})
    tokenizer = json.loads(data)
    try:
        report(0, "merges")
        pattern = pattern_of(tokenizer.get("pre_tokenizer"))
        twin = twin_of(tokenizer)
        report(1, "character classes")
        differing = disagreements(pattern, tokenizer["pre_tokenizer"])
        report(2, "code points")
        unread = changeable() if tokenizer.get("normalizer") is not None else set()
        differing |= _confirmed(tokenizer, Core(twin, pattern), differing | unread)
        if len(differing) > _MANY or any(point < 128 for point in differing):  # noqa: PLR2004  ASCII
            msg = f"the engines differ on {len(differing)} code points"
            raise Uncovered(msg)  # noqa: TRY301  one place turns findings into proofs
    except (Uncovered, ValueError) as why:  # tiktoken raises ValueError for a pattern that it cannot run
        return Proof(False, str(why), (), installed_versions())
    finally:
        report(STEPS, "done")
    apart = differing | unread
    said = f"equal on {sum(1 for _ in covered_points()) - len(apart):,} code points; {len(apart):,} set apart"
    return Proof(True, said, tuple(ranges_of(apart, uncovered_points())), installed_versions())


def proof_next_to(path: Path, data: bytes) -> Proof:
    """Return the stored proof of a tokenizer file, or make one and store it if the folder can be written.

    Where tiktoken is not installed, what is stored stays as it is.

    Args:
        path: the tokenizer file; ``proof.json`` lies next to it.
        data: its bytes.
    """
    if not is_installed("tiktoken"):
        return prove(data)
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
    """tiktoken with a twin's table. It encodes many documents in one call, and returns their ids in one array."""

    def __init__(self, twin: Twin, pattern: str) -> None:
        need("tiktoken", "Tokenize")
        from tiktoken._tiktoken import CoreBPE

        self._between = len(twin.ranks)
        self._core = CoreBPE(dict(twin.ranks), {SEPARATOR: self._between}, respelled(pattern))
        self._ids = twin.ids

    def encode(self, joined: str) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Encode documents that are joined by `SEPARATOR`.

        Returns:
            ids: shape [N], uint32: the ids of all documents.
            counts: shape [S], int64: the number of ids per document.

        Raises:
            ValueError: a document overflows the regex engine's stack (about a million blanks in a row).
        """
        ranks = np.frombuffer(self._core.encode_to_tiktoken_buffer(joined, {SEPARATOR}), dtype=np.uint32)
        ends = np.flatnonzero(ranks == self._between)
        counts = np.diff(ends, prepend=-1, append=len(ranks)) - 1
        return self._ids[ranks[ranks != self._between] if len(ends) else ranks], counts


def _confirmed(tokenizer: Mapping[str, Any], core: Core, known: set[int]) -> set[int]:
    """The code points, besides the known ones, whose documents the two engines encode differently."""
    from tokenizers import Tokenizer

    theirs = Tokenizer.from_str(bare(tokenizer, pre_tokenizer=True))
    points = [point for point in covered_points() if point not in known]
    blocks = [points[at : at + _BLOCK] for at in range(0, len(points), _BLOCK)]
    suspects = [point for block in _unequal(theirs, core, blocks) for point in block]
    return {block[0] for block in _unequal(theirs, core, [[point] for point in suspects])}


def _unequal(theirs: Any, core: Core, blocks: Sequence[Sequence[int]]) -> list[Sequence[int]]:
    """The blocks whose documents are encoded differently."""
    if not blocks:
        return []
    documents = ["".join(_surrounded(chr(point)) for point in block) for block in blocks]
    ids, counts = core.encode(SEPARATOR.join(documents))
    ours = np.split(ids, np.cumsum(counts)[:-1])
    found = theirs.encode_batch_fast(documents, add_special_tokens=False)
    return [
        block
        for block, one, other in zip(blocks, found, ours, strict=True)
        if not np.array_equal(np.array(one.ids, dtype=np.uint32), other)
    ]


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


def apart_pattern(proof: Proof, literals: Sequence[str]) -> str:
    """Return an RE2 pattern that finds the texts that the twin must not see.

    Args:
        proof: its excluded code points are found.
        literals: texts of added tokens.
    """
    texts = {*literals, *(unicodedata.normalize("NFC", text) for text in literals), SEPARATOR}
    parts = [re.sub(r"([!-/:-@\[-^`{-~])", r"\\\1", text) for text in sorted(texts)]
    ranges = "".join(f"\\x{{{low:X}}}-\\x{{{high:X}}}" for low, high in proof.apart)
    return "|".join([*parts, f"[{ranges}]"] if ranges else parts)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _sealed(proof: Proof) -> str:
    """The digest of a proof, by which damage to its file is found."""
    return _digest(json.dumps(asdict(proof), sort_keys=True).encode())


def installed_versions() -> dict[str, str]:
    """Return what a proof depends on: its method, and the versions of both libraries."""
    need("tiktoken", "Tokenize")
    return {"method": str(VERSION), "tokenizers": version("tokenizers"), "tiktoken": version("tiktoken")}
