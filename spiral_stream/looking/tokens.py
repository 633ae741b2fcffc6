"""What each token of a text is in the text, from a tokenizer that only decodes whole lists.

A token is what the text grows by when it is decoded too, after the few tokens before it: tokenizers join words, drop a
leading space, or need several tokens for one character. Tokens that only together make a character are one piece.
Two short decodings per token.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, final

_PART: Final = "\ufffd"  # what stands for a part of a character
_MOST: Final = 8  # tokens that one piece waits for

Decode = Callable[[Sequence[int]], str]
Piece = tuple[str, tuple[int, ...]]


@final
@dataclass(frozen=True, slots=True)
class Document:
    """A text and its tokens.

    Attributes:
        pieces: the text in order, each part with the tokens that make it.
        left: how many tokens are not decoded.
    """

    pieces: tuple[Piece, ...]
    left: int = 0

    @property
    def text(self) -> str:
        """The text."""
        return "".join(text for text, _ in self.pieces)

    def __str__(self) -> str:
        return self.text + ("" if not self.left else f" … and {self.left:,} more tokens")


def document(ids: Sequence[int], decode: Decode | None, left: int = 0) -> Document:
    """Return tokens with what they are in the text.

    Args:
        ids: the tokens.
        decode: makes a text of tokens; None writes their numbers.
        left: how many tokens come after them.
    """
    if decode is None:
        return Document(tuple((f"{'' if k == 0 else ' '}{each}", (each,)) for k, each in enumerate(ids)), left)
    pieces: list[Piece] = []
    begin = at = 0  # the tokens whose text is known, and from where on the next is decoded after them
    for k in range(len(ids)):
        before, after = decode(ids[begin:at]), decode(ids[begin : k + 1])
        whole = after.startswith(before) and len(after) > len(before) and not after.endswith(_PART)
        if whole or k + 1 == len(ids) or k - at >= _MOST:
            text = after[len(before) :] if after.startswith(before) else decode(ids[at : k + 1])
            pieces.append((text, tuple(ids[at : k + 1])))
            begin, at = at, k + 1
    return Document(tuple(pieces), left)
