"""`StepTotal`: what all samples of an optimizer step come to, on all ranks together."""

from dataclasses import dataclass
from typing import Any, ClassVar, Final, final

import pyarrow as pa
from numpy.typing import NDArray

from spiral_stream import expr
from spiral_stream.arguments import class_door
from spiral_stream.errors import PlanError, shown
from spiral_stream.fields.field import Field, FieldSpec, settle_dtype

_DTYPES: Final = ("int64", "int32", "float32", "float64")


@final
@class_door(PlanError)
@dataclass(frozen=True, slots=True)
class StepTotal(Field):
    """The sum of an expression over all samples of the optimizer step, over all ranks and microsteps: shape [B].

    Each row of a batch holds the same number, ``batch["step_tokens"][0]``. A loss that is summed over tokens and divided by
    it has gradients of the mean over all tokens of the step; the mean of each rank's mean has not, since ranks hold unequally
    many tokens. A step is what ``bind(step_batches=)`` says, else one batch on each rank.

    It is known from columns, before a byte of payload is read. Documents that packing cuts count by the tokens that they have
    there, as in ``collate(cost=)``. Samples that cannot be read, and are left out, are counted: they are found later. Rows
    that only fill a batch (``PadPartial(value=)``) are not.

    Args:
        value: the expression, such as ``"len(tokens)"``, or a column of loss tokens: ``"n_targets"``.
        dtype: of the number: int64, int32, float32 or float64. A sum of fractions takes one of the last two.

    Raises:
        PlanError: ``value`` is no expression over columns, or ``dtype`` another one.

    Examples:
        >>> fields = {"input_ids": spiral.Pad("tokens"), "step_tokens": spiral.fields.StepTotal("len(tokens)")}
        >>> counted = documents.collate(batch_size=4, fields=fields).to_numpy().bind(step_batches=2)
        >>> first, second = counted.take(2)
        >>> first["step_tokens"].tolist() == second["step_tokens"].tolist()
        True
    """

    PACKS: ClassVar[bool] = True

    value: str
    dtype: str = "int64"

    def __post_init__(self) -> None:
        if isinstance(self.value, expr.Expr):
            object.__setattr__(self, "value", str(self.value))
        if not isinstance(self.value, str):
            msg = f"StepTotal: value={shown(self.value)}. Give an expression over columns, such as 'len(tokens)'"
            raise PlanError(msg)
        if not expr.parse(self.value).columns():
            msg = (
                f"StepTotal: value={self.value!r} names no column. Give a number of each sample, such as 'len(tokens)'"
            )
            raise PlanError(msg)
        settle_dtype(self, _DTYPES)

    @property
    def column(self) -> str:  # type: ignore[override]  # the interface's is an attribute
        """One of the columns that it is made of."""
        return min(expr.parse(self.value).columns())

    def spec(self, column: pa.Field) -> FieldSpec:
        del column
        return FieldSpec(self.dtype, ())

    def fill(self, values: pa.Array, out: NDArray[Any] | None) -> NDArray[Any] | list[Any]:
        del values, out
        msg = "a total is of a step, and no column has it"
        raise NotImplementedError(msg)
