"""Lower predicates to expressions of vortex-data, as far as its scanner computes them exactly.

Vortex compares floats by IEEE total order: NaN is above or below every number, and -0.0 below 0.0. So a comparison of a
float carries bounds that no NaN meets, and a zero is given with the sign that makes both zeros equal. Where a NaN would
have to pass (``not``, ``!=``), the condition is left for us: zone maps may leave NaN out. Both sides of a comparison have
one type, so constants are typed. Verified on vortex-data 0.93 by the conformance test.
"""

import math
from typing import Any, Final

import pyarrow as pa

from spiral_stream.dialects.pushdown import Inexpressible
from spiral_stream.expr import Call, Col, Expr, Lit, bind, kind_of, type_of

_COMPARE: Final = {"==": "eq", "!=": "not_eq", "<": "lt", "<=": "lt_eq", ">": "gt", ">=": "gt_eq"}
_EXACT: Final = ("int", "text", "binary", "bool")
_BELOW_ZERO: Final = ("<", ">=")  # compared with -0.0


def to_vortex(expr: Expr, schema: pa.Schema) -> Any:
    """Lower a predicate to a ``vortex.Expr``.

    Raises:
        Inexpressible: Vortex has no exact form.
        PlanError: the expression does not fit the schema.
    """
    return _Vortex(schema).lower(bind(expr, schema), nan_passes=False)


class _Vortex:
    def __init__(self, schema: pa.Schema) -> None:
        import vortex
        import vortex.expr

        self.schema, self.types, self.make = schema, vortex, vortex.expr

    def lower(self, expr: Expr, *, nan_passes: bool) -> Any:
        """Lower an expression; ``nan_passes`` says whether a comparison that is false of NaN could let it pass."""
        if isinstance(expr, Col):
            return self.make.column(expr.name)
        if not isinstance(expr, Call):
            raise Inexpressible
        if expr.op in ("and", "or"):
            parts = [self.lower(arg, nan_passes=nan_passes) for arg in expr.args]
            return (self.make.and_collect if expr.op == "and" else self.make.or_collect)(parts)
        if expr.op == "not":
            return self.make.not_(self.lower(expr.args[0], nan_passes=True))
        if expr.op == "is_null" and isinstance(expr.args[0], Col):
            return self.make.is_null(self.make.column(expr.args[0].name))
        if expr.op == "is_in":
            left, *values = expr.args
            each = [self.compare("==", left, value, nan_passes=nan_passes) for value in values]
            return self.make.or_collect(each)
        if expr.op in _COMPARE:
            return self.compare(expr.op, *expr.args, nan_passes=nan_passes)
        raise Inexpressible

    def compare(self, op: str, left: Expr, right: Expr, *, nan_passes: bool) -> Any:
        """Lower the comparison of a column with a constant."""
        if not isinstance(left, Col) or not isinstance(right, Lit) or right.value is None:
            raise Inexpressible
        kind, type_ = kind_of(type_of(left, self.schema)), type_of(left, self.schema)
        if right.type != type_:
            raise Inexpressible
        column = self.make.column(left.name)
        if kind in _EXACT:
            return getattr(self.make, _COMPARE[op])(column, self.literal(right.value, type_))
        if kind != "float" or nan_passes or op == "!=" or not isinstance(right.value, float) or math.isnan(right.value):
            raise Inexpressible
        return self.floats(op, column, right.value, type_)

    def floats(self, op: str, column: Any, value: float, type_: pa.DataType) -> Any:
        if op == "==":
            return self.make.and_(self.floats(">=", column, value, type_), self.floats("<=", column, value, type_))
        if value == 0:
            value = -0.0 if op in _BELOW_ZERO else 0.0
        bounds = [
            self.make.gt_eq(column, self.literal(-math.inf, type_)),
            self.make.lt_eq(column, self.literal(math.inf, type_)),
        ]
        return self.make.and_collect([getattr(self.make, _COMPARE[op])(column, self.literal(value, type_)), *bounds])

    def literal(self, value: Any, type_: pa.DataType) -> Any:
        t, v = pa.types, self.types
        if t.is_boolean(type_):
            dtype = v.bool_(nullable=True)
        elif t.is_signed_integer(type_):
            dtype = v.int_(type_.bit_width, nullable=True)
        elif t.is_unsigned_integer(type_):
            dtype = v.uint(type_.bit_width, nullable=True)
        elif t.is_floating(type_):
            dtype = v.float_(type_.bit_width, nullable=True)
        elif t.is_string(type_) or t.is_large_string(type_):
            dtype = v.utf8(nullable=True)
        elif t.is_binary(type_) or t.is_large_binary(type_):
            dtype = v.binary(nullable=True)
        else:
            raise Inexpressible
        return self.make.literal(dtype, value)
