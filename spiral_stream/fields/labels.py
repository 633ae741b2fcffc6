"""`ShiftedLabels` and `Labels`: what a causal model is asked to predict.

Labels must be shifted once: here (`ShiftedLabels`) or by the model (`Labels`). Every ``...ForCausalLM`` of Hugging
Face's transformers shifts inside its loss. Given `ShiftedLabels`, such a model learns to predict the token after the
next one, and nothing shows it: the loss still falls.

The law between the two: shifting `Labels` one place to the left, and ignoring the last place, gives `ShiftedLabels`.
It holds for packed rows too.
"""

from dataclasses import dataclass
from typing import ClassVar, final

from spiral_stream.fields.sequence import WIDE, TokenField, TokenFill, check_dtype, check_value


class LabelField(TokenField):
    """Token ids that a loss compares with, and the value that it ignores."""

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
    """The next token, shape ``[B, T]``: ``labels[t] = tokens[t + 1]``, for a loss between ``logits[t]`` and ``labels[t]``.

    **Not for models that shift by themselves**, as Hugging Face's ``...ForCausalLM`` do when they are given
    ``labels=``: the labels would be shifted twice, silently. Use `Labels` for those.

    The last token of a piece has no next token and gets ``ignore_index``, as padding does. This includes pieces whose
    sample was truncated or continues in the next row: the loss ignores one token per cut.

    Args:
        column: the token column, the same as in `Pad`.
        ignore_index: the label that the loss ignores; -100 is the default of torch's ``cross_entropy``.
        dtype: ``"int64"``, which torch's ``cross_entropy`` needs, or ``"int32"``.
        device: where the field is delivered; None leaves it on the host.

    Raises:
        PlanError: the dtype is unknown, or cannot hold ``ignore_index``.

    Example:
        ```python
        fields={"input_ids": Pad("tokens"), "labels": ShiftedLabels("tokens")}
        loss = cross_entropy(logits.flatten(0, 1), batch["labels"].flatten())
        ```
    """

    KIND: ClassVar[TokenFill] = TokenFill.SHIFTED
    column: str
    ignore_index: int = -100
    dtype: str = "int64"
    device: str | None = None


@final
@dataclass(frozen=True, slots=True)
class Labels(LabelField):
    """The tokens themselves, shape ``[B, T]``, ``ignore_index`` at padding, **for models that shift by themselves**.

    Hugging Face's ``...ForCausalLM`` compare ``logits[t]`` with ``labels[t + 1]``. A loop that compares ``logits[t]``
    with ``labels[t]`` would train the model to copy its input: use `ShiftedLabels` there.

    In packed rows the first token of every piece after the row's first is ignored too. The model's shift would have it
    predicted from the token before it, which belongs to another sample.

    Args:
        column: the token column, the same as in `Pad`.
        ignore_index: the label that the loss ignores; -100 is what transformers expects.
        dtype: ``"int64"``, which torch's ``cross_entropy`` needs, or ``"int32"``.
        device: where the field is delivered; None leaves it on the host.

    Raises:
        PlanError: the dtype is unknown, or cannot hold ``ignore_index``.

    Example:
        ```python
        fields={"input_ids": Pad("tokens"), "attention_mask": PadMask("tokens"), "labels": Labels("tokens")}
        loss = model(**batch).loss
        ```
    """

    KIND: ClassVar[TokenFill] = TokenFill.LABELS
    column: str
    ignore_index: int = -100
    dtype: str = "int64"
    device: str | None = None
