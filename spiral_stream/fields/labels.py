"""`ShiftedLabels` and `Labels`: what a causal model is asked to predict, shifted here or by the model.

Take one, never both shifts. A model that shifts by itself (every ``...ForCausalLM`` of Hugging Face's
transformers does, inside its loss) learns to predict the token after the next if it is given
`ShiftedLabels`; the loss still falls, so nothing tells. The law between the two: shifting `Labels`
by one place to the left, ignoring the last, gives `ShiftedLabels`, packed rows included.
"""

from dataclasses import dataclass
from typing import ClassVar, final

from spiral_stream.fields.sequence import WIDE, TokenField, TokenFill, check_dtype, check_value


class LabelField(TokenField):
    """Tokens as what a loss compares with, and a value that it leaves out."""

    ignore_index: int

    def __post_init__(self) -> None:
        check_dtype(self, WIDE)
        check_value(self, "ignore_index")

    @property
    def padding(self) -> int:
        return self.ignore_index


@final
@dataclass(frozen=True, slots=True)
class ShiftedLabels(LabelField):
    """The next token: ``labels[t] = tokens[t + 1]``, for a loss between ``logits[t]`` and ``labels[t]``.

    **Not for models that shift by themselves**, as Hugging Face's ``...ForCausalLM`` do when they are given
    ``labels=``: they would shift twice, silently. Give those `Labels`.

    The last token of each piece has nothing to predict and gets ``ignore_index``, as padding does. So does the
    last token of a piece whose sample was truncated, or goes on in the next row (``concat_and_split``): the next
    token is known there, but not part of the row; one token a cut is not trained on.

    Args:
        column: the column that `Pad` names.
        ignore_index: what the loss leaves out; -100 is the default of torch's ``cross_entropy``.
        dtype: ``"int64"``, which torch's ``cross_entropy`` wants, or ``"int32"``.
        device: where the field is delivered; None leaves it on the host.
    """

    KIND: ClassVar[TokenFill] = TokenFill.SHIFTED
    column: str
    ignore_index: int = -100
    dtype: str = "int64"
    device: str | None = None


@final
@dataclass(frozen=True, slots=True)
class Labels(LabelField):
    """The tokens themselves, ``ignore_index`` at padding, **for models that shift by themselves**.

    Hugging Face's ``...ForCausalLM`` compare ``logits[t]`` with ``labels[t + 1]``. A loop that computes its own
    loss between ``logits[t]`` and ``labels[t]`` would train a copy machine with these: give it `ShiftedLabels`.

    In packed rows the first token of each piece but the row's first is ignored too: the place before it, which
    the model's shift would ask for it, belongs to another sample.

    Args:
        column: the column that `Pad` names.
        ignore_index: what the loss leaves out; -100 is what transformers expects.
        dtype: ``"int64"``, which torch's ``cross_entropy`` wants, or ``"int32"``.
        device: where the field is delivered; None leaves it on the host.
    """

    KIND: ClassVar[TokenFill] = TokenFill.LABELS
    column: str
    ignore_index: int = -100
    dtype: str = "int64"
    device: str | None = None
