"""Expressions lowered to what each engine evaluates.

Start at: `pushdown`, then `arrow`.
May not know: plans; they see expressions and batches of columns.
"""

from spiral_stream.dialects.arrow import to_arrow, to_parquet
from spiral_stream.dialects.numpy import evaluate, evaluate_nullable, passes, to_column
from spiral_stream.dialects.pushdown import Inexpressible, all_of, conjuncts, split
from spiral_stream.dialects.sql import quoted, to_lance

__all__ = [
    "Inexpressible",
    "all_of",
    "conjuncts",
    "evaluate",
    "evaluate_nullable",
    "passes",
    "quoted",
    "split",
    "to_arrow",
    "to_column",
    "to_lance",
    "to_parquet",
]
