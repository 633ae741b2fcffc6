"""`ShiftedLabels` and `Labels`: what a causal model is asked to predict.

Labels must be shifted once: here (`ShiftedLabels`) or by the model (`Labels`). Every ``...ForCausalLM`` of Hugging
Face's transformers shifts inside its loss. Given `ShiftedLabels`, such a model learns to predict the token after the
next one, and nothing shows it: the loss still falls.

The law between the two: shifting `Labels` one place to the left, and ignoring the last place, gives `ShiftedLabels`.
It holds for packed rows too, and with a mask, which says of each token whether it is a label.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spiral_stream.arguments import check, class_door, is_integer, text
from spiral_stream.errors import DataError, PlanError
from spiral_stream.fields.field import named, settle_dtype
from spiral_stream.fields.ragged import Ragged
from spiral_stream.fields.sequence import (
    INTEGERS,
    NARROW,
    SequenceLayout,
    TokenField,
    TokenFill,
    check_value,
    is_tokens,
)


@dataclass(frozen=True, slots=True)
class LabelField(TokenField):
    """Token ids that a loss compares with, and the value that it ignores."""

    column: str
    ignore_index: int = -100
    dtype: str | Any = "int64"
    device: str | None = None
    mask: str | None = None

    def __post_init__(self) -> None:
        settle_dtype(self, INTEGERS)
        self._need_no_sign()
        check_value(self, "ignore_index")
        other = "the column of the loss mask, such as the second one of a ChatTemplate"
        check(self, named(self), mask=text(other, none=True, besides=self.column, verb="Name"))

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.column,) if self.mask is None else (self.column, self.mask)

    def need_column(self, where: str, column: pa.Field) -> None:
        need_mask(where, column)

    def _need_no_sign(self) -> None:
        """Refuse the negative value that a loss ignores, where the dtype has no sign."""
        if self.dtype == NARROW and is_integer(self.ignore_index) and self.ignore_index < 0:
            msg = (
                f"{named(self)}: dtype='uint16' has no sign, and ignore_index={self.ignore_index}. Give a number that is no id, "
                'such as ignore_index=65_535, to the loss too; or leave labels dtype="int64"'
            )
            raise PlanError(msg)

    @property
    def padding(self) -> int:
        return self.ignore_index

    @property
    def too_wide(self) -> str:
        return (
            f"a token does not fit dtype uint16, which holds ids from 0 to 65,535, or it is ignore_index={self.ignore_index}, "
            'and the loss would ignore it. Give another ignore_index, or dtype="int64"'
        )

    def ignore(self, mask: Ragged, tokens: Ragged, layout: SequenceLayout, out_BT: NDArray[Any]) -> None:
        """Put ``ignore_index`` where the mask of the token that is a label is 0.

        Args:
            mask: S sequences of 0 and 1, as long as those of the tokens.
            tokens: S sequences.
            layout: where their pieces lie.
            out_BT: shape [B, T], as `fill_tokens` left it.

        Raises:
            DataError: a mask has another length than its tokens, or another value; ``row`` is its place.
        """
        unlike = np.flatnonzero((mask.lengths != tokens.lengths) & (tokens.lengths > 0))
        if len(unlike):
            row = int(unlike[0])
            msg = (
                f"{named(self)}: it has {tokens.lengths[row]:,} tokens, and {mask.lengths[row]:,} "
                f"values in mask={self.mask!r}. A mask has one value per token: mend the row, or filter it out"
            )
            raise DataError(msg, row=row)
        counts_BT = np.empty(out_BT.shape, np.int32)
        lengths = np.where(tokens.lengths > 0, mask.lengths, 0)
        counted = Ragged(mask.addresses, lengths, mask.item_bytes, mask.signed, mask.owners)
        refused = layout.write(counted, (self.KIND, 0, counts_BT.itemsize), (counts_BT,))
        if refused < 0 and counts_BT.view(np.uint32).max(initial=0) > 1:
            refused = _segment_at(layout, *(int(each[0]) for each in np.nonzero(counts_BT.view(np.uint32) > 1)))
        if refused >= 0:
            msg = (
                f"{named(self)}: mask={self.mask!r} has a value that is neither 0 nor 1. It says which "
                "tokens are trained on, not what they are: store 1 for those, and 0"
            )
            raise DataError(msg, row=refused)
        np.copyto(out_BT, self.ignore_index, where=counts_BT == 0)


@final
@class_door(PlanError, excepted=("column", "mask"))
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
        dtype: ``"int64"``, which torch's ``cross_entropy`` needs, ``"int32"``, or ``"uint16"``, which torch gets as int64. It
            has no sign: say ``ignore_index=65_535`` here and to the loss. A token that is this number is a `DataError`.
        device: where the field is delivered; None leaves it on the host.
        mask: a column of lists of 0 and 1, one value per token: a token with 0 is no label. None makes all tokens labels.

    Raises:
        PlanError: the dtype is unknown, or cannot hold ``ignore_index``.

    Examples:
        >>> fields = {"input_ids": spiral.Pad("tokens"), "labels": spiral.ShiftedLabels("tokens")}
        >>> documents.collate(batch_size=2, fields=fields).to_numpy()[0]["labels"].tolist()
        [[19, 19, 19, 19, -100], [17, 17, -100, -100, -100]]
    """

    KIND: ClassVar[TokenFill] = TokenFill.SHIFTED


@final
@class_door(PlanError, excepted=("column", "mask"))
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
        dtype: ``"int64"``, which torch's ``cross_entropy`` needs, ``"int32"``, or ``"uint16"``, which torch gets as int64. It
            has no sign: say ``ignore_index=65_535`` here and to the loss. A token that is this number is a `DataError`.
        device: where the field is delivered; None leaves it on the host.
        mask: a column of lists of 0 and 1, one value per token: a token with 0 is no label. None makes all tokens labels.

    Raises:
        PlanError: the dtype is unknown, or cannot hold ``ignore_index``.

    Examples:
        >>> fields = {"input_ids": spiral.Pad("tokens"), "labels": spiral.fields.Labels("tokens")}
        >>> documents.collate(batch_size=2, fields=fields).to_numpy()[0]["labels"].tolist()
        [[19, 19, 19, 19, 19], [17, 17, 17, -100, -100]]
    """

    KIND: ClassVar[TokenFill] = TokenFill.LABELS


def _segment_at(layout: SequenceLayout, row: int, cell: int) -> int:
    """Which piece covers a place of a batch."""
    return int(np.flatnonzero((layout.rows == row) & (layout.starts <= cell))[-1])


def need_mask(where: str, column: pa.Field) -> None:
    """Refuse a mask that is no column of lists of integers.

    Raises:
        PlanError: says what it is.
    """
    if not is_tokens(column.type):
        msg = (
            f"{where}: mask={column.name!r} is {column.type}. Name a column of lists of 0 and 1, such as the second one of "
            'ChatTemplate(...) >> ("tokens", "loss_mask"); of truth values, cast it to uint8'
        )
        raise PlanError(msg)
