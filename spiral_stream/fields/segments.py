"""`Segments`, `Positions`, `CuSeqlens`: how a model tells the samples of a packed row apart.

Three spellings of one fact, for three kinds of attention: block masks from segment numbers (JAX,
Transformer Engine, flex attention), position embeddings that restart, and FlashAttention's
``varlen`` functions, which take cumulated lengths of the flattened batch.
"""

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np
from numpy.typing import NDArray

from spiral_stream.errors import PlanError
from spiral_stream.fields.sequence import WIDE, Placed, SequenceField, TokenField, TokenFill, check_dtype


@final
@dataclass(frozen=True, slots=True)
class Segments(TokenField):
    """``[B, T]``: 1 on the row's first piece, 2 on its second ..., 0 at padding. Empty pieces take no number.

    Tokens may see each other where the numbers agree: ``segments[:, :, None] == segments[:, None, :]``.

    Args:
        column: the column that `Pad` names.
        dtype: ``"int32"`` or ``"int64"``.
        device: where the field is delivered; None leaves it on the host.
    """

    KIND: ClassVar[TokenFill] = TokenFill.SEGMENTS
    column: str
    dtype: str = "int32"
    device: str | None = None

    def __post_init__(self) -> None:
        check_dtype(self, WIDE)


@final
@dataclass(frozen=True, slots=True)
class Positions(TokenField):
    """``[B, T]``: 0, 1, 2, ... inside each piece, 0 at padding: ``position_ids``.

    They count places in the piece, not in the sample: what a split sample has in its next row begins at 0 again.

    Args:
        column: the column that `Pad` names.
        dtype: ``"int64"``, as transformers has them, or ``"int32"``.
        device: where the field is delivered; None leaves it on the host.
    """

    KIND: ClassVar[TokenFill] = TokenFill.POSITIONS
    column: str
    dtype: str = "int64"
    device: str | None = None

    def __post_init__(self) -> None:
        check_dtype(self, WIDE)


@final
@dataclass(frozen=True, slots=True)
class CuSeqlens(SequenceField):
    """``[N + 1]`` int32: where the N segments of the batch, flattened to ``[B * T]``, begin, and ``B * T``.

    What ``flash_attn_varlen_func`` takes as ``cu_seqlens_q`` and ``cu_seqlens_k`` (transformers:
    ``cu_seq_lens_q``, ``cu_seq_lens_k``, without an ``attention_mask``) beside queries of shape
    ``[B * T, heads, width]``; the longest segment it also wants is ``diff(cu).max()``.

    **Padding is a segment too**: the end of each row that no piece covers. So the numbers address the flattened
    batch as it is, nothing need be unpadded, and what attention computes at padding reaches no token; labels
    ignore it. N is the number of pieces that have tokens only where there is no padding. Empty pieces are no segment.

    Args:
        column: the column that `Pad` names.
        device: where the field is delivered; None leaves it on the host.
    """

    IN_SLOT: ClassVar[bool] = False
    column: str
    device: str | None = None

    @property
    def dtype_name(self) -> str:
        return "int32"

    def cu_seqlens(self, placed: Placed) -> NDArray[np.int32]:
        """The array of one batch.

        Args:
            placed: where the pieces of the whole batch lie.

        Returns:
            shape [N + 1], int32, strictly ascending from 0 to B * T.

        Raises:
            PlanError: B * T does not fit int32.
        """
        total = placed.B * placed.T
        if total > np.iinfo(np.int32).max:
            msg = (
                f"CuSeqlens({self.column!r}): the batch has {placed.B} x {placed.T} places; "
                "FlashAttention addresses less than 2**31. Lower max_tokens"
            )
            raise PlanError(msg)
        real = placed.lengths > 0
        begins = (placed.rows * placed.T + placed.starts)[real]
        borders = (np.arange(placed.B + 1) * placed.T, begins, begins + placed.lengths[real])
        return np.unique(np.concatenate(borders)).astype(np.int32)
