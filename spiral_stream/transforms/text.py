"""What tokenizing is in a plan: `Tokenize`, a frozen value; `spiral_stream.transforms.encoder` runs it."""

from dataclasses import dataclass
from typing import ClassVar, final

from spiral_stream.errors import PlanError, shown
from spiral_stream.transforms.transform import Transform


@final
@dataclass(frozen=True)
class Tokenize(Transform):
    """The token ids of a text column: ``Tokenize("text", tokenizer="llama-tokenizer") >> "tokens"``.

    A row's tokens are the text's, with what the tokenizer's post-processor puts around them, then the separator.

    Args:
        column: the text column.
        tokenizer: its name in the catalog (`Catalog.register_tokenizer`), or the path of a ``tokenizer.json``.
        special_tokens: whether the post-processor's tokens (begin, end) are added.
        max_length: most tokens a row, specials and separator included; the text is cut at its end.
        separator: text of a token that ends every document, such as ``<|endoftext|>``.
    """

    NAME: ClassVar[str] = "tokenize"

    column: str
    tokenizer: str
    special_tokens: bool = True
    max_length: int | None = None
    separator: str | None = None

    def __post_init__(self) -> None:
        for what, value in (("column", self.column), ("tokenizer", self.tokenizer)):
            if not isinstance(value, str) or not value:
                meaning = "the name of a text column" if what == "column" else "a registered name or a path"
                msg = f"Tokenize: {what} is {shown(value)}; give {meaning}"
                raise PlanError(msg)
        if not isinstance(self.special_tokens, bool):
            msg = f"Tokenize: special_tokens is {shown(self.special_tokens)}; give True or False"
            raise PlanError(msg)
        length = self.max_length
        if length is not None and (isinstance(length, bool) or not isinstance(length, int) or length < 1):
            msg = f"Tokenize: max_length is {shown(length)}; give a whole number of tokens from 1 on, or None for no limit"
            raise PlanError(msg)
        if self.separator is not None and (not isinstance(self.separator, str) or not self.separator):
            msg = f"Tokenize: separator is {shown(self.separator)}; give the text of a token, or None for no separator"
            raise PlanError(msg)

    @property
    def deterministic(self) -> bool:
        return True
