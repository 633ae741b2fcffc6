"""`Tokenize`: how a plan turns text into token ids. `spiral_stream.transforms.text.encoder` runs it."""

from dataclasses import dataclass
from typing import ClassVar, Final, final

from spiral_stream.arguments import FLAG, check, class_door, text
from spiral_stream.errors import PlanError
from spiral_stream.transforms.transform import MOST_TOKENS, TOKENIZER, Transform

_SEPARATOR: Final = text("the text of a token, or None for no separator", none=True)


@final
@class_door(PlanError)
@dataclass(frozen=True)
class Tokenize(Transform):
    """Turn a text column into a column of token ids, lists of uint16 or uint32.

    The tokens of a row are those of its text, with the special tokens that the tokenizer puts around them, and then
    the separator.

    Args:
        column: a column of text (utf8), or of UTF-8 bytes.
        tokenizer: its name in the catalog (`Catalog.register_tokenizer`), or the path of a ``tokenizer.json``.
        special_tokens: whether to add the special tokens of the tokenizer's post-processor, such as begin and end.
        max_length: most tokens per row, special tokens and separator included; the text is cut at its end. None cuts
            nothing.
        separator: the text of a token that ends every document, such as ``<|endoftext|>``; None adds none.

    Raises:
        PlanError: an argument is of the wrong type, or out of range.

    Examples:
        >>> from tokenizers import Tokenizer, models, pre_tokenizers
        >>> tokenizer = Tokenizer(models.WordLevel({"fox": 0, "owl": 1, "?": 2}, unk_token="?"))
        >>> tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        >>> entry = catalog.register_tokenizer("words", tokenizer)
        >>> named = (
        ...     texts.drop("tokens")
        ...     .sample(order=shuffle)
        ...     .map(spiral.Tokenize("text", tokenizer="words") >> "tokens")
        ... )
        >>> named.collate(batch_size=8, fields={"input_ids": spiral.Pad("tokens")}).to_numpy()[0]["input_ids"].shape
        (8, 5)
    """

    NAME: ClassVar[str] = "tokenize"
    deterministic: ClassVar[bool] = True

    column: str
    tokenizer: str
    special_tokens: bool = True
    max_length: int | None = None
    separator: str | None = None

    def __post_init__(self) -> None:
        check(self, "Tokenize", " is ", column=text("the name of a text column"), tokenizer=TOKENIZER)
        check(self, "Tokenize", " is ", special_tokens=FLAG, max_length=MOST_TOKENS, separator=_SEPARATOR)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that it reads."""
        return (self.column,)
