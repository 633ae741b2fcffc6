"""`Segments`, `Positions`, `CuSeqlens`: how a model tells the samples of a packed row apart.

They say the same in three forms, for three kinds of model:

* `Segments`: block masks from segment numbers (JAX, Transformer Engine, flex attention).
* `Positions`: position embeddings that restart with each sample.
* `CuSeqlens`: FlashAttention's ``varlen`` functions, which take cumulated lengths of the flattened batch.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np
from numpy.typing import NDArray

from spiral_stream.arguments import class_door
from spiral_stream.errors import PlanError
from spiral_stream.fields.field import named, settle_dtype
from spiral_stream.fields.sequence import INTEGERS, SequenceField, SequenceLayout, TokenField, TokenFill


@final
@class_door(PlanError, excepted=("column",))
@dataclass(frozen=True, slots=True)
class Segments(TokenField):
    """Segment numbers, shape ``[B, T]``: 1 on a row's first piece, 2 on its second and so on, 0 at padding.

    Empty pieces take no number. Two tokens may attend to each other where their numbers agree. Where `Packed` gives each
    column a width of its own, a sample has the same number in all of them, and none only if it is empty in all.

    Args:
        column: the token column, the same as in `Pad`.
        dtype: ``"int32"``, ``"int64"``, or ``"uint16"``, which torch gets as int64; see `Pad`.
        device: where the field is delivered; None leaves it on the host.

    Raises:
        PlanError: the dtype is unknown.

    Examples:
        >>> packing = spiral.batching.Packed(max_tokens=8, window_size=20)
        >>> fields = {"input_ids": spiral.Pad("tokens"), "segments": spiral.fields.Segments("tokens")}
        >>> segments = documents.collate(batch_size=1, formation=packing, fields=fields).to_numpy()[0]["segments"]
        >>> segments.tolist()
        [[1, 1, 1, 1, 1, 2, 2, 3]]
        >>> mask = segments[:, :, None] == segments[:, None, :]
    """

    KIND: ClassVar[TokenFill] = TokenFill.SEGMENTS
    column: str
    dtype: str | Any = "int32"
    device: str | None = None

    def __post_init__(self) -> None:
        settle_dtype(self, INTEGERS)

    @property
    def too_wide(self) -> str:
        return 'a row has more than 65,535 pieces, which uint16 cannot number. Give dtype="int32"'


@final
@class_door(PlanError, excepted=("column",))
@dataclass(frozen=True, slots=True)
class Positions(TokenField):
    """Positions, shape ``[B, T]``: 0, 1, 2, ... in each piece, 0 at padding: the ``position_ids`` of transformers.

    They count within the piece, not within the sample: where a split sample continues in the next row, they restart
    at 0.

    Args:
        column: the token column, the same as in `Pad`.
        dtype: ``"int64"``, which transformers uses, ``"int32"``, or ``"uint16"``, which torch gets as int64; see `Pad`.
        device: where the field is delivered; None leaves it on the host.

    Raises:
        PlanError: the dtype is unknown.

    Examples:
        >>> packing = spiral.batching.Packed(max_tokens=8, window_size=20)
        >>> fields = {"input_ids": spiral.Pad("tokens"), "position_ids": spiral.fields.Positions("tokens")}
        >>> documents.collate(batch_size=1, formation=packing, fields=fields).to_numpy()[0]["position_ids"].tolist()
        [[0, 1, 2, 3, 4, 0, 1, 0]]
    """

    KIND: ClassVar[TokenFill] = TokenFill.POSITIONS
    column: str
    dtype: str | Any = "int64"
    device: str | None = None

    def __post_init__(self) -> None:
        settle_dtype(self, INTEGERS)

    @property
    def too_wide(self) -> str:
        return 'a piece has more than 65,536 tokens, whose positions uint16 cannot hold. Give dtype="int32", or "int64"'


@final
@class_door(PlanError, excepted=("column",))
@dataclass(frozen=True, slots=True)
class CuSeqlens(SequenceField):
    """Cumulated lengths, shape ``[N + 1]``, int32: where the N segments of the flattened batch begin, and ``B * T``.

    ``flash_attn_varlen_func`` takes them as ``cu_seqlens_q`` and ``cu_seqlens_k``, with queries of shape
    ``[B * T, heads, width]``. It also needs the longest segment: ``diff(cu).max()``. In transformers they are
    ``cu_seq_lens_q`` and ``cu_seq_lens_k``; leave ``attention_mask`` out.

    **Padding is a segment too**: the end of each row that no piece covers. The numbers therefore address the flattened
    batch as it is, and nothing has to be unpadded. What attention computes at padding reaches no token, and labels
    ignore it. So N is the number of pieces plus the number of rows with padding; empty pieces are no segments. Those of two
    columns with widths of their own need not have as many: for attention from one to the other, use `Segments`.

    Args:
        column: the token column, the same as in `Pad`.
        device: where the field is delivered; None leaves it on the host.

    Examples:
        >>> packing = spiral.batching.Packed(max_tokens=8, window_size=20)
        >>> fields = {"input_ids": spiral.Pad("tokens"), "cu_seqlens": spiral.fields.CuSeqlens("tokens")}
        >>> documents.collate(batch_size=1, formation=packing, fields=fields).to_numpy()[0]["cu_seqlens"].tolist()
        [0, 5, 7, 8]
    """

    IN_SLOT: ClassVar[bool] = False
    PER_ROW: ClassVar[bool] = False
    dtype_name: ClassVar[str] = "int32"
    column: str
    device: str | None = None

    def cu_seqlens(self, layout: SequenceLayout) -> NDArray[np.int32]:
        """Compute the field for one batch.

        Args:
            layout: where the pieces of the whole batch lie.

        Returns:
            shape [N + 1], int32, strictly ascending from 0 to B * T.

        Raises:
            PlanError: B * T does not fit int32.
        """
        total = layout.B * layout.T
        if total > np.iinfo(np.int32).max:
            msg = (
                f"{named(self)}: the batch has {layout.B} x {layout.T} places; "
                "FlashAttention addresses less than 2**31. Lower max_tokens"
            )
            raise PlanError(msg)
        real = layout.lengths > 0
        begins = (layout.rows * layout.T + layout.starts)[real]
        borders = (np.arange(layout.B + 1) * layout.T, begins, begins + layout.lengths[real])
        return np.unique(np.concatenate(borders)).astype(np.int32)
