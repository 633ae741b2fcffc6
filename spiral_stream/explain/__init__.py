"""EXPLAIN DATA: what a plan will do to its data, from facts, before the first payload byte is read.

Start at: `sections`, then `subject`.
May not know: how it is printed, but for `text`.
"""

from spiral_stream.explain.sections import explain_plan, explain_stream
from spiral_stream.explain.text import SECTIONS, Explanation

__all__ = ["SECTIONS", "Explanation", "explain_plan", "explain_stream"]
