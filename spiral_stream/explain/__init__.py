"""EXPLAIN DATA: what a plan will do to its data, from facts, before the first payload byte is read."""

from spiral_stream.explain.sections import explain_plan, explain_stream
from spiral_stream.explain.text import SECTIONS, Explanation

__all__ = ["SECTIONS", "Explanation", "explain_plan", "explain_stream"]
